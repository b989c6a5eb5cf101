"""A rank that trains on a CPU keeps the memory that its tensors free, for as long as it trains.

That the allocator then does so is tested in processes of their own (tests/kernels/test_malloc.py): in this one, an earlier test
that asked for more memory than there is may have left its thread with an arena that cannot keep large blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lightning.pytorch import Callback

from glt_lightning.lightning.strategies import session_host


class Keepers:
    """Counts who wants memory kept, in place of the allocator."""

    def __init__(self) -> None:
        self.open = 0

    def __call__(self) -> Callable[[], None]:
        self.open += 1
        return self.end

    def end(self) -> None:
        self.open -= 1


class Look(Callback):
    def __init__(self, keepers: Keepers) -> None:
        self.keepers = keepers
        self.found: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.found.append(self.keepers.open)


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    keepers = Keepers()
    monkeypatch.setattr(session_host, "keep_freed_memory", keepers)
    return Look(keepers)


@pytest.mark.parametrize("strategy", ["auto", "ddp", "glt_worker", "glt_server_client"])
def test_while_it_trains(make_data, make_model, make_trainer, look, strategy: str) -> None:
    make_trainer(strategy=strategy, max_epochs=1, callbacks=[look]).fit(make_model(), make_data())
    assert set(look.found) == {1}
    assert look.keepers.open == 0


def test_not_if_it_is_told_so(make_data, make_model, make_trainer, look) -> None:
    trainer = make_trainer(strategy="glt_worker", max_epochs=1, callbacks=[look])
    trainer.fit(make_model(), make_data(sampling={"keep_memory": False}))
    assert set(look.found) == {0}


def test_says_why_it_cannot(make_data, make_model, make_trainer, monkeypatch, caplog) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    with caplog.at_level("INFO"):
        make_trainer(max_epochs=1).fit(make_model(), make_data())
    assert "sampling.keep_memory has no effect: the environment variable MALLOC_TRIM_THRESHOLD_ has" in caplog.text
