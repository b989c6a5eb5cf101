"""The protocol of modules whose layers can be computed one after the other over the whole graph, and the self-check that compares
them with the module's own forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from glt_lightning.base import DataError
from glt_lightning.inference.pieces import HubPieces

_TOLERANCE = 1e-4
_COARSE = {torch.bfloat16: 3e-2, torch.float16: 5e-3}
EMBED = -1  # stands for the number of a layer where the inputs of the first are meant
Rows: TypeAlias = Tensor | Mapping[str, Tensor]  # by node type in a typed graph


class Layerwise(Protocol):
    """A module whose layer k + 1 reads only the outputs of layer k of a node and its neighbours.

    Further members are optional:

    * ``embed(batch)``: returns the inputs of layer 0, a row for each node of the batch; in a typed graph by node type. Default:
      ``x``.
    * ``head(hs)``, in a typed graph ``head(hs, node_type)``: returns the columns that are written for some nodes: a tensor, as
      column ``embedding``, or columns by name. hs: the outputs of the last layer, or of all layers if ``keep`` is ``"all"``
      (jumping knowledge). Default: the outputs of the last layer.
    * ``keep``: ``"last"`` or ``"all"``.
    * ``reference(batch)``: returns the columns of the seeds of a batch with as many hops as layers, for the self-check. Default:
      ``forward(batch)``.
    * ``degrees``: a `DegreeSpec`, for layers that read the degrees of neighbours: batches then have ``in_degree``, float [N].
    * ``aggregates``: for each layer ``"sum"`` or ``"mean"`` if it reads only the sum or mean of the neighbours' rows, else None;
      and ``combine(k, h, aggregated)``, which returns a layer's outputs from the rows of some nodes and these aggregates. Sums
      are then read from the outputs of the layer before without a copy of each neighbour's row, so that a node may have any
      number of edges. Not in typed graphs.
    * ``gathers(k, node_type)``: True if layer k of a node can be computed from some of its edges at a time; and
      ``pieces(k, own, batch, node_type)``, which returns a `HubPieces` that does so. own: [1, D], the node's own row; batch: of
      this node alone. A node may then have more edges than are computed together.
    * ``answer(hs)``: returns the result of the module's own call of ``forward(batch)`` when all outputs are known already
      (``evaluation.mode: layerwise``). hs: as for ``head``; in a typed graph by node type. Default: the column
      ``embedding`` of ``head``.
    * ``targets(k)``: in a typed graph the node types whose rows layer k makes; rows of other types are passed on unchanged.
    * ``output_types``: in a typed graph the node types whose rows are written.
    * ``input_types``: in a typed graph the node types for which ``embed`` returns rows.
    """

    num_layers: int

    def layer(self, k: int, h: Any, batch: Any) -> Any:
        """Computes layer ``k`` for the seeds of a batch of one hop with all neighbours. h: rows of all its nodes, seeds first; in
        a typed graph by node type, as are the outputs."""


@dataclass(frozen=True)
class DegreeSpec:
    """A definition of degrees: the sum of the weights of a node's incoming edges. weight: an edge attribute; None: every edge
    weighs 1.

    loops: count one edge from each node to itself, as GCN does: with the weight of that edge in the graph, else ``fill``.
    """

    weight: str | None = None
    loops: bool = False
    fill: float = 1.0

    def of(self, batch: Any, num_nodes: int) -> Tensor:
        """Returns float32 [num_nodes]: the degrees of the nodes of a batch, from its own edges."""
        edge_index = batch.edge_index
        row, col = edge_index[0].long(), edge_index[1].long()
        weights = torch.ones(len(row), dtype=torch.float64)
        if self.weight is not None:
            if self.weight not in batch:
                raise DataError(
                    f"layer-wise inference: edges have no attribute {self.weight!r}, by which degrees are summed."
                )
            weights = batch[self.weight].detach().cpu().double().flatten()
        row, col = row.cpu(), col.cpu()
        found = torch.zeros(num_nodes, dtype=torch.float64)
        if not self.loops:
            return found.index_add_(0, col, weights).float()
        loop = row == col
        found.index_add_(0, col[~loop], weights[~loop])
        of_loops = torch.full((num_nodes,), self.fill if self.weight is not None else 1.0, dtype=torch.float64)
        of_loops[col[loop]] = weights[loop]
        return (found + of_loops).float()


class LayerwiseLayers:
    """A `Layerwise` module with all members: the optional ones that it lacks have their defaults.

    types: node types of the graph.  typed: batches are by type.  edge_names: attributes of edges, by edge type."""

    def __init__(
        self,
        given: Any,
        types: Sequence[str],
        typed: bool,
        edge_names: Mapping[Any, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.given, self.typed, self.types, self.edge_names = given, typed, list(types), edge_names
        self.num_layers: int = given.num_layers
        self.keep_all: bool = getattr(given, "keep", "last") == "all"
        self.degrees: DegreeSpec | None = getattr(given, "degrees", None)
        aggregates = None if typed else getattr(given, "aggregates", None)
        self.aggregates: list[str | None] = [None] * given.num_layers if aggregates is None else list(aggregates)
        self.output_types: list[str] = list(getattr(given, "output_types", None) or types)
        self.input_types: list[str] = list(getattr(given, "input_types", None) or types)

    def targets(self, k: int) -> list[str]:
        """The node types whose rows layer k makes, in the order of the graph's."""
        choose = getattr(self.given, "targets", None)
        if not self.typed or choose is None:
            return self.types
        chosen = set(choose(k))
        return [t for t in self.types if t in chosen]

    def rows_of(self, k: int) -> list[str]:
        """The node types whose rows layer k makes; for `EMBED` those of the inputs."""
        return self.input_types if k == EMBED else self.targets(k)

    def embed(self, batch: Any) -> dict[str, Tensor]:
        embed = getattr(self.given, "embed", None)
        if embed is not None:
            return self._by_type(embed(batch))
        return {t: self.store(batch, t).x for t in self.types if "x" in self.store(batch, t)}

    def layer(self, k: int, h: Mapping[str, Tensor], batch: Any) -> dict[str, Tensor]:
        found = self.given.layer(k, dict(h) if self.typed else h[self.types[0]], batch)
        return self._by_type(found)

    def combine(self, k: int, h: Tensor, aggregated: Tensor) -> Tensor:
        found: Tensor = self.given.combine(k, h, aggregated)
        return found

    def gathers(self, k: int, node_type: str) -> bool:
        """Tells whether `pieces` can compute layer k of nodes of a type."""
        found = getattr(self.given, "gathers", None)
        return found is not None and bool(found(k, node_type))

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        """Computes layer k of the only seed of a batch from some of its edges at a time. own: [1, D], the row of the seed."""
        found: HubPieces = self.given.pieces(k, own, batch, node_type)
        return found

    def head(self, hs: Sequence[Tensor], node_type: str) -> dict[str, Tensor]:
        """Returns the columns that are written for nodes of a type. hs: their outputs of the last layer, or of all layers if the
        module keeps all."""
        head = getattr(self.given, "head", None)
        found: Any = list(hs) if self.keep_all else hs[-1]
        if head is not None:
            found = head(found, node_type) if self.typed else head(found)
        return dict(found) if isinstance(found, Mapping) else {"embedding": found}

    @property
    def asked(self) -> tuple[Any, str]:
        """The object, and the name of its method, that the module calls for the outputs of a batch's seeds."""
        found: tuple[Any, str] = getattr(self.given, "asked", (self.given, "forward"))
        return found

    def answer(self, hs: Mapping[str, Sequence[Tensor]]) -> Any:
        """Returns the result of the method `asked` from outputs that are known. hs: as in `head`, of the nodes of a batch, by
        node type."""
        answer = getattr(self.given, "answer", None)
        if answer is not None:
            each = {t: list(rows) if self.keep_all else rows[-1] for t, rows in hs.items()}
            return answer(each if self.typed else each[self.types[0]])
        some = [t for t, rows in hs.items() if len(rows[-1])] or list(hs)[:1]
        heads = {t: self.head(hs[t], t) for t in some}
        found = {t: columns.get("embedding", columns) for t, columns in heads.items()}
        return found if len(some) > 1 else found[some[0]]

    def check_call(self, batch: Any, arguments: Sequence[Any]) -> None:
        """Raises if the method `asked` is called with arguments other than the batch's own."""
        check = getattr(self.given, "check_call", None)
        if check is not None:
            check(batch, arguments)

    def reference(self, batch: Any) -> dict[str, Tensor] | None:
        """Computes the columns of the seeds of a batch of all hops by the module's own forward pass; None if it has none."""
        compute = getattr(self.given, "reference", None) or self.given
        if not callable(compute):
            return None
        found = compute(batch)
        return dict(found) if isinstance(found, Mapping) else {"embedding": found}

    def check(self, batch: Any) -> bool:
        """Compares the layers with the module's own forward pass, for the seeds of a sampled batch with as many hops as layers.
        Returns False if the module has no forward pass. Raises `DataError`, with both values, if they differ by more than
        rounding."""
        expected = self.reference(batch)
        if expected is None:
            return False
        found, computed = _by_layers(self, batch)
        tolerance = max(
            _COARSE.get(kind, _TOLERANCE) for kind in (computed, *(each.dtype for each in expected.values()))
        )
        for name in sorted(expected.keys() & found.keys()):
            _compare(name, found[name], expected[name][: len(found[name])], tolerance)
        return True

    def store(self, batch: Any, node_type: str) -> Any:
        return batch[node_type] if self.typed else batch

    def _by_type(self, rows: Rows) -> dict[str, Tensor]:
        return {self.types[0]: rows} if isinstance(rows, Tensor) else dict(rows)


# The self-check of a module.


def _compare(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    if not expected.is_floating_point():
        return  # such as classes, which rounding may change where two scores are nearly equal
    if found.shape != expected.shape:
        raise DataError(
            f"layer-wise inference: self-check: {name!r}: the layers give {list(found.shape)}, the module's own forward pass "
            f"{list(expected.shape)}. Layers and head have to compute what forward(batch) returns for the seeds."
        )
    if not found.numel():
        return
    scale = float(expected.abs().max())
    apart = (found.double() - expected.double()).abs()
    worst = int(apart.flatten(1).max(1).values.argmax()) if apart.dim() > 1 else int(apart.argmax())
    if not float(apart.max()) <= tolerance * max(scale, 1e-6):  # also if it is NaN
        show = [values[worst].flatten()[:4].tolist() for values in (found, expected)]
        raise DataError(
            f"layer-wise inference: self-check: {name!r}: seed {worst} of a batch is {show[0]} layer by layer, but {show[1]} "
            "by the module's own forward pass. A layer of the module reads more than the outputs of a node's neighbours, such as "
            "the whole batch; it cannot be computed this way. Use trainer.predict, or give the module its own layer()."
        )


def _by_layers(module: LayerwiseLayers, batch: Any) -> tuple[dict[str, Tensor], torch.dtype]:
    """Computes the columns of the seeds, each layer over the prefix of the batch that the later layers need, and tells the dtype
    of the layers' outputs."""
    h, hs = module.embed(batch), []
    (output,) = [t for t in module.output_types if int(getattr(module.store(batch, t), "batch_size", 0) or 0)][:1]
    seeds = int(module.store(batch, output).batch_size)
    last = module.num_layers - 1
    if module.degrees is not None:
        batch.in_degree = module.degrees.of(batch, len(batch.row)).to(batch.row.device)
    for k in range(module.num_layers):
        hops = last - k + 1  # that are left
        counts = {t: module.store(batch, t).num_sampled_nodes for t in module.types}
        sources = {t: rows[: sum(counts[t][: hops + 1])] for t, rows in h.items()}
        part = _prefix(module, batch, hops, counts)
        kind = module.aggregates[k]
        out = (
            module.layer(k, sources, part)
            if kind is None
            else {output: _combined(module, k, kind, sources[output], part)}
        )
        h = {t: out.get(t, rows)[: sum(counts[t][:hops])] for t, rows in sources.items()}
        if output in out:
            hs.append(h[output][:seeds])
    hs = hs or [h[output][:seeds]]
    return module.head(hs, output), hs[-1].dtype


def _combined(module: LayerwiseLayers, k: int, kind: str, h: Tensor, batch: Any) -> Tensor:
    """Computes a layer from the sum or the mean of the neighbours' rows, as a run does."""
    (src, dst), seeds = batch.edge_index, int(batch.batch_size)
    sums = h.new_zeros(seeds, h.size(1)).index_add_(0, dst, h[src])
    if kind == "mean":
        sums = sums / torch.bincount(dst, minlength=seeds).clamp(min=1)[:, None].to(h.dtype)
    return module.combine(k, h[:seeds], sums)


def _prefix(module: LayerwiseLayers, batch: Any, hops: int, counts: Mapping[str, Sequence[int]]) -> Any:
    """Makes a batch of one hop from the first ``hops`` hops of a batch; its seeds are all nodes but those of the last hop."""
    part = batch.clone()
    for edge_type, names in module.edge_names.items():
        store = part[edge_type] if module.typed else part
        edges = sum(store.num_sampled_edges[:hops])
        store.edge_index = store.edge_index[:, :edges]
        for name in (*names, "e_id"):
            if name in store:
                store[name] = store[name][:edges]
        store.num_sampled_edges = [edges]
    for t, per_hop in counts.items():
        store = module.store(part, t)
        store.batch_size = sum(per_hop[:hops])
        store.num_sampled_nodes = [store.batch_size, sum(per_hop[: hops + 1]) - store.batch_size]
        for name in ("row", "n_id", "in_degree", "x"):
            if name in store:
                store[name] = store[name][: sum(per_hop[: hops + 1])]
    return part
