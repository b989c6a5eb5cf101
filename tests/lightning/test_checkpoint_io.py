"""A checkpoint is whole under its final name, or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

from glt_lightning import GLTServerClientStrategy, GLTWorkerStrategy
from glt_lightning.base import DataError, WriteError
from glt_lightning.lightning import WholeCheckpointIO
from glt_lightning.lightning.callbacks.checkpoints import write_whole
from tests.helpers.disks import SIZE, full_soon

SMALL, LARGE = {"weights": torch.arange(10)}, {"weights": torch.zeros(SIZE)}


@pytest.fixture
def io() -> TorchCheckpointIO:
    found = GLTWorkerStrategy().checkpoint_io
    assert isinstance(found, TorchCheckpointIO)
    return found


def test_full_disk(io: TorchCheckpointIO, tmp_path: Path) -> None:
    """The earlier checkpoint stays, of the new one nothing; temporary files elsewhere have room."""
    folder = tmp_path / "disk"
    with full_soon(folder):
        io.save_checkpoint(SMALL, folder / "old.ckpt")
        for name in ("old.ckpt", "new.ckpt"):
            with pytest.raises(
                WriteError, match=rf"{name}: this checkpoint cannot be written .*it takes 1\d\d,\d{{3}} byt"
            ):
                io.save_checkpoint(LARGE, folder / name)
        assert os.listdir(folder) == ["old.ckpt"]
        assert io.load_checkpoint(folder / "old.ckpt")["weights"].equal(SMALL["weights"])


@pytest.mark.parametrize("unnamed", [True, False])
def test_no_name_before_all_is_on_disk(
    io: TorchCheckpointIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    seen = []
    if not unnamed:
        monkeypatch.setattr("glt_lightning.lightning.callbacks.checkpoints._open_unnamed", lambda folder: None)
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((os.listdir(tmp_path / "made"), os.fstat(fd).st_size)))
    path = tmp_path / "made" / "a.ckpt"
    for checkpoint in (SMALL, LARGE):
        io.save_checkpoint(checkpoint, path)
        assert io.load_checkpoint(path)["weights"].equal(checkpoint["weights"])
    assert os.listdir(path.parent) == ["a.ckpt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    names = [set(names) - {"a.ckpt"} for names, _ in seen]
    assert names in ([set(), set()], [{".a.ckpt.part"}] * 2)  # the former where the file system has unnamed files
    assert seen[0][0] == list(names[0])
    assert seen[1][1] == path.stat().st_size


def test_who_writes() -> None:
    theirs = TorchCheckpointIO()
    for kind in (GLTWorkerStrategy, GLTServerClientStrategy):
        assert isinstance(kind().checkpoint_io, WholeCheckpointIO)
        assert kind(checkpoint_io=theirs).checkpoint_io is theirs
        assert isinstance(kind(checkpoint_io=AsyncCheckpointIO()).checkpoint_io.checkpoint_io, WholeCheckpointIO)
        assert kind(checkpoint_io=AsyncCheckpointIO(theirs)).checkpoint_io.checkpoint_io is theirs
        assert isinstance(kind(checkpoint_io=_OfUser()).checkpoint_io.checkpoint_io, WholeCheckpointIO)


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_who_writes_under_strategies_of_lightning(make_trainer, strategy: str) -> None:
    def io_of(*plugins: TorchCheckpointIO | AsyncCheckpointIO) -> Any:
        trainer = make_trainer(strategy=strategy, plugins=list(plugins))
        write_whole(trainer.strategy)
        return trainer.strategy.checkpoint_io

    theirs = TorchCheckpointIO()
    assert isinstance(io_of(), WholeCheckpointIO)
    assert io_of(theirs) is theirs
    assert isinstance(io_of(AsyncCheckpointIO()).checkpoint_io, WholeCheckpointIO)
    assert io_of(AsyncCheckpointIO(theirs)).checkpoint_io is theirs


def test_full_disk_under_a_strategy_of_lightning(make_data, make_model, make_trainer, tmp_path: Path) -> None:
    with full_soon(tmp_path / "disk"):
        keep = ModelCheckpoint(dirpath=tmp_path / "disk", filename="best")
        trainer = make_trainer(enable_checkpointing=True, callbacks=[keep], max_epochs=1)
        with pytest.raises(WriteError, match=r"best\.ckpt: this checkpoint cannot be written"):
            trainer.fit(make_model(hidden_channels=128), make_data())
        assert not any(name.endswith(".ckpt") for name in os.listdir(tmp_path / "disk"))


@pytest.mark.parametrize("kind", ["empty", "truncated", "garbage", "a list"])
def test_file_that_is_no_checkpoint_is_named(io: TorchCheckpointIO, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bad.ckpt"
    torch.save([1] if kind == "a list" else LARGE, path)
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "truncated": whole[: len(whole) // 2], "garbage": b"hello"}.get(kind, whole))
    with pytest.raises(
        DataError, match=r"bad\.ckpt: this checkpoint cannot be read .*: it is truncated, damaged or no"
    ) as error:
        io.load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_named_pipe_is_not_waited_for(io: TorchCheckpointIO, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(DataError, match=r"pipe\.ckpt: this is no file"):
        io.load_checkpoint(tmp_path / "pipe.ckpt")


class _OfUser(_WrappingCheckpointIO):
    """Writes what it wraps."""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
