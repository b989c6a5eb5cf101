"""Who has how much of a server: its streams, and the memory of replies that nobody has read yet.

A guest is one TCP connection. What it calls itself it may choose; the address it comes from it may not, so shares are
counted by address first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from glt_lightning.errors import FullError
from glt_lightning.options import LimitOptions
from glt_lightning.transport.message import Message

_ROOM_S = 2.0  # until the place of a connection that was ended is free
_LOOK_S = 0.25
_STALL_S = 2.0  # without a byte read: the peer is slow or has no mind to read
_USUAL_STREAMS = 8  # a healthy client has two lanes, and a few streams


@dataclass(eq=False)
class Guest:
    """streams: that it has open.  busy: of them, or of their calls, those that wait for an answer.
    held: bytes of replies that are made, or about to be, and not read.  active_s: when it last sent something or was given
    an answer.  shares: of its lanes."""

    peer: str
    active_s: float
    streams: int = 0
    busy: int = 0
    held: int = 0
    ending: bool = False
    shares: list[Share] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]


class Guests:
    """For any number of threads.

    sever: ends the connection of a peer.  clock: the monotonic clock, or that of a test.
    """

    def __init__(
        self, limits: LimitOptions, sever: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._sever, self._clock = limits, sever, clock
        self._state = threading.Condition()
        self._guests: dict[str, Guest] = {}
        self._held = 0

    @contextmanager
    def stream(self, peer: str) -> Iterator[Guest]:
        """A place for one more stream of a peer. Where none is free, an idle connection of who has the most is ended.
        Raises `FullError`."""
        guest = self._enter(peer)
        try:
            yield guest
        finally:
            with self._state:
                guest.streams -= 1
                if not guest.streams:
                    del self._guests[peer]
                self._state.notify_all()

    @contextmanager
    def busy(self, guest: Guest) -> Iterator[None]:
        """Meanwhile it waits for something: it is not idle."""
        with self._state:
            guest.busy += 1
        try:
            yield
        finally:
            with self._state:
                guest.busy -= 1
                guest.active_s = self._clock()

    def active(self, guest: Guest) -> None:
        """It has sent something."""
        guest.active_s = self._clock()

    def wait_to_make(self, share: Share, is_gone: Callable[[], bool]) -> int | None:
        """Waits until a reply may be made for a lane: its guest has read enough of those before, and so have all others, of
        whom the one with the most unread is ended if it reads nothing. Returns the bytes that the reply is taken for, those
        of the lane's last one; None if the guest has left.

        One reply may always be made for a guest that has none. `release` gives the bytes back.
        """
        guest = share.guest
        while True:
            with self._state:
                nbytes = share.last_bytes
                mine = guest.held == 0 or guest.held + nbytes <= self._limits.unread_bytes
                if mine and self._held < self._limits.unread_total_bytes:
                    guest.held += nbytes
                    self._held += nbytes
                    return nbytes
                greedy = None if not mine else self._most_unread()
                if greedy is None:
                    self._state.wait(_LOOK_S)
            if greedy is not None:
                self._sever(greedy.peer)
            if is_gone():
                return None

    def made(self, share: Share, guessed: int, nbytes: int) -> None:
        """A reply has ``nbytes``."""
        with self._state:
            if share.unread == 0:
                share.read_s = self._clock()  # until now there was nothing to read
            share.last_bytes = nbytes
            share.unread += nbytes
            share.guest.held += nbytes - guessed
            self._held += nbytes - guessed

    def has_read(self, share: Share) -> None:
        """A piece of a reply of a lane was read."""
        share.read_s = self._clock()

    def release(self, share: Share, held: int, made: int) -> None:
        """A reply that was taken for ``held`` bytes, of which ``made`` were there, is read, or dropped."""
        with self._state:
            share.unread -= made
            share.guest.held -= held
            self._held -= held
            self._state.notify_all()

    def _enter(self, peer: str) -> Guest:
        limit_s = self._clock() + _ROOM_S
        while True:
            with self._state:
                guest = self._guests.get(peer) or Guest(peer, self._clock())
                full = self._full(guest)
                if not full:
                    self._guests[peer] = guest
                    guest.streams += 1
                    guest.active_s = self._clock()
                    return guest
                if self._clock() >= limit_s:
                    raise FullError(full)
                greedy = self._greediest(guest)
                if greedy is None and not any(each.ending for each in self._guests.values()):
                    raise FullError(full)
                if greedy is None:
                    self._state.wait(_LOOK_S)
            if greedy is not None:
                self._sever(greedy.peer)

    def _full(self, guest: Guest) -> str:
        """Why there is no place for one more stream of a guest; "" if there is one."""
        counts = self._streams_of_hosts()
        for of, count, name, most in (
            ("", sum(counts.values()), "streams", self._limits.streams),
            (f" of {guest.host}", counts.get(guest.host, 0), "streams_per_host", self._limits.streams_per_host),
        ):
            if count >= most:
                return f"this server has {count} streams{of} open and takes no more (cluster.limits.{name})"
        return ""

    def _greediest(self, guest: Guest) -> Guest | None:
        """The connection that makes room: of the address that has the most streams, never of one that has fewer than
        ``guest``'s; an idle one, the one with the most streams, and of these the one that was idle longest."""
        counts = self._streams_of_hosts()
        mine = counts.get(guest.host, 0)
        able = [
            each
            for each in self._guests.values()
            if not each.ending
            and each is not guest
            and (guest.streams < _USUAL_STREAMS or each.streams > guest.streams)
            and (each.host == guest.host or (counts[each.host] > mine and mine < self._limits.streams_per_host))
            and (not each.busy or each.streams > max(_USUAL_STREAMS, guest.streams))
        ]
        if not able:
            return None
        found = max(able, key=lambda each: (not each.busy, counts[each.host], each.streams, -each.active_s))
        found.ending = True
        return found

    def _most_unread(self) -> Guest | None:
        greedy = max(self._guests.values(), key=lambda each: each.held, default=None)
        if greedy is None or greedy.ending:
            return None
        stalled_s = self._clock() - _STALL_S
        if not any(share.unread and share.read_s < stalled_s for share in greedy.shares):
            return None
        greedy.ending = True
        return greedy

    def _streams_of_hosts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for each in self._guests.values():
            counts[each.host] = counts.get(each.host, 0) + each.streams
        return counts


class Share:
    """What a lane has of its guest's share. unread: bytes of replies that are made and not read.  read_s: when a piece of
    them was last read: a lane that stands still is one whatever its guest reads elsewhere.  last_bytes: of its last reply,
    what the next one may well take."""

    def __init__(self, guests: Guests, guest: Guest) -> None:
        self._guests, self.guest = guests, guest
        self.unread = self.last_bytes = 0
        self.read_s = 0.0
        guest.shares.append(self)

    def active(self) -> None:
        """The guest has sent something."""
        self._guests.active(self.guest)

    def has_read(self) -> None:
        """The guest has read something on this lane."""
        self._guests.has_read(self)

    def answer(self, make: Callable[[], Message], send: Callable[[Message], None], is_gone: Callable[[], bool]) -> None:
        """Makes a reply as soon as the guest may have one, and sends it."""
        with self._guests.busy(self.guest):
            held = self._guests.wait_to_make(self, is_gone)
            if held is None:
                return
            made = 0
            try:
                reply = make()
                made = reply.body.nbytes
                self._guests.made(self, held, made)
                held = made
                send(reply)
                del reply
            finally:
                self._guests.release(self, held, made)
