"""``edge_format``: the edges of the tensor form, bit for bit, as an `EdgeIndex` whose pointers the sampler made."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError, OptionError, SamplingOptions
from glt_lightning.loader import LoaderSpec, Session, plain
from glt_lightning.loader.collate import Collate
from glt_lightning.loader.edge_index import BatchEdges
from glt_lightning.sampling import BatchRequest, KHopSampler, Sample, SamplerConfig, k_hop, neighbor_source
from glt_lightning.sampling.assemble import assemble
from tests.helpers.contents import contents
from tests.helpers.partitions import partitioned, small_graph, small_hetero
from tests.helpers.servers import contents_of, inline, open_farm
from tests.reference import ops as reference

TENSOR = LoaderSpec(name="train", split="train", num_neighbors=[4, 3, 2], batch_size=16, shuffle=True)
SPEC = replace(TENSOR, edge_format="edge_index_csr")


def check(batch, *, by_source=True):
    """Sorted by destination, and what the batch holds of its edges is what the reference makes of them."""
    for store in batch.edge_stores:
        found = store.edge_index
        src, _, dst = store._key or (None, None, None)
        sources, destinations = ((batch if each is None else batch[each]).num_nodes for each in (src, dst))
        assert type(found) is BatchEdges
        assert found.sparse_size() == (sources, destinations)
        assert found.is_sorted_by_col
        edges = found.as_tensor()
        assert (edges[1].diff() >= 0).all()
        found.validate()
        assert torch.equal(found._indptr, reference.column_pointers(edges[1], destinations))
        if not by_source:
            assert found._T_perm is None
        else:
            made = found._T_indptr, found._T_index[1], found._T_perm
            for mine, want in zip(made, reference.by_source(*edges, sources), strict=True):
                assert torch.equal(mine, want)


def as_tensors(batch):
    for store in batch.edge_stores:
        store.edge_index = plain(store.edge_index)
    return batch


@pytest.mark.parametrize("make", [small_graph, small_hetero])
def test_every_producer(tmp_path, make):
    found = {}
    for parts, workers, threads in ((1, 0, 1), (3, 1, 2)):
        options = SamplingOptions(num_workers=workers, num_threads=threads, with_edge=True)
        with Session(partitioned(make(), tmp_path, parts, undirected=True), options, seed=7) as context:
            for tensor, batch in zip(context.make_loader(TENSOR), context.make_loader(SPEC), strict=True):
                check(batch)
                found.setdefault(parts, []).append(contents(batch))
                assert contents(as_tensors(batch)) == contents(tensor)
    assert found[1] == found[3]


@pytest.mark.diagonal
@pytest.mark.parametrize("make", [small_graph, small_hetero])
@pytest.mark.parametrize("kind", ["in process", "flight", "handover"])
def test_servers(tmp_path, make, kind):
    graph = partitioned(make(), tmp_path, 2)
    evaluation = replace(SPEC, shuffle=False, exact=True)
    with open_farm(kind) as farm:
        found = contents_of(farm.context(farm.serve(graph).address), SPEC, evaluation)
    assert found == inline(graph, SPEC, evaluation)


@pytest.mark.parametrize(("seed_type", "gids"), [(1, [100, 85, 100]), (0, [3, 4])])
@pytest.mark.parametrize("fanouts", [((0, 3), (2, 0), (1, 1)), ((0, 0),), ()])
def test_uneven_fanouts(tmp_path, seed_type, gids, fanouts):
    """Edge types that are followed in some hops alone, or in none; seeds that no edge leads to, and a seed twice."""
    graph = partitioned(small_hetero(), tmp_path, 2)
    config = SamplerConfig(seed_type, fanouts, pointers=True, by_source=True)
    request = BatchRequest(0, 9, np.array(gids), np.arange(len(gids)))
    draft = KHopSampler(graph, config).draft(request)
    collate = Collate(graph.manifest, (seed_type,))
    check(collate(Sample(0, draft.write(np.empty(draft.nbytes, dtype=np.uint8)))))


def test_pointers_alone(tmp_path):
    with Session(partitioned(small_graph(), tmp_path)) as context:
        for change in ({"shuffle": False, "exact": True}, {"edge_format": "edge_index"}):
            for batch in context.make_loader(replace(SPEC, **change)):
                check(batch, by_source=False)


def test_with_the_first_layer_aggregated(tmp_path):
    """The batch ends a hop earlier, and so do its pointers."""
    sampling = SamplingOptions(aggregate_first="mean")
    with Session(partitioned(small_graph(), tmp_path), sampling) as context:
        for batch in context.make_loader(SPEC):
            check(batch)


def test_resume_with_the_other_format(tmp_path):
    """The format changes no draw, so a checkpoint in mid-epoch goes on with either."""
    with Session(partitioned(small_graph(), tmp_path), seed=5) as context:
        loaders = [context.make_loader(spec) for spec in (TENSOR, SPEC)]
        batches = iter(loaders[0])
        next(batches), next(batches)
        state = json.loads(json.dumps(loaders[0].state_dict()))
        loaders[1].load_state_dict(state)
        assert [contents(as_tensors(batch)) for batch in loaders[1]] == [contents(batch) for batch in batches]


def test_an_unknown_format():
    with pytest.raises(
        OptionError,
        match=r"^loader 'a': edge_format: expected tensor, edge_index, edge_index_csr; got 'edge-index'. Did you mean edge_in",
    ):
        LoaderSpec(name="a", num_neighbors=[1], batch_size=1, edge_format="edge-index")


def test_a_sampler_of_ones_own_that_does_not_sort(tmp_path):
    graph = partitioned(small_graph(), tmp_path)
    config = SamplerConfig(0, ((3,),), pointers=True)
    source, request = (
        neighbor_source(graph, config),
        BatchRequest(0, 9, graph.split("train").gids[:8], torch.arange(8).numpy()),
    )
    found = k_hop(source, {0: request.seeds}, request.key)
    found.src[0][:], found.dst[0][:] = found.src[0][::-1].copy(), found.dst[0][::-1].copy()
    with pytest.raises(DataError, match="have to be sorted by destination"):
        assemble(source, request, found).values()


def test_its_bytes_are_counted(tmp_path):
    """A server refuses batches by their bytes before it makes them."""
    graph = partitioned(small_graph(), tmp_path)
    request = BatchRequest(0, 9, graph.split("train").gids[:8], torch.arange(8).numpy())
    plain_bytes = KHopSampler(graph, SamplerConfig(0, ((3,),))).draft(request).nbytes
    with pytest.raises(DataError, match="makes batches of at most"):
        KHopSampler(graph, SamplerConfig(0, ((3,),), pointers=True, by_source=True, most_bytes=plain_bytes)).draft(
            request
        )
