"""A job of many hosts, simulated event by event: samplers, links, the sum of gradients for which all ranks wait, slow hosts.

    python -m lightning plan --config run.yaml --hosts 8 --network 10Gbit --json > plan.json
    python benchmarks/simulate.py plan.json [--spread 0.1] [--slow 0.5] [--slow_link 0.5] [--mtbf_h 1000]

Costs of batches, of calls and the layout are those of the plan. The rules of a plan take every batch for a mean one; here batches
differ (--spread, the deviation of a batch's cost as a share of it), one host's cores or network are slower (--slow, --slow_link:
its share of the others' speed), and hosts fail (--mtbf_h: mean hours between failures of one host). Cores and links are shared
evenly by those who use them at a time. A round of calls goes to at most four owners, each of which stands for its share.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from measure import report

from glt_lightning.lightning.planner.rules import BatchCost, Connection, Layout, RemoteCost, expect_epoch, of_trainer

MOST_OWNERS = 4
Process = Generator[Any, None, None]  # yields what it waits for: a function that is called with what wakes it


class Clock:
    """The events to come, in the order of their times."""

    def __init__(self) -> None:
        self.now, self._events, self._number = 0.0, [], count()  # type: ignore[var-annotated]

    def at(self, seconds: float, wake: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), wake))

    def start(self, process: Process, done: Callable[[], None] = lambda: None) -> None:
        """Runs a process until it ends, and then calls ``done``."""

        def go_on() -> None:
            wait = next(process, None)
            if wait is None:
                done()
            else:
                wait(go_on)

        self.at(0.0, go_on)

    def run(self) -> float:
        """Runs until nothing is left to happen; returns the time."""
        while self._events:
            self.now, _, wake = heapq.heappop(self._events)
            wake()
        return self.now

    def sleep(self, seconds: float) -> Callable[[Callable[[], None]], None]:
        return lambda wake: self.at(seconds, wake)

    def all_of(self, processes: list[Process]) -> Callable[[Callable[[], None]], None]:
        """Waits until all of some processes have ended."""

        def wait(wake: Callable[[], None]) -> None:
            left = [len(processes)]

            def done() -> None:
                left[0] -= 1
                if not left[0]:
                    wake()

            for process in processes:
                self.start(process, done)
            if not processes:
                self.at(0.0, wake)

        return wait


@dataclass
class Task:
    left: float
    limit: float
    wake: Callable[[], None]
    rate: float = 0.0


class Shared:
    """Cores, or a link: those who use it get even shares, at most their limit. capacity: cores, or bytes per second."""

    def __init__(self, clock: Clock, capacity: float) -> None:
        self._clock, self._capacity = clock, capacity
        self._tasks: list[Task] = []
        self._since, self._version = 0.0, 0
        self.used = 0.0  # capacity times seconds

    def use(self, amount: float, limit: float = math.inf) -> Callable[[Callable[[], None]], None]:
        """Waits until ``amount`` is done, at a rate of at most ``limit``."""

        def wait(wake: Callable[[], None]) -> None:
            if amount <= 0:
                self._clock.at(0.0, wake)
                return
            self._advance()
            self._tasks.append(Task(amount, limit, wake))
            self._plan()

        return wait

    def _advance(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        for task in self._tasks:
            task.left -= task.rate * passed
            self.used += task.rate * passed

    def _plan(self) -> None:
        left, self._version = self._capacity, self._version + 1
        for number, task in enumerate(sorted(self._tasks, key=lambda each: each.limit)):
            task.rate = min(task.limit, left / (len(self._tasks) - number))
            left -= task.rate
        if self._tasks:
            version = self._version
            self._clock.at(max(0.0, min(t.left / t.rate for t in self._tasks)), lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        least = min(task.left for task in self._tasks)
        ended = [task for task in self._tasks if task.left <= least + 1e-12]
        self._tasks = [task for task in self._tasks if task.left > least + 1e-12]
        for task in ended:
            task.wake()
        self._plan()


class Places:
    """A number of places, such as sampler processes of a rank: who finds none waits for his turn."""

    def __init__(self, clock: Clock, free: int) -> None:
        self._clock, self._free = clock, free
        self._waiting: list[Callable[[], None]] = []

    def take(self, wake: Callable[[], None]) -> None:
        if self._free:
            self._free -= 1
            self._clock.at(0.0, wake)
        else:
            self._waiting.append(wake)

    def give(self) -> None:
        if self._waiting:
            self._clock.at(0.0, self._waiting.pop(0))
        else:
            self._free += 1


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What a plan does not know. spread: deviation of a batch's cost, as a share.  slow, slow_link: speed of the first host's
    cores and network, as shares of those of the others."""

    spread: float = 0.0
    slow: float = 1.0
    slow_link: float = 1.0
    seed: int = 0


@dataclass
class Host:
    cores: Shared
    inward: Shared
    outward: Shared


@dataclass
class Rank:
    host: int
    samplers: Places
    ahead: Places
    ready: set[int] = field(default_factory=set)
    waits_for: tuple[int, Callable[[], None]] | None = None


class Job:
    """One epoch of a job."""

    def __init__(
        self, cost: BatchCost, steps: int, layout: Layout, remote: RemoteCost, link: Connection, scenario: Scenario
    ) -> None:
        self.clock, self._random = Clock(), np.random.default_rng(scenario.seed)
        self._cost, self._steps, self._layout = cost, steps, layout
        self._remote, self._link, self._scenario = remote, link, scenario
        self._hosts = [self._make_host(number) for number in range(layout.hosts)]
        self._at_barrier: list[Callable[[], None]] = []
        self._ranks = [self._make_rank(number) for number in range(layout.world_size)]

    def _make_host(self, number: int) -> Host:
        first = number == 0
        cores = self._layout.cores * (self._scenario.slow if first else 1.0)
        speed = self._layout.bytes_per_s * (self._scenario.slow_link if first else 1.0)
        return Host(*(Shared(self.clock, capacity) for capacity in (cores, speed, speed)))

    def _make_rank(self, number: int) -> Rank:
        workers = self._layout.workers
        host = number // self._layout.ranks
        return Rank(
            host, Places(self.clock, max(1, workers)), Places(self.clock, max(1, workers * self._layout.concurrency))
        )

    def run(self) -> float:
        """Seconds of the epoch."""
        for rank in self._ranks:
            self.clock.start(self._train(rank))
            if self._layout.workers:
                self.clock.start(self._make_ahead(rank))
        return self.clock.run()

    def _factor(self) -> float:
        spread = self._scenario.spread
        return float(self._random.lognormal(-(spread**2) / 2, spread)) if spread else 1.0

    def _speed(self, rank: Rank) -> float:
        """A core of the host, as a share of a core of the others: one thread is slower there, too."""
        return self._scenario.slow if rank.host == 0 else 1.0

    def _compute(self, rank: Rank, seconds: float, limit: float = 1.0) -> Callable[[Callable[[], None]], None]:
        return self._hosts[rank.host].cores.use(seconds, limit * self._speed(rank))

    def _make_ahead(self, rank: Rank) -> Process:
        for number in range(self._steps):
            yield rank.ahead.take
            self.clock.start(self._make(rank), lambda number=number: self._deliver(rank, number))  # type: ignore[misc]

    def _deliver(self, rank: Rank, number: int) -> None:
        rank.ready.add(number)
        if rank.waits_for is not None and rank.waits_for[0] == number:
            wake, rank.waits_for = rank.waits_for[1], None
            wake()

    def _make(self, rank: Rank) -> Process:
        """Makes one batch: rounds of draws and calls, then the copy of rows."""
        cost, factor = self._cost, self._factor()
        rounds = max(1, round(self._remote.rounds))
        for _ in range(rounds):
            yield rank.samplers.take
            yield self._compute(rank, factor * cost.sample_s / rounds)
            rank.samplers.give()
            if self._remote.nbytes:
                yield self.clock.all_of(list(self._calls(rank, factor / rounds)))
        yield rank.samplers.take
        yield self._compute(rank, factor * cost.gather_s)
        rank.samplers.give()

    def _calls(self, rank: Rank, share: float) -> Iterator[Process]:
        others = [number for number in range(self._layout.hosts) if number != rank.host]
        asked = self._random.permutation(others)[:MOST_OWNERS] if len(others) > MOST_OWNERS else np.array(others)
        for owner in asked.tolist():
            yield self._call(rank, owner, share / len(asked))

    def _call(self, rank: Rank, owner: int, share: float) -> Process:
        """A call and its answer. Half of its CPU time is the owner's."""
        calls, nbytes = share * self._remote.requests, share * self._remote.nbytes
        served_s = self._link.cpu_s(calls, nbytes, self._layout.bytes_per_s if self._layout.hosts > 1 else None)
        trip_s = self._link.round_trip_s + self._layout.latency_s
        yield self.clock.sleep(trip_s)
        yield self._hosts[owner].cores.use(served_s / 2, 1.0)
        here, there = self._hosts[rank.host].inward, self._hosts[owner].outward
        yield self.clock.all_of([_alone(here.use(nbytes)), _alone(there.use(nbytes))])
        yield rank.samplers.take
        yield self._compute(rank, served_s / 2)
        rank.samplers.give()

    def _train(self, rank: Rank) -> Process:
        cost, layout = self._cost, self._layout
        taken_s, added_s = of_trainer(cost, layout)
        threads = max(1.0, cost.step_cpu_s / cost.step_s) if cost.step_s else 1.0
        for number in range(self._steps):
            if layout.workers == 0:
                yield self.clock.all_of([self._make(rank)])
            elif number not in rank.ready:
                yield lambda wake, number=number: self._await(rank, number, wake)  # type: ignore[misc]
            if layout.workers:
                rank.ahead.give()
            yield self._compute(rank, taken_s)
            yield self._compute(rank, self._factor() * cost.step_cpu_s, threads)
            yield self._compute(rank, added_s + (cost.summed_cpu_s if layout.world_size > 1 else 0.0))
            yield self._barrier
            yield self.clock.sleep(layout.gradients_s)

    def _await(self, rank: Rank, number: int, wake: Callable[[], None]) -> None:
        rank.waits_for = number, wake

    def _barrier(self, wake: Callable[[], None]) -> None:
        self._at_barrier.append(wake)
        if len(self._at_barrier) == len(self._ranks):
            arrived, self._at_barrier = self._at_barrier, []
            for each in arrived:
                self.clock.at(0.0, each)


def _alone(wait: Callable[[Callable[[], None]], None]) -> Process:
    yield wait


def simulate(
    cost: BatchCost,
    steps: int,
    layout: Layout,
    remote: RemoteCost | None = None,
    link: Connection | None = None,
    scenario: Scenario | None = None,
) -> float:
    """Seconds of an epoch of ``steps`` batches of each rank."""
    return Job(cost, steps, layout, remote or RemoteCost(), link or Connection(), scenario or Scenario()).run()


def with_failures(
    seconds: float, hosts: int, mtbf_h: float, checkpoint_s: float, restart_s: float, seed: int = 0, times: int = 200
) -> float:
    """Mean seconds of work of ``seconds`` if any of ``hosts`` fails every ``mtbf_h`` hours: each failure loses what came after
    the last checkpoint, and takes ``restart_s``. checkpoint_s: seconds of work between two checkpoints."""
    random, spent = np.random.default_rng(seed), 0.0
    for _ in range(times):
        done = 0.0
        while done < seconds:
            fails = random.exponential(mtbf_h * 3600 / hosts)
            if done + fails >= seconds:
                spent += seconds - done
                break
            spent += fails + restart_s
            done = math.floor((done + fails) / checkpoint_s) * checkpoint_s
    return spent / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--steps", type=int, default=50, help="of the epoch; the rest is taken to be alike")
    parser.add_argument("--spread", type=float, default=0.1)
    parser.add_argument("--slow", type=float, default=0.5)
    parser.add_argument("--slow_link", type=float, default=0.5)
    parser.add_argument("--mtbf_h", type=float, default=1000.0)
    parser.add_argument("--checkpoint_s", type=float, default=600.0)
    parser.add_argument("--restart_s", type=float, default=60.0)
    args = parser.parse_args()
    plan = json.loads(args.plan.read_text())
    if plan.get("gpu"):
        parser.error("a plan on GPUs, whose steps are not simulated; leave out --gpus")
    cost, layout = BatchCost(**plan["probe"]["train"]["mid"]), Layout(**plan["layout"])
    remote = RemoteCost(**(plan["counted"] or {"remote": {}})["remote"])
    link = Connection(**plan["probe"]["hosts_link" if layout.hosts > 1 else "link"])
    rules = expect_epoch(cost, args.steps, layout, remote=remote, link=link)
    scenarios = {
        "as the rules": Scenario(),
        "batches differ": Scenario(spread=args.spread),
        "one host is slow": Scenario(spread=args.spread, slow=args.slow),
        "one link is slow": Scenario(spread=args.spread, slow_link=args.slow_link),
    }
    by_rules = rules.elapsed_s / rules.ranks
    for name, scenario in scenarios.items():
        seconds = simulate(cost, args.steps, layout, remote, link, scenario)
        report(bench="simulate", scenario=name, seconds=seconds, to_rules=seconds / by_rules, **_of(layout))
    day_s = 86400.0
    spent = with_failures(day_s, layout.hosts, args.mtbf_h, args.checkpoint_s, args.restart_s)
    report(bench="simulate", scenario="a day with failures", seconds=spent, to_rules=spent / day_s, **_of(layout))


def _of(layout: Layout) -> dict[str, int]:
    return {name: getattr(layout, name) for name in ("hosts", "ranks", "workers", "cores")}


if __name__ == "__main__":
    main()
