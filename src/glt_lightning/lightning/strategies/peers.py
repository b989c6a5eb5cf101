"""Each rank notices when another rank of its host dies or stands still, whatever it is blocked in.

The first rank of a host listens on a Unix socket without a file; the other ranks keep a connection to it. A connection that
ends without a goodbye means that its rank died: the kernel closes it even after ``kill -9``. A rank that sends no sign of
life is hung (`workers.cluster.link`) and is killed: stopped, it could neither end nor hear of the loss, and its open connections
would keep the other ranks waiting in collective calls. The first rank tells the other ranks.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from glt_lightning.base import PeerError
from glt_lightning.kernels import wake_with_parent
from glt_lightning.workers import Silence

_CONNECT_S = 60.0
_RETRY_S = 0.02
_EXIT_S = 5.0  # for the last steps of a process that already ends because of a loss
_MAX_MESSAGE = 4096
_ADVICE = " Resume from the last checkpoint. To keep a rank in a debugger, raise cluster.peer_silence_s."


class RankError(PeerError):
    """Another rank failed. ``is_logged``: whether a rank of this host has said so in its log."""

    def __init__(self, message: str, *, is_logged: bool = True) -> None:
        super().__init__(message)
        self.is_logged = is_logged

    @staticmethod
    def named(message: str) -> bool:
        """Tells whether a message begins with the rank whose error it is."""
        return re.match(r"rank \d+: ", message) is not None


@dataclass(frozen=True)
class Loss:
    """A rank that is gone. ``reason``: the error it sent last; empty without one. ``stalled``: how it stopped making progress."""

    rank: int
    pid: int
    reason: str = ""
    stalled: str = ""

    def __str__(self) -> str:
        what = self.stalled or (f"failed ({self.reason})" if self.reason else "died")
        return f"rank {self.rank} (process {self.pid}) of this host {what}"


@dataclass(frozen=True)
class _Peer:
    rank: int
    pid: int
    sock: socket.socket


class PeerWatch:
    """Watches the other ranks of this host on a daemon thread.

    When one is lost, or shows no sign of life for ``silence_s``, it says so on stderr, gives this process ``timeout_s`` to
    end by the exception that the loss causes in it, and then ends it.

    Args:
        rank: Global rank of this process.
        local_rank: Its number on this host.
        local_size: Ranks of this host.
        share: Gives the address, made where ``local_rank`` is 0 and None elsewhere, to all ranks of this host and
            returns it. A collective call.
        timeout_s: How long this process may go on after a loss.
        silence_s: After how long without a sign of life a rank is lost; that one is killed.
        job_secret: The job's secret, which the first rank sends to the other ranks, if they run as the same user.
        on_loss: Called on a thread of the watch when a rank is lost, to end waits that would only end by their deadlines.
    """

    def __init__(
        self,
        *,
        rank: int,
        local_rank: int,
        local_size: int,
        share: Callable[[str | None], str],
        timeout_s: float,
        silence_s: float,
        job_secret: Mapping[str, Any] | None = None,
        on_loss: Callable[[], None] | None = None,
    ) -> None:
        self._on_loss = on_loss
        self.job_secret: Mapping[str, Any] = job_secret or {}  # what the first rank gave
        self.rank, self._timeout_s = rank, timeout_s
        self._lock = threading.Lock()
        self._loss: Loss | None = None
        self._lost, self._closed = threading.Event(), threading.Event()
        if local_rank == 0:
            self._peers = _accept_peers(local_size - 1, share, self.job_secret)
        else:
            first, self.job_secret = _connect(share(None), rank, rank - local_rank)
            self._peers = [first]
        self._silence = Silence({peer.rank: peer.pid for peer in self._peers}, silence_s)
        self._wake, self._woken = socket.socketpair()
        self._beat_due_s = 0.0
        self._thread = threading.Thread(target=self._run, name="glt-peers", daemon=True)
        self._thread.start()
        atexit.register(self._guard_exit)

    def loss(self, wait_s: float = 0.0) -> Loss | None:
        """The rank that was lost first, if any is; waits for the news that long."""
        self._lost.wait(wait_s)
        return self._loss

    def end_soon(self) -> None:
        """This process was asked to end: bounds how long it may take. Takes no lock, so that a signal handler may call it."""
        with suppress(OSError):
            self._wake.send(b"!", socket.MSG_DONTWAIT)

    def close(self, reason: str = "") -> None:
        """Leaves in order: this process may end now without alarm, or with its ``reason``. Safe to call twice."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        self._tell({"bye": True} if not reason else {"failed": reason[:1000]})
        self._wake.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
        for peer in self._peers:
            peer.sock.close()
        self._woken.close()
        if self._loss is None:
            atexit.unregister(self._guard_exit)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        peers = {peer.sock.fileno(): peer for peer in self._peers}
        for fd in peers:
            poll.register(fd, select.POLLIN)
        while peers and self._loss is None:
            for fd, _ in poll.poll(self._silence.beat_s * 1000):
                if fd not in peers:
                    if self._woken.recv(1):
                        self._end_by_deadline("it was asked to end", 128 + signal.SIGTERM)
                    return
                heard = _heard(peers[fd])
                if isinstance(heard, Loss):
                    if not self._closed.is_set():
                        self._alarm(heard)
                    return
                if heard == "alive":
                    self._silence.heard(peers[fd].rank)
                else:
                    poll.unregister(fd)
                    self._silence.forget(peers.pop(fd).rank)
            self._beat()
            stalled = self._find_stalled()
            if stalled is not None and not self._closed.is_set():
                self._alarm(stalled)
                return

    def _beat(self) -> None:
        """Sends a sign of life when the last one is `Silence.beat_s` ago."""
        now = time.monotonic()
        if now >= self._beat_due_s:
            self._beat_due_s = now + self._silence.beat_s
            self._tell({"alive": True})

    def _find_stalled(self) -> Loss | None:
        found = self._silence.find()
        if found is None:
            return None
        rank, how = found
        pid = next(peer.pid for peer in self._peers if peer.rank == rank)
        return Loss(rank, pid, stalled=f"hung on {socket.gethostname()} and was killed ({how})")

    def _alarm(self, loss: Loss) -> None:
        # first of all, so that the other ranks hear of this loss, not of the errors that it will cause in this rank
        self._tell({"lost": [loss.rank, loss.pid, loss.reason, loss.stalled]})
        if loss.stalled and any(peer.pid == loss.pid > 0 for peer in self._peers):  # 0: a process of another container
            with suppress(OSError):
                os.kill(loss.pid, signal.SIGKILL)
        self._loss = loss
        self._lost.set()
        if not loss.reason:
            _say(f"error: {loss}; rank {self.rank} cannot go on.{_ADVICE if loss.stalled else ''}")
        if self._on_loss is not None:
            self._on_loss()
        self._end_by_deadline(str(loss), 1)

    def _end_by_deadline(self, why: str, status: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not self._closed.wait(min(self._silence.beat_s, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() < deadline:
                self._tell({"alive": True})  # this rank is about to end, and not silent
                continue
            after = f"ends after {self._timeout_s:g} s (cluster.peer_timeout_s)"
            _say(f"error: {why}; rank {self.rank} is stuck and {after}.")
            os._exit(status)

    def _tell(self, message: dict[str, Any]) -> None:
        data = json.dumps(message | {"rank": self.rank, "pid": os.getpid()}).encode()
        for peer in self._peers:
            with suppress(OSError):
                peer.sock.send(data, socket.MSG_DONTWAIT)

    def _guard_exit(self) -> None:
        """After a loss, what else runs at exit (ending the process group) must not wait for the dead."""
        if self._loss is not None:
            timer = threading.Timer(_EXIT_S, os._exit, (1,))
            timer.daemon = True
            timer.start()


def _accept_peers(count: int, share: Callable[[str | None], str], job_secret: Mapping[str, Any]) -> list[_Peer]:
    """Listens, shares the address and waits for the other ranks of the host."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        address = f"glt-lightning-{secrets.token_hex(16)}"
        listener.bind("\0" + address)
        listener.listen(max(count, 1))
        share(address)
        peers: list[_Peer] = []
        deadline = time.monotonic() + _CONNECT_S
        while len(peers) < count:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                missing = count - len(peers)
                raise PeerError(
                    f"{missing} of the {count} other ranks of this host did not connect in {_CONNECT_S:g} s."
                ) from None
            if (peer := _greeted(sock, job_secret)) is not None:
                peers.append(peer)
    return peers


def _greeted(sock: socket.socket, job_secret: Mapping[str, Any]) -> _Peer | None:
    """The rank behind a new connection, which gets the job_secret; None for a stranger."""
    pid, uid = _credentials(sock)
    sock.settimeout(_CONNECT_S)
    with suppress(OSError, ValueError, KeyError, TypeError):
        if uid == os.getuid():
            rank = int(json.loads(sock.recv(_MAX_MESSAGE))["rank"])
            sock.send(json.dumps(job_secret).encode())
            sock.settimeout(None)
            return _Peer(rank, pid, sock)
    sock.close()
    return None


def _connect(address: str, rank: int, first_rank: int) -> tuple[_Peer, Mapping[str, Any]]:
    """The first rank of the host, and its job_secret."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _reach(sock, address)
        pid, uid = _credentials(sock)
        if uid != os.getuid():
            raise PeerError(f"the socket of rank {first_rank} belongs to user {uid}, not to {os.getuid()}.")
        sock.send(json.dumps({"rank": rank}).encode())
        job_secret = json.loads(sock.recv(_MAX_MESSAGE))
        sock.settimeout(None)
    except BaseException as error:
        sock.close()
        if isinstance(error, (OSError, ValueError)):
            raise PeerError(
                f"rank {rank} cannot reach rank {first_rank} of this host ({error}); it may have exited."
            ) from None
        raise
    if os.getppid() == pid:  # as Lightning starts the ranks of a host
        wake_with_parent()
    return _Peer(first_rank, pid, sock), job_secret


def _reach(sock: socket.socket, address: str) -> None:
    deadline = time.monotonic() + _CONNECT_S
    sock.settimeout(_CONNECT_S)
    while True:
        try:
            return sock.connect("\0" + address)
        except BlockingIOError:  # a Unix socket does not wait while the queue of the other side is full
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def _heard(peer: _Peer) -> Loss | Literal["alive", "bye"]:
    """What a readable connection tells: a loss, that its rank lives, or that it has left in order."""
    try:
        message = json.loads(_received(peer.sock) or b"{}")
    except (OSError, ValueError):
        message = {}
    if "bye" in message:
        return "bye"
    if "alive" in message:
        return "alive"
    if "lost" in message:
        return Loss(*message["lost"])
    return Loss(peer.rank, peer.pid, message.get("failed", ""))


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(_MAX_MESSAGE)
    except ConnectionResetError:
        # It closed with our last sign of life unread. The kernel tells of that first, before what it had sent: its farewell.
        return sock.recv(_MAX_MESSAGE)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
