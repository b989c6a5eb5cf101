"""The identity of a process in its job, and the check of its peers' identities."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from glt_lightning.base import DeadlineOptions, LimitOptions, RefusedError, SecurityOptions
from glt_lightning.graph import difference
from glt_lightning.workers.transport.base import PROTOCOL, CallHandler, Server, Service, Transport
from glt_lightning.workers.transport.peer import Peer, Retry

_SECURITY, _DEADLINES, _RETRY, _LIMITS = SecurityOptions(), DeadlineOptions(), Retry(), LimitOptions()


def package_version() -> str:
    """Returns the version of this package. Peers must have the same."""
    from glt_lightning.base import __version__

    return __version__


@dataclass(frozen=True, kw_only=True)
class Link:
    """The identity and options with which a process connects to its peers. Plain values, to be sent to a child process.

    job: name of the job; empty for servers, which serve any job.  role: worker, client, server or tool.
    name: this process in the errors of its peers.  graph: identity of its partition, "" if not known yet.
    token: the job's secret, if it does not come from ``security.token_file``.
    """

    job: str
    role: str
    name: str
    graph: str = ""
    token: str | None = None
    security: SecurityOptions = _SECURITY
    deadlines: DeadlineOptions = _DEADLINES
    retry: Retry = _RETRY
    limits: LimitOptions = _LIMITS

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values. Send them over private channels only: the token is among them."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Link:
        kinds = {
            "security": SecurityOptions,
            "deadlines": DeadlineOptions,
            "retry": Retry,
            "limits": LimitOptions,
        }
        return cls(**{name: kinds[name](**value) if name in kinds else value for name, value in raw.items()})

    def named(self, name: str) -> Link:
        """Returns the link of another process of this rank, such as a sampler."""
        return replace(self, name=name)

    def open_transport(self) -> Transport:
        """Opens Arrow Flight with this job's credentials. Raises `OptionError` for files that cannot be used."""
        from glt_lightning.workers.transport.credentials import Credentials
        from glt_lightning.workers.transport.flight_transport import FlightTransport

        return FlightTransport(Credentials.load(self.security, self.token), self.deadlines, self.limits)

    def hello(self) -> dict[str, Any]:
        """Returns the greeting of this process."""
        return {
            "protocol": PROTOCOL,
            "version": package_version(),
            "job": self.job,
            "role": self.role,
            "name": self.name,
            "graph": self.graph,
        }

    def serve(
        self,
        address: str,
        calls: Mapping[str, CallHandler],
        transport: Transport | None = None,
        prompt: Set[str] = frozenset(),
    ) -> Server:
        """Serves ``calls`` at ``address`` to the peers that `greet` accepts. transport: an open one of this link; None: opens
        one.  prompt: see `Service`. Raises as `open_transport` and `Transport.serve`."""
        service = Service(self.greet, calls, {}, prompt)
        return (self.open_transport() if transport is None else transport).serve(address, service)

    def peer(self, name: str, addresses: Sequence[str], transport: Transport) -> Peer:
        """Makes a `Peer`. name: the peer in errors.  addresses: the addresses of its processes, any of which answers."""
        return Peer(name, addresses, transport, self.hello(), self.deadlines, self.retry)

    def greet(self, hello: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a peer's greeting. Raises `RefusedError` for another release, job or partition."""
        mine = self.hello()
        peer = str(hello.get("name", "a peer without a name"))[:200]
        for key in ("protocol", "version"):
            if hello.get(key) != mine[key]:
                raise RefusedError(
                    f"{peer} has {key} {hello.get(key)!r:.50}, {self.name} has {mine[key]!r}. "
                    "Install the same release of glt-lightning everywhere."
                )
        if self.job and hello.get("job") != self.job and hello.get("role") != "tool":
            raise RefusedError(
                f"{peer} belongs to another job than {self.name}. Check the addresses, or end the other job."
            )
        if self.graph and hello.get("graph") and hello["graph"] != self.graph:
            raise RefusedError(
                f"{peer} and {self.name} have different partitions: {difference(hello['graph'], self.graph)}"
            )
        return mine


# Distinguishes a rank that is stopped or frozen from one that is busy.


_STOPPED = "Tt"  # states of a process in /proc: stopped by a signal, or by a debugger
_BEATS = 10  # heartbeats within the limit, so that a few late ones are no loss
_MOST_BEAT_S = 5.0  # between heartbeats
_PATIENCE = 5  # times the limit, for a rank that is silent but not stopped: it may wait for a disk while it has the GIL


class State(NamedTuple):
    """State of a process. letter: as in /proc (R, S, D, T, t, Z).  cpu: clock ticks that all its threads have used."""

    letter: str
    cpu: int


def read_state(pid: int) -> State | None:
    """Reads the state of a process of this host; None if it is not visible, as in another container."""
    try:
        # the name, in parentheses, may contain anything
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return State(fields[0], int(fields[11]) + int(fields[12]))
    except (OSError, IndexError, ValueError):
        return None


def is_stopped(pid: int) -> bool:
    """Tells whether a process of this host is stopped by a signal or a debugger."""
    state = read_state(pid)
    return state is not None and state.letter in _STOPPED


class Silence:
    """Finds ranks of this host that have been silent for ``limit_s``.

    Each rank sends a heartbeat from a thread every `beat_s`, whatever its training does: a slow step, a compilation or a
    long validation is no silence. That thread needs the GIL, and native code may hold it for minutes (a large `pickle`, a
    sort, another library). Such a rank is busy: its process uses CPU time, which counts as a heartbeat, too. A stopped
    process is lost after ``limit_s``; one that is not stopped, but neither sends nor computes, after several times as long.

    Args:
        pids: Process id of each rank to watch; 0 for a process that is not visible, of which only heartbeats count.
        limit_s: The longest silence of a stopped process (``cluster.peer_silence_s``).
        clock, look: Replacements of the real ones, for tests.
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
        """Stops watching a rank that has left in order."""
        del self._heard_s[rank]

    def find(self) -> tuple[int, str] | None:
        """Returns a rank that has been silent for too long, and a description of its process; None if there is none. To be
        called every `beat_s`."""
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        if now - before > self.limit_s / 2:
            # This process itself was stopped (a terminal's Ctrl-Z, a suspended machine): heartbeats that arrived meanwhile are
            # not read yet, or the other ranks were stopped, too.
            self._heard_s = dict.fromkeys(self._heard_s, now)
        for rank, heard_s in self._heard_s.items():
            state = self._look(self._pids[rank])
            if state is not None and state.cpu != self._cpu.get(rank):
                self._cpu[rank] = state.cpu
                self._heard_s[rank] = now
            elif now - heard_s >= self.limit_s * (1 if state is not None and state.letter in _STOPPED else _PATIENCE):
                return rank, f"no heartbeat for {now - heard_s:.0f} s; {_describe(state)}"
        return None


def _describe(state: State | None) -> str:
    if state is None:
        return "its process is not visible from here"
    if state.letter in _STOPPED:
        return "its process is stopped by SIGSTOP or a debugger"
    return f"its process uses no CPU time (state {state.letter}), so it is frozen or deadlocked"
