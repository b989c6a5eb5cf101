"""`DistGraph.save` and `load`: tensors by the user's ids, with any number of parts, ranks and hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning import DistGraph, DistTensor, LocalPartition
from glt_lightning.base import DataError, PeerError, WriteError
from glt_lightning.tensors import Reach
from glt_lightning.workers import Ranks
from tests.helpers.homes import link_of
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("snapshot")
    for parts in (1, 3):
        partitioned(small_graph(), folder, parts, undirected=True).close()  # ids of edges have gaps
    return {parts: folder / f"parts{parts}" for parts in (1, 3)}


TENSORS = {"h": ((5,), torch.float32, "node"), "b": ((), torch.bfloat16, "node"), "e": ((2,), torch.int32, "edge")}


def create(graph: DistGraph) -> dict[str, DistTensor]:
    made = {}
    for name, (row_shape, dtype, kind) in TENSORS.items():
        of = graph.node_types[0] if kind == "node" else graph.edge_types[0]
        rows = graph.space(of).num_rows
        made[name] = DistTensor((rows, *row_shape), dtype, name, of=of, graph=graph)
    return made


def by_id(graph: DistGraph, tensor: DistTensor) -> torch.Tensor:
    """In an order that no partition changes; an edge and its reverse have the same id, and different sources."""
    ids = graph.user_ids(slice(None), tensor.of)
    if tensor.of in graph.edge_types:
        src, _ = graph._reader.edge_ends(graph.space(tensor.of), np.arange(len(ids)))
        ids = ids * 1000 + graph.user_ids(torch.from_numpy(src))
        assert len(ids.unique()) == len(ids)
    return tensor[ids.argsort()]


def saved(folders: dict[int, Path], folder: Path, parts: int = 3) -> dict[str, torch.Tensor]:
    with DistGraph(folders[parts]) as graph:
        tensors = create(graph)
        generator = torch.Generator().manual_seed(0)
        for tensor in tensors.values():
            tensor[:] = torch.randint(0, 100, tensor.shape, generator=generator).to(tensor.dtype)
        DistTensor((300,), torch.int64, of=graph.node_types[0], graph=graph)  # anonymous: not saved
        graph.save(folder)
        return {name: by_id(graph, tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("there", [False, True])
def test_what_is_saved_is_loaded(folders: dict[int, Path], tmp_path: Path, parts: int, there: bool) -> None:
    expected = saved(folders, tmp_path / "snapshot")
    with DistGraph(folders[parts]) as graph:
        made = create(graph) if there else {}
        found = {tensor.name: tensor for tensor in graph.load(tmp_path / "snapshot")}
        assert set(found) == set(expected)
        for name, values in expected.items():
            assert torch.equal(by_id(graph, found[name]), values)
            if there:
                assert torch.equal(by_id(graph, made[name]), values)


def test_on_two_ranks_of_two_hosts(folders: dict[int, Path], tmp_path: Path) -> None:
    expected = saved(folders, tmp_path / "snapshot", parts=1)
    with InProcessNetwork() as network:

        def run(rank: int, exchange: Callable[[str], list[str]]) -> dict[str, torch.Tensor]:
            partition = LocalPartition.open(folders[3])
            reach = Reach(f"host{rank}", link_of(rank), lambda: f"host{rank}:0", lambda: network)
            with DistGraph(partition, ranks=Ranks(rank, 2, exchange), reach=reach) as graph:
                graph.load(tmp_path / "snapshot")
                graph.save(tmp_path / "again")
                found = {tensor.name: by_id(graph, tensor) for tensor in graph.load(tmp_path / "again")}
                with pytest.raises((WriteError, PeerError), match=r"again: the rows .* cannot be written"):
                    graph.save(tmp_path / "again")
                exchange("done with the rows of other hosts")
            partition.close()
            return found

        for found in run_ranks(2, run):
            assert all(torch.equal(found[name], values) for name, values in expected.items())
    assert (tmp_path / "again" / "index.json").read_bytes() != b""


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda folder: (folder / "index.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "index.json").write_text("{"), "index.json: damaged: it is no JSON"),
        (lambda folder: next(folder.glob("0-*.npy")).write_bytes(b"x"), "cannot be read|damaged"),
        (lambda folder: _shorten(folder), "damaged: its hash differs"),
    ],
)
def test_a_damaged_snapshot_is_said(
    folders: dict[int, Path], tmp_path: Path, harm: Callable[[Path], object], complaint: str
) -> None:
    saved(folders, tmp_path / "snapshot")
    harm(tmp_path / "snapshot")
    with DistGraph(folders[1]) as graph, pytest.raises(DataError, match=complaint):
        graph.load(tmp_path / "snapshot")


def _shorten(folder: Path) -> None:
    file = next(folder.glob("0-*.npy"))
    np.save(file, np.load(file)[:299])


def test_rows_of_another_graph_are_refused(folders: dict[int, Path], tmp_path: Path) -> None:
    saved(folders, tmp_path / "snapshot")
    partitioned(small_graph(nodes=200), tmp_path, 1, undirected=True).close()
    with (
        DistGraph(tmp_path / "parts1") as graph,
        pytest.raises(DataError, match=r"rows of another graph; 'node' has 200"),
    ):
        graph.load(tmp_path / "snapshot")
