"""Long work on rows is told about: its share and its rate, as often as is useful."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from glt_lightning import DistGraph, DistTensor
from glt_lightning.base import long_work
from tests.helpers.partitions import partitioned, small_graph


def test_share_and_rate(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    log = logging.getLogger("glt_lightning.a_test")
    caplog.set_level(logging.INFO, log.name)

    def work(seconds: list[float]) -> list[str]:
        nonlocal now
        caplog.clear()
        with long_work(log, "h", 4_000, clock=lambda: now, shown=False) as advance:
            for each in seconds:
                now += each
                advance(1_000)
        return caplog.messages

    assert work([1, 1, 1, 1]) == []  # quick work says nothing
    assert work([4, 4, 4, 4]) == ["h: 75 % of 4,000 rows, 250 rows/s", "h: 100 % of 4,000 rows, 250 rows/s"]
    assert work([20, 20]) == [
        "h: 25 % of 4,000 rows, 50 rows/s",
        "h: 50 % of 4,000 rows, 50 rows/s",
    ]  # it was broken off
    with long_work(log, "h", 10, shown=True) as advance:
        advance(10)
    assert "h" not in capsys.readouterr().err  # a bar that is done at once is not drawn


def test_of_first_values_and_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("glt_lightning.base.progress.EVERY_S", 0.0)
    caplog.set_level(logging.INFO, "glt_lightning")
    partitioned(small_graph(), tmp_path, 3).close()
    with DistGraph(tmp_path / "parts3") as graph:
        DistTensor((300, 2), torch.float32, "h", init=("uniform", 0, 1))
        DistTensor((300,), torch.int64, "n")
        graph.save(tmp_path / "saved")
        graph.load(tmp_path / "saved")
    told = "\n".join(caplog.messages)
    assert "tensor 'h': first values: 33 % of 300 rows" in told
    assert "tensor 'h': 300 rows of float32 take 8.19 kB" in told
    assert "kB in the memory of this host" in told
    assert "saved: written: 50 % of 600 rows" in told
    assert "tensor 'h': loaded: 67 % of 300 rows" in told
