"""A checkpoint is whole under its final name, or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

from glt_lightning import GLTServerClientStrategy, GLTWorkerStrategy
from glt_lightning.errors import WriteError
from glt_lightning.lightning import WholeCheckpointIO
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
        monkeypatch.setattr("glt_lightning.lightning.callbacks.checkpoint_io._open_unnamed", lambda folder: None)
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


class _OfUser(_WrappingCheckpointIO):
    """Writes what it wraps."""


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
