"""Copies from S3, which moto stands in for."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.base import PartitionError
from glt_lightning.launch import on_host
from glt_lightning.partition import pull_partition
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.s3 import s3_store

pytestmark = pytest.mark.slow


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """host:port of a store with the partition ``source/parts3`` in s3://bucket/parts."""
    partitioned(small_graph(), tmp_path / "source", 3)
    with s3_store(monkeypatch) as (store, address):
        store.put(str(tmp_path / "source" / "parts3"), "bucket/parts", recursive=True)
        yield address


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_from_s3(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pull_partition("s3://bucket/parts", tmp_path / "copy", [1], progress=False)
    assert {p.name for p in (tmp_path / "copy").glob("part*")} == {"part1"}
    pull_partition("s3://bucket/parts", tmp_path / "copy", progress=False)
    assert contents(tmp_path / "copy") == contents(tmp_path / "source" / "parts3")
    with pytest.raises(PartitionError, match=r"s3://bucket/none/manifest.json: not found"):
        pull_partition("s3://bucket/none", tmp_path / "none", progress=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # type: ignore[attr-defined]
    with pytest.raises(PartitionError, match=r"s3://bucket/parts: it cannot be opened \(.*[Ii]nstall s3fs"):
        pull_partition("s3://bucket/parts", tmp_path / "none", progress=False)


def test_a_launched_host_copies_its_parts_from_s3(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {"source": "s3://bucket/parts", "folder": str(tmp_path / "copy"), "slots": [1], "of": 2}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    monkeypatch.setattr(sys, "argv", ["on_host", "copy"])
    on_host.main()
    assert "copy: parts [1]" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "copy").glob("part*")} == {"part1"}
