"""`DistGraph` and `DistTensor` in a script: the checks of DGL's own tests, name by name, and what ours do better."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from glt_lightning import DistGraph, DistTensor, LoaderSpec, LocalPartition, SamplingOptions, Session
from glt_lightning.base import DataError, OptionError, TensorOptions
from glt_lightning.sampling import batch_key
from tests.helpers.partitions import partitioned, small_graph, small_hetero


@pytest.fixture(scope="module", params=[1, 3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    partitioned(small_graph(), folder, request.param).close()
    return folder / f"parts{request.param}"


@pytest.fixture
def graph(folder: Path) -> Iterator[DistGraph]:
    with DistGraph(folder) as graph:
        yield graph


@pytest.fixture(scope="module")
def typed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    partitioned(small_hetero(), folder, 2).close()
    return folder / "parts2"


@pytest.fixture
def typed(typed_folder: Path) -> Iterator[DistGraph]:
    with DistGraph(typed_folder) as graph:
        yield graph


# What the partition stores


def test_stored_data_are_read_by_row(graph: DistGraph) -> None:
    data = small_graph()
    assert graph.num_nodes() == 300
    assert graph.num_edges() == data.num_edges
    rows = torch.arange(graph.num_nodes() // 2)
    ids = graph.user_ids(rows)
    assert torch.equal(graph.ndata["x"][rows], data.x[ids])
    assert torch.equal(graph.ndata["y"][rows], data.y[ids])
    edges = torch.arange(graph.num_edges() // 2)
    assert torch.equal(graph.edata["edge_attr"][edges], data.edge_attr[graph.user_ids(edges, graph.edge_types[0])])
    assert torch.equal(graph.rows_of(ids), rows)
    assert torch.equal(graph.ndata["train_mask"][:], data.train_mask[graph.user_ids(slice(None))])
    assert graph.ndata["train_mask"].count_nonzero() == 100


def test_shape_dtype_and_schemes(graph: DistGraph) -> None:
    x = graph.ndata["x"]
    assert (len(x), tuple(x.shape), x.dtype, x.name, x.of, x.writable) == (
        300,
        (300, 3),
        torch.float32,
        "x",
        "node",
        False,
    )
    assert set(graph.ndata) == {"x", "y", "train_mask", "val_mask", "test_mask"}
    assert list(graph.edata) == ["edge_attr"]
    assert (graph.rank, graph.world_size, graph.node_types) == (0, 1, ["node"])


def test_stored_data_are_not_written(graph: DistGraph) -> None:
    for write in (lambda x: x.__setitem__([0], 1), lambda x: x.add_([0], 1), lambda x: x.fill_(0), lambda x: x.close()):
        with pytest.raises(DataError, match="tensor 'x' of 'node': the partition stores it, so it cannot be written"):
            write(graph.ndata["x"])
    with pytest.raises(DataError, match=r"data 'x' of 'node': the partition stores it\. Use another name"):
        graph.ndata["x"] = DistTensor((300,), torch.int64)
    with pytest.raises(DataError, match="not a tensor of your own"):
        del graph.ndata["x"]


def test_a_type_without_data_is_an_empty_mapping(typed: DistGraph) -> None:
    assert dict(typed.nodes["author"].data) == {}
    assert set(typed.nodes["paper"].data) == {"x", "y", "train_mask", "val_mask", "test_mask"}
    with pytest.raises(KeyError, match="'author' has no data 'x'; it has: none"):
        typed.nodes["author"].data["x"]
    with pytest.raises(DataError, match="ndata: the graph has the node types 'author', 'paper'; use nodes"):
        _ = typed.ndata
    with pytest.raises(DataError, match="type: expected one of 'author', 'paper'; got 'venue'"):
        typed.num_nodes("venue")
    assert typed.num_edges("writes") == typed.num_edges(("author", "writes", "paper")) == 500
    assert typed.num_edges("author__writes__paper") == len(typed.edges["writes"].data) + 500


# Tensors of one's own


def test_a_new_tensor_is_zero(graph: DistGraph) -> None:
    t = DistTensor((300, 4), torch.float32, "zero")
    assert t.count_nonzero() == 0
    assert torch.equal(t[:], torch.zeros(300, 4))
    t.close()


def test_what_is_written_is_read(graph: DistGraph) -> None:
    t = DistTensor((300, 4), torch.float32, "h")
    graph.ndata["h"] = t
    t[torch.tensor([5, 290, 5])] = torch.ones(3, 4)
    assert torch.equal(graph.ndata["h"][[290, 0, 5, 5]], torch.tensor([1.0, 0, 1, 1])[:, None].expand(4, 4))
    assert t.count_nonzero() == 8
    t[10:12] = torch.arange(4.0)  # one row for all
    assert torch.equal(t[11], torch.arange(4.0))
    t[torch.arange(300) >= 299] = 7
    assert t[299].tolist() == [7] * 4
    t.add_([11, 11], 1)
    assert t[11].tolist() == [2, 3, 4, 5]
    assert t.fill_(0).count_nonzero() == 0
    assert t[[]].shape == (0, 4)
    assert t[np.array([3], dtype=np.int32)].shape == (1, 4)
    del graph.ndata["h"]
    assert "h" not in graph.ndata


def test_rows_that_are_read_later(graph: DistGraph) -> None:
    t = DistTensor((300, 2), torch.float32, "later", init=("uniform", 0, 1))
    for tensor in (t, graph.ndata["x"], graph.ndata["train_mask"]):
        for index in ([5, 3, 3], 7, slice(0, 300, 50), []):
            pending = tensor.read_later(index)
            assert torch.equal(pending.result(), tensor[index])
            assert pending.result() is pending.result()
        with pytest.raises(DataError, match="rows: 300 at position 0 is no row"):
            tensor.read_later([300])


def test_one_name_is_one_tensor(graph: DistGraph) -> None:
    t = DistTensor((300, 4), torch.float32, "same")
    t[[3]] = 1
    assert DistTensor((300, 4), torch.float32, "same").count_nonzero() == 4
    for shape, dtype in (((300, 5), torch.float32), ((300, 4), torch.float64)):
        with pytest.raises(DataError, match="the name is taken by 'same' of node, float32 rows \\[4\\]"):
            DistTensor(shape, dtype, "same", of="node")
    t.close()
    assert DistTensor((300, 5), torch.float32, "same").shape == (300, 5)
    with pytest.raises(DataError, match="tensor 'same' is closed"):
        t[[0]]


def test_anonymous_tensors_are_different_ones(graph: DistGraph) -> None:
    first, second = (DistTensor((300,), torch.int64) for _ in range(2))
    assert first.name != second.name
    first[[0]] = 1
    first.close()
    assert DistTensor((300,), torch.int64).name not in (first.name, second.name)
    assert second.count_nonzero() == 0


def test_the_type_follows_from_the_rows_where_one_has_as_many(typed: DistGraph) -> None:
    assert DistTensor((80,), torch.int64).of == "author"
    assert DistTensor((900, 2), torch.int64).of == ("paper", "cites", "paper")
    with pytest.raises(DataError, match=r"of: no type has 7 rows \('author': 80, 'paper': 200,"):
        DistTensor((7,), torch.int64)
    with pytest.raises(DataError, match="shape: type 'paper' has 200 rows, got 80"):
        DistTensor((80,), torch.int64, of="paper")
    with pytest.raises(DataError, match=r"data 'h' of 'paper': expected a DistTensor of this type, got DistTensor\("):
        typed.nodes["paper"].data["h"] = DistTensor((80,), torch.int64)


def test_two_types_with_as_many_rows_are_told_apart(tmp_path: Path) -> None:
    data = small_hetero()
    data["author"].num_nodes = 200
    partitioned(data, tmp_path, 2).close()
    with DistGraph(tmp_path / "parts2"):
        with pytest.raises(DataError, match=r"of: 'author', 'paper' have 200 rows .* Give of="):
            DistTensor((200,), torch.int64)
        assert DistTensor((200,), torch.int64, of="author").of == "author"


def test_the_union_of_masks(graph: DistGraph) -> None:
    train, val = graph.ndata["train_mask"], graph.ndata["val_mask"]
    assert torch.equal((train | val)[:], train[:] | val[:])
    with pytest.raises(DataError, match="expected two masks of one type"):
        _ = train | graph.ndata["y"]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([300], "300 at position 0 is no row of the nodes of type 'node', which has the rows 0 to 299"),
        ([0, -1], "-1 at position 1"),
        ([0.5], r"expected integers \[n\], a slice or a mask of bool \[300\]; got float64 \[1\]"),
        ([[0]], r"got int64 \[1, 1\]"),
        (torch.ones(299, dtype=torch.bool), r"got bool \[299\]"),
        (torch.ones(300, dtype=torch.int64), "masks are boolean"),
    ],
)
def test_rows_that_there_are_not(graph: DistGraph, rows: object, complaint: str) -> None:
    t = DistTensor((300,), torch.float32, "checked")
    for use in (t.__getitem__, lambda rows: t.__setitem__(rows, 1), graph.ndata["x"].__getitem__):
        with pytest.raises(DataError, match=complaint):
            use(rows)
    assert t.count_nonzero() == 0


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (torch.zeros(2, dtype=torch.float64), "expected values of torch.float32, got torch.float64. Convert them"),
        (torch.zeros(2, 4), r"expected values \[2, 3\], or of one row; got \[2, 4\]"),
        (torch.zeros(3, 3), r"got \[3, 3\]"),
    ],
)
def test_values_that_do_not_fit(graph: DistGraph, values: torch.Tensor, complaint: str) -> None:
    t = DistTensor((300, 3), torch.float32, "values")
    with pytest.raises(DataError, match=complaint):
        t[[0, 1]] = values


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"shape": (300,), "dtype": torch.complex64}, "dtype: expected one of bool, uint8, .*got torch.complex64"),
        ({"shape": (300,), "dtype": "float32"}, "dtype: expected one of torch, got 'float32'"),
        (
            {"shape": (300, 0), "dtype": torch.float32},
            r"shape: expected \[N, ...\] with integers >= 1, got rows of \[0\]",
        ),
        ({"shape": (), "dtype": torch.float32}, r"shape: expected \[N, ...\] with a row for each"),
        ({"shape": (300,), "dtype": torch.float32, "name": "a\nb"}, "name: expected 1 to 200 printable characters"),
        ({"shape": (300,), "dtype": torch.float32, "name": 201 * "a"}, "name: expected 1 to 200 printable characters"),
    ],
)
def test_descriptions_that_cannot_be(graph: DistGraph, arguments: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        DistTensor(**arguments)
    assert list(graph.tables) == []


def test_the_limit_is_checked_before_memory_is_taken(folder: Path) -> None:
    with DistGraph(folder, options=TensorOptions(limit="100kB")) as graph:
        DistTensor((300, 16), torch.float32, "small")
        complaint = (
            r"tensor 'large' takes 240 kB on this host; with those that are there \('small' 24.6 kB\) that is more than "
            r"cluster.tensors.limit, 100 kB"
        )
        with pytest.raises(OptionError, match=complaint):
            DistTensor((300, 200), torch.float32, "large")
        assert list(graph.tables) == ["small"]


def test_the_graph_of_a_tensor_is_the_only_one_or_given(folder: Path) -> None:
    with pytest.raises(DataError, match="graph: none is open in this process"):
        DistTensor((300,), torch.float32)
    with DistGraph(folder), DistGraph(folder) as second:
        with pytest.raises(DataError, match=r"graph: 2 are open in this process\. Give graph="):
            DistTensor((300,), torch.float32)
        assert DistTensor((300,), torch.float32, "h", graph=second).name == "h"
        assert list(second.tables) == ["h"]


def test_rows_in_the_memory_of_this_host(graph: DistGraph) -> None:
    t = DistTensor((300, 2), torch.float32, "local", init=("uniform", 0, 1))
    assert [first for first, _ in t.local_rows] == graph.space("node").bounds[:-1].tolist()
    assert np.array_equal(np.concatenate([view for _, view in t.local_rows]), t[:].numpy())
    with pytest.raises(ValueError, match="read-only"):
        t.local_rows[0][1][0] = 1


# Neighbours


def _hop_0(folder: Path, rows: torch.Tensor, fanout: int, replace: bool) -> set[tuple[int, int]]:
    """(user id of the destination, e_id) of the edges of a loader's batch, whose key is that of position 0 of its first epoch."""
    partition = LocalPartition.open(folder)
    sampling = SamplingOptions(with_edge=True, replace=replace)
    with Session(partition, sampling, seed=3) as context, DistGraph(partition) as graph:
        ids = graph.user_ids(rows)
        spec = LoaderSpec(name="train", seeds=ids, num_neighbors=[fanout], batch_size=len(ids))
        batch = next(iter(context.make_loader(spec)))
        found = set(zip(batch.n_id[batch.edge_index[1]].tolist(), batch.e_id.tolist(), strict=True))
    partition.close()
    return found


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 1, 4])
def test_neighbours_are_hop_0_of_a_loader(graph: DistGraph, folder: Path, fanout: int, replace: bool) -> None:
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:50]
    found = graph.sample_neighbors(rows, fanout, key=batch_key(3, "train", 0, 0), replace=replace)
    ids, e_id = graph.user_ids(found.dst), graph.user_ids(found.edge_row, graph.edge_types[0])
    assert set(zip(ids.tolist(), e_id.tolist(), strict=True)) == _hop_0(folder, rows, fanout, replace)
    edge_index = small_graph().edge_index
    assert torch.equal(graph.user_ids(found.src), edge_index[0, e_id])
    assert torch.equal(ids, edge_index[1, e_id])
    if fanout == -1:
        degrees = torch.bincount(edge_index[1], minlength=300)[graph.user_ids(rows)]
        assert torch.equal(found.dst, rows.repeat_interleave(degrees))


def test_excluded_edges_are_not_drawn(graph: DistGraph) -> None:
    rows = torch.arange(40)
    whole = graph.sample_neighbors(rows, -1)
    out = torch.arange(0, len(whole.src), 3)
    found = graph.sample_neighbors(rows, -1, exclude_edges=(whole.src[out], whole.dst[out]))
    gone = set(zip(whole.src[out].tolist(), whole.dst[out].tolist(), strict=True))
    expected = [pair for pair in zip(whole.src.tolist(), whole.dst.tolist(), strict=True) if pair not in gone]
    assert list(zip(found.src.tolist(), found.dst.tolist(), strict=True)) == expected


def test_walks_are_the_same_however_the_graph_is_partitioned(graph: DistGraph, folder: Path, typed: DistGraph) -> None:
    rows = graph.rows_of(range(0, 300, 7))
    trace = graph.random_walk(rows, 5, walks=3, restart=0.3, key=4)
    ids = torch.cat([graph.user_ids(torch.arange(300)), torch.tensor([-1])])[trace]
    edges = set(map(tuple, small_graph().edge_index.T.tolist()))
    for walk in ids.flatten(0, 1).tolist():
        ends = walk.index(-1) if -1 in walk else len(walk)
        assert set(walk[ends:]) <= {-1}
        assert all((b, a) in edges or (b, walk[0]) in edges for a, b in pairwise(walk[:ends]))
    seen = folder.parent.parent / "walks.pt"  # of the graph in one part, which comes first
    if seen.exists():
        assert torch.equal(torch.load(seen), ids)
    torch.save(ids, seen)
    path = typed.random_walk([0, 5], metapath=["cites", "writes"], stop=0.5)
    assert path.shape == (2, 1, 3)
    assert path[path[:, :, 2] >= 0][:, 2].max() < 80
    cited = typed.sample_neighbors([5], -1, "cites").src.tolist()
    assert int(path[1, 0, 1]) in cited


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": [0]}, "type: expected one of"),
        (
            {"metapath": ["writes", "cites"]},
            "along author__writes__paper leads to 'author', and paper__cites__paper goes on from 'paper'",
        ),
        ({"metapath": []}, "metapath: expected edge types, got none"),
        ({"metapath": ["cites"], "length": 0}, "length: expected an integer >= 1, got 0"),
        ({"metapath": ["cites"], "walks": 70_000}, "expected at most 65536 steps from one row"),
        ({"metapath": ["cites"], "restart": 1.5}, "restart: expected a probability, 0 to 1; got 1.5"),
        ({"metapath": ["cites"], "restart": 0.5, "stop": 0.5}, "stop: excludes restart"),
        ({"metapath": ["cites"], "prob": "w"}, "have no prefix sums of 'w'"),
        ({"metapath": ["cites"], "rows": [200]}, "200 at position 0 is no row of the nodes of type 'paper'"),
    ],
)
def test_walks_that_there_are_not(typed: DistGraph, given: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        typed.random_walk(**{"rows": [0], "length": None} | given)


def test_neighbours_of_nothing_and_of_mistakes(typed: DistGraph) -> None:
    empty = typed.sample_neighbors([], 3, "cites")
    assert [(len(each), each.dtype) for each in empty] == [(0, torch.int64)] * 3
    with pytest.raises(DataError, match="type: expected one of"):
        typed.sample_neighbors([0], 3)
    with pytest.raises(DataError, match="rows: 200 at position 0 is no row of the nodes of type 'paper'"):
        typed.sample_neighbors([200], 3, "cites")
    with pytest.raises(OptionError, match="fanout"):
        typed.sample_neighbors([0], 0, "cites")
    with pytest.raises(DataError, match="rows_of: 200 at position 1 is not a node of type 'paper'"):
        typed.rows_of([0, 200], "paper")
