"""Handover of batches within a host: the client maps the memory that the sampler wrote.

Client and server exchange messages over an abstract unix socket, which has no file; only processes of the same user are
accepted. The server sends the number of a slot and the layout of the batch in it, the first time with the slot's
descriptor. The client reports when the last view of a batch is gone, which frees the slot for another batch. While a
client references many batches, further ones are copied, so that their slots are free again.

``place`` is a hash of the running host's id, the network namespace and the user; if it is the server's, ``handover``
names an abstract unix socket (else it is empty), and the client takes its batches there instead of from ``batches``.
Both ends check with ``SO_PEERCRED`` that the other belongs to the same user.

A frame has two little-endian uint32, the lengths of a JSON header and of a body (always 0), and the header. The client
begins with ``session`` and ``talk`` and gets ``{"ok": true}``. Then it receives the headers of ``batches`` with
``slot`` and ``nbytes``: the batch lies at the beginning of a memfd, whose descriptor is attached to the frame the first
time its slot is named. ``gone`` lists slots that will not be named again. The client sends ``{"free": [slot, ...]}``
when it does not read them any more. Slots that a client still has when its connection ends are not used again.
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

from glt_lightning.base import PeerError, PeerLostError, RemoteError
from glt_lightning.workers.server.callback_queue import CallbackQueue
from glt_lightning.workers.server.sessions import ClientStream, Finished, Session
from glt_lightning.workers.slots import ClosedError, PinMemory, SharedSlot, receive, send
from glt_lightning.workers.transport.message import Message

_PAUSE_S = 0.5  # a client that leaves does not wake a thread that waits for a batch, so it looks this often
_GREET_S = 5.0  # for a client to send its greeting; both ends are on this host
_CLOSE_S = 2.0  # for all threads together to end
_MOST_HELD = (
    8  # batches in slots that the client's program references; further ones are copied, or no slot would get free
)
_BACKLOG = 64  # connections that wait to be accepted
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of `SO_PEERCRED`

# (session id, stream number) -> the session and that stream, None if a later one was opened. Raises `PeerError`.
Begin = Callable[[Any, int], tuple[Session, ClientStream | None]]


def place_identity() -> str:
    """Returns an identity that two processes share if they can hand batches over: a hash of the host's boot id, the network
    namespace (abstract sockets belong to one) and the user. Empty if it cannot be determined."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        net = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return ""
    return hashlib.blake2b(f"{boot}/{net}/{os.getuid()}".encode(), digest_size=16).hexdigest()


def _check_user(sock: socket.socket, peer: str) -> None:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid = _CREDENTIALS.unpack(raw)[1]
    if uid != os.getuid():
        raise PeerError(
            f"{peer} runs as user {uid}, this process as {os.getuid()}; batches are handed over within one user only."
        )


class HandoverServer:
    """Hands batches to the clients on this host: one thread accepts connections, two serve each client. Close it.

    begin: finds the session of a client.  taken: called with each batch before it is handed over.
    retire: called with the slots that a client still had when its connection ended: it may still read them, so they must
    not be written again.
    timeout_s: the deadline of one message to a client.
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
        self._lock = (
            threading.Lock()
        )  # guards _connections; a connection is added under it only while this is not closing
        self._connections: set[_HandoverConnection] = set()
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()
        self._start(self._accept)

    @property
    def num_clients(self) -> int:
        return len(self._connections)

    def offer(self, place: Any) -> str:
        """Returns the name of the socket for a client at ``place``; empty if that client cannot map this server's memory."""
        return self.name if self.place and place == self.place else ""

    def forget(self, slot: int) -> None:
        """Lets clients unmap a slot that was closed and that no client reads."""
        with self._lock:
            for connection in self._connections:
                connection.gone.append(slot)

    def close(self) -> None:
        """Ends every connection. Safe to call twice."""
        self._closing.set()
        with self._lock:
            socks = [self._listener, *(connection.sock for connection in self._connections)]
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
            except OSError:  # most likely no descriptors are left: wait until some are closed
                self._closing.wait(_PAUSE_S)
                continue
            connection = _HandoverConnection(sock)
            with self._lock:
                if self._closing.is_set():
                    sock.close()
                    return
                self._connections.add(connection)
            self._start(partial(self._serve, connection))

    def _serve(self, connection: _HandoverConnection) -> None:
        reader: threading.Thread | None = None
        try:
            session, stream = self._greet(connection)
            if stream is None:
                return
            reader = self._start(connection.read_freed)
            while not stream.ended and not connection.left.is_set():
                found = stream.take(_PAUSE_S)
                while found:
                    connection.hand_over(found.pop(), self._taken)  # popped: a variable would keep the batch
                    session.heard()
            if session.ended:
                send(connection.sock, {"error": "the session has ended", "kind": "SessionLostError"})
        except PeerError as error:
            with suppress(ClosedError, OSError):
                send(connection.sock, {"error": str(error), "kind": type(error).__name__})
        except (ClosedError, OSError, ValueError, TypeError, AttributeError):
            pass  # the client has left, or does not speak this protocol
        finally:
            _shut(connection.sock)
            if reader is not None:
                reader.join()  # it removes slots from ``lent``, which is read below
            with self._lock:
                self._connections.discard(connection)
            self._retire([item.slot for item in connection.lent.values() if item.slot is not None])
            connection.lent.clear()
            connection.sock.close()

    def _greet(self, connection: _HandoverConnection) -> tuple[Session, ClientStream | None]:
        connection.sock.settimeout(_GREET_S)
        _check_user(connection.sock, "the client")
        asked, _, _ = receive(connection.sock)
        found = self._begin(asked.get("session"), int(asked.get("talk", 0)))
        send(connection.sock, {"ok": True})
        connection.sock.settimeout(self._timeout_s)
        return found


class _HandoverConnection:
    """The connection to one client.

    lent: the batches that the client reads, by slot.  _known: slots whose descriptors it has.  gone: slots that it may
    unmap.  left: set when it has closed the connection.

    One thread sends batches, another reads which are freed. ``lent`` needs no lock: the first thread adds a slot before
    the client learns of it, so the second cannot be asked to remove it earlier.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lent: dict[int, Finished] = {}
        self.gone: deque[int] = deque()
        self.left = threading.Event()
        self._known: set[int] = set()

    def hand_over(self, item: Finished, taken: Callable[[Finished], None]) -> None:
        """Sends one batch, or the error in its place."""
        gone = [self.gone.popleft() for _ in range(len(self.gone))]
        header = {**item.header, "gone": [slot for slot in gone if slot in self._known]}
        self._known.difference_update(gone)
        slot = item.slot
        if slot is None:
            send(self.sock, header)
            return
        self.lent[slot.index] = item  # before the client can free it
        taken(item)
        header |= {"slot": slot.index, "nbytes": item.memory.nbytes}
        send(self.sock, header, fds=[] if slot.index in self._known else [slot.fd])
        self._known.add(slot.index)

    def read_freed(self) -> None:
        """Reads the numbers of the slots that the client has freed, until it leaves."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        try:
            while True:
                poll.poll()  # without a deadline: the socket's is for one message, not for the time between messages
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
    """A batch in memory that is mapped from the server, page-locked if ``pin`` was given: the loader need not copy it."""


class HandoverStream:
    """A `MessageStream` of batches that are handed over. Iterate it in one thread.

    name: the server's socket.  pin: page-locks slots.  num_waiting: returns the number of its batches that were not taken
    yet.  fresh: number of batches that were copied, because the program referenced many others.
    Raises `PeerLostError` if the server cannot be reached, or leaves.
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
        self._callbacks = CallbackQueue()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.settimeout(timeout_s)
            self._sock.connect(b"\0" + name.encode())
            _check_user(self._sock, server)
            send(self._sock, dict(hello))
            _check(server, receive(self._sock)[0])
        except (ClosedError, OSError) as error:
            self._end()
            raise PeerLostError(
                f"{server}: cannot connect for the handover of batches in shared memory: {error}"
            ) from None
        except BaseException:
            self._end()
            raise

    def __iter__(self) -> Iterator[Message]:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._callbacks.fileno(), select.POLLIN)
        try:
            while not self._closed:
                ready = {fd for fd, _ in poll.poll()}
                self._callbacks.run()
                self._send_freed()
                if self._sock.fileno() in ready and not self._closed:
                    header, _, fds = receive(self._sock)
                    _check(self._server, header)
                    yield self._receive_batch(header, fds)
        except (ClosedError, OSError) as error:
            if not self._closed:
                raise PeerLostError(
                    f"{self._server}: the connection for the handover of batches broke: {error}"
                ) from None
        finally:
            self._end()

    def close(self) -> None:
        self._closed = True
        self._callbacks.post(lambda: None)

    def _receive_batch(self, header: dict[str, Any], fds: list[int]) -> Message:
        for index in header.pop("gone"):
            self._slots.pop(index).close()
        if "slot" not in header:
            return Message(header)
        index, nbytes = header.pop("slot"), header.pop("nbytes")
        if fds:
            self._slots[index] = SharedSlot(index, self._pin, fds[0])
        slot = self._slots[index]
        slot.attach()
        buffer = slot.buffer()
        memory = np.frombuffer(buffer, np.uint8, nbytes)
        self._lent += 1
        weakref.finalize(buffer, self._callbacks.post, partial(self._note_freed, index)).atexit = False
        # Batches that wait to be taken are bounded by the prefetch; only those beyond them are held by the program.
        if self._lent - self._num_waiting() > _MOST_HELD:
            self.fresh += 1
            memory = memory.copy()
        return BorrowedMessage(header, memory)

    def _note_freed(self, index: int) -> None:
        self._lent -= 1
        self._free.append(index)

    def _send_freed(self) -> None:
        if self._free:
            free, self._free = self._free, []
            send(self._sock, {"free": free})

    def _end(self) -> None:
        """Closes the socket and the slots. Batches that are still in use keep their memory."""
        self._closed = True
        self._callbacks.close()
        self._sock.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()


def _check(server: str, header: Mapping[str, Any]) -> None:
    """Raises the error of a reply about the whole session. An error about one batch passes: it is that batch's answer."""
    if "error" in header and "run" not in header:
        raise RemoteError(f"{server}: {header['error']}", str(header.get("kind", "")))
