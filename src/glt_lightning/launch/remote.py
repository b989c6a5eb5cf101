"""The launcher's connection to one agent: a child process, ssh or the agent itself, that exchanges `launch.messages`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glt_lightning.base import GLTError
from glt_lightning.graph import open_regular
from glt_lightning.launch.hosts import Machine
from glt_lightning.launch.messages import (
    FROM_AGENT,
    MOST_BYTES,
    PIECE_BYTES,
    PROTOCOL,
    MessageError,
    Shape,
    decode,
    encode,
    parse,
    require,
)
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import Process

_STDERR_LINES = 20  # of ssh, that are kept for the error
_LONGEST_REASON = 2000  # characters
_ANSWER_S = 3.0  # how long an agent may take to kill all that it started
_KILLED_S = 2.0  # how long it may take to be gone after SIGKILL
_END_S = 10.0  # how long the client may take to end after its agent


class LaunchError(GLTError):
    """Raised for the failure that ends a launched job. status: exit status of the job.  host, who: the process whose last log
    lines are shown; who is a rank, or ''."""

    def __init__(self, text: str, *, status: int = 1, host: str = "", who: str = "") -> None:
        super().__init__(text)
        self.status, self.host, self.who = status, host, who


class AgentLostError(LaunchError):
    """Raised when the connection to an agent has ended, or the agent was silent for too long."""


@dataclass(frozen=True)
class Ended:
    """The end of a process. reason: why it could not be started, or None.  failure: rank and reason of the rank that failed
    first, or None."""

    status: int
    reason: str | None = None
    failure: dict[str, Any] | None = None


def agent_command(config: LaunchConfig, machine: Machine) -> list[str]:
    """The command that starts the agent of a host. Processes and environment are sent in messages, not in the command line, which
    other users of the host can read."""
    if config.engine == "here":
        return [sys.executable, "-m", "glt_lightning", "agent"]
    argv = [*config.ssh_command, "-T", "-o", "BatchMode=yes"]
    argv += ["-p", str(machine.ssh_port)] if machine.ssh_port is not None else []
    argv += ["-l", machine.user] if machine.user is not None else []
    return [*argv, machine.host, "--", f"exec {_quoted(machine.python)} -m glt_lightning agent"]


def _quoted(path: str) -> str:
    """Quotes a path for the host's shell, but for a leading ~, which the shell expands."""
    home, slash, rest = path.partition("/")
    return f"~/{shlex.quote(rest)}" if home == "~" and slash else shlex.quote(path)


Output = Callable[[Machine, str, str], Awaitable[None]]  # takes a host, the name of a process there, and lines


class Remote:
    """A connection to an agent. ``lost`` is done when the agent ends, with an error unless the launcher has ended it.

    output: receives what processes write, and lines of ssh itself under the name ``ssh``.  clock: seconds.
    """

    def __init__(
        self,
        config: LaunchConfig,
        machine: Machine,
        output: Output,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.machine, self._config, self._output, self._clock = machine, config, output, clock
        self.offset_s: float | None = None  # of the host's clock, after the quickest heartbeat
        self.memory_bytes: int | None = None  # that were available at the last heartbeat
        self._quickest = float("inf")
        self._ended: dict[str, asyncio.Future[Ended]] = {}
        self._written: dict[str, asyncio.Future[None]] = {}
        self._captured: dict[str, list[str]] = {}  # output that is an answer
        self._arrived: dict[str, asyncio.Event] = {}
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stderr: list[str] = []
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Starts the agent and waits for its greeting. Raises `LaunchError`."""
        limits, argv = self._config.limits, agent_command(self._config, self.machine)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=2 * MOST_BYTES,
                start_new_session=True,  # Ctrl-C is for the launcher, which ends the agents in order
            )
        except OSError as error:
            raise LaunchError(f"{self.machine.name}: cannot run {argv[0]}: {error.strerror}.") from None
        self._send("begin", protocol=PROTOCOL, stop_s=limits.stop_s, silence_s=limits.silence_s)
        self._tasks = [asyncio.create_task(each) for each in (self._read(), self._read_errors(), self._beat())]
        try:
            async with asyncio.timeout(limits.start_s):
                await asyncio.wait([self._greeted, self.lost], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise LaunchError(
                f"{self.machine.name}: no agent after {limits.start_s:g} s (limits.start_s){self._last_error()}. "
                f"Try: {shlex.join(argv[:-1])} true"
            ) from None
        if not self._greeted.done():
            self.lost.result()

    async def run(self, process: Process, given: str | None = None) -> Ended:
        """Runs a process to its end. Raises `AgentLostError`."""
        future = self._ended[process.name] = asyncio.get_running_loop().create_future()
        self._send(
            "start",
            id=process.name,
            argv=process.argv,
            env=dict(process.env),
            cwd=self.machine.dir,
            input=given,
            failure=process.failure,
        )
        ended: Ended = await self._or_lost(future)
        return ended

    async def ask(self, process: Process, question: Any, shape: Shape) -> Any:
        """Runs a process that answers a question, both in JSON. Raises `LaunchError` if it fails, or the answer is not of
        ``shape``."""
        self._captured[process.name] = []
        try:
            ended = await self.run(process, json.dumps(question))
            output = "".join(self._captured[process.name]).strip()
        finally:
            self._captured.pop(process.name, None)
        answer = output.splitlines()[-1] if output else ""
        if ended.status != 0:
            reason = _line(ended.reason or f"status {ended.status}: {answer}")
            raise LaunchError(f"{self.machine.name}: {shlex.join(process.argv)} failed: {reason}.")
        return self._answer(process, answer, shape)

    def _answer(self, process: Process, text: str, shape: Shape) -> Any:
        try:
            found = parse(text)
            require(found, shape, "it")
        except MessageError as error:
            raise LaunchError(
                f"{self.machine.name}: {shlex.join(process.argv)} gave no such answer as expected: {error}."
            ) from None
        return found

    async def first_line(self, process: Process, question: Any, shape: Shape) -> tuple[Any, asyncio.Task[Ended]]:
        """Starts a process that answers a question and keeps running. Returns the answer, and the task that ends when the process
        does."""
        self._captured[process.name] = []
        going = asyncio.create_task(self.run(process, json.dumps(question)))
        arrived = self._arrived[process.name] = asyncio.Event()
        waiting = asyncio.create_task(arrived.wait())
        try:
            waited: list[asyncio.Future[Any]] = [going, waiting, self.lost]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        output = "".join(self._captured[process.name]).strip()
        try:
            if not output.startswith("{"):
                reason = _line(output.splitlines()[-1]) if output else "it gave no answer"
                raise LaunchError(f"{self.machine.name}: {shlex.join(process.argv)} failed: {reason}.")
            return self._answer(process, output.splitlines()[0], shape), going
        except LaunchError:
            self.end(process.name)
            raise

    async def write(self, source: Path, target: str, mode: int = 0o644) -> None:
        """Copies a file to ``target``, below the folder of the host. Raises `LaunchError`."""
        path = f"{self.machine.dir}/{target}"
        future = self._written[path] = asyncio.get_running_loop().create_future()
        for data, more in _pieces(source):
            text = base64.b64encode(data).decode()
            self._send("write", path=path, data=text, mode=mode, more=more)
            await self._drain()
        await self._or_lost(future)

    def end(self, name: str) -> None:
        """Sends SIGTERM to a process."""
        self._send("end", id=name)

    def kill(self) -> None:
        """Kills all processes of the host. If it does not answer, the connection is closed, which its agent notices."""
        self._closing = True
        if hasattr(self, "_process"):
            self._send("kill")
            asyncio.get_running_loop().call_later(_ANSWER_S, self._hang_up)

    def _hang_up(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # also a ProxyCommand of ssh

    async def close(self) -> None:
        """Ends all processes of the host: SIGTERM, after ``limits.stop_s`` SIGKILL. Safe to call twice."""
        if not hasattr(self, "_process"):
            return
        self._closing = True
        self._send("stop")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.limits.stop_s + _END_S):
                await asyncio.wait([self.lost])
        self._hang_up()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_S):
                await self._process.wait()
        self._process._transport.close()  # type: ignore[attr-defined]  # else a process that kept stderr would hold us up
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.lost.done():
            self.lost.exception()

    # Messages

    def _send(self, op: str, **fields: Any) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):  # `_read` notices the end of the agent
            assert self._process.stdin is not None
            self._process.stdin.write(encode(op, **fields))

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):
            assert self._process.stdin is not None
            await self._process.stdin.drain()

    async def _beat(self) -> None:
        while True:
            self._send("beat", sent=time.time())
            await self._drain()
            await asyncio.sleep(self._config.limits.heartbeat_s)

    async def _read(self) -> None:
        """Reads messages until the agent ends. Silence counts only while this waits for a message, not while it writes output to
        a terminal that may be stopped."""
        assert self._process.stdout is not None
        silence_s, reason = self._config.limits.silence_s, None
        try:
            while True:
                async with asyncio.timeout(silence_s if self._greeted.done() else None):
                    line = await self._process.stdout.readline()
                if not line:
                    break
                await self._take(decode(line, FROM_AGENT))
        except TimeoutError:
            reason = f"no message for {silence_s:g} s (3 x limits.heartbeat_s)"
        except OSError as error:
            reason = f"its output cannot be written here: {error}"
        except (MessageError, ValueError) as error:
            reason = f"its answer is no message of an agent: {error}"
        if self._closing:
            self.lost.set_result(None)
            return
        if reason is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._process.wait()
            await asyncio.sleep(0)
            reason = f"the agent ended{self._last_error()}"
        self.lost.set_exception(AgentLostError(f"{self.machine.name}: {reason}.{self._advice()}"))

    async def _take(self, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "lines" and message["id"] in self._captured:
            self._captured[message["id"]].append(message["text"])
            if message["id"] in self._arrived:
                self._arrived[message["id"]].set()
        elif op == "lines":
            await self._output(self.machine, message["id"], message["text"])
        elif op == "beat":
            self._compare_clocks(message)
            self.memory_bytes = message.get("memory_bytes")
        elif op == "hello":
            if message["protocol"] != PROTOCOL:
                raise MessageError(f"it has protocol {message['protocol']}, the launcher has {PROTOCOL}")
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif op == "exited":
            future = self._ended.pop(message["id"], None)
            if future is None:
                raise MessageError(f"exited: {message['id']!r:.80} was not started")
            if not future.done():
                future.set_result(Ended(message["status"], message.get("reason"), message.get("failure")))
        elif op == "written":
            waiting = self._written.pop(message["path"], None)
            if waiting is None:
                raise MessageError(f"written: {message['path']!r:.80} was not sent")
            if not waiting.done():
                waiting.set_result(None)
        elif op in ("refused", "silent"):
            error = LaunchError(f"{self.machine.name}: {_line(message['reason'])}.")
            waited: list[asyncio.Future[Any]] = [*self._written.values(), *self._ended.values()]
            for each in waited:
                if not each.done():
                    each.set_exception(error)

    def _compare_clocks(self, message: dict[str, Any]) -> None:
        """Estimates the offset of the host's clock as NTP does: its time minus the middle of the round trip, of the quickest one.
        The host answers at once, so one timestamp stands for its two."""
        if message.get("sent") is not None:
            now = time.time()
            trip = now - message["sent"]
            if 0 <= trip < self._quickest:
                self._quickest = trip
                self.offset_s = message["wall"] - (message["sent"] + now) / 2

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            text = line.decode("utf-8", "replace").rstrip()
            self._stderr = [*self._stderr, text][-_STDERR_LINES:]
            await self._output(self.machine, "ssh", f"{text}\n")

    def _last_error(self) -> str:
        status = self._process.returncode
        last = next((line for line in reversed(self._stderr) if line.strip()), "")
        ended = "" if status is None else f" with status {status}"
        return f"{ended}: {last.rstrip('.')}" if last else ended

    def _advice(self) -> str:
        if any("No module named" in line and "glt_lightning" in line for line in self._stderr):
            return f" Install glt_lightning for {self.machine.python}, or set python of the host."
        return ""

    async def _or_lost(self, future: asyncio.Future[Any]) -> Any:
        await asyncio.wait([future, self.lost], return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        self.lost.result()
        raise AgentLostError(f"{self.machine.name}: the agent ended.")


def _line(text: str) -> str:
    """Joins a text of a host to one line of bounded length."""
    return " ".join(text.split())[:_LONGEST_REASON].rstrip(".")


def _pieces(source: Path) -> Iterator[tuple[bytes, bool]]:
    """Yields pairs (bytes, whether more follow) of a file; an empty file is one empty piece."""
    with open_regular(source) as file:
        data = file.read(PIECE_BYTES)
        while True:
            following = file.read(PIECE_BYTES)
            yield data, bool(following)
            if not following:
                return
            data = following
