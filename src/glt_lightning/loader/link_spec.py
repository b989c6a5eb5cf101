"""What a loader of edges is asked to yield."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from glt_lightning.base import (
    DataError,
    EdgeType,
    GraphSchema,
    NegativeSampling,
    OptionError,
    Tree,
    one_of,
)
from glt_lightning.loader.recipe import Recipe, known_type, reverse_of
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.times import as_times
from glt_lightning.loader.typed_plan import for_each_type, has_types, type_name
from glt_lightning.sampling import LinkTask

# fields of each edge type, where there are several
_BY_TYPE = ("edge_label", "edge_label_time", "negatives", "source_negatives", "neg_sampling", "extras")


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkSpec(Recipe):
    """A loader of edges: which edges and negatives, and how batches are made around them (`Recipe`).

    Attributes:
        edge_label_index: The edges, int [2, S]: the user's ids of sources and destinations, the same on every rank. They need not
            be stored in the graph. Edges of several types are a mapping from edge type to such an array; one order goes over all
            of them, each type gets negatives of its own, and a batch has all fields on ``batch[edge_type]``, empty where it has
            no edge of a type. ``edge_label``, ``negatives`` and ``extras`` are then given by edge type, too, and
            ``neg_sampling`` for all types or by type.
        edge_type: Edge type of the edges, as ``src__rel__dst``; not needed where the graph has one.
        edge_label: Labels [S, ...] of the edges. With mode ``binary`` and labels from 0 on they are raised by 1, as in PyG, since
            negatives have label 0.
        edge_label_time: Times of the edges, int [S] or ``datetime64``, where ``sampling.time_attr`` is set: neighbours of both
            ends are drawn from the edges up to them, and negatives among the nodes that exist by then.
        neg_sampling: A `NegativeSampling`, or what PyG takes for it: ``"binary"``, ``("triplet", 2)``. None: no negatives.
        negatives: Destinations of negatives that are given, int [S, K]: the user's ids, -1 for those to draw. These are triplets
            with amount K.
        source_negatives: Sources of further negatives, int [S, K], beside ``negatives``; batches have them as ``src_neg_index``.
        exclude_target_edges: Over which of its own edges a batch passes no messages: ``none``; ``self``, the edges themselves;
            ``reverse``, also those of the other direction, if there are any. All parallel edges are meant, and neighbours are
            drawn as if they were not stored. With ``none``, a warning says so where edges of the loader are stored.
        check_stored: False: no such warning. The edges are known to be left out of the graph, and stored are parallel ones, such
            as earlier edges between the same nodes.
        with_target_attrs: Batches have the attributes of those of their edges that are stored: ``edge_label_attr`` [P, ...] of
            ``edge_attr``, and so on, and ``edge_label_id``, the user's ids of the edges. Those of an edge that is not stored are
            0, and its id is -1.
        per_rank: As of `Recipe`; strict negatives are then none of this rank's edges, and ``degree`` weights count these.
        disjoint: Both ends of every edge, and of every negative, are roots of trees of their own. ``batch`` tells of each node to
            which edge its tree belongs; those of negative j belong to edge j modulo the number of edges.
        seed_weights: As of `LoaderSpec`, one for each edge; of edges of one type.
        rel_type: Kinds of the edges of one type, int [S], 0 or more: batches have them by this name. A strict negative is then no
            edge of the same kind, of the loader or of ``known_edges``; the edges of the graph are not looked at.
        known_edges: With ``rel_type``, int [3, K]: sources, destinations and kinds of further edges that are no negatives.
        tree: With ``disjoint``: ``end``, a tree for each end; ``example``: one for both ends of an edge, or of a negative, and
            ``batch`` is the column of ``edge_label_index`` that it belongs to.

    Raises:
        OptionError: For a spec that contradicts itself; by ``Session.make_loader`` for one that does not fit the graph.

    Example:
        >>> edges = np.array([[0, 3, 4], [1, 4, 6]])
        >>> spec = LinkSpec(name="train", edge_label_index=edges, num_neighbors=[2], batch_size=3, neg_sampling="binary")
        >>> with Session("parts") as session:
        ...     batch = next(iter(session.make_loader(spec)))
        >>> batch.n_id[batch.edge_label_index[:, :3]].tolist(), batch.edge_label.tolist()
        ([[0, 3, 4], [1, 4, 6]], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    """

    edge_label_index: Any
    edge_type: str | None = None
    edge_label: Any = None
    edge_label_time: Any = None
    neg_sampling: Any = None
    negatives: Any = None
    source_negatives: Any = None
    exclude_target_edges: str = "none"
    check_stored: bool = True
    with_target_attrs: bool = False
    tree: Tree = "end"
    seed_weights: Any = None
    rel_type: Any = None
    known_edges: Any = None

    def __post_init__(self) -> None:
        where = f"loader {self.name!r}:"
        one_of(f"{where} exclude_target_edges", self.exclude_target_edges, LinkTask.EXCLUDE)
        super().__post_init__()
        if self.ptr:
            raise OptionError(
                f"{where} ptr: is about subgraphs of nodes, and the seeds of this loader are edges. Remove it."
            )
        if isinstance(self.edge_label_index, Mapping):
            for name in ("seed_weights", "rel_type"):
                if getattr(self, name) is not None:
                    raise OptionError(f"{where} {name}: are of edges of one type, and edges of several are given.")
            self._check_types(where)
            return
        if not isinstance(self.with_target_attrs, bool):
            raise OptionError(f"{where} with_target_attrs: expected true or false, got {self.with_target_attrs!r:.80}.")
        edges = _ids(f"{where} edge_label_index", self.edge_label_index)
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise OptionError(
                f"{where} edge_label_index: expected ids [2, S], got {edges.dtype} {list(edges.shape)}."
                + (" Give its transpose." if edges.ndim == 2 and edges.shape[1] == 2 else "")
            )
        object.__setattr__(self, "edge_label_time", as_times(f"{where} edge_label_time", self.edge_label_time))
        options = NegativeSampling.of(self.neg_sampling)
        self.check_tree(f"{where} ", self.tree, self.disjoint, options)
        if self.negatives is not None:
            options = self._check_negatives(edges.shape[1], options)
        if self.source_negatives is not None:
            self._check_source_negatives(edges.shape[1])
        if self.edge_label is not None and options is not None and options.mode == "triplet":
            raise OptionError(
                f"{where} edge_label: triplets have no labels. Remove it, give it as one of extras, or set neg_sampling.mode "
                "to binary."
            )
        if self.disjoint and options is not None and options.sharing == "shared":
            raise OptionError(
                f"{where} disjoint: shared negatives (neg_sampling.sharing) belong to no edge alone, and so to no tree. Set "
                "sharing to none or in_batch, or remove disjoint."
            )
        object.__setattr__(self, "edge_label_index", edges)
        object.__setattr__(self, "neg_sampling", options)
        self._check_relations(edges.shape[1])

    def _check_relations(self, count: int) -> None:
        where = f"loader {self.name!r}:"
        for name, shape in (("rel_type", (count,)), ("known_edges", (3, -1))):
            given = getattr(self, name)
            if given is None:
                continue
            ids = _ids(f"{where} {name}", given)
            fits = ids.ndim == len(shape) and all(n in (-1, m) for n, m in zip(shape, ids.shape, strict=True))
            kinds = ids if name == "rel_type" else ids[-1:]
            if not fits or (kinds.size and kinds.min() < 0) or self.rel_type is None:
                raise OptionError(
                    f"{where} {name}: expected kinds >= 0 of the {count} edges, and known_edges [3, K] with theirs; got "
                    f"{list(ids.shape)}."
                )
            object.__setattr__(self, name, ids)

    def _check_negatives(self, count: int, options: NegativeSampling | None) -> NegativeSampling:
        where = f"loader {self.name!r}: negatives:"
        negatives = _ids(where.removesuffix(":"), self.negatives)
        if negatives.ndim != 2 or len(negatives) != count or not negatives.shape[1]:
            raise OptionError(
                f"{where} expected ids [{count}, K], a row for each edge, got {negatives.dtype} {list(negatives.shape)}."
            )
        amount = negatives.shape[1]
        options = options or NegativeSampling(mode="triplet", amount=amount)
        if (options.mode, options.amount, options.sharing) != ("triplet", amount, "none"):
            raise OptionError(
                f"{where} {amount} for each edge need neg_sampling with mode triplet, amount {amount} and sharing none; got "
                f"{options.mode}, {options.amount}, {options.sharing}."
            )
        object.__setattr__(self, "negatives", negatives)
        return options

    def _check_source_negatives(self, count: int) -> None:
        where = f"loader {self.name!r}: source_negatives"
        given = _ids(where, self.source_negatives)
        if given.ndim != 2 or len(given) != count or self.negatives is None:
            raise OptionError(
                f"{where}: expected ids [{count}, K], a row for each edge, beside negatives; got {given.dtype} "
                f"{list(given.shape)}{' without negatives' if self.negatives is None else ''}."
            )
        object.__setattr__(self, "source_negatives", given)

    @property
    def by_type(self) -> tuple[LinkSpec, ...]:
        """A spec for each edge type, in the order of the plan; where edges are not given by type this one."""
        if not isinstance(self.edge_label_index, Mapping):
            return (self,)
        types, where = list(self.edge_label_index), f"loader {self.name!r}:"
        by_type = {}
        for name in _BY_TYPE:
            given = getattr(self, name)
            split = self.of_each if name == "neg_sampling" else for_each_type
            by_type[name] = split(f"{where} {name}", given, types)
        return tuple(
            replace(
                self,
                edge_type=t,
                edge_label_index=edges,
                **{name: found[t] for name, found in by_type.items() if name != "extras"},
                extras=by_type["extras"][t] or {},
            )
            for t, edges in self.edge_label_index.items()
        )

    @classmethod
    def over(cls, specs: Sequence[LinkSpec]) -> LinkSpec:
        """One loader of the edges of several, which are each of another edge type and else alike."""
        by_type: dict[str, Any] = {
            name: {str(spec.edge_type): getattr(spec, name) for spec in specs}
            for name in ("edge_label_index", *_BY_TYPE)
        }
        return replace(specs[0], edge_type=None, **by_type)

    def _check_types(self, where: str) -> None:
        given = {type_name(t): edges for t, edges in self.edge_label_index.items()}
        if not given or self.edge_type is not None:
            got = (
                "none" if not given else f"edge_label_index for {', '.join(given)} and edge_type {self.edge_type!r:.80}"
            )
            raise OptionError(
                f"{where} edge_type: expected edges of one type, or edge_label_index by edge type; got {got}."
            )
        ordered = sorted(given, key=lambda name: tuple(name.split("__")))  # as in the schema
        object.__setattr__(self, "edge_label_index", {t: given[t] for t in ordered})
        _ = self.by_type  # which checks each

    @staticmethod
    def check_tree(
        where: str, tree: str, disjoint: bool, options: NegativeSampling | None, time_attr: str | None = None
    ) -> None:
        """Raises `OptionError` for trees that edges with these negatives cannot have. where: begins the errors."""
        one_of(f"{where}tree", tree, get_args(Tree))
        if tree == "example" and time_attr is not None:
            raise OptionError(
                f"{where}tree: example and sampling.time_attr: {time_attr} exclude each other: a tree with both ends of an edge "
                "has no bounds in time. Set tree: end, or remove sampling.time_attr."
            )
        if tree == "example" and not disjoint:
            raise OptionError(f"{where}tree: example needs disjoint: true, without which a batch has no trees.")
        if tree == "example" and options is not None and options.mode == "triplet":
            raise OptionError(
                f"{where}tree: example needs negatives that are pairs of nodes, and those of neg_sampling.mode triplet share the "
                "source of their edge. Set neg_sampling: binary."
            )

    @staticmethod
    def check_sharing(where: str, options: NegativeSampling | None, time_attr: str | None) -> None:
        """Raises `OptionError` for negatives of a whole batch where neighbours are drawn by time: one that is shared would have
        the time of another edge."""
        if time_attr is not None and options is not None and options.sharing != "none":
            raise OptionError(
                f"{where}: neg_sampling.sharing: {options.sharing!r} shares negatives between edges of different times, and "
                f"sampling.time_attr is {time_attr}. Set sharing to none."
            )

    @staticmethod
    def of_each(where: str, given: Any, types: Sequence[str]) -> dict[str, Any]:
        """Returns an option for each edge type, given as one for all of them or by edge type. Raises as `for_each_type`."""
        return for_each_type(where, given if has_types(given, types) else dict.fromkeys(types, given), types)

    @property
    def labels(self) -> np.ndarray | None:
        """Labels as batches have them, before those of negatives."""
        if self.edge_label is None:
            return None
        labels = np.asarray(self.edge_label)
        if labels.shape[:1] != self.edge_label_index.shape[1:]:
            raise OptionError(
                f"loader {self.name!r}: edge_label: expected one for each of the {self.edge_label_index.shape[1]} edges, got "
                f"{list(labels.shape)}."
            )
        raised = self.neg_sampling is not None and labels.size and labels.min() == 0
        if not raised:
            return labels
        return labels.astype(np.int64) + 1 if labels.dtype == np.bool_ else labels + labels.dtype.type(1)

    def as_nodes(self) -> LoaderSpec:
        """The loader of the edges' sources: with the same batches, and with labels among the extras."""
        own_rows = (("edge_label", self.labels), ("rel_type", self.rel_type))
        own: dict[str, Any] = {
            "extras": dict(self.extras) | {name: rows for name, rows in own_rows if rows is not None},
            "reverse_edge_types": self.reverse_edge_types if self.subgraph_type == "bidirectional" else None,
            "transform": None,  # which the loader of edges applies
        }
        return LoaderSpec(**self.common | own, seeds=self.edge_label_index[0], seed_weights=self.seed_weights)

    def task(self, schema: GraphSchema) -> LinkTask:
        """Raises `OptionError` for edge types that the graph does not have."""
        edge_type = self._edge_type(schema)
        reverse = reverse_of(schema, edge_type, self) if self.exclude_target_edges == "reverse" else None
        return LinkTask.of(
            self.neg_sampling,
            loader=self.name,
            edge_type=schema.edge_types.index(edge_type),
            exclude=self.exclude_target_edges,
            reverse=reverse,
            joint=self.tree == "example",
            attrs=self.with_target_attrs,
            related=self.rel_type is not None,
        )

    def _edge_type(self, schema: GraphSchema) -> EdgeType:
        if self.edge_type is None and len(schema.edge_types) == 1:
            return schema.edge_types[0]
        return known_type(self, "edge_type", self.edge_type, schema)


def _ids(name: str, given: Any) -> np.ndarray:
    ids = np.asarray(given)
    if ids.dtype.kind not in "iu" or (ids.dtype == np.uint64 and ids.size and ids.max() >= 1 << 63):
        raise OptionError(f"{name}: expected ids, integers, got {ids.dtype} {list(ids.shape)}.")
    return np.ascontiguousarray(ids, dtype=np.int64)


def require_ids(where: str, ids: np.ndarray, count: int, node_type: str, least: int = 0) -> None:
    """Raises `DataError` that names the first of ``ids``, of any shape, that is no node of the type."""
    bad = np.flatnonzero((ids.ravel() < least) | (ids.ravel() >= count))
    if len(bad):
        raise DataError(
            f"{where}: {ids.ravel()[bad[0]]} at position {np.unravel_index(bad[0], ids.shape)[0]} is no node of type "
            f"{node_type!r}, whose ids are 0 to {count - 1}."
        )
