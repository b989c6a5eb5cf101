"""The partitioners of GraphLearn-for-PyTorch, called as its tutorial calls them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import glt_lightning
import glt_lightning.compat.glt as glt
from glt_lightning.base import (
    EDGE,
    NODE,
    DataError,
    GLTError,
    GraphSchema,
    OptionError,
    PartitionError,
    PartitionOptions,
)
from glt_lightning.compat.glt import feature as scripted_device
from glt_lightning.compat.glt.partitioners import PartitionerBase
from glt_lightning.graph import Manifest
from glt_lightning.partition import ArraySource, GraphToPartition, partition_graph
from tests.helpers.partition_truth import edges_of, read_folder, same_arrays

SCRIPT = """
import os.path as osp
import torch
import glt_lightning.compat.glt as glt

random_partitioner = glt.partition.RandomPartitioner(
    output_dir=osp.join(root_dir, "graph-partitions"),
    num_parts=2,
    num_nodes=node_num,
    edge_index=data.edge_index,
    node_feat=data.x,
    edge_feat=None,
    edge_assign_strategy="by_src",  # assign graph edges by src node.
    chunk_size=10000,
    device=torch.device("cuda:0"),
)
random_partitioner.partition()

csr_topo = glt.data.Topology(edge_index=data.edge_index, layout="CSR")
graph = glt.data.Graph(csr_topo, mode="ZERO_COPY")

probs = []
glt_sampler = glt.sampler.NeighborSampler(graph, num_neighbors=[15, 10, 5])
for pidx in range(2):
    probs.append(glt_sampler.sample_prob(train_idx[pidx], node_num))

freq_partitioner = glt.partition.FrequencyPartitioner(
    output_dir=osp.join(root_dir, "graph-partitions-by-frequency"),
    num_parts=2,
    num_nodes=node_num,
    edge_index=data.edge_index,
    probs=probs,
    node_feat=data.x,
    edge_feat=None,
    edge_assign_strategy="by_src",  # assign graph edges by src node.
    chunk_size=10000,
    cache_ratio=0.2,
    device=torch.device("cuda:0"),
)
freq_partitioner.partition()
"""
NODES, EDGES = 300, 1500
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture
def data() -> Data:
    rng = torch.Generator().manual_seed(0)
    ends = (torch.rand((2, EDGES), generator=rng) ** 2 * NODES).long()
    return Data(x=torch.rand((NODES, 5), generator=rng), edge_index=ends, y=torch.arange(NODES)[:, None] % 4)


@pytest.fixture
def homogeneous(data: Data, tmp_path: Path) -> dict[str, Any]:
    return {
        "output_dir": tmp_path / "p",
        "num_parts": 3,
        "num_nodes": NODES,
        "edge_index": data.edge_index,
        "node_feat": data.x,
        "edge_feat": torch.arange(EDGES, dtype=torch.float64)[:, None],
        "edge_weights": torch.arange(EDGES, dtype=torch.float64),
    }


@pytest.fixture
def heterogeneous(tmp_path: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "output_dir": str(tmp_path / "p"),
        "num_parts": 2,
        "num_nodes": {"paper": 50, "author": 20},
        "edge_index": {
            WRITES: torch.from_numpy(np.stack([rng.integers(0, 20, 90), rng.integers(0, 50, 90)])),
            CITES: (rng.integers(0, 50, 200), rng.integers(0, 50, 200)),
        },
        "node_feat": {"paper": torch.rand(50, 3, dtype=torch.bfloat16)},
        "edge_feat": {WRITES: np.arange(90)[:, None]},
    }


def array_source(given: dict[str, Any]) -> ArraySource:
    """What `partition_graph` takes, of the homogeneous graph, by destination."""
    edge = {"edge_attr": given["edge_feat"].numpy().astype("f4"), "edge_weight": given["edge_weights"].numpy()}
    return ArraySource(
        name="same",
        fingerprint="",
        schema=GraphSchema.single(),
        num_nodes={NODE: NODES},
        edge_index={EDGE: given["edge_index"].numpy()},
        node={NODE: {"x": given["node_feat"].numpy()}},
        edge={EDGE: {name: rows.astype("f4") for name, rows in edge.items()}},
    )


def parts_of(folder: Path | str, node_type: int = 0) -> list[list[int]]:
    """User ids of each part, ascending."""
    arrays, manifest = read_folder(Path(folder)), Manifest.load(folder)
    return [sorted(arrays[f"part{p}/nodes/{node_type}/n_id.npy"].tolist()) for p in range(manifest.num_parts)]


def test_a_script_of_glt_runs(data: Data, tmp_path: Path) -> None:
    """As GLT's examples have it."""
    train_idx = torch.arange(100).split(50)
    names = {"data": data, "node_num": NODES, "root_dir": str(tmp_path), "train_idx": train_idx}
    exec(SCRIPT, names)
    turned = sorted((v, u, k) for k, (u, v) in enumerate(data.edge_index.T.tolist()))
    for folder in ("graph-partitions", "graph-partitions-by-frequency"):
        manifest = Manifest.load(tmp_path / folder)
        assert manifest.num_parts == 2
        assert manifest.made_by["edge_assign_strategy"] == "by_src"
        assert edges_of(tmp_path / folder) == {EDGE: turned}
        arrays = read_folder(tmp_path / folder)
        for p in range(2):
            n_id = arrays[f"part{p}/nodes/0/n_id.npy"]
            assert abs(len(n_id) - NODES / 2) <= 1
            np.testing.assert_array_equal(arrays[f"part{p}/nodes/0/x.npy"], data.x[n_id])


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        (glt.partition.RandomPartitioner, "random"),
        (glt.partition.MetisPartitioner, "metis"),
        (glt.partition.StreamingPartitioner, "streaming"),
    ],
)
def test_equals_partition_graph(
    homogeneous: dict[str, Any], tmp_path: Path, kind: Callable[..., PartitionerBase], algorithm: str
) -> None:
    seeds = torch.arange(60)
    kind(
        **homogeneous, edge_assign_strategy="by_dst", splits={"train": seeds}, options=PartitionOptions(seed=3)
    ).partition()
    options = PartitionOptions(num_parts=3, algorithm=algorithm, seed=3, weights=["edge_weight"])
    partition_graph(array_source(homogeneous), tmp_path / "same", options, splits={"train": seeds.numpy()})
    same_arrays(read_folder(homogeneous["output_dir"]), read_folder(tmp_path / "same"))


def test_by_src_is_the_turned_graph(homogeneous: dict[str, Any], tmp_path: Path) -> None:
    glt.partition.RandomPartitioner(**homogeneous).partition()
    turned = homogeneous | {"edge_index": homogeneous["edge_index"].flip(0), "output_dir": tmp_path / "turned"}
    glt.partition.RandomPartitioner(**turned, edge_assign_strategy="by_des").partition()
    same_arrays(read_folder(homogeneous["output_dir"]), read_folder(tmp_path / "turned"))
    made, other = (Manifest.load(tmp_path / name) for name in ("p", "turned"))
    assert made.made_by["edge_assign_strategy"] == "by_src"
    assert "edge_assign_strategy" not in other.made_by


@pytest.mark.parametrize("strategy", ["by_src", "by_dst"])
def test_heterogeneous(heterogeneous: dict[str, Any], strategy: str) -> None:
    folder = Path(heterogeneous["output_dir"])
    labels = {"paper": torch.arange(50)[:, None] % 3}
    splits = {"train": torch.arange(9), "valid": ("author", torch.tensor([4]))}
    glt.partition.RandomPartitioner(
        **heterogeneous, edge_assign_strategy=strategy, node_label=labels, splits=splits
    ).partition()
    manifest, expected = Manifest.load(folder), {}
    for (src, rel, dst), ends in heterogeneous["edge_index"].items():
        edges = [(int(u), int(v), k) for k, (u, v) in enumerate(zip(*ends, strict=True))]
        if strategy == "by_dst":
            expected[src, rel, dst] = sorted(edges)
        else:
            expected[dst, rel if src == dst else f"rev_{rel}", src] = sorted((v, u, k) for u, v, k in edges)
    assert edges_of(folder) == expected
    assert not manifest.schema.homogeneous
    assert (manifest.target_type, manifest.num_classes) == ("paper", 3)
    assert {n: (s.node_type, s.count) for n, s in manifest.splits.items()} == {
        "train": ("paper", 9),
        "val": ("author", 1),
    }
    arrays, r = read_folder(folder), manifest.schema.edge_types.index(next(e for e in expected if "writes" in e[1]))
    for p in range(2):
        n_id, x = arrays[f"part{p}/nodes/1/n_id.npy"], arrays[f"part{p}/nodes/1/x.npy"]
        np.testing.assert_array_equal(x, heterogeneous["node_feat"]["paper"].float()[n_id])
        assert (
            arrays[f"part{p}/edges/{r}/edge_attr.npy"][:, 0].tolist()
            == arrays[f"part{p}/edges/{r}/edge_ids.npy"].tolist()
        )


def test_batches_of_by_src_hold_out_neighbours(heterogeneous: dict[str, Any]) -> None:
    graph, folder = heterogeneous, str(heterogeneous["output_dir"])
    seeds = {"train": ("author", torch.arange(20))}
    glt.partition.RandomPartitioner(**graph, splits=seeds, edge_feat_dtype=torch.float16).partition()
    data = glt_lightning.GLTDataModule(partition=PartitionOptions(dir=folder), num_neighbors=[4], batch_size=20)
    data.prepare_data()
    data.setup()
    (batch,) = data.train_dataloader()
    drawn = batch["paper", "rev_writes", "author"]
    ends = torch.stack([batch["author"].n_id[drawn.edge_index[1]], batch["paper"].n_id[drawn.edge_index[0]]])
    assert drawn.edge_index.shape[1] > 50
    assert torch.equal(ends, graph["edge_index"][WRITES][:, drawn.e_id])
    assert drawn.edge_attr.dtype == torch.float16
    assert drawn.edge_attr[:, 0].tolist() == drawn.e_id.tolist()
    data.teardown()


def test_dtypes(homogeneous: dict[str, Any]) -> None:
    homogeneous |= {"node_feat": torch.arange(NODES * 2).reshape(NODES, 2), "node_feat_dtype": None}
    glt.partition.RandomPartitioner(**homogeneous, edge_feat_dtype=torch.float16).partition()
    arrays = read_folder(homogeneous["output_dir"])
    assert arrays["part0/nodes/0/x.npy"].dtype == np.int64
    assert arrays["part0/edges/0/edge_attr.npy"].dtype == np.float16
    assert arrays["part0/edges/0/edge_weight.npy"].dtype == np.float32


def test_bfloat16_as_given_and_as_asked_for(heterogeneous: dict[str, Any]) -> None:
    graph, folder = heterogeneous, str(heterogeneous["output_dir"])
    graph["edge_feat"] = {WRITES: torch.rand(90, 2)}
    seeds = {"train": ("paper", torch.arange(50))}
    options = {"edge_feat_dtype": torch.bfloat16, "edge_assign_strategy": "by_dst"}
    glt.partition.RandomPartitioner(**graph, splits=seeds, **options).partition()
    data = glt_lightning.GLTDataModule(partition=PartitionOptions(dir=folder), num_neighbors=[4], batch_size=50)
    data.prepare_data()
    data.setup()
    (batch,) = data.train_dataloader()
    assert torch.equal(batch["paper"].x, graph["node_feat"]["paper"][batch["paper"].n_id])
    assert data.num_features == {"author": None, "paper": 3}
    drawn = batch[WRITES]
    assert drawn.edge_attr.dtype == torch.bfloat16
    assert torch.equal(drawn.edge_attr, graph["edge_feat"][WRITES].bfloat16()[drawn.e_id])
    data.teardown()


class TestFrequency:
    """`FrequencyPartitioner`."""

    def test_worked_out_probabilities_give_the_parts_of_algorithm_frequency(
        self, homogeneous: dict[str, Any], tmp_path: Path
    ) -> None:
        del homogeneous["edge_weights"]
        train = torch.randperm(NODES)[:90]
        options = PartitionOptions(num_neighbors=[3, 2], batch_size=10)
        topology = glt.data.Topology(edge_index=homogeneous["edge_index"])
        sampler = glt.sampler.NeighborSampler(glt.data.Graph(topology, mode="CPU"), [3, 2])
        probs = [sampler.sample_prob(share, NODES, batch_size=10) for share in train.tensor_split(3)]
        given = glt.partition.FrequencyPartitioner(**homogeneous, probs=probs)
        given.partition()
        own = homogeneous | {"output_dir": tmp_path / "own"}
        glt.partition.FrequencyPartitioner(**own, splits={"train": train}, options=options).partition()
        assert parts_of(tmp_path / "p") == parts_of(tmp_path / "own")
        assert parts_of(tmp_path / "p") != [[*range(p * 100, p * 100 + 100)] for p in range(3)]

    def test_probabilities_are_the_hotness(self, homogeneous: dict[str, Any], tmp_path: Path) -> None:
        rng = torch.Generator().manual_seed(1)
        probs = [torch.rand(NODES, generator=rng, dtype=torch.float64) for _ in range(3)]
        probs[1][:40] = 0
        glt.partition.FrequencyPartitioner(**homogeneous, probs=probs, chunk_size=7).partition()
        arrays, manifest = read_folder(tmp_path / "p"), Manifest.load(tmp_path / "p")
        assert dict(manifest.hotness) == {"given": {}}
        user = np.concatenate([arrays[f"part{p}/nodes/0/n_id.npy"] for p in range(3)])
        for p, prob in enumerate(probs):
            values, mine = prob.float().numpy(), arrays[f"part{p}/nodes/0/n_id.npy"]
            np.testing.assert_array_equal(arrays[f"part{p}/nodes/0/hotness.npy"], values[mine])
            assert (np.diff(values[mine]) <= 0).all()
            listed = user[arrays[f"part{p}/hot/given/0/gids.npy"]]
            assert set(listed) == set(np.flatnonzero(values)) - set(mine)
            np.testing.assert_array_equal(arrays[f"part{p}/hot/given/0/hotness.npy"], values[listed])
            assert (np.diff(values[listed]) <= 0).all()
        blocks = np.stack([p.numpy() for p in probs], 1)[:21]  # the rule, by hand, for the first block of 3 x 7 ids
        left = set(range(21))
        for p in range(3):
            took = sorted(left, key=lambda v: -(4 * blocks[v, p] - blocks[v].sum()))[:7]
            left -= set(took)
            assert set(took) == {v for v in parts_of(tmp_path / "p")[p] if v < 21}

    @pytest.mark.parametrize("by_type", [True, False])
    def test_heterogeneous(self, heterogeneous: dict[str, Any], by_type: bool) -> None:
        prefers = [torch.arange(n) % 2 == p for n in (50, 20) for p in range(2)]
        paper, author = [p.float() for p in prefers[:2]], [p.float() for p in prefers[2:]]
        each = [{"paper": p, "author": a} for p, a in zip(paper, author, strict=True)]
        probs = {"paper": paper, "author": author} if by_type else each
        glt.partition.FrequencyPartitioner(**heterogeneous, probs=probs).partition()
        assert parts_of(heterogeneous["output_dir"], 0) == [[*range(0, 20, 2)], [*range(1, 20, 2)]]
        assert parts_of(heterogeneous["output_dir"], 1) == [[*range(0, 50, 2)], [*range(1, 50, 2)]]

    @pytest.mark.parametrize(
        ("probs", "said"),
        [
            ([torch.ones(NODES)] * 2, "probs: expected 3 tensors, one for each part, got 2"),
            (torch.ones(3, NODES), "probs: expected 3 tensors, one for each part, got Tensor"),
            ([torch.ones(NODES - 1)] * 3, r"probs\[0\]: expected floats \[300\], got float32 \[299\]"),
            ([torch.full((NODES,), torch.nan)] * 3, r"probs\[0\]: expected finite numbers >= 0"),
            ([-torch.ones(NODES)] * 3, r"probs\[0\]: expected finite numbers >= 0"),
            ({"node": [torch.ones(NODES)] * 3}, "probs: got dict, but num_nodes is int"),
        ],
    )
    def test_bad_probabilities(self, homogeneous: dict[str, Any], probs: Any, said: str) -> None:
        with pytest.raises(GLTError, match=said):
            glt.partition.FrequencyPartitioner(**homogeneous, probs=probs)

    def test_probabilities_of_a_type_are_missing(self, heterogeneous: dict[str, Any]) -> None:
        with pytest.raises(DataError, match="probs: no probabilities for node types author"):
            glt.partition.FrequencyPartitioner(**heterogeneous, probs={"paper": [torch.ones(50)] * 2})

    def test_cache_size_is_said_to_have_no_effect(
        self, homogeneous: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        options = {"probs": [torch.ones(NODES)] * 3, "cache_memory_budget": "1GB"}
        glt.partition.FrequencyPartitioner(**homogeneous, **options, cache_ratio=0.0)
        assert "cache_memory_budget='1GB' has no effect" in caplog.text
        assert "cache_ratio" not in caplog.text
        for name, value in (("cache_ratio", 2.0), ("cache_memory_budget", "much")):
            with pytest.raises(OptionError, match=f"{name}: expected"):
                glt.partition.FrequencyPartitioner(**homogeneous, **options | {name: value})

    def test_other_probabilities_make_another_partition(self, homogeneous: dict[str, Any]) -> None:
        ones = [torch.ones(NODES)] * 3
        first = glt.partition.FrequencyPartitioner(**homogeneous, probs=ones).partition()
        assert glt.partition.FrequencyPartitioner(**homogeneous, probs=ones).partition() == first
        with pytest.raises(PartitionError, match=r"probs: '[0-9a-f]+' on disk, '[0-9a-f]+' given"):
            glt.partition.FrequencyPartitioner(**homogeneous, probs=[*ones[:2], torch.zeros(NODES)]).partition()


class Alternating(PartitionerBase):
    """Node i to part i mod P, from an offset."""

    def __init__(self, *args: Any, offset: int = 0, **graph: Any) -> None:
        super().__init__(*args, **graph)
        self.offset = offset

    def assign(self, graph: GraphToPartition) -> dict[str, np.ndarray]:
        return {t: (np.arange(n) + self.offset) % graph.num_parts for t, n in graph.num_nodes.items()}


class TestOwnClass:
    """Subclasses of `PartitionerBase`."""

    def test_in_a_script(self, homogeneous: dict[str, Any]) -> None:
        mine = Alternating(**homogeneous, offset=1)
        assert mine.partition().made_by["algorithm"].endswith("test_scripted.Alternating")
        assert parts_of(homogeneous["output_dir"])[1] == [*range(0, NODES, 3)]
        with pytest.raises(PartitionError, match="it is unknown whether Alternating would make the same one"):
            mine.partition()

    def test_by_its_name(self, homogeneous: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "mine.py").write_text(
            "from glt_lightning.compat.glt.partitioners import PartitionerBase\n\n\n"
            "class Last(PartitionerBase):\n"
            "    def assign(self, graph):\n"
            "        return {t: [graph.num_parts - 1] * n for t, n in graph.num_nodes.items()}\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        options = PartitionOptions(num_parts=2, algorithm="mine.Last")
        partition_graph(array_source(homogeneous), tmp_path / "named", options)
        assert parts_of(tmp_path / "named") == [[], [*range(NODES)]]

    def test_made_without_a_graph_it_cannot_partition(self) -> None:
        with pytest.raises(OptionError, match="Alternating: constructed without output_dir"):
            Alternating().partition()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_nodes": None}, "RandomPartitioner: num_nodes must be given with output_dir"),
        ({"num_nodes": {"node": NODES}}, "edge_index: got Tensor, but num_nodes is dict"),
        ({"num_nodes": -1}, "num_nodes: expected an integer >= 0, or one per node type; got -1"),
        ({"num_parts": 0}, "num_parts: expected an integer >= 1, got 0"),
        (
            {"edge_index": torch.zeros(3, 4, dtype=torch.long)},
            r"edge_index: expected integers \[2, E\].*int64 \[3, 4\]",
        ),
        ({"edge_index": torch.rand(2, 4)}, r"edge_index: expected integers \[2, E\].*float32"),
        ({"edge_index": torch.eye(4).to_sparse()}, "edge_index: expected a dense tensor or an array"),
        ({"edge_index": ([1, 2], [3])}, "edge_index: sources and destinations differ in shape"),
        ({"node_feat": torch.rand(9, 2)}, r"node_feat: expected one row for each of 300 nodes, got \[9, 2\]"),
        ({"node_feat": {"node": torch.rand(9, 2)}}, "node_feat: got dict, but num_nodes is int"),
        ({"node_feat_dtype": "float17"}, "node_feat_dtype: expected a dtype of torch or numpy"),
        ({"edge_feat": torch.rand(9, 2)}, r"edge_feat: expected one row for each of 1500 edges, got \[9, 2\]"),
        ({"edge_weights": torch.rand(9)}, r"edge_weights: expected one row for each of 1500 edges, got \[9\]"),
        ({"edge_assign_strategy": "by_edge"}, "edge_assign_strategy: expected 'by_src' or 'by_dst', got 'by_edge'"),
        ({"chunk_size": 0}, "chunk_size: expected an integer >= 1, got 0"),
        ({"device": "tpu"}, "device: expected 'cpu', 'cuda' or 'cuda:0' and so on, got 'tpu'"),
        ({"num_nodes": 10, "node_feat": None}, "has source .* but node type 'node' has 10 nodes"),
        ({"splits": {"train": torch.tensor([NODES])}}, "splits: train: position 0 has node 300"),
    ],
)
def test_what_is_refused(homogeneous: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(GLTError, match=said):
        glt.partition.RandomPartitioner(**homogeneous | change).partition(progress=False)
    assert not Path(homogeneous["output_dir"]).exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"edge_index": {("paper", "by", "editor"): torch.zeros(2, 0)}},
            r"with types of num_nodes \(paper, author\), got",
        ),
        ({"edge_index": {"paper__cites__paper": torch.zeros(2, 0)}}, "expected keys .* got 'paper__cites__paper'"),
        ({"node_feat": {"editor": torch.rand(9, 2)}}, r"node_feat\['editor'\]: no such type; known: paper, author"),
        ({"node_feat": torch.rand(9, 2)}, "node_feat: got Tensor, but num_nodes is dict"),
    ],
)
def test_what_is_refused_of_heterogeneous_graphs(heterogeneous: dict[str, Any], change: dict, said: str) -> None:
    with pytest.raises(GLTError, match=said):
        glt.partition.RandomPartitioner(**heterogeneous | change)


def test_folder_of_another_partition_is_left_alone(homogeneous: dict[str, Any]) -> None:
    first = glt.partition.RandomPartitioner(**homogeneous).partition()
    assert glt.partition.RandomPartitioner(**homogeneous).partition() == first
    before = read_folder(homogeneous["output_dir"])
    for change, said in (
        ({"edge_assign_strategy": "by_dst"}, "edge_assign_strategy: 'by_src' on disk, None given"),
        ({"num_parts": 2}, "num_parts: 3 on disk, 2 given"),
        ({"node_feat": homogeneous["node_feat"] + 1}, "fingerprint: .* on disk, .* given"),
    ):
        with pytest.raises(PartitionError, match=said):
            glt.partition.RandomPartitioner(**homogeneous | change).partition()
    same_arrays(read_folder(homogeneous["output_dir"]), before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device can be used here")
def test_missing_gpu_is_said_once(homogeneous: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    scripted_device._say_once.cache_clear()
    caplog.set_level(logging.WARNING)
    for device in (torch.device("cuda:0"), "cuda"):
        glt.partition.RandomPartitioner(**homogeneous, device=device).partition()
    assert caplog.text.count("The CPU is used; the result is the same") == 1
