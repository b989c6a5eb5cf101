"""Layer by layer and in rankings, nodes that are deleted are left out, and the others are as in the graph without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch_geometric.nn import GIN

from glt_lightning import GLTDataModule, LinkPredictor, predict_layerwise, rank_links, read_embeddings, recommend
from glt_lightning.base import EDGE, DataError, OptionError
from glt_lightning.graph import LocalPartition
from glt_lightning.loader import LoaderSpec, Session
from glt_lightning.partition import compact_partition, delete_rows, open_version
from tests.lightning.tiny import NODES, WIDTH, learnable_graph

GONE = np.random.default_rng(5).permutation(NODES)[:60]
LEFT = np.setdiff1d(np.arange(NODES), GONE)


class Holding(LightningModule):
    def __init__(self, gnn: Any) -> None:
        super().__init__()
        self.gnn = gnn


@pytest.fixture
def shrunk(tmp_path: Path) -> Callable[..., tuple[GLTDataModule, GLTDataModule, np.ndarray]]:
    """Makes the version of a graph without some nodes and, unless there are links to predict, an edge; and the partition of
    it. Returns the edges that are left, too."""

    def make(**options: Any) -> tuple[GLTDataModule, GLTDataModule, np.ndarray]:
        graph = learnable_graph()
        graph["x"] = np.random.default_rng(2).integers(-2, 3, (NODES, WIDTH)).astype(np.float32)
        np.savez(tmp_path / "g.npz", **graph)
        edges = graph["edge_index"]

        def data(**partition: Any) -> GLTDataModule:
            common: dict[str, Any] = {"num_neighbors": [5], "batch_size": 64, **options}
            return GLTDataModule(
                str(tmp_path / "g.npz"), str(tmp_path / "root"), partition={"num_parts": 2} | partition, **common
            )

        whole = data()
        whole.prepare_data()
        pair = edges[:, np.isin(edges, LEFT).all(axis=0)][:, : 0 if "links" in options else 1]
        delete_rows(whole.partition_dir, nodes={"node": GONE}, edges={EDGE: pair})
        compact_partition(whole.partition_dir, tmp_path / "less", forget=True, progress=False)
        kept = np.isin(edges, LEFT).all(axis=0) & ~(edges[:, :, None] == pair[:, None]).all(axis=0).any(axis=1)
        return data(version="latest"), data(dir=str(tmp_path / "less")), edges[:, kept]

    return make


def test_outputs_are_those_of_the_graph_without_them(shrunk: Any, make_trainer: Any, tmp_path: Path) -> None:
    version, compacted, edges = shrunk()
    seed_everything(3, verbose=False)
    gnn = GIN(WIDTH, 6, 3, 4).eval()
    for parameter in gnn.parameters():
        parameter.data = torch.randint(-1, 2, parameter.shape).float()  # sums are exact in every order
    with torch.no_grad():
        expected = gnn(torch.from_numpy(np.load(tmp_path / "g.npz")["x"]), torch.from_numpy(edges))[LEFT].numpy()
    for name, data in (("version", version), ("compacted", compacted)):
        predict_layerwise(make_trainer(), Holding(gnn), data, tmp_path / name, options={"batch_size": 7})
        found = read_embeddings(tmp_path / name)
        assert found["n_id"].tolist() == LEFT.tolist()
        np.testing.assert_array_equal(found["embedding"], expected)


def test_rankings_are_among_the_others(shrunk: Any, make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    links = {"edge_splits": {"num_val": 100, "num_test": 200}}
    version, compacted, edges = shrunk(task="link", undirected=True, links=links, evaluation={"mode": "layerwise"})
    seed_everything(0, verbose=False)
    ranking = ["hits@10", "mrr@5", "filtered_mrr"]
    model = LinkPredictor(WIDTH, hidden_channels=8, num_layers=1, ranking=ranking)
    predict_layerwise(make_trainer(), model, version, tmp_path / "emb")
    embedded = read_embeddings(tmp_path / "emb")
    assert embedded["n_id"].tolist() == LEFT.tolist()
    rows, place = embedded["embedding"], np.full(NODES, -1)
    place[LEFT] = np.arange(len(LEFT))
    (logged,) = make_trainer().test(model, version, verbose=False)
    test, *known = (version.edges_of(split, EDGE) for split in ("test", "train", "val"))
    train, known_of_all = known[0], np.concatenate([test, *known], axis=1)
    known_of_all = np.concatenate([known_of_all, known_of_all[::-1]], axis=1)
    assert 50 < test.shape[1] < 200
    assert not np.isin(known_of_all, GONE).any()
    for name, others in (("hits@10", train), ("mrr@5", train), ("filtered_mrr", known_of_all)):
        alone = rank_links(rows, rows, place[test], known=place[others], metrics=[name])
        assert rank_links(embedded, embedded, test, known=others, metrics=[name]) == alone
        assert logged[f"test_rank_{name}"] == pytest.approx(alone[name], rel=1e-6)
    with pytest.raises(DataError, match=f"edges: source {GONE[0]} has no embedding; there are 180 nodes up to"):
        rank_links(embedded, embedded, np.array([GONE[:1], LEFT[:1]]))
    with pytest.raises(DataError, match="expected the nodes of one type"):
        rank_links({name: np.concatenate([each, each]) for name, each in embedded.items()}, embedded, test)

    taken = {tuple(sorted(pair)) for pair in edges.T.tolist()}
    hidden = np.array([[a == b or tuple(sorted((a, b))) in taken for b in LEFT] for a in LEFT])
    best = np.sort(np.where(hidden, -np.inf, rows @ rows.T), axis=1)[:, ::-1][:, :20]
    for name, data in (("version", version), ("compacted", compacted)):
        recommend(make_trainer(), model, data, tmp_path / name, options={"k": 20})
        found = pq.read_table(tmp_path / name / "rank0.parquet").to_pandas()
        assert np.unique(found.n_id).tolist() == LEFT.tolist()
        assert not np.isin(found.destination, GONE).any()
        assert not {tuple(sorted(pair)) for pair in zip(found.n_id, found.destination, strict=True)} & taken
        np.testing.assert_allclose(found.score.to_numpy().reshape(-1, 20), best, rtol=1e-4, atol=1e-5)
    with pytest.raises(OptionError, match="expected 1 to 180, the number of destinations"):
        recommend(make_trainer(), model, version, tmp_path / "none", options={"k": 181})
    np.save(tmp_path / "sources.npy", GONE[:1])
    with pytest.raises(DataError, match=f"sources: {GONE[0]} is a node of type 'node' that is deleted"):
        options = {"k": 5, "sources": str(tmp_path / "sources.npy")}
        recommend(make_trainer(), model, version, tmp_path / "none", options=options)


def test_a_run_goes_on_with_its_version(
    make_data: Callable[..., GLTDataModule], make_model: Any, make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    data = [make_data(), make_data(partition={"version": 1})]
    for number in (0, 1):
        trainer = make_trainer(max_epochs=1, limit_val_batches=0)
        trainer.fit(make_model(), data[number])
        trainer.save_checkpoint(tmp_path / f"{number}.ckpt")
        if number == 0:
            delete_rows(data[0].partition_dir, nodes={"node": GONE})
    for number, option in ((0, "Leave data.partition.version out"), (1, "Set data.partition.version: 1")):
        said = f"checkpoint is of version {number} of .*, and this run reads version {1 - number} of .*deleted. {option}, or"
        with pytest.raises(OptionError, match=said):
            make_trainer(max_epochs=2).fit(make_model(), data[1 - number], ckpt_path=str(tmp_path / f"{number}.ckpt"))
    trainer = make_trainer(max_epochs=1)
    (found,) = trainer.test(make_model(), data[1], ckpt_path=str(tmp_path / "0.ckpt"), verbose=False)  # any version
    assert found


def test_the_state_of_a_loader_of_another_version(make_data: Callable[..., GLTDataModule]) -> None:
    data = make_data()
    data.prepare_data()
    delete_rows(data.partition_dir, nodes={"node": GONE})
    spec = LoaderSpec(name="train", split="train", num_neighbors=[2], batch_size=20)
    base = LocalPartition.open(data.partition_dir)
    with Session(base) as one, Session(open_version(base, 1)) as other:
        state = one.make_loader(spec).state_dict()
        with pytest.raises(OptionError, match=r"its data\.partition\.version among them: rows were added"):
            other.make_loader(spec).load_state_dict(state)
