"""Hosts of a launched job copy their parts and the versions of a graph, are compared by them, and read them together."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.graph import LocalPartition
from glt_lightning.launch import LaunchConfig, on_host
from glt_lightning.launch.preflight import HostFacts, findings, question
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.partition import append_rows, open_version
from glt_lightning.workers import HostsGraph, Ranks
from tests.helpers.contents import contents
from tests.helpers.grown import TYPED, two_versions
from tests.helpers.ranks import run_ranks
from tests.workers.test_group import link

SPEC = LoaderSpec(name="all", num_neighbors=[3, -1], batch_size=8, node_type="a", exact=True)


def test_hosts_copy_versions_and_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two = two_versions(np.random.default_rng(3), TYPED)
    two.partition(two.base, tmp_path / "source", 2).close()
    append_rows(tmp_path / "source", two.additions)
    (tmp_path / "run.yaml").write_text(
        "trainer: {accelerator: cpu}\nmodel: {class_path: own.Model}\n"
        "data: {class_path: glt_lightning.GLTDataModule, init_args: {partition: {dir: part, version: 1}}}\n"
    )
    where: dict[str, Any] = {"hosts": ["n0", "n1"], "security": {"dir": "certs"}}
    config = LaunchConfig(command="fit", run_config=str(tmp_path / "run.yaml"), **where)
    later = LaunchConfig(
        command="fit", run_config=str(tmp_path / "run.yaml"), args=["--data.partition.version", "latest"], **where
    )

    def facts_of(config: LaunchConfig, verify: bool = True) -> list[HostFacts]:
        found = []
        for machine in config.trainers:
            monkeypatch.chdir(tmp_path / machine.name)
            found.append(HostFacts(machine, on_host.facts(question(config, machine, verify=verify))))
        return found

    for machine in config.trainers:
        (tmp_path / machine.name).mkdir()
        monkeypatch.chdir(tmp_path / machine.name)
        asked = question(config, machine, verify=False)
        on_host.copy({"source": str(tmp_path / "source"), "folder": "part", "slots": asked["slots"], "of": asked["of"]})
        assert f"part: parts [{machine.number}], version 1, " in capsys.readouterr().out
    assert [each.text for each in findings(facts_of(config)) if "partition" in each.text or "part" in each.text] == []

    whole = open_version(LocalPartition.open(tmp_path / "source"), 1)

    def rank_of(rank: int, exchange: Any) -> list[Any]:
        base = LocalPartition.open(tmp_path / f"n{rank}" / "part", parts=[rank])
        with closing(base), closing(open_version(base, 1)) as version:
            graph = HostsGraph(version, link(rank), "127.0.0.1")
            with Session(graph, seed=3, ranks=Ranks(rank, 2, exchange)) as session:
                found = [contents(batch) for batch in session.make_loader(SPEC)]
                exchange("all done")
                return found

    found = run_ranks(2, rank_of)
    for rank in range(2):
        with Session(whole, seed=3, ranks=Ranks(rank, 2)) as session:
            assert found[rank] == [contents(batch) for batch in session.make_loader(SPEC)]
    whole.close()

    shutil.rmtree(tmp_path / "n1" / "part.versions")
    (fault,) = [
        each for each in findings(facts_of(config, verify=False)) if each.host == "n1" and "version" in each.text
    ]
    assert "part: there is no version 1; the latest is 0. Copy it: set partition: from, and add --copy." in fault.text
    (fault,) = [each for each in findings(facts_of(later)) if each.host == "n1" and "version" in each.text]
    assert fault.text.startswith("its folder holds another version (hash of its rows): none; that of n0 has ")
