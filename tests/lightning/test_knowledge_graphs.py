"""Knowledge graphs, with relations as edge types or as a column: filtered ranks by brute force, negatives of each relation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import seed_everything
from torch_geometric.data import Data, HeteroData

from glt_lightning import GLTDataModule, LinkPredictor
from glt_lightning.base import SPLITS, DataError, OptionError
from glt_lightning.cli import main
from tests.helpers import run_cli

NODES, STEPS = 30, (1, 2, 3, -1)  # relation 2 is the first after the second, 3 the inverse of the first
RELATIONS = ["first", "second", "third", "back"]
TYPES = [f"thing__{name}__thing" for name in RELATIONS]


def triples() -> np.ndarray:
    """Returns int64 [3, E]: source, relation, destination."""
    nodes = np.arange(NODES)
    found = [np.stack([nodes, np.full(NODES, r), (nodes + step) % NODES]) for r, step in enumerate(STEPS)]
    more = np.stack([nodes, np.zeros(NODES, int), (nodes + 7) % NODES])  # a second destination, to be filtered out
    return np.concatenate([*found, more], axis=1)


def in_a_column() -> Data:
    source, relation, destination = torch.from_numpy(triples())
    return Data(edge_index=torch.stack([source, destination]), kind=relation, num_nodes=NODES)


def of_two_types() -> HeteroData:
    """Things are in places, for one of two reasons."""
    graph, nodes = HeteroData(), torch.arange(NODES)
    graph["thing"].num_nodes, graph["place"].num_nodes = NODES, 12
    graph["thing", "in", "place"].edge_index = torch.stack(
        [nodes.repeat(4), torch.cat([nodes + k for k in range(4)]) % 12]
    )
    graph["thing", "in", "place"].kind = torch.arange(4 * NODES) // NODES % 2
    return graph


def by_type() -> HeteroData:
    source, relation, destination = torch.from_numpy(triples())
    graph = HeteroData()
    graph["thing"].num_nodes = NODES
    for r, name in enumerate(RELATIONS):
        graph["thing", name, "thing"].edge_index = torch.stack([source, destination])[:, relation == r]
    return graph


DRAWN = {"num_val": 0.1, "num_test": 0.2}
COLUMN: dict[str, Any] = {"relation": "kind", "edge_splits": DRAWN, "neg_sampling": {"mode": "triplet", "amount": 4}}
TYPED = COLUMN | {"relation": None, "edge_splits": {t: DRAWN | {"neg_sampling_ratio": 0} for t in TYPES}}


@pytest.fixture
def kg(make_data: Any) -> Any:
    def make(layout: str = "column", **options: Any) -> GLTDataModule:
        column, typed = layout != "types", {"column": in_a_column, "types": by_type, "two types": of_two_types}[layout]
        given = {"dataset": typed(), "links": COLUMN if column else TYPED, "num_neighbors": [], "batch_size": 32}
        given |= {"seeds": {} if column else {"input_type": TYPES}}
        return make_data(**{"task": "link", "evaluation": {"mode": "layerwise"}} | given | options)

    return make


def predictor(data: GLTDataModule, **options: Any) -> LinkPredictor:
    names = ("metadata", "num_nodes", "num_relations")
    described = {"edge_type": data.link_type, "in_channels": data.num_features} | {n: getattr(data, n) for n in names}
    given: dict[str, Any] = {"encoder": "none", "decoder": "complex", "loss": "softmax", "hidden_channels": 8}
    seed_everything(0, verbose=False)
    return LinkPredictor(**described | given | {"metrics": ["mrr"], "lr": 0.05} | options)


def known_triples(data: GLTDataModule, split: str) -> list[tuple[int, int, int]]:
    """(source, relation, destination) of a split."""
    found = []
    for number, edge_type in enumerate(data.dist_graph.edge_types):
        source, destination = data.edges_of(split, edge_type)  # type: ignore[misc]
        own = data.relations_of(split, edge_type)
        name = RELATIONS.index(edge_type[1]) if own is None else number
        relation = np.full(len(source), name) if own is None else own
        found += list(zip(source.tolist(), relation.tolist(), destination.tolist(), strict=True))
    return found


def brute_force(
    model: LinkPredictor, source: torch.Tensor, destination: torch.Tensor, data: GLTDataModule
) -> list[float]:
    """Ranks of both ends of each test edge among all nodes of their types, without other known ones."""
    known = {each for split in SPLITS for each in known_triples(data, split)}

    def score(h: int, r: int, t: int) -> float:
        if model.num_relations is not None:
            return float(model.decoder(source[h], destination[t], r))
        return float(model.decoders[TYPES[r]](source[h], destination[t]))

    ranks = []
    for h, r, t in known_triples(data, "test"):
        own = score(h, r, t)
        for others in ([(h, r, n) for n in range(len(destination))], [(n, r, t) for n in range(len(source))]):
            negative = [score(*each) for each in others if each not in known]
            ranks.append(1 + (sum(s > own for s in negative) + sum(s >= own for s in negative)) / 2)
    return ranks


@pytest.mark.parametrize(("layout", "decoder"), [("column", "complex"), ("types", "rotate"), ("two types", "transe")])
def test_filtered_ranks_are_brute_force(kg: Any, make_trainer: Any, layout: str, decoder: str) -> None:
    data = kg(layout)
    assert data.num_relations == {"column": 4, "types": None, "two types": 2}[layout]
    names = ["filtered_mrr", "filtered_hits@1", "filtered_hits@10"]
    sparse, corrupt = "sparse" if decoder == "rotate" else "dense", "destination" if layout == "two types" else "both"
    model = predictor(data, decoder=decoder, ranking=names, corrupt=corrupt, node_embedding=sparse)
    trainer = make_trainer(max_epochs=4)
    trainer.fit(model, data)
    (logged,) = trainer.test(model, data, verbose=False)
    data.setup("test")
    assert sum(len(known_triples(data, split)) for split in SPLITS) == (120 if layout == "two types" else 150)
    with torch.no_grad():
        source = rows_of(model, data, "thing", NODES)
        destination = rows_of(model, data, "place", 12) if layout == "two types" else source
        ranks = brute_force(model, source, destination, data)
    data.teardown()
    assert logged["test_rank_filtered_mrr"] == pytest.approx(np.mean([1 / rank for rank in ranks]), rel=1e-6)
    for k in (1, 10):
        assert logged[f"test_rank_filtered_hits@{k}"] == pytest.approx(np.mean([rank <= k for rank in ranks]), rel=1e-6)
    if layout == "types":
        assert {f"test_rank_filtered_mrr/{t}" for t in TYPES} <= set(logged)


def rows_of(model: LinkPredictor, data: GLTDataModule, node_type: str, count: int) -> torch.Tensor:
    """The embeddings of all nodes of a type, by the user's ids."""
    graph, ids = data.dist_graph, torch.arange(count)
    encoder: Any = model.encoder.encoders[node_type] if data.metadata else model.encoder.encoder
    rows = graph.rows_of(ids, node_type if data.metadata else graph.node_types[0])
    return encoder(node_type, Data(n_id=ids, row=rows))


def test_a_negative_is_no_edge_of_its_relation(kg: Any) -> None:
    """In training none of its own edges; in evaluation none of any split. Edges of other relations are negatives, too."""
    links = COLUMN | {"neg_sampling": {"mode": "triplet", "amount": 16}}
    data = kg(links=links, evaluation={"mode": "sampled"})
    data.prepare_data()
    data.setup()
    known = {split: set(known_triples(data, split)) for split in SPLITS}
    everything, pairs = set.union(*known.values()), {(h, t) for some in known.values() for h, _, t in some}
    for split, refused in (("train", known["train"]), ("val", everything), ("test", everything)):
        drawn, positives = [], []
        for batch in getattr(data, f"{split}_dataloader")():
            h, t, negative = (
                batch.n_id[index] for index in (batch.src_index, batch.dst_pos_index, batch.dst_neg_index)
            )
            positives += list(zip(*(each.tolist() for each in (h, batch.rel_type, t)), strict=True))
            for k in range(negative.size(1)):
                drawn += list(zip(*(each.tolist() for each in (h, batch.rel_type, negative[:, k])), strict=True))
        assert sorted(positives) == sorted(known[split])
        assert not set(drawn) & refused
        assert any((h, t) in pairs for h, _, t in drawn)
    data.teardown()
    binary = kg(links=COLUMN | {"neg_sampling": "binary"}, evaluation={"mode": "sampled"}, batch_size=150)
    binary.prepare_data()
    binary.setup()
    (batch,) = binary.train_dataloader()
    source, destination = batch.n_id[batch.edge_label_index].tolist()
    relation = batch.rel_type.tolist() * 2
    found = list(zip(source, relation, destination, strict=True))
    assert set(found[: len(batch.rel_type)]) == known["train"]
    assert not set(found[len(batch.rel_type) :]) & known["train"]
    binary.teardown()


YAML = """
model:
  class_path: glt_lightning.LinkPredictor
  init_args: {encoder: none, decoder: complex, loss: softmax, corrupt: both, hidden_channels: 16, lr: 0.05,
              metrics: [mrr], ranking: [filtered_mrr, filtered_hits@10]}
trainer: {max_epochs: 2, enable_progress_bar: false, enable_model_summary: false, accelerator: cpu}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    task: link
    num_neighbors: []
    batch_size: 64
    links:
      relation: how
      edge_splits: {num_val: 0.1, num_test: 0.1}
      neg_sampling: {mode: triplet, amount: 8}
    evaluation: {mode: layerwise}
    dataset:
      nodes: {path: things.csv, id: name}
      edges: {path: facts.csv, source: head, destination: tail, label: how}
"""


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the tables and the configuration of a run. Relations are words of a column."""
    monkeypatch.chdir(tmp_path)
    Path("things.csv").write_text("name\n" + "".join(f"t-{i}\n" for i in range(NODES)))
    lines = [f"t-{h},{RELATIONS[r]},t-{t}\n" for h, r, t in triples().T]
    Path("facts.csv").write_text("head,how,tail\n" + "".join(lines))
    Path("new.csv").write_text("head,how,tail\nt-4,back,t-3\nt-5,third,t-9\n")
    Path("wrong.csv").write_text("head,how,tail\nt-4,sideways,t-3\n")
    Path("c.yaml").write_text(YAML)


def test_yaml_alone(facts: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(YAML.strip().splitlines()) <= 25
    main(["fit", "--config", "c.yaml"])
    main(["test", "--config", "c.yaml", "--ckpt_path", "best"])
    assert "test_rank_filtered_hits@10" in capfd.readouterr().out


@pytest.mark.slow
def test_new_facts_the_best_ends_and_messages_by_relation(facts: None, capfd: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--config", "c.yaml"])
    edges = "--data.init_args.evaluation.predict_edges"
    main(["predict", "--config", "c.yaml", "--ckpt_path", "best", edges, "new.csv"])
    (path,) = Path().glob("**/predictions/*.parquet")
    rows = pq.read_table(path).to_pandas()
    assert rows[["id", "rel_type", "destination_id"]].values.tolist() == [
        ["t-4", "back", "t-3"],
        ["t-5", "third", "t-9"],
    ]
    with pytest.raises(SystemExit):
        main(["predict", "--config", "c.yaml", "--ckpt_path", "best", edges, "wrong.csv"])
    assert "expected one of back, first, second, third; found 'sideways'" in capfd.readouterr().err

    main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--k", str(NODES), "--relation", "first"])
    best = pq.read_table("recommendations/rank0.parquet").to_pandas()
    known = {(f"t-{h}", f"t-{t}") for h, r, t in triples().T if RELATIONS[r] == "first"}
    assert (
        set(zip(best.id, best.destination_id, strict=True))
        == {(f"t-{a}", f"t-{b}") for a in range(NODES) for b in range(NODES) if a != b} - known
    )
    with pytest.raises(SystemExit):
        main(["recommend", "--config", "c.yaml", "--ckpt_path", "best"])
    assert "recommend.relation: expected one of back, first, second, third; got None" in capfd.readouterr().err

    said = []
    for ranks in ("1", "2"):
        devices = ["--trainer.strategy", "glt_worker", "--trainer.devices", ranks]
        found = run_cli("test", "--config", "c.yaml", "--ckpt_path", "best", *devices, cwd=os.getcwd())
        said.append(re.findall(r"(?m)^\s*test_rank_filtered_\S+\s+([\d.]+)\s*$", found.stdout))
    assert len(said[0]) == 2
    assert said[0] == said[1]  # of all ranks

    reads = ["--model.init_args.encoder", "RGCN", "--model.init_args.encoder_kwargs", "{num_relations: 4}"]
    hops = ["--model.init_args.num_layers", "1", "--data.init_args.num_neighbors", "[5]"]
    main(["fit", "--config", "c.yaml", *reads, *hops])


def test_mistakes(kg: Any, make_trainer: Any) -> None:
    with pytest.raises(
        DataError, match=r"links.relation: edges of type node__to__node have no attribute 'sort'; they have kind"
    ):
        _ = kg(links=COLUMN | {"relation": "sort"}).num_relations
    graph = in_a_column()
    graph.kind = graph.kind - 1
    with pytest.raises(DataError, match=r"links.relation: .* expected an integer >= 0 for each edge, or text; got -1"):
        _ = kg(dataset=graph).num_relations
    with pytest.raises(OptionError, match=r"links.relation: has no effect with task: edge"):
        kg(task="edge", links=COLUMN | {"neg_sampling": None})
    with pytest.raises(OptionError, match=r"links.relation: the kinds of edges of one edge type, and .* names several"):
        kg("types", links=TYPED | {"relation": "kind"})
    data = kg()
    with pytest.raises(OptionError, match="decoder: dot: the edges have 4 relations"):
        predictor(data, decoder="dot")
    with pytest.raises(
        OptionError, match="corrupt: both: negatives are drawn among nodes of type 'item', and edges lead from"
    ):
        metadata = (["user", "item"], [("user", "buys", "item")])
        shape: dict[str, Any] = {"metadata": metadata, "num_nodes": {"user": 3, "item": 3}}
        LinkPredictor(
            {"user": None, "item": None}, edge_type="user__buys__item", encoder="none", corrupt="both", **shape
        )
    with pytest.raises(DataError, match=r"corrupt: both scores triplets, .* Set neg_sampling"):
        pairs = kg(links=COLUMN | {"neg_sampling": "binary"})
        make_trainer(max_epochs=1).fit(predictor(pairs, corrupt="both", loss="bce", metrics=["auc"]), pairs)
    wrong = {"edge": np.array([[0], [1]]), "label": np.array([4])}
    new = kg(evaluation={"mode": "sampled", "predict_edges": wrong})
    with pytest.raises(DataError, match="predict_edges: relation 4 at position 0: the graph has relations 0 to 3"):
        make_trainer().predict(predictor(new), new)


def test_given_splits_are_triples(kg: Any, tmp_path: Path) -> None:
    """Held out are edges of one relation and direction: a pair may be in several splits, by another relation or turned."""
    whole = triples()
    test, val = whole[:, 0:5], whole[:, 95:99]  # some of "first", whose turned edges are of "back", and some of "back"
    given = {name: {"edge": some[[0, 2]], "relation": some[1]} for name, some in (("test", test), ("val", val))}
    np.save(tmp_path / "edge.npy", given["test"]["edge"])
    np.save(tmp_path / "relation.npy", given["test"]["relation"])
    given["test"] = {"edge": str(tmp_path / "edge.npy"), "relation": str(tmp_path / "relation.npy")}
    data = kg(links=COLUMN | {"edge_splits": given}, num_neighbors=[-1], evaluation={"mode": "sampled"})
    data.prepare_data()
    data.setup()
    known = {split: known_triples(data, split) for split in SPLITS}
    rows = [tuple(each) for each in whole.T.tolist()]
    assert known["test"] == rows[0:5]
    assert known["val"] == rows[95:99]
    assert known["train"] == rows[5:95] + rows[99:]
    stored = set()
    for batch in data.test_dataloader():
        ends = batch.n_id[batch.edge_index]
        stored |= set(zip(ends[0].tolist(), batch.edge_type.tolist(), ends[1].tolist(), strict=True))
    assert stored <= set(known["train"])
    assert any((t, h) == (s, d) for h, _, t in known["test"] for s, _, d in stored)
    data.teardown()

    def refused(**changed: Any) -> None:
        _ = kg(links=COLUMN | {"edge_splits": given | changed}, evaluation={"mode": "sampled"}).prepare_data()

    edge = val[[0, 2]]
    with pytest.raises(DataError, match=r"edge_splits.val: expected {edge, relation}, with an integer for each edge"):
        refused(val={"edge": edge})
    with pytest.raises(DataError, match=r"edge_splits.val: edge 0 has relation 4; those of the graph are 0 to 3"):
        refused(val={"edge": edge, "relation": np.full(4, 4)})
    with pytest.raises(DataError, match=r"train and test of .* share 5 edges of relation 0 \(for example 0 and 1\)"):
        refused(train={"edge": whole[[0, 2]], "relation": whole[1]})
    with pytest.raises(DataError, match=r"edge_splits: the edges of type .* have relations. Name .*: links.relation"):
        kg(links=COLUMN | {"relation": None, "edge_splits": given}, evaluation={"mode": "sampled"}).prepare_data()


@pytest.mark.parametrize(("layout", "mode"), [("column", "layerwise"), ("two types", "sampled")])
def test_given_negatives_of_both_ends(kg: Any, make_trainer: Any, layout: str, mode: str) -> None:
    """Each edge has two ranks: among the destinations that are given, and among the sources, of which there are fewer."""
    graph, drawn = (in_a_column() if layout == "column" else of_two_types()), np.random.default_rng(0)
    store = graph if layout == "column" else graph["thing", "in", "place"]
    (head, tail), relation = store.edge_index[:, 0:5].numpy(), store.kind[0:5].numpy()
    tails, heads = drawn.integers(0, 12, (5, 6)), drawn.integers(0, NODES, (5, 3))
    test = {"edge": np.stack([head, tail]), "relation": relation, "negatives": tails, "source_negatives": heads}
    links = COLUMN | {"edge_splits": {"test": test}}
    data = kg(layout, links=links, evaluation={"mode": mode, "batch_size": 2})
    model = predictor(data, metrics=["mrr", "auc"])
    trainer = make_trainer(max_epochs=2)
    trainer.fit(model, data)
    (logged,) = trainer.test(model, data, verbose=False)
    data.setup("test")
    with torch.no_grad():
        source = rows_of(model, data, "thing", NODES)
        destination = source if layout == "column" else rows_of(model, data, "place", 12)
        ranks = []
        for h, r, t, other_tails, other_heads in zip(head, relation, tail, tails, heads, strict=True):
            own = float(model.decoder(source[h], destination[t], r))
            for pairs in ([(h, n) for n in other_tails], [(n, t) for n in other_heads]):
                found = [float(model.decoder(source[a], destination[b], r)) for a, b in pairs]
                ranks.append(1 + (sum(s > own for s in found) + sum(s >= own for s in found)) / 2)
    data.teardown()
    assert logged["test_mrr"] == pytest.approx(np.mean([1 / rank for rank in ranks]), rel=1e-6)

    for changed, said in (
        ({"source_negatives": heads[:4]}, "expected 5 rows, the sources of each edge's negatives; got int64"),
        ({"source_negatives": heads + NODES}, "edge 0 has source"),
        ({"negatives": None}, "negatives is missing"),
    ):
        with pytest.raises(DataError, match=rf"edge_splits.test.source_negatives: {said}"):
            kg(layout, links=links | {"edge_splits": {"test": test | changed}}).prepare_data()
