"""What listens in a job on one host: nothing beyond loopback, Lightning's and torch's process group included."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from glt_lightning import ClusterOptions
from tests.lightning.paused import results, training, wait_for

Listener = tuple[str, str, int]  # name of the process, address, port


def listening(processes: Iterable[psutil.Process]) -> set[Listener]:
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = process.net_connections(kind="tcp")
            found |= {(process.name(), *sock.laddr) for sock in sockets if sock.status == psutil.CONN_LISTEN}
    return found


def beyond_loopback(listeners: Iterable[Listener]) -> list[Listener]:
    addresses = ((each, ipaddress.ip_address(each[1])) for each in listeners)
    return [each for each, address in addresses if not (getattr(address, "ipv4_mapped", None) or address).is_loopback]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["glt_worker", "glt_server_client"])
def test_two_ranks(graph_npz: Path, tmp_path: Path, strategy: str) -> None:
    """With a sampler each that serves its part, or with a graph server of the run."""
    data: dict[str, Any] = {"dataset": str(graph_npz), "root": "root", "partition": {"num_parts": 2}}
    data["sampling"] = {"num_workers": 1}
    cluster = ClusterOptions(placement="rank")
    with training(tmp_path, strategy, cluster, data, stops=True) as run:
        wait_for(tmp_path / "at", run)
        found = listening(run.family())
        (tmp_path / "go").touch()
        # the store, gloo of two ranks; the samplers of both, or the server
        assert len(found) >= (5 if strategy == "glt_worker" else 4)
        assert beyond_loopback(found) == []
        results(run, tmp_path)


@pytest.mark.parametrize("main_address", [None, "name.of.a.host.invalid"])
def test_one_rank(
    make_data, make_model, make_trainer, monkeypatch: pytest.MonkeyPatch, main_address: str | None
) -> None:
    """An address that was meant for other hosts, as SLURM gives it, makes no difference."""
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    if main_address is not None:
        monkeypatch.setenv("MASTER_ADDR", main_address)
    before, during = listening([psutil.Process()]), set()
    model = make_model()
    model.on_train_start = lambda: during.update(listening([psutil.Process()]))
    make_trainer(strategy="glt_worker", max_epochs=1).fit(model, make_data())
    assert during - before
    assert beyond_loopback(during - before) == []
