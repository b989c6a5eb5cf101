"""Rows beside checkpoints: a run that goes on is the run that never stopped, and a crash leaves a checkpoint that loads."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn

from glt_lightning import DistTensor
from glt_lightning.base import DataError, OptionError
from glt_lightning.tensors.checkpoints import _markers
from glt_lightning.tensors.saved import SavedRows, hash_of
from tests.helpers import run_script
from tests.helpers.partitions import small_graph
from tests.tensors.twins import NODES, QUIET, WIDTH, Twin, data_of, fit

ENV = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("graph") / "graph.pt"
    torch.save(small_graph(), file)
    return file


@pytest.fixture(scope="module")
def saved(graph, tmp_path_factory) -> tuple[Path, Twin]:
    """A checkpoint of Adam after one epoch of 7 steps, one part, and its module."""
    folder = tmp_path_factory.mktemp("saved")
    module = Twin(rule="adam", real=True)
    trainer = fit(module, data_of(graph, folder), max_epochs=1)
    trainer.save_checkpoint(folder / "one.ckpt")
    return folder / "one.ckpt", module


def rows_beside(checkpoint: Path) -> list[Path]:
    return sorted(checkpoint.parent.glob(f"{checkpoint.name}.rows-*"))


def copied(checkpoint: Path, into: Path) -> Path:
    """Checkpoints are moved with the folder beside them."""
    for each in (checkpoint, *rows_beside(checkpoint)):
        (shutil.copytree if each.is_dir() else shutil.copy)(each, into / each.name)
    return into / checkpoint.name


def assert_same(got: Twin, want: Twin) -> None:
    assert np.array_equal(got.table(), want.table())
    states, expected = got.state(), want.state()
    assert states.keys() == expected.keys()
    for name, values in states.items():
        assert np.array_equal(values, expected[name]), name


@pytest.mark.parametrize("rule", [pytest.param("adagrad", marks=pytest.mark.slow), "adam"])
def test_resumed_run_equals_the_uninterrupted_one(graph, tmp_path, rule):
    """In mid-epoch and at its end, also with other parts: weights, states and counts of steps, bit for bit."""
    whole = Twin(rule=rule, real=True)
    keep = ModelCheckpoint(tmp_path / "kept", filename="{step}", every_n_train_steps=5, save_top_k=-1)
    options: dict[str, Any] = {"max_epochs": 3, "enable_checkpointing": True}
    fit(whole, data_of(graph, tmp_path), callbacks=[keep], **options)
    for step, parts in ((5, 3), (10, 1), (15, 4)):
        module = Twin(rule=rule, real=True)
        fit(module, data_of(graph, tmp_path, parts), ckpt_path=tmp_path / "kept" / f"step={step}.ckpt", **options)
        assert module.steps == 21 - step
        assert_same(module, whole)


def test_resumed_twice(graph, tmp_path):
    """From the last batch of an epoch, then from the middle of the next one."""
    options: dict[str, Any] = {"max_epochs": 3, "enable_checkpointing": True}

    def keep(name: str, every: int) -> list[ModelCheckpoint]:
        return [ModelCheckpoint(tmp_path / name, filename="{step}", every_n_train_steps=every, save_top_k=-1)]

    whole, once, twice = (Twin(rule="adam", real=True) for _ in range(3))
    fit(whole, data_of(graph, tmp_path), callbacks=keep("first", 7), **options)
    fit(once, data_of(graph, tmp_path), ckpt_path=tmp_path / "first/step=7.ckpt", callbacks=keep("again", 5), **options)
    fit(twice, data_of(graph, tmp_path), ckpt_path=tmp_path / "again/step=10.ckpt", **options)
    assert (once.steps, twice.steps) == (14, 11)
    assert_same(once, whole)
    assert_same(twice, whole)


def test_resumed_with_the_seed_of_the_checkpoint(graph, tmp_path):
    """The graph is open, for the tables, before Lightning says which seed the batches are drawn by."""
    options: dict[str, Any] = {"max_epochs": 2, "enable_checkpointing": True}
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=7, save_top_k=-1)
    whole, again = Twin(rule="adam", real=True), Twin(rule="adam", real=True)
    fit(whole, data_of(graph, tmp_path, sampling={}), callbacks=[keep], **options)
    fit(again, data_of(graph, tmp_path, sampling={}), ckpt_path=tmp_path / "step=7.ckpt", **options)
    assert_same(again, whole)


def test_files(saved):
    """Plain arrays in the order of the user's ids."""
    path, module = saved
    (folder,) = rows_beside(path)
    index = json.loads((folder / "index.json").read_text())
    (table,) = index["tables"]
    assert (table["name"], table["of"], table["optimizer"]) == ("emb", "node", "SparseAdam")
    assert list(table["arrays"]) == ["weight", "first", "second", "steps"]
    assert np.array_equal(np.load(folder / table["arrays"]["weight"]["file"]), module.table())
    assert np.load(folder / table["arrays"]["steps"]["file"]).shape == (NODES,)


def test_load_from_checkpoint(graph, saved, tmp_path):
    """Before there is a Trainer; the rows come with the graph, whatever its parts."""
    path, module = saved
    loaded = Twin.load_from_checkpoint(path, rule="adam", real=True)
    loaded.test_step = lambda batch, batch_idx: None
    Trainer(**QUIET).test(loaded, data_of(graph, tmp_path, 3), verbose=False)
    assert np.array_equal(loaded.table(), module.table())


def test_test_with_a_checkpoint_that_was_moved(graph, saved, tmp_path):
    path, module = saved
    other = Twin(rule="adam", real=True)
    other.test_step = lambda batch, batch_idx: None
    Trainer(**QUIET).test(other, data_of(graph, tmp_path), ckpt_path=copied(path, tmp_path), verbose=False)
    assert np.array_equal(other.table(), module.table())


def test_a_copy_of_the_rows_by_another_name_stays(graph, tmp_path):
    trainer = fit(Twin(rule="adam", real=True), data_of(graph, tmp_path), max_epochs=1)
    (tmp_path / "one.ckpt.rows-of-my-own").mkdir()
    (tmp_path / "one.ckpt.rows-of-my-own" / "notes.txt").write_text("of the user")
    for _ in range(2):
        trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert len(rows_beside(tmp_path / "one.ckpt")) == 2
    assert (tmp_path / "one.ckpt.rows-of-my-own" / "notes.txt").read_text() == "of the user"


def test_rows_come_and_go_with_checkpoints(graph, tmp_path):
    """The best of several, the last one as a link, weights alone."""
    module = Twin(rule="adagrad", real=True)
    top = ModelCheckpoint(tmp_path / "top", monitor="loss", filename="{epoch}", save_top_k=1, save_last="link")
    alone = ModelCheckpoint(tmp_path / "alone", filename="weights", save_weights_only=True)
    step = module.training_step

    def noted(batch, batch_idx):
        loss = step(batch, batch_idx)
        module.log("loss", -float(module.steps), on_epoch=True, on_step=False, batch_size=1)
        return loss

    module.training_step = noted
    fit(module, data_of(graph, tmp_path), max_epochs=3, enable_checkpointing=True, callbacks=[top, alone])
    best = tmp_path / "top" / "epoch=2.ckpt"
    (rows,) = rows_beside(best)
    assert sorted(each.name for each in (tmp_path / "top").glob("*.ckpt*")) == ["epoch=2.ckpt", rows.name, "last.ckpt"]
    again = Twin(rule="adagrad", real=True)
    fit(again, data_of(graph, tmp_path), ckpt_path=tmp_path / "top" / "last.ckpt", max_epochs=3)
    assert_same(again, module)
    (light,) = rows_beside(tmp_path / "alone" / "weights.ckpt")
    assert sorted(each.name for each in light.iterdir()) == ["0-weight.npy", "index.json"]


def harmed(checkpoint: Path, harm: str) -> str:
    """What the error names."""
    (folder,) = rows_beside(checkpoint)
    weight = folder / "0-weight.npy"
    if harm == "missing":
        shutil.rmtree(folder)
        return f"{folder}: the rows of this checkpoint cannot be read"
    if harm == "index":
        (folder / "index.json").write_text("{}")
        return f"{folder / 'index.json'}: damaged, or of another checkpoint"
    data = bytearray(weight.read_bytes())
    if harm == "flipped":
        data[-3] ^= 1
    weight.write_bytes(data[:-8] if harm == "truncated" else data)
    return f"{weight}: "


@pytest.mark.diagonal(most=2)
@pytest.mark.parametrize("harm", ["missing", "index", "flipped", "truncated"])
def test_a_damaged_checkpoint_is_named(graph, saved, tmp_path, harm):
    path = copied(saved[0], tmp_path)
    said = harmed(path, harm)
    with pytest.raises(DataError) as raised:
        fit(Twin(rule="adam", real=True), data_of(graph, tmp_path), ckpt_path=path)
    assert str(raised.value).startswith(said)


def test_a_checkpoint_that_does_not_fit(graph, saved, tmp_path, monkeypatch):
    path, module = saved
    with pytest.raises(DataError, match="SparseAdagrad: the checkpoint has the state of SparseAdam"):
        fit(Twin(rule="adagrad", real=True), data_of(graph, tmp_path), ckpt_path=path)
    wide = Twin(rule="adam", real=True)
    wide.emb = type(wide.emb)(WIDTH + 1)
    with pytest.raises(DataError, match=r"weight of embedding 'emb' has rows \[3\] of <f4; expected \[4\]"):
        fit(wide, data_of(graph, tmp_path), ckpt_path=path)
    torch.save(small_graph(200), tmp_path / "smaller.pt")
    smaller = Twin(rule="adam", real=True)
    with pytest.raises(DataError, match="embedding 'emb' has 300 rows; the graph has 200 nodes of type 'node'"):
        fit(smaller, data_of(tmp_path / "smaller.pt", tmp_path), ckpt_path=path)
    with pytest.raises(OptionError, match="AsyncCheckpointIO: rows of embeddings change while it writes"):
        fit(Twin(), data_of(graph, tmp_path), plugins=[AsyncCheckpointIO()])
    some = Twin(rule="adam", real=True)
    some.strict_loading = False
    some.emb.init = "zeros"
    some.test_step = lambda batch, batch_idx: None
    Trainer(**QUIET).test(some, data_of(tmp_path / "smaller.pt", tmp_path), ckpt_path=path, verbose=False)
    assert np.array_equal(some.table(), module.table()[:200])


class Remembering(LightningModule):
    """A memory of the nodes, which follows from the batches, beside one that no checkpoint has."""

    def __init__(self, names: tuple[str, ...] = ("memory",)) -> None:
        super().__init__()
        self.names, self.bias, self.found = names, nn.Parameter(torch.zeros(())), np.zeros(0)

    def setup(self, stage: str) -> None:
        self.graph = self.trainer.datamodule.dist_graph
        self.memory = [
            DistTensor((NODES, 2), torch.float32, name, init=("normal", 0, 1), graph=self.graph, persistent=True)
            for name in self.names
        ]
        DistTensor((NODES,), torch.int64, "other", graph=self.graph)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        for memory in self.memory:
            memory[batch.row] = 0.5 * memory[batch.row] + batch.x[:, :2]
        return self.bias * 2

    def on_train_end(self) -> None:
        by_id = self.graph.rows_of(torch.arange(NODES))
        self.found = np.array([memory[by_id].numpy() for memory in self.memory])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.bias], lr=1.0)


def test_persistent_tensors(graph, tmp_path):
    """They go on with a run, by the user's ids, whatever the parts; what only one side has is said."""
    options: dict[str, Any] = {"max_epochs": 3, "enable_checkpointing": True}
    keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=10, save_top_k=-1)
    whole, again = Remembering(), Remembering()
    trainer = fit(whole, data_of(graph, tmp_path, batches={"with_row": True}), callbacks=[keep], **options)
    path = tmp_path / "step=10.ckpt"
    fit(again, data_of(graph, tmp_path, 3, batches={"with_row": True}), ckpt_path=path, **options)
    assert len(again.found) == 1
    assert np.array_equal(again.found, whole.found)
    (folder,) = rows_beside(path)
    assert sorted(each.name for each in folder.iterdir()) == ["0-float32.npy", "index.json"]
    for names, said in (
        ((), None),
        (("memory", "more"), "tensor 'more' is persistent: the module has it and the check"),
    ):
        module = Remembering(names)
        if said is None:  # a module without any reads none
            fit(module, data_of(graph, tmp_path, batches={"with_row": True}), ckpt_path=path, **options)
            continue
        with pytest.raises(DataError, match=said):
            fit(module, data_of(graph, tmp_path, batches={"with_row": True}), ckpt_path=path, **options)
        module.strict_loading = False
        fit(module, data_of(graph, tmp_path, batches={"with_row": True}), ckpt_path=path, **options)
        assert np.array_equal(module.found[0], whole.found[0])
    with pytest.raises(DataError, match="tensor 'memory' is persistent and ended with the run"):
        trainer.save_checkpoint(tmp_path / "late.ckpt")
    assert not (tmp_path / "late.ckpt").exists()


def _index(change) -> Any:
    def write(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        weight = index["tables"][0]["arrays"]["weight"]
        found = change(index, weight)
        (folder / "index.json").write_text(found if isinstance(found, str) else json.dumps(index))

    return write


def _pipe(folder: Path) -> None:
    (folder / "0-weight.npy").unlink()
    os.mkfifo(folder / "0-weight.npy")


def _pipe_as_index(folder: Path) -> None:
    (folder / "index.json").unlink()
    os.mkfifo(folder / "index.json")


def _other_width(folder: Path) -> None:
    np.save(folder / "0-weight.npy", np.zeros((NODES, WIDTH + 1), np.float32))
    digest = hash_of([(folder / "0-weight.npy").read_bytes()])
    _index(lambda index, weight: weight.update(blake2b=digest))(folder)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_index(lambda index, weight: "null"), r"index\.json: version None"),
        (_index(lambda index, weight: "[1]"), r"index\.json: version None"),
        (_index(lambda index, weight: "[" * 100_000), r"index\.json: damaged: it is no JSON"),
        (_index(lambda index, weight: index.update(tables={})), r"index\.json: damaged: tables: expected a list"),
        (
            _index(lambda index, weight: index["tables"][0].__delitem__("of")),
            r"index\.json: damaged: tables\[0\]: expected",
        ),
        (_index(lambda index, weight: weight.update(file="../other.npy")), r"index\.json: damaged: .*weight.*beside"),
        (_index(lambda index, weight: weight.update(file="/etc/passwd")), r"index\.json: damaged: .*weight.*beside"),
        (_index(lambda index, weight: weight.update(shape=None)), r"index\.json: damaged: .*weight"),
        (_other_width, r"0-weight\.npy: damaged: an array \["),
        (_pipe, r"0-weight\.npy: cannot be read"),
        (_pipe_as_index, r"rows-\w+: the rows of this checkpoint cannot be read"),
    ],
)
def test_harmed_rows_are_one_line_that_names_the_file(saved, tmp_path, harm, said):
    (folder,) = rows_beside(copied(saved[0], tmp_path))
    harm(folder)
    with pytest.raises(DataError, match=said) as error:
        SavedRows(folder, None).open("emb", "weight", (WIDTH,), np.dtype(np.float32))
    assert "\n" not in str(error.value)


def test_rows_of_another_user(tmp_path, monkeypatch):
    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("glt_lightning.tensors.saved.open_regular", denied)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)\. Let this user read it\.$"):
        SavedRows(tmp_path, None)


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("nonce", ["../elsewhere", "a/b", "a\0b", "", 7, None])
def test_harmed_name_of_rows_is_one_line(graph, saved, tmp_path, nonce):
    path = copied(saved[0], tmp_path)
    checkpoint = torch.load(path, weights_only=False)
    for marker in _markers(checkpoint):
        marker["nonce"] = nonce
    torch.save(checkpoint, path)
    with pytest.raises(DataError, match=r"one\.ckpt: damaged: its rows are in a folder named by"):
        fit(Twin(rule="adam", real=True), data_of(graph, tmp_path), ckpt_path=path, max_epochs=2)
    with pytest.raises(DataError, match=r"rows of embeddings: expected a folder that ends in"):
        loaded = Twin.load_from_checkpoint(path, rule="adam", real=True)
        loaded.test_step = lambda batch, batch_idx: None
        Trainer(**QUIET).test(loaded, data_of(graph, tmp_path), verbose=False)


# Saves twice under one name; the second save is killed before its k-th operation on files, for every k.
KILLED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np, torch
from glt_lightning import DistEmbedding, DistGraph, SparseAdagrad
from glt_lightning.lightning.callbacks.checkpoints import WholeCheckpointIO
from glt_lightning.lightning.callbacks.row_checkpoints import RowCheckpointIO
from glt_lightning.tensors import CheckpointRows
from glt_lightning.tensors.saved import open_saved
from tests.helpers.partitions import partitioned, small_graph

EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "shutil.rmtree"}
path = Path("x.ckpt")
embedding = DistEmbedding(2, init="zeros")
with DistGraph(partitioned(small_graph(), Path("."))) as graph:
    embedding.attach(graph, "emb")
optimizer = SparseAdagrad([embedding], lr=1.0)
optimizer.prepare()
trainer = SimpleNamespace(optimizers=[optimizer], lightning_module=None)
io = RowCheckpointIO(WholeCheckpointIO(), trainer, CheckpointRows({"emb": embedding}))

def save(value):
    embedding.rows.table.own[...] = value
    embedding.rows.states["sum"].own[...] = value
    state = {"state_dict": {"emb._extra_state": embedding.get_extra_state()}, "optimizer_states": [optimizer.state_dict()]}
    io.save_checkpoint(state | {"value": value}, path)

save(1)
ended = 0
for k in range(500):
    pid = os.fork()
    if not pid:
        left = [k]
        def hook(event, args):
            if event in EVENTS:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        save(2)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    found = io.load_checkpoint(path)
    for marker in (found["state_dict"]["emb._extra_state"], found["optimizer_states"][0]):
        saved = open_saved(marker["glt_rows"])
        for name, width in (("weight", 2), ("sum", 2)):
            assert (saved.open("emb", name, (width,), np.dtype("f4")) == found["value"]).all()
    seen = found["value"]
    if status == 0:
        assert seen == 2 and len(list(Path(".").glob("x.ckpt.rows-*"))) == 1
        break
    save(1)
print("KILLED", k)
"""


@pytest.mark.slow
def test_killed_between_any_two_operations_on_files(tmp_path):
    output = run_script(KILLED, cwd=tmp_path, env=ENV).stdout
    (line,) = [line for line in output.splitlines() if line.startswith("KILLED ")]
    assert int(line.split()[1]) > 10
