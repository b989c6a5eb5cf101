"""Planning of memory and disk for a run: row shapes of all layers, and the most bytes of files, before the first layer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from glt_lightning.base import DataError, OptionError, size
from glt_lightning.inference.protocol import EMBED, LayerwiseLayers
from glt_lightning.kernels import row_bytes
from glt_lightning.tensors import lies_in_memory
from glt_lightning.workers import Ranks

Shapes = Mapping[tuple[int, str], tuple[int, ...]]  # of an output row, by layer and node type
_NO_ROWS = (1,)


def shapes_of(module: LayerwiseLayers, batch_of: Callable[[str, int], Any], ranks: Ranks) -> Shapes:
    """Finds the row shapes of all layers' outputs and of the inputs of the first, by computing one node in each layer. A
    collective call.

    batch_of: returns a batch of one node of a type, with so many hops; None if this host has no node of the type.
    Raises `DataError` if a layer returns anything but a row for each seed.
    """
    shapes: dict[tuple[int, str], tuple[int, ...]] = {}
    inputs: dict[str, tuple[int, ...]] = {}
    like: list[Tensor] = []

    def probed(k: int) -> dict[str, list[int]]:
        found = {}
        for node_type in module.rows_of(k):
            if (batch := batch_of(node_type, int(k > EMBED))) is None:
                continue
            if k == EMBED:
                out = one_row(module.embed(batch), node_type, 1, k)
                like.append(out)
            else:
                rows = {t: len(module.store(batch, t).row) for t in inputs}
                h = {t: like[0].new_zeros(rows[t], *shape) for t, shape in inputs.items()}
                out = one_row(module.layer(k, h, batch), node_type, 1, k)
            found[node_type] = list(out.shape[1:])
        return found

    for k in range(EMBED, module.num_layers):
        mine = ranks.all_or_none(lambda k=k: probed(k), lambda _: None)  # type: ignore[misc]
        everyone = [json.loads(text) for text in ranks.exchange(json.dumps(mine))]
        for node_type in module.rows_of(k):
            known = (tuple(each[node_type]) for each in everyone if node_type in each)
            inputs[node_type] = shapes[k, node_type] = next(known, _NO_ROWS)
    return shapes


def one_row(found: Mapping[str, Tensor], node_type: str, seeds: int, k: int) -> Tensor:
    """Returns a layer's outputs for the seeds of a type. Raises `DataError` unless they are a row for each seed."""
    out = found.get(node_type)
    if out is None or len(out) != seeds:
        text = f"the inputs of {node_type!r}" if k == EMBED else f"layer {k} of {node_type!r}"
        got = "none" if out is None else f"{len(out)}"
        raise DataError(
            f"layer-wise inference: {text}: expected a row for each of the {seeds} seeds of a batch, got {got}."
        )
    return out


@dataclass
class _Held:
    """Bytes of the outputs of a layer, in memory and in files."""

    layer: int
    memory: int = 0
    disk: int = 0


@dataclass
class Room:
    """A simulation of the tables that a run makes and drops, which finds how many bytes it needs.

    rows, halo: numbers of rows of this host, by node type.  limit: bytes of memory, of which other tables take ``taken``.
    keep_outputs: outputs of the last layer are kept.  ranks: exchanges which tables lie in files; all hosts choose the same.

    Attributes:
        disk: The most bytes of files that exist at one time.
    """

    module: LayerwiseLayers
    shapes: Shapes
    rows: Mapping[str, int]
    halo: Mapping[str, int]
    dtype: np.dtype
    limit: int
    taken: int
    keep_outputs: bool
    ranks: Ranks
    disk: int = 0
    _inputs: dict[str, _Held] = field(default_factory=dict)
    _disk: int = 0

    def __post_init__(self) -> None:
        """Simulates the run. A collective call."""
        written: dict[str, _Held] = {}
        last = self.module.num_layers - 1
        for k in range(EMBED, last + 1):
            for node_type, table in written.items():
                self._drop(node_type)
                self._inputs[node_type] = table
                halo = self.halo[node_type] * row_bytes(self.dtype, self.shapes[k - 1, node_type])
                if self.taken + halo > self.limit:
                    table.disk += halo
                    self._add_disk(halo)
            kept = self.module.rows_of(k) if k < last or self.keep_outputs else []
            written = {t: self._table(k, t) for t in kept}

    def _table(self, k: int, node_type: str) -> _Held:
        nbytes = self.rows[node_type] * row_bytes(self.dtype, self.shapes[k, node_type])
        if "true" in self.ranks.exchange(json.dumps(self.taken + nbytes > self.limit)):
            self._add_disk(nbytes)
            return _Held(k, disk=nbytes)
        self.taken += nbytes
        return _Held(k, memory=nbytes)

    def _drop(self, node_type: str) -> None:
        old = self._inputs.pop(node_type, None)
        if old is not None and not (self.module.keep_all and old.layer > EMBED):
            self.taken -= old.memory
            self._disk -= old.disk

    def _add_disk(self, nbytes: int) -> None:
        self._disk += nbytes
        self.disk = max(self.disk, self._disk)


@dataclass(frozen=True)
class Hub:
    """A high-degree node: one with more edges than are computed together. node: the user's id."""

    node_type: str
    node: int
    edges: int


def require_pieces(module: LayerwiseLayers, hub: Hub, most_edges: int, row: int, memory: int, dtype: str) -> None:
    """Raises `OptionError` if a layer reads the rows of all edges of a node at once, and these exceed ``memory`` bytes.

    row: bytes of a row.  dtype: of stored outputs; only float32 is summed where it lies.
    """
    if hub.edges * row <= memory:
        return
    for k in range(module.num_layers):
        in_place = module.aggregates[k] is not None and dtype == "float32"
        if hub.node_type in module.targets(k) and not in_place and not module.gathers(k, hub.node_type):
            raise OptionError(
                f"layerwise: node {hub.node} of {hub.node_type!r} has {hub.edges:,} edges, more than the "
                f"{most_edges:,} that are computed together, and layer {k} cannot be computed from some of them at a time. Their "
                f"rows take {size(hub.edges * row)}, more than layerwise.memory ({size(memory)}). Raise it, or choose layers of "
                "GraphSAGE, GIN, GCN, GAT, GATv2, RGCN or HGT without attributes of edges."
            )


def widest(shapes: Shapes) -> int:
    """Bytes of the widest row in float32, in which layers compute."""
    return 4 * max(int(np.prod(shape)) for shape in shapes.values())


def require_disk(folder: Path, needed: int, memory: int) -> None:
    """Raises `OptionError` if a scratch folder has fewer free bytes than ``needed``. memory: bytes of memory, for the message."""
    if not needed:
        return
    advice = "Set layerwise.scratch to a folder on a larger disk, free some space, or raise layerwise.memory."
    if not folder.is_dir() or lies_in_memory(folder):
        what = "lies in memory" if folder.is_dir() else "is no folder of this host"
        raise OptionError(
            f"layerwise.scratch: {folder} {what}, and the outputs of the layers take {size(needed)} of disk beside "
            f"{size(memory)} of memory. {advice}"
        )
    there = os.statvfs(folder)
    if (free := there.f_bavail * there.f_frsize) < needed:
        raise OptionError(
            f"layerwise.scratch: the outputs of the layers take {size(needed)} of disk in {folder}, beside {size(memory)} of "
            f"memory, and {size(free)} are free there. {advice}"
        )
