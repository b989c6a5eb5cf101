"""Ranks, their samplers and torch share the cores of a host; the monitor says where they fight for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from glt_lightning.lightning.callbacks.monitor import thread_times, times_since
from glt_lightning.lightning.strategies import ranks
from glt_lightning.lightning.strategies.ranks import fair_threads, share_cores


@pytest.mark.parametrize(
    ("cores", "ranks", "samplers", "threads"),
    [
        (1, 1, 0, 1),
        (2, 1, 0, 2),
        (2, 1, 1, 2),
        (2, 2, 2, 1),
        (16, 1, 2, 14),
        (16, 2, 4, 6),
        (16, 1, 40, 12),
        (4, 1, 2, 3),
    ],
)
def test_fair_threads(cores: int, ranks: int, samplers: int, threads: int) -> None:
    assert fair_threads(cores, ranks, samplers) == threads


@pytest.fixture
def eight_cores(monkeypatch):
    """A process that starts with torch's own default on 8 cores."""
    monkeypatch.setattr(ranks, "usable_cores", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(ranks, "_ENVIRON", Path("/dev/null"))
    torch.set_num_threads(8)  # the fixture of this folder restores it


@pytest.mark.parametrize("suffix", ["", "by Lightning"])
def test_a_rank_takes_its_share_until_it_ends(eight_cores, monkeypatch, suffix: str) -> None:
    if suffix:
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        torch.set_num_threads(4)
    before = torch.get_num_threads()
    end = share_cores(ranks=2, samplers=2)
    assert torch.get_num_threads() == 3
    end()
    assert torch.get_num_threads() == before


def test_a_number_of_the_user_stays(eight_cores, monkeypatch, tmp_path: Path) -> None:
    torch.set_num_threads(7)
    share_cores(ranks=2, samplers=2)
    assert torch.get_num_threads() == 7
    torch.set_num_threads(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # by the script; Lightning would have set 4
    share_cores(ranks=2, samplers=2)
    assert torch.get_num_threads() == 8
    (tmp_path / "environ").write_text("A=1\0OMP_NUM_THREADS=4\0")
    monkeypatch.setattr(ranks, "_ENVIRON", tmp_path / "environ")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    torch.set_num_threads(4)
    share_cores(ranks=2, samplers=2)
    assert torch.get_num_threads() == 4


def test_no_more_threads_than_a_quota_allows(eight_cores, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: 2)
    share_cores(ranks=1, samplers=0)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("strategy", ["auto", "ddp", "glt_worker", "glt_server_client"])
def test_every_strategy_counts_ranks_and_samplers(make_data, make_model, make_trainer, monkeypatch, strategy) -> None:
    found = []
    monkeypatch.setattr(
        "glt_lightning.lightning.strategies.session_host.share_cores",
        lambda *counts: found.append(counts) or (lambda: found.append("end")),
    )
    trainer = make_trainer(strategy=strategy, max_epochs=1, limit_train_batches=1, limit_val_batches=0)
    trainer.fit(make_model(), make_data(sampling={"num_workers": 0}))
    assert found == [(1, 2 if strategy == "glt_server_client" else 0), "end"]  # a server has two of them then


@pytest.mark.parametrize(("given", "expected"), [(None, ("passive", "4000")), ("active", ("active", None))])
def test_ranks_start_with_threads_that_sleep(
    make_trainer, monkeypatch, given: str | None, expected: tuple[str, str | None]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    found = []
    monkeypatch.setattr(
        _SubprocessScriptLauncher, "_call_children_scripts", lambda self: found.append(dict(os.environ))
    )
    launcher = make_trainer(strategy="glt_worker", devices=2).strategy.launcher
    launcher._call_children_scripts()
    assert [(each["OMP_WAIT_POLICY"], each.get("GOMP_SPINCOUNT")) for each in found] == [expected]
    assert (os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT")) == (given, None)


def test_times_of_threads(tmp_path: Path) -> None:
    def write(thread: str, text: str) -> None:
        (tmp_path / thread).mkdir(exist_ok=True)
        (tmp_path / thread / "schedstat").write_text(text)

    assert thread_times(tmp_path / "missing") == {}
    (tmp_path / "ended").mkdir()
    write("1", "1000000000 500000000 7\n")
    before = thread_times(tmp_path)
    assert before == {"1": (1.0, 0.5)}
    write("1", "3000000000 1500000000 9\n")
    write("2", "250000000 125000000 1\n")  # a thread that came since
    assert times_since(before, tmp_path) == (2.25, 1.125)
    assert times_since(thread_times())[0] >= 0
