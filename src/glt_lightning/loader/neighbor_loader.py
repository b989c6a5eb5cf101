"""The loader a training loop iterates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from glt_lightning.base import OptionError
from glt_lightning.loader.collate import Batch, Collate
from glt_lightning.loader.resume import as_json, read_state
from glt_lightning.loader.transforms import BatchTransform
from glt_lightning.sampling import BatchRequest, Counters, EpochPlan, Sample, SamplerConfig
from glt_lightning.workers import Producer


@dataclass
class LoaderStats:
    """Totals of a loader since it was made.

    Attributes:
        batches: Number of batches.
        seeds: Number of their seeds.
        named_nodes: Number of nodes that their seeds name, each as often as it is named: an edge and a negative name two.
        nodes: Number of their nodes, of all types.
        edges: Number of their edges, of all types.
        wait_s: Seconds that the consumer was blocked in ``next``.
        fresh_slots: Batches that came in one-off memory because every slot was held.
        restarts: Sampler processes of this rank that were started again.
        counters: Where the rows of the batches came from, and what took their samplers' time.

    Example:
        >>> with Session("parts") as session:
        ...     loader = session.make_loader(LoaderSpec(name="train", split="train", num_neighbors=[2], batch_size=4))
        ...     batches = list(loader)
        ...     stats = loader.stats()
        >>> stats.batches, stats.seeds
        (2, 6)
    """

    batches: int = 0
    seeds: int = 0
    named_nodes: int = 0
    nodes: int = 0
    edges: int = 0
    wait_s: float = 0.0
    fresh_slots: int = 0
    restarts: int = 0
    counters: Counters = field(default_factory=Counters)

    @property
    def deduplicated(self) -> int:
        """Seeds and draws that named a node which the batch had already: rows that were read once instead of again."""
        return self.named_nodes + self.edges - self.nodes


class DistNeighborLoader:
    """Yields the batches of one rank as PyG `Data` or `HeteroData`, in the order of the epoch plan.

    Made by `Session.make_loader`. ``iter`` has no effect before the first ``next``; an iteration may be left early.
    An epoch is set by `set_epoch`; without it, each new iteration is the next epoch.

    Args:
        plan: The seeds of each batch.
        config: How neighbours are drawn.
        producer: Makes the batches.
        collate: Turns a `Sample` into a PyG object.
        identity: Facts that a checkpoint is compared with when it is loaded.
        transform: What every batch goes through before it is given out, or None.

    Raises:
        SamplerError: While iterating, if a batch cannot be made; the message has the sampler's traceback.

    Example:
        >>> with Session("parts") as session:
        ...     loader = session.make_loader(LoaderSpec(name="train", split="train", num_neighbors=[2], batch_size=4))
        ...     loader.set_epoch(3)
        ...     print(len(loader), [batch.batch_size for batch in loader])
        2 [4, 2]
    """

    def __init__(
        self,
        plan: EpochPlan,
        config: SamplerConfig,
        producer: Producer,
        collate: Collate,
        identity: dict[str, Any],
        transform: BatchTransform | None = None,
    ) -> None:
        self._plan, self._config, self._producer, self._collate = plan, config, producer, collate
        self._transform = transform
        self._identity: dict[str, Any] = as_json(
            identity
            | {
                "seed": plan.seed,
                "batch_size": plan.batch_size,
                "shuffle": plan.shuffle,
                "placement": "global" if plan.owner is None else "owner",
                "fanouts": [list(hop) for hop in config.fanouts],
                **config.identity,
            }
        )
        self._epoch, self._start, self._delivered = 0, 0, 0
        self._used = False  # an iteration of the current epoch has begun
        self._stats = LoaderStats()
        self._closed: str | None = None  # why
        # Lightning looks for these: it calls sampler.set_epoch, and reads batch_sampler wherever there is a sampler
        self.sampler = self
        self.batch_sampler = None

    @property
    def batch_size(self) -> int:
        """Seeds per batch and rank."""
        return self._plan.batch_size

    @property
    def config(self) -> SamplerConfig:
        return self._config

    @property
    def collate(self) -> Collate:
        """Turns a `Sample` into a batch, before ``transform``."""
        return self._collate

    @property
    def plan(self) -> EpochPlan:
        return self._plan

    def follow(self, plan: EpochPlan) -> None:
        """Takes another plan of the same seeds, before the first iteration."""
        self._plan = plan

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return len(self._plan)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration."""
        if epoch != self._epoch:
            self._epoch, self._start, self._delivered = epoch, 0, 0
        self._used = False

    def __iter__(self) -> Iterator[Batch]:
        return self._run()

    def _run(self) -> Iterator[Batch]:
        if self._used:
            self.set_epoch(self._epoch + 1)
        self._used = True
        start, self._start = self._start, 0
        self._delivered = start
        yield from self.batches(self._plan.requests(self._epoch, start))

    def batches(self, requests: Iterator[BatchRequest], producer: Producer | None = None) -> Iterator[Batch]:
        """The batches of requests, in their order, whichever plan made them. producer: makes them in place of the loader's."""
        stream = (producer or self._producer).stream(self._config, requests)
        while True:
            self._check_open()
            begin = time.perf_counter()
            sample = next(stream, None)
            if sample is None:
                return
            box = [self._batch(sample)]
            self._stats.wait_s += time.perf_counter() - begin
            self._count(sample)
            self._delivered = sample.number + 1
            del sample  # the batch alone holds the memory from here on,
            yield box.pop()  # and only the consumer holds the batch

    def _batch(self, sample: Sample) -> Batch:
        batch = self._collate(sample)
        return batch if self._transform is None else self._transform(batch, self._plan.loader, sample.number)

    def _count(self, sample: Sample) -> None:
        arrays = sample.arrays
        self._stats.batches += 1
        self._stats.seeds += sample.num_seeds
        self._stats.named_nodes += sample.num_named
        self._stats.nodes += int(arrays["num_sampled_nodes"].sum())
        self._stats.edges += sum(a.shape[1] for name, a in arrays.items() if name.endswith("/edge_index"))
        self._stats.counters.add(sample.counters)

    def stats(self) -> LoaderStats:
        """Totals so far."""
        self._stats.fresh_slots, self._stats.restarts = self._producer.fresh_slots, self._producer.restarts
        return self._stats

    def state_dict(self) -> dict[str, Any]:
        """Where the current epoch stands: the same on every rank."""
        return {"plan": self._identity, "epoch": self._epoch, "delivered": self._delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues an epoch where `state_dict` was taken, bit for bit.

        Raises `OptionError` naming what differs if the state belongs to another plan: other seeds, batch size, number of
        ranks, fan-outs, graph or sampling seed, with ``owner`` placement also other parts. The number of sampler processes
        may differ.
        """
        epoch, delivered = read_state(state, self._plan, self._identity)
        self._epoch, self._start, self._delivered = epoch, delivered, delivered
        self._used = False

    def _check_open(self) -> None:
        if self._closed is not None:
            raise OptionError(f"loader {self._plan.loader!r} is closed: {self._closed}")

    def close(self, why: str = "it was closed by the program. Make a new one.") -> None:
        """Ends its iterations. Safe to call twice. why: what a later use is told, and what to do."""
        self._closed = self._closed or why
