"""The times of a loader's seeds, and the bounds in time that its plan has from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from glt_lightning.base import OptionError, SamplingOptions
from glt_lightning.graph import Manifest
from glt_lightning.loader.spec import LoaderSpec
from glt_lightning.loader.times import SEED_TIME, bounds_of, require_times
from glt_lightning.loader.typed_plan import TypedSeeds, joined
from glt_lightning.sampling import EpochPlan


def times_of(
    spec: LoaderSpec,
    seeds: TypedSeeds,
    manifest: Manifest,
    sampling: SamplingOptions,
    read: Callable[[LoaderSpec, str], np.ndarray],
) -> list[np.ndarray]:
    """Of each type int64 [S], the times of its seeds where neighbours are drawn by time: those that are given, else the seeds'
    own, which ``read`` gives; empty where they are not. Raises `OptionError` for missing times, and for those that nothing reads.
    """
    time_attr, found = sampling.time_attr, []
    for each, part in zip(spec.by_type, seeds.parts, strict=True):
        times, node_type = each.input_time, manifest.schema.node_types[part.node_type]
        if times is None and time_attr is not None and time_attr in manifest.node_attrs(part.node_type):
            times = read(each, time_attr).reshape(-1).astype(np.int64)
        remedy = (
            f"Nodes of type {node_type!r} have no times of their own: give one for each seed (data.seeds.input_time)."
        )
        require_times(f"loader {spec.name!r}: input_time", times, len(part.gids), sampling, remedy)
        found.append(times)
    return [times for times in found if times is not None]


def with_bounds(
    plan: EpochPlan, extras: list[dict[str, np.ndarray]], times: Sequence[np.ndarray], sampling: SamplingOptions
) -> tuple[EpochPlan, list[dict[str, np.ndarray]]]:
    """(plan, extras) where each type's seeds have these times; with none, as they are."""
    if not times:
        return plan, extras
    if any(SEED_TIME in each for each in extras):
        raise OptionError(f"loader {plan.loader!r}: extras: batches have {SEED_TIME} already. Use another name.")
    extras = [{**each, SEED_TIME: own} for each, own in zip(extras, times, strict=True)]
    return replace(plan, bounds=bounds_of(joined(times), sampling)), extras
