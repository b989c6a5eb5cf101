"""How right plans are: each configuration is planned, then run, and both stand side by side.

    python benchmarks/plan.py DATA [DATA ...] [--epochs 2] [--hidden 128]

DATA: `.npz` files of nodes with labels, homogeneous. Each is planned and run with no sampler process and with one, with
LABOR, and with smaller fan-outs: CPU seconds of an epoch of all processes (the first epoch is not counted), bytes of rows in the
first epoch, and the peak of memory that is no file's. Every plan and run is a process of its own. CPU time grows with other
work on the machine, too: compare on a quiet one.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from measure import cpu_s, report

HERE = Path(__file__).resolve().parent


class Watch(Callback):
    """Prints CPU and wall seconds of each epoch, bytes of rows of the first, and the peak of memory, as one line."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.marks: list[tuple[float, float]] = []
        self.nbytes = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.marks.append((cpu_s(), time.perf_counter()))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        counters = trainer.train_dataloader.stats().counters  # type: ignore[union-attr]
        self.nbytes = self.nbytes or counters.local_bytes + counters.remote_bytes

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.marks.append((cpu_s(), time.perf_counter()))
        status = Path("/proc/self/status").read_text()
        sizes = {name: int(kb) * 1024 for name, kb in re.findall(r"(VmHWM|RssFile):\s+(\d+)", status)}
        spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self.marks)]
        print(MARK + json.dumps({"spent": spent, "peak": sizes["VmHWM"] - sizes["RssFile"], "bytes": self.nbytes}))


MARK = "RESULT "
CASES: dict[str, dict[str, Any]] = {
    "in-process": {},
    "1 sampler": {"sampling": {"num_workers": 1}},
    "LABOR": {"sampling": {"method": "labor"}},
    "half fan-outs": {"num_neighbors": [8, 5]},
}


def configuration(args: argparse.Namespace, data: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    trainer = {"accelerator": "cpu", "devices": 1, "max_epochs": args.epochs + 1, "logger": False}
    trainer |= {"callbacks": [{"class_path": "plan.Watch"}]}
    trainer |= {"enable_checkpointing": False, "enable_progress_bar": False, "default_root_dir": str(folder)}
    given = {
        "dataset": data,
        "root": str(folder),
        "num_neighbors": [15, 10],
        "batch_size": 512,
        "undirected": True,
    } | case
    return {
        "seed_everything": 1,
        "trainer": trainer,
        "model": {
            "class_path": "glt_lightning.GraphSAGE",
            "init_args": {"hidden_channels": args.hidden, "num_layers": 2},
        },
        "data": {"class_path": "glt_lightning.GLTDataModule", "init_args": given},
    }


def output(*command: str) -> str:
    """What a command prints. Its folder is this one, so that it finds `Watch`."""
    made = [sys.executable, "-m", "lightning", *command]
    return subprocess.run(made, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE).stdout


def compare(args: argparse.Namespace, data: str, name: str, folder: Path) -> dict[str, float]:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(configuration(args, data, CASES[name], folder)))
    output("partition", "--config", str(path), "--batches", "1", "--json")
    plan = json.loads(output("plan", "--config", str(path), "--batches", "0", "--json"))
    said = output("fit", "--config", str(path))
    run = json.loads(next(line for line in said.splitlines() if line.startswith(MARK))[len(MARK) :])
    planned, memory = plan["epoch"]["mid"], plan["memory"]
    counters = planned["counters"]
    beside = counters["sample_s"] + counters["gather_s"] if plan["layout"]["workers"] else 0.0
    found = {
        "planned_cpu_s": planned["core_s"] + beside,
        "cpu_s": statistics.median(cpu for cpu, _ in run["spent"][1:]),
        "planned_mb": (memory["trainers"] + memory["batches"]) / 1e6,
        "mb": run["peak"] / 1e6,
        "planned_bytes": counters["local_bytes"] + counters["remote_bytes"],
        "bytes": run["bytes"],
        "planned_wall_s": planned["elapsed_s"] + planned["validation_s"],
        "wall_s": statistics.median(wall for _, wall in run["spent"][1:]),
        "load": plan["probe"]["load"],
    }
    report(bench="plan", data=Path(data).stem, case=name, **found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    args = parser.parse_args()
    cpu, memory = [], []
    with tempfile.TemporaryDirectory() as folder:
        for data in args.data:
            for name in args.cases:
                found = compare(args, str(Path(data).resolve()), name, Path(folder))
                cpu.append(abs(found["planned_cpu_s"] / found["cpu_s"] - 1))
                memory.append(found["planned_mb"] / found["mb"] - 1)
    worst = max(memory, key=abs)
    report(bench="plan", cpu_error=statistics.median(cpu), worst_cpu_error=max(cpu), worst_memory_error=worst)


if __name__ == "__main__":
    main()
