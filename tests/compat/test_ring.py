"""Loaders by GraphLearn-for-PyTorch's names over rings: every field by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glt_lightning.compat.glt as glt
from glt_lightning.base import DataError, OptionError
from tests.compat.fields import loader_of_subgraphs, loaders_of_links, typed_loaders
from tests.helpers.rings import I2I, NODES, U2I, dataset, ring_edges, ring_folder, typed_ring_folder

dist = glt.distributed
SEEDS = torch.tensor([7, 0, 20, 38, 3, 11])
SUBPROCESS = dist.MpDistSamplingWorkerOptions(num_workers=1, worker_concurrency=2, channel_size="16MB")

WAYS = [
    pytest.param("out", None, id="out"),
    pytest.param("in", None, id="in"),
    pytest.param("out", SUBPROCESS, id="mp out"),
    pytest.param("in", SUBPROCESS, id="mp in", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring_folder(tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def into(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ring_folder(tmp_path_factory.mktemp("in"), strategy="by_dst")


@pytest.fixture(scope="module")
def typed_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_ring_folder(tmp_path_factory.mktemp("typed"))


@pytest.fixture(scope="module")
def typed_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_ring_folder(tmp_path_factory.mktemp("typed in"), strategy="by_dst")


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    loaders: list[Any] = []
    yield loaders
    while loaders:
        loaders.pop().shutdown()


def hops_of(seeds: list[int], hops: int, step: int) -> list[int]:
    """How many nodes each hop adds to all seeds together."""
    levels = [set(seeds)]
    known = set(seeds)
    for _ in range(hops):
        new = {(v + step * k) % NODES for v in levels[-1] for k in (1, 2)} - known
        levels.append(new)
        known |= new
    return [len(level) for level in levels]


@pytest.mark.parametrize(
    ("edge_dir", "options"), [("out", None), ("in", None), ("out", SUBPROCESS)], ids=["out", "in", "mp"]
)
def test_every_field_of_a_batch(request: Any, opened: list[Any], edge_dir: str, options: Any) -> None:
    folder, step = request.getfixturevalue("into" if edge_dir == "in" else "out"), 1 if edge_dir == "out" else -1
    loader = dist.DistNeighborLoader(
        dataset(folder),
        [2, 2],
        SEEDS,
        batch_size=4,
        with_edge=True,
        edge_dir=edge_dir,
        collect_features=True,
        to_device=torch.device("cpu"),
        random_seed=1,
        worker_options=options,
    )
    opened.append(loader)
    assert (len(loader), str(loader)) == (2, "DistNeighborLoader()")
    for _ in range(2):
        batches = list(loader)
        assert [b.batch.tolist() for b in batches] == [[7, 0, 20, 38], [3, 11]]
        for batch, first in zip(batches, (0, 4), strict=True):
            seeds = batch.batch.tolist()
            assert (batch.batch_size, batch.num_nodes) == (len(seeds), len(batch.node))
            assert batch.node[: len(seeds)].tolist() == seeds
            assert torch.equal(batch.input_id, torch.arange(first, first + len(seeds)))
            assert torch.equal(batch.node, batch.n_id)
            assert torch.equal(batch.edge, batch.e_id)
            assert torch.equal(batch.x[:, 0].long(), batch.node)
            assert torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
            assert torch.equal(batch.y, batch.node * 10)
            sampled, seed_side = batch.node[batch.edge_index]
            ends = torch.stack([seed_side, sampled]) if edge_dir == "out" else torch.stack([sampled, seed_side])
            assert torch.equal(ring_edges()[:, batch.edge], ends)
            assert batch.num_sampled_nodes.tolist() == hops_of(seeds, 2, step)
            expanded = sum(hops_of(seeds, 2, step)[:2])
            assert batch.num_sampled_edges.tolist() == [2 * len(seeds), 2 * expanded - 2 * len(seeds)]
            assert batch.edge_index.shape[1] == 2 * expanded


def test_fields_that_are_not_asked_for(out: Path, opened: list[Any]) -> None:
    opened.append(loader := dist.DistNeighborLoader(dataset(out, labels=False), [2], SEEDS, batch_size=6))
    (batch,) = loader
    assert {"x", "edge_attr", "y", "edge"}.isdisjoint(batch.keys())
    assert batch.num_nodes == len(batch.node) > 6


def test_seeds_of_all_kinds(out: Path, opened: list[Any], tmp_path: Path) -> None:
    torch.save(SEEDS[:4], tmp_path / "a.pt")
    torch.save(SEEDS[4:], tmp_path / "b.pt")
    mask = torch.zeros(NODES, dtype=torch.bool)
    mask[SEEDS] = True
    paths = [str(tmp_path / "a.pt"), tmp_path / "b.pt"]
    for given, expected in ((mask, sorted(SEEDS.tolist())), (paths, SEEDS.tolist()), (None, list(range(NODES)))):
        opened.append(loader := dist.DistNeighborLoader(dataset(out), [1], given, batch_size=NODES))
        assert [b.batch.tolist() for b in loader] == [expected]
    (tmp_path / "c.pt").write_bytes(b"no tensor")
    with pytest.raises(DataError, match=r"c\.pt: cannot be read as a tensor"):
        dist.DistNeighborLoader(dataset(out), [1], tmp_path / "c.pt")


def test_epochs_draw_anew_and_a_seed_repeats_them(out: Path, opened: list[Any]) -> None:
    def draws(**given: Any) -> list[list[int]]:
        opened.append(
            loader := dist.DistNeighborLoader(dataset(out), [1, 1], SEEDS, batch_size=6, with_edge=True, **given)
        )
        return [batch.edge.tolist() for _ in range(3) for batch in loader]

    first, second, third = draws(random_seed=3)
    assert not first == second == third
    assert draws(random_seed=3)[0] != draws(random_seed=4)[0]


def test_weights_and_dropped_batches(out: Path, opened: list[Any]) -> None:
    loader = dist.DistNeighborLoader(
        dataset(out), [-1], SEEDS, batch_size=4, drop_last=True, with_edge=True, with_weight=True
    )
    opened.append(loader)
    (batch,) = loader
    assert len(loader) == 1
    assert batch.edge.tolist() == [2 * v + 1 for v in (7, 0, 20, 38)]


def test_typed_batches(typed_out: Path, opened: list[Any]) -> None:
    loader = dist.DistNeighborLoader(
        dataset(typed_out, labels=False),
        {U2I: [2, 0], I2I: [0, 2]},
        ("user", torch.tensor([5, 39])),
        batch_size=2,
        with_edge=True,
        collect_features=True,
    )
    opened.append(loader)
    (batch,) = loader
    rev, same = ("item", "rev_u2i", "user"), I2I
    assert batch["user"].batch.tolist() == batch["user"].node.tolist() == [5, 39]
    assert batch["user"].y.tolist() == [50, 390]
    assert sorted(batch["item"].node[:4].tolist()) == [0, 5, 6, 39]
    assert torch.equal(batch["item"].x[:, 0].long(), batch["item"].node + 100)
    assert {t: n.tolist() for t, n in batch.num_sampled_nodes.items()} == {"user": [2, 0, 0], "item": [0, 4, 6]}
    assert {t: n.tolist() for t, n in batch.num_sampled_edges.items()} == {rev: [4, 0], same: [0, 8]}
    item, user = batch[rev].edge_index
    ends = torch.stack([batch["user"].node[user], batch["item"].node[item]])
    assert torch.equal(ring_edges(first=0)[:, batch[rev].edge], ends)
    far, near = batch["item"].node[batch[same].edge_index]
    assert torch.equal(ring_edges(first=2)[:, batch[same].edge], torch.stack([near, far]))
    assert torch.equal(batch[same].edge_attr[:, 0].long(), batch[same].edge + 1000)


@pytest.mark.parametrize(("edge_dir", "options"), WAYS)
def test_every_field_of_typed_batches(request: Any, edge_dir: str, options: Any) -> None:
    typed_loaders(dataset(request.getfixturevalue(f"typed_{edge_dir}"), labels=False), edge_dir, options)


@pytest.mark.parametrize(("edge_dir", "options"), WAYS)
def test_links_and_subgraphs(request: Any, edge_dir: str, options: Any) -> None:
    data = dataset(request.getfixturevalue("into" if edge_dir == "in" else "out"))
    loaders_of_links(data, edge_dir, options)
    loader_of_subgraphs(data, edge_dir, options)


def test_edges_of_a_type_that_there_is_not(typed_out: Path) -> None:
    with pytest.raises(OptionError, match=r"known: \('item', 'i2i', 'item'\), \('user', 'u2i', 'item'\)"):
        given = {"edge_label_index": (("item", "u2i", "user"), ring_edges(first=0))}
        dist.DistLinkNeighborLoader(dataset(typed_out, labels=False), [2], **given)


def test_errors_say_what_to_do(out: Path, typed_out: Path) -> None:
    data = dataset(out)
    with pytest.raises(OptionError, match=r"stores edges by_src, which is for edge_dir='out'"):
        dist.DistNeighborLoader(data, [1], SEEDS, edge_dir="in")
    with pytest.raises(OptionError, match=r"this host has no CUDA device|num_neighbors"):
        dist.DistNeighborLoader(data, [0], SEEDS, to_device=torch.device("cuda:0"))
    with pytest.raises(OptionError, match=r"expected a DistDataset, got NoneType"):
        dist.DistNeighborLoader(None, [1], SEEDS)
    with pytest.raises(OptionError, match=r"call init_client|init_server or init_client"):
        dist.DistNeighborLoader(None, [1], SEEDS, worker_options=dist.RemoteDistSamplingWorkerOptions())
    with pytest.raises(OptionError, match=r"expected \(node type, ids\) with a type of item, user"):
        dist.DistNeighborLoader(dataset(typed_out, labels=False), [1], SEEDS)
    with pytest.raises(OptionError, match="hop 1 draws 0 neighbours of every edge type"):
        dist.DistNeighborLoader(dataset(typed_out, labels=False), {U2I: [1, 0]}, ("user", SEEDS))
    with pytest.raises(OptionError, match="has the parts 0 to 1, got 2"):
        dataset(out, part=2)
    with pytest.raises(OptionError, match="Use request_server, which knows a fixed table"):
        _ = dist.rpc_register
    with pytest.raises(AttributeError, match="no attribute 'rpc_'"):
        _ = dist.rpc_


def test_options_of_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.MpDistSamplingWorkerOptions(num_workers=3).channel_size == 3 << 26
    assert dist.MpDistSamplingWorkerOptions(worker_concurrency=50).worker_concurrency == 32
    with pytest.raises(OptionError, match="prefetch_size: 5 is more than"):
        dist.RemoteDistSamplingWorkerOptions(prefetch_size=5)
    assert dist.RemoteDistSamplingWorkerOptions().server_of(3, 2) == 1
    assert dist.RemoteDistSamplingWorkerOptions(server_rank=[1, 0]).server_of(0, 2) == 1
    with pytest.raises(OptionError, match="expected numbers from 0 to 1, got 2"):
        dist.RemoteDistSamplingWorkerOptions(server_rank=2).server_of(0, 2)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="several processes need a place to meet"):
        dist.CollocatedDistSamplingWorkerOptions().address()
    monkeypatch.setenv("MASTER_ADDR", "host")
    monkeypatch.setenv("MASTER_PORT", "7")
    assert dist.CollocatedDistSamplingWorkerOptions().address() == ("host", 8)


def test_context_of_one_worker() -> None:
    dist.init_worker_group(world_size=1, rank=0, group_name="distributed-trainer")
    context = dist.get_context()
    assert (context.role, context.world_size, context.rank) == (dist.DistRole.WORKER, 1, 0)
    assert (context.group_name, context.worker_name) == ("distributed_trainer", "distributed_trainer_0")
    dist.barrier()
    dist.shutdown_rpc()
    assert dist.get_context() is None
    with pytest.raises(OptionError, match="expected 0 <= rank < 2"):
        dist.init_worker_group(2, 2)


def test_a_dataset_of_tensors_and_a_random_split(out: Path, opened: list[Any]) -> None:
    data = dist.DistDataset(whole_node_labels=torch.arange(NODES) * 10)
    data.init_graph(ring_edges(), torch.arange(2 * NODES) + 100, graph_mode="CPU")
    data.init_node_features(torch.arange(NODES)[:, None])
    opened.append(
        loader := dist.DistNeighborLoader(data, [2], SEEDS, batch_size=6, with_edge=True, collect_features=True)
    )
    (batch,) = loader
    assert torch.equal(batch.y, batch.node * 10)
    assert torch.equal(batch.x[:, 0].long(), batch.node)
    assert torch.equal(ring_edges()[:, batch.edge - 100], batch.node[batch.edge_index].flip(0))
    parts = [dataset(out, part) for part in range(2)]
    for each in parts:
        each.random_node_split(0.25, 3)
        assert (len(each.val_idx), len(each.test_idx)) == (5, 3)
    ids = [i for each in parts for split in each.node_split for i in split.tolist()]
    assert sorted(ids) == list(range(NODES))


def test_a_dataset_without_a_graph_has_no_loaders() -> None:
    with pytest.raises(OptionError, match=r"no partition folder\. Call load"):
        dist.DistNeighborLoader(dist.DistDataset(), [1], SEEDS)


def test_options_without_effect_are_named(caplog) -> None:
    dist.MpDistSamplingWorkerOptions(num_workers=2, worker_devices="cpu")
    dist.RemoteDistSamplingWorkerOptions()
    assert not caplog.records
    dist.RemoteDistSamplingWorkerOptions(num_rpc_threads=4, worker_devices=["cuda:0"], worker_key="a")
    assert [each.getMessage() for each in caplog.records] == [
        "RemoteDistSamplingWorkerOptions: num_rpc_threads: no effect; our transport has threads and calls of its own.",
        "RemoteDistSamplingWorkerOptions: worker_devices, worker_key: no effect; the cluster options of init_server decide.",
    ]
