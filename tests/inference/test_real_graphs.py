"""All layers over real graphs, on several parts, ranks and hosts: the very sums of the whole graph, of integers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glt_lightning.base import PartitionOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.partition import open_source, partition_graph
from tests.inference.test_run import computed

WIDTH, LAYERS, MOST = 3, 3, 1009
GRAPHS = {"cora": False, "amazon_computers": False, "facebook_pages": False, "dblp_hetero": True}
CASES = [(1, 1, 1), (1, 2, 3), (3, 1, 3), (3, 2, 3)]  # parts, hosts, ranks


class Counts:
    """Sums over the edges of all types, modulo a number, of what follows from the ids."""

    num_layers = LAYERS
    keep = "all"

    def __init__(self, typed: bool) -> None:
        self._typed = typed

    def embed(self, batch: Any) -> Any:
        if not self._typed:
            return first(batch.n_id)
        return {t: first(batch[t].n_id) for t in batch.node_types}

    def layer(self, k: int, h: Any, batch: Any) -> Any:
        if not self._typed:
            return after(h[: batch.batch_size], [(h, batch.edge_index)])
        seeds = {t: int(batch[t].batch_size) if "batch_size" in batch[t] else 0 for t in h}
        into = {t: [(h[e[0]], batch[e].edge_index) for e in batch.edge_types if e[2] == t] for t in h}
        return {t: after(h[t][: seeds[t]], into[t]) for t in h}

    def head(self, hs: list[Tensor], node_type: str = "node") -> Tensor:
        return torch.cat(hs, dim=1)


def first(ids: Tensor) -> Tensor:
    return ((ids[:, None] * torch.arange(1, WIDTH + 1)) % 7).float()


def after(own: Tensor, edges: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Of nodes with rows ``own``. edges: (rows of sources, [2, E]) of each type into them."""
    out = own.clone()
    for rows, (src, dst) in edges:
        here = dst < len(own)
        out.index_add_(0, dst[here], rows[src[here]])
    return out % MOST


@pytest.fixture(scope="module", params=list(GRAPHS))
def graph(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[int, LocalPartition]]:
    file = Path(os.environ.get("GLT_TEST_DATA", "data"), f"{request.param}.npz").resolve()
    if not file.exists():
        pytest.skip(f"{file} is not here; set GLT_TEST_DATA to the folder of the reference data sets")
    found = {}
    for parts in (1, 3):
        folder = tmp_path_factory.mktemp(request.param) / str(parts)
        partition_graph(
            open_source(str(file), folder.parent),
            folder,
            PartitionOptions(num_parts=parts),
            undirected=False,
            progress=False,
        )
        found[parts] = LocalPartition.open(folder)
    return str(file), found


def whole(file: str, schema: Any, num_nodes: list[int]) -> dict[str, np.ndarray]:
    """By node type."""
    given, h = np.load(file), {t: first(torch.arange(n)) for t, n in zip(schema.node_types, num_nodes, strict=True)}
    edges = {
        e: torch.from_numpy(
            given["edge_index" if schema.homogeneous else "__".join(e) + "/edge_index"].astype(np.int64)
        )
        for e in schema.edge_types
    }
    hs: dict[str, list[Tensor]] = {t: [] for t in h}
    for _ in range(LAYERS):
        h = {t: after(rows, [(h[e[0]], each) for e, each in edges.items() if e[2] == t]) for t, rows in h.items()}
        for t, rows in h.items():
            hs[t].append(rows)
    return {t: torch.cat(rows, dim=1).numpy() for t, rows in hs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "hosts", "ranks"), CASES)
def test_sums_of_the_whole_graph(
    graph: tuple[str, dict[int, LocalPartition]], tmp_path: Path, parts: int, hosts: int, ranks: int
) -> None:
    file, partitions = graph
    partition, schema = partitions[parts], partitions[parts].schema
    runs = computed(partition, tmp_path, ranks, hosts, make=lambda: Counts(not schema.homogeneous), batch_size=3000)
    columns = [each for _, each in runs if each]
    expected = whole(file, schema, partition.manifest.num_nodes)
    kinds, ids, rows = (np.concatenate([each[name] for each in columns]) for name in ("type", "n_id", "embedding"))
    for number, node_type in enumerate(schema.node_types):
        mine = kinds == number
        assert sorted(ids[mine]) == list(range(len(expected[node_type])))
        np.testing.assert_array_equal(rows[mine], expected[node_type][ids[mine]])
    if min(hosts, parts) > 1:
        assert sum(sum(run.traffic.rows.values()) for run, _ in runs) > 0
