"""What the ranks of a host share is made by the first of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from glt_lightning.errors import PeerError
from glt_lightning.producer.ranks import Ranks

T = TypeVar("T")


def once_per_host(ranks: Ranks, parts: Sequence[int], make: Callable[[int], Any]) -> Any:
    """What ``make`` gives, as JSON can say it, on the first of the ranks of a host that map the same parts.

    All ranks call it. make: is told how many these ranks are.
    Raises what ``make`` raises; on other ranks, also of other hosts, `PeerError` with its text.
    """
    mine = [ranks.name, host_name(), list(parts)]
    others = [json.loads(text) for text in ranks.exchange(json.dumps(mine))]
    like_this = [number for number, other in enumerate(others) if other[1:] == mine[1:]]
    made, error = None, None
    if others[like_this[0]] == mine:
        try:
            made = make(len(like_this))
        except Exception as raised:
            error = raised
    told = [json.loads(text) for text in ranks.exchange(json.dumps([made, None if error is None else str(error)]))]
    if error is not None:
        raise error
    for other, (_, failure) in zip(others, told, strict=True):
        if failure is not None:
            raise PeerError(f"{other[0]}: {failure}")
    return told[like_this[0]][0]


def on_all_or_none(ranks: Ranks, make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """What ``make`` gives, if it raises on no rank; else ``undo`` of it. All ranks call it.

    Raises what ``make`` raises; on other ranks `PeerError` with its text, so that they do not wait for that one later.
    """
    made: list[T] = []
    error = None
    try:
        made.append(make())
    except Exception as raised:
        error = raised
    told = [
        json.loads(text) for text in ranks.exchange(json.dumps([ranks.name, None if error is None else str(error)]))
    ]
    if error is not None:
        raise error
    for other, failure in told:
        if failure is not None:
            undo(made[0])
            raise PeerError(f"{other}: {failure}")
    return made[0]


def host_name() -> str:
    """What processes have in common that can open each other's files by ``/proc``."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"
