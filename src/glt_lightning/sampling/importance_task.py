"""The task of a sampler that finds the neighbours of a batch's nodes by random walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from glt_lightning.base import (
    DataError,
    EdgeType,
    GraphSchema,
    ImportanceNeighbors,
    OptionError,
    SamplingOptions,
    edge_type_str,
)
from glt_lightning.kernels import WalkRule

_OPTION = "sampling.importance_neighbors"
_RELATION = "visited_from"
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

    @classmethod
    def of(cls, sampling: SamplingOptions, schema: GraphSchema) -> ImportanceTask | None:
        """Makes the task of ``sampling.importance_neighbors``; None without it: neighbours are those of stored edges. Raises
        `OptionError` for metapaths that the graph does not have."""
        given = ImportanceNeighbors.of(sampling.importance_neighbors)
        if given is None:
            return None
        names = [edge_type_str(each) for each in schema.edge_types]
        paths = given.metapaths or _only(names)
        found: dict[EdgeType, tuple[int, ...]] = {}
        for name, path in paths.items():
            for each in path:
                if each not in names:
                    raise OptionError(f"{_OPTION}.metapath: expected some of {', '.join(names)}; got {each!r:.100}.")
            types = [schema.edge_types[names.index(each)] for each in path]
            if fault := fault_of(types, given.length > 1):
                raise OptionError(f"{_OPTION}.metapath: {fault}")
            found[_edge_type(name, types, schema)] = tuple(names.index(each) for each in path)
        ends = bool(given.stop)
        return cls(
            edge_types=tuple(sorted(found)),
            metapaths=tuple(found[each] for each in sorted(found)),
            walks=given.walks,
            length=given.length,
            restart=WalkRule.threshold(given.stop if ends else given.restart),
            ends=ends,
            self_loops=given.self_loops,
        )

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


def fault_of(metapath: Sequence[EdgeType], again: bool) -> str | None:
    """Explains in a sentence why no walk can go along the edge types; None if walks can. again: the first edge type also has to
    follow the last."""
    following = [*metapath[1:], *(metapath[:1] if again else ())]
    for each, then in zip(metapath, following, strict=False):
        if each[0] != then[2]:
            return (
                f"a step along {edge_type_str(each)} leads to {each[0]!r}, and {edge_type_str(then)} goes on from {then[2]!r}. "
                "Steps go against the edges, from a destination to a source. Give edge types that follow each other"
                + (", the first one also after the last." if again else ".")
            )
    return None


def _only(names: Sequence[str]) -> dict[str, list[str]]:
    if len(names) != 1:
        raise OptionError(
            f"{_OPTION}.metapath: the graph has the edge types {', '.join(names)}. Name those that walks "
            "go along, one after the other."
        )
    return {"": list(names)}


def _edge_type(name: str, types: Sequence[EdgeType], schema: GraphSchema) -> EdgeType:
    """The edge type of a batch for a metapath. Raises `OptionError` for a name that does not say where it leads."""
    if schema.homogeneous:
        return schema.edge_types[0]
    src, dst = types[-1][0], types[0][2]
    if not name:
        return src, _RELATION, dst
    relation = name.removeprefix(f"{src}__").removesuffix(f"__{dst}")
    if name != f"{src}__{relation}__{dst}" or not relation:
        raise OptionError(
            f"{_OPTION}.metapath: its walks lead from {dst!r} to {src!r}, so the edges of the batch are "
            f"{src}__<name>__{dst}; got {name!r:.100}."
        )
    return src, relation, dst
