"""Assigning nodes once, then writing parts one by one on any host, gives the folder that one run gives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, OptionError, PartitionError, PartitionOptions
from glt_lightning.graph import LocalPartition, Manifest
from glt_lightning.partition import (
    ArraySource,
    Hotness,
    assign_graph,
    complete_partition,
    partition_graph,
    partition_parts,
)
from glt_lightning.partition.build.part_files import PartFile
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.sources.folder import FolderSource
from tests.helpers.partition_truth import HETERO, random_source, read_folder

TIMEOUT_S = 60

# Writes parts of the graph; told to, it stops before it writes edges, when all is written, or with one part moved.
WRITER = """
    import os, sys, time
    from pathlib import Path
    import numpy as np
    from glt_lightning.base import PartitionOptions
    from glt_lightning.partition import partition_parts, run
    from glt_lightning.partition.build import builder
    from tests.helpers.partition_truth import random_source

    target, algorithm, parts, flag, when = sys.argv[1:]
    def stop(*args, **kwargs):
        Path(flag).touch()
        time.sleep(600)
    if when == "writing":
        builder.write_edges = stop
    elif when == "written":
        run.place = stop
    elif when == "moving":
        rename = os.rename
        os.rename = lambda old, new: stop() if str(old).endswith("part1") else rename(old, new)
    options = PartitionOptions(num_parts=3, algorithm=algorithm)
    partition_parts(random_source(np.random.default_rng(0)), target, options, list(map(int, parts.split(","))))
"""


def writer(target: Path, algorithm: str, parts: str, flag: Path | str = "", when: str = "") -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(target), algorithm, parts, str(flag), when]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)


def ended(process: subprocess.Popen[str]) -> str:
    with process:
        _, error = process.communicate(timeout=TIMEOUT_S)
    return error


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def source() -> ArraySource:
    return random_source(np.random.default_rng(0))


@pytest.fixture
def three(tmp_path: Path, source: ArraySource) -> PartitionOptions:
    """Options that name an assignment to three parts."""
    file = tmp_path / "stage1" / "parts.npz"
    assign_graph(source, file, PartitionOptions(num_parts=3, algorithm="metis"))
    return PartitionOptions(num_parts=3, algorithm=str(file))


@pytest.mark.parametrize("hotness", ["auto", "presample", "degree"])
@pytest.mark.parametrize("edge_types", [(EDGE,), HETERO])
@pytest.mark.parametrize("undirected", [False, True])
def test_parts_make_the_folder_of_one_run(tmp_path: Path, hotness: str, edge_types: tuple, undirected: bool) -> None:
    for seed in range(3):
        here = tmp_path / str(seed)
        source = random_source(np.random.default_rng(seed), edge_types, nodes=60)
        assign_graph(source, here / "parts.npz", PartitionOptions(num_parts=4, algorithm="streaming"))
        options = PartitionOptions(num_parts=4, algorithm=str(here / "parts.npz"), hotness=hotness)  # type: ignore[arg-type]
        expected = partition_graph(source, here / "one", options, undirected=undirected, normalize="standardize")
        found = [
            partition_parts(source, here / "some", options, parts, undirected=undirected, normalize="standardize")
            for parts in ([2], [3, 0], [0, 1])
        ]
        assert found == [None, None, expected]
        assert content(here / "some") == content(here / "one")


def test_memory_of_a_host_changes_nothing(tmp_path: Path) -> None:
    """With little memory, edges and features go through working files, of which the other parts' ranges stay empty."""
    rng, nodes = np.random.default_rng(3), 5000
    (tmp_path / "graph").mkdir()
    np.save(tmp_path / "graph" / "x.npy", rng.random((nodes, 100), np.float32))
    np.save(tmp_path / "graph" / "edge_index.npy", (rng.random((2, 250_000)) ** 3 * nodes).astype(np.int64))
    np.save(tmp_path / "graph" / "train.npy", np.arange(0, nodes, 3))
    source, large = FolderSource(tmp_path / "graph"), PartitionOptions(num_parts=3, hotness="vip")
    small = replace(large, memory_bytes=1 << 20)
    partition_graph(source, tmp_path / "one", large, undirected=True)
    for part, options in enumerate((small, large, small)):
        partition_parts(source, tmp_path / "some", options, [part], undirected=True)
    assert content(tmp_path / "some") == content(tmp_path / "one")


def test_hotness_beyond_the_memory_lies_in_a_file(tmp_path: Path) -> None:
    rng, nodes = np.random.default_rng(0), 30_000
    source = random_source(rng, nodes=nodes)
    source = replace(source, node={"node": {}}, edge={EDGE: {}})
    options = PartitionOptions(num_parts=16, hotness="vip")
    manifests = [
        partition_graph(source, tmp_path / str(memory), replace(options, memory_bytes=memory))
        for memory in (1 << 20, 1 << 30)
    ]
    assert manifests[0] == manifests[1]


def test_assignment_is_that_of_one_run(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(1), HETERO)
    options = PartitionOptions(num_parts=3, algorithm="random", hotness="degree")
    counts = assign_graph(source, tmp_path / "parts.npz", options)
    manifest = partition_graph(source, tmp_path / "a", options)
    assert [[manifest.rows(p, t) for p in range(3)] for t in range(len(counts))] == [*counts.values()]
    partition_graph(source, tmp_path / "b", replace(options, algorithm=str(tmp_path / "parts.npz")))
    expected, got = content(tmp_path / "a"), content(tmp_path / "b")
    del expected["manifest.json"], got["manifest.json"]
    assert got == expected


def test_assignment_appears_whole_and_is_kept(tmp_path: Path, source: ArraySource, three: PartitionOptions) -> None:
    file = Path(str(three.algorithm))
    before = file.read_bytes()
    with pytest.raises(PartitionError, match=r"parts\.npz: this assignment exists"):
        assign_graph(source, file, PartitionOptions(num_parts=3))
    with pytest.raises(PartitionError, match=r"ends in \.npz"):
        assign_graph(source, tmp_path / "parts.npy", PartitionOptions(num_parts=3))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["parts.npz"]


def test_node_type_with_an_awkward_name(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0), (("file", "to", "a/b"), ("a/b", "rev", "x.npy")))
    assign_graph(source, tmp_path / "parts.npz", PartitionOptions(num_parts=2))
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2, algorithm=str(tmp_path / "parts.npz")))


def test_two_processes_write_different_parts_at_once(
    tmp_path: Path, source: ArraySource, three: PartitionOptions
) -> None:
    target, file = tmp_path / "out" / "p", str(three.algorithm)
    for process in [writer(target, file, "0,2"), writer(target, file, "1")]:
        assert ended(process) == ""
    partition_graph(source, tmp_path / "one", three)
    assert content(target) == content(tmp_path / "one")
    assert [p.name for p in target.parent.iterdir()] == ["p"]


def test_one_part_asked_of_two_processes_is_written_once(tmp_path: Path, three: PartitionOptions) -> None:
    target, file = tmp_path / "out" / "p", str(three.algorithm)
    for process in [writer(target, file, "0,1"), writer(target, file, "1,2"), writer(target, file, "2,0")]:
        assert ended(process) == ""
    read_folder(target)
    assert [p.name for p in target.parent.iterdir()] == ["p"]


@pytest.mark.parametrize(
    ("when", "left"),
    [("writing", []), ("written", []), ("moving", ["part0"])],
)
def test_killed_writer_leaves_no_half_part_and_others_continue(
    tmp_path: Path, source: ArraySource, three: PartitionOptions, when: str, left: list[str]
) -> None:
    target, flag = tmp_path / "out" / "p", tmp_path / "reached"
    partition_parts(source, target, three, [2])
    process = writer(target, str(three.algorithm), "0,1", flag, when)
    deadline = time.monotonic() + TIMEOUT_S
    while not flag.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    ended(process)
    assert sorted(p.name for p in target.iterdir()) == sorted([*left, "nodes", "part2", "splits"])
    kept = target / "part2" / "nodes" / "0" / "x.npy"
    before = kept.stat().st_mtime_ns
    partition_graph(source, target, three)  # writes what is missing
    assert kept.stat().st_mtime_ns == before
    assert [p.name for p in target.parent.iterdir()] == ["p"]
    partition_graph(source, tmp_path / "one", three)
    assert content(target) == content(tmp_path / "one")


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"node": np.zeros(3, np.int16)},
            r"parts of node type 'node': expected integers of shape \[\d+\], got int16 \[3\]",
        ),
        ({"node": None}, r"node \d+ is assigned to part 3, but with partition\.num_parts: 3 parts are numbered 0\.\.2"),
        ({"paper": np.zeros(3, np.int16)}, "array 'paper' names no node type; the graph has node"),
        ({}, "no array for node type 'node'"),
    ],
)
def test_wrong_assignment_is_refused_and_leaves_nothing(
    tmp_path: Path, source: ArraySource, arrays: dict, said: str
) -> None:
    given = {t: np.arange(source.num_nodes["node"]) % 4 if a is None else a for t, a in arrays.items()}
    np.savez(tmp_path / "parts.npz", **given)
    options = PartitionOptions(num_parts=3, algorithm=str(tmp_path / "parts.npz"))
    with pytest.raises(DataError, match=said):
        partition_parts(source, tmp_path / "p", options, [1])
    assert [p.name for p in tmp_path.iterdir()] == ["parts.npz"]


def test_parts_of_another_assignment_are_refused(tmp_path: Path, source: ArraySource, three: PartitionOptions) -> None:
    partition_parts(source, tmp_path / "p", three, [0])
    assign_graph(source, tmp_path / "other.npz", PartitionOptions(num_parts=3, algorithm="random"))
    other = replace(three, algorithm=str(tmp_path / "other.npz"))
    with pytest.raises(PartitionError, match=r"algorithm: '[0-9a-f]+', but this run has '[0-9a-f]+'"):
        partition_parts(source, tmp_path / "p", other, [1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"options": {"seed": 5}},
            "part0: this part was written with different options or data .seed: 0, but this run has 5",
        ),
        ({"options": {"hotness": "degree"}}, "hotness: 'auto', but this run has 'degree'"),
        ({"undirected": True}, "undirected: False, but this run has True"),
        ({"normalize": "rows"}, "normalize: 'none', but this run has 'rows'"),
        ({"splits": {"train": np.array([0])}}, "splits: None, but this run has '[0-9a-f]+'"),
        ({"options": {"algorithm": "random"}}, "algorithm: '[0-9a-f]+', but this run has 'random'"),
    ],
)
def test_parts_made_otherwise_are_refused(
    tmp_path: Path, source: ArraySource, three: PartitionOptions, change: dict, said: str
) -> None:
    partition_parts(source, tmp_path / "p", three, [0])
    before = content(tmp_path / "p")
    options = replace(three, **change.pop("options", {}))
    for parts in ([1], [0]):
        with pytest.raises(PartitionError, match=said):
            partition_parts(source, tmp_path / "p", options, parts, **change)
    assert content(tmp_path / "p") == before


def test_other_data_and_another_release_are_refused(
    tmp_path: Path, source: ArraySource, three: PartitionOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition_parts(source, tmp_path / "p", three, [0])
    with pytest.raises(PartitionError, match=r"fingerprint: '\d+', but this run has 'other'"):
        partition_parts(replace(source, fingerprint="other"), tmp_path / "p", three, [1])
    monkeypatch.setattr("glt_lightning.partition.writer.__version__", "99.9")
    with pytest.raises(PartitionError, match=r"package_version: '.*', but this run has '99\.9'"):
        partition_parts(source, tmp_path / "p", three, [1])


def test_another_numbering_is_refused(
    tmp_path: Path, source: ArraySource, three: PartitionOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logarithms differ in the last bit between processors: equal options are no proof."""
    partition_parts(source, tmp_path / "p", three, [0])
    before = content(tmp_path / "p")
    worked_out = PartFile.load(tmp_path / "p", 0).head.hotness["vip"]
    rounded = Hotness(
        "vip", worked_out, np.random.default_rng(1).random((1, sum(source.num_nodes.values())), np.float32)
    )
    monkeypatch.setattr("glt_lightning.partition.build.builder.rank_nodes", lambda *_: rounded)
    with pytest.raises(PartitionError, match=r"numbering: .* in part 1; .*another processor"):
        partition_parts(source, tmp_path / "p", three, [1])
    assert content(tmp_path / "p") == before


@pytest.mark.parametrize("algorithm", ["metis", "streaming"])
def test_algorithms_that_may_cut_otherwise_need_a_file(tmp_path: Path, source: ArraySource, algorithm: str) -> None:
    options = PartitionOptions(num_parts=2, algorithm=algorithm)
    with pytest.raises(OptionError, match=rf"{algorithm} is not deterministic.*Assign nodes once"):
        partition_parts(source, tmp_path / "p", options, [0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parts", [[], [3], [-1], [0.0]])
def test_wrong_numbers_of_parts(tmp_path: Path, source: ArraySource, parts: list[int]) -> None:
    with pytest.raises(OptionError, match=r"parts: expected part numbers from 0 to 2 \(partition.num_parts: 3\), got"):
        partition_parts(source, tmp_path / "p", PartitionOptions(num_parts=3), parts)


def test_hosts_without_a_shared_folder(tmp_path: Path, source: ArraySource, three: PartitionOptions) -> None:
    """Each keeps its own parts, and takes part.json of the others."""
    folders = [tmp_path / f"host{part}" / "p" for part in range(3)]
    for part, folder in enumerate(folders):
        partition_parts(source, folder, three, [part])
    told = {part: PartFile.path(folder, part).read_bytes() for part, folder in enumerate(folders)}
    with pytest.raises(PartitionError, match=r"part 1, 2 missing. Write or copy them"):
        complete_partition(folders[0])
    for host, folder in enumerate(folders):
        for part in {0, 1, 2} - {host}:
            (folder / f"part{part}").mkdir()
            PartFile.path(folder, part).write_bytes(told[part])
        complete_partition(folder)
    expected = partition_graph(source, tmp_path / "one", three)
    for part, folder in enumerate(folders):
        assert Manifest.load(folder) == expected
        opened = LocalPartition.open(folder, parts=[part], verify=True)
        assert len(opened.split("train").gids) == expected.splits["train"].count
        with pytest.raises(PartitionError, match="Copy this part here"):
            LocalPartition.open(folder, parts=[(part + 1) % 3])


def test_folders_copied_together_are_completed(tmp_path: Path, source: ArraySource, three: PartitionOptions) -> None:
    partition_parts(source, tmp_path / "a", three, [0, 1])
    partition_parts(source, tmp_path / "b", three, [2])
    shutil.copytree(tmp_path / "b" / "part2", tmp_path / "a" / "part2")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    expected = partition_graph(source, tmp_path / "one", three)
    assert complete_partition(tmp_path / "a") == expected
    assert complete_partition(tmp_path / "a") == expected  # again
    assert partition_graph(source, tmp_path / "c", three) == expected
    assert content(tmp_path / "a") == content(tmp_path / "c") == content(tmp_path / "one")


def test_parts_that_differ_are_not_completed(tmp_path: Path, source: ArraySource) -> None:
    options = PartitionOptions(num_parts=2)
    partition_parts(source, tmp_path / "a", options, [0])
    partition_parts(source, tmp_path / "b", replace(options, seed=1), [1])
    shutil.copytree(tmp_path / "b" / "part1", tmp_path / "a" / "part1")
    with pytest.raises(
        PartitionError,
        match=r"a/part1: this part was .* different options or data \(seed: 1, but this run has 0\)",
    ):
        complete_partition(tmp_path / "a")
    assert not (tmp_path / "a" / "manifest.json").exists()


def test_damaged_parts_speak(tmp_path: Path, source: ArraySource) -> None:
    options = PartitionOptions(num_parts=2)
    partition_parts(source, tmp_path / "p", options, [0])
    file = PartFile.path(tmp_path / "p", 0)
    text = file.read_text()
    for bad, said in [
        (text.replace('"crc32": ', '"crc32": 1'), "edited or damaged"),
        (text[:50], "not readable as JSON"),
        ("[]", "expected format .* of version"),
    ]:
        file.write_text(bad)
        with pytest.raises(PartitionError, match=rf"part0/part\.json: .*{said}"):
            partition_parts(source, tmp_path / "p", options, [1])
    file.unlink()
    with pytest.raises(PartitionError, match=r"p/part0: no part\.json"):
        partition_parts(source, tmp_path / "p", options, [0])


def test_missing_splits_speak(tmp_path: Path, source: ArraySource) -> None:
    options = PartitionOptions(num_parts=2)
    partition_parts(source, tmp_path / "p", options, [0])
    shutil.rmtree(tmp_path / "p" / "splits")
    partition_parts(source, tmp_path / "q", options, [1])
    shutil.copytree(tmp_path / "q" / "part1", tmp_path / "p" / "part1")
    with pytest.raises(PartitionError, match=r"splits/test\.npy: not found. Copy the folder splits/"):
        complete_partition(tmp_path / "p")


def test_foreign_and_finished_folders(tmp_path: Path, source: ArraySource) -> None:
    options = PartitionOptions(num_parts=2)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("precious")
    with pytest.raises(PartitionError, match="its files are no parts of a partition"):
        partition_parts(source, tmp_path / "thesis", options, [0])
    with pytest.raises(PartitionError, match="no finished part found"):
        complete_partition(tmp_path / "thesis")
    expected = partition_graph(source, tmp_path / "p", options)
    assert partition_parts(source, tmp_path / "p", options, [1]) == expected
    with pytest.raises(PartitionError, match="seed: 0 on disk, 3 given"):
        partition_parts(source, tmp_path / "p", replace(options, seed=3), [1])


def test_writer_of_a_part_is_waited_for(tmp_path: Path, source: ArraySource) -> None:
    with exclusive(tmp_path / "p", 1, part=1), pytest.raises(PartitionError, match=r"p/part1: another process"):
        partition_parts(source, tmp_path / "p", PartitionOptions(num_parts=2), [1], timeout_s=0)


def test_moved_folder_opens(tmp_path: Path, source: ArraySource) -> None:
    expected = partition_graph(source, tmp_path / "a" / "p", PartitionOptions(num_parts=2))
    (tmp_path / "b").mkdir()
    os.rename(tmp_path / "a" / "p", tmp_path / "b" / "q")
    assert LocalPartition.open(tmp_path / "b" / "q", verify=True).manifest == expected
    assert partition_graph(source, tmp_path / "b" / "q", PartitionOptions(num_parts=2)) == expected  # used again


def test_host_needs_only_its_parts(tmp_path: Path, source: ArraySource) -> None:
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=3))
    for name in ("manifest.json", "splits", "nodes", "part1"):
        whole, copy = tmp_path / "p" / name, tmp_path / "q" / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(whole, copy) if whole.is_dir() else shutil.copy(whole, copy)
    opened = LocalPartition.open(tmp_path / "q", parts=[1])
    for path, entry in opened.manifest.arrays.items():
        assert (tmp_path / "q" / path).exists() == path.startswith(("part1/", "splits/", "nodes/")), entry
    for t in range(len(opened.schema.node_types)):
        assert opened.mapped_user_ids(t)[1] is not None
