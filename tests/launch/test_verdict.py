"""Every fault of every host is one line that says what is, what should be and what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.launch import LaunchConfig
from glt_lightning.launch.preflight.check import listeners, question
from glt_lightning.launch.preflight.verdict import HostFacts, findings

_NOW = 1_000_000.0
_GOOD: dict[str, Any] = {
    "versions": {
        "Python": "3.11",
        "glt_lightning": "0.1.0",
        "torch": "2.6.0",
        "lightning": "2.6.6",
        "wire protocol": "3",
    },
    "missing_modules": [],
    "missing_script": False,
    "partition": {
        "options_hash": "a" * 32,
        "hashes": "b" * 32,
        "parts": [0],
        "absent": [],
        "absent_parts": [],
        "absent_bytes": 0,
        "bytes": 1000,
    },
    "certificate": {"names": ["n0", "n1"], "begin": 0.0, "end": 2e6, "signed": True, "has_key": True},
    "now": _NOW,
    "free_bytes": 1 << 40,
    "memory_bytes": 1 << 40,
    "open_files": 65536,
    "interfaces": ["lo", "eth0"],
    "gpus": [[0, 0], [1, 0]],
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


def said(change: Callable[[dict[str, Any]], Any], offset_s: float = 0.0, **more: Any) -> list[str]:
    """Findings when the facts of the second host are changed."""
    config = job(**more)
    other = copy.deepcopy(_GOOD)
    change(other)
    first, second = config.trainers
    return [str(each) for each in findings(config, [HostFacts(first, _GOOD), HostFacts(second, other, offset_s)])]


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
        (_to("missing_modules", ["own"]), "n1: the configuration names own, which python3 cannot import."),
        (
            _in("partition", options_hash="c" * 32),
            "n1: its folder holds another partition (options_hash): cccccccccccc;",
        ),
        (_in("partition", hashes="c" * 32), "n1: its folder holds other files (hashes)"),
        (
            _to("partition", {"error": "part: this folder holds no partition"}),
            "n1: part: this folder holds no partition.",
        ),
        (
            _in("partition", absent=["part1/x.npy"], absent_parts=["part1"], parts=[1]),
            "n1: part1 of its parts [1] lack files, such as part1/x.npy. Copy them: --copy.",
        ),
        (_in("partition", absent_bytes=1 << 41), "n1: 1.1 TB are free on its disk; 2.2 TB are needed"),
        (_in("partition", bytes=1 << 41), "warning: n1: 1.1 TB of memory are available; its parts take 2.2 TB"),
        (_to("certificate", None), "n1: it has no certificate. Set security"),
        (_in("certificate", names=["n9"]), "n1: its certificate names n9; other hosts call it n1."),
        (_in("certificate", signed=False), "n1: its certificate is not signed by its ca.pem."),
        (_in("certificate", has_key=False), "n1: its certificate and its key do not belong together."),
        (_in("certificate", begin=_NOW + 10), "n1: its certificate will be valid in 10 s by its clock."),
        (_in("certificate", end=_NOW - 10), "n1: its certificate expired 10 s ago by its clock."),
        (_in("certificate", end=_NOW + 10), "n1: its certificate expires in 10 s; the job may take 604,800 s"),
        (_to("open_files", 1024), "n1: a process may open 1024 files; 4096 are needed."),
        (
            _to("gpus", "nvidia-smi: No such file"),
            "n1: it is to train on GPUs, and has none: nvidia-smi: No such file.",
        ),
        (_to("gpus", [[1, 0]]), "n1: devices: there is no GPU [0]; it has [1]."),
        (_to("gpus", [[0, 2 << 30], [1, 0]]), "warning: n1: GPU 0 has 2.15 GB in use."),
        (_to("interfaces", ["lo", "ens3"]), "n1: GLOO_SOCKET_IFNAME is eth0; its interfaces are lo, ens3."),
    ],
)
def test_one_fault_is_one_line(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    (line,) = said(change, defaults={"env": {"GLOO_SOCKET_IFNAME": "eth0"}})
    assert line.startswith(text), line


def test_all_faults_at_once() -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["versions"].update(torch="9", lightning="9")
        facts["certificate"].update(names=["x"], signed=False)
        facts["open_files"] = 1

    assert len(said(change)) == 5


def test_clocks_and_prefixes_of_interfaces() -> None:
    (line,) = said(lambda _: None, offset_s=-3.5)
    assert line == "warning: n1: its clock is 3.5 s behind the launcher's. Set it, by NTP for example."
    for given, count in (("eth", 0), ("=eth", 1), ("^lo", 0), ("=eth0,ib0", 0)):
        assert len(said(lambda _: None, defaults={"env": {"NCCL_SOCKET_IFNAME": given}})) == 2 * count


def test_what_is_asked_of_whom() -> None:
    config = job(servers=["g0", "g1", "g2"], args=["--trainer.default_root_dir=/shared"])
    asked = [question(config, machine, verify=False) for machine in config.machines]
    assert [(each["folder"], each["slots"], each["of"]) for each in asked] == [
        *[("part", [n], 3) for n in range(3)],
        *[(None, [], 0)] * 2,
    ]
    assert asked[0]["modules"] == ["torch", "lightning", "glt_lightning", "own"]
    assert [each["gpus"] for each in asked] == [False, False, False, True, True]
    meeting = {"address": None, "port": 29500, "tls": False}
    assert [listeners(config, each) for each in config.machines[2:]] == [
        [{"address": "g2", "port": 18800, "tls": True}],
        [meeting],
        [],
    ]
    config = job(defaults={"devices": 2})
    assert [question(config, each, verify=False)["slots"] for each in config.trainers] == [[0], [1]]
    assert listeners(config, config.trainers[0]) == [meeting, {"address": "n0", "port": 0, "tls": True}]
