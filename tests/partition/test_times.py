"""Rows in the order of time: those of the rule, for every partitioning; and times that cannot be are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from glt_lightning.base import EDGE, DataError, OptionError, PartitionError, PartitionOptions, Progress
from glt_lightning.graph import LocalPartition, Manifest, RowOrder
from glt_lightning.partition import ArraySource, open_source, partition_graph, verify_partition
from glt_lightning.partition.arrays import ArrayWriter
from glt_lightning.partition.contents import Contents
from tests.helpers.partition_truth import HETERO, random_source, read_folder, single

NO_TIME = np.iinfo(np.int64).min


def timed_source(seed: int, of: str) -> ArraySource:
    """Few distinct times, so that ties and parallel edges of equal time occur; one type has none."""
    rng = np.random.default_rng(seed)
    source = random_source(rng, HETERO)
    node = {t: dict(attrs) for t, attrs in source.node.items()}
    edge = {e: dict(attrs) for e, attrs in source.edge.items()}
    for e, attrs in edge.items() if of == "edges" else ():
        if e[1] != "owns":
            attrs["when"] = rng.integers(-3, 4, (source.edge_index[e].shape[1], 1)).astype(np.int16)
    for t, attrs in node.items() if of == "nodes" else ():
        if t != "c":
            attrs["when"] = rng.integers(0, 5, source.num_nodes[t]).astype(np.uint64)
    return replace(source, node=node, edge=edge)


def expected_rows(source: ArraySource, stored: tuple[str, str, str], undirected: bool) -> dict[int, list[list[int]]]:
    """By user id of the destination: [time, source, edge id] in order, by the definition, one edge at a time."""
    user = stored if stored in source.edge_index else (stored[2], stored[1].removeprefix("rev_"), stored[0])
    columns = source.edge_index[user].T.tolist()
    edges = [(u, v, k) if user == stored else (v, u, k) for k, (u, v) in enumerate(columns)]
    merge = undirected and stored[0] == stored[2]
    if merge:
        edges += [(v, u, k) for u, v, k in edges]
    rows: dict[int, list[list[int]]] = {}
    for u, v, k in edges:
        when = source.edge[user].get("when")
        time = source.node[stored[0]]["when"][u] if when is None else when[k, 0]
        rows.setdefault(v, []).append([int(time), u, k])
    for v, row in rows.items():
        row.sort()
        rows[v] = [e for i, e in enumerate(row) if not (merge and i and row[i - 1][:2] == e[:2])]
    return rows


@pytest.mark.parametrize("of", ["edges", "nodes"])
@pytest.mark.parametrize(("parts", "undirected", "seed"), [(1, False, 0), (3, True, 1), (4, False, 2), (2, True, 5)])
def test_rows_are_those_of_the_rule(tmp_path: Path, of: str, parts: int, undirected: bool, seed: int) -> None:
    source = timed_source(seed, of)
    options = PartitionOptions(num_parts=parts, time_attr="when", weights=["edge_time"])
    manifest = partition_graph(source, tmp_path / "p", options, undirected=undirected, progress=False)
    arrays, timed, ties = read_folder(tmp_path / "p"), set(), 0
    names = manifest.schema.node_types
    for r, stored in enumerate(manifest.schema.edge_types):
        assert "times" not in manifest.edge_attrs(r)
        assert ("times" in manifest.edge_rows(r)) == manifest.is_timed(r)
        if not manifest.is_timed(r):
            continue
        timed.add(stored[1])
        s, d = names.index(stored[0]), names.index(stored[2])
        origin = np.concatenate([arrays[f"part{p}/nodes/{s}/n_id.npy"] for p in range(parts)])
        expected = expected_rows(source, stored, undirected)
        for p in range(parts):
            at = f"part{p}/edges/{r}/"
            times = arrays[f"{at}times.npy"]
            assert times.dtype == np.int64
            found = np.stack(
                [times, origin[arrays[f"{at}indices.npy"] - manifest.offsets[s]], arrays[f"{at}edge_ids.npy"]], 1
            ).tolist()
            nodes = arrays[f"part{p}/nodes/{d}/n_id.npy"].tolist()
            for node, (begin, end) in zip(nodes, pairwise(arrays[f"{at}indptr.npy"].tolist()), strict=True):
                assert found[begin:end] == expected.pop(node, []), (stored, node)
                ties += len({time for time, _, _ in found[begin:end]}) < end - begin
                sums = arrays[f"{at}edge_time.cum.npy"][begin:end]  # in the same order
                np.testing.assert_array_equal(np.diff(sums, prepend=0), arrays[f"{at}edge_time.npy"][begin:end])
            if of == "nodes":
                own = arrays[f"part{p}/nodes/{s}/when.npy"]
                np.testing.assert_array_equal(
                    arrays[f"nodes/{s}/times.npy"][arrays[f"part{p}/nodes/{s}/n_id.npy"]], own
                )
            else:
                np.testing.assert_array_equal(arrays[f"{at}when.npy"][:, 0], times)
        assert not expected
    assert manifest.row_order == RowOrder(
        "when", of, tuple(r for r in range(len(manifest.num_edges)) if manifest.is_timed(r))
    )
    every = {"likes", "near"} | ({"rev_likes"} if undirected else set())
    assert timed == every | ({"rev_owns"} if of == "nodes" and undirected else set())
    assert ties > 3
    verify_partition(tmp_path / "p", Progress(False))


def test_every_way_to_write_gives_the_same_folder(tmp_path: Path) -> None:
    """By several processes, and with memory for a few edges at a time; the order does not depend on how nodes are assigned."""
    for of in ("nodes", "edges"):
        source, options = timed_source(3, of), PartitionOptions(num_parts=3, time_attr="when", memory_bytes=1 << 20)
        partition_graph(source, tmp_path / of, options, progress=False, undirected=True)
        several = replace(options, processes=2, memory_bytes=1 << 24)
        partition_graph(source, tmp_path / f"{of}-several", several, progress=False, undirected=True)
        one, two = read_folder(tmp_path / of), read_folder(tmp_path / f"{of}-several")
        assert sorted(one) == sorted(two)
        for path, array in one.items():
            np.testing.assert_array_equal(array, two[path], err_msg=path)


def test_the_view_has_times_where_they_are_asked_for(tmp_path: Path) -> None:
    partition_graph(timed_source(1, "edges"), tmp_path, PartitionOptions(num_parts=2, time_attr="when"), progress=False)
    partition = LocalPartition.open(tmp_path, parts=[1])
    likes, near, owns = range(3)
    view = partition.timed()
    arrays = [view.arrays(r, 1) for r in (likes, near, owns)]
    assert [each is not None and each.times is not None for each in arrays] == [True, True, False]
    assert view.arrays(likes, 0) is None
    assert view is partition.timed(())
    plain = partition.view.arrays(likes, 1)
    assert plain is not None
    assert plain.times is None
    assert partition.node_times(0) is None
    with pytest.raises(DataError, match=r"no edge type of this partition has times. Set partition.time_attr"):
        partition_graph(single([(0, 1)], 2), tmp_path / "plain", PartitionOptions(), progress=False)
        LocalPartition.open(tmp_path / "plain").timed()


def triangle(node: dict[str, np.ndarray] | None = None, **edge: np.ndarray) -> ArraySource:
    return replace(single([(0, 1), (1, 2), (2, 0)], 3, **(node or {})), edge={EDGE: edge})


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (
            triangle(time=np.arange(3.0)),
            "time",
            r"time of edge type node__to__node is float64 \[3\]; a time is one integer",
        ),
        (
            triangle({"time": np.ones(3, np.float32)}),
            "time",
            r"time of node type 'node' is float32 \[3\]; a time is one in",
        ),
        (triangle(time=np.ones(3, bool)), "time", r"is bool \[3\]; a time is one integer"),
        (triangle(time=np.ones((3, 2), int)), "time", r"is int64 \[3, 2\]; a time is one integer"),
        (
            triangle({"time": np.arange(3)}, time=np.arange(3)),
            "time",
            "node type 'node' and edge type node__to__node both have an attribute 'time'",
        ),
        (
            triangle(time=np.arange(3)),
            "tim",
            "no node type and no edge type has an attribute 'tim'.* Did you mean time",
        ),
        (
            triangle(times=np.arange(3)),
            "times",
            "the attribute 'times' of edge type node__to__node has the name of the fi",
        ),
    ],
)
def test_attributes_that_are_no_times(tmp_path: Path, source: ArraySource, name: str, said: str) -> None:
    with pytest.raises(OptionError, match="partition.time_attr: .*" + said):
        partition_graph(source, tmp_path / "p", PartitionOptions(time_attr=name), progress=False)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            triangle(time=np.array([1, NO_TIME, 2])),
            f"time of edge type node__to__node: row 1 has the time {NO_TIME}, which is what numpy makes of NaT",
        ),
        (
            triangle({"time": np.array([1, 2, 2**63], np.uint64)}),
            f"time of node type 'node': row 2 has the time {2**63}, which does not fit int64",
        ),
    ],
)
def test_a_time_that_is_missing_is_named(tmp_path: Path, source: ArraySource, said: str) -> None:
    with pytest.raises(DataError) as error:
        partition_graph(source, tmp_path / "p", PartitionOptions(time_attr="time"), progress=False)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_options_that_are_no_name() -> None:
    with pytest.raises(
        OptionError, match=r"partition.time_attr: expected the name of an attribute of nodes or edges, got "
    ):
        PartitionOptions(time_attr=["time"])  # type: ignore[arg-type]


def test_dates_in_tables_are_microseconds(tmp_path: Path) -> None:
    """From a column of dates to ``times.npy``, for edges and for nodes; a gap is refused with its file and row."""
    (tmp_path / "nodes.csv").write_text("id,born\na,2001-01-01\nb,1969-12-31T23:59:59\nc,2001-01-01T00:00:00.000001\n")
    (tmp_path / "edges.csv").write_text("u,v,on\nc,a,2020-05-01\nb,a,2020-05-01\na,a,1970-01-01\n")
    edges = {"path": str(tmp_path / "edges.csv"), "source": "u", "destination": "v"}
    nodes = {"path": str(tmp_path / "nodes.csv"), "id": "id"}
    for name, tables, expected in (
        ("edge_time", {"nodes": nodes, "edges": edges | {"time": "on"}}, ["1970-01-01", "2020-05-01", "2020-05-01"]),
        (
            "born",
            {"nodes": nodes | {"attrs": {"born": "born"}}, "edges": edges},
            ["1969-12-31T23:59:59", "2001-01-01", "2001-01-01T00:00:00.000001"],
        ),
    ):
        source = open_source(tables, tmp_path / "root")
        partition_graph(source, tmp_path / name, PartitionOptions(time_attr=name), progress=False)
        times = read_folder(tmp_path / name)["part0/edges/0/times.npy"]
        np.testing.assert_array_equal(times, np.array(expected, "datetime64[us]").astype(np.int64))
    (tmp_path / "edges.csv").write_text("u,v,on\nc,a,2020-05-01\nb,a,\n")
    with pytest.raises(DataError, match=r"edges\.csv.*'on'.*[Gg]ive it a time or leave the row out"):
        partition_graph(
            open_source({"nodes": nodes, "edges": edges | {"time": "on"}}, tmp_path / "root"),
            tmp_path / "gap",
            PartitionOptions(time_attr="edge_time"),
            progress=False,
        )


def test_times_are_part_of_what_the_folder_is(tmp_path: Path) -> None:
    source = triangle(time=np.arange(3), times=np.zeros(3))
    old = partition_graph(source, tmp_path / "old", PartitionOptions(), progress=False)
    assert "time_attr" not in old.made_by  # folders of an earlier release keep their hash
    assert old.edge_attrs(0) == ("time", "times")
    source = triangle(time=np.arange(3))
    with pytest.raises(PartitionError, match=r"time_attr: None on disk, 'time' given.* Delete the folder"):
        partition_graph(source, tmp_path / "old", PartitionOptions(time_attr="time"), progress=False)
    partition_graph(source, tmp_path / "plain", PartitionOptions(), progress=False)
    new = partition_graph(source, tmp_path / "new", PartitionOptions(time_attr="time"), progress=False)
    assert Manifest.load(tmp_path / "new") == new
    more = [Contents.of(LocalPartition.open(tmp_path / name)).memory[0].topology for name in ("plain", "new")]
    assert more[1] - more[0] == new.arrays["part0/edges/0/times.npy"].bytes


def rewritten(folder: Path, path: str, array: np.ndarray) -> None:
    """Other values, with the checksum that a faulty writer would give them."""
    with ArrayWriter(folder, path, array.dtype) as writer:
        writer.write(array)
    raw, entry = json.loads((folder / "manifest.json").read_text()), writer.close()
    raw["arrays"][writer.path]["crc32"] = entry.crc32
    (folder / "manifest.json").write_text(json.dumps(raw))


def test_times_that_descend_are_found(tmp_path: Path) -> None:
    source = replace(single([(0, 1), (1, 1), (2, 1), (0, 0)], 3), edge={EDGE: {"time": np.array([5, -1, 7, 2])}})
    partition_graph(source, tmp_path, PartitionOptions(time_attr="time"), progress=False)
    verify_partition(tmp_path, Progress(False))
    times = np.load(tmp_path / "part0/edges/0/times.npy")
    at = int(times.argmin()) + 1
    times[at] = -2
    rewritten(tmp_path, "part0/edges/0/times.npy", times)
    with pytest.raises(PartitionError, match=rf"times\.npy: damaged: times of a row descend at position {at}"):
        verify_partition(tmp_path, Progress(False))


def test_times_of_nodes_that_differ_are_found(tmp_path: Path) -> None:
    source = single([(0, 1), (1, 2)], 3, time=np.array([5, -1, 7]))
    partition_graph(source, tmp_path, PartitionOptions(time_attr="time"), progress=False)
    verify_partition(tmp_path, Progress(False))
    rewritten(tmp_path, "nodes/0/times.npy", np.array([5, -1, 8]))
    with pytest.raises(
        PartitionError, match=r"nodes/0/times\.npy: damaged: the node 2 has the time 8, in part0/nodes/0/ti"
    ):
        verify_partition(tmp_path, Progress(False))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"time_attr": "time", "of": "edges", "edge_types": [1]}, "row_order: it is damaged"),
        ({"time_attr": "time", "of": "both", "edge_types": [0]}, "row_order: it is damaged"),
        ([], "row_order: it is damaged"),
        ({"time_attr": "other", "of": "edges", "edge_types": [0]}, "row_order: edges/0 has no attribute 'other'"),
        ({"time_attr": "time", "of": "nodes", "edge_types": [0]}, "row_order: nodes/0 has no attribute 'time'"),
    ],
)
def test_manifests_that_cannot_be(tmp_path: Path, order: object, said: str) -> None:
    partition_graph(triangle(time=np.arange(3)), tmp_path, PartitionOptions(time_attr="time"), progress=False)
    raw = json.loads((tmp_path / "manifest.json").read_text())
    with pytest.raises(PartitionError, match=said):
        Manifest.parse(raw | {"row_order": order}, "manifest.json")
    del raw["arrays"]["part0/edges/0/times.npy"]
    with pytest.raises(PartitionError, match=r"part0/edges/0/times\.npy is missing"):
        Manifest.parse(raw, "manifest.json")
