"""What a module offers so that its layers can be computed one after the other over the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

EMBED = -1  # stands for the number of a layer where the inputs of the first are meant


Rows: TypeAlias = Tensor | Mapping[str, Tensor]  # by node type in a typed graph


class Layerwise(Protocol):
    """A module whose layer k + 1 reads of a node's neighbours nothing but their outputs of layer k.

    Further members are optional:

    * ``embed(batch)``: inputs of layer 0, a row for each node of the batch; in a typed graph by node type. Without it ``x``.
    * ``head(hs)``, in a typed graph ``head(hs, node_type)``: what is written of some nodes: a tensor, as column ``embedding``,
      or columns by name. hs: their outputs of the last layer; of all layers, where ``keep`` is ``"all"`` (jumping knowledge).
      Without it the last outputs.
    * ``keep``: ``"last"`` or ``"all"``.
    * ``reference(batch)``: the same of the seeds of a batch of as many hops as layers, for the self-check. Without it
      ``forward(batch)``.
    * ``degrees``: a `DegreeSpec`, for layers that read the degrees of neighbours: batches then have ``in_degree``, float [N].
    * ``aggregates``: for each layer ``"sum"`` or ``"mean"``, where all that it reads of a node's neighbours is the sum or mean of
      their rows, else None; and ``combine(k, h, aggregated)``, its outputs from the rows of some nodes and these. Sums are
      then read straight from the outputs of the layer before, so that a node may have any number of edges. Not in typed graphs.
    * ``gathers(k, node_type)``: whether layer k of a node can be computed from some of its edges at a time, and
      ``pieces(k, own, batch, node_type)``, a `HubPieces` that does it. own: [1, D], the node's own row; batch: of this node
      alone. A node may then have more edges than are computed together.
    * ``answer(hs)``: what the module's own call of ``forward(batch)`` gets where all outputs are known already
      (``evaluation.mode: layerwise``). hs: as for ``head``; in a typed graph by node type. Without it the column ``embedding`` of
      ``head``.
    * ``targets(k)``: in a typed graph the node types of which layer k makes rows; those of other types stay as they are.
    * ``output_types``: in a typed graph the node types of which rows are written.
    * ``input_types``: in a typed graph the node types that ``embed`` gives rows of.
    """

    num_layers: int

    def layer(self, k: int, h: Any, batch: Any) -> Any:
        """Outputs of layer ``k`` for the seeds of a batch of one hop with all neighbours. h: rows of all its nodes, the seeds
        first; in a typed graph by node type, as are the outputs."""


@dataclass(frozen=True)
class DegreeSpec:
    """The sum of the weights of a node's incoming edges. weight: an edge attribute; None: every edge weighs 1.

    loops: as GCN counts: a node has one edge to itself, of the weight that it has in the graph, else ``fill``.
    """

    weight: str | None = None
    loops: bool = False
    fill: float = 1.0


class LayerwiseLayers:
    """A `Layerwise` module with all members, the optional ones at their defaults. types: node types of the graph.  typed: it has
    several node or edge types."""

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
        """Node types of which layer k makes rows, in the order of the graph's."""
        choose = getattr(self.given, "targets", None)
        if not self.typed or choose is None:
            return self._types
        chosen = set(choose(k))
        return [t for t in self._types if t in chosen]

    def rows_of(self, k: int) -> list[str]:
        """`targets`, and ``input_types`` for `EMBED`."""
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
        """Tells whether `pieces` computes layer k of a node of a type."""
        found = getattr(self.given, "gathers", None)
        return found is not None and bool(found(k, node_type))

    def pieces(self, k: int, own: Tensor, batch: Any, node_type: str) -> HubPieces:
        """own: [1, D], the row of the only seed of a batch."""
        found: HubPieces = self.given.pieces(k, own, batch, node_type)
        return found

    def head(self, hs: Sequence[Tensor], node_type: str) -> dict[str, Tensor]:
        """Columns. hs: as ``keep`` says, of nodes of a type."""
        head = getattr(self.given, "head", None)
        found: Any = list(hs) if self.keep_all else hs[-1]
        if head is not None:
            found = head(found, node_type) if self.typed else head(found)
        return dict(found) if isinstance(found, Mapping) else {"embedding": found}

    @property
    def asked(self) -> tuple[Any, str]:
        """(object, name of its method) that the module calls for the outputs of a batch's seeds."""
        found: tuple[Any, str] = getattr(self.given, "asked", (self.given, "forward"))
        return found

    def answer(self, hs: Mapping[str, Sequence[Tensor]]) -> Any:
        """What that method returns. hs: as ``keep`` says, of the nodes of a batch, by node type."""
        answer = getattr(self.given, "answer", None)
        if answer is not None:
            each = {t: list(rows) if self.keep_all else rows[-1] for t, rows in hs.items()}
            return answer(each if self.typed else each[self._types[0]])
        some = [t for t, rows in hs.items() if len(rows[-1])] or list(hs)[:1]
        heads = {t: self.head(hs[t], t) for t in some}
        found = {t: columns.get("embedding", columns) for t, columns in heads.items()}
        return found if len(some) > 1 else found[some[0]]

    def check_call(self, batch: Any, arguments: Sequence[Any]) -> None:
        """Raises where that method is called with something else than the batch's own."""
        check = getattr(self.given, "check_call", None)
        if check is not None:
            check(batch, arguments)

    def reference(self, batch: Any) -> dict[str, Tensor] | None:
        """Columns of the seeds of a batch of all hops, computed as the module does; None where it cannot."""
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
    """Where edges into a node begin. node_type: in a homogeneous graph the empty text.  at: int64 [E], positions among the nodes
    of the batch."""

    node_type: str
    at: Tensor


class HubPieces(Protocol):
    """A layer of one node. `add` gets all its edges, a piece at a time, then `end` is called."""

    @property
    def sources(self) -> Sequence[Sources]:
        """Of its edges, one entry for each edge type."""

    def add(self, number: int, rows: Tensor, piece: slice) -> None:
        """rows: [n, D], of the sources ``piece`` of entry ``number``."""

    def end(self) -> Tensor:
        """[1, D], the output of the node."""


class RunningSum:
    """The sum of rows, or their mean: 0 without rows."""

    def __init__(self, like: Tensor, *, mean: bool) -> None:
        self._mean, self._count, self._sum = mean, 0, torch.zeros_like(like)

    def add(self, rows: Tensor) -> None:
        """rows: [n, ...]."""
        self._sum, self._count = self._sum + rows.sum(0), self._count + len(rows)

    def value(self) -> Tensor:
        """[...]."""
        return self._sum / max(1, self._count) if self._mean else self._sum


class RunningSoftmax:
    """The sum of rows, weighted by the softmax of their scores, which all rows together have: 0 without rows.

    What was added is scaled down when a larger score comes (Milakov and Gimelshein, Online normalizer calculation for softmax,
    2018).

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
        """scores: [n, H].  rows: [n, H, C]."""
        if not len(scores):
            return
        most = torch.maximum(self._most, scores.amax(0))
        before, weights = (self._most - most).exp(), (scores - most).exp()
        self._total = self._total * before + weights.sum(0)
        self._sum = self._sum * before[:, None] + torch.einsum("nh,nhc->hc", weights, rows)
        self._most = most

    def value(self) -> Tensor:
        """[H, C]."""
        return self._sum / (self._total[:, None] + 1e-16)  # as PyG's softmax
