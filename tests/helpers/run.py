"""Starts our command line, or a script, as a user would: in processes of its own, which all end with the test."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.helpers.family import MARK, describe, end, marked, settle

# A launcher of the surrounding world (torchrun, SLURM, a Trainer in this process) must not number our ranks.
_LAUNCHER_NAMES = {"RANK", "GLOBAL_RANK", "GROUP_RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
_LAUNCHER_NAMES |= {"MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED", "PL_SEED_WORKERS"}
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "SLURM_")

_numbers = itertools.count()


class Run:
    """A started program and everything it starts.

    ``popen`` is the first process; output of all of them goes to one file.
    """

    def __init__(self, popen: subprocess.Popen[bytes], mark: str, log: Path) -> None:
        self.popen, self._mark, self._log = popen, mark, log

    @property
    def output(self) -> str:
        """What stdout and stderr of the whole family got so far."""
        return self._log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """The live processes of the run, the first one included."""
        return marked(self._mark)

    def wait(self, timeout: float) -> int:
        """The exit status of the first process; kills all and fails when it takes longer than `timeout` seconds."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"{self.popen.args} did not end within {timeout} s. Output:\n{self.output}") from None

    def close(self) -> None:
        """Kills what is left of the run."""
        end(self.family())
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(10)


@contextlib.contextmanager
def started(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Iterator[Run]:
    """Starts a program for the length of the ``with`` block, in a temporary folder unless `cwd` is given."""
    mark = f"{os.environ.get(MARK) or f'{os.getpid()}.'}{next(_numbers)}."
    full_env = {name: value for name, value in os.environ.items() if not _from_launcher(name)}
    full_env |= {MARK: mark, "PYTHONUNBUFFERED": "1"} | dict(env or {})
    with tempfile.TemporaryDirectory(prefix="glt-run-") as folder:
        log = Path(folder, "output.txt")
        work = Path(folder, "cwd")
        work.mkdir()
        # To a file: a pipe would stay open, and its reader wait, while any grandchild lives.
        with log.open("wb") as sink:
            popen = subprocess.Popen(
                [os.fspath(arg) for arg in argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=full_env,
                cwd=cwd or work,
                start_new_session=True,
            )
        run = Run(popen, mark, log)
        try:
            yield run
        finally:
            run.close()


def run_cli(
    *args: object,
    timeout: float = 300,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m lightning ARGS`` to its end; ``stdout`` of the result is stdout and stderr of all processes.

    Fails on an exit status other than 0 (unless ``check=False``), after `timeout` seconds, and when a process outlives
    the first one.
    """
    return _run([sys.executable, "-m", "lightning", *map(str, args)], timeout, check, env, cwd)


def run_script(
    code: str,
    *args: object,
    timeout: float = 300,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code as a script file, so that launchers can start it again; else as `run_cli`."""
    with tempfile.TemporaryDirectory(prefix="glt-script-") as folder:
        script = Path(folder, "script.py")
        script.write_text(textwrap.dedent(code))
        return _run([sys.executable, str(script), *map(str, args)], timeout, check, env, cwd)


def _run(
    argv: list[str],
    timeout: float,
    check: bool,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
) -> subprocess.CompletedProcess[str]:
    with started(argv, env=env, cwd=cwd) as run:
        status = run.wait(timeout)
        left = [describe(process) for process in settle(run.family, grace_s=5)]
        output = run.output
    if left:
        raise AssertionError("\n".join([f"{argv} ended with status {status} and left behind:", *left, output]))
    if check and status != 0:
        raise AssertionError(f"{argv} ended with status {status}. Output:\n{output}")
    return subprocess.CompletedProcess(argv, status, output, "")


def _from_launcher(name: str) -> bool:
    return name in _LAUNCHER_NAMES or name.startswith(_LAUNCHER_PREFIXES)
