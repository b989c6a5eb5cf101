"""Parts of the user's own, as an array or a class: what is used, and what is refused with one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glt_lightning.base import NODE, DataError, GLTError, OptionError, PartitionError, PartitionOptions
from glt_lightning.graph import Manifest
from glt_lightning.partition import ArraySource, partition_dir, partition_graph
from tests.helpers.partition_truth import HETERO, random_source, read_folder, single

OWN = "tests.helpers.own_partitioners."
NODES = 6


@pytest.fixture
def source() -> ArraySource:
    return single([(i, (i + 1) % NODES) for i in range(NODES)], NODES)


def is_refused(source: ArraySource, folder: Path, algorithm: Any, kind: type[GLTError], what: str) -> None:
    """With one line, before anything is written."""
    with pytest.raises(kind) as told:
        partition_graph(source, folder / "out" / "p", PartitionOptions(num_parts=3, algorithm=algorithm))
    assert re.search(what, str(told.value)), str(told.value)
    assert "\n" not in str(told.value)
    assert not (folder / "out").exists() or list((folder / "out").iterdir()) == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_array(tmp_path: Path, source: ArraySource, dtype: type, suffix: str) -> None:
    parts, file = np.array([2, 0, 0, 2, 1, 0], dtype), tmp_path / f"mine{suffix}"
    if suffix == ".npy":
        np.save(file, parts)
    else:
        np.savez(file, **{NODE: parts})
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=3, algorithm=str(file)))
    arrays = read_folder(tmp_path / "p")
    owned = [sorted(arrays[f"part{p}/nodes/0/n_id.npy"].tolist()) for p in range(3)]
    assert owned == [[1, 2, 5], [4], [0, 3]]


@pytest.mark.parametrize(
    ("given", "owned"),
    [
        (OWN + "Stripes", [0, 2, 4]),
        ({"class_path": OWN + "Stripes"}, [0, 2, 4]),
        ({"class_path": OWN + "Stripes", "init_args": {"width": 2}}, [0, 1, 4, 5]),
    ],
)
def test_class(tmp_path: Path, source: ArraySource, given: Any, owned: list[int]) -> None:
    partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=2, algorithm=given))
    assert sorted(read_folder(tmp_path / "p")["part0/nodes/0/n_id.npy"].tolist()) == owned


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (np.zeros(NODES - 1, np.int64), r"expected integers of shape \[6\], got int64 \[5\]"),
        (np.zeros((NODES, 1), np.int64), r"expected integers of shape \[6\], got int64 \[6, 1\]"),
        (np.zeros(NODES), r"expected integers of shape \[6\], got float64 \[6\]"),
        (np.zeros(NODES, bool), r"expected integers of shape \[6\], got bool \[6\]"),
        (
            np.array([0, 1, 3, 0, 0, 9]),
            r"node 2 is assigned to part 3, but .* parts are numbered 0\.\.2",
        ),
        (np.array([0, 0, 0, -1, 0, 0]), "node 3 is assigned to part -1"),
        (np.array([0, 2**63, 0, 0, 0, 0], np.uint64), "node 1 is assigned to part 9223372036854775808"),
        (
            np.array([None] * NODES),
            r"mine\.npy: not readable as an \.npy or \.npz file of part numbers \(.*allow_pickle",
        ),
    ],
)
def test_bad_array(tmp_path: Path, source: ArraySource, parts: np.ndarray, what: str) -> None:
    np.save(tmp_path / "mine.npy", parts)
    is_refused(source, tmp_path, str(tmp_path / "mine.npy"), DataError, what)


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"a": 0, "b": 0}, "no array for node type 'c'"),
        ({"a": 0, "b": 0, "c": 0, "d": 0}, "array 'd' names no node type; the graph has a, b, c"),
        ({"a": 0, "b": 1, "c": 0}, "parts of node type 'b': expected integers"),
    ],
)
def test_bad_arrays_by_type(tmp_path: Path, parts: dict[str, int], what: str) -> None:
    source = random_source(np.random.default_rng(0), HETERO)
    count = source.num_nodes | {"d": 1}
    np.savez(tmp_path / "mine.npz", **{t: np.zeros(count[t] + more, np.int64) for t, more in parts.items()})
    is_refused(source, tmp_path, str(tmp_path / "mine.npz"), DataError, what)


def test_one_array_for_several_types(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(0), HETERO)
    np.save(tmp_path / "mine.npy", np.zeros(9, np.int64))
    is_refused(source, tmp_path, str(tmp_path / "mine.npy"), DataError, r"node types a, b, c\. Give an \.npz file")


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\x03\x04 half of a zip", b"\x93NUMPY\x01\x00"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_file_that_is_none(tmp_path: Path, source: ArraySource, content: bytes, suffix: str) -> None:
    file = tmp_path / f"mine.{suffix}"
    file.write_bytes(content)
    is_refused(source, tmp_path, str(file), DataError, rf"mine\.{suffix}: not readable as an \.npy or \.npz file")


def test_damaged_member(tmp_path: Path, source: ArraySource) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, **{NODE: np.zeros(NODES, np.int64)})
    data = bytearray(file.read_bytes())
    data[data.index(b"NUMPY") + 130] ^= 1
    file.write_bytes(data)
    is_refused(source, tmp_path, str(file), DataError, r"mine\.npz: not readable as an \.npy or \.npz file")


def test_no_such_file(tmp_path: Path, source: ArraySource) -> None:
    is_refused(source, tmp_path, str(tmp_path / "gone.npy"), OptionError, r"file '.*gone\.npy' not found")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("no_such_module.Mine", "'no_such_module.Mine' cannot be imported"),
        (OWN + "Gone", ".*Gone' cannot be imported"),
        (".Mine", "'.Mine' cannot be imported"),
        ("a..Mine", "'a..Mine' cannot be imported"),
        ("tests.", "'tests.' cannot be imported"),
        (OWN + "NoPartitioner", "NoPartitioner is not a subclass of glt_lightning.partition.Assigner"),
        (OWN + "np", "np is not a subclass"),
        (OWN + "Forgetful", "Forgetful does not define assign"),
        (OWN + "Returns", "Returns: init_args: missing a required argument: 'value'"),
        (
            {"class_path": OWN + "Stripes", "init_args": {"wide": 2}},
            "init_args: got an unexpected keyword argument 'wide'",
        ),
        ({"class_path": OWN + "Stripes", "init_args": [2]}, "init_args"),
        ({"class_path": OWN + "Stripes", "args": {}}, "expected class_path and init_args"),
        ({"init_args": {}}, "expected class_path and init_args"),
    ],
)
def test_bad_class(tmp_path: Path, source: ArraySource, given: Any, what: str) -> None:
    is_refused(source, tmp_path, given, OptionError, what)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, r"Returns: assign\(\) must return a dict of node type -> part of each node, but it returned NoneType"),
        ([0] * NODES, "a dict of node type -> part of each node, but it returned list"),
        ({}, f"Returns: no array for node type '{NODE}'"),
        ({NODE: [0] * 5}, r"expected integers of shape \[6\], got int64 \[5\]"),
        ({NODE: [0.0] * 6}, r"expected integers of shape \[6\], got float64 \[6\]"),
        ({NODE: [0, 0, 0, 0, 0, 3]}, "node 5 is assigned to part 3"),
    ],
)
def test_class_that_assigns_badly(tmp_path: Path, source: ArraySource, value: Any, what: str) -> None:
    given = {"class_path": OWN + "Returns", "init_args": {"value": value}}
    is_refused(source, tmp_path, given, DataError, what)


def test_error_of_the_class_keeps_its_place(tmp_path: Path, source: ArraySource) -> None:
    """What is wrong inside the user's code is not said to be an argument."""
    given = {"class_path": OWN + "Stripes", "init_args": {"width": "two"}}
    with pytest.raises(TypeError, match=r"ufunc"):
        partition_graph(source, tmp_path / "out" / "p", PartitionOptions(num_parts=3, algorithm=given))  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []


def test_another_array_is_another_folder(tmp_path: Path, source: ArraySource) -> None:
    file, copy = tmp_path / "mine.npy", tmp_path / "copy" / "mine.npy"
    copy.parent.mkdir()
    options = [PartitionOptions(num_parts=2, algorithm=str(path)) for path in (file, copy)]
    for path in (file, copy):
        np.save(path, [0, 0, 0, 1, 1, 1])
    first, moved = (partition_dir(tmp_path, source, o, undirected=None, normalize="none") for o in options)
    assert first == moved  # the same array at another place
    assert first.name.startswith("single-mine-2-")
    made = partition_graph(source, first, options[0])
    assert partition_graph(source, first, options[1]) == made  # reused
    np.save(file, [0, 1, 0, 1, 0, 1])
    assert partition_dir(tmp_path, source, options[0], undirected=None, normalize="none") != first
    with pytest.raises(PartitionError, match="this partition was written with different options"):
        partition_graph(source, first, options[0])
    assert Manifest.load(first) == made


def test_arguments_are_another_folder(tmp_path: Path, source: ArraySource) -> None:
    def folder(**arguments: Any) -> Path:
        given: Any = {"class_path": OWN + "Stripes", "init_args": arguments}
        options = PartitionOptions(num_parts=2, algorithm=given)
        return partition_dir(tmp_path, source, options, undirected=None, normalize="none")

    assert folder(width=1) == folder(width=1) != folder(width=2)
    assert folder(width=1).name.startswith("single-Stripes-2-")


@pytest.mark.parametrize(
    ("given", "kind", "what"),
    [
        (np.zeros(NODES - 1, np.int64), DataError, r"expected integers of shape \[6\], got int64 \[5\]"),
        (
            np.array([0, 0, 1, 0, 0, 0]),
            DataError,
            r"node 2 is assigned to part 1, .* parts are numbered 0\.\.0",
        ),
        ({"class_path": OWN + "Returns", "init_args": {"value": None}}, DataError, "must return a dict of node type"),
        ("gone.npy", OptionError, "file .* not found"),
    ],
)
def test_one_part_is_checked_as_many_are(
    tmp_path: Path, source: ArraySource, given: Any, kind: type[GLTError], what: str
) -> None:
    if isinstance(given, np.ndarray):
        np.save(tmp_path / "mine.npy", given)
        given = str(tmp_path / "mine.npy")
    with pytest.raises(kind, match=what):
        partition_graph(source, tmp_path / "out" / "p", PartitionOptions(num_parts=1, algorithm=given))
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("algorithm", ["random", "frequency", "metis", "streaming"])
def test_one_part_of_ours_is_not_asked(tmp_path: Path, source: ArraySource, algorithm: str) -> None:
    """METIS would take its memory for nothing, and `frequency` the training seeds that this graph has not."""
    manifest = partition_graph(source, tmp_path / "p", PartitionOptions(num_parts=1, algorithm=algorithm))
    assert manifest.bounds == ((0, NODES),)
