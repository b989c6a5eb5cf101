"""From process start to the first batch, the partition on disk: CPU seconds and wall seconds of each step.

python benchmarks/startup.py PARTITION [--workers 2]
"""

from __future__ import annotations

import argparse
import time

from measure import cpu_s, report

_steps: dict[str, float] = {}
_last = [time.monotonic(), cpu_s()]


def step(name: str) -> None:
    now, used = time.monotonic(), cpu_s()
    _steps[f"{name}_wall_s"], _steps[f"{name}_cpu_s"] = now - _last[0], used - _last[1]
    _last[:] = now, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partition")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    import torch  # noqa: F401

    step("torch")
    import torch_geometric.data  # noqa: F401

    step("pyg")
    from glt_lightning.data import LocalPartition
    from glt_lightning.loader import LoaderContext, LoaderSpec
    from glt_lightning.options import SamplingOptions

    partition = LocalPartition.open(args.partition)
    spec = LoaderSpec(name="train", split="train", num_neighbors=[15, 10, 5], batch_size=1024, shuffle=True)
    with LoaderContext(partition, SamplingOptions(num_workers=args.workers), seed=1) as context:
        loader = context.make_loader(spec)
        step("ours")
        next(iter(loader))
        step("first_batch")
    total = {f"total_{kind}": sum(v for k, v in _steps.items() if k.endswith(kind)) for kind in ("wall_s", "cpu_s")}
    report(system="ours", work="startup", workers=args.workers, **_steps, **total)


if __name__ == "__main__":
    main()
