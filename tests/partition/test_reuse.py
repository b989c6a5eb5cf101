"""A finished partition is used again; one made with other options is named, never overwritten."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import PartitionError, PartitionOptions
from glt_lightning.partition import ArraySource, partition_dir, partition_graph
from glt_lightning.partition.folder import exclusive
from tests.helpers.partition_truth import random_source

TWO = PartitionOptions(num_parts=2)


@pytest.fixture
def source() -> ArraySource:
    return random_source(np.random.default_rng(0))


def test_same_options_reuse(
    tmp_path: Path, source: ArraySource, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = partition_graph(source, tmp_path / "p", TWO)
    left = tmp_path / ".p.tmp-run_a1b2"  # of a run that was killed between its last rename and its end
    (left / "out").mkdir(parents=True)
    monkeypatch.setattr(source, "edge_index", {})  # nothing is read again
    caplog.set_level(logging.INFO)
    # memory is no property of the content, None means "as it is"
    again = partition_graph(
        source, tmp_path / "p", PartitionOptions(num_parts=2, memory_bytes=1 << 21), undirected=False
    )
    assert again == first
    assert "has the same options and data; using it" in caplog.text
    assert not left.exists()
    left.mkdir()
    with exclusive(tmp_path / "p", 0):  # the run is not killed, but about to remove its folder itself
        partition_graph(source, tmp_path / "p", TWO)
    assert left.exists()


def test_the_lock_of_a_killed_run_is_removed(tmp_path: Path, source: ArraySource) -> None:
    partition_graph(source, tmp_path / "p", TWO)
    (tmp_path / ".p.lock").touch()
    partition_graph(source, tmp_path / "p", TWO)
    assert [each.name for each in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": PartitionOptions(num_parts=3)}, "num_parts: 2 on disk, 3 given"),
        ({"options": PartitionOptions(num_parts=2, seed=1)}, "seed: 0 on disk, 1 given"),
        ({"undirected": True}, "undirected: False on disk, True given"),
        ({"normalize": "rows"}, "normalize: 'none' on disk, 'rows' given"),
        ({"splits": {"train": np.array([0])}}, "splits: None on disk, '[0-9a-f]+' given"),
        ({"wide_ids": True}, "wide_ids: False on disk, True given"),
        (
            {"options": PartitionOptions(num_parts=4), "undirected": True},
            "undirected: .*; num_parts: 2 on disk, 4 given",
        ),
    ],
)
def test_other_options_are_named(tmp_path: Path, source: ArraySource, change: dict, said: str) -> None:
    partition_graph(source, tmp_path / "p", TWO)
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "p").rglob("*"))
    with pytest.raises(PartitionError, match=said):
        partition_graph(source, tmp_path / "p", **({"options": TWO} | change))
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "p").rglob("*")) == before


def test_other_data_is_named(tmp_path: Path, source: ArraySource) -> None:
    partition_graph(source, tmp_path / "p", TWO)
    other = random_source(np.random.default_rng(1))
    with pytest.raises(PartitionError, match=r"fingerprint: .* on disk, .* given"):
        partition_graph(other, tmp_path / "p", TWO)


def test_foreign_folder_is_left_alone(tmp_path: Path, source: ArraySource) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "thesis.tex").write_text("precious")
    with pytest.raises(PartitionError, match="the folder is not a partition"):
        partition_graph(source, tmp_path / "p", TWO)
    assert (tmp_path / "p" / "thesis.tex").read_text() == "precious"


def test_derived_folder_tells_the_options_apart(tmp_path: Path, source: ArraySource) -> None:
    folders = [
        partition_dir(tmp_path, source, TWO, None, "none"),
        partition_dir(tmp_path, source, PartitionOptions(num_parts=3), None, "none"),
        partition_dir(tmp_path, source, PartitionOptions(num_parts=2, seed=1), None, "none"),
        partition_dir(tmp_path, source, TWO, True, "none"),
        partition_dir(tmp_path, source, TWO, None, "standardize"),
        partition_dir(tmp_path, source, TWO, None, "none", {"train": np.array([1])}),
        partition_dir(tmp_path, random_source(np.random.default_rng(1)), TWO, None, "none"),
    ]
    assert len(set(folders)) == len(folders)
    assert all(f.parent == tmp_path / "partitions" and f.name.startswith("random-random-") for f in folders)
    assert (
        partition_dir(tmp_path, source, PartitionOptions(num_parts=2, memory_bytes=1 << 21), False, "none")
        == folders[0]
    )


def test_given_folder_wins(tmp_path: Path, source: ArraySource) -> None:
    options = PartitionOptions(dir=str(tmp_path / "here"))
    assert partition_dir("/elsewhere", source, options, None, "none") == tmp_path / "here"
