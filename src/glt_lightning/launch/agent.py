"""The agent of a launched job on a host: starts processes, passes on their output, and ends them all.

It runs as ``python -m glt_lightning agent``, takes messages on stdin and answers on stdout (`launch.messages`). When stdin ends,
or the launcher is silent for too long, it ends what it started: so the end of the launcher, of ssh or of the network ends the
job. It imports neither numpy nor torch, so that it starts fast, and has one thread, as `children.Child` forks.
"""

from __future__ import annotations

import base64
import contextlib
import os
import platform
import resource
import selectors
import signal
import socket
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glt_lightning.base import __version__
from glt_lightning.kernels import adopt_orphans
from glt_lightning.launch.children import Child, kill_all, reap
from glt_lightning.launch.messages import (
    FAILURE,
    MOST_BYTES,
    PROTOCOL,
    TO_AGENT,
    MessageError,
    decode,
    encode,
    parse,
    require,
)

_READ = 1 << 16
_OPEN_FILES = 1 << 16  # limit for processes, if the host allows it: the default of sshd, 1024, is too low for samplers
_MOST_WAITING = 1 << 20  # bytes that the launcher has not read yet; above it the output of processes is no longer read
_MOST_FAILURE = 1 << 18  # bytes of a rank's file about its failure
_LONGEST_REASON = 10_000  # characters of a failure's reason that are sent to the launcher
_STEP_S = 0.1  # pause between two checks while processes end
_NOT_FOUND, _NOT_STARTED = 127, 126  # as in shells


class Agent:
    """Serves one launcher over ``stdin`` and ``stdout``, two file descriptors that it owns, until its processes have ended.

    clock: seconds, for the deadlines.  wall: seconds since 1970.
    """

    def __init__(
        self,
        stdin: int,
        stdout: int,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._in, self._out, self._clock, self._wall = stdin, stdout, clock, wall
        self._children: dict[str, Child] = {}
        self._failures: dict[str, str] = {}
        self._received, self._waiting = b"", bytearray()
        self._stop_s, self._silence_s = 20.0, 60.0  # until `begin`
        self._last_message = clock()
        self._stopping: float | None = None
        self._killing = False
        self._hung_up = False  # True once the launcher does not read any more
        self._mark = os.urandom(8).hex()  # in the names of incomplete files: agents of hosts may share the folder
        self._incomplete: set[Path] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._ops: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "begin": self._begin,
            "write": self._write,
            "start": self._start,
            "end": self._end,
            "beat": self._beat,
            "stop": lambda _: self._stop(),
            "kill": lambda _: self._kill(),
        }

    def run(self) -> None:
        """Runs the agent until no process is left."""
        adopt_orphans()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _OPEN_FILES)), hard))
        for each in (self._wake, self._woken):
            each.setblocking(False)
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)
        # a signal writes to the socket, at which `select` returns; without it one between a check and `select` would be missed
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop())
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._selector.register(self._in, selectors.EVENT_READ, self._receive)
        self._selector.register(self._wake, selectors.EVENT_READ, self._drain_wakes)
        self._send("hello", protocol=PROTOCOL, version=__version__, python=platform.python_version(), pid=os.getpid())
        while not self._done():
            for key, _ in self._selector.select(self._pause()):
                key.data()
            self._step()
        for file in self._incomplete:
            file.unlink(missing_ok=True)

    def _step(self) -> None:
        """Does what no message asks for: checks for silence, reaps children, kills those that are late, forwards output."""
        if self._stopping is None and self._clock() - self._last_message > self._silence_s:
            self._send("silent", reason=f"the launcher was silent for {self._silence_s:g} s")
            self._hung_up = True
            self._stop()
        for pid, status in reap():
            for child in self._children.values():
                if child.pid == pid:
                    child.reaped(status)
        if self._stopping is not None and (self._killing or self._clock() - self._stopping > self._stop_s):
            kill_all(os.getpid())
        for child in list(self._children.values()):
            self._forward(child)
        self._flush()

    def _pause(self) -> float | None:
        busy = self._stopping is not None or any(
            c.status is not None and not c.reported for c in self._children.values()
        )
        return _STEP_S if busy else max(0.0, self._last_message + self._silence_s - self._clock()) + 0.01

    def _done(self) -> bool:
        """Tells whether all processes have ended and been reported. Processes that these left behind are killed here."""
        if self._stopping is None or any(child.status is None for child in self._children.values()):
            return False
        if kill_all(os.getpid()):
            return False
        return self._hung_up or (not self._waiting and all(child.reported for child in self._children.values()))

    # Messages from the launcher

    def _receive(self) -> None:
        try:
            data = os.read(self._in, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the launcher, ssh or the connection has ended
            self._selector.unregister(self._in)
            self._stop()
            return
        self._last_message = self._clock()
        *lines, self._received = (self._received + data).split(b"\n")
        # no valid message is as long: `_take` refuses it, and memory stays bounded
        if len(self._received) > MOST_BYTES:
            lines, self._received = [*lines, self._received], b""
        for line in lines:
            if line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = decode(line, TO_AGENT)
            self._ops[message["op"]](message)
        except (ValueError, OSError) as error:
            self._send("refused", reason=str(error))

    def _begin(self, message: Mapping[str, Any]) -> None:
        if message["protocol"] != PROTOCOL:
            raise MessageError(f"the launcher has protocol {message['protocol']}, this agent has {PROTOCOL}")
        self._stop_s, self._silence_s = float(message["stop_s"]), float(message["silence_s"])

    def _beat(self, message: Mapping[str, Any]) -> None:
        self._send("beat", sent=message.get("sent"), wall=self._wall(), memory_bytes=available_memory())

    def _write(self, message: Mapping[str, Any]) -> None:
        """Appends a piece to a file. It has another name until the last piece, so that it only appears when it is complete."""
        path = Path(_expanded(message["path"]))
        temporary = path.with_name(f".{path.name}.{self._mark}")
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, message["mode"] & 0o777)
        self._incomplete.add(temporary)
        with os.fdopen(fd, "wb") as file:
            try:
                file.write(base64.b64decode(message["data"], validate=True))
            except ValueError:
                raise MessageError("write: data is no base64") from None
        if not message["more"]:
            os.replace(temporary, path)
            self._incomplete.discard(temporary)
            self._send("written", path=message["path"])

    def _start(self, message: Mapping[str, Any]) -> None:
        name = message["id"]
        if name in self._children and self._children[name].status is None:
            raise MessageError(f"start: {name} is running")
        if self._stopping is not None:
            raise MessageError(f"start: {name}: the agent is stopping")
        argv, cwd = [_expanded(message["argv"][0]), *message["argv"][1:]], _expanded(message["cwd"])
        env = {**os.environ, **message["env"]}
        try:
            os.makedirs(cwd, exist_ok=True)
            child = Child(name, argv, env, cwd, message.get("input"))
        except OSError as error:
            status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
            self._send(
                "exited", id=name, status=status, reason=f"{error.filename or argv[0]}: {error.strerror}", failure=None
            )
            return
        if (failure := message.get("failure")) is not None:
            self._failures[name] = os.path.join(cwd, failure)
        self._children[name] = child
        self._selector.register(child.pipe, selectors.EVENT_READ, lambda: self._forward(child))
        self._send("started", id=name, pid=child.pid)

    def _end(self, message: Mapping[str, Any]) -> None:
        child = self._children.get(message["id"])
        if child is not None:
            child.terminate()

    # Ending

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._clock()
            for child in self._children.values():
                child.terminate()

    def _kill(self) -> None:
        self._stop()
        self._killing = True

    # To the launcher

    def _forward(self, child: Child) -> None:
        """Sends a child's output to the launcher, unless that is behind, and after the output the child's end."""
        while child.open and len(self._waiting) < _MOST_WAITING:
            text = child.read()
            if text is None:
                break
            if text:
                self._send("lines", id=child.name, text=text)
        behind = len(self._waiting) >= _MOST_WAITING
        if not child.open and child.pipe in self._selector.get_map():
            self._selector.unregister(child.pipe)
        elif behind:
            self._wait_with_reading(child)
        if child.status is not None and not child.reported and not behind:
            if rest := child.rest():
                self._send("lines", id=child.name, text=rest)
            child.reported = True
            failure = self._failure_of(child.name)
            self._send("exited", id=child.name, status=child.status, reason=None, failure=failure)
        if not child.open and child.reported and self._children.get(child.name) is child:
            child.close()
            if self._stopping is None:
                del self._children[child.name]

    def _wait_with_reading(self, child: Child) -> None:
        """Stops reading a child's pipe until `_flush` has sent enough: the child then waits in its next write."""
        if child.pipe in self._selector.get_map():
            self._selector.unregister(child.pipe)

    def _failure_of(self, name: str) -> Any:
        """Reads a process's file about its failure; None without a valid one. The file is checked, since user code may have
        written anything there."""
        with contextlib.suppress(OSError, ValueError, KeyError), contextlib.ExitStack() as stack:
            # O_NONBLOCK: opening a FIFO would wait for a writer. `graph.open_regular` does the same, but imports numpy.
            fd = os.open(self._failures.pop(name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            stack.callback(os.close, fd)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                found = parse(os.read(fd, _MOST_FAILURE))
                require(found, FAILURE, "failure")
                cut = {"reason": found["reason"][:_LONGEST_REASON]} if found.get("reason") else {}
                return {key: found[key] for key in ("rank", "reason") if key in found} | cut
        return None

    def _send(self, op: str, **fields: Any) -> None:
        if not self._hung_up:
            self._waiting += encode(op, **fields)
            self._flush()

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._out, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:  # the launcher has closed its end
            self._hung_up = True
            self._waiting.clear()
            self._stop()
        registered = self._out in self._selector.get_map()
        if self._waiting and not registered:
            self._selector.register(self._out, selectors.EVENT_WRITE, self._flush)
        elif not self._waiting and registered:
            self._selector.unregister(self._out)
        if len(self._waiting) < _MOST_WAITING // 2:  # half, so that reading does not start and stop with each message
            for child in self._children.values():
                if child.open and child.pipe not in self._selector.get_map():
                    self._selector.register(child.pipe, selectors.EVENT_READ, lambda c=child: self._forward(c))

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(_READ):
                pass


def available_memory() -> int:
    """Bytes that processes of this host can allocate without swapping; 0 if the kernel does not report them."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _expanded(path: str) -> str:
    """Expands ~ in a path to a user's home directory. Raises `MessageError` for a user that does not exist."""
    found = os.path.expanduser(path)
    if found.startswith("~"):
        raise MessageError(f"{path}: there is no such user")
    return found


def main() -> None:
    """Runs the agent on this process's stdin and stdout. Their descriptors 0 and 1 are replaced, so that a stray ``print``, or
    a child, cannot write between the messages."""
    stdin, stdout = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    Agent(stdin, stdout).run()
