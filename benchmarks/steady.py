"""Does memory stay flat and batch memory warm? A long run, looked at in tenths.

    python benchmarks/steady.py PARTITION [--workers 2] [--batches 1000]

Resident megabytes of the trainer and of the largest sampler after each tenth, and minor page faults per batch in it.
The consumer reads all features, as a model would. Files and shared memory count where they are first touched, so the
first tenths may grow; the later ones must not.
"""

from __future__ import annotations

import argparse

import torch
from loader import SPEC, endless
from measure import minor_faults, process_tree, report, rss_mb

from glt_lightning import LoaderContext, LocalPartition, SamplingOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tenth = max(1, args.batches // 10)
    memory: dict[str, list[int]] = {"trainer_mb": [], "sampler_mb": []}
    faults: dict[str, list[int]] = {"trainer_faults": [], "sampler_faults": []}
    with LoaderContext(LocalPartition.open(args.partition), SamplingOptions(num_workers=args.workers)) as context:
        stream = endless(context.make_loader(SPEC))
        next(stream)
        trainer, *samplers = process_tree()
        for _ in range(10):
            before = {pid: minor_faults(pid) for pid in (trainer, *samplers)}
            for _ in range(tenth):
                next(stream).x.sum()
            for name, pids in (("trainer", [trainer]), ("sampler", samplers)):
                memory[f"{name}_mb"].append(round(max(map(rss_mb, pids), default=0)))
                faults[f"{name}_faults"].append(max(((minor_faults(p) - before[p]) // tenth for p in pids), default=0))
    report(bench="steady", system="ours", workers=args.workers, batches=10 * tenth, **memory, **faults)


if __name__ == "__main__":
    main()
