"""`recommend`: the best destinations of each source, from YAML alone, equal to brute force over the embeddings."""

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

from glt_lightning import GLTDataModule, LinkPredictor, read_embeddings, recommend
from glt_lightning.base import DataError, OptionError
from glt_lightning.cli import main
from glt_lightning.inference import top_k
from glt_lightning.lightning import predict_layerwise
from glt_lightning.lightning.layerwise import recommend as module
from tests.helpers import run_cli
from tests.lightning.tiny import learnable_graph

YAML = """
model:
  class_path: glt_lightning.LinkPredictor
  init_args: {hidden_channels: 8, num_layers: 1, decoder: DECODER, lr: 0.02}
trainer: {max_epochs: 2, enable_progress_bar: false, enable_model_summary: false, accelerator: cpu}
data:
  class_path: glt_lightning.GLTDataModule
  init_args:
    task: link
    undirected: true
    num_neighbors: [5]
    batch_size: 64
    seeds: {input_type: user__buys__item}
    links: {edge_splits: {num_val: 0.1, num_test: 0.1}}
    dataset:
      nodes:
        user: {path: users.csv, id: name, features: [age]}
        item: {path: items.csv, id: title, features: [price]}
      edges:
        user__buys__item: {path: buys.csv, source: who, destination: what}
        item__seen_by__user: {path: seen.csv, source: what, destination: who}
"""
USERS, ITEMS = 40, 30


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[tuple[str, str]]]:
    """Writes the tables. User u-39 has no edge; u-0 has bought all items but two."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.stack([rng.integers(0, USERS - 1, 300), rng.integers(0, ITEMS, 300)]), axis=1)
    pairs = np.unique(np.concatenate([pairs, np.stack([np.zeros(28, int), np.arange(28)])], axis=1), axis=1)
    pairs = pairs[:, ~((pairs[0] == 0) & (pairs[1] >= 28))]
    seen = np.stack([rng.integers(0, USERS, 60), rng.integers(0, ITEMS, 60)])
    for name, head, lines in (
        ("users", "name,age", [f"u-{i},{i % 9}" for i in range(USERS)]),
        ("items", "title,price", [f"i {i},{i % 7}" for i in range(ITEMS)]),
        ("buys", "who,what", [f"u-{u},i {i}" for u, i in pairs.T]),
        ("seen", "what,who", [f"i {i},u-{u}" for u, i in seen.T]),
    ):
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    return {name: {(f"u-{u}", f"i {i}") for u, i in each.T} for name, each in (("buys", pairs), ("seen", seen))}


def fitted(decoder: str = "bilinear") -> None:
    Path("c.yaml").write_text(YAML.replace("DECODER", decoder))
    main(["fit", "--config", "c.yaml"])


def read(folder: str = "recommendations") -> Any:
    tables = [pq.read_table(path) for path in sorted(Path(folder).glob("rank*.parquet"))]
    return np.concatenate([each.to_pandas() for each in tables]), tables[0].column_names


def by_user(folder: str = "recommendations") -> dict[str, list[tuple[str, float]]]:
    rows, names = read(folder)
    at = [names.index(n) for n in ("id", "destination_id", "rank", "score")]
    found: dict[str, list[tuple[str, float]]] = {}
    for user, item, rank, score in rows[:, at].tolist():
        found.setdefault(user, []).append((item, score))
        assert rank == len(found[user])
    return found


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("decoder", ["dot", "bilinear", "mlp"])
def test_yaml_alone_is_brute_force(shop: dict[str, set[tuple[str, str]]], decoder: str) -> None:
    fitted(decoder)
    main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--k", "5"])
    main(["embed", "--config", "c.yaml", "--ckpt_path", "best"])
    found = by_user()
    assert set(found) == {f"u-{i}" for i in range(USERS)}  # also who has no edge
    embedded = {t: read_embeddings("embeddings", t) for t in ("user", "item")}
    (path,) = Path().glob("**/best.ckpt")
    model = LinkPredictor.load_from_checkpoint(path)
    rows = [torch.from_numpy(embedded[t]["embedding"]) for t in ("user", "item")]
    with torch.no_grad():
        scores = model.decoder.all_pairs(*rows).numpy()
    items = embedded["item"]["id"].tolist()
    for u, user in enumerate(embedded["user"]["id"].tolist()):
        ranked = sorted((-scores[u, i], i) for i in range(ITEMS) if (user, items[i]) not in shop["buys"])[:5]
        assert [item for item, _ in found[user]] == [items[i] for _, i in ranked]
        np.testing.assert_allclose([s for _, s in found[user]], [-s for s, _ in ranked], rtol=1e-5, atol=1e-6)
    assert len(found["u-0"]) == 2  # all that it has not
    assert len(found["u-39"]) == 5


@pytest.mark.slow
def test_known_are_what_is_said(shop: dict[str, set[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "rank_zero_info", said.append)
    fitted("dot")
    command = ["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--k", "30", "--out"]
    for out, exclude in (("a", "[]"), ("b", "[item__seen_by__user]"), ("c", "[train,val,test,item__seen_by__user]")):
        main([*command, out, "--exclude", exclude])
    pairs = {out: {(user, item) for user, some in by_user(out).items() for item, _ in some} for out in "abc"}
    everything = {(f"u-{u}", f"i {i}") for u in range(USERS) for i in range(ITEMS)}
    assert pairs["a"] == everything
    assert pairs["b"] == everything - shop["seen"]
    assert pairs["c"] == everything - shop["seen"] - shop["buys"]
    assert said[-1].endswith("sources have fewer than 30 destinations that are not known.")
    assert len(said) == 2  # of nothing known there is nothing to say


@pytest.mark.slow
def test_what_came_later_is_known_and_what_is_deleted_is_not(shop: dict[str, set[tuple[str, str]]]) -> None:
    fitted("dot")
    Path("more.csv").write_text("who,what\nu-39,i 3\nu-1,i 29\n")
    Path("views.csv").write_text("what,who\ni 5,u-39\n")
    later = ["--edges", "user__buys__item=more.csv", "--edges", "item__seen_by__user=views.csv"]
    main(["append", "--config", "c.yaml", *later])
    u, i = sorted(shop["seen"])[0]
    Path("gone.csv").write_text(f"what,who\n{i},{u}\n")
    Path("gone.yaml").write_text("edges: {item__seen_by__user: gone.csv}\n")
    main(["append", "--config", "c.yaml", "--delete", "gone.yaml"])
    # From the versions, then from the partition that the last one becomes.
    everything = {(f"u-{u}", f"i {i}") for u in range(USERS) for i in range(ITEMS)}
    buys, seen = shop["buys"] | {("u-39", "i 3"), ("u-1", "i 29")}, shop["seen"] | {("u-39", "i 5")}
    for number, graph in (("a", ["--data.partition.version", "latest"]), ("b", ["--data.partition.dir", "grown"])):
        if number == "b":
            main(["compact", "--config", "c.yaml", "--out", "grown"])
        command = ["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--k", "30", *graph]
        for name, known in (("[train,val,test]", buys), ("[item__seen_by__user]", seen - {(u, i)})):
            out = f"{number}{len(name)}"
            main([*command, "--out", out, "--exclude", name])
            found = {(user, item) for user, some in by_user(out).items() for item, _ in some}
            assert found == everything - known


@pytest.mark.slow
def test_some_sources_in_small_blocks(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted("dot")
    main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--out", "all"])
    monkeypatch.setattr(module, "_SOURCES", 3)
    monkeypatch.setattr(top_k, "_HELD_BYTES", 0)
    Path("some.txt").write_text("u-7\nu-39\n\nu-0\nu-7\n")
    Path("some.csv").write_text("user,name\nu-7,x\nu-39,y\nu-0,z\n")
    np.save("some.npy", np.array([0, 7, 39]))
    expected = {user: by_user("all")[user] for user in ("u-0", "u-7", "u-39")}
    for name in ("some.txt", "some.csv", "some.npy"):
        main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--sources", name, "--out", name[-3:]])
        found = by_user(name[-3:])
        assert {u: [i for i, _ in some] for u, some in found.items()} == {
            u: [i for i, _ in e] for u, e in expected.items()
        }


@pytest.mark.slow
def test_ranks_share_the_sources(shop: Any) -> None:
    fitted("bilinear")
    command = ["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--k", "30"]
    alone = run_cli(*command, "--out", "one", cwd=os.getcwd())
    two = ["--trainer.strategy", "glt_worker", "--trainer.devices", "2", "--data.init_args.partition.num_parts", "2"]
    shared = run_cli(*command, "--out", "two", *two, cwd=os.getcwd())
    few = re.compile(r"recommend: [\d,]+ sources have fewer than 30 destinations")
    said = few.findall(alone.stdout + alone.stderr)
    assert said
    assert few.findall(shared.stdout + shared.stderr) == said  # of both ranks
    assert len(list(Path("two").glob("rank*.parquet"))) == 2
    one, both = by_user("one"), by_user("two")
    assert {u: [i for i, _ in some] for u, some in one.items()} == {u: [i for i, _ in some] for u, some in both.items()}


def test_to_a_url(shop: Any) -> None:
    import fsspec  # type: ignore[import-untyped]

    fitted("dot")
    main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--out", "memory://shop/best"])
    names = {Path(each).name for each in fsspec.filesystem("memory").ls("/shop/best", detail=False)}
    assert any(name.endswith(".parquet") for name in names)


def test_friends_of_friends_are_not_themselves(make_trainer: Any, tmp_path: Path) -> None:
    """In a graph of one node type nobody is recommended to themselves, and an undirected edge is known at both ends."""
    graph = learnable_graph()
    np.savez(tmp_path / "g.npz", x=graph["x"], edge_index=graph["edge_index"])
    options = {"task": "link", "undirected": True, "links": {"edge_splits": {"num_val": 50, "num_test": 50}}}
    data = GLTDataModule(str(tmp_path / "g.npz"), str(tmp_path / "root"), num_neighbors=[5], batch_size=64, **options)
    seed_everything(0, verbose=False)
    model = LinkPredictor(data.num_features, hidden_channels=8, num_layers=1)
    recommend(make_trainer(), model, data, tmp_path / "best", options={"k": 20})
    rows = pq.read_table(tmp_path / "best" / "rank0.parquet").to_pandas()
    pairs = set(zip(rows.n_id, rows.destination, strict=True))
    assert len(pairs) == 240 * 20
    known = {tuple(sorted(pair)) for pair in graph["edge_index"].T.tolist()}
    assert not {tuple(sorted(pair)) for pair in pairs} & known
    assert all(a != b for a, b in pairs)
    predict_layerwise(make_trainer(), model, data, tmp_path / "emb")
    rows_of = read_embeddings(tmp_path / "emb")["embedding"]
    scores = rows_of @ rows_of.T
    hidden = np.array([[a == b or tuple(sorted((a, b))) in known for b in range(240)] for a in range(240)])
    best = np.sort(np.where(hidden, -np.inf, scores), axis=1)[:, ::-1][:, :20]
    np.testing.assert_allclose(rows.score.to_numpy().reshape(240, 20), best, rtol=1e-4, atol=1e-5)


def test_mistakes_are_one_line(shop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    fitted("dot")
    Path("some.txt").write_text("u-7\nu-700\n")
    for given, said in [
        (["--k", "31"], "recommend.k: expected 1 to 30, the number of destinations; got 31"),
        (["--k", "0"], "recommend.k: "),
        (
            ["--exclude", "[bought]"],
            "expected any of train, val, test and item__seen_by__user, user__buys__item; got",
        ),
        (["--index", "fast"], "recommend.index: expected exact, hnsw; got 'fast'"),
        (["--sources", "some.txt"], "'u-700' is no id of a node of type 'user'"),
        (["--sources", "none.txt"], "none.txt: cannot be read"),
        (["--edge_type", "user__likes__item"], "expected the edge type to recommend by, one of user__buys__item"),
    ]:
        capfd.readouterr()
        with pytest.raises(SystemExit):
            main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", *given])
        (line,) = [each for each in capfd.readouterr().err.splitlines() if each.startswith("error:")]
        assert said in line
        assert not Path("recommendations").exists()


def test_models_without_pairs(make_data: Any, make_model: Any, make_trainer: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"Set data.task: link"):
        recommend(make_trainer(), make_model(), make_data(), tmp_path / "out")
    links = {"edge_splits": {"num_val": 0.1, "num_test": 0.1}}
    with pytest.raises(OptionError, match="GraphSAGE has no scores of pairs"):
        recommend(make_trainer(), make_model(), make_data(task="link", links=links), tmp_path / "out")
    with pytest.raises((OptionError, DataError), match=r"sources: .*no node|recommend.sources"):
        data = make_data(task="link", links=links)
        recommend(
            make_trainer(), LinkPredictor(8, hidden_channels=8), data, tmp_path / "out", options={"sources": [0, 500]}
        )


def test_by_faiss(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few nodes are all found; a list is as long as without faiss."""
    pytest.importorskip("faiss")
    fitted("bilinear")
    for index in ("exact", "hnsw"):
        main(["recommend", "--config", "c.yaml", "--ckpt_path", "best", "--index", index, "--out", index])
    exact, near = by_user("exact"), by_user("hnsw")
    assert {u: len(some) for u, some in exact.items()} == {u: len(some) for u, some in near.items()}
    same = [{i for i, _ in exact[u]} == {i for i, _ in near[u]} for u in exact]
    assert np.mean(same) >= 0.9
