"""``glt-lightning demo``: a first run, from any folder of an installed package."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, WriteError
from glt_lightning.cli.messages import OneLineParser
from glt_lightning.kernels import terminate_with

_FOLDER, _CONFIG, _PROGRAM = "glt-demo", "demo.yaml", "glt-lightning"
_DESCRIPTION = (
    "Trains and tests a model on a real graph, which is made of the installed packages, without a network: nodes are modules of "
    "torch, sympy and networkx, edges their imports, and the task is to predict the subpackage. About a minute on two cores. An "
    f"existing {_CONFIG} of the folder is used as it is."
)
_RUNS: tuple[tuple[str, ...], ...] = (("fit",), ("test", "--ckpt_path", "best"))
_NEXT = (
    (("predict", "--config", _CONFIG, "--ckpt_path", "best"), "the predicted class of each node, as Parquet"),
    (("partition", "--config", _CONFIG), "what each part of the graph holds, and what a batch costs"),
    (("fit", "--config", _CONFIG, "--print_config"), "every option; data.dataset takes a graph of your own"),
)


def run_demo(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for a folder that cannot be used, SystemExit for help, for wrong options,
    and with the status of a run that fails, which has printed why."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("folder", nargs="?", help="Folder of the demo; made if it does not exist.")
    parser.set_defaults(folder=_FOLDER)  # old versions of jsonargparse refuse a default above
    folder = Path(parser.parse_args(list(argv)).folder)
    _write_config(folder)
    for words in _RUNS:
        full = [words[0], "--config", _CONFIG, *words[1:]]
        print(f"demo: {_PROGRAM} {' '.join(full)}", flush=True)
        if status := _run(full, folder):
            sys.exit(status)
    print(_end(folder), flush=True)


def _write_config(folder: Path) -> None:
    target = folder / _CONFIG
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"folder: {folder} is a file. Give another name: {_PROGRAM} demo FOLDER.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_text((files("glt_lightning") / "cli" / _CONFIG).read_text())
    except OSError as error:
        raise WriteError(f"{target}: {error.strerror}. Choose another folder: {_PROGRAM} demo FOLDER.") from error


def _run(words: Sequence[str], folder: Path) -> int:
    """Runs a command in a process of its own, as ranks are started again by its words, and returns its exit status as a shell
    has it. Ctrl-C reaches that process by itself, and SIGTERM is handed on: it ends others before it ends."""
    child = subprocess.Popen(
        [sys.executable, "-m", "glt_lightning", *words],
        cwd=folder,
        preexec_fn=partial(terminate_with, os.getpid()),
    )

    def hand_on(number: int, _frame: Any) -> None:
        if number == signal.SIGTERM:
            child.terminate()

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _end(folder: Path) -> str:
    """The last lines: a picture of the run, where its report is, and three commands to go on with."""
    reports = sorted(folder.glob("lightning_logs/*/report.html"), key=lambda path: path.stat().st_mtime)
    report = reports[-1].resolve() if reports else None
    width = max(len(" ".join(words)) for words, _ in _NEXT)
    commands = [f"  {_PROGRAM} {' '.join(words):<{width}}  # {text}" for words, text in _NEXT]
    picture = _picture(report.with_name("metrics.csv")) if report else []
    return "\n".join(
        ["", *picture, f"demo: report of the run: {report or 'none'}", "", "Next:", f"  cd {folder}", *commands]
    )


def _picture(metrics: Path) -> list[str]:
    """The metrics of a run by epoch as bars, from the least to the greatest value; none for a file that is not there."""
    try:
        rows = list(csv.DictReader(metrics.read_text().splitlines()))
    except OSError:
        return []
    bars = "▁▂▃▄▅▆▇█" if (sys.stdout.encoding or "").lower().startswith("utf") else "_.-~=+*#"
    lines = []
    for name in ("train_loss", "val_loss", "val_acc"):
        by_epoch = {row["epoch"]: float(row[name]) for row in rows if row.get(name)}  # the last of each epoch
        if values := list(by_epoch.values()):
            low, span = min(values), max(values) - min(values) or 1.0
            drawn = "".join(bars[round((value - low) / span * (len(bars) - 1))] for value in values)
            lines.append(f"  {name:<10}  {drawn}  {values[0]:.3g} to {values[-1]:.3g} in {len(values)} epochs")
    return lines
