"""Attributes of every dtype reach the user as they were given, or as their encoding rounds them, whoever makes the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt_lightning.base import CacheOptions, OptionError, SamplingOptions
from glt_lightning.base.partition import STORAGE
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import ENCODINGS, Shards
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.partition import GraphFacts
from glt_lightning.sampling import BatchRequest, KHopSampler, SamplerConfig
from glt_lightning.workers import Ranks
from tests.helpers.contents import Contents, contents
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.ranks import run_ranks
from tests.helpers.servers import contents_of, inline, open_farm
from tests.workers.test_caches import open_rank as open_cached
from tests.workers.test_group import open_rank

ALL = LoaderSpec(name="all", num_neighbors=[4, 3], batch_size=50, exact=True, node_type="node")
TRAIN = LoaderSpec(name="train", split="train", num_neighbors=[4, 3], batch_size=8, shuffle=True)
DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)


def rounded(values: torch.Tensor, kind: str) -> torch.Tensor:
    """What comes back of float32 that is stored so."""
    stored = ENCODINGS[kind].encode(values.numpy())
    return torch.from_numpy(Shards([stored], encoding=ENCODINGS[kind]).gather(np.arange(len(values))))


def every_dtype() -> Data:
    """Attributes of one, two and three dimensions, of nodes and of edges; ``x`` is bfloat16."""
    data = small_graph()
    data.x = (data.x / 7).bfloat16()
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        for shape in ((), (3,), (2, 2)):
            count = int(np.prod(shape, dtype=int))
            numbers = torch.arange(data.num_nodes * count).reshape(data.num_nodes, *shape) % 100
            data[f"n_{name}_{len(shape) + 1}"] = numbers.to(dtype)
            numbers = torch.arange(data.num_edges * count).reshape(data.num_edges, *shape) % 100
            data[f"e_{name}_{len(shape) + 1}"] = numbers.to(dtype)
    return data


def batches(partition: LocalPartition, spec: LoaderSpec = ALL, workers: int = 0) -> Iterator[Data | HeteroData]:
    with Session(partition, SamplingOptions(num_workers=workers), seed=7) as context:
        yield from context.make_loader(spec)


@pytest.mark.parametrize("workers", [0, 1])
def test_every_dtype_as_it_was_given(tmp_path, workers):
    data = every_dtype()
    partition = partitioned(data, tmp_path, 2)
    assert partition.manifest.num_features("node") == 3
    seen = 0
    for batch in batches(partition, workers=workers):
        for name, value in data.to_dict().items():
            if not isinstance(value, torch.Tensor) or name == "edge_index" or name.endswith("_mask"):
                continue
            ids = batch.e_id if data.is_edge_attr(name) else batch.n_id
            assert batch[name].dtype == value.dtype, name
            assert torch.equal(batch[name], value[ids]), name
            seen += 1
    assert seen >= 6 * (2 * 3 * len(DTYPES) + 3)


@pytest.mark.parametrize("kind", STORAGE)
def test_stored_in_fewer_bytes(tmp_path, kind):
    data = small_graph()
    data.weight = torch.rand(data.num_nodes)
    data.cube = torch.rand(data.num_nodes, 2, 2, dtype=torch.float64)
    flat = {} if kind == "int8" else {"weight": kind, "cube": kind}
    storage = {"x": kind, "edge_attr": kind} | flat
    partitions = [partitioned(data, tmp_path, parts, storage=storage) for parts in (1, 2, 5)]
    facts = GraphFacts.of_manifest(partitions[0].manifest)
    assert facts.num_features == {"node": 3}
    x, edge_attr = rounded(data.x, kind), rounded(data.edge_attr, kind)
    for batch in batches(partitions[1]):
        assert batch.x.dtype == batch.edge_attr.dtype == torch.float32
        assert torch.equal(batch.x, x[batch.n_id])
        assert torch.equal(batch.edge_attr, edge_attr[batch.e_id])
        if flat:
            assert torch.equal(batch.weight, rounded(data.weight, kind)[batch.n_id])
            assert torch.equal(batch.cube, rounded(data.cube.float(), kind)[batch.n_id])
    made = [[contents(b) for b in batches(p, TRAIN, workers)] for p in partitions for workers in (0, 1)]
    for found in made:
        assert found == made[0]


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("kind", [*STORAGE, "every dtype"])
def test_worker_mode_and_servers(tmp_path, kind):
    """The same batches whether rows are read here, at another rank, or at a server."""
    data, storage = small_graph(), {"x": kind, "edge_attr": kind}
    if kind == "every dtype":
        data, storage = every_dtype(), {}
    whole = partitioned(data, tmp_path, 1, storage=storage)
    halves = partitioned(data, tmp_path, 2, storage=storage)
    specs = [TRAIN, LoaderSpec(name="all", num_neighbors=[3, -1], batch_size=64, exact=True)]

    def rank_contents(rank, exchange):
        with open_rank(halves, rank, 2, exchange, SamplingOptions()) as context:
            loaders = [context.make_loader(spec) for spec in specs]
            found = [contents(batch) for loader in loaders for batch in loader]
            exchange("all done")
            return found

    for rank, found in enumerate(run_ranks(2, rank_contents)):
        with Session(whole, seed=3, ranks=Ranks(rank, 2)) as context:
            loaders = [context.make_loader(spec) for spec in specs]
            assert found == [contents(batch) for loader in loaders for batch in loader]
    with open_farm("flight") as farm:
        server = farm.serve(halves)
        assert contents_of(farm.context(server.address), *specs, epochs=1) == inline(whole, *specs, epochs=1)


STORED = SamplingOptions(feature_dtype="stored")
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32}


def decoded(batch: Data, kind: str) -> Contents:
    """Contents of a batch whose attributes came as they are stored, once they are float32."""
    for name in ("x", "edge_attr"):
        assert batch[name].dtype == HALVES[kind], name
        batch[name] = batch[name].float()
    return contents(batch)


@pytest.mark.parametrize("kind", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16", "int8"])
def test_handed_over_as_stored(tmp_path, caplog, kind):
    """Whoever makes the batches, they are those of today in fewer bytes."""
    storage = {"x": kind, "edge_attr": kind}
    halves = partitioned(small_graph(), tmp_path, 2, storage=storage)
    expected = inline(halves, TRAIN)

    def found(context):
        return [decoded(batch, kind) for batch in context.make_loader(TRAIN)]

    with caplog.at_level("INFO"):
        for workers in (0, 1):
            options = replace(STORED, num_workers=workers)
            for cache in (CacheOptions(), CacheOptions(memory=1000)):
                with Session(halves, options, seed=3, cache=cache) as context:
                    assert found(context) == expected
    level, text = ("WARNING", "no effect") if kind == "int8" else ("INFO", f"x as {kind}")
    assert caplog.records[0].levelname == level
    assert text in caplog.records[0].getMessage()
    for transport in ("flight", "handover"):
        with open_farm(transport) as farm:
            server = farm.serve(halves)
            assert found(farm.context(server.address, sampling=STORED)) == expected
            assert contents_of(farm.context(server.address), TRAIN) == expected  # other clients are given float32

    def rank_found(rank, exchange):
        parts, cache = [rank], CacheOptions(ratio=0.1)
        with open_cached(halves, rank, 2, exchange, parts, cache, STORED) as context:
            loader = context.make_loader(TRAIN)
            got = [decoded(batch, kind) for batch in loader]
            counters = loader.stats().counters
            exchange("all done")
            return got, counters.cached_rows, counters.remote_rows

    for rank, (got, cached, remote) in enumerate(run_ranks(2, rank_found)):
        assert got == inline(halves, TRAIN, rank=rank, world_size=2)
        assert cached > 0 < remote


def test_stored_halves_the_bytes_of_a_batch(tmp_path):
    data = small_graph()
    data.x = torch.rand(data.num_nodes, 64)
    halves = partitioned(data, tmp_path, 2, storage={"x": "float16"})
    seeds, sizes = halves.split("train"), {}
    for stored in (False, True):
        sampler = KHopSampler(halves, SamplerConfig(0, ((4,), (3,)), stored=stored))
        draft = sampler.draft(BatchRequest(0, 1, seeds.gids[:20].copy(), np.arange(20)))
        sizes[stored] = {f.name: int(np.prod(f.shape)) * f.dtype.itemsize for f in draft.fields}
    assert 2 * sizes[True].pop("node/0/x") == sizes[False].pop("node/0/x")
    assert sizes[True] == sizes[False]


@pytest.mark.parametrize("kind", [*STORAGE, "given bfloat16"])
@pytest.mark.parametrize("parts", [1, 3])
def test_types_without_features(tmp_path, kind, parts):
    data, storage = small_hetero(), {"x": kind}
    expected = data["paper"].x
    if kind == "given bfloat16":
        data["paper"].x = expected = expected.bfloat16()
        storage = {}
    else:
        expected = rounded(expected, kind)
    partition = partitioned(data, tmp_path, parts, undirected=True, storage=storage)
    assert GraphFacts.of_manifest(partition.manifest).num_features == {"author": None, "paper": 3}
    for batch in batches(partition, TRAIN):
        assert batch["paper"].x.dtype == expected.dtype
        assert torch.equal(batch["paper"].x, expected[batch["paper"].n_id])
        assert "x" not in batch["author"]


def test_resume_with_other_storage_is_refused(tmp_path):
    states = []
    for storage in ({}, {"x": "int8"}):
        partition = partitioned(small_graph(), tmp_path / str(len(storage)), storage=storage)
        with Session(partition) as context:
            loader = context.make_loader(TRAIN)
            states.append(loader.state_dict())
            loader.load_state_dict(states[-1])
            if storage:
                with pytest.raises(OptionError, match="graph"):
                    loader.load_state_dict(states[0])


def test_remote_bytes_shrink(tmp_path):
    data = small_graph()
    data.x = torch.rand(data.num_nodes, 100)
    sent, kept, counted = {}, {}, {}
    for kind in (None, *STORAGE):
        folder = tmp_path / str(kind)
        halves = partitioned(data, folder, 2, storage={"x": kind} if kind else None)
        kept[kind] = int(np.load(folder / "parts2/part0/nodes/0/x.npy").nbytes)

        def bytes_in(rank, exchange, halves=halves):
            with open_rank(halves, rank, 2, exchange, SamplingOptions()) as context:
                for _ in context.make_loader(TRAIN):
                    pass
                exchange("all done")
                return context._producer.traffic.bytes_in

        sent[kind] = sum(run_ranks(2, bytes_in))
        here, remote = split_up(halves, [[0], [1]])
        gids = halves.split("train").gids[:20].copy()
        draft = KHopSampler(here, SamplerConfig(0, ((4,), (3,)), with_edge=True), remote=remote).draft(
            BatchRequest(0, 1, gids, np.arange(20))
        )
        counted[kind] = draft.counters.remote_bytes
    assert kept["float16"] == kept["bfloat16"] == kept[None] // 2
    assert kept["int8"] * 400 == kept[None] * 104
    assert sent["float16"] == sent["bfloat16"] < 0.7 * sent[None]
    assert sent["int8"] < 0.5 * sent[None]
    assert counted["float16"] == counted["bfloat16"]
    assert (counted[None] - counted["int8"]) * 200 == (counted[None] - counted["float16"]) * 296 > 0
