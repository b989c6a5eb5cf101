"""What a loader of nodes is asked to yield."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.base import GraphSchema, OptionError
from glt_lightning.graph import AnyGraph, Seeds
from glt_lightning.loader.recipe import Recipe
from glt_lightning.loader.times import as_times
from glt_lightning.loader.typed_plan import TypedSeeds, for_each_type, joined
from glt_lightning.workers import DTYPES


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderSpec(Recipe):
    """One loader of nodes: which seeds, and how batches are made around them (`Recipe`).

    Attributes:
        split: Name of a split of the data set, or
        seeds: the user's own ids of nodes, int [S] (or a boolean mask over all nodes), the same on every rank. Neither:
            all nodes of ``node_type``. Seeds of several node types are a mapping from type to ids (or a mask, or None for all of
            its nodes); one order goes over all of them, and a batch has ``input_id`` and ``batch_size`` for each type, 0 where it
            has none of a type.
        node_type: Node type of the seeds; needed in a heterogeneous graph unless ``split`` or ``seeds`` say it. Several: all
            nodes of each.
        input_time: Times of the seeds, int [S] or ``datetime64``, where ``sampling.time_attr`` is set: neighbours are drawn from
            the edges up to them. None: the seeds' own times, of the attribute that their node type has. With several types: by
            type.
        seed_weights: float [S], one for each seed in the user's order: every epoch draws S seeds with replacement, each as often
            as its weight says. None: every seed once. With several types: by type.

    Raises:
        OptionError: For a spec that contradicts itself; by ``make_loader`` for one that does not fit the graph.

    Example:
        >>> seeds, times = np.array([7, 3]), np.array([5, 9])
        >>> spec = LoaderSpec(name="own", seeds=seeds, num_neighbors=[-1], batch_size=2, extras={"time": times})
        >>> with Session("parts") as session:
        ...     batch = next(iter(session.make_loader(spec)))
        >>> batch.n_id[:2], batch.time
        (tensor([7, 3]), tensor([5, 9]))
        >>> spec = LoaderSpec(name="own", num_neighbors=[-1], batch_size=2, edge_format="edge_index")
        >>> with Session("parts") as session:
        ...     edges = next(iter(session.make_loader(spec))).edge_index
        >>> (colptr, sources), _ = edges.get_csc()  # as the sampler made them
        >>> edges.sort_order, len(colptr) == edges.num_cols + 1, len(sources) == edges.size(1)
        ('col', True, True)
    """

    split: str | None = None
    seeds: np.ndarray | Mapping[str, np.ndarray | None] | None = None
    node_type: str | Sequence[str] | None = None
    input_time: Any = None
    seed_weights: np.ndarray | Mapping[str, np.ndarray] | None = None

    def __post_init__(self) -> None:
        if self.split is not None and self.seeds is not None:
            raise OptionError(f"loader {self.name!r}: give either split or seeds, not both.")
        super().__post_init__()
        if self.reverse_edge_types is not None and self.subgraph_type != "bidirectional":
            raise OptionError(
                f"loader {self.name!r}: reverse_edge_types: has no effect without subgraph_type bidirectional. Remove it."
            )
        if self.per_rank and self.seeds is None:
            raise OptionError(f"loader {self.name!r}: per_rank needs seeds: the ids of this rank alone.")
        if self.of_types is not None:
            self._check_types(self.of_types)
            return
        object.__setattr__(self, "input_time", as_times(f"loader {self.name!r}: input_time", self.input_time))
        if self.seed_weights is not None and np.asarray(self.seed_weights).dtype.kind not in "iufb":
            raise OptionError(
                f"loader {self.name!r}: seed_weights: expected numbers, got {np.asarray(self.seed_weights).dtype}."
            )
        for name in self.extras:
            if not name.isidentifier():
                raise OptionError(f"loader {self.name!r}: extras: expected Python identifiers as names, got {name!r}.")

    @property
    def of_types(self) -> list[str] | None:
        """The node types of the seeds in the order of the plan, where they are given by type."""
        if isinstance(self.seeds, Mapping):
            return sorted(map(str, self.seeds))
        return None if self.node_type is None or isinstance(self.node_type, str) else sorted(self.node_type)

    def _check_types(self, types: list[str]) -> None:
        where = f"loader {self.name!r}:"
        if not types or len(set(types)) < len(types):
            raise OptionError(
                f"{where} node_type: expected different node types, got {self.node_type or types!r:.200}."
            )
        if isinstance(self.seeds, Mapping):
            if self.node_type is not None:
                raise OptionError(f"{where} node_type: seeds say it already, {', '.join(types)}. Remove it.")
        elif self.split is not None or self.seeds is not None:
            given = "split" if self.split is not None else "seeds"
            raise OptionError(f"{where} {given}: is of one node type, and node_type names several. Give seeds by type.")
        if self.seed_weights is not None and any(each.seed_weights is None for each in self.by_type):
            raise OptionError(f"{where} seed_weights: expected some for each of {', '.join(types)}.")
        _ = self.by_type  # which checks each

    @property
    def by_type(self) -> tuple[LoaderSpec, ...]:
        """A spec for each node type, in the order of the plan; where seeds are not given by type this one."""
        types = self.of_types
        if types is None:
            return (self,)
        where = f"loader {self.name!r}:"
        names = ("extras", "input_time", "seed_weights")
        by_type = {name: for_each_type(f"{where} {name}", getattr(self, name), types) for name in names}
        return tuple(
            replace(
                self,
                node_type=t,
                seeds=self.seeds[t] if isinstance(self.seeds, Mapping) else None,
                extras=by_type["extras"][t] or {},
                input_time=by_type["input_time"][t],
                seed_weights=by_type["seed_weights"][t],
            )
            for t in types
        )

    @property
    def weights(self) -> np.ndarray | None:
        """float64 [S] for the epoch plan."""
        if self.seed_weights is None:
            return None
        return joined([np.ascontiguousarray(each.seed_weights, np.float64) for each in self.by_type])

    def find_extras(self, seeds: Seeds) -> dict[str, np.ndarray]:
        """``extras`` as arrays. Raises `OptionError` for those that do not fit the seeds or cannot be sent."""
        found = {name: np.asarray(values) for name, values in self.extras.items()}
        for name, array in found.items():
            if array.dtype.str not in DTYPES:
                raise OptionError(
                    f"loader {self.name!r}: extras: {name} has dtype {array.dtype}; expected numbers or booleans of at most 8 "
                    "bytes, little-endian."
                )
            if array.ndim == 0 or len(array) != len(seeds.gids):
                raise OptionError(
                    f"loader {self.name!r}: extras: {name} has the shape {list(array.shape)}; expected one row for each of the "
                    f"{len(seeds.gids)} seeds, in their order."
                )
        return found

    def typed_seeds(self, graph: AnyGraph) -> TypedSeeds:
        """The seeds of all types."""
        return TypedSeeds(tuple(each.find_seeds(graph) for each in self.by_type))

    def find_seeds(self, graph: AnyGraph) -> Seeds:
        if self.split is not None:
            return graph.split(self.split)
        assert not isinstance(self.seeds, Mapping), "seeds by type: ask each of by_type"
        return graph.seeds(self._type_index(graph.schema), self.seeds)

    def _type_index(self, schema: GraphSchema) -> int:
        if self.node_type is None and len(schema.node_types) == 1:
            return 0
        if self.node_type not in schema.node_types:
            raise OptionError(
                f"loader {self.name!r}: node_type: expected one of {', '.join(schema.node_types)}; got {self.node_type!r}."
            )
        return schema.node_index(str(self.node_type))
