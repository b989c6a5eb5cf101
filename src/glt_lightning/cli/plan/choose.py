"""``plan --choose``: options that the user left open, chosen by the rules of a plan, as YAML with the reason of each.

Only options are chosen on which no batch depends; of the others, `changes` says what they would gain.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glt_lightning.base import numbers
from glt_lightning.cli.plan.changes import with_caches
from glt_lightning.cli.plan.planned import Planned

_NEAR = 0.02  # a gain that is not worth another process, or more memory
_CONCURRENCY = (1, 2, 4, 8, 16)
_RATIOS = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An option with its value, and why. option: below ``data``."""

    option: str
    value: Any
    why: str


def given_options(argv: Sequence[str]) -> set[str]:
    """Dotted names of the options in the arguments and in their configurations (``--config={...}``), without ``init_args``."""
    found: set[str] = set()
    for word in argv:
        name, _, value = word.partition("=")
        if name == "--config":
            found |= set(_leaves(json.loads(value)))
        elif name.startswith("--"):
            found.add(name[2:])
    return {name.replace("init_args.", "") for name in found}


def _leaves(given: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in given.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")


def choose(plan: Planned, given: Iterable[str]) -> tuple[list[Choice], Planned]:
    """Chooses what is not among the ``given`` options, one after the other. Returns the choices, and the plan with them."""
    taken = set(given)
    chosen: list[Choice] = []
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
    return chosen, plan


def _choose_workers(plan: Planned, chosen: list[Choice]) -> Planned:
    most = max(1, plan.layout.cores // plan.layout.ranks)
    tried = {n: replace(plan, layout=replace(plan.layout, workers=n)) for n in range(most + 1)}
    value = _least(tried, plan.available)
    chosen.append(Choice(option="sampling.num_workers", value=value, why=_seconds(tried, value)))
    return tried[value]


def _choose_concurrency(plan: Planned, chosen: list[Choice]) -> Planned:
    tried = {n: replace(plan, layout=replace(plan.layout, concurrency=n)) for n in _CONCURRENCY}
    value = _least(tried, plan.available)
    chosen.append(Choice(option="sampling.concurrency", value=value, why=_seconds(tried, value)))
    return tried[value]


def _choose_cache(plan: Planned, chosen: list[Choice]) -> Planned:
    tried = {0.0: plan} | dict(with_caches(plan, _RATIOS))
    value = _least(tried, plan.available)
    size = numbers.size(tried[value].memory.cache)
    chosen.append(
        Choice(option="cache.ratio", value=value or None, why=f"{_seconds(tried, value)}; takes {size} per host")
    )
    return tried[value]


def _least(tried: Mapping[Any, Planned], available: int) -> Any:
    """The first value whose epoch is near the shortest, of those that fit; the first of all if none does."""
    fits = {value: plan.seconds for value, plan in tried.items() if plan.memory.needed <= available}
    if not fits:
        return next(iter(tried))
    return next(value for value, seconds in fits.items() if seconds <= min(fits.values()) * (1 + _NEAR))


def _seconds(tried: Mapping[Any, Planned], value: Any) -> str:
    others = ", ".join(f"{each}: {numbers.duration(plan.seconds)}" for each, plan in tried.items() if each != value)
    return f"{numbers.duration(tried[value].seconds)} an epoch; with {others}"


def as_yaml(choices: Sequence[Choice]) -> str:
    """A configuration to give after the user's own: ``fit --config run.yaml --config chosen.yaml``."""
    groups: dict[str, list[Choice]] = {}
    for each in choices:
        groups.setdefault(each.option.partition(".")[0], []).append(each)
    lines = ["data:", "  init_args:"] if groups else ["# nothing is left open"]
    for group, members in groups.items():
        lines.append(f"    {group}:")
        lines += [f"      {each.option.partition('.')[2]}: {json.dumps(each.value)}  # {each.why}" for each in members]
    return "\n".join(lines)
