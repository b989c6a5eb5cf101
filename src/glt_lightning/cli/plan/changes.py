"""What other options would change, in seconds of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glt_lightning.base import Fanouts
from glt_lightning.cli.plan.planned import Planned
from glt_lightning.lightning import Counted, rounds_of

_RATIOS = (0.05, 0.2)
_COUNTED, _COMPUTED = "counted", "computed"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Another choice. seconds: of an epoch, less those of the plan.  how: what its figures rest on."""

    name: str
    seconds: float
    how: str


def changes(plan: Planned) -> list[Change]:
    """What each of several options would change, by itself."""
    return [Change(name=name, seconds=other.seconds - plan.seconds, how=how) for name, other, how in _others(plan)]


def _others(plan: Planned) -> Iterator[tuple[str, Planned, str]]:
    layout, sampling = plan.layout, plan.batches.data.sampling
    yield (
        "one more sampler process per rank",
        replace(plan, layout=replace(layout, workers=layout.workers + 1)),
        "measured",
    )
    if layout.workers:
        yield "one sampler process less", replace(plan, layout=replace(layout, workers=layout.workers - 1)), "measured"
    yield from _precision(plan)
    if plan.counted is None:
        return
    yield _one_more_host(plan, plan.counted)
    for ratio, other in with_caches(plan, _RATIOS):
        yield f"data.cache.ratio: {ratio:g}", other, _COUNTED
    plain = sampling.method == "neighbor" and sampling.temporal_strategy == "uniform"
    if plain and not sampling.replace and sampling.picker is None:
        yield "data.sampling.method: labor", _drawn(plan, plan.counted, labor=True), _COUNTED
    fewer = halved(plan.batches.options.num_neighbors)
    yield f"data.num_neighbors: {_short(fewer)}", _drawn(plan, plan.counted, num_neighbors=fewer), _COUNTED


def _precision(plan: Planned) -> Iterator[tuple[str, Planned, str]]:
    if plan.counted is not None and (half := _half_bytes(plan)) < 1:
        remote = plan.counted.remote
        smaller = replace(
            plan.counted,
            row_bytes=half * plan.counted.row_bytes,
            remote=replace(
                remote, row_bytes=half * remote.row_bytes, nbytes=remote.nbytes - (1 - half) * remote.row_bytes
            ),
        )
        probe = replace(plan.probe, train=plan.probe.train.map(lambda cost: cost.scaled(row_bytes=half)))
        yield "data.partition.storage: {x: bfloat16}", replace(plan, probe=probe, counted=smaller), _COMPUTED
    if (ratio := plan.probe.bfloat16) is not None:
        step = plan.probe.train.map(lambda cost: cost.scaled(step=1 / ratio))
        name = "trainer.precision: bf16-mixed, at best"
        yield name, replace(plan, probe=replace(plan.probe, train=step)), "measured products"


def _half_bytes(plan: Planned) -> float:
    """The bytes of attributes with ``x`` in 16 bits, as a share of those of now."""
    manifest = plan.batches.partition.manifest
    all_bytes = halves = 0
    for path, entry in manifest.arrays.items():
        if path.startswith("part0/nodes/") and path.rpartition("/")[2] in ("x.npy", "y.npy"):
            all_bytes += entry.bytes
            halves += entry.bytes // 2 if path.endswith("/x.npy") and entry.dtype in ("float32", "<f4") else 0
    return 1 - halves / all_bytes if all_bytes else 1.0


def _one_more_host(plan: Planned, counted: Counted) -> tuple[str, Planned, str]:
    layout = plan.layout
    hosts, parts = layout.hosts + 1, plan.batches.partition.manifest.num_parts
    more = replace(layout, hosts=hosts, owners=hosts * (layout.owners // layout.hosts or 1))
    if more.owners <= parts:
        return "one more host", replace(plan, layout=more, counted=plan.batches.counted(more)), _COUNTED
    rounds = rounds_of(plan.batches.options.num_neighbors)
    dealt = counted.with_hosts(more.owners, rounds)
    return f"one more host, and {more.owners} parts", replace(plan, layout=more, counted=dealt), _COMPUTED


def with_caches(plan: Planned, ratios: Sequence[float]) -> Iterator[tuple[float, Planned]]:
    """The plan with each of these sizes of the remote cache; none where nothing is remote."""
    if plan.layout.owners == 1 or plan.counted is None:
        return
    traffic = plan.batches.count(plan.layout, ratios)
    for ratio in ratios:
        if all(any(each.ratio == ratio for each in part.caches) for part in traffic.parts):
            yield ratio, replace(plan, counted=plan.batches.of(traffic, ratio), ratio=ratio)


def _drawn(plan: Planned, counted: Counted, **options: Any) -> Planned:
    """The plan with batches that are drawn otherwise: times go by the nodes and edges that are counted."""
    other = plan.batches.counted(plan.layout, **options)
    nodes, edges = other.nodes / counted.nodes, other.edges / counted.edges if counted.edges else 1.0
    probe = replace(plan.probe, train=plan.probe.train.map(lambda cost: cost.scaled(nodes=nodes, edges=edges)))
    return replace(plan, probe=probe, counted=other)


def halved(given: Fanouts) -> Fanouts:
    """About half of each fan-out; all neighbours become 10.

    >>> halved([15, 10, -1])
    [8, 5, 10]
    """
    if isinstance(given, dict):
        return {name: halved(each) for name, each in given.items()}  # type: ignore[misc]
    return [10 if k < 0 else math.ceil(k / 2) for k in given]


def _short(given: Fanouts) -> str:
    return "half of each" if isinstance(given, dict) else str(given)
