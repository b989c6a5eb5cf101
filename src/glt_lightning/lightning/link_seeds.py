"""The edges that a data module with ``task: link`` predicts: held out when the graph is partitioned, and given to loaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from glt_lightning.base import (
    SPLITS,
    BatchOptions,
    DataError,
    EdgeType,
    EvaluationOptions,
    GraphSchema,
    LinkOptions,
    NegativeSampling,
    OptionError,
    SeedOptions,
    edge_type_str,
    one_of,
)
from glt_lightning.graph import IN_TRAINING, AnyGraph, EdgeSplit, Manifest, edge_split_key
from glt_lightning.loader import LinkSpec
from glt_lightning.partition import GraphSource, hold_out_edges, joined_by

_EXCLUDE = ("none", "self", "reverse")
_LOOKED_AT = 1024  # seeds of evaluation that are looked for among the training edges


@dataclass(frozen=True, kw_only=True)
class LinkSeeds(LinkOptions):
    """What ``task: link`` adds to a data module: the options ``links``, and those of other groups that are about edges.

    Raises `OptionError` for options that exclude each other.
    """

    edge_splits: Any = None  # what is given, as it is checked
    neg_sampling: Any = None
    exclude_target_edges: Any = None
    input_type: str | Sequence[str] | None = None
    eval_neg_sampling: Any = None
    reverse_edge_types: Mapping[str, str] | None = None
    labelled: bool = False  # ``task: edge``: the labels of edges are predicted

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labelled:
            self._check_labelled()
        if self.relation is not None:
            self._check_relation()
        if self._types:
            _ = self.by_type  # which checks each
            return
        for name in ("neg_sampling", "eval_neg_sampling"):
            object.__setattr__(self, name, NegativeSampling.of(getattr(self, name)))
        self._check_excluded()
        given = self.edge_splits
        if given is not None and not isinstance(given, Mapping):
            raise OptionError(f"links.edge_splits: expected a mapping such as {{train: train.npy}}, got {given!r:.80}.")
        for split, each in (given or {}).items():
            if isinstance(each, Mapping):
                self._check_split(split, {key for key, value in each.items() if value is not None})

    def _check_labelled(self) -> None:
        given = {"links.neg_sampling": self.neg_sampling, "evaluation.neg_sampling": self.eval_neg_sampling}
        for name in (name for name, value in given.items() if value is not None):
            raise OptionError(
                f"{name}: task: edge predicts labels, and draws no negatives. Remove it, or set task: link."
            )
        if self._types:
            raise OptionError(
                f"seeds.input_type: task: edge predicts the labels of one edge type, got {', '.join(map(str, self._types))}."
            )

    def _check_relation(self) -> None:
        if self.labelled:
            raise OptionError(
                "links.relation: has no effect with task: edge, which predicts labels. Remove it, or set task: link."
            )
        if self._types:
            raise OptionError(
                "links.relation: the kinds of edges of one edge type, and seeds.input_type names several: "
                f"{', '.join(map(str, self._types))}. Remove links.relation, or name one."
            )
        if self.val_edges_at_test:
            raise OptionError("links.val_edges_at_test: is not for edges with links.relation. Remove one of them.")

    @property
    def of_edges(self) -> bool:
        """Whether the splits are edges of the graph, by id, with a label or relation each; not pairs of nodes."""
        return self.labelled or self.relation is not None

    @property
    def _by_time(self) -> bool:
        """Whether the latest edges are validation and test, which may be between nodes that earlier edges join."""
        return (self.edge_splits or {}).get("time") is not None

    @property
    def _types(self) -> list[str]:
        """Where edges of several types are predicted: their names."""
        return [] if self.input_type is None or isinstance(self.input_type, str) else list(self.input_type)

    @property
    def by_type(self) -> list[LinkSeeds]:
        """The same for each edge type, in the order of the schema."""
        types = sorted(self._types, key=lambda name: tuple(str(name).split("__")))
        if not types:
            return [self]
        if len(set(types)) < len(types):
            raise OptionError(
                f"seeds.input_type: expected different edge types, got {', '.join(map(str, self._types))}."
            )
        options = {name: getattr(self, name) for name in ("edge_splits", "neg_sampling", "eval_neg_sampling")}
        own = {name: LinkSpec.of_each(name, given, types) for name, given in options.items()}
        files = options["edge_splits"]
        if isinstance(files, Mapping) and not set(files).isdisjoint(SPLITS):
            raise OptionError(
                f"links.edge_splits: {', '.join(map(str, files))} are of one edge type, and seeds.input_type names several. "
                "Give them by "
                f"edge type: {{{types[0]}: {{train: ...}}}}."
            )
        return [replace(self, input_type=t, **{name: found[t] for name, found in own.items()}) for t in types]

    def _check_excluded(self) -> None:
        given = self.exclude_target_edges
        named = given if isinstance(given, Mapping) else {} if given is None else dict.fromkeys(SPLITS, given)
        for split, how in named.items():
            one_of("links.exclude_target_edges", split, SPLITS)
            one_of(
                f"links.exclude_target_edges.{split}" if named is given else "links.exclude_target_edges", how, _EXCLUDE
            )
        object.__setattr__(self, "exclude_target_edges", {"train": "reverse", "val": "none", "test": "none", **named})

    def _check_split(self, split: str, keys: set[str]) -> None:
        options = self.neg_sampling if split == "train" else self.eval_neg_sampling
        if "label" in keys and ("negatives" in keys or (options is not None and options.mode == "triplet")):
            raise OptionError(
                f"links.edge_splits.{split}.label: triplets (neg_sampling.mode triplet, or given negatives) have no labels. "
                "Remove the labels, or set neg_sampling.mode to binary."
            )

    @classmethod
    def of(
        cls, task: str, links: LinkOptions, seeds: SeedOptions, evaluation: EvaluationOptions, batches: BatchOptions
    ) -> LinkSeeds | None:
        """None for ``task: node``, which takes none of ``links``."""
        one_of("task", task, ("node", "link", "edge"))
        if task == "link" and links.label is not None:
            raise OptionError("links.label: has no effect with task: link. Remove it, or set task: edge.")
        if task != "node":
            return cls(
                **vars(links),
                input_type=seeds.input_type,
                eval_neg_sampling=evaluation.neg_sampling,
                reverse_edge_types=batches.reverse_edge_types,
                labelled=task == "edge",
            )
        given = [f"links.{name}" for name in links.given]
        given += [
            f"evaluation.{name}" for name in ("neg_sampling", "predict_edges") if getattr(evaluation, name) is not None
        ]
        if batches.subgraph_type == "directional" and batches.reverse_edge_types is not None:
            given.append("batches.reverse_edge_types")
        if given:
            raise OptionError(f"{given[0]}: has no effect with task: node. Remove it, or set task: link.")
        return None

    def hold_out(self, source: GraphSource, allow: Collection[str], folder: str | Path) -> GraphSource:
        """The graph without the edges to predict. Raises `DataError` for splits that do not fit. allow: ``partition.allow``.
        folder: of temporary files."""
        splits = {edge_type_str(each.edge_type(source.schema)): each.edge_splits for each in self.by_type}
        labels = dict.fromkeys(splits, self.relation or self.label) if self.of_edges else None
        kinds = self.relation is not None
        return hold_out_edges(
            source, splits, self.reverse_edge_types, allow, self.val_edges_at_test, labels, kinds, folder
        )

    def edge_types(self, schema: GraphSchema) -> list[EdgeType]:
        """The edge types to predict."""
        return [each.edge_type(schema) for each in self.by_type]

    def edge_type(self, schema: GraphSchema) -> EdgeType:
        """The edge type to predict, of one alone."""
        known = {edge_type_str(e): e for e in schema.edge_types}
        if self.input_type is None and len(own := _without_reverses(schema)) == 1:
            return own[0]
        if self.input_type not in known:
            raise OptionError(
                f"seeds.input_type: expected the edge type to predict, one of {', '.join(known)}; got {self.input_type!r}."
            )
        return known[self.input_type]

    @property
    def named_splits(self) -> set[str] | None:
        """The splits that there will be; None where the data set knows them."""
        if self._types:
            named = [each.named_splits for each in self.by_type]
            return None if None in named else {name for some in named for name in some or ()}
        if self.edge_splits is None:
            return None
        by_id = not any(isinstance(each, Mapping) for each in self.edge_splits.values())
        if self.of_edges and by_id and set(self.edge_splits) <= set(SPLITS):
            return {*self.edge_splits}
        if not set(self.edge_splits) <= set(SPLITS):  # a random split
            return {"train", *(name for name in ("val", "test") if self.edge_splits.get(f"num_{name}"))}
        return {"train", *self.edge_splits}

    def stored_splits(self, manifest: Manifest) -> set[str]:
        """The splits of the partition that have edges."""
        found = set()
        for edge_type in self.edge_types(manifest.schema):
            index = manifest.schema.edge_index(edge_type)
            entries = {name: manifest.edge_splits.get(edge_split_key(index, name)) for name in SPLITS}
            found |= {name for name, entry in entries.items() if entry is not None and entry.count}
        return found

    def require_split(self, name: str, known: Collection[str]) -> None:
        """Raises `DataError` unless the split is one of those there are."""
        if name == "all":
            raise OptionError(
                "evaluation.predict_split: all: there are too many pairs of nodes. Choose train, val or test; for edges of your "
                "own set evaluation.predict_edges."
            )
        if name not in known and self.labelled:
            raise DataError(
                f"split {name!r}: no edge with a label is in it; there are splits {', '.join(sorted(known)) or 'of no name'}. "
                "Draw splits: data.links.edge_splits: {num_val: 0.1, num_test: 0.2}, or name a column of the table: split."
            )
        if name not in known:
            raise DataError(
                f"split {name!r}: there are no edges of it; there are splits {', '.join(sorted(known)) or 'of no name'}. Give "
                f"them as data.links.edge_splits.{name}, or draw splits: data.links.edge_splits: {{num_val: 0.1, num_test: 0.2}}."
            )

    def check_times(self, time_attr: str | None) -> None:
        """Raises `OptionError` for times of splits where, and splits without times where not, ``sampling.time_attr`` is None."""
        if self.of_edges:  # whose times are those of the edges
            return
        for each in self.by_type if self._types else ():
            each.check_times(time_attr)
        given = {split: each for split, each in (self.edge_splits or {}).items() if split in SPLITS}
        drawn = {"num_val", "num_test"} & set(self.edge_splits or ())
        if time_attr is not None and drawn and not self._types and not self._by_time:
            raise OptionError(
                f"links.edge_splits: {', '.join(self.edge_splits or ())}: a split at random knows no times, and "
                f"sampling.time_attr is {time_attr}. Take the latest edges for validation and test: "
                f"{{num_val: 0.1, num_test: 0.1, time: {time_attr}}}, or give edges and times of each split: "
                "{train: {edge: ..., time: ...}, test: ...}."
            )
        for split, each in given.items():
            has = isinstance(each, Mapping) and each.get("time") is not None
            if has and time_attr is None:
                raise OptionError(
                    f"links.edge_splits.{split}.time: nothing reads these times. Set sampling.time_attr, so "
                    "that neighbours are drawn from the edges up to them, or remove them."
                )
            if time_attr is not None and not has:
                raise OptionError(
                    f"links.edge_splits.{split}.time: missing, and sampling.time_attr is {time_attr}. Give a time for each edge: "
                    "{edge: ..., time: ...}."
                )
        for options in () if self._types else (self.neg_sampling, self.eval_neg_sampling):
            LinkSpec.check_sharing("task: link", options, time_attr)

    def spec(
        self, graph: AnyGraph, split: str, name: str, timed: bool = False, new: EdgeSplit | None = None, **loader: Any
    ) -> LinkSpec:
        """The loader of a split. timed: neighbours are drawn by its times.  new: edges to predict in place of a split's.
        loader: further fields of `LinkSpec`."""
        if self._types:
            having = [each for each in self.by_type if split in each.stored_splits(graph.manifest)]
            return LinkSpec.over([each.spec(graph, split, name, timed, **loader) for each in having])
        edge_type = self.edge_type(graph.schema)
        index = graph.schema.edge_index(edge_type)
        found = graph.edge_split(index, split) if new is None else new
        if timed and found.time is None:
            raise DataError(
                f"sampling.time_attr: the edges of split {split!r} have no times. Give their time: links.edge_splits: {{time: "
                "ATTRIBUTE}, or the column time of their table."
            )
        if not (self.of_edges or timed or self._by_time) and found.time is not None:
            rank_zero_warn(
                f"links.edge_splits: {split} has times, which nothing reads: sampling.time_attr is not set, so neighbours of "
                "any time are sampled."
            )
        if split != "train" and self.exclude_target_edges[split] == "none" and not (self.of_edges or self._by_time):
            _warn_of_leak(split, found.edge, graph.edge_split(index, "train").edge, graph.manifest, edge_type)
        return self.spec_of(
            edge_type_str(edge_type),
            split,
            found.time if timed else None,
            name=name,
            extras=self._target_attrs(split, found),
            weight_attr=self.weight_attr(graph.manifest, split),
            **self._edges(split, name, found, timed),
            **self._relations(graph, index, split, found),
            **loader,
        )

    def spec_of(self, edge_type: str, split: str, times: np.ndarray | None, **loader: Any) -> LinkSpec:
        """The loader of edges of one type. split: that whose rule leaves edges out of the graph.  loader: edges and further
        fields."""
        return LinkSpec(
            edge_type=edge_type,
            exclude_target_edges=self.exclude_target_edges[split],
            check_stored=not (self.of_edges or (self._by_time and split != "train")),
            edge_label_time=times,
            with_target_attrs=self.with_target_attrs and not self.of_edges,
            tree=self.tree,
            **loader | {"reverse_edge_types": self._reverses()},
        )

    def require_own_weights(self, weight_attr: Any, masked: bool = False) -> None:
        """Raises `OptionError` where neighbours are drawn by ``sampling.weight_attr`` and by what leaves out validation."""
        if weight_attr is not None and (masked or self.val_edges_at_test):
            raise OptionError(
                f"links.val_edges_at_test: edges of validation are left out by their weight, {IN_TRAINING}, and "
                "sampling.weight_attr "
                f"is {weight_attr}. Remove one of them."
            )

    def weight_attr(self, manifest: Manifest, split: str) -> dict[str, str] | None:
        """Where edges of validation are stored: what leaves them out of all splits but the test."""
        edge_types = enumerate(manifest.schema.edge_types)
        found = {edge_type_str(e): IN_TRAINING for r, e in edge_types if IN_TRAINING in manifest.weights(r)}
        if not found:
            if self.val_edges_at_test:
                raise OptionError(
                    "links.val_edges_at_test: this partition has no edges of validation. Give the data set, so that another is "
                    "made."
                )
            return None
        at_test = split == "test" and self.val_edges_at_test
        rank_zero_info(
            f"links.val_edges_at_test: edges of validation carry {'' if at_test else 'no '}messages in split {split!r}."
        )
        return None if at_test else found

    def _target_attrs(self, split: str, found: EdgeSplit) -> dict[str, np.ndarray]:
        """The attributes of edges whose labels are predicted, by their names in batches."""
        if not self.labelled or not self.with_target_attrs:
            return {}
        own = {"edge_label_attr": found.attr, "edge_label_codes": found.codes}
        return {name: rows for name, rows in own.items() if rows is not None}

    def _relations(self, graph: AnyGraph, index: int, split: str, found: EdgeSplit) -> dict[str, Any]:
        """The kinds of a loader's edges, and the edges of other splits, which are no negatives of evaluation."""
        if self.relation is None:
            return {}
        if found.label is None:
            raise DataError(
                "evaluation.predict_edges: their relations are missing. Give {edge: ..., relation: ...}, with the number of each."
            )
        count = graph.manifest.edge_labels[index].num_classes
        if len(bad := np.flatnonzero((found.label < 0) | (found.label >= count))):
            raise DataError(
                f"evaluation.predict_edges: relation {found.label[bad[0]]} at position {bad[0]}: the graph has relations 0 to "
                f"{int(count or 0) - 1}."
            )
        names = [] if split == "train" else [name for name in SPLITS if name in self.stored_splits(graph.manifest)]
        others = [graph.edge_split(index, name) for name in names if name != split]
        known = [np.stack([*each.edge, np.asarray(each.label)]).astype(np.int64) for each in others]
        known_edges = np.concatenate(known, axis=1) if known else None
        return {"rel_type": np.asarray(found.label, np.int64), "known_edges": known_edges}

    def _edges(self, split: str, name: str, found: EdgeSplit, timed: bool) -> dict[str, Any]:
        """Edges, labels and negatives of a loader."""
        if name == "predict":
            return {"edge_label_index": found.edge}
        if self.labelled:
            return {"edge_label_index": found.edge, "edge_label": found.label}
        if found.negative_edges is not None:
            if timed:
                raise DataError(
                    f"links.edge_splits.{split}: its pairs of label 0 (negative_edges) have no times, by which neighbours are "
                    "drawn. Give negatives for each edge, or let them be drawn."
                )
            if found.label is not None and found.label.ndim > 1:
                raise DataError(
                    f"links.edge_splits.{split}: labels {list(found.label.shape)} do not go with pairs of label 0."
                )
            positive = np.ones(found.edge.shape[1], np.float32) if found.label is None else found.label
            zeros = np.zeros(found.negative_edges.shape[1], positive.dtype)
            both = np.concatenate([found.edge, found.negative_edges], axis=1)
            return {"edge_label_index": both, "edge_label": np.concatenate([positive, zeros])}
        options = self.neg_sampling if split == "train" else self._of_evaluation
        label = None if self.relation is not None else found.label
        edges = {"edge_label_index": found.edge, "edge_label": label, "negatives": found.negatives}
        edges |= {"source_negatives": found.source_negatives}
        if found.negatives is not None:  # those that are given, in evaluation whatever training draws
            return edges | {"neg_sampling": self.neg_sampling if split == "train" else self.eval_neg_sampling}
        return edges | {"neg_sampling": options or (None if label is not None else "binary")}

    @property
    def _of_evaluation(self) -> NegativeSampling | None:
        """As in training unless it is given, with negatives of each edge's own: those of a batch depend on its size."""
        if self.eval_neg_sampling is not None or self.neg_sampling is None:
            return self.eval_neg_sampling
        return replace(self.neg_sampling, sharing="none")

    def _reverses(self) -> dict[str, str]:
        given = dict(self.reverse_edge_types or {})
        return {other: one for one, other in given.items()} | given


def _without_reverses(schema: GraphSchema) -> list[EdgeType]:
    """The edge types that are not the reverse, by its name ``rev_...``, of another one."""
    reverses = {(dst, f"rev_{relation}", src) for src, relation, dst in schema.edge_types}
    return [each for each in schema.edge_types if each not in reverses]


def _warn_of_leak(split: str, edges: np.ndarray, trained: np.ndarray, manifest: Manifest, edge_type: EdgeType) -> None:
    src, dst = (manifest.num_nodes[manifest.schema.node_index(t)] for t in edge_type[::2])
    shared = joined_by(edges[:, :_LOOKED_AT], trained, (src, dst), edge_type[0] == edge_type[2])
    if shared.any():
        rank_zero_warn(
            f"split {split!r}: {np.count_nonzero(shared)} of its first {len(shared)} edges are training edges, too, and carry "
            f"messages: the model sees what it is to predict. Set data.links.exclude_target_edges: {{{split}: reverse}}, or "
            "remove them from one of the splits."
        )


# How often the seeds of training are drawn: ``seeds.weights`` of the data module.


BALANCED = "balanced"


def weights_of(given: str, values: np.ndarray) -> np.ndarray:
    """float64 [S] of the labels of the training seeds (``balanced``), or of their attribute of this name."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if given == BALANCED:
        return _by_class(values)
    if values.ndim != 1:
        raise DataError(f"{given}: expected one number for each node, got {list(values.shape)}.")
    return values.astype(np.float64)


def _by_class(labels: np.ndarray) -> np.ndarray:
    """The rarer a class, the more: all classes are drawn equally often. Zero without a label."""
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise DataError(
            "seeds.weights: balanced: expected one class for each node, but labels y are "
            f"{labels.dtype} {list(labels.shape)}. Name an attribute of the nodes that holds their weights."
        )
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights = np.where(labels < 0, 0.0, 1.0 / counts[classes]) if labels.dtype.kind == "i" else 1.0 / counts[classes]
    if not weights.any():
        raise DataError("seeds.weights: balanced: no training seed has a label.")
    return weights
