"""`Recipe`: the options that loaders of nodes and of edges share, and the task of samplers that they make of its edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from glt_lightning.base import (
    BatchOptions,
    EdgeType,
    Fanouts,
    GraphSchema,
    OptionError,
    SamplingOptions,
    WeightAttr,
    edge_type_str,
)
from glt_lightning.graph import Manifest
from glt_lightning.loader.transforms import BatchTransform
from glt_lightning.sampling import SubgraphTask


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe(BatchOptions):
    """How a loader makes batches around its seeds, which `LoaderSpec` (nodes) and `LinkSpec` (edges) add.

    Attributes:
        name: Part of the key of all draws, such as ``"train"``; two loaders of one name draw alike.
        num_neighbors: Fan-outs, first hop first, -1 for all; per edge type as ``{"src__rel__dst": [...]}``. ``[]``: seeds alone.
        batch_size: Seeds per batch and rank, of all types together; of edges without negatives.
        per_rank: The seeds are this rank's own. Their numbers are agreed when the loader is made, by all ranks together;
            in training a rank with fewer starts over, in evaluation it ends earlier.
        shuffle: A new order in every epoch.
        exact: For evaluation: every seed exactly once over all ranks, and the same draws in every epoch. Otherwise all
            ranks yield equally many batches.
        extras: Arrays [S, ...] in the order of the seeds, by the name that they get in a batch: labels, times, ids. No sampler
            reads them. A batch has the rows of its own seeds, beside ``input_id``. With several types: such a mapping for each.
        weight_attr: By which edge attributes neighbours are drawn; None: as ``sampling.weight_attr`` says.
        all_rows: Batches have the rows of all hops, whatever ``sampling.aggregate_first`` says.

    The other fields are those of `BatchOptions`; ``edge_index_csr`` has the order by source unless ``exact``.

    Raises:
        OptionError: For a recipe that contradicts itself; by ``Session.make_loader`` for one that does not fit the graph.
    """

    transform: Any = None
    name: str
    num_neighbors: Fanouts
    batch_size: int
    per_rank: bool = False
    shuffle: bool = False
    exact: bool = False
    extras: Mapping[str, Any] = field(default_factory=dict)
    weight_attr: WeightAttr = None
    all_rows: bool = False

    def __post_init__(self) -> None:
        where = f"loader {self.name!r}:"
        object.__setattr__(self, "transform", BatchTransform.of(f"{where} transform", self.transform))
        self._check_batches(f"{where} ")
        if not isinstance(self.per_rank, bool):
            raise OptionError(f"{where} per_rank: expected true or false, got {self.per_rank!r:.80}.")

    @property
    def common(self) -> dict[str, Any]:
        """The fields of a recipe by name, without those of its seeds."""
        return {each.name: getattr(self, each.name) for each in fields(Recipe)}


def subgraph_task(recipe: Recipe, manifest: Manifest, sampling: SamplingOptions) -> SubgraphTask | None:
    """Makes the task of samplers; None for ``directional``. Raises `OptionError` where it does not fit the graph, or sampling."""
    kind, schema, where = (
        recipe.subgraph_type,
        manifest.schema,
        f"loader {recipe.name!r}: subgraph_type: {recipe.subgraph_type}",
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
    task = SubgraphTask(kind=kind, limit=recipe.induced_limit)
    if task.is_induced:
        return task
    reverse = [reverse_of(schema, each, recipe) for each in schema.edge_types]
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
    return replace(task, reverse=tuple(-1 if r is None else r for r in reverse))


def known_type(recipe: Recipe, option: str, given: object, schema: GraphSchema) -> EdgeType:
    """An edge type by its text. Raises `OptionError` for one that the graph does not have."""
    known = {edge_type_str(each): each for each in schema.edge_types}
    if given not in known:
        raise OptionError(f"loader {recipe.name!r}: {option}: expected one of {', '.join(known)}; got {given!r:.200}.")
    return known[str(given)]


def reverse_of(schema: GraphSchema, edge_type: EdgeType, recipe: Recipe) -> int | None:
    """The edge type of the other direction: as ``reverse_edge_types`` say, else the one named ``rev_...``, else the same one
    where it has one node type; None: there is none."""
    given = (recipe.reverse_edge_types or {}).get(edge_type_str(edge_type))
    source, relation, destination = edge_type
    if given is not None:
        found = known_type(recipe, "reverse_edge_types", given, schema)
        if (found[0], found[2]) != (destination, source):
            raise OptionError(
                f"loader {recipe.name!r}: reverse_edge_types: the reverse of {edge_type_str(edge_type)} leads from "
                f"{destination!r} to {source!r}; {given} does not."
            )
        return schema.edge_types.index(found)
    names = (f"rev_{relation}", relation.removeprefix("rev_"))
    likely = [(destination, name, source) for name in names if name != relation]
    return next(
        (schema.edge_types.index(each) for each in likely if each in schema.edge_types),
        schema.edge_types.index(edge_type) if source == destination else None,
    )
