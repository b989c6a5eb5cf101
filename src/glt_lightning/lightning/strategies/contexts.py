"""Who owns the loader context of a process: opened once, closed once, at the latest when Python ends."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import TypeAlias

import numpy as np
import torch

from glt_lightning.base import CacheOptions, ClusterOptions, OptionError, SamplerError, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.kernels import keep_freed_memory
from glt_lightning.loader import Batch, DistNeighborLoader, LinkSpec, LoaderContext, LoaderSpec, RowSpec
from glt_lightning.tensors import DistGraph, GraphReader, Reach
from glt_lightning.workers import Ranks, SampledGraph

_log = logging.getLogger(__name__)
AnySpec: TypeAlias = LoaderSpec | LinkSpec | RowSpec


class ContextOwner:
    """Opens the `LoaderContext` of this process and closes it. Holds nothing, and pickles, until it is opened."""

    def __init__(self) -> None:
        self._context: LoaderContext | None = None
        self._graph: DistGraph | None = None
        self._closer: weakref.finalize[[], ContextOwner] | None = None
        self._ends = ExitStack()

    @property
    def is_open(self) -> bool:
        return self._context is not None

    def open(
        self,
        graph: LocalPartition | SampledGraph,
        sampling: SamplingOptions,
        *,
        seed: int,
        ranks: Ranks,
        device: torch.device,
        cache: CacheOptions,
        cluster: ClusterOptions,
        reach: Reach | None,
    ) -> None:
        """Closes what was open before, then starts what makes the batches: as `LoaderContext`. cluster, reach: for tensors."""
        kept = self._graph  # opened again with another seed: tensors stay
        with nullcontext() if kept is None else kept.kept_open():
            self.close()
        with ExitStack() as failing:
            if kept is not None:
                failing.callback(kept.close)
            context = LoaderContext(
                graph,
                sampling,
                seed=seed,
                ranks=ranks,
                pin_memory=wants_pinned(sampling, device),
                cache=cache,
                device=device,
            )
            failing.pop_all()
        self._context = context
        ends = self._ends = ExitStack()
        if sampling.keep_memory and device.type == "cpu":
            _keep_memory(ends)
        ends.callback(context.close)
        if kept is not None and kept.hash == graph.manifest.options_hash:
            kept.renew(GraphReader.of(graph), seed)
            self._graph = kept
        else:
            if kept is not None:
                kept.close()
            self._graph = DistGraph(
                GraphReader.of(graph),
                ranks=ranks,
                options=cluster.tensors,
                seed=seed,
                wait_s=cluster.deadlines.call_s,
                reach=reach,
            )
        ends.callback(self._graph.close)
        self._closer = weakref.finalize(self, ends.close)  # also when this owner is forgotten, and at exit

    def until_closed(self, end: Callable[[], None]) -> None:
        """Calls ``end`` when the context that is open now is closed."""
        self._ends.callback(end)

    def make_loader(self, spec: AnySpec) -> DistNeighborLoader:
        context = self._opened(spec)
        if isinstance(spec, RowSpec):
            return context.make_row_loader(spec)
        return context.make_link_loader(spec) if isinstance(spec, LinkSpec) else context.make_loader(spec)

    def read_seeds(self, spec: LoaderSpec, name: str) -> np.ndarray:
        """As `LoaderContext.read_seeds`."""
        return self._opened(spec).read_seeds(spec, name)

    def _opened(self, spec: AnySpec) -> LoaderContext:
        if self._context is None:
            raise SamplerError(f"loader {spec.name!r}: no graph is open here; call setup() first.")
        return self._context

    @property
    def graph(self) -> DistGraph:
        """The graph by row, and its tensors. Raises `SamplerError` where none is open."""
        if self._graph is None:
            raise SamplerError("graph: no graph is open here; ask the data module for dist_graph, in setup() or later.")
        return self._graph

    def complete(self, batch: Batch) -> Batch:
        """Gives a batch that was moved to the device the rows that are cached there."""
        rows = None if self._context is None else self._context.device_rows
        return batch if rows is None else rows.complete(batch)

    def close(self) -> None:
        """Closes the loaders and stops the sampler processes. Safe to call twice."""
        self._context = self._graph = None
        if self._closer is not None:
            self._closer()


def _keep_memory(until: ExitStack) -> None:
    try:
        until.callback(keep_freed_memory())
    except RuntimeError as reason:
        _log.info("sampling.keep_memory has no effect: %s.", reason)


def wants_pinned(sampling: SamplingOptions, device: torch.device) -> bool:
    """Whether the memory of batches is page-locked: as the user says, else when they go to a GPU."""
    if sampling.pin_memory and not torch.cuda.is_available():
        raise OptionError("sampling.pin_memory: true needs a CUDA device, and this host has none. Remove the option.")
    return device.type == "cuda" if sampling.pin_memory is None else sampling.pin_memory
