"""From the shell to the same accuracy: our command, a PyG script with NeighborLoader, and one on the full graph, in turns.

    python benchmarks/headline.py GRAPHS [--graphs wordnet cora] [--rounds 5] [--precision 32] [--pyg PYTHON]
        [--dgl PYTHON] [--sampled] [--quick]

GRAPHS: a folder with NAME.npz for each of --graphs, whose configurations are those of configs/reference; products_like is the
folder of make_graph.py, on which no full graph is trained. Wall seconds from the start of the process to its end, CPU seconds
of it and its children. Ours is ``python -m lightning fit`` with the configuration as it is, with the strategy ``auto``; its
test accuracy is that of ``test`` after it, which is not counted, while the scripts headline_pyg.py and, with --dgl,
headline_dgl.py test themselves. The full graph is trained until its validation accuracy is ours, or half a point less. The
partition is made before, by a run that is not counted. One line per run, then medians and ranges, and the ratios to ours of the
medians.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from measure import report, with_bytecode

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent / "configs" / "reference"
TOLERANCE = 0.005  # of the validation accuracy, below which the full graph is trained on
GRAPHS = ("cora", "amazon_computers", "facebook_pages", "wordnet", "dblp_hetero")
LARGE = "products_like"


def timed(command: list[str], cwd: Path) -> tuple[str, dict[str, float]]:
    """The output of a command, and what it took, with all processes that it waited for."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=cwd, env=with_bytecode(), capture_output=True, text=True, timeout=7200)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout + done.stderr, {"wall_s": wall, "cpu_s": cpu}


def number(name: str, text: str) -> float:
    found = re.findall(rf"{name}\W+([0-9.]+)", text)
    return float(found[-1])


class Graph:
    """The runs on one graph."""

    def __init__(self, name: str, folder: Path, args: argparse.Namespace) -> None:
        self.large = name == LARGE
        configs, suffix = (HERE, "") if self.large else (CONFIGS, ".npz")
        self.config, self.graph = str(configs / f"{name}.yaml"), str((folder / f"{name}{suffix}").resolve())
        self.pyg, self.dgl = args.pyg or sys.executable, args.dgl
        self.precision, self.quick = args.precision, args.quick

    def _command(self, subcommand: str, cwd: Path, *more: str) -> list[str]:
        given = [f"--data.dataset={self.graph}", f"--data.root={cwd}", "--trainer.strategy=auto", *more]
        given += ["--trainer.accelerator=cpu", *(["--trainer.max_epochs=1"] if self.quick else [])]
        given += ["--trainer.precision=bf16-mixed"] if self.precision == "bf16" else []
        return [sys.executable, "-m", "lightning", subcommand, f"--config={self.config}", *given]

    def prepare(self, cwd: Path) -> None:
        timed(self._command("fit", cwd, "--trainer.fast_dev_run=true"), cwd)

    def ours(self, cwd: Path) -> dict[str, float]:
        text, spent = timed(self._command("fit", cwd), cwd)
        tested, _ = timed(self._command("test", cwd, "--ckpt_path=last"), cwd)
        return {**spent, "val_acc": number("val_acc", text), "test_acc": number("test_acc", tested)}

    def script(
        self, cwd: Path, *more: str, python: str | None = None, name: str = "headline_pyg.py"
    ) -> dict[str, float]:
        command = [python or self.pyg, str(HERE / name), self.config, self.graph, *more]
        command += ["--precision", self.precision, *(["--epochs", "1"] if self.quick else [])]
        text, spent = timed(command, cwd)
        return {**spent, **{name: number(name, text) for name in ("val_acc", "test_acc", "epochs")}}


def measure(name: str, args: argparse.Namespace) -> None:
    graph, found = Graph(name, Path(args.folder), args), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        graph.prepare(cwd)
        for turn in range(args.rounds):
            ours = graph.ours(cwd)
            until = "0" if args.quick else str(ours["val_acc"] - TOLERANCE)
            runs = {"ours": ours, "sampled": graph.script(cwd)}
            if graph.dgl and name != "dblp_hetero":
                runs["dgl"] = graph.script(cwd, python=graph.dgl, name="headline_dgl.py")
            if not (graph.large or args.sampled):
                runs["full"] = graph.script(cwd, "--full", "--until", until)
            for system, run in runs.items():
                found[system].append(run)
                report(bench="headline", graph=name, system=system, precision=args.precision, round=turn, **run)
    for system, runs in found.items():
        for what in ("wall_s", "cpu_s"):
            values, of_ours = [run[what] for run in runs], [run[what] for run in found["ours"]]
            middle = statistics.median(values)
            report(
                bench="headline_median",
                graph=name,
                system=system,
                what=what,
                median=middle,
                lowest=min(values),
                highest=max(values),
                ratio_to_ours=middle / statistics.median(of_ours),
                test_acc=statistics.median(run["test_acc"] for run in runs),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--graphs", nargs="+", default=GRAPHS, choices=[*GRAPHS, LARGE])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("32", "bf16"), default="32")
    parser.add_argument("--pyg", help="interpreter with PyG and pyg-lib or torch-sparse")
    parser.add_argument("--dgl", help="interpreter with DGL")
    parser.add_argument("--sampled", action="store_true", help="without the full graph, which takes minutes")
    parser.add_argument("--quick", action="store_true", help="one epoch, to show that it runs")
    args = parser.parse_args()
    report(bench="machine", cores=len(os.sched_getaffinity(0)), load=os.getloadavg()[0])
    for name in args.graphs:
        measure(name, args)


if __name__ == "__main__":
    main()
