"""Which rows stay in memory, who may open them, and what is said where that cannot be."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import DataError, OptionError, PartitionError
from glt_lightning.graph import (
    ArrayEntry,
    HostTier,
    LocalPartition,
    SharedArrays,
    cache_choice as hotness,
    edge_path,
    host_memory as free_memory,
    host_tier,
    node_path,
)
from glt_lightning.graph.host_tier import hottest_rows
from glt_lightning.kernels import row_bytes
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.wide import wide_graph, wide_hetero


def width(entry: ArrayEntry) -> int:
    return row_bytes(entry.dtype, entry.shape[1:])


def sizes(partition: LocalPartition, kept: dict[str, int]) -> dict[str, int]:
    return {path: rows * width(partition.manifest.arrays[path]) for path, rows in kept.items()}


@pytest.mark.parametrize("make", [wide_graph, wide_hetero])
def test_budget_is_used_and_kept(tmp_path: Path, make) -> None:
    partition = partitioned(make(), tmp_path, 3)
    arrays = partition.manifest.arrays
    total = sum(sizes(partition, hottest_rows(partition, 1 << 40)).values())
    widest = 4800
    before: dict[str, int] = {}
    for budget in (0, 1, 1000, 50_000, total // 2, total - 1, total, 2 * total):
        kept = hottest_rows(partition, budget)
        used = sum(sizes(partition, kept).values())
        assert used <= budget
        assert used > min(budget, total) - widest
        assert all(0 <= rows <= arrays[path].shape[0] for path, rows in kept.items())
        assert all(rows >= before.get(path, 0) for path, rows in kept.items())
        before = kept
    assert all(rows == arrays[path].shape[0] for path, rows in before.items())


def test_all_attributes_and_nothing_else(tmp_path: Path) -> None:
    partition = partitioned(wide_hetero(), tmp_path, 2)
    schema = partition.schema
    paper, cites = schema.node_index("paper"), schema.edge_types.index(("paper", "cites", "paper"))
    expected = {node_path(p, paper, name) for p in (0, 1) for name in ("x", "y")}
    assert set(hottest_rows(partition, 0)) == expected | {edge_path(p, cites, "edge_attr") for p in (0, 1)}
    some = LocalPartition.open(partition.directory, parts=[1])
    assert {path.split("/")[0] for path in hottest_rows(some, 0)} == {"part1"}


def test_hottest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two parts the one with the hotter rows gets more, and narrow rows come before wide ones as hot."""
    partition = partitioned(small_graph(), tmp_path, 2)
    hot = {0: 9.0, 1: 1.0}
    monkeypatch.setattr(hotness, "_of_part", lambda _, part, t: np.full(150, hot[part], np.float32))
    xs = [node_path(p, 0, "x") for p in (0, 1)]
    ys = [node_path(p, 0, "y") for p in (0, 1)]
    kept = hottest_rows(partition, partition.manifest.arrays[ys[0]].shape[0] * 8)
    assert kept[ys[0]] > 0
    assert not any(kept[path] for path in (*xs, ys[1]))
    kept = hottest_rows(partition, 150 * 24)
    assert kept[xs[0]] > kept[xs[1]] == 0


def test_equally_hot_parts_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a folder says nothing of hotness."""
    partition = partitioned(small_graph(), tmp_path, 2)
    monkeypatch.setattr(hotness, "_of_part", lambda p, part, t: np.ones(len(p.user_ids_by_part(t)[part]), "f4"))
    rows = [partition.manifest.arrays[node_path(p, 0, "x")].shape[0] for p in (0, 1)]
    kept = hottest_rows(partition, sum(rows) * 8 + sum(rows) * 6)
    shares = [kept[node_path(p, 0, "x")] / rows[p] for p in (0, 1)]
    assert shares == pytest.approx([0.5, 0.5], abs=0.02)


def test_the_hottest_rows_are_those_of_the_folder(tmp_path: Path) -> None:
    """A budget of half the rows saves more than half of the accesses that the folder expects."""
    partition = partitioned(small_graph(2000), tmp_path, 2)
    entry = partition.manifest.arrays
    total = sum(entry[node_path(p, 0, n)].shape[0] * width(entry[node_path(p, 0, n)]) for p in (0, 1) for n in "xy")
    edges = sum(entry[edge_path(p, 0, "edge_attr")].shape[0] * 8 for p in (0, 1))
    kept = hottest_rows(partition, (total + edges) // 4)
    hot = [np.load(partition.directory / node_path(p, 0, "hotness")) for p in (0, 1)]
    saved = sum(h[: kept[node_path(p, 0, "x")]].sum() for p, h in enumerate(hot))
    share = sum(kept[node_path(p, 0, "x")] for p in (0, 1)) / 2000
    assert 0 < share < 1
    assert saved / sum(h.sum() for h in hot) > 1.2 * share


@pytest.mark.parametrize("make", [wide_graph, wide_hetero])
def test_automatic_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make) -> None:
    """It is what 3/4 of the available memory leave beside topology and ids, unless everything fits into 63/64; of parts that
    other processes map, each takes its share. A little is always left, without which a tier is refused; with less files are
    mapped."""
    least = host_tier._LEAST
    monkeypatch.setattr(host_tier, "_LEAST", 0)
    whole = partitioned(make(), tmp_path, 2)
    part = LocalPartition.open(whole.directory, parts=[1])
    manifest = part.manifest
    attributes = sum(manifest.arrays[path].bytes for path in hottest_rows(part, 0))
    read = {"indptr.npy", "indices.npy", "n_id.npy"}
    topology = sum(e.bytes for path, e in manifest.arrays.items() if "part1/" in path and Path(path).name in read)
    enough = 64 * (attributes + topology) // 63 + 64
    assert HostTier.automatic_budget(manifest, part.parts, enough) is None
    assert HostTier.automatic_budget(manifest, whole.parts, enough) is not None
    too_little = HostTier.automatic_budget(manifest, part.parts, enough - 100)
    assert too_little is not None
    assert abs(too_little - (3 * (enough - 100) // 4 - topology)) < 8
    assert HostTier.automatic_budget(manifest, part.parts, topology) == 0
    assert HostTier.automatic_budget(manifest, part.parts, 3 * enough, [(0,)]) is None
    both = [
        HostTier.automatic_budget(manifest, parts, enough, others) for parts, others in (([0], [(1,)]), ([1], [(0,)]))
    ]
    alone = HostTier.automatic_budget(manifest, whole.parts, enough)
    assert None not in (*both, alone)
    assert alone - 2 <= sum(both) <= alone
    monkeypatch.setattr(host_tier, "_LEAST", least)
    assert least > free_memory.RESERVE
    monkeypatch.setattr(host_tier, "_bytes_read", lambda *_: (least, least))
    assert [HostTier.automatic_budget(manifest, part.parts, free) for free in (least - 1, least)] == [None, 0]


def test_opened_by_path(tmp_path: Path) -> None:
    partition = partitioned(wide_graph(), tmp_path, 2)
    tier = HostTier.create(partition, 300_000)
    theirs = LocalPartition.open(partition.directory, memory=HostTier.open(tier.path))
    tier.close()
    tier.close()
    ids = np.random.default_rng(0).integers(0, 200, 300)
    for name in ("x", "y", "age", "image"):
        expected = partition.node_shards(0, name).gather(ids)
        for other in (theirs, partition.with_memory(tier)):
            assert np.array_equal(other.node_shards(0, name).gather(ids), expected)
    with pytest.raises(DataError):  # the number of its file may be another's by now
        LocalPartition.open(partition.directory, memory=HostTier.open(tier.path))


def test_files_stay_open_while_they_are_read_and_no_longer(tmp_path: Path) -> None:
    partition = partitioned(wide_graph(), tmp_path, 2)
    before = open_files(tmp_path)
    tier = HostTier.create(partition, 1)
    shards = [partition.with_memory(tier).node_shards(0, "x") for _ in range(3)]
    tier.close()
    assert shards[2].gather(np.arange(200))[3, 0] == partition.node_shards(0, "x").gather(np.arange(200))[3, 0]
    assert open_files(tmp_path) == before + 2  # one for each part, however many read it
    del shards
    assert open_files(tmp_path) == before


def open_files(folder: Path) -> int:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.exists(link))


def test_of_another_partition(tmp_path: Path) -> None:
    one, two = (partitioned(small_graph(seed=seed), tmp_path / str(seed), 2) for seed in (0, 1))
    tier = HostTier.create(LocalPartition.open(one.directory, parts=[0]), 100)
    with pytest.raises(PartitionError, match="filled from a different partition"):
        two.with_memory(tier)
    with pytest.raises(PartitionError, match=r"or without one of parts \[0, 1\]"):
        LocalPartition.open(one.directory, memory=HostTier.open(tier.path))
    tier.close()


def test_other_arrays(tmp_path: Path) -> None:
    arrays = SharedArrays.create({}, {})
    arrays.finish()
    with pytest.raises(DataError, match="is no host tier"):
        HostTier.open(arrays.path)
    arrays.close()


def test_more_than_the_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = partitioned(wide_graph(), tmp_path)
    monkeypatch.setattr(free_memory, "available_memory", lambda: 64 << 20)
    with pytest.raises(
        OptionError, match=r"^cache\.memory: [\d,]+ bytes are needed, 67,108,864 are available on this host"
    ):
        HostTier.create(partition, 1 << 30)


def test_damaged_file(tmp_path: Path) -> None:
    partition = partitioned(wide_graph(), tmp_path)
    os.truncate(partition.directory / node_path(0, 0, "x"), 9000)
    with pytest.raises(PartitionError, match=r"nodes/0/x\.npy: damaged: it has 9000 bytes"):
        HostTier.create(partition, 1 << 30)
    with pytest.raises(PartitionError, match=r"nodes/0/x\.npy: damaged: it has 9000 bytes"):
        HostTier.create(partition, 1)


def test_what_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = partitioned(wide_graph(), tmp_path)
    caplog.set_level(logging.INFO)
    for budget, said in ((1 << 30, "are in memory."), (1 << 19, "the rest is read from disk.")):
        caplog.clear()
        HostTier.create(partition, budget).close()
        assert len(caplog.records) == 1
        assert caplog.messages[0].endswith(said)
    open_ = os.open

    def refuses(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "")
        return open_(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuses)
    caplog.clear()
    HostTier.create(partition, 1 << 19).close()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "has no direct reads (O_DIRECT)" in caplog.messages[1]
