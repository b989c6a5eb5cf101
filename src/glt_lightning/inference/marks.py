"""What ranks tell each other between layers: posted and looked up, since collective calls time out where parts are skewed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from glt_lightning.base import PeerError

_LOOK_S = (0.002, 0.1)  # first and longest pause between two looks
_BEAT_S = 1.0


class Board(Protocol):
    """Where texts are posted: a store of torch, or anything like it. Keys are unknown until they are set."""

    def set(self, key: str, value: str) -> object: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...

    def delete_key(self, key: str) -> object: ...


class Marks:
    """Exchanges texts among ranks in rounds. A rank waits for another as long as that one shows progress.

    board: the same for all ranks, and of this run alone.  wait_s: how long a rank that is waited for may show none.

    Raises by `exchange` `PeerError`, which names the rank.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        board: Board | None,
        wait_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        assert board is not None or world_size == 1
        self.rank, self.world_size, self.wait_s = rank, world_size, wait_s
        self._board, self._clock, self._sleep = board, clock, sleep
        self._round, self._beats, self._beaten = 0, 0, float("-inf")
        self._doing = "starting"

    def exchange(self, text: str) -> list[str]:
        """The texts of all ranks, in rank order; all ranks call it equally often."""
        if self._board is None:
            return [text]
        number, self._round = self._round, self._round + 1
        try:
            self._board.set(f"{number}/{self.rank}", text)
            found = [text if rank == self.rank else self._read(number, rank) for rank in range(self.world_size)]
            if number:  # all have posted this round, so nobody reads the one before any more
                self._board.delete_key(f"{number - 1}/{self.rank}")
        except RuntimeError as error:
            if isinstance(error, PeerError):
                raise
            raise PeerError(
                f"rank 0, whose process keeps what the ranks tell each other, does not answer any more ({error}). Its own "
                "messages, and those of the other ranks, say why; then run again."
            ) from error
        return found

    def beat(self, doing: str) -> None:
        """Shows the other ranks that this one makes progress: when it does something else, and at most once a second."""
        now, before, self._doing = self._clock(), self._doing, doing
        if self._board is None or (doing == before and now - self._beaten < _BEAT_S):
            return
        self._beaten, self._beats = now, self._beats + 1
        try:
            self._board.set(f"beat/{self.rank}", f"{self._beats} {doing}")
        except RuntimeError:
            return  # the next exchange says so

    def _read(self, number: int, rank: int) -> str:
        board, key, beat = self._board, f"{number}/{rank}", f"beat/{rank}"
        assert board is not None
        pause, seen, since = _LOOK_S[0], b"", self._clock()
        while not board.check([key]):
            found = board.get(beat) if board.check([beat]) else b""
            now = self._clock()
            if found != seen:
                seen, since = found, now
            elif now - since > self.wait_s:
                doing = seen.decode(errors="replace").partition(" ")[2] or "starting"
                raise PeerError(
                    f"rank {rank} has made no progress for {self.wait_s:g} s, last while {doing}; rank {self.rank} waits for it "
                    f"after {self._doing}. See the messages of rank {rank}; if it only is slow, lower layerwise.batch_size."
                )
            self.beat(self._doing)  # who waits for this rank learns that it lives
            self._sleep(pause)
            pause = min(2 * pause, _LOOK_S[1])
        return board.get(key).decode()
