"""``python -m lightning partition --assign_only`` and ``--parts``: the folder of one run, made in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from glt_lightning import GLTDataModule
from glt_lightning.base import PartitionOptions
from glt_lightning.cli import main


@pytest.fixture
def args(graph_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    data = ["--data", "GLTDataModule", "--data.dataset", str(graph_npz), "--data.root", "root"]
    return ["partition", *data, "--data.undirected", "true", "--data.partition.num_parts", "3"]


def said(capsys: pytest.CaptureFixture[str], args: list[str]) -> list[str]:
    capsys.readouterr()
    main(args)
    return capsys.readouterr().out.splitlines()


def test_stages_make_what_fit_makes(args: list[str], graph_npz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, sizes, then = said(capsys, [*args, "--data.partition.algorithm", "metis", "--assign_only", "parts.npz"])
    assert first == "assigned: parts.npz"
    assert sizes.startswith("  node: ")
    assert then.startswith("Give it as --data.partition.algorithm parts.npz on every host")
    args += ["--data.partition.algorithm", "parts.npz"]
    options = PartitionOptions(num_parts=3, algorithm="parts.npz")
    folder = GLTDataModule(str(graph_npz), root="root", undirected=True, partition=options).partition_dir
    assert said(capsys, [*args, "--parts", "2,0"]) == [f"{folder}: has part 0, 2, lacks 1 of 3"]
    assert said(capsys, [*args, "--parts", "0"]) == [f"{folder}: has part 0, lacks 1 of 3"]
    assert said(capsys, [*args, "--parts", "1"]) == [f"complete: {folder}"]
    alone = GLTDataModule(str(graph_npz), root="alone", undirected=True, partition=options)
    alone.prepare_data()
    files = sorted(p.relative_to(folder) for p in folder.rglob("*"))
    assert files == sorted(p.relative_to(alone.partition_dir) for p in alone.partition_dir.rglob("*"))
    for file in files:
        if (folder / file).is_file():
            assert (folder / file).read_bytes() == (alone.partition_dir / file).read_bytes(), file


def test_no_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["partition", "--data", "GLTDataModule", "--data.partition.dir", "parts", "--parts", "0"])
    assert end.value.code == 2
    assert "error: dataset: not given. Name the graph to partition:" in capsys.readouterr().err
