"""The rules by which the seconds, the bytes and the memory of a run follow from what one batch costs.

They are arithmetic over plain numbers. `expect_epoch` gives what it expects as `EpochTotals`, the sums that a run counts
itself, so that `plan`, the report of a run and its verdict speak of the same quantities. The seconds of an epoch, by rank:

* Batches of a rank's own process: sampling, rows, the wait for owners and the step follow each other.
* Batches of sampler processes: the slowest of four decides, step by step: the trainer, the samplers, the network of the
  host, and the cores of the host, which all its processes share.

What is not known: other work on the hosts, and processes that disturb each other in caches of the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from glt_lightning.base import Fanouts
from glt_lightning.lightning.callbacks.monitor import EpochTotals
from glt_lightning.sampling import Counters, EpochPlan

GLOO_BYTES_PER_S = 1e9  # between processes of one host: two copies and a sum; not measured
LEAST_NETWORK = 1.25e9  # bytes per second, 10 Gbit/s, where nobody says what connects the hosts
# Bytes that arrive at a time: a packet at least; Linux sends those of a millisecond, and not more than 64 KiB
PACKET, ARRIVING_S, MOST_ARRIVING = 1448, 1e-3, 1 << 16


_OF_A_BATCH = ("handed_s", "ranked_s", "ranked_cpu_s", "summed_cpu_s", "launches")  # whatever its size


@dataclass(frozen=True, kw_only=True)
class BatchCost:
    """Means of one batch of a rank, all of whose rows are on its host.

    seeds, nodes, edges: counts.  rows, row_bytes: of attributes, as stored.  nbytes: of the batch in memory.
    sample_s, gather_s: seconds of a sampler.  collate_s: seconds of the trainer between a sampler's batch and its step.
    step_s: wall seconds of the step, with what Lightning does around it.  step_cpu_s: its CPU seconds, of all threads.
    handed_s: CPU seconds of the trainer's thread that a batch of a sampler process adds.  ranked_s: that the ranks' strategy
    adds: of DDP and, with graph servers, of their batches.  ranked_cpu_s: of all threads of a rank.  summed_cpu_s: of all
    threads of each of several ranks, to sum up gradients.
    copy_s: seconds of copies to a GPU.  flops, moved_bytes, launches: what the step does, as `StepWork` counts it.
    """

    seeds: float = 0.0
    named_nodes: float = 0.0
    nodes: float = 0.0
    edges: float = 0.0
    rows: float = 0.0
    row_bytes: float = 0.0
    nbytes: float = 0.0
    sample_s: float = 0.0
    gather_s: float = 0.0
    collate_s: float = 0.0
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    handed_s: float = 0.0
    ranked_s: float = 0.0
    ranked_cpu_s: float = 0.0
    summed_cpu_s: float = 0.0
    copy_s: float = 0.0
    flops: float = 0.0
    moved_bytes: float = 0.0
    launches: float = 0.0

    def scaled(
        self, nodes: float = 1.0, edges: float = 1.0, row_bytes: float = 1.0, step: float | None = None
    ) -> BatchCost:
        """The cost of a batch with so many times the nodes and edges, and bytes of a row. step: times the seconds of the step;
        None: half of it goes by nodes, half by edges."""
        step = (nodes + edges) / 2 if step is None else step
        times = dict.fromkeys(("nodes", "rows", "collate_s"), nodes)
        times |= {"edges": edges, "sample_s": edges}
        times |= dict.fromkeys(("step_s", "step_cpu_s", "flops", "moved_bytes"), step)
        times |= dict.fromkeys(("row_bytes", "gather_s", "nbytes"), nodes * row_bytes)
        return replace(self, **{name: getattr(self, name) * by for name, by in times.items()})

    def of_seeds(self, seeds: float) -> BatchCost:
        """The cost of a batch of so many seeds, such as the mean of an epoch whose last batch is smaller."""
        return _times(self, seeds / self.seeds, but=_OF_A_BATCH) if self.seeds else self

    def with_counts(self, counted: Counted) -> BatchCost:
        """The same times, with the counts of other batches."""
        names = ("seeds", "nodes", "edges", "rows", "row_bytes")
        return replace(self, **{name: getattr(counted, name) for name in names})

    @classmethod
    def mean(cls, costs: Sequence[BatchCost]) -> BatchCost:
        """Of batches, at least one."""
        return cls(**{f.name: float(np.mean([getattr(each, f.name) for each in costs])) for f in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class RemoteCost:
    """Means of what a batch asks of other hosts. rows, row_bytes: of attributes.  requests: calls.  nbytes: of the bodies of all
    messages, in both directions.  rounds: calls that follow each other.  cached_rows, cached_bytes: rows that a cache has.
    """

    rows: float = 0.0
    row_bytes: float = 0.0
    requests: float = 0.0
    nbytes: float = 0.0
    rounds: float = 0.0
    cached_rows: float = 0.0
    cached_bytes: float = 0.0

    def times(self, factor: float) -> RemoteCost:
        """The cost of a batch that asks for ``factor`` times as much, in as many calls."""
        return _times(self, factor, but=("requests", "rounds"))


NOTHING_REMOTE = RemoteCost()


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Means of sampled batches, which are counts and no measurements: of all rows, and of what other hosts have."""

    seeds: float
    nodes: float
    edges: float
    rows: float
    row_bytes: float
    remote: RemoteCost = NOTHING_REMOTE

    def of_seeds(self, seeds: float) -> Counted:
        """The counts of a batch of so many seeds."""
        return replace(_times(self, seeds / self.seeds), remote=self.remote.times(seeds / self.seeds))

    def in_row_bytes(self, share: float) -> Counted:
        """The counts where rows take ``share`` of their bytes."""
        remote, names = self.remote, ("row_bytes", "cached_bytes")
        smaller = replace(remote, **{name: share * getattr(remote, name) for name in names})
        smaller = replace(smaller, nbytes=remote.nbytes - remote.row_bytes + smaller.row_bytes)
        return replace(self, row_bytes=share * self.row_bytes, remote=smaller)

    def with_hosts(self, hosts: int, rounds: int) -> Counted:
        """The counts where nodes are dealt to ``hosts`` hosts at random; computed. An assignment that cuts fewer edges does
        better."""
        share = (hosts - 1) / hosts
        drawn = 16 * self.edges + 16 * self.nodes  # of the ids of questions and answers
        remote = RemoteCost(
            rows=share * self.rows,
            row_bytes=share * self.row_bytes,
            requests=rounds * (hosts - 1),
            nbytes=share * (self.row_bytes + drawn),
            rounds=rounds,
        )
        return replace(self, remote=remote)


def _times(each: Any, factor: float, but: tuple[str, ...] = ()) -> Any:
    """A copy whose numbers are ``factor`` times as large."""
    numbers = [f.name for f in fields(each) if isinstance(getattr(each, f.name), (int, float)) and f.name not in but]
    return replace(each, **{name: factor * getattr(each, name) for name in numbers})


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What a connection between two processes costs. round_trip_s: wall seconds of a small call.  call_cpu_s, byte_cpu_s: CPU
    seconds of both ends, per call and per byte.  arrival_cpu_s: of each time that bytes arrive which have been waited for."""

    round_trip_s: float = 0.0
    call_cpu_s: float = 0.0
    byte_cpu_s: float = 0.0
    arrival_cpu_s: float = 0.0

    def cpu_s(self, calls: float, nbytes: float, bytes_per_s: float | None = None) -> float:
        """CPU seconds of both ends. bytes_per_s: of the network between them; None within a host."""
        spent_s = calls * self.call_cpu_s + nbytes * self.byte_cpu_s
        if bytes_per_s is None:
            return spent_s
        arriving = min(MOST_ARRIVING, max(PACKET, ARRIVING_S * bytes_per_s))
        return spent_s + nbytes / arriving * self.arrival_cpu_s


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a job runs, and how its ranks sample. hosts; ranks, workers: of each host, of each rank.  owners: number of
    places with parts of their own: hosts, ranks, or 1 where every host maps all parts.  cores: of each host.  bytes_per_s: of a
    host's network, each way.  latency_s: of the network alone.  parameter_bytes: what ranks sum up in each step.
    served: batches come from graph servers.  gpu_samples: the GPU of a rank makes its batches if there are no workers.
    sums_bytes_per_s: of sums over ranks of a host."""

    hosts: int = 1
    ranks: int = 1
    owners: int = 1
    workers: int = 0
    concurrency: int = 4
    cores: int = 1
    bytes_per_s: float = LEAST_NETWORK
    latency_s: float = 0.0
    parameter_bytes: float = 0.0
    served: bool = False
    gpu_samples: bool = False
    sums_bytes_per_s: float = GLOO_BYTES_PER_S

    @property
    def world_size(self) -> int:
        return self.hosts * self.ranks

    @property
    def name(self) -> str:
        """By which the counts of its batches are kept: owners, and ranks of each."""
        return f"{self.owners}x{self.ranks_of_owner}"

    @property
    def ranks_of_owner(self) -> int:
        return max(1, self.world_size // self.owners) if self.owners > 1 else self.world_size

    @property
    def gradients_s(self) -> float:
        """Seconds of a step in which ranks sum up gradients: a ring over all of them, over the network where there are hosts."""
        if self.world_size == 1:
            return 0.0
        sent = 2 * (self.world_size - 1) / self.world_size * self.parameter_bytes
        speed = self.bytes_per_s if self.hosts > 1 else self.sums_bytes_per_s
        return sent / speed + 2 * self.latency_s


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One pass over seeds, on one rank: training, or validation. Seconds of each batch.

    period_s: from one batch to the next.  trainer_s: of it the step and the gradients.  latency_s: the wait of a sampler for
    owners.  trainer_cpu_s: of the rank's own process.  cpu_s: of all.  stretch: how much longer than without other processes on
    the cores, at least 1.  first_s: until the first batch is there, where samplers work ahead.
    """

    steps: float
    period_s: float
    trainer_s: float
    trainer_cpu_s: float
    cpu_s: float
    latency_s: float
    stretch: float
    first_s: float

    @property
    def seconds(self) -> float:
        return self.steps * self.period_s + (self.first_s if self.steps else 0.0)


def of_trainer(batch: BatchCost, layout: Layout) -> tuple[float, float]:
    """Seconds of the trainer's thread: from a batch that is made to its step, and what the strategy adds to the step."""
    if layout.served:
        return batch.collate_s + batch.ranked_s, 0.0
    return batch.collate_s + (batch.handed_s if layout.workers else 0.0), batch.ranked_s


def phase(
    batch: BatchCost,
    steps: float,
    layout: Layout,
    remote: RemoteCost = NOTHING_REMOTE,
    link: Connection | None = None,
    *,
    trains: bool = True,
) -> Phase:
    """The seconds of a pass of ``steps`` batches. trains: gradients are summed up."""
    link = link or Connection()
    speed = layout.bytes_per_s if layout.hosts > 1 else None
    served_s = link.cpu_s(remote.requests, remote.nbytes, speed)
    taken_s, added_s = of_trainer(batch, layout)
    # bytes of each end; within a host they stay where they are
    bytes_s = link.cpu_s(0, batch.nbytes, speed) / 2 if layout.served and speed is not None else 0.0
    delivered_s = batch.ranked_cpu_s + bytes_s if layout.served else 0.0  # a server is taken to do as much as a rank
    carried = remote.nbytes + (batch.nbytes if layout.served else 0.0)
    network_s = 0.0 if speed is None else layout.ranks * carried / speed
    round_trip_s = link.round_trip_s + (layout.latency_s if layout.hosts > 1 else 0.0)
    latency_s = remote.rounds * round_trip_s + network_s
    on_gpu = layout.gpu_samples and layout.workers == 0
    made_s = batch.sample_s + batch.gather_s + served_s + delivered_s
    made_cpu_s = served_s if on_gpu else made_s
    summed_s = batch.summed_cpu_s if trains and layout.world_size > 1 else 0.0
    trainer_s = batch.step_s + added_s + summed_s + (layout.gradients_s if trains else 0.0)
    trainer_cpu_s = taken_s + batch.step_cpu_s + added_s + batch.ranked_cpu_s - batch.ranked_s + summed_s + bytes_s
    demand_s = layout.ranks * (made_cpu_s + trainer_cpu_s) / layout.cores
    if layout.workers == 0:
        alone_s = made_s + taken_s + batch.copy_s + trainer_s
        # a GPU does one after the other, and meanwhile the host waits for owners
        bounds = [alone_s, latency_s / layout.concurrency] if on_gpu else [alone_s + latency_s]
        trainer_cpu_s += made_cpu_s
    else:
        in_flight = layout.concurrency if latency_s else 1
        alone_s = taken_s + batch.copy_s + trainer_s
        made_each_s = max(made_s, (made_s + latency_s) / in_flight) / layout.workers
        bounds = [alone_s, made_each_s, network_s]
    unshared_s = max(bounds)
    stretch = max(1.0, demand_s / unshared_s) if unshared_s else 1.0
    return Phase(
        steps=steps,
        period_s=unshared_s * stretch,
        trainer_s=trainer_s * stretch,
        trainer_cpu_s=trainer_cpu_s,
        cpu_s=trainer_cpu_s + (made_s if layout.workers else 0.0),
        latency_s=latency_s,
        stretch=stretch,
        first_s=made_s + latency_s if layout.workers else 0.0,
    )


@dataclass
class ExpectedTotals(EpochTotals):
    """cpu_s: CPU seconds of all processes, of ranks, samplers and servers, in training and validation.  copy_s: seconds of
    copies to GPUs, in training."""

    cpu_s: float = 0.0
    copy_s: float = 0.0


def expect_epoch(
    train: BatchCost,
    steps: int,
    layout: Layout,
    *,
    remote: RemoteCost = NOTHING_REMOTE,
    link: Connection | None = None,
    validation: BatchCost | None = None,
    validation_steps: float = 0.0,
) -> ExpectedTotals:
    """What `SamplingMonitor` would count of an epoch: sums over all ranks. steps, validation_steps: of each rank.  remote: of a
    batch of training; one of validation asks for the same share of its nodes.

    >>> cost = BatchCost(seeds=10, sample_s=1, gather_s=1, step_s=2, step_cpu_s=2)
    >>> alone = expect_epoch(cost, 5, Layout())
    >>> alone.elapsed_s, alone.wait_s, alone.seeds
    (20.0, 10.0, 50)
    >>> expect_epoch(cost, 5, Layout(workers=1, cores=2)).elapsed_s  # samplers work ahead, after the first batch
    12.0
    """
    world, trained = layout.world_size, phase(train, steps, layout, remote, link)
    validation = validation or BatchCost()
    asked = remote.times(validation.nodes / train.nodes) if train.nodes else remote
    validated = phase(validation, validation_steps, layout, asked, link, trains=False)
    count = world * steps
    local = train.rows - remote.rows - remote.cached_rows, train.row_bytes - remote.row_bytes - remote.cached_bytes
    counters = Counters(
        local_rows=round(count * local[0]),
        local_bytes=round(count * local[1]),
        cached_rows=round(count * remote.cached_rows),
        cached_bytes=round(count * remote.cached_bytes),
        remote_rows=round(count * remote.rows),
        remote_bytes=round(count * remote.row_bytes),
        sample_s=count * train.sample_s,
        gather_s=count * train.gather_s,
        remote_s=count * trained.latency_s,
    )
    core_s = world * (steps * trained.trainer_cpu_s + validation_steps * validated.trainer_cpu_s)
    return ExpectedTotals(
        ranks=world,
        batches=count,
        seeds=round(count * train.seeds),
        named_nodes=round(count * train.named_nodes),
        nodes=round(count * train.nodes),
        edges=round(count * train.edges),
        wait_s=world * (steps * (trained.period_s - trained.trainer_s) / trained.stretch + trained.first_s),
        elapsed_s=world * trained.seconds,
        validation_s=world * validated.seconds,
        counters=counters,
        core_s=core_s,
        core_wait_s=core_s * (trained.stretch - 1),
        cpu_s=world * (steps * trained.cpu_s + validation_steps * validated.cpu_s),
        copy_s=count * train.copy_s,
    )


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The batches of a rank in an epoch. steps, validation_steps: their number; of validation that is not run in every epoch the
    mean.  seeds, validation_seeds: of a batch, in the mean."""

    steps: int
    seeds: float
    validation_steps: float = 0.0
    validation_seeds: float = 0.0


Limit = float | int | None


@dataclass(frozen=True, kw_only=True)
class Dealing:
    """How seeds become batches. batch_size, validation_batch_size: seeds of each.  owned: training seeds go to the ranks that own
    them.  limit, validation_limit, every: ``limit_train_batches``, ``limit_val_batches`` and ``check_val_every_n_epoch`` of the
    Trainer."""

    batch_size: int
    validation_batch_size: int = 1
    owned: bool = False
    limit: Limit = None
    validation_limit: Limit = None
    every: int | None = 1

    def passes(self, seeds: int, validation_seeds: int, world_size: int) -> Passes:
        """The batches of each of ``world_size`` ranks."""
        steps, each = _steps(seeds, self.batch_size, world_size, self.limit, owned=self.owned)
        if not validation_seeds:
            return Passes(steps=steps, seeds=each)
        size = self.validation_batch_size
        validated, of_each = _steps(validation_seeds, size, world_size, self.validation_limit, exact=True)
        return Passes(steps=steps, seeds=each, validation_steps=validated / (self.every or 1), validation_seeds=of_each)


def _steps(seeds: int, size: int, world_size: int, limit: Limit, **how: bool) -> tuple[int, float]:
    """(batches, mean number of seeds of each)"""
    full = epoch_steps(seeds, size, world_size, **how)
    steps = full if limit is None else min(full, limit) if isinstance(limit, int) else int(full * limit)
    return steps, seeds / (world_size * full) if steps == full else float(size)


def epoch_steps(seeds: int, batch_size: int, world_size: int, *, exact: bool = False, owned: bool = False) -> int:
    """Batches of the first rank in an epoch, as `EpochPlan` deals them out. exact: evaluation.  owned: by owner."""
    places = np.empty(seeds, dtype=np.int8)
    owner = np.zeros(seeds, dtype=np.int8) if owned else None
    plan = EpochPlan(
        seeds=places, batch_size=batch_size, seed=0, loader="", world_size=world_size, exact=exact, owner=owner
    )
    return len(plan)


def rounds_of(num_neighbors: Fanouts) -> int:
    """Calls of a batch that follow each other: one for each hop, and one for attributes; those of all owners of a hop are made at
    once."""
    hops = max(map(len, num_neighbors.values())) if isinstance(num_neighbors, dict) else len(num_neighbors)
    return hops + 1
