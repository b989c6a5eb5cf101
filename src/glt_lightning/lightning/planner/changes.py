"""What other options would change, in seconds of an epoch, and the choice of those that the user left open."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glt_lightning.base import Fanouts, numbers
from glt_lightning.lightning.planner.partitions import by_algorithm, exact_encoding, in_16_bits, wide_attributes
from glt_lightning.lightning.planner.rules import Counted, rounds_of

if TYPE_CHECKING:
    from glt_lightning.lightning.planner.plan import Plan

_RATIOS = (0.05, 0.2)
_COUNTED, _COMPUTED = "counted", "computed"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Another choice. seconds: of an epoch, less those of the plan.  how: what its figures rest on."""

    name: str
    seconds: float
    how: str


def changes(plan: Plan) -> list[Change]:
    """What each of several options would change, by itself."""
    return [
        Change(name=name, seconds=other.seconds - plan.seconds, how=how if plan.gpu is None else _COMPUTED)
        for name, other, how in _others(plan)
    ]


def _others(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    layout, sampling = plan.layout, plan.batches.data.sampling
    yield (
        "one more sampler process per rank",
        replace(plan, layout=replace(layout, workers=layout.workers + 1)),
        "measured",
    )
    if layout.workers > layout.served:  # graph servers have at least one
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


def _precision(plan: Plan) -> Iterator[tuple[str, Plan, str]]:
    kinds = dict.fromkeys(wide_attributes(plan.batches.partition.manifest), "bfloat16")
    if kinds and plan.counted is not None:
        storage, other = in_16_bits(plan, kinds)
        yield f"data.partition.storage: {json.dumps(storage)}", other, _COMPUTED
    if (ratio := plan.probe.bfloat16) is not None and plan.gpu is None:
        step = plan.probe.train.map(lambda cost: cost.scaled(step=1 / ratio))
        name = "trainer.precision: bf16-mixed, at best"
        yield name, replace(plan, probe=replace(plan.probe, train=step)), "measured products"


def _one_more_host(plan: Plan, counted: Counted) -> tuple[str, Plan, str]:
    layout = plan.layout
    hosts, parts = layout.hosts + 1, plan.batches.partition.manifest.num_parts
    whole = layout.owners == 1 and (layout.hosts > 1 or layout.served)  # all hosts have all parts
    more = replace(layout, hosts=hosts, owners=1 if whole else hosts * max(1, layout.owners // layout.hosts))
    if more.owners <= parts or layout.owners > parts:
        return "one more host", replace(plan, layout=more, counted=plan.batches.counted(more)), _COUNTED
    rounds = rounds_of(plan.batches.options.num_neighbors)
    dealt = counted.with_hosts(more.owners, rounds)
    return f"one more host, and {more.owners} parts", replace(plan, layout=more, counted=dealt), _COMPUTED


def with_caches(plan: Plan, ratios: Sequence[float]) -> Iterator[tuple[float, Plan]]:
    """The plan with each of these sizes of the remote cache; none where nothing is remote."""
    if plan.layout.owners == 1 or plan.counted is None:
        return
    traffic = plan.batches.count(plan.layout, ratios)
    for ratio in ratios:
        if all(any(each.ratio == ratio for each in part.caches) for part in traffic.parts):
            yield ratio, replace(plan, counted=plan.batches.of(traffic, ratio), ratio=ratio)


def _drawn(plan: Plan, counted: Counted, **options: Any) -> Plan:
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


# Choices: only of options on which no batch depends; others are listed with their gain.


# Fewer only where memory needs it: batches that are ready hide how much batches differ, which plans do not know.
_CONCURRENCY = (4, 8, 16, 2, 1)
_CACHES = (0.01, 0.05, 0.1, 0.2, 0.5)
_NEAR = 0.02  # a gain that is not worth another process, or more memory


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An option with its value, and why. option: below ``data``.  yours: batches would change, so that it is only listed."""

    option: str
    value: Any
    why: str
    yours: bool = False


def choose(plan: Plan, given: Iterable[str]) -> tuple[list[Choice], Plan]:
    """Chooses what is not among the ``given`` options, one after the other. Returns the choices, and the plan with them."""
    taken = set(given)
    chosen: list[Choice] = []
    partition, data, batches = plan.batches.partition, plan.run.data, plan.batches
    anew = data.dataset is not None and not taken & {"data.partition.dir", "data.partition.version"}
    with ExitStack() as partitions:
        dealt = 1 < plan.layout.owners <= partition.manifest.num_parts and plan.counted is not None
        if anew and dealt and "data.partition.algorithm" not in taken:
            plan = _choose_algorithm(plan, chosen, partitions)
        if anew and not any(each.startswith("data.partition.storage") for each in taken):
            plan = _choose_storage(plan, chosen)
        plan = _choose_sampling(plan, taken, chosen)
    return chosen, replace(plan, batches=batches)


def _choose_sampling(plan: Plan, taken: set[str], chosen: list[Choice]) -> Plan:
    if not taken & {"data.cache.ratio", "data.cache.bytes", "data.cache"} and plan.layout.owners > 1:
        plan = _choose_cache(plan, chosen)
    if "data.sampling.num_workers" not in taken:
        plan = _choose_workers(plan, chosen)
    if "data.sampling.concurrency" not in taken and plan.layout.workers:
        plan = _choose_concurrency(plan, chosen)
    if "data.sampling.channel_size" not in taken and plan.layout.workers:
        waiting = plan.memory.batches / plan.layout.ranks
        why = f"an eighth of the memory that is free, for all ranks: up to {numbers.size(waiting)} of batches per rank"
        chosen.append(Choice(option="sampling.channel_size", value="auto", why=why))
    return plan


def _choose_algorithm(plan: Plan, chosen: list[Choice], partitions: ExitStack) -> Plan:
    tried, left_out = partitions.enter_context(by_algorithm(plan))
    value = _least(tried, plan.available)
    yours = plan.run.data.sampling.seed_placement == "owner" and tried[value] is not plan
    why = "; ".join([_seconds(tried, value), *left_out])
    if yours:
        why = f"batches would have other seeds, by seed_placement; {why}"
    chosen.append(Choice(option="partition.algorithm", value=value, why=why, yours=yours))
    return plan if yours else tried[value]


def _choose_storage(plan: Plan, chosen: list[Choice]) -> Plan:
    wide = list(wide_attributes(plan.batches.partition.manifest))
    exact = {key: kind for key in wide if (kind := exact_encoding(plan.batches.partition, *key)) is not None}
    for kinds, yours in ((exact, False), (dict.fromkeys(wide, "bfloat16"), True)):
        if not kinds or (yours and len(exact) == len(wide)):
            continue
        storage, other = in_16_bits(plan, kinds)
        tried = {"{}": plan, json.dumps(storage): other}
        if yours or tried[_least(tried, plan.available)] is other:
            how = "rounds values" if yours else "changes no value"
            why = f"{how}; {_seconds(tried, json.dumps(storage))}"
            chosen.append(Choice(option="partition.storage", value=storage, why=why, yours=yours))
            plan = plan if yours else other
    return plan


def _choose_workers(plan: Plan, chosen: list[Choice]) -> Plan:
    most = max(1, plan.layout.cores // plan.layout.ranks)
    each = plan.layout.ranks if plan.layout.served else 1  # ranks that share the samplers of their server
    least = int(plan.layout.served)
    tried = {n * each: replace(plan, layout=replace(plan.layout, workers=n)) for n in range(least, most + 1)}
    value = _least(tried, plan.available)
    chosen.append(Choice(option="sampling.num_workers", value=value, why=_seconds(tried, value)))
    return tried[value]


def _choose_concurrency(plan: Plan, chosen: list[Choice]) -> Plan:
    tried = {n: replace(plan, layout=replace(plan.layout, concurrency=n)) for n in _CONCURRENCY}
    value = _least(tried, plan.available)
    chosen.append(Choice(option="sampling.concurrency", value=value, why=_seconds(tried, value)))
    return tried[value]


def _choose_cache(plan: Plan, chosen: list[Choice]) -> Plan:
    tried = {0.0: plan} | dict(with_caches(plan, _CACHES))
    if len(tried) == 1:  # nothing is remote
        return plan
    value = _least(tried, plan.available)
    size = numbers.size(tried[value].memory.cache)
    chosen.append(
        Choice(option="cache.ratio", value=value or None, why=f"{_seconds(tried, value)}; takes {size} per host")
    )
    return tried[value]


def _least(tried: Mapping[Any, Plan], available: int) -> Any:
    """The first value whose epoch is near the shortest, of those that fit; the first of all if none does."""
    fits = {value: plan.seconds for value, plan in tried.items() if plan.memory.fits(available)}
    if not fits:
        return next(iter(tried))
    return next(value for value, seconds in fits.items() if seconds <= min(fits.values()) * (1 + _NEAR))


def _seconds(tried: Mapping[Any, Plan], value: Any) -> str:
    others = ", ".join(f"{each}: {numbers.duration(plan.seconds)}" for each, plan in tried.items() if each != value)
    return f"{numbers.duration(tried[value].seconds)} an epoch; with {others}"


def as_yaml(choices: Sequence[Choice]) -> str:
    """A configuration to give after the user's own: ``fit --config run.yaml --config chosen.yaml``."""
    groups: dict[str, list[Choice]] = {}
    for each in choices:
        if not each.yours:
            groups.setdefault(each.option.partition(".")[0], []).append(each)
    lines = ["data:", "  init_args:"] if groups else ["# nothing is left open"]
    for group, members in groups.items():
        lines.append(f"    {group}:")
        lines += [f"      {each.option.partition('.')[2]}: {json.dumps(each.value)}  # {each.why}" for each in members]
    lines += [
        f"# yours to choose: data.{each.option}: {json.dumps(each.value)}: {each.why}" for each in choices if each.yours
    ]
    return "\n".join(lines)
