"""Every fault of every host is one line that says what is, what should be and what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.launch import LaunchConfig
from glt_lightning.launch.preflight import HostFacts, findings, listeners, question

_GOOD: dict[str, Any] = {
    "versions": {
        "Python": "3.11",
        "glt_lightning": "0.1.0",
        "torch": "2.6.0",
        "lightning": "2.6.6",
        "wire protocol": "3",
    },
    "partition": {
        "options_hash": "a" * 32,
        "hashes": "b" * 32,
        "rows": "",
        "parts": [0],
        "absent": [],
        "absent_parts": [],
        "absent_bytes": 0,
    },
    "free_bytes": 1 << 40,
    "open_files": 65536,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(
        "trainer: {accelerator: gpu, default_root_dir: out}\n"
        "model: {class_path: own.Model}\n"
        "data: {class_path: glt_lightning.GLTDataModule, init_args: {partition: {dir: part}}}\n"
    )


def job(**more: Any) -> LaunchConfig:
    given = {"command": "fit", "run_config": "run.yaml", "hosts": ["n0", "n1"], "security": {"dir": "certs"}}
    return LaunchConfig(**given | more)


def said(change: Callable[[dict[str, Any]], Any], offset_s: float = 0.0) -> list[str]:
    """Findings when the facts of the second host are changed."""
    other = copy.deepcopy(_GOOD)
    change(other)
    first, second = job().trainers
    return [str(each) for each in findings([HostFacts(first, _GOOD), HostFacts(second, other, offset_s)])]


def _in(key: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda facts: facts[key].update(values)


def _to(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda facts: facts.update({key: value})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_in("versions", torch="2.7.0"), "n1: torch is 2.7.0; n0 has 2.6.0. Install the same release"),
        (_in("versions", **{"wire protocol": "4"}), "n1: wire protocol is 4; n0 has 3."),
        (_in("versions", lightning="none"), "n1: lightning is not installed for python3."),
        (
            _in("partition", options_hash="c" * 32),
            "n1: its folder holds another partition (options_hash): cccccccccccc;",
        ),
        (_in("partition", hashes="c" * 32), "n1: its folder holds other files (hashes)"),
        (_in("partition", rows="c" * 32), "n1: its folder holds another version (hash of its rows): cccccccccccc;"),
        (
            _to("partition", {"error": "part: this folder holds no partition"}),
            "n1: part: this folder holds no partition.",
        ),
        (
            _in("partition", absent=["part1/x.npy"], absent_parts=["part1"], parts=[1]),
            "n1: part1 of its parts [1] lack files, such as part1/x.npy. Copy them: --copy.",
        ),
        (_in("partition", absent_bytes=1 << 41), "n1: 1.1 TB are free on its disk; 2.2 TB are needed"),
        (_to("open_files", 1024), "n1: a process may open 1024 files; 4096 are needed."),
    ],
)
def test_one_fault_is_one_line(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    (line,) = said(change)
    assert line.startswith(text), line


def test_all_faults_at_once() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["versions"].update(torch="9", lightning="9")
        facts["open_files"] = 1

    assert len(said(change)) == 3


def test_clocks() -> None:
    (line,) = said(lambda _: None, offset_s=-3.5)
    assert line == "warning: n1: its clock is 3.5 s behind the launcher's. Set it, by NTP for example."


def test_what_is_asked_of_whom() -> None:
    config = job(servers=["g0", "g1", "g2"], args=["--trainer.default_root_dir=/shared"])
    asked = [question(config, machine, verify=False) for machine in config.machines]
    assert [(each["folder"], each["slots"], each["of"]) for each in asked] == [
        *[("part", [n], 3) for n in range(3)],
        *[(None, [], 0)] * 2,
    ]
    meeting = {"address": None, "port": 29500, "tls": False}
    assert [listeners(config, each) for each in config.machines[2:]] == [
        [{"address": "g2", "port": 18800, "tls": True}],
        [meeting],
        [],
    ]
    config = job(defaults={"devices": 2})
    assert [question(config, each, verify=False)["slots"] for each in config.trainers] == [[0], [1]]
    assert listeners(config, config.trainers[0]) == [meeting, {"address": "n0", "port": 0, "tls": True}]
