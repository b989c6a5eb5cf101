"""Partitions that tests share are those that each would make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import partitions
from tests.helpers.partitions import partitioned, small_graph, small_hetero


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(partitions, "_kept_in", tmp_path / "kept")
    return tmp_path / "kept"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_has_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = partitioned(small_hetero(), tmp_path / "a", 2)
    monkeypatch.setattr(partitions, "partition_graph", None)
    second = partitioned(small_hetero(), tmp_path / "b", 2)
    assert content(first.directory) == content(second.directory)
    assert second.directory == tmp_path / "b" / "parts2"


def changed(name: str) -> Any:
    data = small_graph()
    if name == "a value":
        data.x[3, 1] += 1
    if name == "a type":
        data.y = data.y.to(torch.int32)
    if name == "a name":
        data.z = data.x
        del data.x
    return data


def test_each_change_makes_another(kept: Path, tmp_path: Path) -> None:
    for n, name in enumerate(("", "a value", "a type", "a name")):
        partitioned(changed(name), tmp_path / name, 2)
        assert len(list(kept.iterdir())) == n + 1
    for n, options in enumerate(({"undirected": True}, {"storage": {"x": "int8"}}, {"algorithm": "streaming"})):
        partitioned(small_graph(), tmp_path / str(n), 2, **options)
        assert len(list(kept.iterdir())) == n + 5


def test_what_is_no_plain_tensor_is_not_kept(kept: Path, tmp_path: Path) -> None:
    data = small_graph()
    data.names = ["a", "list"]
    partitioned(data, tmp_path / "a")
    assert not kept.exists()
