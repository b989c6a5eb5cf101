"""The folder of a run, and the last lines that a command prints: its outputs, their folder, and how to continue."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import WriteError, counted
from glt_lightning.cli.past_runs import chosen_state
from glt_lightning.lightning import end_other_ranks

_FILES = ("metrics.csv", "predictions", "report.html", "config.yaml")
_MOST_METRICS = 4
INTERRUPTED = 130  # exit status, as a shell has it


def run_line(trainer: Trainer, subcommand: str, checkpoint: str | None = None) -> str:
    """The last line of a command, on rank 0, such as
    ``run: lightning_logs/version_3: best val_acc 0.8218; checkpoints/best.ckpt, metrics.csv, config.yaml``.

    checkpoint: path of the checkpoint that the command read, or None.
    """
    folder = run_folder(trainer)
    files = [name for name in _FILES if (folder / name).exists()]
    if subcommand == "fit":
        results, best = _best(trainer, folder)
        files = best + files
    else:
        results = [f"{name} {value:.4f}" for name, value in trainer.callback_metrics.items()][:_MOST_METRICS]
    outputs = "; ".join(", ".join(part) for part in (results, files) if part)
    source = "" if checkpoint is None else f"; from {_shown(Path(checkpoint))}"
    return f"run: {_shown(folder)}: {outputs or 'no files'}{source}"


@contextmanager
def reserved_folders(trainer: Trainer) -> Iterator[None]:
    """Makes, on rank 0, the folders that the loggers of a run number themselves, before the run begins. Lightning takes the next
    free number, but makes the folder only when the data is prepared: runs that begin meanwhile would share it. Folders that are
    empty at the end are removed.

    Raises `WriteError` if a folder cannot be made.
    """
    numbering = [
        each
        for each in trainer.loggers
        if isinstance(each, (CSVLogger, TensorBoardLogger)) and each._version is None and "://" not in each.root_dir
    ]
    made = [_reserve(each) for each in numbering] if trainer.is_global_zero else []
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _reserve(logger: CSVLogger | TensorBoardLogger) -> Path:
    root = Path(os.path.expanduser(os.path.expandvars(logger.root_dir)))
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(int(logger.version)):
            folder = root / f"version_{number}"
            with suppress(FileExistsError):
                folder.mkdir()
                logger._version = number
                return folder
    except OSError as error:
        raise WriteError(
            f"{root}: the folder of this run cannot be made in it ({error.strerror}). Choose another place with "
            "--trainer.default_root_dir or with save_dir of the logger, or --trainer.logger false."
        ) from error
    raise AssertionError("numbers do not end")


@contextmanager
def end_said(trainer: Trainer, subcommand: str, checkpoint: str | None) -> Iterator[None]:
    """Prints after SIGTERM or Ctrl-C that the command is not complete, and sets the exit status that shells use."""
    try:
        yield
    except SystemExit as error:
        if isinstance(error, SIGTERMException):
            end_other_ranks(trainer)
            _say_end(trainer, subcommand, "SIGTERM", checkpoint)
        elif isinstance(error.__context__, KeyboardInterrupt):  # which Lightning turns into status 1
            error.code = INTERRUPTED
            _say_end(trainer, subcommand, "Ctrl-C", checkpoint)
        raise


def _say_end(trainer: Trainer, subcommand: str, cause: str, checkpoint: str | None) -> None:
    if subcommand == "fit":
        done = f"after {counted(trainer.current_epoch, 'epoch')} and {counted(trainer.global_step, 'step')}"
        rank_zero_info(f"fit: ended by {cause} {done}; {_way_on(trainer)}")
    else:
        rank_zero_info(f"{subcommand}: ended by {cause} before it was complete.")
    if trainer.is_global_zero and any(run_folder(trainer).glob("*")):
        rank_zero_info(run_line(trainer, subcommand, checkpoint))


def _way_on(trainer: Trainer) -> str:
    for word in ("last", "best"):
        state = _chosen(word, trainer)
        if state is not None and (path := Path(state[f"{word}_model_path"])).is_file():
            return f"--ckpt_path {word if word == 'last' else _shown(path)} continues it."
    return "there is no checkpoint to continue from."


def _chosen(word: str, trainer: Trainer) -> Mapping[str, Any] | None:
    callbacks = trainer.checkpoint_callbacks
    return chosen_state(word, [each.state_dict() for each in callbacks if isinstance(each, ModelCheckpoint)])


def run_folder(trainer: Trainer) -> Path:
    """The folder ``trainer.log_dir``, found without its collective call, which one rank alone must not make."""
    logger = trainer.logger
    folder = None if logger is None else getattr(logger, "log_dir", None) or logger.save_dir
    return Path(folder or trainer.default_root_dir)


def _best(trainer: Trainer, folder: Path) -> tuple[list[str], list[str]]:
    """Returns the texts of the best metric and of its checkpoint, in lists that are empty without one."""
    checkpoint = _chosen("best", trainer)
    if checkpoint is None:
        return [], []
    score, path = checkpoint["best_model_score"], Path(checkpoint["best_model_path"])
    inside = path.absolute().is_relative_to(folder.absolute())
    shown = str(path.absolute().relative_to(folder.absolute())) if inside else _shown(path)
    return ([] if score is None else [f"best {checkpoint['monitor']} {score:.4f}"]), [shown]


def _shown(path: Path) -> str:
    """Writes a path; relative to the current folder if it is below that."""
    path = path.absolute()
    return str(path.relative_to(os.getcwd())) if path.is_relative_to(os.getcwd()) and path != Path.cwd() else str(path)


# Log lines and warnings of dependencies about which a user of the command line can do nothing.


_LIGHTNING = "lightning.pytorch.utilities.rank_zero"


# Beginnings of log lines about hardware that was not asked for, and about other packages of Lightning's makers.
_LINES = ("TPU available: False", "💡 Tip: For seamless cloud")
_BANNER_OF_ONE = "All distributed processes registered. Starting with 1 processes"  # five lines about a single process

_WARNINGS = (
    r".*`tensorboardX` has been removed as a dependency",  # the default logger; docs/configuration.md says which it is
    r"The dirpath has changed from",  # a fit that goes on writes into a folder of its own
    r".*No seed found, seed set to",  # the line below it says the seed
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's use of torch
)


@contextmanager
def without_noise() -> Iterator[None]:
    """Suppresses the lines and warnings listed above within a ``with`` block."""
    log = logging.getLogger(_LIGHTNING)
    log.addFilter(_is_wanted)
    try:
        with warnings.catch_warnings():
            for message in _WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        log.removeFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    message = str(
        record.msg
    )  # the hidden messages have no arguments, and arguments of other messages may not fit their format
    return not message.startswith(_LINES) and _BANNER_OF_ONE not in message


# Ctrl-C and SIGTERM in the subcommands that write files, and in those that serve until a signal.


_INTERRUPTED = 130  # exit status, as a shell has it
_STEP_S = 0.2  # how often the main thread wakes to run a signal's handler: the longest delay after SIGTERM


@contextmanager
def interruptible(state: str, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[None]:
    """Has Ctrl-C and SIGTERM unwind a ``with`` block once, so that it cleans up, and then end the process with one line."""

    def unwind(number: int, _frame: Any) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C must not end the cleaning up
        raise KeyboardInterrupt

    before = {number: signal.signal(number, unwind) for number in signals}
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted; {state}.", file=sys.stderr, flush=True)
        sys.exit(_INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class EndSignals:
    """Waits for SIGTERM or SIGINT, in a ``with`` block. Before `wait` is called, these signals end the process in order."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self._event, self._waited_for = threading.Event(), False

    def wait(self, announce: Callable[[], object] = lambda: None) -> None:
        """Returns after a signal. announce: called once a signal no longer ends the process, to tell others that they may send
        one."""
        self._waited_for = True
        announce()
        # In steps: the kernel may deliver a signal to any thread, as it does with one right after SIGCONT. Python runs the
        # handler in the main thread only, when that wakes up, which in a wait without a timeout it never would.
        while not self._event.wait(_STEP_S):
            continue

    def _tell(self, number: int, _frame: Any) -> None:
        self._event.set()
        if not self._waited_for:
            sys.exit(128 + number)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._tell) for number in self._NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
