"""From the start of a process to its first batch, [15, 10, 5] x 1024, the partition on disk.

    python benchmarks/startup.py PARTITION [--workers 2]

Wall and CPU seconds of each step: the interpreter, ``import torch``, ``import torch_geometric``, our imports with opening
the partition and the loader, the first batch. ``ours`` is the sum of the last two. CPU counts the samplers, too; wall
on a busy machine also counts others.
"""

from __future__ import annotations

import argparse
import os

from measure import age_s, cpu_s, report

_ends: list[tuple[str, float, float]] = []


def step(name: str) -> None:
    _ends.append((name, age_s(os.getpid()), cpu_s()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    step("python")
    import torch

    step("torch")
    import torch_geometric.data  # noqa: F401

    step("pyg")
    from glt_lightning import LoaderSpec, SamplingOptions, Session

    torch.set_num_threads(1)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)
    with Session(args.partition, SamplingOptions(num_workers=args.workers)) as session:
        loader = session.make_loader(spec)
        step("open")
        next(iter(loader))
        step("first_batch")
    found, last = {}, (0.0, 0.0)
    for name, *end in _ends:
        for kind, now, before in zip(("wall_s", "cpu_s"), end, last, strict=True):
            found[f"{name}_{kind}"] = now - before
        last = (end[0], end[1])
    ours = {f"ours_{kind}": found[f"open_{kind}"] + found[f"first_batch_{kind}"] for kind in ("wall_s", "cpu_s")}
    report(
        bench="startup", system="ours", workers=args.workers, total_wall_s=last[0], total_cpu_s=last[1], **ours, **found
    )


if __name__ == "__main__":
    main()
