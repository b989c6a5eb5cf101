"""The cores that a process may use: its affinity, and the quotas of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glt_lightning.graph import control_groups, usable_cores


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b", {}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "20000 100000", "a/cpu.max": "250000 100000"}, 1),
        (
            "0::/elsewhere",
            {"cpu.max": "400000 100000"},
            4,
        ),  # in a container the host's name of the group does not exist
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "150000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("3:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 8),
        ("3:memory:/a", {"a/cpu.max": "100000 100000"}, 8),
    ],
)
def test_usable_cores(tmp_path: Path, monkeypatch, groups: str, files: dict[str, str], cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "mine").write_text(groups + "\n")
    assert usable_cores(tmp_path, tmp_path / "mine") == cores


def test_usable_cores_of_this_process() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert all(version in (1, 2) for version, _ in control_groups.control_groups("cpu"))
