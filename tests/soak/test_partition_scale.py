"""A sixteenth of ogbn-papers100M is partitioned within the memory that partition/plan.py says."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from glt_lightning import LocalPartition
from glt_lightning.base import Progress
from glt_lightning.partition import verify_partition
from glt_lightning.partition.contents import Contents
from tests.helpers import started

NODES, EDGES = 111_059_956 // 16, 1_615_685_872 // 16
COMMUNITY, LOCAL = 40_000, 0.8  # nodes; share of the edges that stay in one
SKEW = 3.0  # a node's in-degree falls as the (1 / SKEW - 1)-th power of its rank in its community
WIDTH = 8  # floats per node: features go by in pieces, more of them take only disk and time
SPLITS = {"train": 0.011, "valid": 0.0011, "test": 0.0019}  # shares of the nodes, as there
PARTS, MEMORY = 8, 512 << 20
PIECE = 1 << 22

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PARTITION = """
import json, sys
from pathlib import Path
from glt_lightning.base import PartitionOptions
from glt_lightning.partition import open_source, partition_graph
graph, out, options = sys.argv[1:]
partition_graph(open_source(graph, "."), out, PartitionOptions(**json.loads(options)), progress=False)
# Of this process alone: what rusage calls the peak begins with that of the process which started it.
print([line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")][0])
"""


def most_bytes(nodes: int, parts: int, memory_bytes: int, columns: int) -> int:
    """Peak of `streaming` for one node type, int32 ids: what partition/plan.py says, with a margin.

    columns: what is balanced, the nodes and each split.
    """
    grouping, joining, numbering = 56 + 12 * columns, 61 + 400 // 10, 80 + 4 * parts
    return 130_000_000 + memory_bytes + nodes * max(grouping, joining, numbering)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """5 GB at most, which pytest would keep."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def write_graph(folder: Path) -> None:
    """Nodes cite nodes of their own community for the most part, few of them often; ids and edges are in random order."""
    rng = np.random.default_rng(16)
    folder.mkdir()
    ids = rng.permutation(NODES).astype(np.int32)  # a community's nodes are spread over all ids
    edges = np.lib.format.open_memmap(folder / "edge_index.npy", "w+", np.int32, (2, EDGES))
    for begin in range(0, EDGES, PIECE):
        size = min(PIECE, EDGES - begin)
        citing = rng.integers(0, NODES, size, np.int32)
        community = citing // COMMUNITY
        far = rng.random(size, np.float32) >= LOCAL
        community[far] = rng.integers(0, -(-NODES // COMMUNITY), np.count_nonzero(far), np.int32)
        cited = community * COMMUNITY + (COMMUNITY * rng.random(size, np.float32) ** SKEW).astype(np.int32)
        edges[0, begin : begin + size] = ids[citing]
        edges[1, begin : begin + size] = ids[np.minimum(cited, NODES - 1)]
    del edges
    np.save(folder / "x.npy", rng.random((NODES, WIDTH), np.float32))
    np.save(folder / "y.npy", rng.integers(0, 172, NODES, np.int16))
    shuffled = rng.permutation(NODES)
    ends = np.cumsum([int(share * NODES) for share in SPLITS.values()])
    for name, seeds in zip(SPLITS, np.split(shuffled, ends), strict=False):  # the last piece is in no split
        np.save(folder / f"{name}.npy", seeds)


def test_sixteenth_of_papers(folder: Path) -> None:
    begin_s = time.monotonic()
    write_graph(folder / "graph")
    made_s = time.monotonic() - begin_s
    options = {"num_parts": PARTS, "algorithm": "streaming", "memory_bytes": MEMORY}
    command = [sys.executable, "-c", PARTITION, folder / "graph", folder / "parts", json.dumps(options)]
    with started(command) as run:
        assert run.wait(700) == 0, run.output
        peak = int(run.output.split()[-1]) * 1024
    took_s = time.monotonic() - begin_s - made_s
    limit = most_bytes(NODES, PARTS, MEMORY, 1 + len(SPLITS))

    verified = verify_partition(folder / "parts", Progress(False))
    contents = Contents.of(LocalPartition.open(folder / "parts"))
    balance = {f"{c.kind} {c.name}": c.balance for c in contents.counts if c.kind != "edges"}
    print(f"written in {made_s:.0f} s, partitioned in {took_s:.0f} s, peak {peak:,} of {limit:,} bytes")
    print(f"cut {contents.edge_cut:.3f}, balance {balance}")
    assert peak <= limit
    assert (verified.nodes, verified.edges) == (NODES, EDGES)
    assert contents.edge_cut < 0.5 * (1 - 1 / PARTS)  # random parts cut 1 - 1 / PARTS
    assert all(b <= 1.05 + 1e-3 for b in balance.values()), balance
