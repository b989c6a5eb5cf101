"""The protocol of modules whose layers can be computed one after the other over the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

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


class LayerwiseLayers:
    """A `Layerwise` module with all members: the optional ones that it lacks have their defaults.

    types: node types of the graph.  typed: the graph has several node or edge types."""

    def __init__(self, given: Any, types: Sequence[str], typed: bool) -> None:
        self.given, self.typed, self._types = given, typed, list(types)
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
            return self._types
        chosen = set(choose(k))
        return [t for t in self._types if t in chosen]

    def rows_of(self, k: int) -> list[str]:
        """The node types whose rows layer k makes; for `EMBED` those of the inputs."""
        return self.input_types if k == EMBED else self.targets(k)

    def embed(self, batch: Any) -> dict[str, Tensor]:
        embed = getattr(self.given, "embed", None)
        if embed is not None:
            return self._by_type(embed(batch))
        return {t: self.store(batch, t).x for t in self._types if "x" in self.store(batch, t)}

    def layer(self, k: int, h: Mapping[str, Tensor], batch: Any) -> dict[str, Tensor]:
        found = self.given.layer(k, dict(h) if self.typed else h[self._types[0]], batch)
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
            return answer(each if self.typed else each[self._types[0]])
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

    def store(self, batch: Any, node_type: str) -> Any:
        return batch[node_type] if self.typed else batch

    def _by_type(self, rows: Rows) -> dict[str, Tensor]:
        return {self._types[0]: rows} if isinstance(rows, Tensor) else dict(rows)


# Layers of a node with many edges, computed from some of its edges at a time.


@dataclass(frozen=True)
class Sources:
    """The sources of edges into a node. node_type: the empty text in a homogeneous graph.  at: int64 [E], positions among the
    nodes of the batch."""

    node_type: str
    at: Tensor


class HubPieces(Protocol):
    """The computation of a layer for one node. `add` is called with all its edges, a piece at a time, then `end`."""

    @property
    def sources(self) -> Sequence[Sources]:
        """The sources of the node's edges, one entry for each edge type."""

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        """Adds edges. rows: [n, D], the rows of the sources ``piece`` of entry ``number`` of `sources`."""

    def end(self) -> Tensor:
        """Returns [1, D], the output of the node."""


class RunningSum:
    """The sum of rows, or their mean: 0 without rows."""

    def __init__(self, like: Tensor, *, mean: bool) -> None:
        self._mean, self._count, self._sum = mean, 0, torch.zeros_like(like)

    def add(self, rows: Tensor) -> None:
        """Adds rows [n, ...]."""
        self._sum, self._count = self._sum + rows.sum(0), self._count + len(rows)

    def value(self) -> Tensor:
        """Returns the sum or mean [...] of all rows."""
        return self._sum / max(1, self._count) if self._mean else self._sum


class RunningSoftmax:
    """The sum of rows, weighted by the softmax of the scores of all rows: 0 without rows.

    The running sum is scaled down when a larger score arrives (Milakov and Gimelshein, Online normalizer calculation for
    softmax, 2018).

    >>> found = RunningSoftmax(heads=1, like=torch.zeros(2))
    >>> for score, row in ((1000.0, [1.0, 0.0]), (1000.0, [0.0, 1.0])):
    ...     found.add(torch.tensor([[score]]), torch.tensor([[row]]))
    >>> found.value()
    tensor([[0.5000, 0.5000]])
    """

    def __init__(self, heads: int, like: Tensor) -> None:
        """like: [C], a row of a head."""
        self._most = like.new_full((heads,), float("-inf"))
        self._total = like.new_zeros(heads)
        self._sum = like.new_zeros(heads, len(like))

    def add(self, scores: Tensor, rows: Tensor) -> None:
        """Adds rows [n, H, C] with scores [n, H]."""
        if not len(scores):
            return
        most = torch.maximum(self._most, scores.amax(0))
        before, weights = (self._most - most).exp(), (scores - most).exp()
        self._total = self._total * before + weights.sum(0)
        self._sum = self._sum * before[:, None] + torch.einsum("nh,nhc->hc", weights, rows)
        self._most = most

    def value(self) -> Tensor:
        """Returns the weighted sum [H, C]."""
        return self._sum / (self._total[:, None] + 1e-16)  # as PyG's softmax
