"""Notices that a process of another host is lost or stopped while this one is blocked, for instance in a collective call."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence

from glt_lightning.base import PeerError, PeerLostError
from glt_lightning.workers.transport.message import Message
from glt_lightning.workers.transport.peer import Peer

# Called on the watch's thread with the reason of a loss, and the event that is set when the watch is closed.
OnLoss = Callable[[str, threading.Event], None]


def end_by_deadline(name: str, timeout_s: float, option: str) -> OnLoss:
    """Says that another rank is gone, and ends this process ``timeout_s`` later: it may be in a collective call that waits for
    that rank for ever. name: of this process.  option: that says how long."""

    def end(reason: str, left: threading.Event) -> None:
        _say(f"error: {reason} {name} cannot go on.")
        if not left.wait(timeout_s):
            _say(f"error: {name} is stuck and ends after {timeout_s:g} s ({option}).")
            os._exit(1)

    return end


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class OwnerWatch:
    """Calls ``here`` of each peer every ``every_s`` seconds, and ``on_loss`` for the first one that is lost: it does not
    answer for ``reconnect_s``, or its sampler processes answer, but report for ``silence_s`` that the process they work for
    is stopped. Close it."""

    def __init__(self, peers: Sequence[Peer], every_s: float, silence_s: float, on_loss: OnLoss) -> None:
        self._peers, self._every_s, self._silence_s, self._on_loss = peers, every_s, silence_s, on_loss
        # Rounds in a row in which it was stopped. Not seconds: while this process was stopped itself, time passed unobserved.
        self._stopped = [0] * len(peers)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="glt-owner-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch. Close the peers first: that ends a call in flight. Safe to call twice."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def stop(self) -> None:
        """Ignores losses from now on: peers end in turn when a job ends. Does not wait."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            for number, peer in enumerate(self._peers):
                try:
                    self._look(number, peer.ask("here").result())
                except PeerError as error:
                    if not self._closed.is_set():
                        self._on_loss(str(error), self._closed)
                    return

    def _look(self, number: int, answer: Message) -> None:
        """Raises `PeerLostError` for a peer that was stopped for ``silence_s``."""
        pid = answer.header.get("stopped")
        self._stopped[number] = 0 if pid is None else self._stopped[number] + 1
        stopped_s = (self._stopped[number] - 1) * self._every_s
        if stopped_s >= self._silence_s:
            raise PeerLostError(
                f"{self._peers[number].name}: its process {pid!r:.20} has been stopped by SIGSTOP or a debugger for "
                f"{stopped_s:.0f} s. To keep a rank in a debugger, raise cluster.peer_silence_s."
            )
