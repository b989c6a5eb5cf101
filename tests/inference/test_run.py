"""All layers over several parts, ranks and hosts: the forward pass over the whole graph, and each remote row fetched once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore
from torch_geometric.nn import SAGEConv

from glt_lightning import DistGraph, LayerwiseOptions, Session
from glt_lightning.base import OptionError, PeerError
from glt_lightning.graph import LocalPartition, SharedArrays
from glt_lightning.inference import LayerwiseLayers, LayerwiseRun, Marks, run
from glt_lightning.inference.protocol import DegreeSpec
from glt_lightning.tensors import Reach
from glt_lightning.tensors.home import RemoteHome
from glt_lightning.workers import Ranks
from tests.helpers.homes import link_of
from tests.helpers.in_process import InProcessNetwork
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.ranks import run_ranks

NODES, WIDTHS = 300, (3, 4, 5)
GRAPH = small_graph()


class Gone(Exception):
    """A rank that goes away without a word."""


class Sums(nn.Module):
    """Sums of neighbours' rows with weights that are integers, and of all degrees."""

    num_layers = 2
    keep = "all"
    degrees = DegreeSpec()

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(SAGEConv(a, b, aggr="sum") for a, b in pairwise(WIDTHS))
        drawn = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data = torch.randint(-1, 2, parameter.shape, generator=drawn).float()

    def embed(self, batch: Any) -> Tensor:
        return batch.x % 5

    def layer(self, k: int, h: Tensor, batch: Any) -> Tensor:
        scaled = h + (batch.in_degree % 3)[:, None]
        return self.convs[k](scaled, batch.edge_index)[: batch.batch_size] % 1001

    def head(self, hs: list[Tensor]) -> dict[str, Tensor]:
        return {"embedding": torch.cat(hs, dim=1)}


def whole() -> np.ndarray:
    module, x, edges = Sums(), GRAPH.x % 5, GRAPH.edge_index
    degree, hs = torch.bincount(edges[1], minlength=NODES), []
    with torch.no_grad():
        for conv in module.convs:
            x = conv(x + (degree % 3)[:, None], edges) % 1001
            hs.append(x)
    return torch.cat(hs, dim=1).numpy()


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> dict[int, LocalPartition]:
    return {parts: partitioned(GRAPH, tmp_path_factory.mktemp("run"), parts) for parts in (1, 3)}


def computed(
    partition: LocalPartition,
    folder: Path,
    ranks: int,
    hosts: int,
    fail: Callable[[LayerwiseRun, int], None] = lambda run, step: None,
    make: Callable[[], Any] = Sums,
    **options: Any,
) -> list[tuple[LayerwiseRun, dict[str, np.ndarray]]]:
    """The run and the columns of each rank, on host rank mod hosts."""
    store = HashStore()

    def body(rank: int, exchange: Callable[[str], list[str]]) -> tuple[LayerwiseRun, dict[str, np.ndarray]]:
        place = f"host{rank % hosts}"
        reach = Reach(place, link_of(rank), lambda: f"{place}:0", lambda: network)
        graph = DistGraph(partition, ranks=Ranks(rank, ranks, exchange), reach=reach)
        chosen = LayerwiseOptions(**options)
        found: list[dict[str, Tensor]] = []
        with Session(partition, seed=3, ranks=Ranks(rank, ranks)) as context, graph, torch.no_grad():
            types, typed = partition.schema.node_types, not partition.schema.homogeneous
            module = LayerwiseLayers(make(), types, typed)
            marks = Marks(rank, ranks, store, chosen.wait_s)
            run = LayerwiseRun(module, graph, context.make_loader, marks, chosen, folder)
            try:
                for step, loader in enumerate(run.loaders()):
                    for number, batch in enumerate(loader):
                        fail(run, step)
                        columns = run.take(step, batch, last=number + 1 == len(loader))
                        number_of_type = types.index(run.steps[step].node_type)
                        if columns is not None:
                            found.append(columns | {"type": torch.full_like(columns["n_id"], number_of_type)})
            except Gone:
                return run, {}
            finally:
                run.close()
            exchange("nobody needs this host's rows")
        merged = {name: torch.cat([each[name] for each in found]).numpy() for name in found[0]} if found else {}
        return run, merged

    with InProcessNetwork() as network:
        return run_ranks(ranks, body)


CASES = [(1, 1, 1, 7), (3, 1, 3, 1000), (3, 2, 3, 7), (3, 2, 2, 300), (1, 2, 2, 50)]


@pytest.mark.parametrize(("parts", "hosts", "ranks", "batch"), CASES)
def test_rows_of_the_whole_graph(
    partitions: dict[int, LocalPartition], tmp_path: Path, parts: int, hosts: int, ranks: int, batch: int
) -> None:
    found = computed(partitions[parts], tmp_path, ranks, hosts, batch_size=batch, memory=6000)
    columns = [each for _, each in found if each]
    n_id = np.concatenate([each["n_id"] for each in columns])
    assert sorted(n_id) == list(range(NODES))
    np.testing.assert_array_equal(np.concatenate([each["embedding"] for each in columns]), whole()[n_id])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hosts", [1, 2])
def test_files_are_checked_for_before_the_first_layer(
    partitions: dict[int, LocalPartition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    """Nothing may lie in memory: of two layers and the inputs, what is read and what is written lie in files."""
    partition, wanted, made, ranks = partitions[3], [], [], hosts

    def require(folder: Path, needed: int, memory: int) -> None:
        wanted.append((folder, needed, memory))

    def scratch(shapes: Any, *others: Any) -> Any:
        made.append(sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in shapes.values()))
        return create(shapes, *others)

    create = SharedArrays.scratch
    monkeypatch.setattr(run, "require_disk", require)
    monkeypatch.setattr(SharedArrays, "scratch", scratch)
    runs = [each for each, _ in computed(partition, tmp_path, ranks, hosts, memory=1)]
    rows = [len(np.concatenate([counts for _, counts in each.facts.counts["node"]])) for each in runs]
    halo = [len(each.facts.halos["node"]) for each in runs]
    assert (sum(rows), min(halo) > 0) == (NODES, hosts == 2)
    needed = [4 * ((a + b) * WIDTHS[0] + a * WIDTHS[1]) for a, b in zip(rows, halo, strict=True)]
    needed = [max(n, 4 * (a + b) * WIDTHS[1]) for n, a, b in zip(needed, rows, halo, strict=True)]
    assert sorted(wanted) == sorted((tmp_path, n, 1) for n in needed)
    of_degrees = 4 * sum(halo)  # which are there before
    assert sum(made) - of_degrees == sum(4 * (a + b) * sum(WIDTHS[:2]) for a, b in zip(rows, halo, strict=True))


def test_too_small_a_disk_is_told_on_all_ranks_at_once(
    partitions: dict[int, LocalPartition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=2, f_frsize=4096))
    said = (
        rf"layerwise.scratch: the outputs of the layers take 8.4 kB of disk in {tmp_path}, beside 1 B of memory, and 8.19 kB are "
        "free there. Set layerwise.scratch to a folder on a larger disk, free some space, or raise layerwise.memory."
    )
    with pytest.raises(OptionError, match=said):
        computed(partitions[3], tmp_path, 2, 1, lambda run, step: pytest.fail("a layer is computed"), memory=1)


@pytest.mark.parametrize("batch", [7, 300])
def test_each_remote_row_is_fetched_once_per_layer(
    partitions: dict[int, LocalPartition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    partition, asked = partitions[3], []
    rows = RemoteHome.rows

    def noting(self: RemoteHome, table: str, wanted: np.ndarray, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        asked.append(len(wanted) * dtype.itemsize * int(np.prod(shape)))
        return rows(self, table, wanted, dtype, shape)

    monkeypatch.setattr(RemoteHome, "rows", noting)
    runs = [run for run, _ in computed(partition, tmp_path, 2, 2, batch_size=batch)]
    row = partition.view.bounds
    gid = np.argsort(partition.node_shards(0, "n_id").gather(np.arange(NODES)))
    host = np.array([0, 1, 0])[np.searchsorted(row, np.arange(NODES), side="right") - 1]
    src, dst = gid[GRAPH.edge_index.numpy()]
    halo = [len(np.unique(src[(host[dst] == here) & (host[src] != here)])) for here in (0, 1)]
    assert [run.traffic.rows for run in runs] == [{(k, "node"): count for k in (0, 1)} for count in halo]
    of_layers = sum(halo) * 4 * sum(WIDTHS[:2])
    assert sum(sum(run.traffic.nbytes.values()) for run in runs) == of_layers
    assert sum(asked) == of_layers + sum(halo) * 4  # and the degrees


def test_a_rank_that_goes_away_in_layer_1_is_named(
    partitions: dict[int, LocalPartition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LayerwiseOptions, "wait_s", 0.5)

    def fail(run: LayerwiseRun, step: int) -> None:
        if run.marks.rank == 1 and run.steps[step].layer == 1:
            raise Gone

    said = r"rank 1 has made no progress for 0.5 s, last while computing layer 0 of 'node'; rank 0 waits for it after"
    with pytest.raises(PeerError, match=said):
        computed(partitions[3], tmp_path, 2, 1, fail)
    assert list(tmp_path.iterdir()) == []
