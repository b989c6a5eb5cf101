"""Whether the state of a loader, from a checkpoint, belongs to the loader that is to go on from it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glt_lightning.base import OptionError
from glt_lightning.graph import Manifest, seeds_hash
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.typed_plan import TypedSeeds
from glt_lightning.sampling import EpochPlan

_CRC, _HASH, _PARTS, _WEIGHTS, _BOUNDS = "seeds_crc32", "seeds_hash", "parts", "seed_weights", "time_bounds"

_SAME_DATA = ("fingerprint", "undirected", "normalize", "storage")


def graph_identity(manifest: Manifest) -> list[Any]:
    """What makes two partition folders hold the same graph, however it is cut."""
    made_by = manifest.made_by
    found = [made_by.get(k) for k in _SAME_DATA] + [list(manifest.num_edges)]
    # other ids of reverse edges, and other rows: earlier releases had neither
    found += [made_by[k] for k in ("reverse_ids", "overlay") if k in made_by]
    return found if manifest.row_order is None else [*found, manifest.row_order.to_json()]  # rows are in another order


def seeds_identity(
    specs: Sequence[LoaderSpec], manifest: Manifest, seeds: TypedSeeds, plan: EpochPlan
) -> dict[str, Any]:
    """What makes two plans share out the same seeds: a hash of the user's ids, which no partitioning changes.

    A folder of an earlier release has no hash of its splits; there it is a checksum of the gids, which differ with the
    parts. So does the plan with ``owner`` placement.
    """
    # states of earlier releases do not name the weights, which they had none of
    weights = None if plan.weights is None else f"{zlib.crc32(plan.weights):08x}"
    identity: dict[str, Any] = {"num_seeds": len(plan.seeds), _WEIGHTS: weights}
    found = [_hash_of(spec, manifest) for spec in specs]
    if None in found:
        identity[_CRC] = zlib.crc32(plan.seeds)
    else:
        types = [manifest.schema.node_types[t] for t in seeds.types]
        identity[_HASH] = "; ".join(f"{node_type}: {each}" for node_type, each in zip(types, found, strict=True))
    if plan.owner is not None:
        algorithm = manifest.made_by.get("algorithm")
        identity[_PARTS] = [manifest.num_parts, algorithm, f"{zlib.crc32(plan.owner):08x}"]
    bounds = [] if plan.bounds is None else [plan.bounds.until, plan.bounds.since]
    identity[_BOUNDS] = [f"{zlib.crc32(b):08x}" for b in bounds if b is not None] or None
    # batches hold them, and are to be the same; None also where there are none, so that leaving them out is noticed
    checksums = {name: f"{zlib.crc32(np.ascontiguousarray(a)):08x}" for name, a in plan.extras.items()}
    identity["extras"] = checksums or None
    return identity


def _hash_of(spec: LoaderSpec, manifest: Manifest) -> str | None:
    if spec.split is not None:
        return manifest.splits[spec.split].ids_hash
    if spec.seeds is None:
        return "all nodes"
    ids = np.asarray(spec.seeds)
    return seeds_hash(np.flatnonzero(ids) if ids.dtype == np.bool_ else ids)


def read_state(state: object, plan: EpochPlan, identity: Mapping[str, Any]) -> tuple[int, int]:
    """(epoch, batches delivered) of the state of a loader with this plan and identity.

    Raises `OptionError` that names what differs if the state belongs to another plan, or what is damaged in it.
    """
    where = f"loader {plan.loader!r} cannot resume:"
    if not isinstance(state, Mapping) or not isinstance(theirs := state.get("plan"), Mapping):
        raise _damaged(where, "plan", "an object", state.get("plan") if isinstance(state, Mapping) else state)
    theirs = as_json(theirs)  # checkpoints of earlier releases have tuples
    mine = _as_before(identity, plan) if _CRC in theirs and _HASH in identity else dict(identity)
    if _HASH in theirs and _CRC in identity:
        raise OptionError(
            f"{where} the checkpoint names its seeds by the user's ids, and this partition folder was written by "
            "an earlier release, which did not store a hash of them. Partition again, into another folder."
        )
    differ = [k for k in mine if theirs.get(k) != mine[k]]
    if differ:
        what = "; ".join(line for k in differ for line in _differences(k, theirs.get(k), mine[k]))
        of_version = "graph" in differ and _same_data(theirs.get("graph"), mine["graph"])
        advice = (
            ", its data.partition.version among them: rows were added to the graph or deleted" if of_version else ""
        )
        raise OptionError(f"{where} {what}. Use the options of the first run{advice}.")
    for name, most in (("epoch", None), ("delivered", len(plan))):
        count = state.get(name)
        if type(count) is not int or count < 0 or (most is not None and count > most):
            raise _damaged(where, name, f"a count{'' if most is None else f' up to {most}'}", count)
    return state["epoch"], state["delivered"]


def _differences(name: str, theirs: Any, mine: Any) -> list[str]:
    """One text for each value that differs; of mappings, for each of their values."""
    if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
        differ = [k for k in {**theirs, **mine} if theirs.get(k) != mine.get(k)]
        return [line for k in differ for line in _differences(f"{name}.{k}", theirs.get(k), mine.get(k))]
    return [f"{name}: {theirs!r:.200} in the checkpoint, {mine!r:.200} now"]


def _same_data(theirs: object, mine: Sequence[Any]) -> bool:
    """Tells whether two `graph_identity` are of versions of one graph."""
    return isinstance(theirs, list) and theirs[: len(_SAME_DATA)] == as_json(mine)[: len(_SAME_DATA)]


def as_json(value: Any) -> Any:
    """The value as it comes back from JSON: tuples as lists, names as text. A state may be kept as either."""
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, (list, tuple)) else value


def _as_before(identity: Mapping[str, Any], plan: EpochPlan) -> dict[str, Any]:
    """The identity as earlier releases wrote it: what tells the parts apart there is the checksum of the gids."""
    return {k: v for k, v in identity.items() if k not in (_HASH, _PARTS)} | {_CRC: zlib.crc32(plan.seeds)}


def _damaged(where: str, name: str, expected: str, found: object) -> OptionError:
    return OptionError(
        f"{where} {name}: expected {expected}, the checkpoint has {found!r:.80}. It is damaged, or was written by another "
        "program; use another checkpoint."
    )
