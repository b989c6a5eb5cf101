"""The loader end to end, features and labels gathered: M rows of features per CPU second of the process tree.

python benchmarks/loader.py PARTITION [--workers 2]
"""

from __future__ import annotations

import argparse
import time

from measure import cpu_s, report

from glt_lightning.data import LocalPartition
from glt_lightning.loader import LoaderContext, LoaderSpec
from glt_lightning.options import SamplingOptions

SPEC = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batches", type=int, default=60)
    args = parser.parse_args()
    partition = LocalPartition.open(args.partition)
    with LoaderContext(partition, SamplingOptions(num_workers=args.workers), seed=1) as context:
        loader = context.make_loader(SPEC)
        stream = iter(loader)
        for _ in range(10 + 20 * args.workers):  # every slot of every process has been used
            next(stream)
        rows, cpu, wall = 0, cpu_s(), time.monotonic()
        for _ in range(args.batches):
            rows += next(stream).x.shape[0]
        cpu, wall = cpu_s() - cpu, time.monotonic() - wall
    report(
        system="ours",
        work="loader",
        workers=args.workers,
        m_rows_per_cpu_s=rows / cpu / 1e6,
        cpu_ms=cpu / args.batches * 1e3,
        wall_ms=wall / args.batches * 1e3,
        rows=rows // args.batches,
    )


if __name__ == "__main__":
    main()
