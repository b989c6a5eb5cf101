"""Where the processes of a script meet: one of them listens, all tell it their texts and get those of the others.

Calls go by our transport, with its deadlines and its security. Every process repeats its text while it waits, so a meeting point
that was started again knows everything soon.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import numpy as np

from glt_lightning.base import DataError, OptionError, PeerError, PeerLostError, read_integer
from glt_lightning.workers import Caller, Link, Message, Peer

_STEP_S = 0.5  # how long one call waits for the other processes
_KEPT = 4  # rounds of a group: who asks for a new one has got all but the one before
_MOST_TEXT = 1 << 20
_MOST = 1 << 20  # processes of a group
_GONE_S = 5.0  # for the last words of processes that end


class MeetingPoint:
    """Listens at ``address``. Close it: it first waits, for a few seconds, for the last words of those that it has met."""

    def __init__(self, link: Link, address: str) -> None:
        self._rounds: dict[tuple[str, int], dict[int, str]] = {}
        self._worlds: dict[str, int] = {}
        self._met: set[str] = set()
        self._gone = {link.name}  # this process does not tell itself
        self._changed = threading.Condition()
        calls = {"meet": self._meet, "gone": self._leave}
        self._server = link.serve(address, calls)

    def _meet(self, message: Message, caller: Caller) -> Message:
        """The texts of a round, or who is missing in it. rank -1: only asks."""
        group, number = str(message.header.get("group"))[:200], read_integer(message.header, "round", 0, 2**62)
        rank, world = read_integer(message.header, "rank", -1, _MOST), read_integer(message.header, "world", 1, _MOST)
        with self._changed:
            if (known := self._worlds.setdefault(group, world)) != world or rank >= world:
                raise DataError(f"{group}: {caller.name} is rank {rank} of {world}, other processes are of {known}.")
            texts = self._rounds.setdefault((group, number), {})
            if number > _KEPT:  # the first round stays: clients that come later read the addresses of servers in it
                self._rounds.pop((group, number - _KEPT), None)
            if rank >= 0:
                texts[rank] = message.body.tobytes().decode()
            self._met.add(caller.name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(texts) == world, _STEP_S)
            if len(texts) < world:
                return Message({"missing": [r for r in range(world) if r not in texts][:10]})
            body = json.dumps([texts[r] for r in range(world)]).encode()
        return Message({}, np.frombuffer(body, dtype=np.uint8))

    def _leave(self, _message: Message, caller: Caller) -> Message:
        with self._changed:
            self._gone.add(caller.name)
            self._changed.notify_all()
        return Message({})

    def close(self, wait_s: float = _GONE_S) -> None:
        """Safe to call twice."""
        with self._changed:
            self._changed.wait_for(lambda: self._met <= self._gone, wait_s)
            self._met.clear()
        self._server.close()  # may end calls of `say_gone` before they have their answers, which that expects


class Group:
    """The processes of one role. Its calls are collective: all members make them in the same order.

    Args:
        name: Of the role.
        rank, world: The number of this process, and of all.
        peer: The meeting point.
        timeout_s: Of one call; of the first, ``join_s``.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        world: int,
        peer: Peer,
        timeout_s: float,
        join_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.rank, self.world = name, rank, world
        self.peer, self._timeout_s, self._next_s, self._clock = peer, timeout_s, join_s, clock
        self._round = 0

    def exchange(self, text: str, timeout_s: float | None = None) -> list[str]:
        """The texts of all members by rank. Raises `PeerError` naming the members that did not come in time."""
        limit_s = self._next_s if timeout_s is None else timeout_s
        texts = ask_round(self.peer, self.name, self._round, self.rank, self.world, text, limit_s, self._clock)
        self._round, self._next_s = self._round + 1, self._timeout_s
        return texts

    def gather_counts(self, count: int) -> list[int]:
        return [int(text) for text in self.exchange(str(count))]


def ask_round(
    peer: Peer,
    group: str,
    number: int,
    rank: int,
    world: int,
    text: str,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """One round of a group at a meeting point. rank -1: only asks for the texts."""
    data = text.encode()
    if len(data) > _MOST_TEXT:
        raise OptionError(f"{group}: {len(data)} bytes to exchange; at most {_MOST_TEXT}. Use torch.distributed.")
    header = {"group": group, "round": number, "rank": rank, "world": world}
    end, missing, reason = clock() + limit_s, "", ""
    while True:
        try:
            reply = peer.ask("meet", header, np.frombuffer(data, dtype=np.uint8)).result()
            if "missing" not in reply.header:
                return _texts(reply, peer, world)
            missing = ", ".join(map(str, reply.header["missing"]))
        except PeerLostError as error:
            if peer.closed:
                raise
            reason = f" {error}"
        if clock() >= end:
            who = f"rank {missing} of {group} did not come" if missing else f"nobody answered for {group}"
            raise PeerError(
                f"{peer.name}: {who} within {limit_s:g} s.{reason} Start all processes, with one address and port of the master, "
                "or raise rpc_timeout of the worker options (cluster.deadlines.join_s for the first meeting)."
            )


def _texts(reply: Message, peer: Peer, world: int) -> list[str]:
    try:
        texts: Any = json.loads(reply.body.tobytes())
    except ValueError:
        texts = None
    if not isinstance(texts, list) or len(texts) != world or not all(isinstance(each, str) for each in texts):
        raise PeerError(f"{peer.name}: it answered without the {world} texts of a meeting.")
    return texts


def say_gone(link: Link, address: str) -> None:
    """The last words of a process to its meeting point: one attempt, as that may have ended, or ends on hearing them."""
    transport, limits = link.open_transport(), link.deadlines
    with suppress(PeerError), closing(transport.connect(address, link.hello(), limits.connect_s)) as connection:
        connection.call("gone", {}).result(limits.call_s)
