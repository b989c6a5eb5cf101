"""The ranks of other hosts learn why a rank ended, from what it posts before it goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch.distributed

from glt_lightning.base import DataError, OptionError, PeerError
from glt_lightning.lightning.strategies import failure_board, watched_ddp
from glt_lightning.lightning.strategies.failure_board import FailureBoard


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FailureBoard]]:
    """Of three ranks."""
    monkeypatch.setattr(failure_board, "_LOOK_S", 0.02)
    store = torch.distributed.HashStore()
    with ExitStack() as stack:
        made = [FailureBoard(lambda: store, 3) for _ in range(3)]
        for each in made:
            stack.callback(each.close)
        yield made


def test_others_read_what_one_posts(boards: list[FailureBoard]) -> None:
    assert [each.found() for each in boards] == ["", "", ""]
    boards[1].post("rank 1: of its own")
    assert [each.found(5) for each in boards] == ["rank 1: of its own", "", "rank 1: of its own"]


def test_the_first_of_two_counts(boards: list[FailureBoard]) -> None:
    reasons = [f"rank {rank}: of its own" for rank in range(2)]
    posting = [threading.Thread(target=boards[rank].post, args=(reasons[rank],)) for rank in range(2)]
    for each in posting:
        each.start()
    assert boards[2].found(5) in reasons
    for each in posting:
        each.join(5)
        assert not each.is_alive()


def test_does_not_wait_for_ranks_that_are_gone(boards: list[FailureBoard], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_board, "_READ_S", 0.1)
    for rank in (0, 2):
        boards[rank].close()
    begin = time.monotonic()
    boards[1].post("rank 1: of its own")
    assert time.monotonic() < begin + 5


def test_a_store_that_is_gone_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("Connection reset by peer")

    board = FailureBoard(fail, 2)
    begin = time.monotonic()
    assert board.found(30) == ""
    board.post("rank 0: of its own")
    board.close()
    assert time.monotonic() < begin + 5
    assert [each.message for each in caplog.records if each.name == failure_board.__name__] == [
        "the log of this host will not have the errors of other hosts' ranks: the job's store: Connection reset by peer"
    ]


def test_what_a_rank_posts() -> None:
    def text(error: BaseException, cause: BaseException | None = None) -> str:
        error.__cause__ = cause
        return watched_ddp.as_of_rank(2, error)

    assert text(DataError("rows: 7")) == "rank 2: rows: 7"
    assert text(RuntimeError("in a worker\n..."), OptionError("clip: value")) == "rank 2: clip: value"
    assert text(ZeroDivisionError("division by zero\n...")) == "rank 2: ZeroDivisionError: division by zero"
    assert text(KeyError()) == "rank 2: KeyError:"
    assert text(PeerError("rank 1: rows: 7")) == "rank 1: rows: 7"
