"""Seeds from the files of a user: what is read, and that nothing in them is run."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from glt_lightning.base import DataError
from glt_lightning.lightning.facts import read_split
from tests.lightning.tiny import NODES


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_tensor_that_torch_saved(tmp_path: Path) -> None:
    torch.save(torch.tensor([5, 3]), tmp_path / "ids.pt")
    torch.save(torch.tensor([True, False]), tmp_path / "mask.pt")
    assert read_split("train", tmp_path / "ids.pt").tolist() == [5, 3]
    assert read_split("train", str(tmp_path / "mask.pt")).tolist() == [True, False]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"train": torch.tensor([1])}, "expected a tensor of node ids, found dict"),
        (torch.ones(2, 2), "in one dimension"),
        (torch.ones(2), "expected node ids or a mask"),
    ],
)
def test_other_content(tmp_path: Path, content: object, said: str) -> None:
    torch.save(content, tmp_path / "ids.pt")
    with pytest.raises(DataError, match=said):
        read_split("train", tmp_path / "ids.pt")


@pytest.mark.parametrize("how", [torch.save, lambda what, path: path.write_bytes(pickle.dumps(what, 2))])
def test_nothing_in_a_file_is_run(tmp_path: Path, how) -> None:
    how(Trap(tmp_path / "sprung"), tmp_path / "ids.pt")
    with pytest.raises(DataError, match=r"splits\.train: .*ids\.pt: cannot be read"):
        read_split("train", tmp_path / "ids.pt")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"hello"])
def test_damaged_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ids.pt").write_bytes(content)
    with pytest.raises(DataError, match=r"ids\.pt: cannot be read"):
        read_split("train", tmp_path / "ids.pt")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([int(i < 50) for i in range(NODES)], "splits.train: 0 or 1 for each node is a mask"),
        ([True] * 50, rf"splits.train: expected a mask \[{NODES}\] over the nodes of type 'node', got \[50\]"),
    ],
)
def test_masks_that_are_none(make_data, given: list[int], said: str) -> None:
    data = make_data(seeds={"splits": {"train": given}})
    data.prepare_data()
    data.setup()
    with pytest.raises(DataError, match=said):
        data.train_dataloader()
    data.teardown()
