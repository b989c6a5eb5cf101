"""What the layers of an encoder read of edges: ``edge_attr`` with ``edge_codes``, or ``edge_weight``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch_geometric.nn import MLP, GraphSAGE, SAGEConv, conv as pyg_convs
from torch_geometric.typing import OptPairTensor, OptTensor  # noqa: F401  # which PyG reads from the comment

from glt_lightning.base import EDGE, DataError, EdgeType, OptionError, edge_type_str
from glt_lightning.inference import RunningSum
from glt_lightning.loader import run_aggregated
from glt_lightning.models.code_embedding import EDGE_CODES, CodeEmbedding

ATTR, WEIGHT = "edge_attr", "edge_weight"
EdgeFacts = Mapping[str, Any] | None

# Models of PyG's `BasicGNN` family -> what their convolutions read; `WeightedSAGE` reads weights in place of `SAGEConv`.
_FAMILY_READS = {"GAT": ATTR, "PNA": ATTR, "GCN": WEIGHT, "GraphSAGE": WEIGHT}
# Convolutions that have no messages without attributes of edges
_NEEDED = ("CGConv", "GINEConv", "GMMConv", "NNConv", "PDNConv", "SplineConv")


@dataclass(frozen=True)
class EdgeInput:
    """What layers read of the edges of one type.

    name: ``edge_attr`` or ``edge_weight``.  of: the edge type's name, for errors.  columns: width of the stored ``edge_attr``,
    None without it.  codes: number of codes of each column of ``edge_codes``.  width: of what layers get.
    """

    name: str
    of: str
    columns: int | None = None
    codes: tuple[int, ...] = ()
    width: int = 1

    def make_encoder(self) -> EdgeEncoder:
        return EdgeEncoder(self)

    def example(self, count: int) -> Tensor:
        """Values of some edges, all different, by which the form of a layer is found."""
        if self.name == WEIGHT:
            return torch.linspace(0.5, 2, count)
        return torch.linspace(-1, 1, count * self.width).cos().view(count, self.width)


class EdgeEncoder(nn.Module):
    """Computes what layers read of edges: their weights [E]; or their attributes [E, D], as they are, and where edges have codes
    projected and added to the vectors of these."""

    def __init__(self, given: EdgeInput) -> None:
        super().__init__()
        self.input = given
        self.like: Tensor
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the dtype that the model is cast to
        self.codes = CodeEmbedding(given.codes, given.width, EDGE_CODES) if given.codes else None
        self.layer = nn.Linear(given.columns, given.width) if given.codes and given.columns else None

    def forward(self, store: Any) -> Tensor:
        """Returns the values of the edges in ``store``, in their order."""
        codes = None if self.codes is None else self.codes(self.input.of, store)
        if codes is not None and self.layer is None:
            return codes
        values = self._stored(store)
        return values if codes is None or self.layer is None else self.layer(values) + codes

    def _stored(self, store: Any) -> Tensor:
        given = self.input
        values = store.get(given.name)
        if values is None:
            raise DataError(
                f"{given.name} of edge type {given.of!r}: the model reads it, and the batch has none. Give the edges the "
                "attribute, or build the model with edge_features: []."
            )
        values = values.to(self.like.dtype)
        if given.name == WEIGHT:
            return values.flatten()
        values = values.flatten(1) if values.dim() > 1 else values[:, None]
        if values.size(1) != given.columns:
            raise DataError(
                f"edge_attr of edge type {given.of!r} has {values.size(1)} columns, but the model was built for {given.columns}. "
                "Set edge_facts to match the data."
            )
        return values


def edge_inputs(
    name: str, facts: EdgeFacts, chosen: Sequence[str] | None, edge_types: Sequence[EdgeType] | None, width: int
) -> dict[EdgeType, EdgeInput]:
    """Finds what the layers of an encoder read, for the edge types that have it.

    facts: ``edge_facts`` of the data module.  chosen: attributes to read, any of edge_attr and edge_weight; None: all that there
    are.  edge_types: of a heterogeneous graph.  width: of vectors of codes.

    What there is and the layers cannot read is in the log, once. Raises `OptionError` for an attribute that is chosen and cannot
    be read.
    """
    if chosen is not None and (isinstance(chosen, str) or not set(chosen) <= {ATTR, WEIGHT}):
        raise OptionError(f"edge_features: expected a list with any of edge_attr and edge_weight; got {chosen!r:.80}.")
    by_type = _by_type(facts, edge_types)
    there = {n for found in by_type.values() for n in _names(found)}
    reads, found = edge_values_of(name), {}
    for wanted in chosen or ():
        if wanted not in there:
            raise OptionError(f"edge_features: the edges of this graph have no {wanted}. Remove it from edge_features.")
        if wanted != reads:
            raise OptionError(f"edge_features: {name} does not read {wanted}{_readers(wanted)}.")
    if chosen is None and (unread := sorted(there - {reads})):
        rank_zero_info(
            f"encoder: {name} does not read {' and '.join(unread)}, which edges of this graph have{_readers(unread[0])}."
        )
    for edge_type, each in by_type.items():
        if reads in _names(each) and (chosen is None or reads in chosen):
            of, codes = edge_type_str(edge_type), tuple(each["num_categories"])
            made = EdgeInput(WEIGHT, of) if reads == WEIGHT else None
            found[edge_type] = made or EdgeInput(ATTR, of, each["width"], codes, width if codes else each["width"])
    return found


def _by_type(facts: EdgeFacts, edge_types: Sequence[EdgeType] | None) -> dict[EdgeType, Mapping[str, Any]]:
    if not facts:
        return {}
    if edge_types is None:
        if "num_categories" not in facts:
            raise OptionError(
                "edge_facts: given by edge type, and metadata is None. Give the metadata of the graph, too."
            )
        return {EDGE: facts}
    known = {edge_type_str(e): e for e in ((src, rel, dst) for src, rel, dst in edge_types)}
    if unknown := sorted(set(facts) - set(known)):
        raise OptionError(f"edge_facts: expected any of {', '.join(known)}; got {unknown[0]!r}.")
    return {known[name]: each for name, each in facts.items()}


def _names(facts: Mapping[str, Any]) -> set[str]:
    return {
        name for name, there in ((ATTR, facts["width"] or facts["num_categories"]), (WEIGHT, facts["weight"])) if there
    }


def _readers(wanted: str) -> str:
    if wanted == ATTR:
        return "; GAT, GATv2Conv, GINEConv, TransformerConv, PNA and NNConv do"
    return "; GraphSAGE, GCN and GraphConv do"


def edge_values_of(name: str) -> str | None:
    """What the layers of an encoder take after x and edge_index: ``edge_attr``, ``edge_weight`` or None."""
    if name in _FAMILY_READS or not name.endswith("Conv"):
        return _FAMILY_READS.get(name)
    if name == "SAGEConv":
        return WEIGHT
    taken = list(inspect.signature(getattr(pyg_convs, name).forward).parameters)[2:4]
    return taken[1] if len(taken) > 1 and taken[0] == "edge_index" and taken[1] in (ATTR, WEIGHT) else None


def options_for_edges(
    name: str, kind: type, given: EdgeInput | None, width: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments by which a convolution of PyG is made to read the edges of a type. given: None: it reads nothing.

    Raises `OptionError` for one that cannot be without attributes of edges."""
    if given is None or given.name == WEIGHT:
        if name in _NEEDED:
            raise OptionError(
                f"encoder: {name} needs edge_attr, and {'the edges' if given is None else given.of} have none that it may read. "
                "Choose another encoder."
            )
        return dict(options)
    taken = {"GeneralConv": "in_edge_channels", "CGConv": "dim", "GMMConv": "dim", "SplineConv": "dim"}.get(
        name, "edge_dim"
    )
    made = dict(options)
    if taken in inspect.signature(kind).parameters or name in _FAMILY_READS:
        if made.get(taken) not in (None, given.width):
            raise OptionError(
                f"encoder_kwargs: {taken}: edges of type {given.of} have {given.width} columns; got {made[taken]!r}. Remove it."
            )
        made[taken] = given.width
    if name == "NNConv" and "nn" not in made:
        made["nn"] = MLP([given.width, width, width * width], norm=None)
    if name == "GINEConv" and "nn" not in made:
        made["nn"] = MLP([width, width, width], norm=None)
    return made


# GraphSAGE with weights of edges, which PyG's does not read.


class WeightedSAGE(SAGEConv):  # type: ignore[misc]  # PyG has no types
    """PyG's `SAGEConv` whose messages are the neighbours' rows times the weights of the edges, as PyG's `GraphConv` has them; a
    mean divides by the number of edges."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fuse = False  # by the sparse product of `SAGEConv`, which has no weights

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None, size: Any = None) -> Tensor:
        x = (x, x) if isinstance(x, Tensor) else x
        if self.project:
            x = (self.lin(x[0]).relu(), x[1])
        # propagate_type: (x: OptPairTensor, edge_weight: OptTensor)
        out = self.lin_l(self.propagate(edge_index, x=x, edge_weight=edge_weight, size=size))
        if self.root_weight and x[1] is not None:
            out = out + self.lin_r(x[1])
        return nn.functional.normalize(out, p=2.0, dim=-1) if self.normalize else out

    def message(self, x_j: Tensor, edge_weight: OptTensor) -> Tensor:
        return x_j if edge_weight is None else x_j * edge_weight.view(-1, 1)

    def gathering(self, own: Tensor) -> Any:
        """Makes the accumulator for one node (`glt_lightning.inference.ConvLayers`). own: [1, D], its row."""
        return _WeightedSum(self, own)

    @property
    def gathers(self) -> bool:
        """Whether `gathering` is what the layer computes."""
        return not self.project and str(self.aggr) in ("mean", "add", "sum")


class _WeightedSum:
    def __init__(self, conv: WeightedSAGE, own: Tensor) -> None:
        self._conv, self._own = conv, own
        self._sum = RunningSum(own[0], mean=str(conv.aggr) == "mean")

    def add(self, rows: Tensor, values: Tensor | None) -> None:
        self._sum.add(rows, values)

    def end(self) -> Tensor:
        return run_aggregated(self._conv, self._own, self._sum.value()[None])


class WeightedGraphSAGE(GraphSAGE):  # type: ignore[misc]
    """PyG's `GraphSAGE` of `WeightedSAGE`."""

    supports_edge_weight = True

    def init_conv(self, in_channels: Any, out_channels: int, **kwargs: Any) -> Any:
        return WeightedSAGE(in_channels, out_channels, **kwargs)
