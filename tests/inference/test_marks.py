"""Ranks wait for each other as long as there is progress; a rank without any is named."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import HashStore

from glt_lightning.base import PeerError
from glt_lightning.inference import Marks
from tests.helpers.ranks import run_ranks


def test_every_rank_gets_the_texts_of_all_round_after_round() -> None:
    store = HashStore()

    def body(rank: int, exchange: Any) -> list[list[str]]:
        marks = Marks(rank, 3, store, 60.0)
        return [marks.exchange(f"{n} of {rank}") for n in range(20)]

    expected = [[f"{n} of {rank}" for rank in range(3)] for n in range(20)]
    assert run_ranks(3, body) == [expected] * 3
    assert store.num_keys() <= 2 * 3  # the last round, and beats; not all that was ever said


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_rank_without_progress_is_named() -> None:
    store, clock = HashStore(), Clock()
    Marks(1, 2, store, 60.0).beat("computing layer 1 of 'node'")
    waiting = Marks(0, 2, store, 60.0, clock=lambda: clock.now, sleep=clock.sleep)
    waiting.beat("computing layer 0 of 'node'")
    said = "rank 1 has made no progress for 60 s, last while computing layer 1 of 'node'; rank 0 waits for it after computing"
    with pytest.raises(PeerError, match=said):
        waiting.exchange("done")
    assert 60 < clock.now < 62


def test_a_slow_rank_is_waited_for() -> None:
    store, clock = HashStore(), Clock()
    slow = Marks(1, 2, store, 60.0, clock=lambda: clock.now)

    def sleep(seconds: float) -> None:
        clock.sleep(50 * seconds)
        slow.beat("computing")
        if clock.now > 10_000:
            store.set("0/1", "at last")

    waiting = Marks(0, 2, store, 60.0, clock=lambda: clock.now, sleep=sleep)
    assert waiting.exchange("soon") == ["soon", "at last"]


def test_a_lost_store_is_said() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(PeerError, match=r"rank 0, whose process keeps .* does not answer any more \(Connection reset"):
        Marks(1, 2, Gone(), 60.0).exchange("")  # type: ignore[arg-type]
