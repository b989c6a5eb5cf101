"""The attributes by which the edges of each type are weighted."""

from __future__ import annotations

from glt_lightning.base import OptionError, WeightAttr, edge_type_str
from glt_lightning.graph import IN_TRAINING, Manifest


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


def placed_weights(manifest: Manifest, weight_attr: WeightAttr) -> tuple[str | None, ...]:
    """Returns the weights that are copied to a GPU with the graph: those of ``sampling.weight_attr``; without it the masks that
    leave out edges of validation, if the graph has any, since training loaders draw by them. Raises as `weights_of`."""
    edge_types = range(len(manifest.schema.edge_types))
    masks = tuple(IN_TRAINING if IN_TRAINING in manifest.weights(r) else None for r in edge_types)
    return weights_of(manifest, weight_attr) or (masks if any(masks) else ())


def ignored_weights(manifest: Manifest, weight_attr: WeightAttr) -> str | None:
    """Returns a line for the log if edges have an ``edge_weight``, or weights in ``partition.weights``, that sampling ignores;
    else None."""
    names = {"edge_weight", *manifest.made_by.get("weights", ())} - {IN_TRAINING}
    found = sorted({n for r in range(len(manifest.schema.edge_types)) for n in manifest.edge_attrs(r) if n in names})
    if weight_attr is not None or not found:
        return None
    return (
        f"sampling.weight_attr is not set: neighbours are drawn uniformly, whatever their {found[0]}. To draw by it, set "
        f"partition.weights: [{found[0]}] and sampling.weight_attr: {found[0]}."
    )


def _unknown(attr: str, known: tuple[str, ...] | list[str], why: str) -> OptionError:
    return OptionError(
        f"sampling.weight_attr: {attr!r}: {why}. Attributes of these edges: {', '.join(known) or 'none'}."
    )
