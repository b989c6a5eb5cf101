"""Random partitioning of a graph from a folder of .npy files: CPU seconds and peak memory of a whole process.

    python benchmarks/bench_partition.py GRAPH_FOLDER [--parts 4] [--memory 2GiB] [--rounds 3] [--undirected]

Each round starts a fresh process (interpreter, imports, reading, writing) and then measures the machine's limit beside
it: reading the graph's bytes and writing the partition's bytes in large blocks, nothing else. Page-cache traffic is the
floor of any partitioner; the ratio is what our work costs on top.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

_BLOCK = 8 << 20

RUN = """
import sys
from glt_lightning.options import PartitionOptions, parse_bytes
from glt_lightning.partition import open_source, partition_graph
graph, out, parts, memory, undirected = sys.argv[1:]
options = PartitionOptions(num_parts=int(parts), memory_bytes=parse_bytes("memory", memory))
partition_graph(open_source(graph, "."), out, options, undirected=undirected == "True", progress=False)
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--memory", default="2GiB", help="partition.memory_bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="folder on the disk to write to; default: the graph's")
    return parser.parse_args()


def partition(args: argparse.Namespace, out: Path) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak resident bytes of one process."""
    command = [sys.executable, "-c", RUN, args.graph, out, args.parts, args.memory, args.undirected]
    begin = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command])
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"the partitioner ended with status {status}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begin, usage.ru_maxrss * 1024.0


def limit(sources: list[Path], num_bytes: int, folder: Path) -> float:
    """CPU seconds to read the sources and to write ``num_bytes``, through the page cache, in large blocks."""
    block = np.ones(_BLOCK, np.uint8)
    begin = time.process_time()
    for path in sources:
        with open(path, "rb", buffering=0) as stream:
            while stream.readinto(memoryview(block)):
                pass
    with tempfile.TemporaryFile(dir=folder, buffering=0) as stream:
        for at in range(0, num_bytes, _BLOCK):
            stream.write(memoryview(block)[: min(_BLOCK, num_bytes - at)])
    return time.process_time() - begin


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    args = arguments()
    sources = sorted(args.graph.glob("*.npy"))
    size_in = sum(path.stat().st_size for path in sources)
    cpu, wall, peak, floor = [], [], [], []
    with tempfile.TemporaryDirectory(dir=args.out or args.graph.parent, prefix="bench-partition-") as folder:
        out = Path(folder, "partition")
        for _ in range(args.rounds):
            shutil.rmtree(out, ignore_errors=True)
            one = partition(args, out)
            for values, value in zip((cpu, wall, peak), one, strict=True):
                values.append(value)
            size_out = sum(path.stat().st_size for path in out.rglob("*.npy"))
            floor.append(limit(sources, size_out, Path(folder)))
        edges = sum(len(np.load(path, mmap_mode="r")) for path in out.glob("part*/edges/*/indices.npy"))
    print(f"{args.graph}: {edges / 1e6:.1f} M edges stored in {args.parts} parts, memory_bytes {args.memory}")
    print(f"  CPU s                      {spread(cpu)}")
    print(f"  wall s                     {spread(wall)}")
    print(f"  peak resident GB           {spread([p / 1e9 for p in peak])}")
    print(f"  M edges per CPU s          {spread([edges / 1e6 / c for c in cpu])}")
    print(f"  limit, CPU s               {spread(floor)}  (read {size_in / 1e9:.2f} GB, write {size_out / 1e9:.2f} GB)")
    print(f"  CPU s over the limit       {spread([c / f for c, f in zip(cpu, floor, strict=True)])}")


if __name__ == "__main__":
    main()
