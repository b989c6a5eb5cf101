"""The arithmetic of a plan: by hand, and against what a run counts."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from glt_lightning import SamplingOptions
from glt_lightning.base import ClusterOptions, OptionError, parse_rate
from glt_lightning.lightning.callbacks.monitor import EpochTotals
from glt_lightning.lightning.planner import probe as probing, record_path
from glt_lightning.lightning.planner.deadline import Deadline, Late
from glt_lightning.lightning.planner.expected import comparison, expect, misses, owners_of, samplers_of
from glt_lightning.lightning.planner.memory import ProcessMemory, host_memory, require_memory_of
from glt_lightning.lightning.planner.probe import Probe, Spread, _cost, _handed, _Parts, measure
from glt_lightning.lightning.planner.record import find_probe, keep_probe
from glt_lightning.lightning.planner.rules import (
    BatchCost,
    Connection,
    Counted,
    Dealing,
    Layout,
    Passes,
    RemoteCost,
    epoch_steps,
    expect_epoch,
    phase,
)
from glt_lightning.lightning.strategies.server_client import GLTServerClientStrategy
from glt_lightning.lightning.strategies.worker import GLTWorkerStrategy
from glt_lightning.sampling import EpochPlan

COST = BatchCost(
    seeds=10,
    nodes=100,
    edges=200,
    rows=100,
    row_bytes=400,
    nbytes=1000,
    sample_s=1,
    gather_s=2,
    collate_s=1,
    step_s=4,
    step_cpu_s=4,
)

DEALING = Dealing(batch_size=10, validation_batch_size=10)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("owned", [False, True])
def test_steps_are_those_of_the_epoch_plan(exact: bool, owned: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        world, batch = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        seeds = int(rng.integers(world, 70))
        owner = rng.integers(0, world, seeds) if owned else None
        plan = EpochPlan(
            seeds=np.arange(seeds), batch_size=batch, seed=0, loader="x", world_size=world, exact=exact, owner=owner
        )
        assert epoch_steps(seeds, batch, world, exact=exact, owned=owned) == len(plan)


def test_one_process_does_one_after_the_other() -> None:
    found = expect_epoch(COST, 5, Layout(), validation=replace(COST, step_s=1, step_cpu_s=1), validation_steps=2)
    assert (found.elapsed_s, found.wait_s, found.validation_s) == (5 * 8, 5 * 4, 2 * 5)
    assert (found.core_s, found.core_wait_s) == (5 * 8 + 2 * 5, 0)
    assert (found.counters.sample_s, found.counters.gather_s, found.counters.local_bytes) == (5, 10, 2000)
    assert found.verdict == "copy"  # half of the time goes into batches, and more of it into rows than into draws


@pytest.mark.parametrize(
    ("layout", "period_s", "stretch", "bound"),
    [
        (Layout(workers=1, cores=8), 5, 1, "compute"),  # the trainer decides: 1 + 4
        (Layout(workers=1, cores=1), 8, 8 / 5, "cores"),  # 3 + 1 + 4 CPU seconds for one core
        (Layout(ranks=2, workers=1, cores=2), 8, 8 / 5, "cores"),
        (Layout(ranks=2, workers=1, cores=4), 5, 1, "compute"),
    ],
)
def test_samplers_work_at_the_same_time(layout: Layout, period_s: float, stretch: float, bound: str) -> None:
    cost = replace(COST, collate_s=0, step_s=5, step_cpu_s=5)
    found = phase(cost, 7, layout)
    assert (found.period_s, found.stretch) == (pytest.approx(period_s), pytest.approx(stretch))
    assert found.seconds == pytest.approx(7 * period_s + 3)  # the first batch has to be there
    assert expect_epoch(cost, 700, layout).verdict == bound


def test_slow_samplers_are_waited_for() -> None:
    slow = replace(COST, sample_s=30)
    found = expect_epoch(slow, 100, Layout(workers=2, cores=8))
    assert found.elapsed_s == pytest.approx(100 * 16 + 32)
    assert found.verdict == "sampling"
    assert expect_epoch(slow, 100, Layout(workers=4, cores=8)).elapsed_s == pytest.approx(100 * 8 + 32)


def test_the_network_is_waited_for() -> None:
    remote = RemoteCost(rows=50, row_bytes=200, requests=6, nbytes=1000, rounds=3)
    link = Connection(round_trip_s=0.1, call_cpu_s=0.01, byte_cpu_s=0.001)
    layout = Layout(hosts=2, owners=2, cores=99, bytes_per_s=100, latency_s=0.2)
    alone = phase(COST, 1, layout, remote, link)
    served_s, latency_s = 6 * 0.01 + 1000 * 0.001, 3 * (0.1 + 0.2) + 1000 / 100
    assert alone.latency_s == pytest.approx(latency_s)
    assert alone.period_s - alone.trainer_s == pytest.approx(1 + 2 + 1 + served_s + latency_s)
    ahead = phase(COST, 1, replace(layout, workers=1, concurrency=4), remote, link)
    assert ahead.period_s == pytest.approx(10)  # the link, whatever is in flight
    totals = expect_epoch(COST, 10, layout, remote=remote, link=link)
    assert totals.verdict == "network"
    assert (totals.counters.remote_rows, totals.counters.remote_bytes, totals.counters.local_bytes) == (
        1000,
        4000,
        4000,
    )


def test_bytes_of_a_slow_network_arrive_a_few_at_a_time() -> None:
    link = Connection(call_cpu_s=10, byte_cpu_s=2, arrival_cpu_s=1000)
    assert link.cpu_s(3, 1e6) == 30 + 2e6  # within a host
    assert link.cpu_s(3, 1e6, 12.5e6) == 30 + 2e6 + 1000 * 1e6 / 12.5e3
    assert link.cpu_s(3, 1e6, 1e12) == pytest.approx(30 + 2e6 + 1000 * 1e6 / 65536)
    assert link.cpu_s(3, 1e6, 1) == pytest.approx(30 + 2e6 + 1000 * 1e6 / 1448)


def test_batches_of_other_processes_take_the_trainer() -> None:
    cost = replace(COST, handed_s=0.25, ranked_s=0.5, ranked_cpu_s=0.75)
    layout = Layout(workers=1, cores=8)
    sampled, served = (phase(cost, 1, replace(layout, served=each)) for each in (False, True))
    assert (sampled.period_s, sampled.trainer_s) == (1 + 0.25 + 4 + 0.5, 4 + 0.5)
    assert (sampled.trainer_cpu_s, sampled.cpu_s) == (1 + 0.25 + 4 + 0.75, 1 + 0.25 + 4 + 0.75 + 3)
    assert (served.period_s, served.trainer_s) == (1 + 0.5 + 4, 4)
    assert (served.trainer_cpu_s, served.cpu_s) == (1 + 4 + 0.75, 1 + 4 + 0.75 + 3 + 0.75)  # and at the server
    alone = phase(cost, 1, Layout(cores=2))
    assert (alone.period_s, alone.trainer_s) == (3 + 1 + 4 + 0.5, 4 + 0.5)
    small = cost.of_seeds(1)
    assert (small.handed_s, small.ranked_s, small.step_s) == (0.25, 0.5, 0.4)


def test_servers_of_other_hosts_send_bytes() -> None:
    link, layout = Connection(byte_cpu_s=0.001), Layout(workers=1, cores=8, served=True)
    here, afar = (phase(COST, 1, replace(layout, hosts=n, bytes_per_s=100), link=link) for n in (1, 2))
    assert afar.cpu_s == pytest.approx(here.cpu_s + 1000 * 0.001)
    assert afar.trainer_cpu_s == pytest.approx(here.trainer_cpu_s + 1000 * 0.001 / 2)
    assert (here.period_s, afar.period_s) == (5, pytest.approx(1000 / 100))


def test_all_processes_of_all_passes_are_counted() -> None:
    layout = Layout(ranks=2, workers=1, cores=8)
    for each in (layout, replace(layout, workers=0)):
        totals = expect_epoch(COST, 5, each, validation=COST, validation_steps=2)
        assert totals.cpu_s == pytest.approx(2 * 7 * 8)


def test_validation_asks_other_hosts_for_the_same_share_of_its_nodes() -> None:
    layout = Layout(hosts=2, owners=2, cores=99, bytes_per_s=100)
    remote, link = RemoteCost(nbytes=1000, requests=6, rounds=3), Connection(call_cpu_s=0.01, byte_cpu_s=0.001)
    wide = replace(COST, nodes=3 * COST.nodes)
    totals = expect_epoch(COST, 1, layout, remote=remote, link=link, validation=wide, validation_steps=1)
    made_s = 1 + 2 + 1 + 6 * 0.01 + 3 * 1000 * 0.001 + 3 * 1000 / 100
    assert totals.validation_s == pytest.approx(2 * (made_s + COST.step_s))


def test_gradients_go_over_the_network_of_hosts() -> None:
    layout = Layout(hosts=2, ranks=2, bytes_per_s=100, parameter_bytes=1000)
    assert layout.gradients_s == pytest.approx(2 * 3 / 4 * 1000 / 100)
    assert Layout(parameter_bytes=1000).gradients_s == 0
    assert phase(COST, 1, replace(layout, cores=99), trains=False).trainer_s == COST.step_s


def test_places_and_samplers_by_strategy() -> None:
    by_rank, sampling = ClusterOptions(placement="rank"), SamplingOptions(num_workers=6)
    assert [owners_of(2, 3, kind, None) for kind in (object, GLTWorkerStrategy, GLTServerClientStrategy)] == [1, 2, 1]
    assert owners_of(2, 3, GLTWorkerStrategy, by_rank) == 6
    assert [samplers_of(3, kind, sampling) for kind in (GLTWorkerStrategy, GLTServerClientStrategy)] == [6, 2]
    assert samplers_of(1, GLTServerClientStrategy, SamplingOptions()) == 2  # what a server has by itself
    assert Layout(hosts=2, ranks=3, owners=6).name == "6x1"
    assert Layout(hosts=2, ranks=3, owners=2).name == "2x3"
    assert Layout(hosts=2, ranks=3).name == "1x6"


def test_a_batch_on_a_busy_machine_costs_what_it_computed() -> None:
    spent = {"time_s": 30.0, "wait_s": 10.0, "sample_s": 2.0, "gather_s": 6.0, "cpu_s": 9.0}
    spent |= dict.fromkeys(("seeds", "named_nodes", "nodes", "edges", "rows", "row_bytes"), 1.0)
    busy = _cost(spent, 4.0, 7)
    assert (busy.sample_s, busy.gather_s, busy.collate_s) == (1, 3, 1)  # half of the wait was another program's
    assert (busy.step_s, busy.step_cpu_s, busy.nbytes) == (4, 4, 7)
    quiet = _cost(spent | {"cpu_s": 45.0}, 34.0, 7)  # two threads in 20 seconds, and Lightning's second around them
    assert (quiet.sample_s, quiet.gather_s, quiet.step_s, quiet.step_cpu_s) == (2, 6, 20, 35)


def test_what_samplers_and_strategies_add_to_a_step_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By medians of the batches after the first ones, of a step that does nothing."""
    seen: list[tuple[int, str | None]] = []
    data = SimpleNamespace(sampling=SamplingOptions(topology="device"))

    def make_trainer(**options: Any) -> Any:
        (watch,), strategy = options["callbacks"], options.get("strategy")

        def fit(module: Any, datamodule: Any) -> None:
            workers = datamodule.sampling.num_workers
            seen.append((workers, strategy))
            assert watch.inline == (workers == 0)
            thread_s = {(0, None): 5.0, (1, None): 6.0, (0, "glt_worker"): 7.0, (1, "glt_server_client"): 8.0}
            step_s = thread_s[workers, strategy]
            steps = [0, 50, 50, *([step_s] * 5), 70]
            watch.marks = [(at, 1.5 * at) for at in np.cumsum(steps).tolist()]
            watch.sampler_bytes, watch.own_bytes = 30, 8 if strategy == "glt_server_client" else 3

        return SimpleNamespace(fit=fit)

    monkeypatch.setattr(probing, "_summed_cpu_s", lambda nbytes, step_s, deadline: nbytes)
    parts = _Parts(Deadline(60))
    assert _handed(make_trainer, data, COST, None, 40, parts) == ({"handed_s": 6 - 5}, {"sampler": 30})
    worker, _ = _handed(make_trainer, data, COST, "glt_worker", 40, parts)
    assert worker == {"handed_s": 6 - 5, "ranked_s": 7 - 5, "ranked_cpu_s": 10.5 - 5, "summed_cpu_s": 40}
    served, memory = _handed(make_trainer, data, COST, "glt_server_client", 40, parts)
    assert served == {"handed_s": 6 - 5, "ranked_s": 8 - 5, "ranked_cpu_s": 12 - 5, "summed_cpu_s": 40}
    assert memory == {"sampler": 30, "client": 8 - 3}
    assert seen[-3:] == [(0, None), (1, None), (1, "glt_server_client")]
    assert parts.missed == []


def test_calls_are_those_of_batches_that_ask_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except of graph servers, which have all parts."""
    monkeypatch.setattr(probing, "time_calls", lambda encrypted: {"byte_cpu_s": 1.0 + encrypted})
    asking: Any = SimpleNamespace(why_not=None, time_calls=lambda encrypted: {"byte_cpu_s": 3.0 + encrypted})
    own: Any = SimpleNamespace(why_not="they are the user's")
    for batches, strategy, byte_cpu_s in (
        (asking, None, 3),
        (asking, probing.RANKS, 3),
        (asking, probing.SERVED, 1),
        (own, None, 1),
    ):
        for encrypted in (False, True):
            found = probing._timed_calls(batches, strategy, encrypted=encrypted)
            assert found == {"byte_cpu_s": byte_cpu_s + encrypted}


def test_what_a_probe_does_not_reach_in_time_is_said() -> None:
    """A sampler that never starts is given up at the deadline; what comes after it is not begun."""
    clock = [0.0]
    parts, data = _Parts(Deadline(10, lambda: clock[0])), SimpleNamespace(sampling=SamplingOptions())

    def make_trainer(**options: Any) -> Any:
        def fit(module: Any, datamodule: Any) -> None:
            if datamodule.sampling.num_workers:
                clock[0] = 11.0
                signal.setitimer(signal.ITIMER_REAL, 0.01)  # the deadline's
                threading.Event().wait()
            options["callbacks"][0].marks = [(float(at), float(at)) for at in range(8)]

        return SimpleNamespace(fit=fit)

    assert _handed(make_trainer, data, COST, "glt_worker", 40, parts) == ({"handed_s": 0.0}, {})
    over = "the 10 s of the probe were over"
    assert parts.missed == [
        f"what a sampler adds to a batch: {over}",
        f"what glt_worker adds to a batch: {over}",
        f"CPU time of sums of gradients: {over}",
    ]


def test_a_probe_without_a_batch_says_so() -> None:
    options = SamplingOptions()
    data: Any = SimpleNamespace(sampling=options, evaluation=SimpleNamespace(mode="sampled"), batch_size=8)
    stuck: Any = SimpleNamespace(fit=lambda *_, **__: threading.Event().wait())
    with pytest.raises(OptionError, match=r"no batch was made and trained in 0.2 s. .*data.batch_size than 8"):
        measure(lambda **_: stuck, torch.nn.Linear(1, 1), data, None, Deadline(0.2))  # type: ignore[arg-type]


def test_a_deadline_waits_for_enough_and_leaves_the_timers_of_others() -> None:
    rung, made = [], list[int]()
    handler = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    others = signal.setitimer(signal.ITIMER_REAL, 100, 0)
    try:
        with pytest.raises(Late), Deadline(0.4).cut(0.1, lambda: made):
            while True:
                time.sleep(0.01)
        with pytest.raises(Late), Deadline(60).cut(0.0005, lambda: True):
            threading.Event().wait()
        assert 90 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
        assert rung == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, handler)


def test_the_error_of_a_rank_is_shown_not_that_the_other_one_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    def group(store: Any, number: int, *_: Any) -> Any:
        if number == 1:
            raise RuntimeError("no device\nat 7")
        return SimpleNamespace(allreduce=lambda tensors: SimpleNamespace(wait=lambda: None))

    monkeypatch.setattr(probing, "ProcessGroupGloo", group)
    parts = _Parts(Deadline(60))
    assert parts.of("sums", lambda: probing._summed_cpu_s(40, 0.0, parts.deadline)) is None
    assert parts.missed == ["sums: no device"]


def test_sums_of_gradients_take_cpu_time_of_several_ranks_in_training() -> None:
    assert 0 < probing._summed_cpu_s(1000, 0.0, Deadline(60)) < 10
    cost = replace(COST, summed_cpu_s=3.0)
    for ranks, trains, more in ((1, True, 0.0), (2, False, 0.0), (2, True, 3.0)):
        layout = Layout(ranks=ranks, cores=4)
        found, without = (phase(each, 1, layout, trains=trains) for each in (cost, COST))
        assert found.cpu_s - without.cpu_s == pytest.approx(more)
        assert found.period_s - without.period_s == pytest.approx(more)


def test_batches_that_a_thread_makes_itself_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their CPU seconds: another program had the core for half of the second wait."""
    monkeypatch.setattr(probing, "_loader", lambda _: None)
    monkeypatch.setattr(probing.time, "process_time", lambda: 7.0)
    for inline, left in ((True, 6), (False, 10)):
        clock, now = iter([0.0, 4.0, 10.0, 14.0, 20.0, 20.0]), iter([1.0, 2.0, 2.5, 4.5])
        waited, made = iter([0.0, 6.0, 18.0, 18.0]), iter([0.0, 4.0, 12.0, 12.0])
        marks = (
            {"wait_s": w, "sample_s": m, "gather_s": 1.0, "time_s": t}
            for w, m, t in zip(waited, made, now, strict=True)
        )
        monkeypatch.setattr(probing.time, "thread_time", lambda clock=clock: next(clock))
        monkeypatch.setattr(probing, "_mark", lambda _, marks=marks: next(marks))
        watch = probing._Taken(inline)
        trainer: Any = SimpleNamespace(train_dataloader=None, should_stop=False)
        watch.on_train_batch_start(trainer)
        for _ in range(2):
            watch.on_train_batch_end()
            watch.on_train_batch_start(trainer)
        assert watch.each[0] == left
        assert not trainer.should_stop
        watch.on_train_batch_start(trainer)
        assert trainer.should_stop  # on a busy machine


def test_memory_is_refused_with_what_would_fit() -> None:
    process = ProcessMemory(base=100, model=20, work=20, client=10, batches=15, sampler=30_000_000)
    options = SamplingOptions(num_workers=2, concurrency=3, channel_size="50MB")
    found = host_memory(process, options, Layout(ranks=2, workers=2), [9_000_000], [50], 10**9, cache=7, pages=5)
    assert (found.trainers, found.batches, found.cache) == (300, 2 * (5 + 1) * 9_000_000, 7)
    assert found.samplers == 2 * 2 * 30_000_000
    assert found.needed == found.trainers + found.samplers + found.batches + found.cache
    served = host_memory(process, options, Layout(ranks=2, workers=2, served=True), [9_000_000], [50], 10**9)
    assert served.samplers > found.samplers  # the graph server, too
    afar = host_memory(
        process, options, Layout(ranks=2, workers=2, concurrency=3), [9_000_000], [50], 10**9, remote=0.5
    )
    assert afar.answers == 2 * 2 * 3 * 4 * 4_500_000  # of the batches that samplers make at a time
    require_memory_of(found, 1.06 * found.needed, options, 16)
    with pytest.raises(
        OptionError, match=r"memory: a host .* What would fit: a smaller data.sampling.num_workers than 2"
    ):
        require_memory_of(found, 1.04 * found.needed, options, 16)
    waiting = host_memory(process, replace(options, channel_size=None), Layout(workers=2), [10**9], [50], 10**9)
    with pytest.raises(OptionError, match=r"a smaller data.sampling.channel_size than 50MB"):
        require_memory_of(waiting, 10**9, options, 16)
    shared = host_memory(
        process, replace(options, channel_size="auto"), Layout(workers=2), [9_000_000], [50], 8 * 4 * 9_000_000
    )
    assert shared.batches == 5 * 9_000_000  # an eighth of the memory, and the batch in training
    wide = replace(options, channel_size=None)
    sizes = ([9_000_000], [30_000_000], [9_000_000, 30_000_000])  # of training, and of validation
    train, later, both = (
        host_memory(process, wide, Layout(workers=2), each, [50] * len(each), 10**12).batches for each in sizes
    )
    assert both == train + later  # whose loaders are open at a time
    few = host_memory(process, wide, Layout(workers=2), sizes[2], [2, 50], 10**12)
    assert few.batches == 2 * 9_000_000 + later  # no more than there are
    own = host_memory(process, replace(wide, num_workers=0), Layout(ranks=2), sizes[2], [50, 50], 10**12)
    assert (own.batches, own.samplers, own.answers) == (2 * 15, 0, 0)  # as measured
    asking = host_memory(process, replace(wide, num_workers=0), Layout(), sizes[2], [50, 50], 10**12, remote=0.5)
    assert asking.answers == (4 * 0.5 + 1) * 30_000_000 + 16_000_000


def test_batches_of_an_epoch_are_limited_as_the_trainer_does() -> None:
    assert DEALING.passes(52, 20, 1) == Passes(steps=6, seeds=52 / 6, validation_steps=2, validation_seeds=10)
    assert DEALING.passes(52, 20, 2) == Passes(steps=3, seeds=52 / 6, validation_steps=1, validation_seeds=10)
    few = replace(DEALING, limit=4, validation_limit=0.5, every=10)
    assert few.passes(52, 20, 1) == Passes(steps=4, seeds=10, validation_steps=0.1, validation_seeds=10)
    assert replace(few, limit=100).passes(52, 0, 1) == Passes(steps=6, seeds=52 / 6)


def probe() -> Probe:
    costs = [replace(COST, step_s=s, step_cpu_s=s) for s in (100, 100, 3, 4, 4, 4, 5)]
    return Probe(
        train=Spread.of(costs),
        seeds=52,
        memory=ProcessMemory(base=1, model=2, work=3),
        parameter_bytes=100,
        link=Connection(round_trip_s=1),
        hosts_link=Connection(round_trip_s=2),
        cores=2,
        load=0.5,
        machine="a machine",
        made="2026-01-01T00:00:00+00:00",
        validation=Spread.of([COST]),
        validation_seeds=20,
        counted={"1x1": Counted(seeds=10, nodes=1, edges=2, rows=3, row_bytes=4)},
    )


def test_the_first_batches_are_left_out_and_the_last_is_smaller() -> None:
    found = probe()
    assert (found.train.low.step_s, found.train.mid.step_s, found.train.high.step_s) == (3.4, 4, 4.6)
    expected = expect(found, Layout(), DEALING, found.counted["1x1"])
    assert (expected.mid.seeds, expected.mid.elapsed_s) == (52, pytest.approx(6 * 8 * 52 / 60))
    assert expected.mid.counters.local_bytes == round(4 * 5.2)
    assert expected.low.elapsed_s < expected.mid.elapsed_s < expected.high.elapsed_s


def test_calls_between_hosts_are_encrypted() -> None:
    """A round takes the two seconds of `Probe.hosts_link` between hosts, and one between ranks of a host."""
    remote = RemoteCost(rows=1, row_bytes=1, requests=1, nbytes=1, rounds=1)
    counted = replace(probe().counted["1x1"], remote=remote)
    waits = [expect(probe(), layout, DEALING, counted).mid for layout in (Layout(ranks=2), Layout(hosts=2))]
    assert [round(each.counters.remote_s / each.batches, 3) for each in waits] == [1, 2]


def test_planned_beside_measured() -> None:
    expected = expect(probe(), Layout(), DEALING)
    twice = EpochTotals.from_list([2 * n for n in expected.mid.to_list()])
    twice.ranks = 1
    assert misses(expected, twice, 2) == []
    rows = {row[0]: row[1:] for row in comparison(expected, twice, 2).rows}
    assert rows["batches"] == ("6", "6", "+0%")
    assert rows["epoch, without validation"][2] == "+0%"
    twice.core_s *= 2
    twice.elapsed_s *= 3
    wrong = misses(expected, twice, 2)
    for name, line in zip(("epoch, without", "steps: model", "CPU time of the processes"), wrong, strict=True):
        assert line.startswith(name)
    twice.core_wait_s = twice.core_s
    busy = misses(expected, twice, 2)
    assert len(busy) == 2
    assert busy[1] == "other work took 50% of the threads' time, so that seconds are not compared"


def test_probes_are_kept_beside_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = tmp_path / "parts", probe()
    old, new = here, replace(here, made="2999-01-01T00:00:00+00:00", validation=None)
    keep_probe(folder, "old", old)
    keep_probe(folder, "new", new)
    assert find_probe(folder, "new") == new
    assert find_probe(folder, "old") is None  # measured too long ago
    assert find_probe(folder, "other") is None
    path = record_path(folder)
    raw = json.loads(path.read_text())
    raw["probes"]["new"]["train"]["mid"]["step_s"] = "fast"
    path.write_text(json.dumps(raw))
    assert find_probe(folder, "new") is None
    for damaged in ("{", "[]", '{"version": 99}'):
        path.write_text(damaged)
        assert find_probe(folder, "new") is None
    keep_probe(folder, "new", new)
    assert find_probe(folder, "new") == new
    keep_probe(tmp_path / "none" / "parts", "new", new)  # nothing can be written there


@pytest.mark.parametrize(("text", "rate"), [("25Gbit", 3.125e9), ("100 mbit/s", 12.5e6), ("8kbit", 1000)])
def test_speeds_of_networks(text: str, rate: float) -> None:
    assert parse_rate("--network", text) == rate


@pytest.mark.parametrize("text", ["fast", "25GB", "-1Gbit", "Gbit", "infGbit"])
def test_wrong_speeds(text: str) -> None:
    with pytest.raises(OptionError, match="--network: expected the speed of a network such as 25Gbit"):
        parse_rate("--network", text)
