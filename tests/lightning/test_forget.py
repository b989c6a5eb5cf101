"""``compact --forget`` on tables: ids, features and trained embeddings of deleted nodes are gone, and the next run goes on."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import glt_lightning as glt
from glt_lightning.base import EDGE, DataError, OptionError, Progress
from glt_lightning.cli import main
from glt_lightning.graph import Manifest
from glt_lightning.lightning import checkpoints_in, forget_in_checkpoints
from glt_lightning.partition import ConvertedTables, Forgetting, compact_partition, delete_rows, partition_graph
from tests.lightning.test_deploy import Ask, columns_of, talking
from tests.lightning.test_new_rows import GIVEN, growing, predict, trained  # noqa: F401

FORGET = ["compact", "--config", "papers.yaml", "--out", "less", "--forget"]


def holding(folder: Path, *texts: bytes) -> list[Path]:
    every = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in every if any(text in path.read_bytes() for text in texts)]


@pytest.fixture
def shrunk(growing: Path) -> Path:  # noqa: F811
    """Version 2 lacks P-003, of the tables, and P-280, of version 1."""
    main(["append", "--config", "papers.yaml", "--new", "new.yaml"])
    Path("gone.csv").write_text("paper\nP-003\nP-280\n")
    Path("gone.yaml").write_text("{nodes: {paper: gone.csv}}")
    main(["append", "--config", "papers.yaml", "--delete", "gone.yaml"])
    return growing


def without(path: str, *ids: str) -> None:
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    rows[~rows["paper"].isin(ids)].to_csv(path, index=False)


def test_deleted_rows_are_gone_and_runs_go_on(shrunk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (base,) = [p for p in Path("data/partitions").iterdir() if (p / "manifest.json").exists()]
    (tables,) = Path("data/tables").iterdir()
    (checkpoint,) = shrunk.rglob("best.ckpt")
    version = ["--data.partition.version", "latest"]
    main(["fit", *GIVEN, *version, "--trainer.max_steps", "2", "--trainer.default_root_dir", "v2"])
    (of_version,) = Path("v2").rglob("last.ckpt")
    every = ["--data.evaluation.predict_split", "all"]
    before = predict("before", *every, *version, checkpoint=str(checkpoint))
    capfd.readouterr()
    main([*FORGET, "--dry_run", "--checkpoints", str(checkpoint)])
    said = capfd.readouterr().out
    assert "Would remove:\n  " in said
    assert f"{tables.resolve()}: all but the ids of other nodes" in said
    assert f"{checkpoint}: embeddings of deleted nodes" in said
    assert base.exists()
    assert not Path("less").exists()
    main(FORGET)
    said = capfd.readouterr().out
    assert "version 2 is now less: " in said
    assert "\n  checkpoints of models with an embedding for each node (--checkpoints)" in said
    assert not base.exists()
    assert not Path(f"{base}.versions").exists()
    assert holding(Path("data"), b"P-003", b"P-280") == holding(Path("less"), b"P-003", b"P-280") == []
    main(FORGET)  # there is nothing to do
    assert "To remove:\n  nothing" in capfd.readouterr().out
    # the tables of the user no longer have the row, either
    for path in ("papers.csv", "writes.csv", "appears.csv"):
        without(path, "P-003")
    less = ["--data.partition.dir", "less"]
    after = predict("after", *every, *less, checkpoint=str(checkpoint))
    for name in before:
        assert after[name].tolist() == before[name].tolist()
    main(["fit", *GIVEN, *less, "--trainer.max_steps", "1"])
    same_name = Path("moved") / base.name
    shutil.copytree("less", same_name)
    for path, there in ((checkpoint, Path("less")), (of_version, Path("less")), (of_version, same_name)):
        with pytest.raises(SystemExit):
            main(["fit", *GIVEN, "--data.partition.dir", str(there), "--ckpt_path", str(path)])
        said = capfd.readouterr().err
        assert f"of which {there.name} has forgotten deleted rows. Training does not go on with it: train anew." in said
    Path("more.csv").write_text("email,paper\na1@uni.edu,P-004\na1@uni.edu,P-281\n")
    main(["append", "--config", "papers.yaml", *less, "--edges", "author__writes__paper=more.csv"])
    Path("more.csv").write_text("email,paper\na1@uni.edu,P-003\n")
    with pytest.raises(SystemExit):
        main(["append", "--config", "papers.yaml", *less, "--edges", "author__writes__paper=more.csv"])
    assert "P-003" in capfd.readouterr().err
    main(["partition", "--verify", "--config", "papers.yaml", *less])
    main(["report", "less"])
    main(["plan", "--config", "papers.yaml", *less])
    # once more, from the new one
    Path("gone.csv").write_text("paper\nP-005\n")
    main(["append", "--config", "papers.yaml", *less, "--delete", "gone.yaml"])
    main(["compact", "--config", "papers.yaml", *less, "--out", "least", "--forget"])
    assert not Path("less").exists()
    assert holding(Path("data"), b"P-005") == holding(Path("least"), b"P-005") == []
    names = ConvertedTables("data", Manifest.load("least")).user_ids(np.array([4, 6]), "paper")
    assert names is not None
    assert names.tolist() == ["P-004", "P-006"]


def test_converted_tables_of_forgotten_rows_are_not_partitioned(
    shrunk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkpoint,) = shrunk.rglob("best.ckpt")
    main([*FORGET, "--checkpoints", "lightning_logs"])
    assert (
        f"{checkpoint.resolve()}: trained embeddings of deleted nodes are zeros in ready models"
        in capfd.readouterr().out
    )
    every = ["--data.evaluation.predict_split", "all"]
    found = predict("found", *every, "--data.partition.dir", "less", checkpoint=str(checkpoint))
    assert len(found["id"]) == 298
    with pytest.raises(SystemExit):
        main(["partition", "--config", "papers.yaml"])
    assert "compact --forget removed the rows of these converted tables" in capfd.readouterr().err


def test_wrong_words(shrunk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--out", "less", "--dry_run"], "--dry_run: is an option of --forget"),
        (["--out", "less", "--checkpoints", "."], "--checkpoints: is an option of --forget"),
        (["--out", "less", "--forget", "--checkpoints", "data"], "no checkpoint is there"),
        (["--out", "less", "--forget", "--version", "1"], "the latest is 2, not 1"),
    ):
        with pytest.raises(SystemExit):
            main(["compact", "--config", "papers.yaml", *words])
        assert said in capfd.readouterr().err
    assert not Path("less").exists()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_embeddings_of_deleted_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 30, (2, 90))
    np.savez("graph.npz", edge_index=ends, y=np.arange(30) % 2)
    data = glt.GLTDataModule(
        "graph.npz", num_neighbors=[3, 3], batch_size=10, seeds={"splits": {"train": np.arange(30)}}
    )
    model = glt.NodePredictor(
        None, data.label_facts, num_nodes=30, hidden_channels=8, num_layers=2, node_embedding=kind
    )
    trainer = glt_trainer(tmp_path)
    trainer.fit(model, data)
    path = tmp_path / "some" / "one.ckpt"
    trainer.save_checkpoint(path)
    gone = {"node": np.array([3, 17])}
    before = [p.read_bytes() for p in path.parent.rglob("*") if p.is_file()]
    rows = rows_of(path)
    lines, limits = [], resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(DataError, match=r"one.ckpt is as it was.*Free some space and run the same command again"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a full disk
        try:
            lines.extend(forget_in_checkpoints(checkpoints_in("some"), gone))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be written (File too large)" in lines[0]
    np.testing.assert_array_equal(rows_of(path), rows)
    assert all(any(row.tobytes() in each for each in before) for row in rows[[3, 17]])
    for _ in range(2):
        (line,) = forget_in_checkpoints(checkpoints_in("some"), gone)
        assert "trained embeddings of deleted nodes are zeros" in line
        now = rows_of(path)
        assert (now[[3, 17]] == 0).all()
        kept = np.setdiff1d(np.arange(30), gone["node"])
        np.testing.assert_array_equal(now[kept], rows[kept])
        assert holding(path.parent, *(row.tobytes() for row in rows[[3, 17]])) == []
    assert len(glt_trainer(tmp_path).predict(model, data, ckpt_path=path, weights_only=True)) == 3
    with pytest.raises(OptionError, match=r"removed rows and the optimizer's states from this checkpoint"):
        glt_trainer(tmp_path).fit(model, data, ckpt_path=path, weights_only=True)
    with pytest.raises(DataError, match=r"any.ckpt is as it was"):
        torch.save({"state_dict": {}, "of": Path("x")}, "any.ckpt")
        list(forget_in_checkpoints(checkpoints_in("any.ckpt"), gone))
    (path.parent / "two.ckpt").write_text("no checkpoint")
    with pytest.raises(DataError, match=r"two.ckpt is as it was, and may have rows of deleted nodes"):
        list(forget_in_checkpoints(checkpoints_in("some"), gone))
    with pytest.raises(OptionError, match="no checkpoint is there"):
        checkpoints_in("none")


def test_rows_of_edges_stay_and_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("graph.npz", edge_index=np.random.default_rng(0).integers(0, 30, (2, 90)), y=np.arange(30) % 2)
    data = glt.GLTDataModule("graph.npz", num_neighbors=[3], seeds={"splits": {"train": np.arange(30)}})

    class WithEdges(glt.NodePredictor):
        def setup(self, stage: str) -> None:
            options: dict[str, Any] = {"init": ("normal", 0, 1), "persistent": True, "graph": data.dist_graph}
            glt.DistTensor((90, 2), torch.float32, "of_edges", of=EDGE, **options)
            glt.DistTensor((30, 2), torch.float32, "of_nodes", **options)

        def on_train_epoch_end(self) -> None:
            self.trainer.save_checkpoint("one.ckpt")

    trainer = glt_trainer(tmp_path)
    trainer.fit(WithEdges(None, data.label_facts, num_nodes=30, hidden_channels=8, num_layers=1), data)
    (line,) = forget_in_checkpoints([Path("one.ckpt")], {"node": np.array([3])})
    assert line.endswith(
        "and rows of edges, also of deleted ones (of_edges): delete it and one.ckpt.rows-* if they must go"
    )
    (folder,) = Path().glob("one.ckpt.rows-*")
    rows = {len(each): each for each in map(np.load, folder.glob("*.npy")) if each.ndim == 2}
    assert np.flatnonzero((rows[30] == 0).all(1)).tolist() == [3]
    assert (rows[90] != 0).any(1).all()


def test_an_endpoint_answers_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has mapped the version without the deleted nodes, and does not go back to an earlier one when the files are gone."""
    monkeypatch.chdir(tmp_path)
    np.savez("graph.npz", edge_index=np.stack([np.arange(30), (np.arange(30) + 1) % 30]), y=np.arange(30) % 2)

    def data_of() -> glt.GLTDataModule:
        return glt.GLTDataModule(
            "graph.npz", "root", num_neighbors=[-1], partition={"dir": "whole", "version": "latest"}
        )

    partition_graph(data_of().source, "whole", data_of().partition_options, progress=False)
    delete_rows("whole", nodes={"node": np.array([3])})
    model = glt.NodePredictor(None, data_of().label_facts, num_nodes=30, hidden_channels=8, num_layers=1)

    def talk(endpoint: Any, ask: Ask) -> None:
        before = columns_of(ask("/predict", {"ids": [4]}))
        plan = Forgetting.plan("whole", "less", "root")
        compact_partition("whole", "less", forget=True, progress=False)
        plan.run(Progress(False))
        assert not Path("whole").exists()
        assert not endpoint.graph.move()
        assert columns_of(ask("/predict", {"ids": [4]})) == before
        assert ask("/predict", {"ids": [3]}).status == 422

    talking(glt_trainer(tmp_path), model, data_of(), talk, None, poll_s=1000.0)


def glt_trainer(folder: Path):  # type: ignore[no-untyped-def]
    from lightning.pytorch import Trainer

    return Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir=folder)


def rows_of(path: Path) -> np.ndarray:
    state = torch.load(path, weights_only=True)["state_dict"]
    for name, value in state.items():
        if name.endswith("layer.weight") and "encoder" in name and value.shape[0] == 30:
            return value.numpy().copy()
    (folder,) = path.parent.glob(f"{path.name}.rows-*")
    return np.load(next(folder.glob("*-weight.npy")))
