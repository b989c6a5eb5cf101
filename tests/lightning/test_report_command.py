"""``python -m lightning report``: shows any finished folder and changes nothing in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from glt_lightning.base import PartitionOptions
from glt_lightning.cli import main
from glt_lightning.lightning import traffic_options


@pytest.fixture
def folder(make_data: Any) -> str:
    data = make_data(partition=PartitionOptions(num_parts=2))
    data.prepare_data()
    return str(data.partition_dir)


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    main(["report", *args])
    return capsys.readouterr().out


def test_tables_page_and_numbers(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {file: file.stat().st_mtime_ns for file in Path(folder).rglob("*")}
    page = tmp_path / "report.html"
    batches = ["--num_neighbors", "[3,2]", "--batch_size", "10", "--batches", "2", "--cache", "[0.25]"]
    text = said(capsys, folder, *batches, "--html", str(page))
    assert "num_neighbors [3, 2], batch_size 10" in text
    assert "2 sampled batches" in text
    assert "25 %" in text
    assert "25 %" in page.read_text()
    said(capsys, folder, *batches, "--html", str(page))  # replaces an earlier one
    report = json.loads(said(capsys, folder, *batches, "--json"))
    assert report["contents"]["folder"] == folder
    assert [len(traffic["parts"]) for traffic in report["traffic"]] == [2, 2]
    (cache,) = report["traffic"][0]["parts"][1]["caches"]
    assert cache["ratio"] == 0.25
    assert before == {file: file.stat().st_mtime_ns for file in Path(folder).rglob("*")}
    assert sorted(tmp_path.glob(".report*")) == []


def test_fan_outs_by_edge_type(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, folder, "--num_neighbors", "{node__to__node: [2, -1]}", "--batch_size", "10")
    assert "{'node__to__node': [2, -1]}" in text


@pytest.mark.parametrize(
    ("args", "status", "line"),
    [
        ([], 2, "the following arguments are required: folder."),
        (["none"], 1, "none/manifest.json: not found; there is no such folder."),
        (["FOLDER", "--num_neighbors", "[3,0]"], 2, "num_neighbors: expected one integer per hop"),
        (["FOLDER", "--num_neighbors", "{a__b__c: [1]}"], 2, "num_neighbors: expected a list of fan-outs for each"),
        (["FOLDER", "--batch_size", "many"], 2, "batch_size: expected int; got many."),
        (["FOLDER", "--cache", "[2]"], 2, "cache: expected shares of all nodes"),
        (["FOLDER", "--html", "FOLDER/report.html"], 2, "--html: FOLDER/report.html is inside the partition folder"),
        (["FOLDER", "--html", "."], 2, "--html: . is a folder"),
        (["FOLDER", "--html", "mine.txt"], 2, "--html: mine.txt exists and is no page of ours. Choose another name."),
        (["FOLDER", "--bathces", "3"], 2, "unrecognized arguments: --bathces 3. Did you mean --batches?"),
    ],
)
def test_wrong_options_get_one_line(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    status: int,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("of the user")
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["report", *(arg.replace("FOLDER", folder) for arg in args)])
    (text,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert end.value.code == status
    assert text.startswith(f"error: {line.replace('FOLDER', folder)}")
    assert (tmp_path / "mine.txt").read_text() == "of the user"


def test_a_part_is_not_here(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(Path(folder) / "part1")
    with pytest.raises(SystemExit) as end:
        main(["report", folder])
    assert end.value.code == 1
    assert "part1/" in capsys.readouterr().err


def test_edges_to_predict(make_data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Batches of edges are predicted, those of a configuration with its negatives."""
    splits, negatives = {"num_val": 0.1, "num_test": 0.1}, {"mode": "triplet", "amount": 3}
    data = make_data(
        task="link", links={"edge_splits": splits, "neg_sampling": negatives}, partition=PartitionOptions(num_parts=2)
    )
    data.prepare_data()
    batches = ["--num_neighbors", "[3]", "--batch_size", "20", "--batches", "2", "--cache", "[]"]
    negatives_by_flag = ["--neg_sampling", "{mode: triplet, amount: 3}", "--disjoint", "true"]
    text = said(capsys, str(data.partition_dir), *batches, *negatives_by_flag)
    assert "cannot be predicted" not in text
    assert "batch_size 20, disjoint, one rank" in text
    options = traffic_options(data, 2, [])
    assert (options.neg_sampling.mode, options.neg_sampling.amount) == ("triplet", 3)
    assert options.exclude_target_edges == "reverse"
