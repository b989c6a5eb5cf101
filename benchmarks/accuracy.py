"""Accuracy of a configuration with and without some options: the test metrics after the last epoch, for some seeds.

    python benchmarks/accuracy.py configs/reference/wordnet.yaml --data data/wordnet.npz --with data.sampling.method=labor

--data: in place of the configuration's dataset.  --set: options for all runs.  --with: those of the runs that are compared with
the others. The runs of a seed follow each other, in this process, on one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile

import torch
from measure import report

from glt_lightning.cli import GLTCLI


def run(config: str, seed: int, options: list[str], folder: str) -> dict[str, float]:
    quiet = ["enable_progress_bar=false", "enable_model_summary=false", "logger=false", "enable_checkpointing=false"]
    quiet += ["strategy=auto", "accelerator=cpu", "devices=1", f"default_root_dir={folder}"]
    args = [f"--config={config}", f"--seed_everything={seed}", *(f"--trainer.{each}" for each in quiet)]
    args += ["--data.sampling.num_workers=0", *(f"--{each}" for each in options)]
    with contextlib.redirect_stdout(io.StringIO()):
        cli = GLTCLI(run=False, args=args, save_config_callback=None)
        cli.trainer.fit(cli.model, cli.datamodule)
        (metrics,) = cli.trainer.test(cli.model, cli.datamodule, verbose=False)
    return dict(metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--with", nargs="*", default=[], dest="changed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {"plain": [], "changed": []}
    with tempfile.TemporaryDirectory() as folder:
        options = [f"data.root={folder}", *([f"data.dataset={args.data}"] if args.data else []), *args.set]
        for seed in range(args.seeds):
            for name, more in (("plain", []), ("changed", args.changed)):
                found[name].append(run(args.config, seed, options + more, folder))
                print(json.dumps({"seed": seed, "runs": name, **found[name][-1]}), flush=True)
    for name, metrics in found.items():
        for metric in metrics[0]:
            values = [each[metric] for each in metrics]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            report(runs=name, metric=metric, mean=statistics.mean(values), seeds_differ_by=spread)


if __name__ == "__main__":
    main()
