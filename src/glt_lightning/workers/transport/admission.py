"""Admission of clients to a server: bounds on open streams, on the memory of calls at work, and on that of replies that
were not read yet.

A client is one TCP connection. It may choose its name but not its address, so streams are counted by address first.

Limits:

* header, opening: 64 KiB
* arrays in a message: 1024
* body: 2 GiB - 1 MiB
* requests of a lane without an answer: 64, and 512 MiB: the server does not read on, so TCP makes the caller wait
* lanes and streams of a server: ``cluster.limits.streams`` (1024), from one address ``streams_per_host`` (768)
* sessions of a graph server: ``cluster.limits.sessions`` (1024)
* memory of calls at work: ``cluster.limits.unread_size`` for a connection, ``unread_total_size`` for all
* entries of rows that a call reads between two checks that its caller is still there: 2^26, or one row
* memory of the rows that a picker gets for one ``expand``: 2 GiB
* requests ``make`` that wait: 4096 and 256 MiB of a session, 2 GiB of all, half of which is divided evenly among the
  sessions
* replies that are made and not read: ``cluster.limits.unread_size`` (256 MB) for a connection, ``unread_total_size`` (2
  GB) for all

Shares are counted by TCP connection and its address, not by the name that a caller chooses. A full server ends an idle
connection (or session) of the address that has the most; that client connects again with its next request. If none is
idle, ``REFUSED`` has ``again: true`` (a fault has the kind ``FullError``), and the caller tries again until its
deadline. The next reply is made for a connection when its unread bytes and a reply as large as the lane's last one are
within its share, so at most four replies of each lane exceed it. If the share of all is used up, the connection with
the most unread bytes is ended when it has read nothing of one of its lanes for 2 s.

**The work for a reply.** The memory of a call is computed before the call begins, from its request and the degrees of
the rows that it names, and reserved; the call waits for it behind the calls that came before it. A call that alone
exceeds the limits waits until no other is at work. A large question is answered in part: the reply has the first rows,
pairs or walks, and the caller asks for the others, so that work for a caller that has left ends by itself; an
``expand`` that has to read whole rows, and any request with excluded edges, checks between pieces that its caller is
still there. ``here``, ``open``, ``drop``, ``renew``, ``close`` and ``status`` have a thread of their own on each lane,
and are answered while other calls of the lane work.

A frame that breaks these rules ends its lane; a request that can be read as a frame and cannot be carried out gets a
``FAULT``. A stream is sent ahead of its reader by as much as HTTP/2's window holds, a few MB.

Messages of a caller without the certificate or the secret are dropped by TLS, by gRPC, or before the opening is read. A
peer *with* both is still bound by the rules above, with one gap: Arrow decompresses a compressed batch before this
program sees it, so such a peer can make a server allocate, for a moment, the uncompressed size of one column of bytes;
pyarrow's Flight server has no option against that. A lane with another schema than that of `flight_common` ends before
its first batch is decoded, and a body longer than the message it came in (compressed; we send none) ends its lane
unread. Give processes on shared machines a secret.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from glt_lightning.base import FullError, LimitOptions, PeerLostError
from glt_lightning.workers.transport.message import Message

_ADMIT_S = 2.0  # a newcomer waits this long for the streams of a connection that was ended to finish
_POLL_S = 0.25  # a client that leaves and a reader that stalls notify nobody, so waiting threads look again
_STALL_S = 2.0  # a lane with unread replies of which no byte was read for so long is not being read
_USUAL_STREAMS = 8  # a healthy client has two lanes, and a few streams


@dataclass(eq=False)
class ClientConnection:
    """The usage of a client's connection.

    streams: number of open streams.  busy: number of streams and calls that wait for an answer.  held: bytes of replies
    that are made, or about to be, and not read yet.  working: bytes of its calls at work.  active_s: when it last sent a
    message or got an answer.  lanes: the usage of each of its lanes.
    """

    peer: str
    active_s: float
    streams: int = 0
    busy: int = 0
    held: int = 0
    working: int = 0
    ending: bool = False
    lanes: list[LaneUsage] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]


class Admission:
    """The clients of a server and their shares of it. Thread-safe.

    sever: ends the connection of a peer.  clock: the monotonic clock, or that of a test.
    """

    def __init__(
        self, limits: LimitOptions, sever: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits, self._sever, self._clock = limits, sever, clock
        # Guards _clients, _held, _working, _queue and the counters of each client and lane (active_s and read_s are single
        # stores and go without). Never held during ``sever``: that walks all descriptors of the process, and the threads of the
        # connection that it ends need the lock to leave.
        self._state = threading.Condition()
        self._clients: dict[str, ClientConnection] = {}
        self._held = 0
        self._working = 0
        # calls that wait for memory of the server, in the order in which they get it
        self._queue: deque[object] = deque()

    @contextmanager
    def stream(self, peer: str) -> Iterator[ClientConnection]:
        """Admits one more stream of a peer. If no place is free, ends an idle connection of the address with the most
        streams. Raises `FullError` if that does not help."""
        client = self._enter(peer)
        try:
            yield client
        finally:
            with self._state:
                client.streams -= 1
                if not client.streams:
                    del self._clients[peer]
                self._state.notify_all()

    @contextmanager
    def busy(self, client: ClientConnection) -> Iterator[None]:
        """Marks the client as waiting for an answer, so that it does not count as idle."""
        with self._state:
            client.busy += 1
        try:
            yield
        finally:
            with self._state:
                client.busy -= 1
                client.active_s = self._clock()

    def active(self, client: ClientConnection) -> None:
        """Notes that the client has sent a message."""
        client.active_s = self._clock()

    def wait_to_make(self, usage: LaneUsage, is_gone: Callable[[], bool]) -> int | None:
        """Waits until a reply may be made for a lane: until the unread replies of its client, and of all clients together, are
        below their limits. If the total is the obstacle and the client with the most unread bytes reads nothing, ends that
        client. Returns the bytes reserved for the reply, the size of the lane's last one; None if the client has left.

        A client without unread replies may always have one, whatever its size. `release` gives the bytes back.
        """
        client = usage.client
        while True:
            with self._state:
                nbytes = usage.last_bytes
                mine = client.held == 0 or client.held + nbytes <= self._limits.unread_bytes
                if mine and self._held < self._limits.unread_total_bytes:
                    client.held += nbytes
                    self._held += nbytes
                    return nbytes
                greedy = None if not mine else self._most_unread()
                if greedy is None:
                    self._state.wait(_POLL_S)
            if greedy is not None:
                self._sever(greedy.peer)
            if is_gone():
                return None

    def made(self, usage: LaneUsage, guessed: int, nbytes: int) -> None:
        """Replaces the reserved size of a reply, ``guessed``, by its real one."""
        with self._state:
            if usage.unread == 0:
                usage.read_s = self._clock()  # until now there was nothing to read, so no stall
            usage.last_bytes = nbytes
            usage.unread += nbytes
            usage.client.held += nbytes - guessed
            self._held += nbytes - guessed

    @contextmanager
    def working(self, client: ClientConnection, nbytes: int, is_gone: Callable[[], bool]) -> Iterator[None]:
        """Reserves the working memory of one call, and waits for it. The calls of a client take at most ``unread_size``, the
        calls of all clients ``unread_total_size``; a larger call waits until the client, and the server, have no other at work.
        Raises `PeerLostError` if the client leaves meanwhile."""
        if not nbytes:
            yield
            return
        call = object()
        with self._state:
            try:
                while not self._may_work(client, nbytes, call):
                    self._state.wait(_POLL_S)
                    if is_gone():
                        raise PeerLostError("the caller has left")
            finally:
                if call in self._queue:
                    self._queue.remove(call)
                    self._state.notify_all()
            client.working += nbytes
            self._working += nbytes
        try:
            yield
        finally:
            with self._state:
                client.working -= nbytes
                self._working -= nbytes
                self._state.notify_all()

    def _may_work(self, client: ClientConnection, nbytes: int, call: object) -> bool:
        """Tells whether a call may begin, in the order of the queue: otherwise small calls, which always find a gap, would keep
        a large one waiting for ever."""
        if client.working and client.working + nbytes > self._limits.unread_bytes:
            if call in self._queue:  # another call of the client came first: those of others do not wait for it
                self._queue.remove(call)
                self._state.notify_all()
            return False
        if call not in self._queue:
            self._queue.append(call)
        fits = not self._working or self._working + nbytes <= self._limits.unread_total_bytes
        return fits and self._queue[0] is call

    def has_read(self, usage: LaneUsage) -> None:
        """Notes that a piece of a reply was read on a lane."""
        usage.read_s = self._clock()

    def release(self, usage: LaneUsage, held: int, made: int) -> None:
        """Gives back the ``held`` bytes of a reply that was read or dropped; ``made`` of them were real."""
        with self._state:
            usage.unread -= made
            usage.client.held -= held
            self._held -= held
            self._state.notify_all()

    def _enter(self, peer: str) -> ClientConnection:
        limit_s = self._clock() + _ADMIT_S
        while True:
            with self._state:
                client = self._clients.get(peer) or ClientConnection(peer, self._clock())
                full = self._full(client)
                if not full:
                    self._clients[peer] = client
                    client.streams += 1
                    client.active_s = self._clock()
                    return client
                if self._clock() >= limit_s:
                    raise FullError(full)
                greedy = self._greediest(client)
                if greedy is None and not any(each.ending for each in self._clients.values()):
                    raise FullError(full)
                if greedy is None:
                    self._state.wait(_POLL_S)
            if greedy is not None:
                self._sever(greedy.peer)

    def _full(self, client: ClientConnection) -> str:
        """Returns the reason why a client may not open one more stream; "" if it may."""
        counts = self._streams_of_hosts()
        for of, count, limit, most in (
            ("", sum(counts.values()), "the limit", self._limits.streams),
            (f" of {client.host}", counts.get(client.host, 0), "three quarters", self._limits.streams_per_host),
        ):
            if count >= most:
                return f"this server has {count} streams{of} open, {limit} of cluster.limits.streams. Close clients, or raise it"
        return ""

    def _greediest(self, client: ClientConnection) -> ClientConnection | None:
        """Chooses the connection to end for a newcomer: one of the address with the most streams, never of an address with
        fewer streams than that of ``client``; first an idle connection, then the one with the most streams, then the one idle
        for longest. None if no connection qualifies."""
        counts = self._streams_of_hosts()
        mine = counts.get(client.host, 0)
        able = [
            each
            for each in self._clients.values()
            if not each.ending
            and each is not client
            and (client.streams < _USUAL_STREAMS or each.streams > client.streams)
            and (each.host == client.host or (counts[each.host] > mine and mine < self._limits.streams_per_host))
            and (not each.busy or each.streams > max(_USUAL_STREAMS, client.streams))
        ]
        if not able:
            return None
        found = max(able, key=lambda each: (not each.busy, counts[each.host], each.streams, -each.active_s))
        found.ending = True
        return found

    def _most_unread(self) -> ClientConnection | None:
        """Chooses the client with the most unread bytes, if it has stopped reading one of its lanes; else None."""
        greedy = max(self._clients.values(), key=lambda each: each.held, default=None)
        if greedy is None or greedy.ending:
            return None
        stalled_s = self._clock() - _STALL_S
        if not any(usage.unread and usage.read_s < stalled_s for usage in greedy.lanes):
            return None
        greedy.ending = True
        return greedy

    def _streams_of_hosts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for each in self._clients.values():
            counts[each.host] = counts.get(each.host, 0) + each.streams
        return counts


class LaneUsage:
    """The unread replies of one lane of a client.

    unread: bytes of replies that are made and not read.  read_s: when a piece of them was last read; per lane, since a
    client may leave one lane unread while it reads another.  last_bytes: size of the lane's last reply, the estimate for
    the next one.
    """

    def __init__(self, admission: Admission, client: ClientConnection) -> None:
        self._admission, self.client = admission, client
        self.unread = self.last_bytes = 0
        self.read_s = 0.0
        client.lanes.append(self)

    def active(self) -> None:
        """Notes that the client has sent a message."""
        self._admission.active(self.client)

    def has_read(self) -> None:
        """Notes that the client has read a piece of a reply on this lane."""
        self._admission.has_read(self)

    def answer_promptly(self, make: Callable[[], Message], send: Callable[[Message], None]) -> None:
        """Makes a small reply and sends it, however much is unread."""
        with self._admission.busy(self.client):
            send(make())

    def answer(self, make: Callable[[], Message], send: Callable[[Message], None], is_gone: Callable[[], bool]) -> None:
        """Makes a reply as soon as the limits allow it, and sends it."""
        with self._admission.busy(self.client):
            held = self._admission.wait_to_make(self, is_gone)
            if held is None:
                return
            made = 0
            try:
                reply = make()
                made = reply.body.nbytes
                self._admission.made(self, held, made)
                held = made
                send(reply)
                del reply
            finally:
                self._admission.release(self, held, made)
