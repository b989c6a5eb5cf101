"""Predictions: each node once, keyed by the user's ids, on disk whole or not at all."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import Callback

from glt_lightning import GraphSAGE, PredictionWriter, SamplingOptions
from glt_lightning.base import DataError, OptionError, PeerError, WriteError
from glt_lightning.cli import main
from glt_lightning.lightning import read_predictions
from glt_lightning.lightning.callbacks import prediction_places, predictions
from glt_lightning.lightning.callbacks.prediction_files import MANIFEST, PredictionFile, file_name, manifest_text
from glt_lightning.lightning.callbacks.prediction_places import FolderPlace
from tests.helpers.disks import SIZE, full_soon
from tests.lightning.tiny import CLASSES, NODES, Noting, learnable_graph, learnable_hetero


@pytest.mark.parametrize("workers", [0, 2])
def test_every_node_once(make_data, make_model, make_trainer, tmp_path: Path, workers: int) -> None:
    trainer = make_trainer(callbacks=[PredictionWriter(str(tmp_path / "out"))])
    data = make_data(sampling=SamplingOptions(num_workers=workers), evaluation={"num_neighbors": [-1, -1]})
    returned = trainer.predict(make_model(), data)
    assert torch.cat([part["n_id"] for part in returned]).tolist() == list(range(NODES))
    written = read_predictions(tmp_path / "out")
    assert written["n_id"].tolist() == list(range(NODES))
    assert written["logits"].shape == (NODES, CLASSES)
    np.testing.assert_array_equal(written["pred"], written["logits"].argmax(axis=1))


def test_split_of_a_heterogeneous_graph(make_data, make_trainer, tmp_path: Path) -> None:
    data = make_data(dataset=learnable_hetero(), evaluation={"predict_split": "test"})
    described = {"metadata": data.metadata, "num_nodes": data.num_nodes, "target_type": data.target_type}
    model = GraphSAGE(data.num_features, CLASSES, 16, 2, **described)
    make_trainer(callbacks=[PredictionWriter(str(tmp_path / "out"), keys=["pred"])]).predict(model, data)
    written = read_predictions(tmp_path / "out")
    assert written.keys() == {"n_id", "pred"}
    assert written["n_id"].tolist() == list(range(45, 60))


def test_order_of_the_user_is_not_the_order_on_disk(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    data = make_data(evaluation={"predict_split": "test"})
    make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), data)
    assert read_predictions(tmp_path / "predictions")["n_id"].tolist() == sorted(learnable_graph()["test_idx"].tolist())


def test_second_run_replaces_the_first(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data())
    (tmp_path / "predictions" / "rank7-0123456789ab.parquet").write_bytes(b"of a run that was killed as it completed")
    make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data(evaluation={"predict_split": "val"}))
    assert len(read_predictions(tmp_path / "predictions")["n_id"]) == 50
    assert len(pq.read_table(tmp_path / "predictions")) == 50  # what reads all files of the folder finds these alone
    assert len(list((tmp_path / "predictions").iterdir())) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["predictions", "root"]


class NeverPredicts(Noting):
    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        raise AssertionError("nothing may be computed")


def test_names_of_files_that_were_replaced_are_the_users(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    for _ in range(2):
        make_trainer(callbacks=[PredictionWriter(tmp_path / "out")]).predict(
            make_model(), make_data(), return_predictions=False
        )
    (tmp_path / "out" / "rank0.parquet").write_text("mine")
    with pytest.raises(OptionError, match=r"has rank0\.parquet, which no manifest of predictions lists"):
        make_trainer(callbacks=[PredictionWriter(tmp_path / "out")]).predict(
            make_model(), make_data(), return_predictions=False
        )
    assert (tmp_path / "out" / "rank0.parquet").read_text() == "mine"


def test_a_manifest_that_comes_while_it_predicts_stays(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    class Comes(Callback):
        def on_predict_epoch_start(self, *_: Any) -> None:
            (tmp_path / "out" / MANIFEST).write_text("{}")

    (tmp_path / "out").mkdir()
    writer = PredictionWriter(tmp_path / "out")
    with pytest.raises(WriteError, match="came while predictions were made"):
        make_trainer(callbacks=[writer, Comes()]).predict(make_model(), make_data(), return_predictions=False)
    assert (tmp_path / "out" / MANIFEST).read_text() == "{}"


def _everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-predictions"])
def test_files_of_the_user_refuse_before_anything_is_predicted(
    make_data, make_model, make_trainer, tmp_path: Path, beside: bool
) -> None:
    folder = tmp_path / "mine"
    if beside:
        make_trainer(callbacks=[PredictionWriter(str(folder))]).predict(make_model(), make_data())
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "years.tex").write_text("work of years")
    (folder / "rank_list.parquet").write_text("of the user, too")
    before = _everything(folder)
    data = make_data()
    with pytest.raises(OptionError, match=r"mine: has rank_list\.parquet and 1 more, which no manifest .* new folder"):
        make_trainer(callbacks=[PredictionWriter(str(folder))]).predict(make_model(NeverPredicts), data)
    assert _everything(folder) == before


@pytest.mark.parametrize("given", [".", "..", "link", "dangling", "file", "link/"])
def test_a_place_that_is_no_folder_of_predictions_is_refused(
    make_data, make_model, make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "here" / "empty").mkdir(parents=True)
    (tmp_path / "here" / "file").write_text("of the user")
    (tmp_path / "here" / "link").symlink_to("empty")
    (tmp_path / "here" / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path / "here")
    before = _everything(tmp_path / "here")
    with pytest.raises(OptionError) as raised:
        make_trainer(callbacks=[PredictionWriter(given)]).predict(make_model(NeverPredicts), make_data())
    assert str(raised.value).endswith("or one of earlier predictions alone; nothing was changed.")
    assert "\n" not in str(raised.value)
    assert _everything(tmp_path / "here") == before


def test_a_file_that_comes_while_it_predicts_stays(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    class Slow(Noting):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            (tmp_path / "out").mkdir(exist_ok=True)
            (tmp_path / "out" / "notes.txt").write_text("of the user")
            return super().predict_step(batch, batch_idx)

    make_trainer(callbacks=[PredictionWriter(str(tmp_path / "out"))]).predict(make_model(Slow), make_data())
    assert (tmp_path / "out" / "notes.txt").read_text() == "of the user"
    assert read_predictions(tmp_path / "out")["n_id"].tolist() == list(range(NODES))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "root"]


def test_at_a_url_nothing_but_earlier_predictions_is_removed(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "rank_list.parquet").write_text("of the user")
    for split in ("test", "val"):
        make_trainer(callbacks=[PredictionWriter(f"file://{folder}")]).predict(
            make_model(), make_data(evaluation={"predict_split": split})
        )
    assert len(read_predictions(folder)["n_id"]) == 50
    assert sorted(p.name.partition("-")[0] for p in folder.iterdir()) == [
        "_manifest.json",
        "rank0",
        "rank_list.parquet",
    ]
    (folder / MANIFEST).write_text('{"of": "the user"}')
    before = _everything(folder)
    with pytest.raises(
        OptionError, match=r"store: has a _manifest.json that is not of predictions .* nothing was changed"
    ):
        make_trainer(callbacks=[PredictionWriter(f"file://{folder}")]).predict(make_model(NeverPredicts), make_data())
    assert _everything(folder) == before


def test_a_mount_point_is_written_into(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    """Its folder cannot be renamed. Where this user may not mount, it is a folder that is there already."""
    folder = tmp_path / "mounted"
    with full_soon(folder, 8 << 20):
        (folder / "lost+found").mkdir()
        for split in ("test", "all"):
            writer = PredictionWriter(str(folder))
            make_trainer(callbacks=[writer]).predict(make_model(), make_data(evaluation={"predict_split": split}))
        assert read_predictions(folder)["n_id"].tolist() == list(range(NODES))
        assert sorted(p.name.partition("-")[0] for p in folder.iterdir()) == ["_manifest.json", "lost+found", "rank0"]


def test_an_end_in_the_middle_of_replacing_leaves_one_of_both(
    make_data, make_model, make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data(evaluation={"predict_split": "val"}))
    for name in ("replace", "unlink"):
        with monkeypatch.context() as patch:
            patch.setattr(f"glt_lightning.lightning.callbacks.prediction_places.os.{name}", _dies)
            with pytest.raises(Killed):
                make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data())
        rows = len(read_predictions(tmp_path / "predictions")["n_id"])
        assert rows == (50 if name == "replace" else NODES)
    make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data(evaluation={"predict_split": "val"}))
    assert len(pq.read_table(tmp_path / "predictions")) == 50


class Killed(BaseException):
    pass


def _dies(*paths: Any) -> None:
    raise Killed


@pytest.mark.parametrize("inside", [False, True])
def test_parts_of_killed_runs_are_removed(tmp_path: Path, inside: bool) -> None:
    """Those of a run that is alive stay, and what is not of these predictions."""
    folder, token = tmp_path / "predicted", "0123456789ab"
    others = [tmp_path / name for name in (".other.part-0123456789ab", ".part-0123456789ab", ".predicted.part-mine")]
    for each in others:
        each.mkdir()
    if inside:
        folder.mkdir()
    killed, alive, later = (FolderPlace(folder, f"{token[:-1]}{end}", inside) for end in "abc")
    for place in (killed, alive):
        place.prepare()
        (place._part / "rank0.parquet").write_text("")
    killed._lock.close()
    later.open()
    assert [place._part.exists() for place in (killed, alive)] == [False, True]
    alive.clean(True)
    assert sorted(tmp_path.rglob("*")) == sorted([*others, *([folder] if inside else [])])


def test_a_run_keeps_its_folder_though_another_begins_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = (FolderPlace(tmp_path / "predicted", f"0123456789a{end}", False) for end in "ab")
    lock, removed = prediction_places._locked, []

    def late(folder: Path, how: int) -> Any:
        if not removed:
            removed.append(folder)
            other.open()
            assert not folder.exists()
        return lock(folder, how)

    monkeypatch.setattr(prediction_places, "_locked", late)
    mine.prepare()
    assert removed == [mine._part]
    FolderPlace(tmp_path / "predicted", "0123456789ac", False).open()
    assert mine._part.exists()
    mine.clean(True)


def test_a_folder_that_others_keep_removing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = FolderPlace(tmp_path / "predicted", "0123456789aa", False)

    def held(folder: Path, how: int) -> Any:
        raise BlockingIOError

    monkeypatch.setattr(prediction_places, "_locked", held)
    with pytest.raises(WriteError, match="other runs remove this folder before it is locked"):
        mine.prepare()


def test_run_that_fails_leaves_the_earlier_predictions(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data())
    before = read_predictions(tmp_path / "predictions")

    class Broken(Noting):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ZeroDivisionError
            return super().predict_step(batch, batch_idx)

    with pytest.raises(ZeroDivisionError):
        make_trainer(callbacks=[PredictionWriter()]).predict(make_model(Broken), make_data())
    after = read_predictions(tmp_path / "predictions")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_full_disk_leaves_the_earlier_predictions(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    data = make_data(evaluation={"predict_split": "test"})
    with full_soon(folder):
        make_trainer(callbacks=[PredictionWriter(str(folder / "out"))]).predict(make_model(), data)
        before = read_predictions(folder / "out")

        class Wide(Noting):
            def predict_step(self, batch: Any, batch_idx: int) -> Any:
                n_id = batch.n_id[: batch.batch_size].clone()
                return {"n_id": n_id, "wide": torch.rand(len(n_id), SIZE // 4)}

        said = rf"{folder}/out: the predictions of rank 0 cannot be written \(.*\) after [\d,]+ rows; [\d,]+ bytes are free"
        with pytest.raises(WriteError, match=said):
            make_trainer(callbacks=[PredictionWriter(str(folder / "out"))]).predict(make_model(Wide), data)
        assert [path.name for path in folder.iterdir()] == ["out"]
        assert read_predictions(folder / "out")["n_id"].tolist() == before["n_id"].tolist()


def test_failure_of_another_rank_ends_this_one_too(
    make_data, make_model, make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "out")
    answers = iter([[path], ["", ""], [f"1234 0 {path}"], ["", ""], ["", ""], ["", ""], ["", "out: the disk is full"]])
    monkeypatch.setattr(
        "glt_lightning.lightning.callbacks.predictions.gather_text_of", lambda trainer, text: next(answers)
    )
    with pytest.raises(PeerError, match="rank 1: out: the disk is full"):
        make_trainer(callbacks=[PredictionWriter()]).predict(make_model(), make_data())
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize(
    ("outputs", "keys", "said"),
    [
        (torch.zeros(3), None, r"with 'n_id' among them, got Tensor. Let it return \{'n_id': batch.n_id\["),
        ({"pred": torch.zeros(3)}, None, "predict_step must return a dictionary of tensors with 'n_id'"),
        (
            {"n_id": torch.zeros(3), "pred": torch.zeros(2)},
            None,
            "'pred': expected a tensor with one row for each of the 3",
        ),
        ({"n_id": torch.zeros(3), "pred": [1, 2, 3]}, None, "'pred': expected a tensor"),
        ({"n_id": torch.zeros(3)}, ["logits"], r"keys: \['logits'\] are not in the output of predict_step"),
    ],
)
def test_other_outputs_are_refused(outputs: Any, keys: list[str] | None, said: str) -> None:
    writer = PredictionWriter(keys=keys)
    with pytest.raises(DataError, match=said):
        writer.on_predict_batch_end(None, None, outputs, None, 0)


def test_rows_are_written_while_others_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_MOST_BYTES", 1 << 20)
    trainer: Any = SimpleNamespace(ckpt_path=None, local_rank=0, global_rank=0)
    writer = PredictionWriter(str(tmp_path / "out"))
    writer.on_predict_start(trainer, None)
    tracemalloc.start()
    try:
        for batch in range(40):
            rows = {"n_id": torch.arange(100) + 100 * batch, "wide": torch.rand(100, 1000)}  # 0.4 MB; 16 MB of all
            writer.on_predict_batch_end(trainer, None, rows, None, batch)
            assert list(tmp_path.iterdir()) == []  # whatever ends the process now leaves nothing
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()
    writer.on_predict_end(trainer, None)
    assert pq.ParquetFile(tmp_path / "out" / "rank0.parquet").metadata.num_row_groups == 14
    written = pq.read_table(tmp_path / "out")  # of the folder, as users do
    assert written["n_id"].to_pylist() == list(range(4000))


def test_disk_that_is_full_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "ROW_GROUP", 50)
    trainer: Any = SimpleNamespace(ckpt_path=None, local_rank=0, global_rank=0)
    folder = tmp_path / "disk"
    with full_soon(folder):
        writer = PredictionWriter(str(folder / "out"))
        writer.on_predict_start(trainer, None)
        with pytest.raises(
            WriteError, match=r"after \d+ rows; [\d,]+ bytes are free there\. Free some space"
        ) as raised:
            for batch in range(100):
                rows = {"n_id": torch.arange(50), "wide": torch.rand(50, SIZE // 1000)}
                writer.on_predict_batch_end(trainer, None, rows, None, batch)
        writer.on_exception(trainer, None, raised.value)  # Lightning's Trainer calls it
        assert list(folder.iterdir()) == []
        (folder / "fits").write_bytes(bytes(SIZE // 2))  # nothing that has no name takes space any more


@pytest.mark.parametrize("no_links", [False, True])
def test_class_that_has_no_name_takes_the_names_away(
    make_data, make_model, make_trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_links: bool
) -> None:
    monkeypatch.setattr(predictions, "ROW_GROUP", 20)
    if no_links:  # a file system such as NFS
        monkeypatch.setattr("os.O_TMPFILE", 1 << 30)

    class Unsure(Noting):
        class_names = tuple("abc")[:CLASSES]

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            n_id = batch.n_id[: batch.batch_size].clone()
            return {"n_id": n_id, "pred": torch.where(n_id < limit, n_id % 2, -1)}

    for limit in (NODES, 50):
        make_trainer(callbacks=[PredictionWriter(str(tmp_path / f"{limit}"))]).predict(make_model(Unsure), make_data())
    named, unnamed = read_predictions(tmp_path / f"{NODES}"), read_predictions(tmp_path / "50")
    assert named["class"].tolist() == [("a", "b")[n % 2] for n in range(NODES)]
    assert unnamed.keys() == {"n_id", "pred"}
    assert unnamed["pred"].tolist() == [n % 2 if n < 50 else -1 for n in range(NODES)]


def test_batches_of_another_form_are_refused() -> None:
    writer = PredictionWriter()
    for first in (torch.zeros(0), torch.zeros(2, dtype=torch.int64)):  # an idle rank's says nothing
        writer.on_predict_batch_end(None, None, {"n_id": torch.arange(len(first)), "pred": first}, None, 0)
    for other, said in (
        ({"pred": torch.zeros(2)}, "'pred': .* rows of int64 for the first batch and of float32 for a later one"),
        ({"pred": torch.zeros(2, 3, dtype=torch.int64)}, r"of int64 \[3\] for a later one"),
        ({}, r"returned \['n_id', 'pred'\] for the first batch and \['n_id'\] for a later one"),
    ):
        with pytest.raises(DataError, match=said):
            writer.on_predict_batch_end(None, None, {"n_id": torch.arange(2), **other}, None, 1)


def test_a_fifo_among_the_files_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.parquet")
    (tmp_path / MANIFEST).write_bytes(manifest_text({"rank0.parquet": 1}, {}))
    with pytest.raises(DataError, match=r"rank0\.parquet: .*not a regular file"):
        read_predictions(tmp_path)


def test_every_kind_of_column_comes_back(tmp_path: Path) -> None:
    rows = {
        "n_id": np.array([3, 1, 2]),
        "id": np.array(["c", "a", "ü"], dtype=object),
        "wide": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "half": np.zeros((3, 4), np.float16),
        "pred": np.array([[True, False], [False, False], [True, True]]),
        "classes": [["x"], [], ["x", "y"]],
    }
    file = PredictionFile(tmp_path, {"graph": "abc"})
    file.write(rows)
    file.publish(tmp_path / "rank0.parquet")
    (tmp_path / MANIFEST).write_bytes(manifest_text({"rank0.parquet": file.num_rows}, {}))
    schema = pq.read_schema(tmp_path / "rank0.parquet")
    assert schema.metadata == {b"glt_lightning.graph": b"abc"}
    assert str(schema.field("half").type) == "fixed_size_list<element: halffloat>[4]"
    read = read_predictions(tmp_path)
    assert read["id"].tolist() == ["a", "ü", "c"]
    assert read["classes"].tolist() == [[], ["x", "y"], ["x"]]
    for name in ("n_id", "wide", "half", "pred"):
        assert read[name].dtype == rows[name].dtype
        assert np.array_equal(read[name], rows[name][[1, 2, 0]])
    (tmp_path / "rank0.parquet").rename(tmp_path / "gone")
    with pytest.raises(DataError, match=r"rank0.parquet: cannot be read as Parquet .* Predict again"):
        read_predictions(tmp_path)
    (tmp_path / MANIFEST).write_bytes(manifest_text({"gone": 4}, {}))
    with pytest.raises(DataError, match=r"gone: has 3 rows, the manifest says 4"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("model", ["NodePredictor", "GraphSAGE"])
def test_nodes_without_labels_are_predicted(
    graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    """What the labels are is then known from the checkpoint."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "new.npz", **{name: learnable_graph()[name] for name in ("edge_index", "x")})
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.devices=1"]
    run = [f"--model={model}", "--model.num_layers=2", "--data=GLTDataModule", "--data.num_neighbors=[5,5]", *quiet]
    main(["fit", *run, f"--data.dataset={graph_npz}", "--trainer.max_epochs=1"])
    checkpoint = "--ckpt_path=lightning_logs/version_0/checkpoints/best.ckpt"
    main(["predict", *run, "--data.dataset=new.npz", checkpoint])
    (written,) = Path("lightning_logs").glob("*/predictions")
    assert read_predictions(written)["n_id"].tolist() == list(range(NODES))
    if model == "NodePredictor":
        with pytest.raises(SystemExit):
            main(["predict", *run, "--data.dataset=new.npz", "--ckpt_path=none"])
        assert "To predict for nodes without labels, give the --ckpt_path of a model" in capsys.readouterr().err


def test_reading_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found no predictions in this folder"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("ranks", [(True, False), (False, True)])
def test_names_of_classes_that_one_rank_cannot_give_are_left_out(tmp_path: Path, ranks: tuple[bool, bool]) -> None:
    """As within a rank: one prediction that is no class takes the names of all."""
    for rank, named in enumerate(ranks):
        file = PredictionFile(tmp_path, {})
        rows = {"n_id": np.array([3 - rank]), "pred": np.array([1 if named else 9])}
        file.write(rows | ({"class": np.array(["b"], dtype=object)} if named else {}))
        file.publish(tmp_path / file_name(rank))
    (tmp_path / MANIFEST).write_bytes(manifest_text({file_name(rank): 1 for rank in range(2)}, {}))
    found = read_predictions(tmp_path)
    assert sorted(found) == ["n_id", "pred"]
    assert found["n_id"].tolist() == [2, 3]
