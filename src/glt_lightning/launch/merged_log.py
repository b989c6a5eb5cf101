"""The output of all processes of a job: on the terminal, with host and rank before each line, and in a file for each host."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import IO

_OF_RANK = re.compile(r"\[default(\d+)\]:(.*)", re.S)  # how torchrun marks the lines of a rank
_LAST = 40  # lines of a process that are shown once more when it fails


class MergedLog:
    """folder: of the run, with a file for each host.  terminal: a text stream."""

    def __init__(self, folder: Path, terminal: IO[str]) -> None:
        self._folder, self._terminal = folder, terminal
        self._files: dict[str, IO[str]] = {}
        self._lock = threading.Lock()  # output comes from several threads
        self._tails: dict[tuple[str, str], deque[str]] = {}

    def add(self, host: str, process: str, text: str, first_rank: int = 0) -> None:
        """Whole lines of a process. first_rank: rank of the first trainer process of the host."""
        lines = text.removesuffix("\n").split("\n")
        named = [_named(host, process, line.rstrip("\r"), first_rank) for line in lines]
        for who, line in named:
            self._tails.setdefault((host, who), deque(maxlen=_LAST)).append(line)
        self._put(host, (f"{f'{host}:{who}' if who else host}| {line}\n" for who, line in named))

    def info(self, text: str) -> None:
        """A line of the launcher's own."""
        self._put("launch", [f"launch| {text}\n"])

    def tail(self, host: str, who: str) -> list[str]:
        """The last lines of a rank (its number), of ``server0``, or ('') of what else ran on a host."""
        return list(self._tails.get((host, who), ()))

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _put(self, host: str, lines: Iterable[str]) -> None:
        text = "".join(lines)
        with self._lock:
            if host not in self._files:
                self._folder.mkdir(parents=True, exist_ok=True)
                name = host.replace("/", "_").replace(":", "-")
                self._files[host] = (self._folder / f"{name}.log").open("a", encoding="utf-8", errors="replace")
            self._files[host].write(text)
            self._files[host].flush()
            with contextlib.suppress(BrokenPipeError):  # `launch | head`: the files have it all
                self._terminal.write(text)
                self._terminal.flush()


def _named(host: str, process: str, line: str, first_rank: int) -> tuple[str, str]:
    """(rank or name of the process, line)."""
    if process != "trainer":
        return "" if host.endswith(f":{process}") else process, line
    marked = _OF_RANK.match(line)
    return (str(first_rank + int(marked[1])), marked[2]) if marked else ("", line)
