"""The faults: rows of the matrix."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.faults.job import Job
from tests.helpers.family import settle

_BACK_S = 1.0  # until a killed server is started again
_STOP_S, _CUT_S = 5.0, 4.0
_GONE_S = 10.0

# What follows while the ranks go on: the end of a fault, or nothing.
Then = Callable[[], None]


def _nothing() -> None:
    return


def _kill_server(job: Job) -> Then:
    _kill(job)

    def come_back() -> None:
        time.sleep(_BACK_S)
        job.restart_server()

    return come_back


def _kill_server_for_good(job: Job) -> Then:
    if job.servers:
        _kill(job)
        job.away.add(1)
        return _nothing

    def again() -> None:
        """The run starts its server again until that was in vain too often."""
        while any(status is None for status in job.statuses):
            with contextlib.suppress(ValueError, psutil.Error):
                job.server().kill()
            time.sleep(0.1)

    return again


def _kill(job: Job) -> None:
    """A server; its samplers must end with it."""
    server = job.server()
    samplers = server.children()
    server.kill()
    left = settle(lambda: [each for each in job.processes() if each in samplers], _GONE_S)
    assert left == [], f"samplers outlive their server: {left}"


def _stop(victim: Callable[[Job], psutil.Process], for_s: float | None = None) -> Callable[[Job], Then]:
    def harm(job: Job) -> Then:
        process = victim(job)
        process.suspend()

        def go_on() -> None:
            if for_s is not None:
                time.sleep(for_s)
                process.resume()

        return go_on

    return harm


def _cut(for_s: float | None = None) -> Callable[[Job], Then]:
    def harm(job: Job) -> Then:
        job.place.cut()

        def heal() -> None:
            if for_s is not None:
                time.sleep(for_s)
                job.place.heal()

        return heal

    return harm


def _signal(number: signal.Signals, victim: Callable[[Job], psutil.Process]) -> Callable[[Job], Then]:
    def harm(job: Job) -> Then:
        victim(job).send_signal(number)
        return _nothing

    return harm


def _fill_disk(job: Job) -> Then:
    filler = Path(job.work, "disk", "filler")
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as sink:  # until there is no room left
        while True:
            sink.write(bytes(4096))
    return _nothing


FAULTS: dict[str, Callable[[Job], Then]] = {
    "none": lambda _: _nothing,
    "sampler killed": _signal(signal.SIGKILL, Job.sampler),
    "sampler stopped 5 s": _stop(Job.sampler, _STOP_S),
    "sampler stopped": _stop(Job.sampler),
    "server killed": _kill_server,
    "server killed for good": _kill_server_for_good,
    "server stopped 5 s": _stop(Job.server, _STOP_S),
    "server stopped": _stop(Job.server),
    "rank 0 killed": _signal(signal.SIGKILL, lambda job: job.rank(0)),
    "rank 1 killed": _signal(signal.SIGKILL, lambda job: job.rank(1)),
    "rank 1 stopped": _stop(lambda job: job.rank(1)),
    "rank 1 raises": lambda _: _nothing,  # it does so by itself
    "SIGTERM to rank 0": _signal(signal.SIGTERM, lambda job: job.rank(0)),
    "network cut 4 s": _cut(_CUT_S),
    "network cut": _cut(),
    "disk full": _fill_disk,
}

# Ranks that SIGKILL ends: ours, or that of the others, which find them standing still
KILLED = {"rank 0 killed": 0, "rank 1 killed": 1, "rank 1 stopped": 1}
