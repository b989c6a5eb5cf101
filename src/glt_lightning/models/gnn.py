"""PyG's basic GNNs by name, over sampled batches of homogeneous and heterogeneous graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.models.basic_gnn import BasicGNN

from glt_lightning.base import DataError, EdgeType, GLTError, NodeType, NoEmbeddingError, OptionError, edge_type_str
from glt_lightning.loader import BatchLayout, TrimmedConvs, aggregates_of, fuse_layers, relu_dropout
from glt_lightning.models.code_embedding import CodeEmbedding, NumCategories, categories_of
from glt_lightning.models.edges import EdgeInput, WeightedGraphSAGE, options_for_edges
from glt_lightning.models.layers import NO_VALUES, refuse_cached
from glt_lightning.tensors import DistEmbedding

Metadata = tuple[list[NodeType], list[EdgeType]]

FAMILY: dict[str, type[Any]] = {kind.__name__: kind for kind in BasicGNN.__subclasses__()}


# Published with these by PNA's authors, and in PyG's example.
_PNA = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}


def family_options(name: str, options: Mapping[str, Any], edges: EdgeInput | None = None) -> dict[str, Any]:
    """Converts options to arguments of a class of the family: `PNA` takes the histogram of degrees as a tensor. edges: what it
    reads of edges."""
    refuse_cached(name, options)
    options = options_for_edges(name, gnn_class(name), edges, 0, options)
    if name != "PNA":
        return options
    degrees = torch.as_tensor(options.get("deg", ()))
    if degrees.dim() != 1 or not degrees.numel() or degrees.is_floating_point() or not int(degrees.sum()):
        raise OptionError(
            "PNA: deg: expected the numbers of nodes with 0, 1, 2, ... incoming edges, as encoder_kwargs: "
            f"{{deg: [12, 40, 7]}}; got {options.get('deg')!r}. "
            "torch.bincount(torch_geometric.utils.degree(edge_index[1], num_nodes).long()) counts them."
        )
    return {**_PNA, **options, "deg": degrees}


@contextmanager
def errors_of_pyg(given: str) -> Iterator[None]:
    """Turns any error of PyG, which documents none, into an `OptionError` whose text begins with ``given``."""
    try:
        yield
    except GLTError:
        raise
    except Exception as error:
        raise OptionError(f"{given}: {str(error) or type(error).__name__}.") from error


def gnn_class(name: str, edges: EdgeInput | None = None) -> type[Any]:
    """The class of PyG's `BasicGNN` family with this name; ours for a GraphSAGE that reads weights of edges. Raises `OptionError`
    that lists them."""
    if name not in FAMILY:
        raise OptionError(f"model: expected one of {', '.join(sorted(FAMILY))}; got {name!r}.")
    return WeightedGraphSAGE if name == "GraphSAGE" and edges is not None else FAMILY[name]


def num_seeds(store: Any) -> int:
    """Number of seeds of one node type in a batch. In a batch of edges, which has no ``batch_size``, these are the edges' ends.

    Raises `DataError` if they are not the first nodes."""
    if "root_n_id" in store:
        raise DataError(
            "ptr: the seeds of these batches are at root_n_id, and the built-in modules take the first nodes. Remove "
            "data.batches.ptr, or use a module of your own."
        )
    if "batch_size" not in store and "num_sampled_nodes" not in store:
        raise DataError(
            "the batch has no batch_size, the number of its seeds, which are its first nodes. Set it: batch.batch_size = n."
        )
    return int(store.batch_size if "batch_size" in store else store.num_sampled_nodes[0])


class HomogeneousGNN(nn.Module):
    """Computes logits of a batch's seeds by a PyG model. Nodes without features get a learned embedding.

    in_channels: width of ``x``; None learns an embedding for each of ``num_nodes`` nodes.
    num_categories: number of codes of each column of ``x_codes``; their vectors are added to the projected features.
    edges: what the layers read of edges; None: nothing.
    """

    def __init__(
        self,
        name: str,
        in_channels: int | None,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        dropout: float,
        num_nodes: int | None,
        options: Mapping[str, Any],
        num_categories: NumCategories = None,
        node_embedding: str = "dense",
        edges: EdgeInput | None = None,
    ) -> None:
        super().__init__()
        codes = categories_of(num_categories, "node")
        given: dict[str, Any] = {"num_categories": codes, "node_embedding": node_embedding}
        self.encoder = NodeEncoder(in_channels, num_nodes, hidden_channels, project=bool(codes), **given)
        width = hidden_channels if in_channels is None or codes else in_channels
        options = family_options(name, options, edges)
        self.edges = None if edges is None else edges.make_encoder()
        self.gnn = fuse_layers(
            gnn_class(name, edges)(width, hidden_channels, num_layers, out_channels, dropout=dropout, **options)
        )
        widths = [width] + [hidden_channels] * (num_layers - 1)
        self.trimmed = trimmed(name, self.gnn.convs, widths, options, edges)
        as_given = isinstance(self.encoder.layer, nn.Identity) and self.trimmed.forms is not None
        self.takes_aggregates = aggregates_of(self.gnn.convs[0]) if as_given else ()

    def forward(self, batch: Data) -> Tensor:
        """Returns logits [S, C] of the S seeds."""
        x = self.encoder("node", batch)
        takes = self.takes_aggregates
        out = self.trimmed.run(x, batch, self.values(batch), self._activate, aggregates=takes, whole=self._whole)
        return out[: num_seeds(batch)]

    def values(self, batch: Data) -> list[Tensor]:
        """Returns what convolutions read of edges, in the order of the batch: one tensor, or none."""
        return [] if self.edges is None else [self.edges(batch)]

    def _whole(self, x: Tensor, edge_index: Tensor, *values: Tensor) -> Tensor:
        name = "edge_attr" if self.gnn.supports_edge_attr else "edge_weight"
        out: Tensor = self.gnn(x, edge_index, **{name: values[0]} if values else {})
        return out

    def _activate(self, x: Tensor) -> Tensor:
        act, dropout = self.gnn.act, self.gnn.dropout
        if type(act) is nn.ReLU:
            return relu_dropout(x, dropout.p, dropout.training)
        return dropout(x if act is None else act(x))


class HeterogeneousEncoder(nn.Module):
    """Computes embeddings of a batch's seeds by layers over the edge types.

    Each node type is projected to ``hidden_channels`` (or has a learned embedding). A layer has only the edge types that can
    still reach the seeds, so that every parameter gets a gradient, which DDP requires.

    target_type: node type of the seeds, or several.
    make_layer: makes the layer of some edge types. A layer has ``edge_types``, those edge types, and ``activate``, whether
        its outputs pass a ReLU; it maps (x by node type, edge_index by edge type, number of destination nodes by node type: the
        first of x, what it reads of edges by edge type) to outputs of the types that edges lead to.
    edges: what layers read of edges, for the edge types that have it.
    deviation: as in `NodeEncoder`.
    """

    def __init__(
        self,
        make_layer: Callable[[list[EdgeType]], Any],
        in_channels: Mapping[NodeType, int | None],
        hidden_channels: int,
        num_layers: int,
        *,
        dropout: float,
        metadata: Metadata,
        num_nodes: Mapping[NodeType, int],
        target_type: NodeType | Sequence[NodeType],
        num_categories: NumCategories = None,
        node_embedding: str = "dense",
        edges: Mapping[EdgeType, EdgeInput] = MappingProxyType({}),
        deviation: float = 1.0,
    ) -> None:
        super().__init__()
        self.target_types = [target_type] if isinstance(target_type, str) else sorted(set(target_type))
        self.layers = nn.ModuleList()
        needed = set(self.target_types)
        for _ in range(num_layers):
            layer = make_layer([e for e in metadata[1] if e[2] in needed])
            self.layers.insert(0, layer)
            needed |= {src for src, _, _ in layer.edge_types}
        first: Any = self.layers[0] if num_layers else None
        self.edge_types: list[EdgeType] = first.edge_types if num_layers else []  # all that are ever used
        self.encoders = nn.ModuleDict(
            {
                t: NodeEncoder(
                    in_channels.get(t),
                    num_nodes.get(t),
                    hidden_channels,
                    num_categories=categories_of(num_categories, t),
                    node_embedding=node_embedding,
                    of=t,
                    deviation=deviation,
                )
                for t in sorted(needed)
            }
        )
        self.edges = nn.ModuleDict({edge_type_str(e): edges[e].make_encoder() for e in self.edge_types if e in edges})
        self.dropout = nn.Dropout(dropout)

    def edge_values(self, batch: HeteroData) -> dict[EdgeType, Tensor]:
        """Returns what layers read of the edges of a batch, in its order, for the edge types that have it."""
        return {e: self.edges[name](batch[e]) for e in self.edge_types if (name := edge_type_str(e)) in self.edges}

    def forward(self, batch: HeteroData) -> Tensor:
        """Returns embeddings [S, hidden_channels] of the S seeds of the first target type."""
        return self.embed(batch)[self.target_types[0]]

    def embed(self, batch: HeteroData) -> dict[NodeType, Tensor]:
        """Returns embeddings [S, hidden_channels] of the seeds of each target type."""
        x = {t: encoder(t, batch[t]) for t, encoder in self.encoders.items()}
        layout = BatchLayout.of(
            {t: batch[t] for t in x}, {e: batch[e] for e in self.edge_types}, {t: len(rows) for t, rows in x.items()}
        )
        values = {e: layout.take(each, e) for e, each in self.edge_values(batch).items()}
        for i, module in enumerate(self.layers):
            layer: Any = module
            x, edges, into, read = layout.of_layer(len(self.layers) - 1 - i, layer.edge_types, x, values)
            out = layer(x, edges, into, read)
            drop = partial(relu_dropout, p=self.dropout.p, training=self.training) if layer.activate else self.dropout
            x |= {t: drop(rows) for t, rows in out.items()}
        return {t: x[t][: num_seeds(batch[t])] for t in self.target_types}


class HeterogeneousGNN(HeterogeneousEncoder):
    """Computes logits of a batch's seeds by one convolution per layer and edge type."""

    def __init__(
        self,
        name: str,
        in_channels: Mapping[NodeType, int | None],
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        dropout: float,
        options: Mapping[str, Any],
        **graph: Any,
    ) -> None:
        edges = graph.get("edges", {})

        def make_conv(edge_type: EdgeType) -> nn.Module:
            return edge_type_conv(name, hidden_channels, dropout, options, edges.get(edge_type))

        make_layer = partial(EdgeTypeLayer, make_conv)
        super().__init__(make_layer, in_channels, hidden_channels, num_layers, dropout=dropout, **graph)
        self.head = nn.Linear(hidden_channels, out_channels)

    def forward(self, batch: HeteroData) -> Tensor:
        """Logits [S, C] of the S seeds."""
        return self.head(super().forward(batch))


class EdgeTypeLayer(nn.Module):
    """A layer with one convolution for each of some edge types, whose outputs are summed per node, as in PyG's ``to_hetero``.

    make_conv: makes the convolution of an edge type between two sets of nodes, [N_src, width] and [N_dst, width] ->
    [N_dst, width].
    """

    activate = True

    def __init__(self, make_conv: Callable[[EdgeType], nn.Module], edge_types: list[EdgeType]) -> None:
        super().__init__()
        self.edge_types = edge_types
        self.convs = fuse_layers(nn.ModuleList(make_conv(e) for e in edge_types))

    def forward(
        self,
        x: dict[NodeType, Tensor],
        edges: dict[EdgeType, Tensor],
        destinations: dict[NodeType, int],
        values: Mapping[EdgeType, Tensor] = NO_VALUES,
    ) -> dict[NodeType, Tensor]:
        """Returns [destinations, width] for the node types that any edge type leads to. x: float [N, width] per node type.
        values: what convolutions read of edges, for the edge types that have it."""
        sums: dict[NodeType, Tensor] = {}
        for edge_type, conv in zip(self.edge_types, self.convs, strict=True):
            src, _, dst = edge_type
            given = (values[edge_type],) if edge_type in values else ()
            out = conv((x[src], x[dst][: destinations[dst]]), edges[edge_type], *given)
            sums[dst] = sums[dst] + out if dst in sums else out
        return sums


class NodeEncoder(nn.Module):
    """Computes the inputs [N, width] of the first layer for a node type: its features, projected or not, plus the vectors of its
    codes; for a type with neither, a learned embedding of each node.

    node_embedding: ``dense``: a parameter with a row for each node, on every rank; ``sparse``: a `DistEmbedding`.
    of: the node type, in a heterogeneous graph.  deviation: of the first values of learned embeddings.

    Attributes:
        new_nodes: The embedding of a node that came after training: ``mean`` of all, ``zero``, or ``error``; None: there are
            no such nodes.
    """

    def __init__(
        self,
        in_channels: int | None,
        num_nodes: int | None,
        width: int,
        *,
        project: bool = True,
        num_categories: Sequence[int] = (),
        node_embedding: str = "dense",
        of: NodeType | None = None,
        deviation: float = 1.0,
    ) -> None:
        super().__init__()
        self.codes = CodeEmbedding(num_categories, width) if num_categories else None
        self.like: Tensor
        self.layer: nn.Module | None
        self.new_nodes: str | None
        self.in_channels = in_channels
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the dtype that the model is cast to
        self.of, self.new_nodes = of, None
        self.layer = None
        if in_channels is not None:
            self.layer = nn.Linear(in_channels, width) if project else nn.Identity()
        elif self.codes is not None:
            pass  # the codes describe a node, also one that is added later, for which an embedding has no row
        elif node_embedding == "sparse":
            self.layer = DistEmbedding(width, of, init=("normal", 0.0, deviation))
        elif num_nodes is not None:
            self.layer = nn.Embedding(num_nodes, width)
            with torch.no_grad():
                self.layer.weight.mul_(deviation)
        else:
            raise OptionError("num_nodes: needed to learn embeddings for nodes without features; got None.")

    def forward(self, node_type: NodeType, store: Any) -> Tensor:
        if self.codes is None:
            return self._features(node_type, store)
        codes = self.codes(node_type, store)
        return codes if self.layer is None else self._features(node_type, store) + codes

    def _features(self, node_type: NodeType, store: Any) -> Tensor:
        assert self.layer is not None
        if self.in_channels is None:
            if isinstance(self.layer, DistEmbedding):
                return self.layer(store).to(self.like.dtype)
            return self._embedded(node_type, self.layer, store.n_id)
        x = store.x.flatten(1) if store.x.dim() > 1 else store.x[:, None]
        if x.size(1) != self.in_channels:
            raise DataError(
                f"x of node type {node_type!r} has {x.size(1)} features, but the model was built for "
                f"{self.in_channels}. Set in_channels to match the data."
            )
        return self.layer(x.to(self.like.dtype))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Takes the embeddings of a checkpoint as they are, where nodes that came after it have a rule."""
        rows = state_dict.get(f"{prefix}layer.weight")
        if isinstance(self.layer, nn.Embedding) and rows is not None:
            (count, width), like = rows.shape, self.layer.weight
            if self.new_nodes is not None and count < len(like) and width == self.layer.embedding_dim:
                self.layer = nn.Embedding(count, width, device=like.device, dtype=like.dtype)
            elif self.new_nodes is None and count != len(like):
                nodes = "nodes" if self.of is None else f"nodes of type {self.of!r}"
                rest[-1].append(
                    f"the checkpoint has an embedding for each of {count} {nodes}, and the graph has {len(like)}. Read the "
                    "version that it was trained on (partition.version), or predict later nodes by deploy or data.new, which "
                    "have a rule for them (embeddings)."
                )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _embedded(self, node_type: NodeType, layer: nn.Module, n_id: Tensor) -> Tensor:
        assert isinstance(layer, nn.Embedding)
        # the look for such nodes waits for a device
        if self.new_nodes is None or not bool((later := n_id >= layer.num_embeddings).any()):
            found: Tensor = layer(n_id)
            return found
        if self.new_nodes == "error":
            raise NoEmbeddingError(
                f"node type {node_type!r}: {int(later.sum())} nodes of the batch came after training, and have no embedding. "
                "Predict them with data.new (embeddings: mean or zero), or train again."
            )
        rest = layer.weight.mean(dim=0) if self.new_nodes == "mean" else torch.zeros_like(layer.weight[0])
        return torch.where(later[:, None], rest, layer(n_id.masked_fill(later, 0)))


def edge_type_conv(
    name: str, width: int, dropout: float, options: Mapping[str, Any], edges: EdgeInput | None = None
) -> nn.Module:
    """Makes the convolution of a PyG model between two sets of nodes: [N_src, width] and [N_dst, width] -> [N_dst, width]. edges:
    what it reads of edges."""
    if name in ("GCN", "PNA"):
        raise OptionError(
            f"model: {name} does not support edges between two node types; use GraphSAGE, GAT, GIN or EdgeCNN."
        )
    kind = gnn_class(name, edges)
    options = options_for_edges(name, kind, edges, width, options)
    if name == "GAT":
        options = {"add_self_loops": False, **options}
    width_in = (width, width) if name in ("GraphSAGE", "GAT") else width
    return kind(width_in, width, num_layers=1, dropout=dropout, **options).convs[0]


def trimmed(
    name: str,
    convs: nn.ModuleList,
    widths: Sequence[int],
    options: Mapping[str, Any],
    edges: EdgeInput | None = None,
) -> TrimmedConvs:
    """Makes `TrimmedConvs` of the layers of an encoder. Writes a line to the log if a layer needs the whole batch.

    Norms average over all nodes of the batch, and jumping knowledge needs all layers for the same nodes. edges: what they read of
    edges.
    """
    reason = next((f"{key}: {options[key]}" for key in ("norm", "jk") if options.get(key) is not None), None)
    values = None if edges is None else edges.example(8)
    made = TrimmedConvs.taking(convs, widths, values, trims=reason is None)
    if made.forms is None:
        reason = reason or "a node's output depends on more than the edges into it"
        rank_zero_info(
            f"{name}: every layer is computed for all nodes of a batch, not only for the nodes on which its seeds "
            f"depend ({reason})."
        )
    return made
