"""What a data module takes in groups: its seeds, the edges to predict, what batches have, and how it evaluates.

`loader.recipe.Recipe` is made of `BatchOptions`, so these travel whole from YAML to the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from glt_lightning.base.checks import Fanouts, as_options, at_least, one_of, parse_fanouts
from glt_lightning.base.errors import OptionError
from glt_lightning.base.layerwise import LayerwiseOptions
from glt_lightning.base.neighbors import NegativeSampling
from glt_lightning.base.sampling import EDGE_FORMATS, SUBGRAPH_TYPES, EdgeFormat, SubgraphType

SPLITS = ("train", "val", "test")
TREES = ("end", "example")
EvaluationMode = Literal["sampled", "layerwise"]
PredictSplit = Literal["all", "train", "val", "test"] | None
Task = Literal["node", "link", "edge"]
Tree = Literal["end", "example"]


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Which edges batches have, and in what form they are given out.

    Attributes:
        edge_format: ``edge_index``: the edges are PyG's `EdgeIndex`, sorted by destination, with column pointers.
            ``edge_index_csr``: in training also with the order by source, which sparse products of PyG read in the backward
            pass. ``tensor``: the same edges as a tensor.
        transform: What changes every batch in the training process, before it is moved to the device: the class path of a
            transform, of PyG or your own, the path of a function, ``{class_path: ..., init_args: {...}}``, in a script also a
            callable. It takes a batch and returns one.
        with_row: Batches have ``row`` beside ``n_id``: the number of each node in its type, by which `DistEmbedding` and
            `DistTensor` look it up. A module with a `DistEmbedding` gets it anyway.
        disjoint: Every seed is the root of a tree of its own: nodes near two seeds are in the batch twice, drawn independently.
            ``batch`` tells of each node to which seed, or edge to predict, its tree belongs. The CPU samples such batches.
        subgraph_type: Which edges batches have. ``directional``: those that were sampled. ``bidirectional``: also those of the
            other direction, and where none is stored a flipped copy, of which ``is_flipped`` tells. ``induced``: all edges among
            the nodes of the batch, which are the seeds alone with ``num_neighbors=[]``.
        induced_limit: With ``bidirectional`` and ``induced`` the rows of all nodes are read whole; those of more edges than this
            are an error. ``None``: any number.
        reverse_edge_types: For ``bidirectional``, and where edges are predicted, the edge type of the other direction, by edge
            type: ``{a__rel__b: b__back__a}``. Without an entry it is the one named ``rev_...``, else the same edge type where it
            has one node type.
        ptr: With ``disjoint`` and ``induced``, the subgraph of one seed after the other, in PyG's form of ShaDow: ``ptr``, where
            the nodes of each begin, and ``root_n_id``, the positions of the seeds, which are then not the first nodes. For
            modules of one's own: the built-in ones take the first nodes of a batch as its seeds.

    Raises:
        OptionError: For a value that is not allowed, or options that exclude each other.

    Example:
        >>> BatchOptions(disjoint=True, subgraph_type="induced").subgraph_type
        'induced'
    """

    edge_format: EdgeFormat = "tensor"
    # With Any alone, the command line would make an object of class_path and init_args itself.
    transform: str | dict[str, Any] | Any = None
    with_row: bool = False
    disjoint: bool = False
    subgraph_type: SubgraphType = "directional"
    induced_limit: int | None = None
    reverse_edge_types: dict[str, str] | None = None
    ptr: bool = False

    def __post_init__(self) -> None:
        self._check_batches("batches.")

    def _check_batches(self, where: str) -> None:
        """where: begins the errors."""
        one_of(f"{where}edge_format", self.edge_format, EDGE_FORMATS)
        one_of(f"{where}subgraph_type", self.subgraph_type, SUBGRAPH_TYPES)
        _check_flags(self, where, "with_row", "disjoint", "ptr")
        limit = self.induced_limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise OptionError(
                f"{where}induced_limit: expected a number of edges, 1 or more, or nothing; got {limit!r:.80}."
            )
        if limit is not None and self.subgraph_type == "directional":
            raise OptionError(
                f"{where}induced_limit: has no effect with subgraph_type directional, which reads no further rows. Remove it."
            )
        if self.subgraph_type == "bidirectional" and self.edge_format != "tensor":
            raise OptionError(
                f"{where}edge_format: {self.edge_format} needs edges that are sorted by destination; those of subgraph_type "
                "bidirectional are not, as the edges of the other direction follow the sampled ones. Use edge_format tensor."
            )
        if self.ptr and not (self.disjoint and self.subgraph_type == "induced"):
            raise OptionError(
                f"{where}ptr: tells where the subgraph of each seed begins. Set disjoint: true and subgraph_type: induced, or "
                "remove it."
            )


@dataclass(frozen=True, kw_only=True)
class SeedOptions:
    """Which nodes, or edges of which types, a data module's loaders are about.

    Attributes:
        input_type: Node type of own splits and of ``predict_split: all`` in a heterogeneous graph. ``None``: the type that
            has the labels. With ``task: link`` the edge type to predict, ``src__rel__dst``; not needed where there is one.
            Several types are a list: own splits are then given by type, ``{train: {paper: p.npy, author: a.npy}}``, and so are
            ``links.edge_splits`` and, where types differ, negatives.
        splits: Own seeds by name (``train``, ``val``, ``test``), in place of those of the data set: a path of an ``.npy``,
            ``.pt`` (a tensor) or ``.txt`` file, a list, an array, of node ids or a mask over all nodes.
        input_time: Times of seed nodes by split, where ``sampling.time_attr`` is set: ``{train: times.npy}``, paths or arrays in
            the order of the split's seeds (``all``: of all nodes, for ``predict_split: all``), by type where seeds are. A split
            without an entry has the times of the nodes themselves. Those of edges are ``time`` of ``links.edge_splits``.
        weights: How often the seeds of training are drawn: ``balanced``, all classes equally often, or the name of a node
            attribute that holds their weights. Each epoch then draws as many as there are, with replacement. ``None``: every seed
            once in each epoch. Evaluation sees every seed once.

    Raises:
        OptionError: For a value that is not allowed.

    Example:
        >>> SeedOptions(splits={"train": [0, 1, 2]}).input_type is None
        True
    """

    input_type: str | list[str] | None = None
    splits: dict[str, Any] | None = None
    input_time: dict[str, Any] | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and (not isinstance(self.weights, str) or not self.weights):
            raise OptionError(
                f"seeds.weights: expected balanced, or the name of a node attribute; got {self.weights!r:.80}."
            )
        if unknown := set(self.splits or {}) - set(SPLITS):
            raise OptionError(f"seeds.splits: expected any of {', '.join(SPLITS)}; got {', '.join(sorted(unknown))}.")
        if unknown := set(self.input_time or {}) - {*SPLITS, "all"}:
            raise OptionError(
                f"seeds.input_time: expected any of train, val, test, all; got {', '.join(sorted(unknown))}."
            )


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """The edges that ``task: link`` tells from pairs of nodes without one, or whose labels ``task: edge`` predicts.

    Attributes:
        edge_splits: The edges to predict: ``{train, val, test}``, each a path of node ids [2, S] or [S, 2], or
            ``{edge, label, negatives}`` of such; or a random split, ``{num_val: 0.1, num_test: 0.2}``, with ``time: ATTRIBUTE``
            the latest. ``None``: those of the data set. Edges outside ``train`` carry no messages (docs/links.md). With ``task:
            edge`` edges of the graph: ids or masks of edges by split, or drawn as above; ``None``: the column ``split`` of their
            table (docs/edges.md).
        label: With ``task: edge``, the edge attribute that has the labels, which no batch then has as an attribute. ``None``: the
            column ``label`` of the table of edges.
        relation: With ``task: link`` and edges of several kinds in one edge type (a knowledge graph), the edge attribute that has
            the kind of each, integers; or the column of their table, which is its ``label``. The splits are then those of
            ``task: edge``, batches have the kinds as ``rel_type``, and negatives are no edges of the same kind (docs/edges.md).
            Messages have them as ``edge_type``.
        neg_sampling: How negatives are drawn: ``binary``, ``triplet``, or the options of `NegativeSampling`. ``None``:
            ``binary``, unless the edges have labels.
        exclude_target_edges: Over which of its own edges a batch passes no messages: ``none``, ``self`` or ``reverse`` (also over
            the other direction); or by split, ``{train: reverse}``. ``None``: ``reverse`` in training, else ``none``.
        tree: With ``batches.disjoint``: ``example`` puts both ends of an edge, or of a negative, into one tree, as
            SEAL wants it; ``batch`` is then the column of ``edge_label_index``. ``end``: each end has its own.
        with_target_attrs: Batches have the attributes of those of their edges to predict that are stored, ``edge_label_attr`` of
            ``edge_attr``, and their ids ``edge_label_id``. With ``task: edge`` those of all of them, which `EdgePredictor` reads.
        val_edges_at_test: Edges of validation carry messages at test, though not in training and validation (OGB's
            ``use_valedges_as_input``). They are stored, too, with weight 0 in the attribute ``in_training``.

    Raises:
        OptionError: For a value that is not allowed.

    Example:
        >>> LinkOptions(neg_sampling="triplet").tree
        'end'
    """

    edge_splits: dict[str, Any] | None = None
    neg_sampling: NegativeSampling | str | dict[str, Any] | None = None
    exclude_target_edges: str | dict[str, str] | None = None
    tree: Tree = "end"
    with_target_attrs: bool = False
    val_edges_at_test: bool = False
    label: str | None = None
    relation: str | None = None

    def __post_init__(self) -> None:
        one_of("links.tree", self.tree, TREES)
        for name in ("label", "relation"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, str) or not given):
                raise OptionError(f"links.{name}: expected the name of an edge attribute, got {given!r:.80}.")
        _check_flags(self, "links.", "with_target_attrs", "val_edges_at_test")

    @property
    def given(self) -> list[str]:
        """Names of the options that differ from their defaults."""
        return [each.name for each in fields(LinkOptions) if getattr(self, each.name) != each.default]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How validation, test and prediction differ from training.

    Attributes:
        num_neighbors: Fan-outs of validation, test and prediction. ``None``: all neighbours in a graph of up to a million
            edges, else, and where each seed has a tree of its own, twice those of training.
        batch_size: Seeds per batch and rank there; those of a larger batch share more neighbours. ``None``: as in training.
        mode: How validation and test compute outputs. ``sampled``: from sampled neighbourhoods. ``layerwise``: exactly, each
            layer over the whole graph before the next one (docs/inference.md), without ``num_neighbors``.
        layerwise: How ``mode: layerwise`` computes the layers.
        predict_split: Nodes to predict: ``all`` of ``seeds.input_type``, or those of a split; with ``task: link`` or ``edge`` the
            edges of a split. ``None``: all nodes, or the edges of ``test``.
        predict_edges: With ``task: link`` or ``edge``, edges to predict that need not be in the graph, in place of
            ``predict_split``: a table (Parquet, CSV) with the columns of the table of edges, or node ids [2, S] or [S, 2].
        neg_sampling: With ``task: link`` the negatives of validation and test, where none are given: as
            ``links.neg_sampling``. ``None``: as in training, with each edge's own.

    Raises:
        OptionError: For a value that is not allowed.

    Example:
        >>> EvaluationOptions(num_neighbors=[-1, -1], mode="layerwise").layerwise.batch_size
        4096
    """

    num_neighbors: Fanouts | None = None
    batch_size: int | None = None
    mode: EvaluationMode = "sampled"
    layerwise: LayerwiseOptions = field(default_factory=LayerwiseOptions)
    predict_split: PredictSplit = None
    predict_edges: Any = None
    neg_sampling: NegativeSampling | str | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.num_neighbors is not None:
            require_fanouts("evaluation.num_neighbors", self.num_neighbors)
        if self.batch_size is not None:
            at_least("evaluation.batch_size", self.batch_size, 1)
        one_of("evaluation.mode", self.mode, ("sampled", "layerwise"))
        if self.predict_split is not None:
            one_of("evaluation.predict_split", self.predict_split, ("all", *SPLITS))
        object.__setattr__(self, "layerwise", as_options(LayerwiseOptions, "evaluation.layerwise", self.layerwise))


def require_fanouts(name: str, given: Fanouts) -> None:
    """Raises `OptionError` for fan-outs, of all edge types or by edge type, that are none."""
    for key, fanouts in given.items() if isinstance(given, Mapping) else [(None, given)]:
        parse_fanouts(fanouts, name if key is None else f"{name}[{key}]")


def _check_flags(options: Any, where: str, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise OptionError(f"{where}{name}: expected true or false, got {getattr(options, name)!r:.80}.")
