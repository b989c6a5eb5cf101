"""Makes a shared object on the first rank of each host."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from glt_lightning.base import PeerError
from glt_lightning.workers.producer.base import Ranks

T = TypeVar("T")


def once_per_host(ranks: Ranks, parts: Sequence[int], make: Callable[[int], Any]) -> Any:
    """Calls ``make`` on the first of the ranks of a host that map the same parts, and returns its result, a JSON value, on
    all of these.

    Collective: all ranks call it. make: called with the number of ranks that share its result.
    Raises the error of ``make``; on other ranks, also of other hosts, `PeerError` with its text.
    """
    mine = [ranks.name, host_name(), list(parts)]
    everyone = [json.loads(text) for text in ranks.exchange(json.dumps(mine))]
    sharing = [number for number, other in enumerate(everyone) if other[1:] == mine[1:]]
    made, error = None, None
    if everyone[sharing[0]] == mine:
        try:
            made = make(len(sharing))
        except Exception as raised:
            error = raised
    # Reached on every rank, also where ``make`` raised: the others would wait in the exchange for ever.
    results = [json.loads(text) for text in ranks.exchange(json.dumps([made, None if error is None else str(error)]))]
    if error is not None:
        raise error
    for other, (_, failure) in zip(everyone, results, strict=True):
        if failure is not None:
            raise PeerError(f"{other[0]}: {failure}")
    return results[sharing[0]][0]


def on_all_or_none(ranks: Ranks, make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Calls ``make`` on every rank and returns its result; if it raises on any rank, calls ``undo`` on the results of the
    others. Collective: all ranks call it.

    Raises the error of ``make``; on other ranks `PeerError` with its text, so that they do not wait for that rank later.
    """
    made: list[T] = []
    error = None
    try:
        made.append(make())
    except Exception as raised:
        error = raised
    results = [
        json.loads(text) for text in ranks.exchange(json.dumps([ranks.name, None if error is None else str(error)]))
    ]
    if error is not None:
        raise error
    for other, failure in results:
        if failure is not None:
            undo(made[0])
            raise PeerError(f"{other}: {failure}")
    return made[0]


def host_name() -> str:
    """Returns an identity that processes share if they can open each other's files by ``/proc``: the boot id of the host, the
    process namespace and the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"
