"""Copies of forgotten rows are removed: all of them, only these, and at whatever moment the process is killed."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, OptionError, PartitionError, PartitionOptions, Progress, SamplingOptions
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.partition import (
    Additions,
    ArraySource,
    Forgetting,
    NewNodes,
    append_rows,
    compact_partition,
    delete_rows,
    list_versions,
    open_version,
    partition_graph,
    verify_partition,
)
from glt_lightning.partition.sources.tables.columns import NodeFacts, save_facts, user_ids
from glt_lightning.partition.sources.tables.forget import forget_tables, require_rows
from glt_lightning.partition.sources.tables.source import tables_folder
from tests.helpers.grown import two_versions

SECRET = np.array([123.4567, 76.54321], np.float32)  # attributes of the nodes to delete, and of their edges


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    """0 -> 1 -> ... -> 9 -> 0 in two parts; node 3 of the partition and node 10 of its version 1 are deleted."""
    ids = np.arange(10)
    x, attr = np.ones((10, 2), np.float32), np.ones((10, 2), np.float32)
    x[3] = attr[3] = SECRET
    source = ArraySource(
        name="ring",
        fingerprint="of-ring",
        schema=two_versions(np.random.default_rng(0)).base.schema,
        num_nodes={"node": 10},
        edge_index={EDGE: np.stack([ids, (ids + 1) % 10])},
        node={"node": {"x": x}},
        edge={EDGE: {"edge_attr": attr}},
        splits={"train": ("node", ids[:6])},
        target_type="node",
    )
    folder = tmp_path / "root" / "partitions" / "ring"
    partition_graph(source, folder, PartitionOptions(num_parts=2), progress=False)
    append_rows(folder, Additions(nodes={"node": NewNodes(1, {"x": SECRET[None]})}))
    assert delete_rows(folder, nodes={"node": np.array([3, 10])}) == 2
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def with_secret(folder: Path) -> list[Path]:
    return [path for path in files(folder) if SECRET.tobytes() in path.read_bytes()]


def forget(folder: Path, out: Path) -> list[str]:
    """As the command does."""
    found = Forgetting.unfinished(out)
    if found is None:
        found = Forgetting.plan(folder, out, folder.parents[1])
        compact_partition(folder, out, found.partitions[0][2], forget=True, progress=False)
    return found.run(Progress(False))


def test_no_byte_of_deleted_rows_is_left(ring: Path, tmp_path: Path) -> None:
    root, out = ring.parents[1], ring.with_name("less")
    assert len(with_secret(root)) >= 3  # rows of nodes in both, and edges
    plan = Forgetting.plan(ring, out, root)
    assert plan.lines == [str(ring), f"{ring}.versions"]
    left = forget(ring, out)
    assert with_secret(root) == []
    assert sorted(os.listdir(ring.parent)) == ["less"]
    assert not [line for line in left if line.startswith("/")]
    # what follows: verify, rows to the new partition, and the same once more
    verify_partition(out, Progress(False))
    append_rows(out, Additions(nodes={"node": NewNodes(1, {"x": 2 * SECRET[None]})}))
    assert delete_rows(out, nodes={"node": np.array([11])}) == 2
    forget(out, ring.with_name("least"))
    assert sorted(os.listdir(ring.parent)) == ["least"]
    assert not [p for p in files(root) if (2 * SECRET).tobytes() in p.read_bytes()]
    with closing(LocalPartition.open(ring.with_name("least"))) as graph:
        assert graph.deleted(0).tolist() == [3, 10, 11]
        assert graph.manifest.num_nodes == (12,)


def run_until(plan: Forgetting, step: int) -> bool:
    """Runs it in a process that is killed before a change of the disk. Returns whether it came to its end."""
    if (child := os.fork()) == 0:
        left = step

        def counted(name: str) -> Callable[..., object]:
            before = getattr(os, name)

            def call(*args: object, **options: object) -> object:
                nonlocal left
                if left == 0:
                    os._exit(9)
                left -= 1
                return before(*args, **options)

            return call

        for name in ("rename", "replace", "unlink", "rmdir", "fsync"):
            setattr(os, name, counted(name))
        status = 1
        try:
            plan.run(Progress(False))
            status = 0
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 0


@pytest.mark.slow
def test_killed_at_each_step(ring: Path, tmp_path: Path) -> None:
    out, before = ring.with_name("less"), tmp_path / "before"
    plan = Forgetting.plan(ring, out, ring.parents[1])
    compact_partition(ring, out, forget=True, progress=False)
    shutil.copytree(ring.parent, before)
    steps, ended = 0, False
    while not ended:
        shutil.rmtree(ring.parent)
        shutil.copytree(before, ring.parent)
        ended = run_until(plan, steps)
        verify_partition(out, Progress(False))
        if (ring / "manifest.json").exists():  # whole, or not there
            verify_partition(ring, Progress(False))
            assert len(list_versions(ring)) == 2
        if Forgetting.unfinished(out) is not None:
            with pytest.raises(PartitionError, match="are not removed yet"):
                Forgetting.plan(out, ring.with_name("least"), ring.parents[1])
        if not Forgetting.is_done(ring, out) or Forgetting.unfinished(out) is not None:
            forget(ring, out)
        assert with_secret(ring.parent) == []
        left = [name for name in os.listdir(ring.parent) if not name.endswith(".lock")]
        assert left == ["less"], steps
        steps += 1
    assert steps > 20


def run_below(limit: int, plan: Forgetting) -> str:
    """Runs it in a process whose files cannot become longer. Returns its error."""
    read, write = os.pipe()
    if os.fork() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            plan.run(Progress(False))
        except PartitionError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    os.wait()
    return text


def test_a_full_disk_at_each_write(ring: Path) -> None:
    root, out = ring.parents[1], ring.with_name("less")
    tables = tables_folder(root, "ring", "of-ring")
    (tables / "nodes" / "node").mkdir(parents=True)
    np.save(tables / "nodes" / "node" / "ids.npy", 3 * np.arange(2000))
    types = ["node", *(f"other{k}" for k in range(99))]
    save_facts(tables, {t: NodeFacts(num_nodes=2000, classes=None) for t in types})
    plan = Forgetting.plan(ring, out, root)
    compact_partition(ring, out, forget=True, progress=False)
    again = r"cannot write \(File too large\), so that not all is forgotten. Free some space, and run the same command again"
    assert re.search(again, run_below(10, plan))
    verify_partition(ring, Progress(False))
    assert Forgetting.unfinished(out) is None
    for limit in (
        2000,
        (tables / "tables.json").stat().st_size + 100,
    ):  # the record; what tables have, too; not their ids
        assert re.search(again, run_below(limit, plan))
        assert not ring.exists()
        verify_partition(out, Progress(False))
        assert user_ids(tables, [3], "node").tolist() == [9]
    assert not run_below(1 << 20, Forgetting.unfinished(out))
    assert user_ids(tables, [3, 4], "node").tolist() == [-(2**63), 12]
    assert not list(root.rglob(".*"))


def test_an_older_base_goes_unless_it_has_later_versions(ring: Path, tmp_path: Path) -> None:
    root, grown, other = ring.parents[1], ring.with_name("grown"), ring.with_name("other")
    compact_partition(ring, grown, progress=False)
    compact_partition(ring, other, progress=False)
    saved = tmp_path / "saved"
    shutil.copytree(root, saved)
    assert delete_rows(grown, nodes={"node": np.array([4])}) == 1
    append_rows(ring, Additions(nodes={"node": NewNodes(1, {"x": np.ones((1, 2), np.float32)})}))
    left = forget(grown, ring.with_name("less"))
    assert f"{ring}: version 3 was appended after it was compacted" in left
    assert f"{other}: another partition of these data" in left
    assert sorted(os.listdir(ring.parent)) == ["less", "other", "ring", "ring.versions"]
    verify_partition(ring, Progress(False))
    # without a later version it goes, with nothing deleted since
    shutil.rmtree(root)
    shutil.copytree(saved, root)
    left = forget(grown, ring.with_name("less"))
    assert sorted(os.listdir(ring.parent)) == ["less", "other"]
    assert with_secret(ring.parent / "less") == []


def test_files_of_the_user_and_links_stay(ring: Path, tmp_path: Path) -> None:
    (ring / "notes.txt").write_text("mine")
    some = next(ring.glob("part0/nodes/0/x.npy"))
    shutil.move(some, tmp_path / "x.npy")
    some.symlink_to(tmp_path / "x.npy")
    shutil.copytree(ring, tmp_path / "copy", symlinks=True)
    with pytest.raises(PartitionError):
        LocalPartition.open(ring / "nothing")
    found = Forgetting.plan(ring, ring.with_name("less"), ring.parents[1])
    compact_partition(ring, found.target, forget=True, progress=False)
    left = found.run(Progress(False))
    assert (ring / "notes.txt").read_text() == "mine"
    assert (tmp_path / "x.npy").exists()
    assert f"{ring / 'notes.txt'}: no file of the partition" in left
    assert f"{ring / 'part0'}: no file of the partition" in left
    assert files(ring) == [ring / "notes.txt", some]


def test_what_killed_writers_left_goes_too(ring: Path, tmp_path: Path) -> None:
    for name in (f"ring.versions/.3.tmp-{os.getpid()}", ".ring.tmp-run_abc", ".ring.tmp-1"):
        (ring.parent / name).mkdir()
        (ring.parent / name / "x.npy").write_bytes(SECRET.tobytes())
    forget(ring, ring.with_name("less"))
    assert os.listdir(ring.parent) == ["less"]
    assert with_secret(tmp_path) == []


def test_files_with_a_second_name_are_said(ring: Path, tmp_path: Path) -> None:
    os.link(ring / "part0" / "nodes" / "0" / "x.npy", tmp_path / "x.npy")
    assert f"1 file of {ring}, under other names (hard links)" in forget(ring, ring.with_name("less"))
    assert (tmp_path / "x.npy").exists()


def test_numbers_as_ids_of_tables(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    facts = {t: NodeFacts(num_nodes=4, classes=None) for t in ("some", "row", "none")}
    for t, ids in (("some", [7, 900_001, 3, 5]), ("row", [5, 6, 7, 8])):
        (folder / "nodes" / t).mkdir(parents=True)
        np.save(folder / "nodes" / t / "ids.npy", np.array(ids))
        np.save(folder / "nodes" / t / "x.npy", np.array(ids))
        (folder / "nodes" / t / ".ids.npy.tmp-1").write_text("900001")
    save_facts(folder, facts)
    for _ in range(2):
        forget_tables(folder, {"some": np.array([1, 9]), "row": np.array([1])})
    assert user_ids(folder, [0, 1, 2, 3], "some").tolist() == [7, -(2**63), 3, 5]
    assert user_ids(folder, [0, 1, 2, 3], "row").tolist() == [5, 6, 7, 8]
    assert [path.name for path in files(folder)] == ["ids.npy", "ids.npy", "tables.json"]
    with pytest.raises(DataError, match="compact --forget removed the rows of these converted tables"):
        require_rows(folder)


def test_who_reads_it_reads_on(ring: Path) -> None:
    graph = open_version(LocalPartition.open(ring), "latest")
    spec = LoaderSpec(name="all", seeds=None, num_neighbors=[-1], batch_size=3)
    with Session(graph, SamplingOptions(num_workers=1), seed=5) as session:
        loader = session.make_loader(spec)
        before = [batch.x.sum().item() for batch in loader]
        forget(ring, ring.with_name("less"))
        assert [batch.x.sum().item() for batch in loader] == before
    with pytest.raises(PartitionError, match="manifest"):
        LocalPartition.open(ring)


def test_wrong_turns_remove_nothing(ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = ring.parents[1], ring.with_name("less")
    before = files(root)

    def plan(**given: object) -> Forgetting:
        return Forgetting.plan(**({"folder": ring, "target": out, "root": root} | given))  # type: ignore[arg-type]

    for inside in (ring, ring / "new", Path(f"{ring}.versions") / "new"):
        with pytest.raises(OptionError, match="which is removed"):
            plan(target=inside)
    with pytest.raises(OptionError, match="and the latest is 2, not 1"):
        plan(version=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(PartitionError, match="not writable, so that nothing can be removed"):
            plan()
    found = plan()
    compact_partition(ring, out, forget=True, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(PartitionError, match="No space left"):
            found.run(Progress(False))
    assert Forgetting.unfinished(out) is None
    array = next(out.glob("part0/nodes/0/x.npy"))
    good = array.read_bytes()
    array.write_bytes(good[:-1] + b"\1")
    with pytest.raises(PartitionError, match="damaged"):
        found.run(Progress(False))
    array.write_bytes(good)
    append_rows(ring, Additions(nodes={"node": NewNodes(1, {"x": np.ones((1, 2), np.float32)})}))
    with pytest.raises(PartitionError, match="version 3 was appended meanwhile, which"):
        found.run(Progress(False))
    assert set(before) <= set(files(root))
    record = out.with_name(".less.forget.json")
    record.write_text("{}")
    with pytest.raises(PartitionError, match="no record of what is to be forgotten"):
        Forgetting.unfinished(out)


def test_nothing_is_deleted(ring: Path) -> None:
    shutil.rmtree(f"{ring}.versions")
    with pytest.raises(OptionError, match="nothing is deleted in version 0"):
        Forgetting.plan(ring, ring.with_name("less"), ring.parents[1])
