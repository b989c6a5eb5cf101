"""The fan-outs of a loader, along stored edges or by random walks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from glt_lightning.base import Fanouts, GraphSchema, OptionError, SamplingOptions
from glt_lightning.sampling import ImportanceTask, SubgraphTask, fanout_table

_OPTION = "sampling.importance_neighbors"


class DirectionalSpec(Protocol):
    """A `LoaderSpec`."""

    @property
    def name(self) -> str: ...
    @property
    def subgraph_type(self) -> str: ...
    @property
    def num_neighbors(self) -> Fanouts: ...


def batch_schema(schema: GraphSchema, sampling: SamplingOptions) -> GraphSchema:
    """The types of nodes and edges of batches."""
    return _schema_of(ImportanceTask.of(sampling, schema), schema)


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
