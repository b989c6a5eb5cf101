"""Runs a launched job: agents, servers, trainers, and the end of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from glt_lightning.base import counted, size
from glt_lightning.launch.files import FileCopy, files_for, files_for_all
from glt_lightning.launch.hosts import Machine
from glt_lightning.launch.messages import MergedLog
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import question_to, security_of, server_process, slots_of, trainer_process
from glt_lightning.launch.remote import Ended, LaunchError, Remote

_HOUR_S = 3600.0  # restarts of servers are counted over this
_LOST, _INTERRUPTED, _TIMED_OUT = 1, 130, 124  # exit statuses; the latter as of `timeout`
_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class JobFailure:
    """The cause of a job's end. text: one sentence.  host, who: the process whose last log lines are shown, if any."""

    status: int
    text: str
    host: str = ""
    who: str = ""


Check = Callable[[Sequence[Remote]], Awaitable[None]]  # raises `LaunchError`


class LaunchedJob:
    """A launched job, with its restarts.

    run: folder of the run, below that of each host.  log: receives all output.
    copies: hosts copy their parts of the partition first.  check: is awaited after the files are copied and before processes
    start.  only_check: end the job after the check.  clock: seconds.
    """

    def __init__(
        self,
        config: LaunchConfig,
        run: str,
        log: MergedLog,
        check: Check,
        *,
        copies: bool = False,
        only_check: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._run, self._log, self._check = config, run, log, check
        self._copies, self._only_check, self._clock = copies, only_check, clock
        self._remotes: list[Remote] = []
        self._first: asyncio.Future[JobFailure | None]
        self._signals = 0
        self._once_healthy: set[str] = set()
        # True once trainers were started: a job that fails before is not restarted, as it would fail again
        self._trained = False

    async def run(self) -> int:
        """Runs the job. Returns its exit status: 0, or that of its first failure."""
        loop, begin, status = asyncio.get_running_loop(), self._clock(), 0
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        try:
            for attempt in range(self._config.restarts.job + 1):
                left = self._config.limits.run_s - (self._clock() - begin)
                failure = await self._attempt(attempt > 0, left)
                if failure is None:
                    return 0
                self._explain(failure)
                status = failure.status
                over = self._signals or not self._trained or failure.status == _TIMED_OUT
                if over or attempt == self._config.restarts.job:
                    break
                self._log.info(f"the job starts again from its last checkpoint ({attempt + 1} of restarts.job)")
            return status
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _interrupt(self, number: int) -> None:
        """Ends the job in order at the first signal, at once at the second."""
        self._signals += 1
        if self._signals == 1:
            name = signal.Signals(number).name
            self._log.info(f"{name}: the job ends; once more ends it at once")
            status = _INTERRUPTED if number == signal.SIGINT else 128 + number
            self._fail(JobFailure(status, f"{name} to the launcher"))
        else:
            for remote in self._remotes:
                remote.kill()

    def _fail(self, failure: JobFailure | None) -> None:
        """Sets the result of the job, unless it has one: the first failure counts. None is success."""
        if not self._first.done():
            self._first.set_result(failure)

    def _explain(self, failure: JobFailure) -> None:
        who = f"{failure.host} rank {failure.who}" if failure.who.isdecimal() else failure.host
        if failure.host:
            for line in self._log.tail(failure.host, failure.who):
                self._log.info(f"{who}: {line}")
        self._log.info(f"error: {failure.text}")

    async def _attempt(self, resume: bool, seconds: float) -> JobFailure | None:
        self._first = asyncio.get_running_loop().create_future()
        self._once_healthy.clear()
        async with self._agents():
            main = asyncio.create_task(self._go(resume))
            watch = asyncio.create_task(self._watch())
            try:
                waited: list[asyncio.Future[Any]] = [self._first, main]
                await asyncio.wait(waited, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
                if main.done() and not self._first.done():
                    main.result()  # raises what is no failure of the job: wrong options, or a defect of ours
                if not self._first.done():
                    self._fail(
                        JobFailure(
                            _TIMED_OUT, f"the job took longer than limits.run_s ({self._config.limits.run_s:g} s)"
                        )
                    )
            finally:
                for task in (main, watch):
                    task.cancel()
                await asyncio.gather(main, watch, return_exceptions=True)
        return self._first.result()

    @contextlib.asynccontextmanager
    async def _agents(self) -> AsyncIterator[None]:
        self._remotes = [Remote(self._config, machine, self._output, self._clock) for machine in here(self._config)]
        try:
            yield
        finally:
            await asyncio.gather(*(remote.close() for remote in self._remotes))

    async def _output(self, machine: Machine, process: str, text: str) -> None:
        """Writes output to the log. In a thread: writing to a stopped terminal waits, and must not delay heartbeats."""
        first = machine.number * self._config.devices
        await asyncio.to_thread(self._log.add, machine.name, process, text, first)

    async def _go(self, resume: bool) -> None:
        """Runs an attempt of the job, from the first connection to the end of the last trainer."""
        try:
            await _all(remote.open() for remote in self._remotes)
            if not resume:
                shared = files_for_all(self._config)
                await _all(self._send(remote, shared) for remote in self._remotes)
                if self._copies:
                    await _all(self._copy(remote) for remote in self._remotes)
                await self._check(self._remotes)
                if self._only_check:
                    self._fail(None)
                    return
            servers = [remote for remote in self._remotes if remote.machine.is_server]
            trainers = [remote for remote in self._remotes if not remote.machine.is_server]
            await _all([*(self._keep(remote) for remote in servers), self._serve_and_train(servers, trainers, resume)])
        except LaunchError as error:
            self._fail(JobFailure(error.status, str(error), error.host, error.who))

    async def _serve_and_train(self, servers: Sequence[Remote], trainers: Sequence[Remote], resume: bool) -> None:
        await _all(self._healthy(remote) for remote in servers)
        if trainers:
            self._log.info(f"{counted(len(trainers), 'host')} to train, {counted(len(servers), 'graph server')}")
            self._trained = True
            await _all(self._train(remote, resume) for remote in trainers)
            self._fail(None)

    async def _send(self, remote: Remote, shared: Sequence[FileCopy]) -> None:
        for each in [*shared, *files_for(self._config, remote.machine)]:
            await remote.write(each.source, each.target, each.mode)

    async def _copy(self, remote: Remote) -> None:
        """Has a host copy the parts that it needs. Raises `LaunchError` if that fails or takes too long."""
        config, machine = self._config, remote.machine
        slots, of = slots_of(config, machine)
        if not slots:
            return
        question = {"source": config.partition.source, "folder": config.partition.dir, "slots": slots, "of": of}
        try:
            async with asyncio.timeout(config.limits.copy_s):
                ended = await remote.run(question_to(machine, "copy"), json.dumps(question))
        except TimeoutError:
            raise LaunchError(
                f"{machine.name}: copying took longer than {config.limits.copy_s:g} s (limits.copy_s)."
            ) from None
        if ended.status != 0:
            raise LaunchError(f"{machine.name}: copying failed.", status=ended.status, host=machine.name, who="copy")

    async def _watch(self) -> None:
        """Ends the job when an agent is lost."""
        done, _ = await asyncio.wait([remote.lost for remote in self._remotes], return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if (error := each.exception()) is not None:
                self._fail(JobFailure(_LOST, str(error)))

    # Servers

    async def _keep(self, remote: Remote) -> None:
        """Runs a graph server, and restarts it when it ends. Raises `LaunchError` if it was never healthy, or ends too often."""
        machine, most = remote.machine, self._config.restarts.servers
        restarts: deque[float] = deque()
        while True:
            ended = await remote.run(server_process(self._config, machine))
            now = self._clock()
            while restarts and now - restarts[0] > _HOUR_S:
                restarts.popleft()
            if machine.name not in self._once_healthy or len(restarts) >= most:
                times = f" after {len(restarts)} restarts in an hour (restarts.servers)" if restarts else ""
                raise LaunchError(
                    f"{machine.name}: the graph server ended{times}: {_how(ended)}.",
                    status=ended.status or _LOST,
                    host=machine.name,
                )
            restarts.append(now)
            self._log.info(f"{machine.name}: the graph server ended ({_how(ended)}) and starts again")

    async def _healthy(self, remote: Remote) -> None:
        machine, seconds = remote.machine, self._config.limits.start_s
        question = {"address": machine.endpoint, "seconds": seconds, "security": security_of(self._config, machine)}
        ended = await remote.run(question_to(machine, "health"), json.dumps(question))
        if ended.status != 0:
            raise LaunchError(
                f"{machine.name}: no healthy graph server at {machine.endpoint} after {seconds:g} s (limits.start_s).",
                host=machine.name,
            )
        self._once_healthy.add(machine.name)

    # Trainers

    async def _train(self, remote: Remote, resume: bool) -> None:
        machine = remote.machine
        ended = await remote.run(trainer_process(self._config, machine, self._run, resume))
        if ended.status == 0:
            return
        failure: Any = ended.failure or {}
        who = "" if failure.get("rank") is None else str(failure["rank"])
        reason = " ".join((failure.get("reason") or "").split()) or _how(ended)
        raise LaunchError(
            f"{machine.name}{f' rank {who}' if who else ''}: {reason}{_memory(remote, ended)}.",
            status=ended.status,
            host=machine.name,
            who=who,
        )


def _memory(remote: Remote, ended: Ended) -> str:
    """A note on free memory for a rank that was killed: the kernel does so when a host runs out of memory."""
    if ended.status != _KILLED or not remote.memory_bytes:
        return ""
    return f" (killed; {size(remote.memory_bytes)} of memory were available at the last heartbeat)"


def _how(ended: Ended) -> str:
    return ended.reason or f"status {ended.status}"


def here(config: LaunchConfig) -> list[Machine]:
    """The machines that this launcher starts processes on: all, or with engine ``here`` those whose address is of this host.
    Raises `LaunchError` if none is."""
    if config.engine == "ssh":
        return list(config.machines)
    found = [machine for machine in config.machines if _is_here(machine.address)]
    if not found:
        names = ", ".join(machine.address for machine in config.machines)
        raise LaunchError(f"engine: here: none of {names} is an address of this host. Check hosts and servers.")
    return found


def _is_here(address: str) -> bool:
    """Tells whether an address belongs to this host: only then can a socket be bound to it."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(where)
                return True
    return False


async def _all(tasks: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Waits for all tasks. The first error cancels the others, and is raised without a group around it."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in tasks:
                group.create_task(each)
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
