"""A rank that trains on a CPU keeps the memory that its tensors free, for as long as it trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

_BYTES = 64 << 20


def kept() -> bool:
    """Whether the memory of a large tensor remains in the process when the tensor is gone."""
    tensor = torch.ones(_BYTES, dtype=torch.uint8)
    used = _resident()
    del tensor
    return used - _resident() < _BYTES // 2


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Look(Callback):
    def __init__(self) -> None:
        self.found: list[bool] = []

    def on_train_batch_start(self, *_: Any) -> None:
        if not self.found:
            self.found.append(kept())


@pytest.mark.parametrize("strategy", ["auto", "ddp", "glt_worker", "glt_server_client"])
def test_while_it_trains(make_data, make_model, make_trainer, strategy: str) -> None:
    look = Look()
    make_trainer(strategy=strategy, max_epochs=1, callbacks=[look]).fit(make_model(), make_data())
    assert look.found == [True]
    assert not kept()


def test_not_if_it_is_told_so(make_data, make_model, make_trainer) -> None:
    look = Look()
    trainer = make_trainer(strategy="glt_worker", max_epochs=1, callbacks=[look])
    trainer.fit(make_model(), make_data(sampling={"keep_memory": False}))
    assert look.found == [False]


def test_says_why_it_cannot(make_data, make_model, make_trainer, monkeypatch, caplog) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    with caplog.at_level("INFO"):
        make_trainer(max_epochs=1).fit(make_model(), make_data())
    assert "sampling.keep_memory has no effect: the environment variable MALLOC_TRIM_THRESHOLD_ has" in caplog.text
