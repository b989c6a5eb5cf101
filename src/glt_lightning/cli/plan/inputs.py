"""What a plan is made of: the layout of a job, the batches that are counted, and the constants of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from lightning.pytorch import Trainer

from glt_lightning.base import CacheOptions, OptionError, parse_bytes, parse_rate
from glt_lightning.cli.plan.machines import named_machine
from glt_lightning.cli.subcommands import strategy_class
from glt_lightning.graph import LocalPartition, Manifest, available_memory, usable_cores
from glt_lightning.lightning import Counted, GLTDataModule, Layout, RemoteCost, owners_of, rounds_of, samplers_of
from glt_lightning.loader import ExpectedTraffic, TrafficOptions, TrafficPrediction, remote_cache_bytes

ALL = 1 << 40  # batches


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The hosts that a plan is for, as the command line names them; None: as the configuration says, or as this machine."""

    hosts: int | None = None
    ranks: int | None = None
    network: str | None = None
    latency_ms: float = 0.1
    cores: int | None = None
    memory: str | None = None

    @classmethod
    def of(cls, config: Any) -> Machines:
        """As the command line says. A machine that is named gives what is not said otherwise."""
        given = {name: config[name] for name in ("hosts", "ranks", "network", "latency_ms", "cores", "memory")}
        if config.machine is not None:
            for name, value in zip(("cores", "memory", "network"), named_machine(config.machine), strict=True):
                given[name] = value if given[name] is None else given[name]
        return cls(**given)

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks", "cores"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"--{name}: expected at least 1, got {value}.")

    @property
    def available(self) -> int:
        """Bytes of memory of each host."""
        return available_memory() if self.memory is None else parse_bytes("--memory", self.memory)


def layout_of(machines: Machines, trainer: Any, data: GLTDataModule, cluster: Any) -> Layout:
    """trainer: its options in the configuration."""
    hosts = machines.hosts or trainer.num_nodes
    ranks, kind = machines.ranks or _devices(trainer.devices), strategy_class(trainer.strategy)
    layout = Layout(
        hosts=hosts,
        ranks=ranks,
        owners=owners_of(hosts, ranks, kind, cluster),
        workers=samplers_of(ranks, kind, data.sampling),
        concurrency=data.sampling.concurrency,
        cores=machines.cores or usable_cores(),
        latency_s=machines.latency_ms / 1000,
    )
    return (
        layout if machines.network is None else replace(layout, bytes_per_s=parse_rate("--network", machines.network))
    )


def _devices(given: Any) -> int:
    """Ranks of a host. ``auto`` is one on a CPU."""
    if isinstance(given, (list, tuple)):
        return len(given)
    text = str(given)
    return int(text) if text.isdigit() and int(text) else len(text.split(",")) if "," in text else 1


# Counts of batches


class Batches:
    """Counts batches of training, by sampling them without their attributes.

    batches: of each rank that is looked at; 0 for all.  options: their fan-outs and draws.
    """

    def __init__(self, partition: LocalPartition, data: GLTDataModule, options: TrafficOptions, batches: int) -> None:
        seed = data.sampling.seed if data.sampling.seed is not None else int(os.environ.get("PL_GLOBAL_SEED", 0))
        self.partition, self.data = partition, data
        self.options = replace(options, seed=seed, batches=batches or ALL)
        self._most = ALL if batches == 0 else 8
        self.why_not = TrafficPrediction(partition, options).why_not

    def count(self, layout: Layout, cache: Sequence[float] = (), **changes: Any) -> ExpectedTraffic:
        """changes: other options of the batches."""
        options = replace(self.options, cache=list(cache), **changes)
        placement = self.data.sampling.seed_placement
        prediction = TrafficPrediction(self.partition, options)
        return prediction.of_ranks(placement, layout.owners, layout.ranks_of_owner, self._most)

    def ratio(self, layout: Layout) -> float | None:
        """The size of the remote cache of the data module; None where nothing is remote."""
        return cache_ratio(self.data.cache, self.partition.manifest) if layout.owners > 1 else None

    def counted(self, layout: Layout, **changes: Any) -> Counted:
        """The means of batches in this layout, with the cache of the data module."""
        ratio = self.ratio(layout)
        return self.of(self.count(layout, () if ratio is None else (ratio,), **changes), ratio)

    def of(self, traffic: ExpectedTraffic, ratio: float | None = None) -> Counted:
        """The means over the ranks of a count. ratio: those of the cache of this size."""
        rounds = rounds_of(self.options.num_neighbors)
        weights = [part.batches for part in traffic.parts]

        def mean(name: str, of: Any = None) -> float:
            each = [getattr(part if of is None else of(part), name).mean for part in traffic.parts]
            return float(np.average(each, weights=weights))

        remote = RemoteCost(
            rows=mean("remote_rows"),
            row_bytes=mean("remote_row_bytes"),
            requests=mean("requests"),
            nbytes=mean("bytes"),
            rounds=rounds if mean("requests") else 0,
        )
        if ratio is not None:
            hit = partial(_of_cache, ratio=ratio)
            rows, row_bytes = mean("remote_rows", hit), mean("row_bytes", hit)
            cached = {"cached_rows": remote.rows - rows, "cached_bytes": remote.row_bytes - row_bytes}
            asked = {"requests": mean("requests", hit), "nbytes": mean("bytes", hit)}
            remote = replace(remote, rows=rows, row_bytes=row_bytes, **asked, **cached)
        counts = {name: mean(name) for name in ("seeds", "nodes", "edges", "rows", "row_bytes")}
        return Counted(**counts, remote=remote)


def _of_cache(part: Any, ratio: float) -> Any:
    return next(each for each in part.caches if each.ratio == ratio)


def cache_ratio(cache: CacheOptions, manifest: Manifest) -> float | None:
    """The share of the nodes of each type that the remote cache has, about; None without one."""
    if not cache.keeps_rows:
        return None
    if isinstance(cache.ratio, dict):
        cached = sum(
            cache.ratio.get(t, 0.0) * n for t, n in zip(manifest.schema.node_types, manifest.num_nodes, strict=True)
        )
        ratio = cached / sum(manifest.num_nodes)
    elif cache.ratio is not None:
        ratio = cache.ratio
    else:
        ratio = (cache.budget or 0) / remote_cache_bytes(manifest, 1)
    return min(1.0, ratio) or None


def probing_trainer(trainer: Any, folder: str) -> Any:
    """Returns a function that makes a Trainer of this process with the options of ``trainer`` on which a step depends."""
    given = {
        name: trainer.get(name)
        for name in ("precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
        if trainer.get(name) is not None
    }
    return partial(
        Trainer,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **given,
    )
