"""From the shell to the first optimizer step, and from the last line to the end of the process: our command, and what a PyG user
writes today, in turns.

    python benchmarks/first_step.py CONFIG GRAPH.npz [--rounds 5] [--epochs 20] [--python PYTHON]

CONFIG is the configuration of our run, such as configs/reference/wordnet.yaml; ours is ``python -m lightning fit`` with it and
the strategy ``auto``, the other is headline_pyg.py. PYTHON runs both, such as one without the packages that only tests need.
The partition and the compiled files of modules are made before, by runs that are not counted. Wall and CPU seconds, those of
sampler processes included: of the first step, of the whole run, and from the last line to the end. One line per run, then
medians and ranges, and the median of the ratios of ours to the other.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from measure import report, tell_step, with_bytecode

HERE = Path(__file__).resolve().parent

if __name__ != "__main__":  # our command imports this file for its callback
    from lightning.pytorch import Callback

    class FirstStep(Callback):
        """Prints when the first step is done."""

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 1:
                tell_step()


def run(command: list[str], cwd: Path) -> dict[str, float]:
    """What a command took, by its own line at the first step and by when its output and its process ended."""
    path = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    env = with_bytecode() | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    began = said = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=cwd, env=env, **pipes) as process:
        assert process.stdout is not None
        text = b""
        while part := os.read(process.stdout.fileno(), 1 << 16):
            text, said = text + part, time.perf_counter()
        _, status, used = os.wait4(process.pid, 0)
        ended = time.perf_counter()
        process.returncode = os.waitstatus_to_exitcode(status)
    found = re.search(rb"first_step wall_s ([0-9.]+) cpu_s ([0-9.]+)", text)
    if process.returncode or found is None:
        sys.exit(f"{' '.join(command)} failed:\n{text.decode()[-3000:]}")
    step = {"step_wall_s": float(found[1]), "step_cpu_s": float(found[2])}
    whole = {"wall_s": ended - began, "cpu_s": used.ru_utime + used.ru_stime}
    return {**step, **whole, "end_s": ended - said}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("graph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    config, graph = os.path.abspath(args.config), os.path.abspath(args.graph)
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        given = [f"--config={config}", f"--data.dataset={graph}", f"--data.root={folder}", "--trainer.strategy=auto"]
        given += [
            "--trainer.accelerator=cpu",
            "--trainer.callbacks+=first_step.FirstStep",
            f"--trainer.max_epochs={args.epochs}",
        ]
        script = [str(HERE / "headline_pyg.py"), config, graph, f"--epochs={args.epochs}"]
        commands = {"ours": ["-m", "lightning", "fit", *given], "pyg": script}
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        for turn in range(-1, args.rounds):
            for system, words in commands.items():
                took = run([args.python, *words], cwd)
                if turn >= 0:
                    found[system].append(took)
                    report(bench="first_step", system=system, graph=Path(graph).stem, round=turn, **took)
    for what in found["ours"][0]:
        values = {system: [took[what] for took in runs] for system, runs in found.items()}
        ratio = statistics.median(ours / pyg for ours, pyg in zip(values["ours"], values["pyg"], strict=True))
        for system, each in values.items():
            span = {"median": statistics.median(each), "lowest": min(each), "highest": max(each)}
            report(
                bench="first_step_median", system=system, graph=Path(graph).stem, what=what, ours_to_pyg=ratio, **span
            )


if __name__ == "__main__":
    main()
