"""Notices that a process of another host is gone while this one is blocked in something else, such as a collective call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from glt_lightning.errors import PeerError
from glt_lightning.transport.peer import Peer

# Told why a peer is gone, on a thread of the watch, with the event that is set when the watch is closed.
OnLoss = Callable[[str, threading.Event], None]


class HolderWatch:
    """Asks ``peers`` for a sign of life every ``every_s`` seconds; one that is away for longer than its deadlines allow is
    lost, and ``on_loss`` hears of the first. Close it."""

    def __init__(self, peers: Sequence[Peer], every_s: float, on_loss: OnLoss) -> None:
        self._peers, self._every_s, self._on_loss = peers, every_s, on_loss
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="glt-holders", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch; the peers are to be closed by now, which ends a question that is being asked. Safe to call
        twice."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def stop(self) -> None:
        """From now on a loss is none. Does not wait."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            for peer in self._peers:
                try:
                    peer.ask("here").result()
                except PeerError as error:
                    if not self._closed.is_set():
                        self._on_loss(str(error), self._closed)
                    return
