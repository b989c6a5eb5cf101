"""Tells a rank that stands still from one that is busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

_STOPPED = "Tt"  # by a signal, or by a debugger
_BEATS = 10  # signs of life within the limit, so that a late one is no loss
_MOST_BEAT_S = 5.0
_PATIENCE = 5  # times the limit, for a rank that is silent and not stopped: it may wait for a disk while it has the GIL


class State(NamedTuple):
    """letter: as /proc has it (R, S, D, T, t, Z).  cpu: clock ticks that the process has used, all threads together."""

    letter: str
    cpu: int


def read_state(pid: int) -> State | None:
    """Of a process of this host; None where it cannot be seen, as in another container."""
    try:
        # the name, in parentheses, may contain anything
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return State(fields[0], int(fields[11]) + int(fields[12]))
    except (OSError, IndexError, ValueError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a process of this host is stopped by a signal or a debugger."""
    state = read_state(pid)
    return state is not None and state.letter in _STOPPED


class Silence:
    """Which of the other ranks of this host show no sign of life for ``limit_s``.

    Each rank sends one from a thread every `beat_s`, whatever its training does: a slow step, a compilation or a long
    validation is no silence. That thread needs the GIL, and native code may hold it for minutes (a large `pickle`, a sort, a
    foreign library). Such a rank is busy: its process uses CPU time, which counts as a sign of life, too. A process that is
    stopped stands still after ``limit_s``; one that neither speaks nor computes, but may yet, after several times as long.

    Args:
        pids: Process of each rank to watch; 0 for one that cannot be seen, of which only signs of life are heard.
        limit_s: As above (``cluster.peer_silence_s``).
        clock, look: In place of the real ones, for tests.
    """

    def __init__(
        self,
        pids: Mapping[int, int],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[int], State | None] = read_state,
    ) -> None:
        self.limit_s, self.beat_s = limit_s, min(limit_s / _BEATS, _MOST_BEAT_S)
        self._clock, self._look = clock, look
        self._looked_s = clock()
        self._pids = dict(pids)
        self._heard_s = dict.fromkeys(pids, self._looked_s)
        self._cpu: dict[int, int] = {}

    def heard(self, rank: int) -> None:
        self._heard_s[rank] = self._clock()

    def forget(self, rank: int) -> None:
        """It has left in order."""
        del self._heard_s[rank]

    def find(self) -> tuple[int, str] | None:
        """A rank that stands still, and how that shows. To be asked every `beat_s`."""
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        if now - before > self.limit_s / 2:
            # This process itself stood still (a terminal's Ctrl-Z, a suspended machine): what the others said meanwhile is
            # not read yet, or they stood still, too.
            self._heard_s = dict.fromkeys(self._heard_s, now)
        for rank, heard_s in self._heard_s.items():
            state = self._look(self._pids[rank])
            if state is not None and state.cpu != self._cpu.get(rank):
                self._cpu[rank] = state.cpu
                self._heard_s[rank] = now
            elif now - heard_s >= self.limit_s * (1 if state is not None and state.letter in _STOPPED else _PATIENCE):
                return rank, f"no sign of life for {now - heard_s:.0f} s; {_describe(state)}"
        return None


def _describe(state: State | None) -> str:
    if state is None:
        return "its process cannot be seen from here"
    if state.letter in _STOPPED:
        return "its process is stopped by SIGSTOP or a debugger"
    return f"its process uses no CPU time (state {state.letter}), so it is frozen or in a deadlock"
