"""Neighbours by random walks, as a loader's samplers and batches know them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from glt_lightning.base import (
    EdgeType,
    Fanouts,
    GraphSchema,
    ImportanceNeighbors,
    OptionError,
    SamplingOptions,
    edge_type_str,
)
from glt_lightning.kernels import WalkRule
from glt_lightning.sampling import ImportanceTask, SubgraphTask, fanout_table, fault_of

_OPTION = "sampling.importance_neighbors"
RELATION = "visited_from"


class DirectionalSpec(Protocol):
    """A `LoaderSpec`."""

    @property
    def name(self) -> str: ...
    @property
    def subgraph_type(self) -> str: ...
    @property
    def num_neighbors(self) -> Fanouts: ...


def importance_task(sampling: SamplingOptions, schema: GraphSchema) -> ImportanceTask | None:
    """What samplers are told; None: neighbours are those of stored edges. Raises `OptionError` for metapaths that the graph does
    not have."""
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
    return ImportanceTask(
        edge_types=tuple(sorted(found)),
        metapaths=tuple(found[each] for each in sorted(found)),
        walks=given.walks,
        length=given.length,
        restart=WalkRule.threshold(given.stop if ends else given.restart),
        ends=ends,
        self_loops=given.self_loops,
    )


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
        return src, RELATION, dst
    relation = name.removeprefix(f"{src}__").removesuffix(f"__{dst}")
    if name != f"{src}__{relation}__{dst}" or not relation:
        raise OptionError(
            f"{_OPTION}.metapath: its walks lead from {dst!r} to {src!r}, so the edges of the batch are "
            f"{src}__<name>__{dst}; got {name!r:.100}."
        )
    return src, relation, dst


def batch_schema(schema: GraphSchema, sampling: SamplingOptions) -> GraphSchema:
    """The types of nodes and edges of batches."""
    return _schema_of(importance_task(sampling, schema), schema)


def seeds_alone(schema: GraphSchema) -> tuple[tuple[int, ...], ...]:
    """Fan-outs of batches without neighbours: one hop that draws none."""
    return ((0,) * len(schema.edge_types),)


def fanouts_of(
    spec: DirectionalSpec,
    task: SubgraphTask | None,
    walks: ImportanceTask | None,
    seed_types: Collection[int],
    schema: GraphSchema,
) -> tuple[tuple[int, ...], ...]:
    """[H][edge types of the batches]. Raises `OptionError` for fan-outs that do not fit the graph, or the walks."""
    if walks is not None and task is not None:
        raise OptionError(
            f"loader {spec.name!r}: subgraph_type: {spec.subgraph_type} and {_OPTION} exclude each other: its edges "
            "are not stored, so there are none of the other direction, or among the nodes. Remove one of them."
        )
    if not len(spec.num_neighbors) and (task is None or task.is_induced):
        return seeds_alone(_schema_of(walks, schema)) if task is None else ()  # a task finds the edges among them
    fanouts = fanout_table(spec.num_neighbors, _schema_of(walks, schema))
    if walks is not None:
        check_importance(spec, walks, fanouts, seed_types, schema)
    return fanouts


def _schema_of(walks: ImportanceTask | None, schema: GraphSchema) -> GraphSchema:
    return schema if walks is None else replace(schema, edge_types=walks.edge_types)


def check_importance(
    spec: DirectionalSpec,
    task: ImportanceTask,
    fanouts: Sequence[Sequence[int]],
    seed_types: Collection[int],
    schema: GraphSchema,
) -> None:
    """Raises `OptionError` for a loader that finds no such neighbours. fanouts: [H][edge types of the task]."""
    where = f"loader {spec.name!r}:"
    most = task.walks * task.length
    if bad := [k for hop in fanouts for k in hop if k > most]:
        raise OptionError(
            f"{where} num_neighbors: {bad[0]} neighbours of {task.walks} walks that visit {task.length} nodes each: expected "
            f"at most {most}, or -1 for all visited nodes. Raise {_OPTION}.walks."
        )
    types = {schema.node_types[t] for t in seed_types}
    for hop, each in enumerate(fanouts):
        leads = {src for (src, _, dst), k in zip(task.edge_types, each, strict=True) if k and dst in types}
        if not leads:
            raise OptionError(
                f"{where} hop {hop} begins at nodes of type {', '.join(sorted(types))}, and no metapath of {_OPTION} does. "
                "Use fewer hops, or metapaths that lead back."
            )
        types = leads
