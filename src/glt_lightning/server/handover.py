"""Batches handed over within a host: the client maps the very memory that the sampler wrote.

Client and server exchange batches over an abstract unix socket, which has no file and admits processes of the same
user alone. The server names a slot and says how the batch lies in it; its descriptor rides along the first time. The
client says when the last view of a batch is gone, and the slot is free for another one. While a client holds many
batches, further ones are copied, so that their slots are free again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.channel.slots import PinMemory, SharedSlot
from glt_lightning.channel.wire import ClosedError, receive, send
from glt_lightning.errors import PeerError, PeerLostError, RemoteError
from glt_lightning.server.mailbox import Mailbox
from glt_lightning.server.sessions import ClientStream, Finished, Session
from glt_lightning.transport.message import Message

_PAUSE_S = 0.5  # between looks at whether a stream has ended
_GREET_S = 5.0
_CLOSE_S = 2.0
_MOST_HELD = 8  # batches that the client's user holds in slots
_BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of `SO_PEERCRED`

# Looks up a session and its stream of a number, which is None if there is a later one. Raises `PeerError`.
Begin = Callable[[Any, int], tuple[Session, ClientStream | None]]


def place_identity() -> str:
    """What two processes have in common that can hand batches over: the running host, its network namespace, the user.
    Empty where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        net = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return ""
    return hashlib.blake2b(f"{boot}/{net}/{os.getuid()}".encode(), digest_size=16).hexdigest()


def _check_user(sock: socket.socket, who: str) -> None:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(raw)[1]
    if uid != os.getuid():
        raise PeerError(f"{who} belongs to user {uid}, this process to {os.getuid()}.")


class HandoverServer:
    """The server's end: a thread that accepts, and two for each client. Close it.

    begin: finds the session that a client names.  taken: told of each batch that is handed over, before it is.
    retire: given the slots that a client still had when its connection ended: nobody knows who reads them.
    """

    def __init__(
        self,
        begin: Begin,
        taken: Callable[[Finished], None],
        retire: Callable[[list[SharedSlot]], None],
        timeout_s: float,
    ) -> None:
        self._begin, self._taken, self._retire, self._timeout_s = begin, taken, retire, timeout_s
        self.place = place_identity()
        self.name = f"glt-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(b"\0" + self.name.encode())
        self._listener.listen(_BACKLOG)
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()
        self._start(self._accept)

    @property
    def num_clients(self) -> int:
        return len(self._lines)

    def offer(self, place: Any) -> str:
        """The name of the socket for a client at ``place``; empty if it is elsewhere."""
        return self.name if self.place and place == self.place else ""

    def forget(self, slot: int) -> None:
        """A slot is gone, which no client has: they need not keep it mapped."""
        with self._lock:
            for line in self._lines:
                line.gone.append(slot)

    def close(self) -> None:
        """Ends every connection. Safe to call twice."""
        self._closing.set()
        with self._lock:
            socks = [self._listener, *(line.sock for line in self._lines)]
        for sock in socks:
            _shut(sock)
        end_s = time.monotonic() + _CLOSE_S
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, end_s - time.monotonic()))
        self._listener.close()

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="glt-handover", daemon=True)
        self._threads.add(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:  # no descriptors left, perhaps
                self._closing.wait(_PAUSE_S)
                continue
            line = _Line(sock)
            with self._lock:
                if self._closing.is_set():
                    sock.close()
                    return
                self._lines.add(line)
            self._start(partial(self._serve, line))

    def _serve(self, line: _Line) -> None:
        reader: threading.Thread | None = None
        try:
            session, stream = self._greet(line)
            if stream is None:
                return
            reader = self._start(line.take_back)
            while not stream.ended and not line.left.is_set():
                found = stream.take(_PAUSE_S)
                while found:
                    line.hand_over(found.pop(), self._taken)  # nothing here may keep what the client is done with
                    session.heard()
            if session.ended:
                send(line.sock, {"error": "the session has ended", "kind": "SessionLostError"})
        except PeerError as error:
            with suppress(ClosedError, OSError):
                send(line.sock, {"error": str(error), "kind": type(error).__name__})
        except (ClosedError, OSError, ValueError, TypeError, AttributeError):
            pass  # the client has left, or is none
        finally:
            _shut(line.sock)
            if reader is not None:
                reader.join()
            with self._lock:
                self._lines.discard(line)
            self._retire([item.slot for item in line.lent.values() if item.slot is not None])
            line.lent.clear()
            line.sock.close()

    def _greet(self, line: _Line) -> tuple[Session, ClientStream | None]:
        line.sock.settimeout(_GREET_S)
        _check_user(line.sock, "the client")
        asked, _, _ = receive(line.sock)
        found = self._begin(asked.get("session"), int(asked.get("talk", 0)))
        send(line.sock, {"ok": True})
        line.sock.settimeout(self._timeout_s)
        return found


class _Line:
    """The connection to one client. lent: by slot, what it has.  known: slots whose descriptors it has.
    gone: slots that it may forget.  left: it has hung up."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lent: dict[int, Finished] = {}
        self.gone: deque[int] = deque()
        self.left = threading.Event()
        self._known: set[int] = set()

    def hand_over(self, item: Finished, taken: Callable[[Finished], None]) -> None:
        """Sends one batch, or why there is none."""
        gone = [self.gone.popleft() for _ in range(len(self.gone))]
        header = {**item.header, "gone": [slot for slot in gone if slot in self._known]}
        self._known.difference_update(gone)
        slot = item.slot
        if slot is None:
            send(self.sock, header)
            return
        self.lent[slot.index] = item
        taken(item)
        header |= {"slot": slot.index, "nbytes": item.memory.nbytes}
        send(self.sock, header, fds=[] if slot.index in self._known else [slot.fd])
        self._known.add(slot.index)

    def take_back(self) -> None:
        """Reads which slots the client is done with, until it leaves."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        try:
            while True:
                poll.poll()  # the deadline of the socket is for messages, not for the time between them
                header, _, _ = receive(self.sock)
                for index in header["free"]:
                    self.lent.pop(index, None)
        except (ClosedError, OSError, ValueError, KeyError, TypeError):
            _shut(self.sock)
        finally:
            self.left.set()


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class BorrowedMessage(Message):
    """A batch that lies where it may stay, page-locked if that was asked for."""


class HandoverStream:
    """`transport.base.MessageStream` of batches that are handed over. Iterate it in one thread.

    name: of the socket that the server offered.  pin: page-locks slots.  num_waiting: how many of its batches nobody has
    taken yet.  fresh: batches that were copied because the user held so many.
    Raises `PeerLostError` if the server is not there, or leaves.
    """

    def __init__(
        self,
        server: str,
        name: str,
        hello: Mapping[str, Any],
        timeout_s: float,
        pin: PinMemory | None,
        num_waiting: Callable[[], int],
    ) -> None:
        self._server, self._pin, self._num_waiting = server, pin, num_waiting
        self.fresh = 0
        self._slots: dict[int, SharedSlot] = {}
        self._lent = 0
        self._free: list[int] = []
        self._closed = False
        self._mailbox = Mailbox()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(timeout_s)
            self._sock.connect(b"\0" + name.encode())
            _check_user(self._sock, server)
            send(self._sock, dict(hello))
            _check(server, receive(self._sock)[0])
        except (ClosedError, OSError) as error:
            self._end()
            raise PeerLostError(f"{server}: does not hand batches over: {error}") from None
        except BaseException:
            self._end()
            raise

    def __iter__(self) -> Iterator[Message]:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._mailbox.fileno(), select.POLLIN)
        try:
            while not self._closed:
                ready = {fd for fd, _ in poll.poll()}
                self._mailbox.read()
                self._say_free()
                if self._sock.fileno() in ready and not self._closed:
                    header, _, fds = receive(self._sock)
                    _check(self._server, header)
                    yield self._land(header, fds)
        except (ClosedError, OSError) as error:
            if not self._closed:
                raise PeerLostError(f"{self._server}: stopped handing batches over: {error}") from None
        finally:
            self._end()

    def close(self) -> None:
        self._closed = True
        self._mailbox.post(lambda: None)

    def _land(self, header: dict[str, Any], fds: list[int]) -> Message:
        for index in header.pop("gone"):
            self._slots.pop(index).close()
        if "slot" not in header:
            return Message(header)
        index, nbytes = header.pop("slot"), header.pop("nbytes")
        if fds:
            self._slots[index] = SharedSlot(index, self._pin, fds[0])
        slot = self._slots[index]
        slot.attach()
        buffer = slot.buffer(nbytes)
        memory = np.frombuffer(buffer, dtype=np.uint8)
        self._lent += 1
        weakref.finalize(buffer, self._mailbox.post, partial(self._take_back, index)).atexit = False
        if self._lent - self._num_waiting() > _MOST_HELD:
            self.fresh += 1
            memory = memory.copy()
        return BorrowedMessage(header, memory)

    def _take_back(self, index: int) -> None:
        self._lent -= 1
        self._free.append(index)

    def _say_free(self) -> None:
        if self._free:
            free, self._free = self._free, []
            send(self._sock, {"free": free})

    def _end(self) -> None:
        """The server is told nothing more; batches that are still in use keep their memory."""
        self._closed = True
        self._mailbox.close()
        self._sock.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()


def _check(server: str, header: Mapping[str, Any]) -> None:
    """Raises what the server said about the session."""
    if "error" in header and "run" not in header:
        raise RemoteError(f"{server}: {header['error']}", str(header.get("kind", "")))
