"""A run over all nodes: plans its batches, computes them in order, and keeps the outputs of layers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import LayerwiseOptions
from glt_lightning.inference.facts import Loaders, Reading
from glt_lightning.inference.protocol import EMBED, LayerwiseLayers
from glt_lightning.inference.room import Hub, Room, one_row, require_disk, require_pieces, shapes_of, widest
from glt_lightning.inference.states import HaloTraffic, LayerRows, Marks, chunks_of, fetch_halo, share_of
from glt_lightning.kernels import row_bytes
from glt_lightning.loader import RowSpec
from glt_lightning.tensors import DistGraph, RowSpace, SharedTable, TableSpec
from glt_lightning.workers import Ranks

_ROWS_BYTES = 1 << 30  # of the rows of the edges that are computed together, where a layer makes these
_PIECE_BYTES = 16 << 20  # of those of a piece of a node's edges, of which a layer makes several copies


@dataclass(frozen=True, eq=False)
class Step:
    """The batches of one layer, or of the inputs of the first, for one node type. chunks: int64 [C, 2], row ranges of this
    rank."""

    layer: int
    space: RowSpace
    chunks: np.ndarray

    @property
    def node_type(self) -> str:
        return self.space.label

    @property
    def num_rows(self) -> int:
        """Number of rows that this rank computes."""
        return int((self.chunks[:, 1] - self.chunks[:, 0]).sum())

    def rows_in(self, number: int) -> int:
        """Number of rows of batch ``number`` of this rank; 0 behind the last."""
        return int(self.chunks[number, 1] - self.chunks[number, 0]) if number < len(self.chunks) else 0

    @property
    def text(self) -> str:
        return (
            f"the inputs of {self.node_type!r}" if self.layer == EMBED else f"layer {self.layer} of {self.node_type!r}"
        )

    def spec(self, weight_attr: Any, name: str = "layerwise") -> RowSpec:
        inputs = self.layer == EMBED
        return RowSpec(
            name=f"{name}/{self.layer}/{self.node_type}",
            node_type=self.space.index,
            chunks=self.chunks,
            hops=0 if inputs else 1,
            node_attrs=inputs,
            weight_attr=weight_attr,
        )


class LayerwiseRun:
    """Computes a module's layers over a graph, one after the other. All ranks construct theirs at the same time. Close it.

    Each rank iterates a loader for each of ``steps`` and passes every batch to `take`, which returns columns of the seeds if
    the step is the last of their type, else None.

    module: the layers.  graph: the graph of the job.  make_loader: makes the loader of some rows.
    marks: synchronises the ranks.  folder: place of scratch files.  weight_attr: as in loaders.
    threads: number of threads that gather rows.  prepare: moves a batch to the device that computes.
    keep_outputs: `take` returns None, and after the last step any rank may read `outputs` of any rows.

    Raises `OptionError` if the outputs of the layers do not fit on the disk, or the edges of a node in memory. Its methods raise
    `PeerError` if another rank fails, `DataError` for outputs of a wrong shape.
    """

    def __init__(
        self,
        module: LayerwiseLayers,
        graph: DistGraph,
        make_loader: Loaders,
        marks: Marks,
        options: LayerwiseOptions,
        folder: Path,
        *,
        weight_attr: Any = None,
        threads: int = 1,
        keep_outputs: bool = False,
        prepare: Callable[[Any], Any] = lambda batch: batch,
    ) -> None:
        self.module, self.options, self.marks, self.traffic = module, options, marks, HaloTraffic()
        self._keep_outputs = keep_outputs
        self._graph, self._threads, self._weight_attr = graph, threads, weight_attr
        self._make_loader = make_loader
        self._tables = graph.tables.apart()
        self._tables.ranks = Ranks(marks.rank, marks.world_size, marks.exchange)
        # No two ranks write the same row here, so the check would only take memory
        self._tables.options = replace(self._tables.options, scratch=str(folder), check_conflicts=False)
        self._inputs: dict[str, _Outputs] = {}  # what the current layer reads
        self._kept: dict[str, list[LayerRows]] = {}  # outputs of earlier layers, for heads that want all
        self._written: dict[str, SharedTable] = {}  # by the current layer
        self._step, self._dtype = -1, torch.float32
        self._last = {t: self._last_layer(t) for t in module.output_types}
        self._deleted = {t: graph.deleted(t) for t in module.output_types}
        reading = Reading(graph, self._tables, make_loader, module.degrees, weight_attr, options.most_edges, marks.beat)
        self.facts = reading.find()
        self._degrees = self._degree_rows()
        ranks = self._tables.ranks
        shapes = shapes_of(module, lambda node_type, hops: self._one(node_type, hops, prepare), ranks)
        self._widest, self._most_edges = widest(shapes), self._edges_at_once(shapes)
        disk, limit = self._room(shapes).disk, self._memory

        def require() -> None:
            for node in self._largest_nodes():
                require_pieces(module, node, self._most_edges, widest(shapes), limit, options.dtype)
            require_disk(folder, disk, limit)

        ranks.all_or_none(require, lambda _: None)
        self.steps = self._plan()

    def _last_layer(self, node_type: str) -> int:
        """The last layer that makes rows of a type; `EMBED` if none does, so that its inputs are its outputs."""
        return max((k for k in range(self.module.num_layers) if node_type in self.module.targets(k)), default=EMBED)

    # Before the first layer

    def _one(self, node_type: str, hops: int, prepare: Callable[[Any], Any]) -> Any:
        """Loads a batch of one node of this host, one with few edges; None if the host has no node of the type."""
        rows = [first + np.arange(len(counts)) for first, counts in self.facts.counts[node_type]]
        if not rows or not len(at := np.concatenate(rows)):
            return None
        counts = np.concatenate([counts for _, counts in self.facts.counts[node_type]])
        row = int(at[np.where(counts > 0, counts, np.iinfo(np.int64).max).argmin()])
        step = Step(hops - 1, self._graph.space(node_type, "node"), np.array([[row, row + 1]]))
        with closing(self._make_loader(step.spec(self._weight_attr, "layerwise/one"))) as loader:
            (batch,) = loader
        if self._degrees is not None and hops:
            batch.in_degree = torch.ones(len(batch.row))
        return prepare(batch)

    def _edges_at_once(self, shapes: Mapping[Any, tuple[int, ...]]) -> int:
        """Number of edges that are computed together. Layers that copy the row of each edge get fewer, to bound their memory."""
        if self.module.aggregates and all(self.module.aggregates) and self.options.dtype == "float32":
            return self.options.most_edges
        return min(self.options.most_edges, max(1, _ROWS_BYTES // widest(shapes)))

    def _largest_nodes(self) -> Iterator[Hub]:
        """Yields the node with the most edges of each part and type of this host, if they exceed those computed together."""
        for t, parts in self.facts.counts.items():
            for first, counts in parts:
                if (edges := int(counts.max(initial=0))) > self._most_edges:
                    yield Hub(t, int(self._graph.user_ids(np.array([first + counts.argmax()]), t)[0]), edges)

    @property
    def _memory(self) -> int:
        """Bytes of memory that the outputs of layers and all other tables may take on this host."""
        return min(self.options.memory_bytes, self._tables.options.limit_bytes)

    def _room(self, shapes: Mapping[Any, tuple[int, ...]]) -> Room:
        """Plans memory and disk of the run. A collective call."""
        homes, types = self._tables.homes, self.facts.counts
        own = {t: sum(each.count for each in homes.own_parts(self._graph.space(t, "node"))) for t in types}
        halo = {t: len(rows) for t, rows in self.facts.halos.items()}
        dtype = np.dtype(self.options.dtype)
        taken, ranks = self._tables.nbytes, self._tables.ranks
        return Room(self.module, shapes, own, halo, dtype, self._memory, taken, self._keep_outputs, ranks)

    def _degree_rows(self) -> LayerRows | None:
        return None if self.facts.degrees is None else self._with_halo(self.facts.degrees)[0]

    def _plan(self) -> list[Step]:
        homes, chunks = self._graph.tables.homes, {}
        ranks = homes.ranks_of(homes.host)
        for node_type, parts in self.facts.counts.items():
            found = chunks_of(parts, self.options.batch_size, self._most_edges)
            chunks[node_type] = share_of(found, ranks.index(homes.rank), len(ranks))
        return [
            Step(k, self._graph.space(t, "node"), chunks[t])
            for k in range(EMBED, self.module.num_layers)
            for t in self.module.rows_of(k)
        ]

    def loaders(self) -> list[Any]:
        """Makes the loaders, one for each of ``steps``."""
        return [self._make_loader(step.spec(self._weight_attr)) for step in self.steps]

    def take(self, number: int, batch: Any, *, last: bool) -> dict[str, Tensor] | None:
        """Computes a batch of step ``number``. last: it is the last one of this rank in this step."""
        step = self.steps[number]
        if number != self._step:
            self._begin(number)
        self.marks.beat(f"computing {step.text}")
        rows = self._seed_rows(step, batch)
        out = self._compute(step, batch, len(rows)) if len(rows) else None
        if self._keep_outputs or step.layer < self.module.num_layers - 1:
            self._write(step, rows, out)
        columns = None
        if out is not None and not self._keep_outputs and step.layer == self._last.get(step.node_type):
            columns = self._columns(step, rows, out)
        if last and number + 1 == len(self.steps):
            # waits as long as others progress; collective calls of torch, which follow, time out
            self.marks.exchange("done")
        return columns

    def _begin(self, number: int) -> None:
        """Begins a step: if it is the first one of a layer, its inputs become the outputs that all ranks have written."""
        step, before = self.steps[number], self.steps[self._step] if number else None
        self._step = number
        if before is None or before.layer == step.layer:
            return
        self.marks.exchange(step.text)  # returns when all ranks have written what this layer reads
        for node_type, table in self._written.items():
            old = self._inputs.pop(node_type, None)
            if old is not None and self.module.keep_all and old.layer > EMBED:
                self._kept.setdefault(node_type, []).append(old.rows)
            elif old is not None:
                old.rows.close()
            rows, fetched = self._with_halo(table)
            self._inputs[node_type] = _Outputs(before.layer, rows)
            if fetched:
                self.traffic.rows[step.layer, node_type] = fetched
                self.traffic.nbytes[step.layer, node_type] = fetched * row_bytes(table.dtype, table.row_shape)
        self._written = {}

    def _with_halo(self, table: SharedTable) -> tuple[LayerRows, int]:
        halo = self.facts.halos[table.space.label]
        on_disk = self._on_disk(len(halo) * row_bytes(table.dtype, table.row_shape))
        return fetch_halo(self._tables, table, halo, on_disk, self.marks.beat)

    def _on_disk(self, nbytes: int) -> bool:
        """Tells whether ``nbytes`` more would exceed the memory that tables may take on this host."""
        return self._tables.nbytes + nbytes > self._memory

    # A batch

    def _seed_rows(self, step: Step, batch: Any) -> np.ndarray:
        store = self.module.store(batch, step.node_type)
        return _numpy(store.row[: int(store.batch_size)])

    def _compute(self, step: Step, batch: Any, seeds: int) -> Tensor:
        """Returns [S, ...]: the outputs of the seeds."""
        if step.layer == EMBED:
            found = self.module.embed(batch)
        else:
            if self._degrees is not None:
                batch.in_degree = torch.from_numpy(self._degrees.read(_numpy(batch.row))).to(batch.row.device)
            aggregate = self.module.aggregates[step.layer]
            if aggregate is not None and self._may_sum(batch):
                return self._sum(step, aggregate, batch, seeds)
            if seeds == 1 and self._needs_pieces(step, batch):
                return self._in_pieces(step, batch)
            h = {t: self._read(each.rows, self.module.store(batch, t).row) for t, each in self._inputs.items()}
            found = self.module.layer(step.layer, h, batch)
        out = one_row(found, step.node_type, seeds, step.layer)
        if step.layer == EMBED and out.is_floating_point():
            self._dtype = out.dtype
        return out

    def _needs_pieces(self, step: Step, batch: Any) -> bool:
        """Tells whether the only seed has more edges than are computed together, and the layer can be computed in pieces."""
        types = [batch[e].edge_index for e in self._graph.edge_types] if self.module.typed else [batch.edge_index]
        edges = sum(each.size(1) for each in types)
        return edges > self._most_edges and self.module.gathers(step.layer, step.node_type)

    def _in_pieces(self, step: Step, batch: Any) -> Tensor:
        """Returns [1, D]: the output of the only seed, for which the rows of its edges are read a piece at a time."""
        own = self.module.store(batch, step.node_type).row[:1]
        read = self._inputs[step.node_type].rows
        pieces = self.module.pieces(step.layer, self._read(read, own), batch, step.node_type)
        for number, sources in enumerate(pieces.sources):
            node_type = sources.node_type or step.node_type
            table, rows = self._inputs[node_type].rows, self.module.store(batch, node_type).row
            at_once = max(1, min(self._most_edges, _PIECE_BYTES // self._widest))
            for begin in range(0, len(sources.at), at_once):
                self.marks.beat(f"computing {step.text}")
                piece = slice(begin, begin + at_once)
                pieces.add(number, self._read(table, rows[sources.at[piece]]), piece)
        return pieces.end()

    def _may_sum(self, batch: Any) -> bool:
        """Tells whether rows are summed in the table, without a copy. A GPU sums its own copy, unless a node has too many edges
        for that."""
        whole = self.options.dtype == "float32" and self._dtype == torch.float32
        return whole and (is_host(batch.row.device) or batch.edge_index.size(1) > self._most_edges)

    def _sum(self, step: Step, kind: str, batch: Any, seeds: int) -> Tensor:
        """Computes a layer that reads only a sum of rows, without a copy of the neighbours' rows."""
        rows, device = self._inputs[step.node_type].rows, batch.row.device
        values = rows.sum(
            _numpy(batch.row), _numpy(batch.edge_index), seeds, mean=kind == "mean", threads=self._threads
        )
        aggregated = torch.from_numpy(values).to(device)
        return self.module.combine(step.layer, self._read(rows, batch.row[:seeds]), aggregated)

    def _read(self, rows: LayerRows, at: Tensor) -> Tensor:
        return torch.from_numpy(rows.read(_numpy(at), self._threads)).to(at.device).to(self._dtype)

    def _write(self, step: Step, rows: np.ndarray, out: Tensor | None) -> None:
        """Stores the outputs of rows of this host. No lock is needed: no other rank writes to these rows."""
        table = self._written.get(step.node_type)
        if table is None:
            table = self._written[step.node_type] = self._create(step, out)
        if out is not None:
            begin = int(table.position(rows[:1])[0])  # rows of a chunk are one after the other
            table.own[begin : begin + len(rows)] = _numpy(out.float() if out.dtype == torch.bfloat16 else out)

    def _create(self, step: Step, out: Tensor | None) -> SharedTable:
        """Makes the table of a step's outputs. A collective call; ranks without rows get the row shape from the others."""
        shapes = [
            json.loads(text) for text in self.marks.exchange(json.dumps(None if out is None else [*out.shape[1:]]))
        ]
        shape = next((tuple(each) for each in shapes if each is not None), (1,))
        own = sum(each.count for each in self._tables.homes.own_parts(step.space))
        full = self._on_disk(own * row_bytes(np.dtype(self.options.dtype), shape))
        storage = "disk" if "true" in self.marks.exchange(json.dumps(full)) else "memory"  # the same on all hosts
        name = f"layerwise/{step.layer}/{step.node_type}"
        return self._tables.create(TableSpec(step.space, self.options.dtype, shape, name, storage=storage))

    def _columns(self, step: Step, rows: np.ndarray, out: Tensor) -> dict[str, Tensor]:
        """Computes the columns that are written for the seeds, those that are deleted left out."""
        hs = [out]
        if self.module.keep_all:
            held = self._inputs.get(step.node_type)
            before = [*self._kept.get(step.node_type, ()), *([held.rows] if held and held.layer > EMBED else ())]
            at = torch.from_numpy(rows).to(out.device)
            hs = [*(self._read(each, at) for each in before), out]
        columns = self.module.head(hs, step.node_type)
        columns = {"n_id": self._graph.user_ids(rows, step.node_type)} | columns
        deleted = self._deleted[step.node_type]
        if not len(deleted):
            return columns
        at = torch.searchsorted(deleted, columns["n_id"]).clamp(max=len(deleted) - 1)
        left = deleted[at] != columns["n_id"]
        return {name: values[left.to(values.device)] for name, values in columns.items()}

    # Outputs that are kept

    def outputs(self, rows: Tensor, node_type: str) -> list[Tensor]:
        """Reads the outputs of rows int64 [n] of any host, on the device of ``rows``: of the last layer, or of all layers if the
        module keeps all."""
        held = self._inputs.get(node_type)
        tables = [each.table for each in self._kept.get(node_type, ())]
        if held is not None and (held.layer > EMBED or self._last[node_type] == EMBED):
            tables.append(held.rows.table)
        if node_type in self._written:
            tables.append(self._written[node_type])
        chosen = tables if self.module.keep_all else tables[-1:]
        at = _numpy(rows)
        return [torch.from_numpy(each.read(at)).to(rows.device).to(self._dtype) for each in chosen]

    def release(self) -> None:
        """Drops the outputs when no rank reads them any more. A collective call."""
        self.marks.exchange("read")
        self._drop()

    def restart(self, module: LayerwiseLayers) -> None:
        """Prepares another pass over the steps, after `release`, with a module of the same form."""
        self.module, self._step = module, -1

    def _drop(self) -> None:
        for each in self._inputs.values():
            each.rows.close()
        for rows in self._kept.values():
            for row in rows:
                row.close()
        for table in self._written.values():
            table.close()
        self._inputs, self._kept, self._written = {}, {}, {}

    def close(self) -> None:
        """Closes this rank's view of all rows. Safe to call twice."""
        self._drop()
        if self._degrees is not None:
            self._degrees.close()
            self._degrees = None
        self._tables.close()


@dataclass(frozen=True, eq=False)
class _Outputs:
    layer: int
    rows: LayerRows


def is_host(device: torch.device) -> bool:
    """Tells whether ``device`` is the CPU, which reads tables without a copy."""
    return device.type == "cpu"


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()
