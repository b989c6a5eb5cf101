"""`SeedDataModule`: which nodes or edges the loaders of a data module are about."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from glt_lightning.base import (
    BatchOptions,
    DataError,
    EdgeType,
    EvaluationOptions,
    Fanouts,
    GraphSchema,
    OptionError,
    SamplingOptions,
    WeightAttr,
    edge_type_str,
)
from glt_lightning.graph import EdgeSplit, checked_ids
from glt_lightning.lightning.embeddings import embeddings_of
from glt_lightning.lightning.facts import (
    check_fanouts,
    eval_fanouts,
    read_array,
    read_fitting_split,
    require_split,
    split_of,
)
from glt_lightning.lightning.graph_data_module import GraphDataModule
from glt_lightning.loader import BatchTransform, LinkSpec, LoaderSpec, batch_schema
from glt_lightning.partition import check_overlap, is_tables, read_edge_split

if TYPE_CHECKING:
    from glt_lightning.lightning.new_rows import NewRows
    from glt_lightning.partition import ConvertedTables

_log = logging.getLogger(__name__)

WEIGHT = "edge_weight"


class SeedDataModule(GraphDataModule):
    """Knows its seeds: splits of nodes or of edges, stored or the user's own. `GLTDataModule` makes their loaders."""

    sampling: SamplingOptions
    batches: BatchOptions
    evaluation: EvaluationOptions
    transform: BatchTransform | None  # that of batches, made
    new: NewRows | None  # rows to predict that the graph did not have

    @property
    def _splits(self) -> dict[str, Any]:
        return self.seeds.splits or {}

    @property
    def _input_time(self) -> dict[str, Any]:
        return self.seeds.input_time or {}

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]] | None:
        """Node and edge types of batches of a heterogeneous graph, as PyG's ``HeteroData.metadata()``; None otherwise."""
        schema = batch_schema(self._facts.schema, self.sampling)
        return None if schema.homogeneous else (list(schema.node_types), list(schema.edge_types))

    @property
    def edge_facts(self) -> dict[str, Any] | None:
        """What edges have that encoders can read: ``width`` of ``edge_attr``, ``weight`` (whether there is ``edge_weight``), and
        ``num_categories`` of ``edge_codes``; by the edge type's name in a heterogeneous graph. None where they have nothing."""
        if self.sampling.importance_neighbors is not None:  # between nodes that no stored edge need connect
            return None
        drawn_by = self.sampling.weight_attr
        found: dict[str, Any] = {}
        for edge_type, facts in self._facts.edges.items():
            name = edge_type_str(edge_type)
            by_weight = (drawn_by.get(name) if isinstance(drawn_by, Mapping) else drawn_by) == WEIGHT
            # neighbours that are drawn by weight have counted it
            each = dict(facts) | ({"weight": False} if by_weight else {})
            found |= {name: each} if each["width"] or each["weight"] or each["num_categories"] else {}
        return self._per_type(found) if found else None

    def _check_before_partitioning(self, stage: str | None) -> None:
        """Raises the errors of a stage of the Trainer that are known before hours of partitioning, not after."""
        for each in self._facts.strays:
            _log.warning(each)
        known = self._facts.splits if self.links is None else self.links.named_splits
        if known is not None:
            self._require_split(stage, {*known})
        check_fanouts(
            batch_schema(self._facts.schema, self.sampling), self.num_neighbors, self.evaluation.num_neighbors
        )
        for name in self._splits if stage == "fit" else {split_of(stage, self._predict_split)} & {*self._splits}:
            self._own_seeds(name)

    def _check_times(self) -> None:
        time_attr, stored = self.sampling.time_attr, self.partition.time_attr
        if time_attr is not None and time_attr != stored and self.dataset is not None:
            raise OptionError(
                f"sampling.time_attr: {time_attr}: partition.time_attr is {stored}. Set one to the attribute that has the times."
            )
        if self.links is not None:
            self.links.check_times(time_attr)
        if self._input_time and (self.links is not None or time_attr is None):
            why = "those of edges are time of links.edge_splits" if self.links is not None else "set sampling.time_attr"
            raise OptionError(f"seeds.input_time: nothing reads these times of seed nodes; {why}, or remove them.")

    def _require_split(self, stage: str | None, known: set[str]) -> None:
        """Raises `DataError` unless there are seeds for a stage of the Trainer."""
        module = None if self.trainer is None else self.trainer.lightning_module
        if stage == "predict" and (hasattr(module, "loaders_of") or self.new is not None):
            return  # layer by layer, all nodes are predicted
        if stage == "predict" and self.evaluation.predict_edges is not None:
            return
        wanted = split_of(stage, self._predict_split)
        if self.links is not None and stage in ("fit", "validate", "test", "predict"):
            self.links.require_split(wanted, known)
        elif wanted != "all":
            require_split(wanted, {*known, *self._splits}, self._has_seeds(wanted))

    def _recipe(self, name: str, *, shuffle: bool = False) -> dict[str, Any]:
        """How a loader makes batches, whatever its seeds."""
        train, exact = name == "train", self.evaluation.mode == "layerwise" and name in ("val", "test")
        module = None if self.trainer is None else self.trainer.lightning_module
        by_row = any(each.new_nodes is None for each in embeddings_of(module).values())
        return {
            "name": name,
            "num_neighbors": self.num_neighbors if train else [] if exact else self._eval_num_neighbors,
            "batch_size": self.batch_size if train else self.evaluation.batch_size or self.batch_size,
            "shuffle": shuffle,
            "exact": not train,
            **vars(self.batches),
            "transform": self.transform,
            "with_row": self.batches.with_row or exact or by_row,
        }

    def recipe_to_predict(self) -> dict[str, Any]:
        """How ``predict`` makes batches: the fields of a loader beside its seeds. A walk through the module; for `spec_of`."""
        return self._recipe("predict") | {"weight_attr": self.weight_attr_of("predict")}

    def spec_of(
        self, schema: GraphSchema, of_type: str, seeds: np.ndarray, times: np.ndarray | None, **recipe: Any
    ) -> LoaderSpec | LinkSpec:
        """The loader of nodes [S] or edges [2, S] that somebody names, as one batch.

        schema: of the graph.  of_type: their node type or edge type.  times: int64 [S], or None.  recipe: `recipe_to_predict`."""
        loader = recipe | {"batch_size": max(1, seeds.shape[-1])}
        if seeds.ndim == 1:
            return LoaderSpec(
                seeds=seeds, node_type=None if schema.homogeneous else of_type, input_time=times, **loader
            )
        assert self.links is not None
        return self.links.spec_of(of_type, "test", times, edge_label_index=seeds, **loader)

    def _loader_spec(self, name: str, split: str | None, *, shuffle: bool = False) -> LoaderSpec | LinkSpec:
        """split: None for all nodes."""
        loader = self._recipe(name, shuffle=shuffle)
        if self.links is None:
            times = self._times(split or "all")
            if name == "predict" and self.new is not None:
                seeds, split, times = self._new_seeds(self.new), None, None
            else:
                seeds, split = self._find_seeds(split)
            typed = split is not None or isinstance(seeds, dict)
            return LoaderSpec(
                split=split,
                seeds=seeds,
                node_type=None if typed else self._node_type(),
                input_time=times,
                **loader,
            )
        timed, new = self.sampling.time_attr is not None, None
        if name == "predict" and self.evaluation.predict_edges is not None:
            new, split = self._new_edges(), "test"
        else:
            self.links.require_split(split or "all", self._split_names())
        spec = self.links.spec(self._opened(), split or "all", timed=timed, new=new, **loader)
        self.links.require_own_weights(self.sampling.weight_attr, spec.weight_attr is not None)
        return spec

    @property
    def _predict_split(self) -> str:
        return self.evaluation.predict_split or ("all" if self.links is None else "test")

    def _new_edges(self) -> EdgeSplit:
        """Reads ``evaluation.predict_edges``."""
        assert self.links is not None
        given, manifest = self.evaluation.predict_edges, self._opened().manifest
        edge_type = self.links.edge_type(manifest.schema)
        of_table = isinstance(given, (str, Path)) and Path(given).suffix in (".parquet", ".pq", ".csv", ".tsv", ".gz")
        if of_table and is_tables(self.dataset):
            with_label = self.links.relation is not None
            what = "evaluation.predict_edges"
            return self._tables.read_edges(what, str(given), self.dataset, edge_type, with_label=with_label)
        counts = dict(zip(manifest.schema.node_types, manifest.num_nodes, strict=True))
        src, _, dst = edge_type
        ends, relations = ((src, counts[src]), (dst, counts[dst])), self.links.relation is not None
        return read_edge_split("evaluation.predict_edges", given, ends, relations=relations)

    def _times(self, split: str) -> Any:
        """Those of ``seeds.input_time``, by node type where they are given so; None: not given."""
        given = self._input_time.get(split)
        if isinstance(given, Mapping):
            return {t: read_array(f"seeds.input_time.{split}.{t}", times, "times") for t, times in given.items()}
        return None if given is None else read_array(f"seeds.input_time.{split}", given, "times")

    def _node_spec(self, name: str, split: str) -> LoaderSpec:
        spec = self._loader_spec(name, split)
        assert isinstance(spec, LoaderSpec)
        return spec

    def user_ids(self, n_id: np.ndarray, of_type: str | None = None) -> np.ndarray | None:
        """What the user's table calls the nodes that were predicted (of edges, the sources), int64 or text [K]; None where
        ``n_id`` is all there is. of_type: their node type, where seeds are of several."""
        manifest = self._opened().manifest
        split = manifest.splits.get(self._predict_split)
        stored = split is not None and self._predict_split not in self._splits
        if self.links is not None:
            node_type = self.links.edge_types(manifest.schema)[0][0] if of_type is None else of_type
        elif stored and split is not None:
            node_type = split.node_type
        else:
            own = self._node_type() or manifest.schema.node_types[0]
            node_type = of_type or (own if isinstance(own, str) else own[0])
        if self.new is not None:
            return self.new.user_ids(n_id, node_type)
        ids = self._tables.user_ids(n_id, node_type)
        if ids is None and is_tables(self.dataset, with_ids_of=node_type):
            rank_zero_info(
                f"the converted tables are not below {self.root}: predictions name nodes by n_id, their row in the table. Set "
                "data.root to where the graph was partitioned, or look up ids with glt_lightning.partition.user_ids."
            )
        return ids

    def node_ids(self, what: str, given: Any, node_type: str) -> np.ndarray:
        """Reads nodes of a type that a user gives: ids of the table in a file, or node ids. Returns int64 [n], each once, in the
        user's numbers. Raises `DataError`; what: the beginning of errors."""
        manifest = self._opened().manifest
        of_table = isinstance(given, (str, Path)) and not str(given).endswith((".npy", ".pt"))
        if of_table and is_tables(self.dataset):
            found = self._tables.read_ids(what, str(given), node_type)
        else:
            found = read_array(what, given, "node ids")
            if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
                raise DataError(f"{what}: expected node ids [n], got {found.dtype} {list(found.shape)}.")
        t = manifest.schema.node_index(node_type)
        ids = np.unique(checked_ids(what, found, manifest.num_nodes[t], node_type))
        if len(gone := ids[np.isin(ids, self._opened().deleted(t))]):
            names = self._tables.user_ids(gone[:1], node_type)
            raise DataError(
                f"{what}: {gone[0] if names is None else names[0]} is a node of type {node_type!r} that is deleted. Remove it."
            )
        return ids

    @property
    def destination_type(self) -> str | None:
        """Node type of the destinations of the edges to predict; None for seeds that are nodes."""
        return None if self.links is None else self.links.edge_types(self._opened().manifest.schema)[0][2]

    @property
    def _tables(self) -> ConvertedTables:
        """The tables of the graph, with the ids of nodes that came later."""
        from glt_lightning.partition import ConvertedTables

        later = self.later_rows
        return ConvertedTables(self.root, self._opened().manifest, {} if later is None else later.ids)

    def edges_of(self, split: str, edge_type: EdgeType) -> np.ndarray | None:
        """int64 [2, E]: the edges of a split of one type to predict, in the user's ids; None where there are none of it."""
        found = self._stored_edges(split, edge_type)
        if found is None:
            return None
        pairs = np.asarray(found.edge, dtype=np.int64)
        labels = None if self.links is None or self.links.relation is not None else found.label
        return pairs if labels is None or labels.ndim > 1 else pairs[:, labels > 0]

    def has_edge_labels(self, edge_type: EdgeType) -> bool:
        """True where the edges to train of a type have labels or relations, so that not all are known positives."""
        found = self._stored_edges("train", edge_type)
        return found is not None and found.label is not None

    def relations_of(self, split: str, edge_type: EdgeType) -> np.ndarray | None:
        """int64 [E]: the relation of each edge of `edges_of`; None where edges have none (``links.relation``)."""
        found = self._stored_edges(split, edge_type)
        if found is None or self.links is None or self.links.relation is None:
            return None
        return np.asarray(found.label, dtype=np.int64)

    def _stored_edges(self, split: str, edge_type: EdgeType) -> EdgeSplit | None:
        graph = self._opened()
        own = [] if self.links is None else [e for e in self.links.by_type if e.edge_type(graph.schema) == edge_type]
        if not own or split not in own[0].stored_splits(graph.manifest):
            return None
        return graph.edge_split(graph.schema.edge_index(edge_type), split)

    def weight_attr_of(self, name: str) -> WeightAttr:
        """What leaves edges out of the graph that ``val``, ``test`` or ``predict`` reads; None: only ``sampling.weight_attr``."""
        split = self._predict_split if name == "predict" else name
        return None if self.links is None else self.links.weight_attr(self._opened().manifest, split)

    def _find_seeds(self, split: str | None) -> tuple[Any, str | None]:
        """(the user's own seeds, name of a stored split); neither for all nodes."""
        if split is None:
            return None, None
        if split in self._splits:
            return self._own_seeds(split), None
        require_split(split, self._split_names())
        return None, split

    def _new_seeds(self, new: NewRows) -> np.ndarray | dict[str, np.ndarray]:
        """The new nodes of the types that are predicted, by type if these are several."""
        types = self._node_type() or self._opened().manifest.schema.node_types[0]
        found = new.seeds([types] if isinstance(types, str) else types)
        return found[types] if isinstance(types, str) else found

    def _own_seeds(self, split: str) -> np.ndarray | dict[str, np.ndarray]:
        """By node type where they are given so."""
        given, target, num_nodes = self._splits[split], self.target_type, self._facts.num_nodes
        if isinstance(given, Mapping):
            if unknown := sorted(set(given) - set(num_nodes)):
                raise OptionError(f"seeds.splits.{split}: expected any of {', '.join(num_nodes)}; got {unknown[0]!r}.")
            return {t: read_fitting_split(f"{split}.{t}", ids, num_nodes, t) for t, ids in given.items()}
        if isinstance(target, list):
            raise OptionError(
                f"seeds.splits.{split}: seeds.input_type names several node types. Give seeds by type: {{{target[0]}: ...}}."
            )
        return read_fitting_split(split, given, num_nodes, target)

    def _check_own_overlap(self) -> None:
        """Splits that are stored were compared when they were; here those of ``seeds.splits`` with each other and with these."""
        graph = self._opened()
        for other in ("val", "test"):
            pair = ("train", other)
            if other in self._split_names() and set(pair) & set(self._splits):
                seeds: dict[int, dict[str, tuple[np.ndarray, np.ndarray | None]]] = {}
                for name in pair:
                    spec = self._node_spec(name, name)
                    for each, part in zip(spec.by_type, spec.typed_seeds(graph).parts, strict=True):
                        seeds.setdefault(part.node_type, {})[name] = (part.gids, each.input_time)
                for t, typed in seeds.items():
                    if len(typed) == len(pair):
                        node_type, shared = graph.schema.node_types[t], _at_the_same_times(*typed.values())
                        both = {name: (node_type, ids) for name, ids in zip(pair, shared, strict=True)}
                        check_overlap(both, self.partition.allow)

    @property
    def fanouts_of_edges(self) -> Fanouts | None:
        walks = self.sampling.importance_neighbors is not None
        return (
            None
            if (walks and isinstance(self.num_neighbors, Mapping)) or not self.num_neighbors
            else self.num_neighbors
        )

    @cached_property
    def _eval_num_neighbors(self) -> Fanouts:
        """Fan-outs of evaluation: those that were given, else by the number of edges. The same on all ranks."""
        if self.evaluation.num_neighbors is not None:
            return self.evaluation.num_neighbors
        if (
            self.sampling.importance_neighbors is not None
        ):  # most visited nodes of as many visits, whatever the graph's size
            return self.num_neighbors
        disjoint = self.batches.disjoint or self.sampling.time_attr is not None
        fanouts, why = eval_fanouts(self.num_neighbors, sum(self._opened().manifest.num_edges), disjoint)
        if fanouts != self.num_neighbors:
            rank_zero_info(
                f"evaluation.num_neighbors: {fanouts}, {why}. Set data.evaluation.num_neighbors to choose it."
            )
        return fanouts

    def _has_seeds(self, split: str) -> bool:
        if self.links is not None:
            return split in self._split_names()
        if split in self._splits:
            found = self._own_seeds(split)
            parts = list(found.values()) if isinstance(found, dict) else [found]
            return any(bool(seeds.any()) if seeds.dtype == np.bool_ else len(seeds) > 0 for seeds in parts)
        return split in self._facts.splits and split not in self._facts.empty_splits

    def _split_names(self) -> set[str]:
        manifest = self._opened().manifest
        return {*manifest.splits, *self._splits} if self.links is None else self.links.stored_splits(manifest)

    def _node_type(self) -> str | list[str] | None:
        manifest = self._opened().manifest
        return None if manifest.schema.homogeneous else self.seeds.input_type or manifest.target_type


def _at_the_same_times(
    first: tuple[np.ndarray, np.ndarray | None], second: tuple[np.ndarray, np.ndarray | None]
) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of two splits, given with the times of their seeds, that are in both at one time; all without such times."""
    (ids, times), (others, other_times) = first, second
    if times is None or other_times is None or len(times) != len(ids) or len(other_times) != len(others):
        return ids, others
    known, codes = np.unique(np.concatenate([times, other_times]), return_inverse=True)
    seeds = np.concatenate([ids, others]) * len(known) + codes
    own, theirs = seeds[: len(ids)], seeds[len(ids) :]
    return ids[np.isin(own, theirs)], others[np.isin(theirs, own)]
