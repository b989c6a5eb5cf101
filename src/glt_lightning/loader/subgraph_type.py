"""Which edges the batches of a loader have: ``subgraph_type``, as a spec gives it and as samplers take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from glt_lightning.base import (
    SUBGRAPH_TYPES,
    EdgeType,
    GraphSchema,
    OptionError,
    SamplingOptions,
    SubgraphType,
    edge_type_str,
    one_of,
)
from glt_lightning.graph import Manifest
from glt_lightning.sampling import BIDIRECTIONAL, INDUCED, SubgraphTask


class HasSubgraphType(Protocol):
    """A `LoaderSpec`, a `LinkSpec` or a data module."""

    @property
    def subgraph_type(self) -> SubgraphType: ...
    @property
    def induced_limit(self) -> int | None: ...
    @property
    def edge_format(self) -> str: ...
    @property
    def reverse_edge_types(self) -> Mapping[str, str] | None: ...


class NamedSpec(HasSubgraphType, Protocol):
    @property
    def name(self) -> str: ...


def check_subgraph(where: str, spec: HasSubgraphType) -> None:
    """Raises `OptionError` for options that contradict each other. where: begins the errors."""
    kind, limit = spec.subgraph_type, spec.induced_limit
    one_of(f"{where}subgraph_type", kind, SUBGRAPH_TYPES)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise OptionError(
            f"{where}induced_limit: expected a number of edges, 1 or more, or nothing; got {limit!r:.80}."
        )
    if limit is not None and kind == "directional":
        raise OptionError(
            f"{where}induced_limit: has no effect with subgraph_type directional, which reads no further rows. Remove it."
        )
    if kind == BIDIRECTIONAL and spec.edge_format != "tensor":
        raise OptionError(
            f"{where}edge_format: {spec.edge_format} needs edges that are sorted by destination; those of subgraph_type "
            "bidirectional are not, as the edges of the other direction follow the sampled ones. Use edge_format tensor."
        )


class HasPtr(HasSubgraphType, Protocol):
    """A `LoaderSpec` or a data module."""

    @property
    def ptr(self) -> bool: ...
    @property
    def disjoint(self) -> bool: ...


def check_ptr(where: str, spec: HasPtr) -> None:
    """Raises `OptionError` for ``ptr`` of batches that have no subgraph for each seed."""
    if not isinstance(spec.ptr, bool):
        raise OptionError(f"{where}ptr: expected true or false, got {spec.ptr!r:.80}.")
    if spec.ptr and not (spec.disjoint and spec.subgraph_type == INDUCED):
        raise OptionError(
            f"{where}ptr: tells where the subgraph of each seed begins. Set disjoint: true and subgraph_type: induced, or "
            "remove it."
        )


def subgraph_task(spec: NamedSpec, manifest: Manifest, sampling: SamplingOptions) -> SubgraphTask | None:
    """What samplers are told; None for ``directional``. Raises `OptionError` where it does not fit the graph, or sampling."""
    kind, schema, where = (
        spec.subgraph_type,
        manifest.schema,
        f"loader {spec.name!r}: subgraph_type: {spec.subgraph_type}",
    )
    if kind == "directional":
        return None
    if sampling.aggregate_first is not None:
        raise OptionError(
            f"{where} and sampling.aggregate_first exclude each other: the last hop that is aggregated has the nodes whose edges "
            "are wanted. Remove one of them."
        )
    if sampling.time_attr is not None:
        raise OptionError(
            f"{where} and sampling.time_attr exclude each other: its edges would be of any time. Remove one of them."
        )
    if kind == INDUCED:
        return SubgraphTask(kind=kind, limit=spec.induced_limit)
    reverse = [reverse_of(schema, each, spec) for each in schema.edge_types]
    for r, edge_type in enumerate(schema.edge_types):
        if "is_flipped" in manifest.edge_attrs(r):
            raise OptionError(
                f"{where}: edges of type {edge_type_str(edge_type)} have an attribute is_flipped, and batches would have two. "
                "Partition the data set without it, or under another name."
            )
    if all(r is None for r in reverse):
        raise OptionError(
            f"{where}: no edge type of {', '.join(map(edge_type_str, schema.edge_types))} has one of the other direction. "
            "Partition with undirected: true, or name them as reverse_edge_types."
        )
    return SubgraphTask(kind=kind, limit=spec.induced_limit, reverse=tuple(-1 if r is None else r for r in reverse))


def known_type(spec: NamedSpec, option: str, given: object, schema: GraphSchema) -> EdgeType:
    """An edge type by its text. Raises `OptionError` for one that the graph does not have."""
    known = {edge_type_str(each): each for each in schema.edge_types}
    if given not in known:
        raise OptionError(f"loader {spec.name!r}: {option}: expected one of {', '.join(known)}; got {given!r:.200}.")
    return known[str(given)]


def reverse_of(schema: GraphSchema, edge_type: EdgeType, spec: NamedSpec) -> int | None:
    """The edge type of the other direction: as ``reverse_edge_types`` say, else the one named ``rev_...``, else the same one
    where it has one node type; None: there is none."""
    given = (spec.reverse_edge_types or {}).get(edge_type_str(edge_type))
    source, relation, destination = edge_type
    if given is not None:
        found = known_type(spec, "reverse_edge_types", given, schema)
        if (found[0], found[2]) != (destination, source):
            raise OptionError(
                f"loader {spec.name!r}: reverse_edge_types: the reverse of {edge_type_str(edge_type)} leads from "
                f"{destination!r} to {source!r}; {given} does not."
            )
        return schema.edge_types.index(found)
    names = (f"rev_{relation}", relation.removeprefix("rev_"))
    likely = [(destination, name, source) for name in names if name != relation]
    return next(
        (schema.edge_types.index(each) for each in likely if each in schema.edge_types),
        schema.edge_types.index(edge_type) if source == destination else None,
    )
