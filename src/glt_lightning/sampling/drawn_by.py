"""The attributes by which the neighbours of a loader are drawn: times, and the weights of edges."""

from __future__ import annotations

from dataclasses import replace

from glt_lightning.base import DrawOptions, OptionError, SamplingOptions, WeightAttr, edge_type_str
from glt_lightning.graph import IN_TRAINING, Manifest, probed
from glt_lightning.sampling.subgraph_task import INDUCED, SubgraphTask


def drawn_from(
    manifest: Manifest,
    draw: DrawOptions,
    weight_attr: WeightAttr = None,
    subgraph: SubgraphTask | None = None,
    time_attr: str | None = None,
) -> DrawOptions:
    """Completes the draw options for a graph: weights and times by the names of their attributes, the picker's version, and
    edge rows, which batches of a graph with edge attributes always have.

    weight_attr, time_attr: the options of ``sampling``.  subgraph: the edges of batches; an induced subgraph has all its
    edges from elsewhere, so the drawn ones need no edge rows. Raises `OptionError` if they do not fit the graph.
    """
    with_attributes = any(manifest.edge_attrs(r) for r in range(len(manifest.schema.edge_types)))
    require_time_attr(manifest, time_attr)
    found = {"weights": weights_of(manifest, weight_attr), "timed": time_attr is not None}
    found |= {} if draw.picker is None else {"picker": probed(draw.picker, manifest)}
    with_edge = draw.with_edge or with_attributes if subgraph is None else subgraph.kind != INDUCED
    return DrawOptions(**draw.values | found | {"with_edge": with_edge})


def drawn_on_gpu(manifest: Manifest, sampling: SamplingOptions) -> DrawOptions:
    """Completes the draw options for a graph that is copied to a GPU. Its weights are those of ``sampling.weight_attr``;
    without it the masks that leave out edges of validation, if the graph has any, since training loaders draw by them.
    Raises as `drawn_from`."""
    edge_types = range(len(manifest.schema.edge_types))
    masks = tuple(IN_TRAINING if IN_TRAINING in manifest.weights(r) else None for r in edge_types)
    draw = drawn_from(manifest, sampling.draw, sampling.weight_attr, time_attr=sampling.time_attr)
    return replace(draw, weights=draw.weights or (masks if any(masks) else ()))


def require_time_attr(manifest: Manifest, time_attr: str | None) -> None:
    """Raises `OptionError` unless ``sampling.time_attr`` is None or the attribute that rows of the partition are ordered by."""
    if time_attr is None:
        return
    order = manifest.row_order
    if order is None:
        raise OptionError(
            f"sampling.time_attr: {time_attr}: this partition has no times. Set partition.time_attr: {time_attr} and partition "
            "again."
        )
    if order.time_attr != time_attr:
        raise OptionError(
            f"sampling.time_attr: {time_attr}: the rows of this partition are ordered by {order.time_attr}. Set it to "
            f"{order.time_attr}, or set partition.time_attr to {time_attr} and partition again."
        )


def ignored_times(manifest: Manifest, time_attr: str | None) -> str | None:
    """Returns a line for the log if the partition has times that sampling ignores, else None."""
    order = manifest.row_order
    if time_attr is not None or order is None:
        return None
    return (
        "sampling.time_attr is not set: neighbours of any time are drawn, also of later ones than a seed's. To draw those up to "
        f"its time, set sampling.time_attr: {order.time_attr}."
    )


def weights_of(manifest: Manifest, weight_attr: WeightAttr) -> tuple[str | None, ...]:
    """Returns `DrawOptions.weights` for a graph. weight_attr: ``sampling.weight_attr``.

    Raises `OptionError` for an attribute that no edge type has, or that a named edge type lacks, and for one without prefix
    sums.
    """
    if weight_attr is None:
        return ()
    edge_types = list(enumerate(map(edge_type_str, manifest.schema.edge_types)))
    attrs = {name: manifest.edge_attrs(r) for r, name in edge_types}
    if isinstance(weight_attr, str):
        found = {name: weight_attr for name, each in attrs.items() if weight_attr in each}
        if not found:
            raise _unknown(
                weight_attr, sorted({name for each in attrs.values() for name in each}), "no edge type has it"
            )
    else:
        found = dict(weight_attr)
    for name, attr in found.items():
        if name not in attrs:
            raise OptionError(f"sampling.weight_attr: no edge type {name!r}. Edge types: {', '.join(attrs)}.")
        if attr not in attrs[name]:
            raise _unknown(attr, attrs[name], f"edges of type {name} do not have it")
    for r, name in edge_types:
        if name in found and found[name] not in manifest.weights(r):
            raise OptionError(
                f"sampling.weight_attr: this partition has no prefix sums of {found[name]} of edge type {name}. Set "
                f"partition.weights: [{found[name]}] and partition again."
            )
    return tuple(found.get(name) for _, name in edge_types)


def ignored_weights(manifest: Manifest, weight_attr: WeightAttr) -> str | None:
    """Returns a line for the log if edges have an ``edge_weight``, or weights in ``partition.weights``, that sampling ignores;
    else None."""
    names = {"edge_weight", *manifest.made_by.get("weights", ())} - {IN_TRAINING}
    found = sorted({n for r in range(len(manifest.schema.edge_types)) for n in manifest.edge_attrs(r) if n in names})
    if weight_attr is not None or not found:
        return None
    return (
        f"sampling.weight_attr is not set: neighbours are drawn uniformly, whatever their {found[0]}. To draw by it, set "
        f"sampling.weight_attr: {found[0]}."
    )


def _unknown(attr: str, known: tuple[str, ...] | list[str], why: str) -> OptionError:
    return OptionError(
        f"sampling.weight_attr: {attr!r}: {why}. Attributes of these edges: {', '.join(known) or 'none'}."
    )
