"""The task of a sampler that finds the neighbours of a batch's nodes by random walks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from glt_lightning.base import DataError, EdgeType, GraphSchema
from glt_lightning.kernels import WalkRule
from glt_lightning.sampling.metapath import fault_of

_MOST_TYPES = 256


@dataclass(frozen=True, kw_only=True)
class ImportanceTask:
    """The walks that find neighbours. The neighbours of a node are the nodes that its walks visit most; batches have edges from
    these, and no stored edges. Plain values, so that it can be sent to another process.

    edge_types: the edge types of batches, in the order of their names.  metapaths: for each the stored edge types, by index,
    that its walks go along, from its destination type to its source type.  walks: number of walks from each node.  length:
    how often a walk goes along the metapath.  restart, ends: as in `kernels.walks.WalkRule`.  self_loops: a node may be its
    own neighbour.

    Raises `DataError` for values that no loader has.
    """

    edge_types: tuple[EdgeType, ...]
    metapaths: tuple[tuple[int, ...], ...]
    walks: int
    length: int
    restart: int = 0
    ends: bool = False
    self_loops: bool = False

    def __post_init__(self) -> None:
        named = all(len(e) == 3 and all(type(name) is str for name in e) for e in self.edge_types)
        ordered = named and list(self.edge_types) == sorted(set(self.edge_types))
        fits = ordered and 0 < len(self.edge_types) == len(self.metapaths) <= _MOST_TYPES
        numbers = type(self.walks) is int and self.walks >= 1 and type(self.length) is int and self.length >= 1
        if not fits or not numbers or type(self.self_loops) is not bool:
            raise DataError(f"importance: {asdict(self)!r:.300} is not allowed.")
        if any(self.walks * self.rule(r).length > WalkRule.MOST_STEPS for r in range(len(self.metapaths))):
            raise DataError(f"importance: expected at most {WalkRule.MOST_STEPS} steps from one node.")

    def rule(self, edge_type: int) -> WalkRule:
        """Returns the rule of the walks for an edge type of the batches. edge_type: its index."""
        path = self.metapaths[edge_type]
        return WalkRule(edge_types=path, length=self.length * len(path), restart=self.restart, ends=self.ends)

    def require(self, schema: GraphSchema) -> None:
        """Raises `DataError` unless walks go along these metapaths in the graph."""
        for (src, name, dst), path in zip(self.edge_types, self.metapaths, strict=True):
            where = f"importance: {src}__{name}__{dst}:"
            outside = [r for r in path if r >= len(schema.edge_types)]
            if outside:
                raise DataError(f"{where} expected edge types 0 to {len(schema.edge_types) - 1}, got {outside[0]}.")
            types = [schema.edge_types[r] for r in path]
            if fault := fault_of(types, self.length > 1):
                raise DataError(f"{where} {fault}")
            if (types[-1][0], types[0][2]) != (src, dst):
                raise DataError(f"{where} its walks lead from {types[0][2]!r} to {types[-1][0]!r}.")

    @property
    def identity(self) -> list[Any]:
        """The values that a mid-epoch checkpoint is compared with."""
        return list(self.to_wire().values())

    def to_wire(self) -> dict[str, Any]:
        types = {"edge_types": list(map(list, self.edge_types)), "metapaths": list(map(list, self.metapaths))}
        return asdict(self) | types

    @classmethod
    def from_wire(cls, given: Any, _num_edge_types: int | None = None) -> ImportanceTask:
        """Decodes a task: the inverse of `to_wire`. Raises `DataError` for anything else."""
        known = {field.name for field in fields(cls)}
        lists = isinstance(given, Mapping) and set(given) == known
        lists = lists and all(
            isinstance(given[n], list) and all(isinstance(each, list) for each in given[n])
            for n in ("edge_types", "metapaths")
        )
        if not lists:
            raise DataError(f"importance: expected an object with {', '.join(sorted(known))}; got {given!r:.200}.")
        types = {name: tuple(map(tuple, given[name])) for name in ("edge_types", "metapaths")}
        return cls(**dict(given) | types)
