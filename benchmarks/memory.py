"""Memory of two ranks with two sampler processes each, against one copy of the graph (PSS of all six processes).

python benchmarks/memory.py PARTITION
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from measure import memory_mb, process_tree, report


def rank(directory: str, number: int) -> None:
    """Iterates, says so, and waits to be measured."""
    from glt_lightning.data import LocalPartition
    from glt_lightning.loader import LoaderContext, LoaderSpec
    from glt_lightning.options import SamplingOptions

    spec = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)
    options = SamplingOptions(num_workers=2)
    with LoaderContext(LocalPartition.open(directory), options, seed=1, rank=number, world_size=2) as context:
        stream = iter(context.make_loader(spec))
        for _ in range(60):
            next(stream)
        print("ready", flush=True)
        sys.stdin.readline()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--rank", type=int)
    args = parser.parse_args()
    if args.rank is not None:
        return rank(args.partition, args.rank)
    command = [sys.executable, __file__, args.partition, "--rank"]
    ranks = [subprocess.Popen([*command, str(r)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for r in (0, 1)]
    try:
        for process in ranks:
            assert process.stdout is not None
            process.stdout.readline()
        kinds = memory_mb([pid for pid in process_tree() if pid != process_tree()[0]])
    finally:
        for process in ranks:
            process.communicate(b"\n", timeout=60)
    copy = sum(f.stat().st_size for f in Path(args.partition).rglob("*.npy")) >> 20
    used = kinds["graph"] + kinds["rest"]
    report(
        system="ours", work="memory", one_copy_mb=copy, ratio=used / copy, **{f"{k}_mb": v for k, v in kinds.items()}
    )


if __name__ == "__main__":
    main()
