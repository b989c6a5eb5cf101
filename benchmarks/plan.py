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
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from measure import report

HERE = Path(__file__).resolve().parent
RUN = """
import json, re, sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from measure import cpu_s
from lightning.pytorch import Callback
from glt_lightning.cli.command_line import GLTCLI
from glt_lightning.lightning import SamplingMonitor

class Watch(Callback):
    def on_train_start(self, trainer, module):
        self.marks, self.bytes, self.before = [], [], cpu_s()
    def on_train_epoch_start(self, trainer, module):
        self.marks.append((cpu_s(), time.perf_counter()))
    def on_train_end(self, trainer, module):
        self.marks.append((cpu_s(), time.perf_counter()))
        status = Path("/proc/self/status").read_text()
        found = {{n: int(re.search(n + r":\\s+(\\d+)", status)[1]) * 1024 for n in ("VmHWM", "RssFile")}}
        monitor = next(each for each in trainer.callbacks if isinstance(each, SamplingMonitor))
        cpu = [b[0] - a[0] for a, b in zip(self.marks, self.marks[1:])]
        wall = [b[1] - a[1] for a, b in zip(self.marks, self.marks[1:])]
        print("RESULT" + json.dumps({{"cpu": cpu, "wall": wall, "peak": found["VmHWM"] - found["RssFile"], "bytes": self.bytes}}))

class Bytes(SamplingMonitor):
    def on_train_epoch_end(self, trainer, module):
        super().on_train_epoch_end(trainer, module)
        watch = next(each for each in trainer.callbacks if isinstance(each, Watch))
        counters = self.totals.counters
        watch.bytes.append(counters.local_bytes + counters.remote_bytes)

from lightning.pytorch import LightningDataModule, LightningModule
from glt_lightning.cli.command_line import TrainerParser
cli = GLTCLI(LightningModule, LightningDataModule, subclass_mode_model=True, subclass_mode_data=True, run=False,
             parser_class=TrainerParser, save_config_callback=None, args=["--config", sys.argv[1]],
             trainer_defaults={{"callbacks": [Watch(), Bytes(line=False)]}})
cli.trainer.fit(cli.model, datamodule=cli.datamodule)
"""
CASES: dict[str, dict[str, Any]] = {
    "in-process": {},
    "1 sampler": {"sampling": {"num_workers": 1}},
    "LABOR": {"sampling": {"method": "labor"}},
    "half fan-outs": {"num_neighbors": [8, 5]},
}


def configuration(args: argparse.Namespace, data: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    trainer = {"accelerator": "cpu", "devices": 1, "max_epochs": args.epochs + 1, "logger": False}
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
    return subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def compare(args: argparse.Namespace, data: str, name: str, folder: Path) -> dict[str, float]:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(configuration(args, data, CASES[name], folder)))
    output("-m", "lightning", "partition", "--config", str(path), "--batches", "1", "--json")
    plan = json.loads(output("-m", "lightning", "plan", "--config", str(path), "--batches", "0", "--json"))
    said = output("-c", RUN.format(here=str(HERE)), str(path))
    run = json.loads(next(line for line in said.splitlines() if line.startswith("RESULT"))[6:])
    planned, memory = plan["epoch"]["mid"], plan["memory"]
    counters = planned["counters"]
    beside = counters["sample_s"] + counters["gather_s"] if plan["layout"]["workers"] else 0.0
    found = {
        "planned_cpu_s": planned["core_s"] + beside,
        "cpu_s": statistics.median(run["cpu"][1:]),
        "planned_mb": (memory["trainers"] + memory["batches"]) / 1e6,
        "mb": run["peak"] / 1e6,
        "planned_bytes": counters["local_bytes"] + counters["remote_bytes"],
        "bytes": run["bytes"][0],
        "planned_wall_s": planned["elapsed_s"] + planned["validation_s"],
        "wall_s": statistics.median(run["wall"][1:]),
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
