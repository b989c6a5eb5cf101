"""Text ids of nodes in tables: what their conversion costs.

    python benchmarks/table_ids.py [--nodes 50000000] [--edges 50000000] [--options '{"processes": 2}'] [--work FOLDER]

Writes Parquet tables of nodes with ids such as user-00000000a3f1c2d4, in no order, and of edges between them, and
converts them in a process of its own. CPU seconds and peak memory are of this process and those that it starts, imports
included.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import report
from partitioning import run

_GROUP = 1 << 20
_ODD = np.uint64(0x9E3779B97F4A7C15)  # times this, numbers are in no order, and different

CONVERT = """
import json, sys
from glt_lightning.base import PartitionOptions
from glt_lightning.partition import open_source
nodes, edges, work, options = sys.argv[1:]
dataset = {"nodes": {"path": nodes, "id": "id"}, "edges": {"path": edges, "source": "source", "destination": "destination"}}
print(open_source(dataset, work, options=PartitionOptions(**json.loads(options))).num_nodes["node"])
"""


def names(numbers: np.ndarray) -> pa.Array:
    words = (numbers.astype(np.uint64) * _ODD).astype(">u8").tobytes().hex().encode()
    data = np.empty((len(numbers), 21), np.uint8)
    data[:, :5] = np.frombuffer(b"user-", np.uint8)
    data[:, 5:] = np.frombuffer(words, np.uint8).reshape(-1, 16)
    ends = np.arange(0, 21 * len(numbers) + 1, 21, dtype=np.int64)
    return pa.Array.from_buffers(pa.large_string(), len(numbers), [None, pa.py_buffer(ends), pa.py_buffer(data)])


def write(nodes: int, edges: int, folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / "nodes.parquet", folder / "edges.parquet"]
    for path, count, columns in zip(paths, (nodes, edges), (["id"], ["source", "destination"]), strict=True):
        with pq.ParquetWriter(path, pa.schema([(name, pa.large_string()) for name in columns])) as writer:
            for begin in range(0, count, _GROUP):
                end = min(begin + _GROUP, count)
                each = [np.arange(begin, end)] if len(columns) == 1 else rng.integers(0, nodes, (2, end - begin))
                writer.write_table(pa.table({name: names(given) for name, given in zip(columns, each, strict=True)}))
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50_000_000)
    parser.add_argument("--edges", type=int, default=50_000_000)
    parser.add_argument("--options", default="{}", help="options of the partition, as JSON")
    parser.add_argument("--work", type=Path, default=Path("data/benchmarks/table_ids"))
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    try:
        paths = write(args.nodes, args.edges, args.work)
        size = sum(path.stat().st_size for path in paths)
        cost, _ = run(CONVERT, [*paths, args.work, args.options])
        report(
            bench="table_ids", nodes=args.nodes, edges=args.edges, input_bytes=size, **json.loads(args.options), **cost
        )
    finally:
        shutil.rmtree(args.work, ignore_errors=True)


if __name__ == "__main__":
    main()
