"""Edges with labels: splits by column, at random and by time, and `EdgePredictor`, which learns what can be known and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import seed_everything
from torch_geometric.data import Data, HeteroData

from glt_lightning import EdgePredictor, GLTDataModule, NodePredictor
from glt_lightning.base import DataError, OptionError
from glt_lightning.cli import main
from glt_lightning.models.tasks import make_task, make_task_metrics, update_metric
from tests.lightning.tiny import learnable_graph

USERS, MOVIES, NOISE = 90, 60, 0.5
RATES = "user__rates__movie"
TYPE = ("user", "rates", "movie")


def ratings(seed: int = 0, count: int = 4800) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of users and movies, each once, and ratings of rank two with noise."""
    rng = np.random.default_rng(seed)
    users, movies = rng.normal(size=(USERS, 2)), rng.normal(size=(MOVIES, 2))
    pair = rng.choice(USERS * MOVIES, count, replace=False)
    pairs = np.stack([pair // MOVIES, pair % MOVIES])
    clean = 3 + (users[pairs[0]] * movies[pairs[1]]).sum(1)
    return pairs, clean + rng.normal(size=count) * NOISE


def rated(**attrs: Any) -> HeteroData:
    pairs, rating = ratings()
    graph = HeteroData()
    graph["user"].num_nodes, graph["movie"].num_nodes = USERS, MOVIES
    graph[TYPE].edge_index = torch.from_numpy(pairs)
    graph[TYPE].rating = torch.from_numpy(rating).float()
    for name, values in attrs.items():
        graph[TYPE][name] = torch.as_tensor(values)
    return graph


LINKS = {"label": "rating", "edge_splits": {"num_val": 0.1, "num_test": 0.1}}


def described(data: GLTDataModule) -> dict[str, Any]:
    names = ("label_facts", "metadata", "num_nodes", "edge_facts", "target_facts", "num_categories")
    return {"in_channels": data.num_features, "edge_type": data.link_type} | {n: getattr(data, n) for n in names}


@pytest.fixture
def edge_data(make_data: Callable[..., GLTDataModule]) -> Callable[..., GLTDataModule]:
    def make(dataset: Any, links: Any = LINKS, **options: Any) -> GLTDataModule:
        typed = {"input_type": RATES} if isinstance(dataset, HeteroData) else {}
        given = {"task": "edge", "undirected": True, "num_neighbors": [5], "batch_size": 256, "links": links}
        return make_data(dataset=dataset, **given | {"seeds": typed} | options)

    return make


def opened(data: GLTDataModule) -> GLTDataModule:
    data.prepare_data()
    data.setup()
    return data


def split_of(data: GLTDataModule, name: str) -> Any:
    graph = data._opened()
    return graph.edge_split(graph.schema.edge_index(TYPE), name)


def stored_pairs(data: GLTDataModule, edge_type: str = RATES) -> list[tuple[int, int]]:
    """The edges that carry messages, by the user's ids."""
    names = tuple(edge_type.split("__"))
    pairs = []
    data.evaluation = replace(data.evaluation, num_neighbors=[-1])
    for batch in (*data.train_dataloader(), *data.test_dataloader()):
        src, dst = batch[names].edge_index
        ends = batch[names[0]].n_id[src], batch[names[2]].n_id[dst]
        pairs += list(zip(*(each.tolist() for each in ends), strict=True))
    return sorted(set(pairs))


def least_squares(train: Any, test: Any) -> float:
    """RMSE of the test edges by who knows that ratings are 3 and a product of rank two: alternating least squares."""
    rng, found = np.random.default_rng(0), [np.zeros((USERS, 2)), np.zeros((MOVIES, 2))]
    found[1] = rng.normal(size=(MOVIES, 2))
    for step in range(60):
        side = step % 2
        of, other = train.edge[side], found[1 - side][train.edge[1 - side]]
        for node in range(len(found[side])):
            a, y = other[of == node], train.label[of == node] - 3
            found[side][node] = np.linalg.solve(a.T @ a + 0.2 * np.eye(2), a.T @ y)
    guess = 3 + (found[0][test.edge[0]] * found[1][test.edge[1]]).sum(1)
    return float(np.sqrt(((guess - test.label) ** 2).mean()))


@pytest.mark.slow
def test_ratings_are_learned_to_their_noise(edge_data: Any, make_trainer: Any) -> None:
    data = edge_data(rated())
    seed_everything(0, verbose=False)
    options = {"hidden_channels": 16, "num_layers": 1, "lr": 0.02, "weight_decay": 5e-4}
    model = EdgePredictor(**described(data), **options)
    assert model.task.name == "regression"
    assert model.checkpoint_monitor == ("val_mae", "min")
    trainer = make_trainer(max_epochs=40)
    trainer.fit(model, data)
    found = trainer.test(model, data, verbose=False)[0]["test_rmse"]
    floor = least_squares(split_of(opened(data), "train"), split_of(data, "test"))
    data.teardown()
    assert NOISE * 0.95 < floor < NOISE * 1.1
    assert floor * 0.95 < found < floor * 1.1


@pytest.mark.slow
def test_a_factorisation_comes_within_a_tenth_of_the_noise(edge_data: Any, make_trainer: Any) -> None:
    """Without messages, the linear decoder is a product of embeddings with a bias of each user and movie."""
    data = edge_data(rated(), num_neighbors=[])
    seed_everything(0, verbose=False)
    options: dict[str, Any] = {"encoder": "none", "decoder": "linear", "hidden_channels": 2, "lr": 0.02}
    model = EdgePredictor(**described(data), **options, weight_decay=0.002)
    trainer = make_trainer(max_epochs=40)
    trainer.fit(model, data)
    assert NOISE * 0.95 < trainer.test(model, data, verbose=False)[0]["test_rmse"] < NOISE * 1.1


def test_a_random_split_is_of_edges_and_holds_them_out(edge_data: Any) -> None:
    pairs, rating = ratings()
    data = opened(edge_data(rated(), partition={"num_parts": 2}))
    splits = {name: split_of(data, name) for name in ("train", "val", "test")}
    assert [len(each) for each in splits.values()] == [3840, 480, 480]
    at = {(a, b): n for n, (a, b) in enumerate(pairs.T.tolist())}
    columns = {name: [at[a, b] for a, b in each.edge.T.tolist()] for name, each in splits.items()}
    assert sorted(n for each in columns.values() for n in each) == list(range(pairs.shape[1]))
    for name, each in splits.items():
        np.testing.assert_array_equal(each.label, rating[columns[name]].astype(np.float32))
    trained = sorted(map(tuple, splits["train"].edge.T.tolist()))
    assert stored_pairs(data) == trained  # those of val and test pass no messages
    assert stored_pairs(data, "movie__rev_rates__user") == sorted((b, a) for a, b in trained)
    assert "rating" not in next(iter(data.train_dataloader()))[TYPE]
    data.teardown()


def test_the_only_edge_type_of_the_user_needs_no_name(edge_data: Any) -> None:
    """Its reverses, which ``undirected`` adds, are no choice."""
    named, unnamed = (opened(edge_data(rated(), **more)) for more in ({}, {"seeds": {}}))
    np.testing.assert_array_equal(split_of(unnamed, "train").edge, split_of(named, "train").edge)
    assert next(iter(unnamed.train_dataloader())).edge_types == next(iter(named.train_dataloader())).edge_types
    named.teardown()
    unnamed.teardown()


def test_the_latest_edges_are_the_test(edge_data: Any) -> None:
    day = np.random.default_rng(3).integers(0, 50, 4800)
    links = {"label": "rating", "edge_splits": {"num_val": 0.2, "num_test": 0.2, "time": "day"}}
    data = opened(edge_data(rated(day=day), links))
    times = {name: split_of(data, name).time for name in ("train", "val", "test")}
    assert times["train"].max() < times["val"].min()
    assert times["val"].max() < times["test"].min()
    assert sum(map(len, times.values())) == 4800
    assert len(times["test"]) == pytest.approx(960, abs=100)
    data.teardown()


def test_neighbours_are_older_than_the_edge_to_predict(edge_data: Any) -> None:
    day = np.random.default_rng(3).integers(0, 50, 4800)
    links = {"label": "rating", "edge_splits": {"num_val": 0.2, "num_test": 0.2, "time": "day"}}
    options = {"partition": {"time_attr": "day"}, "sampling": {"time_attr": "day"}, "batches": {"disjoint": True}}
    data = opened(edge_data(rated(day=day), links, **options))
    seen = 0
    for batch in data.train_dataloader():
        until = batch[TYPE].edge_label_time
        for edge_type in batch.edge_types:
            of = batch[edge_type[2]].batch[batch[edge_type].edge_index[1]]
            assert (batch[edge_type].day <= until[of]).all()
            seen += len(of)
    assert seen > 1000
    data.teardown()


def transactions() -> Data:
    """Payments, some twice between the same accounts. Whether one is fraud depends on its own amount and on its receiver."""
    rng = np.random.default_rng(0)
    accounts, count = 150, 3000
    edges = rng.integers(0, accounts, (2, count))
    edges[:, -300:] = edges[:, :300]
    crook = rng.normal(size=accounts)
    amount, hour = rng.normal(size=(2, count))
    score = 2 * amount + 2 * crook[edges[1]] - 2
    fraud = (score + rng.logistic(size=count) * 0.3 > 0).astype(np.int64)
    x = np.stack([crook + rng.normal(size=accounts) * 0.2, np.ones(accounts)], axis=1)
    attr = torch.from_numpy(np.stack([amount, hour], axis=1)).float()
    return Data(
        x=torch.from_numpy(x).float(),
        edge_index=torch.from_numpy(edges),
        edge_attr=attr,
        fraud=torch.from_numpy(fraud),
        edge_stamp=torch.arange(count),
    )


def as_edges(graph: Data) -> Data:
    graph.edge_fraud = graph.fraud
    del graph.fraud
    return graph


@pytest.mark.parametrize("with_attrs", [True, False])
def test_fraud_by_its_own_attributes(edge_data: Any, make_trainer: Any, with_attrs: bool) -> None:
    """The amount of an edge to predict is read with with_target_attrs alone: without it, what is left is the receiver."""
    links = {"label": "edge_fraud", "edge_splits": LINKS["edge_splits"], "with_target_attrs": with_attrs}
    data = edge_data(as_edges(transactions()), links, seeds={"weights": "balanced"})
    assert data.label_facts == {"kind": "int", "width": None, "num_classes": 2, "class_names": None}
    assert data.target_facts == ({"width": 2, "weight": False, "num_categories": []} if with_attrs else None)
    seed_everything(0, verbose=False)
    model = EdgePredictor(**described(data), encoder="GATv2", hidden_channels=16, num_layers=1, lr=0.01)
    trainer = make_trainer(max_epochs=12)
    trainer.fit(model, data)
    auc = trainer.test(model, data, verbose=False)[0]["test_auc"]
    assert auc > 0.93 if with_attrs else 0.6 < auc < 0.88


def test_parallel_edges_are_split_apart(edge_data: Any, caplog: pytest.LogCaptureFixture) -> None:
    links = {"label": "edge_fraud", "edge_splits": LINKS["edge_splits"], "with_target_attrs": True}
    graph = as_edges(transactions())
    data = opened(edge_data(graph, links, undirected=None))
    found = {n: data._opened().edge_split(0, n) for n in ("train", "val", "test")}
    keys = {n: {tuple(row) for row in each.attr.tolist()} for n, each in found.items()}
    assert sum(map(len, keys.values())) == graph.num_edges
    everything = {tuple(row): n for n, row in enumerate(graph.edge_attr.tolist())}
    for each in found.values():
        at = [everything[tuple(row)] for row in each.attr.tolist()]
        np.testing.assert_array_equal(each.edge, graph.edge_index[:, at].numpy())
        np.testing.assert_array_equal(each.label, graph.edge_fraud[at].numpy())
    seen = set()
    for batch in data.test_dataloader():
        seen |= {tuple(row) for row in batch.edge_attr.tolist()}
        assert not {tuple(row) for row in batch.edge_label_attr.tolist()} & {
            tuple(row) for row in batch.edge_attr.tolist()
        }
    assert seen <= keys["train"]
    assert "stored in the graph" not in caplog.text  # which parallel edges are, with other labels
    data.teardown()


def test_classes_are_drawn_equally_often(edge_data: Any) -> None:
    graph = as_edges(transactions())
    graph.edge_fraud[torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(0)) < 0.8] = 0
    links = {"label": "edge_fraud", "edge_splits": LINKS["edge_splits"]}
    shares = []
    for weights in ({}, {"weights": "balanced"}):
        data = opened(edge_data(graph, links, seeds=weights, batch_size=64))
        labels = torch.cat([batch.edge_label for batch in data.train_dataloader()])
        shares.append(labels.float().mean().item())
        data.teardown()
    assert shares[0] < 0.15
    assert shares[1] == pytest.approx(0.5, abs=0.05)


def test_several_labels_of_an_edge(edge_data: Any, make_trainer: Any) -> None:
    pairs, rating = ratings()
    tags = np.stack([rating > 3, pairs[0] % 2 == 0, np.full(len(rating), -1)], axis=1).astype(np.int64)
    tags[:100, 0] = -1
    data = edge_data(rated(tags=tags), {"label": "tags", "edge_splits": LINKS["edge_splits"]})
    seed_everything(0, verbose=False)
    model = EdgePredictor(
        **described(data), hidden_channels=16, num_layers=1, lr=0.02, metrics=["acc"], decoder="linear"
    )
    assert model.task.name == "multilabel"
    trainer = make_trainer(max_epochs=6)
    trainer.fit(model, data)
    out = trainer.predict(model, data)
    pred = torch.cat([each["pred"] for each in out])
    even = torch.cat([each["n_id"] for each in out]) % 2 == 0
    assert (pred[:, 1] == even).float().mean() > 0.95


def test_stars_have_an_order(edge_data: Any, make_trainer: Any) -> None:
    stars = np.clip(np.round(ratings()[1]), 1, 5).astype(np.int64) - 1
    data = edge_data(rated(stars=stars), {"label": "stars", "edge_splits": LINKS["edge_splits"]})
    seed_everything(0, verbose=False)
    model = EdgePredictor(**described(data), task="ordinal", hidden_channels=16, num_layers=1, lr=0.02)
    assert model.checkpoint_monitor == ("val_mae", "min")
    trainer = make_trainer(max_epochs=15)
    trainer.fit(model, data)
    found = trainer.test(model, data, verbose=False)[0]
    assert found["test_mae"] < 0.6  # always 2: 1.1
    assert found["test_qwk"] > 0.7
    rows = trainer.predict(model, data)[0]
    torch.testing.assert_close(rows["probability"].sum(1), torch.ones(len(rows["pred"])))
    assert (rows["probability"] >= 0).all()


def test_ordinal_loss_and_metrics_by_hand() -> None:
    facts = {"kind": "int", "width": None, "num_classes": 3, "class_names": None}
    task = make_task("ordinal", facts, None)
    with torch.no_grad():
        task.first.fill_(0.0)
        task.gaps.fill_(np.log(np.e - 1))  # softplus 1
    out, y = torch.tensor([[0.5], [-2.0], [3.0]]), torch.tensor([1, 0, 2])
    s = torch.sigmoid
    expected = (
        -(s(torch.tensor(0.5)) - s(torch.tensor(-0.5))).log()
        - (1 - s(torch.tensor(-2.0))).log()
        - s(torch.tensor(2.0)).log()
    )
    assert task.loss(out, y)[0].item() == pytest.approx(expected.item() / 3, abs=1e-6)
    metrics = make_task_metrics(task, ["mae", "acc", "qwk"])
    for metric in metrics.values():
        update_metric(metric, *task.scores(out, torch.tensor([1, 2, 2])))
    assert metrics["mae"].compute() == pytest.approx(2 / 3)
    assert metrics["acc"].compute() == pytest.approx(2 / 3)


def test_nodes_may_have_ordinal_labels_too(make_data: Any, make_trainer: Any) -> None:
    data = make_data()
    model = NodePredictor(data.num_features, data.label_facts, task="ordinal", hidden_channels=8, num_layers=1)
    make_trainer(max_epochs=1).fit(model, data)


def test_layer_by_layer_gives_the_same_metrics(edge_data: Any, make_trainer: Any) -> None:
    found = []
    for mode in ("sampled", "layerwise"):
        data = edge_data(rated(), evaluation={"mode": mode, "num_neighbors": None if mode == "layerwise" else [-1]})
        seed_everything(0, verbose=False)
        model = EdgePredictor(**described(data), hidden_channels=8, num_layers=1)
        found.append(make_trainer().test(model, data, verbose=False)[0])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


YAML = """
model:
  class_path: glt_lightning.EdgePredictor
  init_args: {hidden_channels: 16, num_layers: 1, lr: 0.02}
trainer: {max_epochs: 2, enable_progress_bar: false, enable_model_summary: false, accelerator: cpu}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    task: edge
    undirected: true
    num_neighbors: [5]
    batch_size: 128
    links: {with_target_attrs: true}
    seeds: {input_type: user__rates__movie}
    dataset:
      nodes:
        user: {path: users.csv, id: name}
        movie: {path: movies.csv, id: title}
      edges:
        user__rates__movie:
          {path: ratings.csv, source: who, destination: what, label: verdict, split: fold, features: "*", encode: auto}
"""


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pairs, rating = ratings(count=900)
    verdict = np.array(["bad", "fine", "good"])[np.digitize(rating, [2, 4])]
    fold = np.array(["train", "train", "train", "val", "test"])[np.arange(900) % 5]
    kind = np.array(["disc", "tape", "web"])[np.arange(900) % 3]
    lines = [
        f"u-{a},m {b},{v},{f},{k},{n % 7}"
        for n, (a, b, v, f, k) in enumerate(zip(*pairs, verdict, fold, kind, strict=True))
    ]
    (tmp_path / "ratings.csv").write_text("\n".join(["who,what,verdict,fold,kind,price", *lines]) + "\n")
    (tmp_path / "users.csv").write_text("\n".join(["name", *(f"u-{i}" for i in range(USERS))]) + "\n")
    (tmp_path / "movies.csv").write_text("\n".join(["title", *(f"m {i}" for i in range(MOVIES))]) + "\n")
    new = [f"u-{a},m {b},web,2" for a, b in ((5, 7), (5, 8), (0, 59), (5, 7))]
    (tmp_path / "new.csv").write_text("\n".join(["who,what,kind,price", *new]) + "\n")
    (tmp_path / "c.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_in_yaml_alone(tables: Path) -> None:
    main(["fit", "--config", "c.yaml"])
    main(["test", "--config", "c.yaml", "--ckpt_path", "best"])
    main(["predict", "--config", "c.yaml", "--ckpt_path", "best"])
    (path,) = tables.glob("**/predictions/rank0.parquet")
    found = pq.read_table(path).to_pandas().sort_values("input_id")
    lines = [line.split(",") for line in (tables / "ratings.csv").read_text().splitlines()[1:]]
    assert list(zip(found.id, found.destination_id, strict=True)) == [
        (w, m) for w, m, _, fold, *_ in lines if fold == "test"
    ]
    assert set(found["class"]) <= {"bad", "fine", "good"}
    new = ["--data.init_args.evaluation.predict_edges", "new.csv"]
    main(["predict", "--config", "c.yaml", "--ckpt_path", "best", *new])
    path = max(tables.glob("**/predictions/rank0.parquet"), key=lambda each: each.stat().st_mtime)
    found = pq.read_table(path).to_pandas().sort_values("input_id")
    assert list(zip(found.id, found.destination_id, strict=True)) == [
        ("u-5", "m 7"),
        ("u-5", "m 8"),
        ("u-0", "m 59"),
        ("u-5", "m 7"),
    ]
    assert found.probability.iloc[0] == pytest.approx(found.probability.iloc[3])


@pytest.mark.diagonal(most=3)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ['features: "*"', "features: [verdict, price]"],
            "label: 'verdict' is also a feature, an attribute or the weight",
        ),
        (["label: verdict, ", ""], "edges of type user__rates__movie have no labels"),
        (["split: fold, ", ""], "edges of type user__rates__movie have no splits"),
        (["links: {with_target_attrs: true}", "links: {neg_sampling: binary}"], "task: edge predicts labels"),
        (["user__rates__movie}\n    data", "user__likes__movie}\n    data"], "expected the edge type to predict"),
        (["label: verdict", "label: opinion"], "opinion"),
        (["task: edge", "task: link"], "no labels of edges are known. Set data.task: edge"),
    ],
)
def test_mistakes_are_one_line(tables: Path, capfd: pytest.CaptureFixture[str], change: list[str], said: str) -> None:
    (tables / "c.yaml").write_text(YAML.replace(*change))
    with pytest.raises(SystemExit):
        main(["fit", "--config", "c.yaml"])
    (line,) = [each for each in capfd.readouterr().err.splitlines() if each.startswith("error:")]
    assert said in line


def test_unknown_ids_of_new_edges_are_named(tables: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--config", "c.yaml"])
    (tables / "new.csv").write_text("who,what,kind,price\nu-5,m 7,web,1\nu-5,m 700,web,1\n")
    with pytest.raises(SystemExit):
        main(
            [
                "predict",
                "--config",
                "c.yaml",
                "--ckpt_path",
                "best",
                "--data.init_args.evaluation.predict_edges",
                "new.csv",
            ]
        )
    assert "'m 700' is no id of a node of the graph" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({"label": "stars"}, "have no attribute 'stars'; they have rating"),
        (
            {"label": "rating", "edge_splits": {"num_val": 0.5, "num_test": 0.5}},
            "leave no training edge of .* edges that can be",
        ),
        (
            {"label": "rating", "edge_splits": {"num_val": 0.1, "time": "rating"}},
            "expected an edge attribute of integers; got 'rating'",
        ),
        (
            {"label": "rating", "edge_splits": {"train": [0, 1], "val": [1, 2]}},
            "train and val of user__rates__movie share 1 edge",
        ),
        ({"label": "rating", "edge_splits": {"train": [0, 4800]}}, "expected ids of edges, 0 to 4799"),
        (
            {"label": "rating", "edge_splits": {"num_val": 2.5}},
            "num_val: expected a share of the edges in .*; got 2.5",
        ),
    ],
)
def test_labels_and_splits_that_do_not_fit(edge_data: Any, links: dict[str, Any], said: str) -> None:
    with pytest.raises((DataError, OptionError), match=said):
        edge_data(rated(), links).prepare_data()


def test_random_splits_without_rows(edge_data: Any) -> None:
    links = LINKS | {"edge_splits": {"num_val": 0.0, "num_test": 0.0}, "with_target_attrs": True}
    data = opened(edge_data(rated(edge_attr=torch.ones(len(ratings()[1]), 2)), links))
    try:
        assert len(split_of(data, "train").label) == len(ratings()[1])
    finally:
        data.teardown()


def test_a_label_of_the_wrong_kind(edge_data: Any) -> None:
    data = edge_data(rated())
    with pytest.raises(DataError, match=r"task: multiclass: does not fit the labels, which are float .N."):
        EdgePredictor(**described(data), task="multiclass")


def test_edges_to_predict_without_the_task(make_data: Any, make_trainer: Any, edge_data: Any) -> None:
    with pytest.raises(OptionError, match=r"links.label: has no effect with task: link"):
        make_data(task="link", links={"label": "rating"})
    with pytest.raises(OptionError, match=r"links.label: has no effect with task: node"):
        make_data(links={"label": "rating"})
    facts = {"kind": "float", "width": None, "num_classes": None, "class_names": None}
    with pytest.raises(OptionError, match=r"Set data.task: edge"):
        make_trainer().fit(EdgePredictor(8, facts, hidden_channels=8), make_data())
    data = edge_data(rated())
    model = EdgePredictor(**described(data) | {"target_facts": {"width": 2, "weight": False, "num_categories": []}})
    with pytest.raises(DataError, match="built for target_facts"):
        make_trainer().fit(model, data)


def test_predict_of_links_has_a_default_and_both_ids(tables: Path) -> None:
    text = YAML.replace("EdgePredictor", "LinkPredictor").replace("task: edge", "task: link")
    text = text.replace("links: {with_target_attrs: true}", "links: {edge_splits: {num_val: 0.1, num_test: 0.1}}")
    (tables / "c.yaml").write_text(text)
    main(["fit", "--config", "c.yaml"])
    main(["predict", "--config", "c.yaml", "--ckpt_path", "best"])
    (path,) = tables.glob("**/predictions/rank0.parquet")
    found = pq.read_table(path).to_pandas()
    assert len(found) == 90
    assert found.id.str.startswith("u-").all()
    assert found.destination_id.str.startswith("m ").all()
    assert (found.destination_id == "m " + found.destination.astype(str)).all()


def test_graphs_in_files_have_labels_by_name(edge_data: Any, tmp_path: Path) -> None:
    graph = learnable_graph()
    label = np.random.default_rng(0).integers(0, 3, graph["edge_index"].shape[1])
    np.savez(tmp_path / "g.npz", x=graph["x"], edge_index=graph["edge_index"], edge_kind=label)
    links = {"label": "edge_kind", "edge_splits": {"num_val": 100, "num_test": 100}}
    data = edge_data(str(tmp_path / "g.npz"), links)
    before = data.label_facts
    assert before == {"kind": "int", "width": None, "num_classes": 3, "class_names": None}
    opened(data)
    assert (
        GLTDataModule(str(tmp_path / "g.npz"), data.root, task="edge", undirected=True, links=links).label_facts
        == before
    )
    assert len(data._opened().edge_split(0, "val")) == 100
    data.teardown()
