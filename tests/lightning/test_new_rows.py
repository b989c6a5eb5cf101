"""Rows that came after training are predicted alone, by own ids, as if they had been in the graph from the start."""

from __future__ import annotations

import csv
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from torch_geometric.data import HeteroData

import glt_lightning as glt
from glt_lightning.base import DataError
from glt_lightning.cli import main
from glt_lightning.graph import Manifest
from glt_lightning.lightning import PredictionWriter, predict_new, read_predictions
from glt_lightning.lightning.new_rows import write_version
from glt_lightning.partition.versions import Versions
from tests.lightning.test_tables_encode import CONFIG as OF_SAGE, write_tables

CONFIG = OF_SAGE.replace("glt_lightning.GraphSAGE", "glt_lightning.NodePredictor")

GIVEN = ["--config", "papers.yaml", "--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
LATER = [f"P-{i:03d}" for i in range(270, 300)]


def split_tables(folder: Path) -> None:
    """Moves the last papers, with their edges, and one of the venues into tables of their own."""
    (folder / "later").mkdir()
    for name, columns in (("papers", ["paper"]), ("writes", ["paper"]), ("appears", ["paper"])):
        rows = list(csv.DictReader((folder / f"{name}.csv").open(encoding="utf-8")))
        (folder / "whole").mkdir(exist_ok=True)
        (folder / f"{name}.csv").rename(folder / "whole" / f"{name}.csv")
        is_late = [any(row[c] in LATER for c in columns) for row in rows]
        for where, late in ((folder, False), (folder / "later", True)):
            with (where / f"{name}.csv").open("w", newline="", encoding="utf-8") as sink:
                writer = csv.DictWriter(sink, rows[0].keys())
                writer.writeheader()
                writer.writerows(row for row, its in zip(rows, is_late, strict=True) if its == late)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    write_tables(folder)
    split_tables(folder)
    (folder / "papers.yaml").write_text(CONFIG)
    (folder / "new.yaml").write_text(
        "nodes: {paper: later/papers.csv}\n"
        "edges: {author__writes__paper: {path: later/writes.csv}, paper__in__venue: later/appears.csv}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["fit", *GIVEN, "--trainer.max_epochs", "2", "--seed_everything", "1"])
    return folder


@pytest.fixture
def papers(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def best_of(folder: Path) -> Path:
    return folder / "lightning_logs" / "version_0" / "checkpoints" / "best.ckpt"


def predict(out: str, *further: str, checkpoint: str = "best") -> dict[str, np.ndarray]:
    """Predictions of all neighbours, which have no draws."""
    writer = f"{{class_path: glt_lightning.PredictionWriter, init_args: {{path: {out}}}}}"
    options = [
        "--ckpt_path",
        checkpoint,
        "--trainer.callbacks",
        f"[{writer}]",
        "--data.evaluation.num_neighbors",
        "[-1, -1]",
    ]
    main(["predict", *GIVEN, *options, *further])
    return read_predictions(out)


def test_the_command_line_predicts_new_rows_alone(papers: Path) -> None:
    found = predict("first", "--data.new", "new.yaml")
    assert sorted(found["id"]) == LATER
    assert sorted(found["n_id"]) == [*range(270, 300)]
    assert set(found["class"]) <= {"biology", "chemistry", "physics"}


def test_as_if_they_had_been_in_the_graph(papers: Path) -> None:
    """The whole tables, partitioned anew with the fitted encoding, give the same numbers."""
    new = predict("new2", "--data.new", "new.yaml")
    (base,) = [p for p in (papers / "data" / "partitions").iterdir() if p.name.startswith("papers-")]
    anew = CONFIG.replace("dataset:", f"root: anew\n    dataset:\n      encoding: {base}").replace(
        "papers.csv", "both/papers.csv"
    )
    (papers / "both").mkdir(exist_ok=True)
    for name in ("papers", "writes", "appears"):  # old rows first, so that ids in the graph are the same
        frames = [
            pd.read_csv(papers / where / f"{name}.csv", dtype=str, keep_default_na=False) for where in (".", "later")
        ]
        pd.concat(frames).to_csv(papers / "both" / f"{name}.csv", index=False)
    anew = anew.replace("writes.csv", "both/writes.csv").replace("appears.csv", "both/appears.csv")
    (papers / "anew.yaml").write_text(anew)
    whole = predict(
        "whole2", "--config", "anew.yaml", "--data.evaluation.predict_split", "all", checkpoint=str(best_of(papers))
    )
    at = np.searchsorted(whole["n_id"], new["n_id"])
    assert whole["id"][at].tolist() == new["id"].tolist()
    assert set(new) == set(whole)
    for name in new:
        assert new[name].tolist() == whole[name][at].tolist()


def data_of(folder: Path, **options: Any) -> glt.GLTDataModule:
    import yaml

    given = yaml.safe_load(CONFIG)["data"]["init_args"]
    return glt.GLTDataModule(**given, root=str(folder / "data"), evaluation={"num_neighbors": [-1, -1]}, **options)


def model_of(folder: Path) -> Any:
    return glt.NodePredictor.load_from_checkpoint(best_of(folder), map_location="cpu")


def test_python_predicts_frames(papers: Path) -> None:
    read = {n: pd.read_csv(f"later/{n}.csv", dtype=str, keep_default_na=False) for n in ("papers", "writes", "appears")}
    edges = {"author__writes__paper": read["writes"], ("paper", "in", "venue"): read["appears"]}
    frame = pd.read_csv("later/papers.csv", dtype={"published": str, "language": str, "keyword": str})
    found = predict_new(model_of(papers), data_of(papers), nodes={"paper": frame}, edges=edges)
    expected = predict("new3", "--data.new", "new.yaml")
    assert found["id"].tolist() == expected["id"].tolist()
    assert found["pred"].tolist() == expected["pred"].tolist()


def test_unknown_categories_are_counted_in_the_log(papers: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = Path("later/papers.csv").read_text()
    Path("strange.csv").write_text(text.replace(",en,", ",xx,"))
    with caplog.at_level(logging.WARNING, "glt_lightning"):
        predict("new4", "--data.new", "{nodes: {paper: strange.csv}}")
    assert "new: nodes: paper: column language:" in caplog.text
    assert "of 30 rows have no known category" in caplog.text


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{nodes: {book: later/papers.csv}}", "new: nodes: the graph has no type 'book'; it has: paper, author, venue"),
        ("{nodes: {paper: papers.csv}}", "papers.csv: row 0, column 'paper': id 'P-000' is in the graph already"),
        ("{nodes: {paper: nowhere.csv}}", "nowhere.csv"),
        ("{nodes: {paper: {path: later/papers.csv, id: doi}}}", "id: new rows have the columns of data.dataset"),
        ("{edges: {paper__in__venue: later/appears.csv}}", "'P-270' is not an id of the graph's nodes of type 'paper'"),
        ("{edges: {author__writes__paper: writes.csv}}", "no new nodes of type paper"),
        ("{rows: 1}", "new: unknown key 'rows'"),
        ("{nodes: {paper: later/papers.csv}, embeddings: best}", "embeddings: expected mean, zero, error"),
    ],
)
def test_mistakes_are_said_in_a_line(papers: Path, capfd: pytest.CaptureFixture[str], given: str, said: str) -> None:
    with pytest.raises(SystemExit):
        predict("bad", "--data.new", given)
    assert said in capfd.readouterr().err


def test_other_stages_refuse_new_rows(papers: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["test", *GIVEN, "--ckpt_path", "best", "--data.new", "new.yaml"])
    assert "data.new: these rows are predicted, and test has no use for them" in capfd.readouterr().err


# Rows that stay: versions of the graph.


@pytest.fixture
def growing(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, to whose partition rows are appended."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    return folder


def test_appended_rows_are_a_version_of_the_graph(growing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = predict("new", "--data.new", "new.yaml")
    main(["append", "--config", "papers.yaml", "--new", "new.yaml"])
    said = (
        "version 1: 30 nodes of type paper, 90 edges of type author__writes__paper, 30 edges of type paper__in__venue"
    )
    assert said in capfd.readouterr().out
    every = ["--data.evaluation.predict_split", "all"]
    found = predict("latest", "--data.partition.version", "latest", *every, checkpoint=str(best_of(growing)))
    assert found["n_id"].tolist() == [*range(300)]
    assert found["id"][270:].tolist() == LATER
    for name in expected:
        assert found[name][270:].tolist() == expected[name].tolist()
    served = ["--data.partition.version", "latest", "--trainer.strategy", "glt_server_client"]
    of_server = predict("served", *served, *every, checkpoint=str(best_of(growing)))
    assert {name: values.tolist() for name, values in of_server.items()} == {n: v.tolist() for n, v in found.items()}
    before = predict("before", *every)
    assert before["n_id"].tolist() == [*range(270)]


@pytest.mark.slow
def test_later_rows_lead_to_earlier_ones(growing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["append", "--config", "papers.yaml", "--nodes", "paper=later/papers.csv"])
    main(["append", "--config", "papers.yaml", "--edges", "author__writes__paper=later/writes.csv"])
    assert "version 2: 90 edges of type author__writes__paper" in capfd.readouterr().out
    Path("last.yaml").write_text("{nodes: {author: more.csv}, edges: {author__writes__paper: links.csv}}")
    Path("more.csv").write_text("email,country,born\nz@uni.edu,US,1970\n")
    Path("links.csv").write_text("email,paper\nz@uni.edu,P-299\n")
    main(["append", "--config", "papers.yaml", "--new", "last.yaml"])
    for version, papers in ((1, 300), (3, 300)):
        found = predict(
            f"v{version}",
            *("--data.partition.version", str(version), "--data.evaluation.predict_split", "all"),
            checkpoint=str(best_of(growing)),
        )
        assert len(found["id"]) == papers
    with pytest.raises(SystemExit):
        main(["append", "--config", "papers.yaml", "--nodes", "paper=later/papers.csv"])
    assert "id 'P-270' is in the graph already" in capfd.readouterr().err


def test_training_on_a_version_resumes_on_that_version(growing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["append", "--config", "papers.yaml", "--new", "new.yaml"])
    version = ["--data.partition.version", "1"]
    main(
        [
            "fit",
            *GIVEN,
            *version,
            "--trainer.max_steps",
            "2",
            "--seed_everything",
            "2",
            "--trainer.default_root_dir",
            "v1",
        ]
    )
    (checkpoint,) = Path("v1").rglob("last.ckpt")
    more = ["fit", *GIVEN, "--trainer.max_epochs", "2", "--ckpt_path", str(checkpoint)]
    main([*more, *version])
    Path("gone.yaml").write_text("{nodes: {paper: gone.csv}}")
    Path("gone.csv").write_text("paper\nP-003\n")
    main(["append", "--config", "papers.yaml", "--delete", "gone.yaml"])
    for words, number in (([], 0), (["--data.partition.version", "latest"], 2)):
        with pytest.raises(SystemExit):
            main([*more, *words])
        said = capfd.readouterr().err
        assert "the checkpoint is of version 1 of papers-" in said
        assert f"this run reads version {number} of papers-" in said
        assert "rows were added or deleted. Set data.partition.version: 1, or train anew." in said


def test_a_version_becomes_a_partition_of_its_own(growing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["append", "--config", "papers.yaml", "--new", "new.yaml"])
    version = ["--data.partition.version", "1"]
    run = ["--trainer.max_steps", "2", "--seed_everything", "2", "--trainer.default_root_dir", "v1"]
    main(["fit", *GIVEN, *version, *run])
    (checkpoint,) = Path("v1").rglob("last.ckpt")
    main(["compact", "--config", "papers.yaml", "--out", "compacted"])
    assert "version 1 is now compacted: " in capfd.readouterr().out
    every = ["--data.evaluation.predict_split", "all"]
    found = [
        predict(name, *given, *every, checkpoint=str(best_of(growing)))
        for name, given in (("of-version", version), ("of-new", ["--data.partition.dir", "compacted"]))
    ]
    assert found[1]["id"][270:].tolist() == LATER
    for name in found[0]:
        assert found[0][name].tolist() == found[1][name].tolist()
    # a run on the version goes on with the partition that was made of it
    more = ["fit", *GIVEN, "--trainer.max_epochs", "2", "--ckpt_path", str(checkpoint)]
    main([*more, "--data.partition.dir", "compacted"])
    # later rows lead to nodes that were appended before
    Path("links.csv").write_text("email,paper\na1@uni.edu,P-299\n")
    main(
        [
            "append",
            "--config",
            "papers.yaml",
            "--data.partition.dir",
            "compacted",
            "--edges",
            "author__writes__paper=links.csv",
        ]
    )
    assert "compacted: version 1: 1 edge of type author__writes__paper" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        main(
            [
                "append",
                "--config",
                "papers.yaml",
                "--data.partition.dir",
                "compacted",
                "--nodes",
                "paper=later/papers.csv",
            ]
        )
    assert "id 'P-270' is in the graph already" in capfd.readouterr().err
    for words, said in (
        (["--version", "7"], "there is no version 7"),
        (["--data.root", "other"], "there is no partition"),
    ):
        with pytest.raises(SystemExit):
            main(["compact", "--config", "papers.yaml", "--out", "none", *words])
        assert said in capfd.readouterr().err


def test_deleted_rows_are_in_no_prediction(growing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["append", "--config", "papers.yaml", "--new", "new.yaml"])
    Path("gone.csv").write_text("paper\nP-003\nP-280\n")
    pd.read_csv("writes.csv", dtype=str)[["email", "paper"]][:1].to_csv("pairs.csv", index=False)
    Path("gone.yaml").write_text("{nodes: {paper: gone.csv}, edges: {author__writes__paper: pairs.csv}}")
    Path("pairs.yaml").write_text("{edges: {author__writes__paper: pairs.csv}}")
    email, paper = Path("pairs.csv").read_text().splitlines()[1].split(",")
    main(["append", "--config", "papers.yaml", "--delete", "gone.yaml"])
    assert re.search(
        r"version 2: without 2 nodes of type paper, \d+ edges of type author__writes__paper", capfd.readouterr().out
    )
    every = ["--data.evaluation.predict_split", "all", "--data.partition.version"]
    before, after = (predict(f"v{v}", *every, str(v), checkpoint=str(best_of(growing))) for v in (1, 2))
    assert sorted(set(before["id"].tolist()) - set(after["id"].tolist())) == ["P-003", "P-280"]
    assert len(after["id"]) == 298
    main(["compact", "--config", "papers.yaml", "--out", "less"])
    assert "version 2 is now less: " in capfd.readouterr().out
    found = predict("less-found", *every[:2], "--data.partition.dir", "less", checkpoint=str(best_of(growing)))
    for name in after:
        assert found[name].tolist() == after[name].tolist()
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    glt.predict_layerwise(trainer, model_of(growing), data_of(growing, partition={"version": 2}), "layers")
    exact = glt.read_embeddings("layers")
    for name in ("n_id", "id", "pred"):
        assert exact[name].tolist() == after[name].tolist()
    np.testing.assert_allclose(exact["probability"], after["probability"], atol=1e-5)
    Path("again.csv").write_text(f"email,paper\n{email},P-004\n{email},P-003\n")
    Path("reborn.csv").write_text("".join(Path("papers.csv").read_text().splitlines(keepends=True)[i] for i in (0, 4)))
    for words, error in (
        (["--delete", "gone.yaml"], "node 'P-003' of type 'paper' is deleted already"),
        (
            ["--delete", "pairs.yaml"],
            f"delete: edges of author__writes__paper: there is no edge from {email!r} to {paper!r}.",
        ),
        (["--delete", "gone.yaml", "--new", "new.yaml"], "--delete: a version adds rows or deletes some"),
        (["--delete", "{nodes: {paper: new.csv}}"], "--delete: cannot read"),
        (
            ["--nodes", "paper=reborn.csv"],
            "reborn.csv: row 0, column 'paper': id 'P-003' is in the graph already, of a deleted node.",
        ),
        (
            ["--edges", "author__writes__paper=again.csv"],
            "again.csv: row 1, column 'paper': node 'P-003' of type 'paper' is deleted. Remove the edge.",
        ),
        (
            ["--edges", "author__writes__paper=again.csv", "--data.partition.dir", "less"],
            "again.csv: row 1, column 'paper': node 'P-003' of type 'paper' is deleted. Remove the edge.",
        ),
    ):
        with pytest.raises(SystemExit):
            main(["append", "--config", "papers.yaml", *words])
        assert error in capfd.readouterr().err


def test_layer_by_layer_reads_the_version(growing: Path) -> None:
    """Embeddings of all nodes are those of the graph of whole tables."""
    main(["append", "--config", "papers.yaml", "--new", "new.yaml"])
    model, rows = model_of(growing), {}
    for name, data in (("v1", data_of(growing, partition={"version": 1})), ("v0", data_of(growing))):
        trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
        glt.predict_layerwise(trainer, model, data, name)
        rows[name] = glt.read_embeddings(name)
    assert rows["v0"]["n_id"].tolist() == [*range(270)]
    assert rows["v1"]["n_id"].tolist() == [*range(300)]
    sampled = predict(
        "all",
        "--data.partition.version",
        "1",
        "--data.evaluation.predict_split",
        "all",
        checkpoint=str(best_of(growing)),
    )
    np.testing.assert_allclose(rows["v1"]["probability"], sampled["probability"], atol=1e-5)


def test_graph_servers_refuse_a_version_that_does_not_exist(papers: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(
            ["serve", "--config", "papers.yaml", "--data.partition.version", "1", "--cluster.servers", "[127.0.0.1:0]"]
        )
    assert "there is no version 1; the latest is 0" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "append: no rows are given"),
        (["--new", "new.yaml", "--nodes", "a.csv"], "--new: names the tables already"),
        (["--nodes", "paper=a.csv", "b.csv"], "--nodes: expected paths, or TYPE=PATH for each"),
        (["--new", "new.yaml", "--data.root", "elsewhere"], "there is no partition to append to"),
        (["--new", "list.yaml"], "--new: list.yaml: expected a mapping with nodes and edges, got ['a']"),
        (["--new", "none.yaml"], "--new: cannot read none.yaml"),
    ],
)
def test_mistakes_of_append(papers: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    Path("list.yaml").write_text("- a")
    with pytest.raises(SystemExit):
        main(["append", "--config", "papers.yaml", *words])
    assert said in capfd.readouterr().err


# A graph of arrays, with a node type that has no features.


def authored() -> HeteroData:
    rng = np.random.default_rng(0)
    data = HeteroData()
    data["author"].num_nodes = 12
    data["paper"].x = torch.from_numpy(rng.random((40, 4), dtype=np.float32))
    data["paper"].y = torch.from_numpy(rng.integers(0, 3, 40))
    data["paper"].train_mask = torch.ones(40, dtype=torch.bool)
    data["author", "writes", "paper"].edge_index = torch.from_numpy(
        np.stack([rng.integers(0, 12, 90), rng.integers(0, 40, 90)])
    )
    return data


def model_for(datamodule: glt.GLTDataModule, **options: Any) -> glt.NodePredictor:
    return glt.NodePredictor(
        datamodule.num_features,
        label_facts=datamodule.label_facts,
        hidden_channels=8,
        num_layers=2,
        metadata=datamodule.metadata,
        target_type="paper",
        num_nodes=datamodule.num_nodes,
        **options,
    )


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[glt.GLTDataModule, Any]:
    datamodule = glt.GLTDataModule(
        authored(), root=str(tmp_path), undirected=True, num_neighbors=[-1, -1], batch_size=16
    )
    datamodule.prepare_data()
    model = model_for(datamodule)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, datamodule)
    return datamodule, model


NEW = {"paper": {"x": np.full((2, 4), 0.5, np.float32)}}


def test_new_nodes_without_a_trained_embedding(arrays: tuple[glt.GLTDataModule, Any]) -> None:
    """A new author has the mean of all embeddings, or zeros, and old nodes have their own."""
    datamodule, model = arrays
    by_old = {"author__writes__paper": np.array([[3, 3], [40, 41]])}
    by_new = {"author__writes__paper": np.array([[12, 12], [40, 41]])}
    author = {"author": 1}
    (encoder,) = [each for each in model.modules() if isinstance(getattr(each, "layer", None), torch.nn.Embedding)]
    trained = encoder.layer
    shown = []
    for how, row in (("mean", trained.weight.mean(dim=0)), ("zero", torch.zeros(8))):
        found = predict_new(model, datamodule, nodes=NEW | author, edges=by_new, embeddings=how)
        encoder.layer = torch.nn.Embedding.from_pretrained(torch.cat([trained.weight, row[None]]).detach())
        expected = predict_new(model, datamodule, nodes=NEW | author, edges=by_new, embeddings="error")
        encoder.layer = trained
        assert found["n_id"].tolist() == [40, 41]
        shown.append(found["probability"].tolist())
        assert shown[-1] == expected["probability"].tolist()
    assert shown[0] != shown[1]
    with pytest.raises(DataError, match="came after training, and have no embedding"):
        predict_new(model, datamodule, nodes=NEW | author, edges=by_new, embeddings="error")
    assert len(predict_new(model, datamodule, nodes=NEW, edges=by_old, embeddings="error")["pred"]) == 2


def test_the_data_module_and_the_trainer_stay_as_they_were(arrays: tuple[glt.GLTDataModule, Any]) -> None:
    datamodule, model = arrays
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    predict_new(model, datamodule, nodes=NEW, trainer=trainer)
    assert datamodule.new is None
    assert not any(isinstance(each, PredictionWriter) for each in trainer.callbacks)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"paper": {"x": np.zeros((1, 3), np.float32)}}, r"x of node type 'paper': expected \[1, 4\], got \[1, 3\]"),
        ({"paper": {}}, "expected attributes by name"),
        ({"paper": {"x": np.zeros((1, 4)), "z": np.zeros(2)}}, "different numbers of rows"),
        ({}, "no new nodes of type paper"),
    ],
)
def test_bad_arrays(arrays: tuple[glt.GLTDataModule, Any], nodes: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        predict_new(arrays[1], arrays[0], nodes=nodes)


# The page is run as it stands.


PAGE = (Path(__file__).parents[2] / "docs" / "after-training.md").read_text()
BLOCKS = {kind: re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "yaml")}


def test_the_tables_of_the_page(papers: Path) -> None:
    shutil.copytree("later", "new", dirs_exist_ok=True)
    Path("page.yaml").write_text(BLOCKS["yaml"][0])
    assert sorted(predict("of_page", "--data.new", "page.yaml")["id"]) == LATER
    known: dict[str, Any] = {"glt": glt, "model": model_of(papers), "datamodule": data_of(papers)}
    frames, *_ = BLOCKS["python"]
    exec(compile(frames, "docs/after-training.md", "exec"), known)
    assert sorted(known["found"]["id"]) == LATER


def test_the_arrays_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ring = np.stack([np.arange(10), (np.arange(10) + 1) % 10])
    np.savez("graph.npz", x=np.random.rand(10, 3).astype(np.float32), y=np.arange(10) % 2, edge_index=ring)
    datamodule = glt.GLTDataModule("graph.npz", root="data", num_neighbors=[2, 2], batch_size=4)
    datamodule.prepare_data()
    model = glt.GraphSAGE(datamodule.num_features, datamodule.num_classes, hidden_channels=8, num_layers=2)
    known: dict[str, Any] = {"glt": glt, "np": np, "model": model, "datamodule": datamodule}
    _, arrays, rows = BLOCKS["python"]
    exec(compile(arrays, "docs/after-training.md", "exec"), known)
    assert known["found"]["n_id"].tolist() == [10]
    exec(compile(rows, "docs/after-training.md", "exec"), known)
    assert known["batch"].n_id.tolist() == [10, 0]
    known["grown"].close()
    known["partition"].close()


# Ids that a table of new rows alone does not tell to be text.


def tables_with_ids(folder: Path, name: str, ids: list[Any], ends: list[tuple[Any, Any]]) -> dict[str, str]:
    """Writes tables of nodes and edges. Returns their paths."""
    found = {"nodes": str(folder / f"{name}-nodes.csv"), "edges": str(folder / f"{name}-edges.csv")}
    Path(found["nodes"]).write_text("id,a\n" + "".join(f"{each},0.5\n" for each in ids))
    Path(found["edges"]).write_text("s,d\n" + "".join(f"{s},{d}\n" for s, d in ends))
    return found


def partitioned_tables(folder: Path, ids: list[Any]) -> glt.GLTDataModule:
    paths = tables_with_ids(folder, "old", ids, [(ids[0], ids[1]), (ids[1], ids[2])])
    nodes = {"path": paths["nodes"], "id": "id", "features": "a"}
    edges = {"path": paths["edges"], "source": "s", "destination": "d"}
    data = glt.GLTDataModule(dataset={"nodes": nodes, "edges": edges}, root=str(folder / "root"), num_neighbors=[2])
    data.prepare_data()
    return data


def test_appended_ids_are_text_where_those_of_the_graph_are(tmp_path: Path) -> None:
    data = partitioned_tables(tmp_path, ["p0", "p1", "17"])
    write_version(data, tables_with_ids(tmp_path, "new1", [18, 19], [(18, 17), ("p1", 19)]))
    write_version(data, tables_with_ids(tmp_path, "new2", ["q", 20], [("q", 18), (20, "p0")]))
    manifest = Manifest.load(data.partition_dir)
    assert Versions(data.partition_dir).read(manifest, "latest").ids["node"].tolist() == ["18", "19", "q", "20"]
    with pytest.raises(DataError, match="row 0, column 'id': id '18' is in the graph already"):
        write_version(data, tables_with_ids(tmp_path, "new3", ["18", "r"], [("r", 18)]))


def test_appended_ids_are_integers_where_those_of_the_graph_are(tmp_path: Path) -> None:
    data = partitioned_tables(tmp_path, [3, 5, 7])
    with pytest.raises(
        DataError, match=r"new1-nodes\.csv: row 1, column 'id': id 'q' is no integer, but those of the graph"
    ):
        write_version(data, tables_with_ids(tmp_path, "new1", [8, "q"], [(8, 3)]))
    write_version(data, tables_with_ids(tmp_path, "new2", [8, 9], [(8, 3)]))
    write_version(data, tables_with_ids(tmp_path, "new3", [10], [(8, 10)]))
    manifest = Manifest.load(data.partition_dir)
    assert Versions(data.partition_dir).read(manifest, "latest").ids["node"].tolist() == [8, 9, 10]
