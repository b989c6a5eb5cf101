"""Which earlier run ``--ckpt_path best`` means."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from glt_lightning.base import OptionError
from glt_lightning.cli.past_runs import RunConfig, find_past_run


def config(
    model: str = "Sage", dataset: Any = "a.npz", *, width: int = 16, servers: Any = None, **data: Any
) -> dict[str, Any]:
    return {
        "model": {"class_path": model, "init_args": {"width": width}},
        "data": {"class_path": "GLTDataModule", "init_args": {"dataset": dataset, "batch_size": 8} | data},
        "cluster": {"servers": servers},
    }


class Runs:
    """Writes checkpoints of past runs, each newer than the one before."""

    def __init__(self, root: Path) -> None:
        self.root, self._count = root, 0

    def add(self, of: dict[str, Any] | None, *, beside: dict[str, Any] | None = None) -> Path:
        folder = self.root / "lightning_logs" / f"version_{self._count}"
        path = folder / "checkpoints/best.ckpt"
        path.parent.mkdir(parents=True)
        torch.save({} if of is None else {"glt_run": of}, path)
        if beside is not None:
            (folder / "config.yaml").write_text(yaml.safe_dump(beside))
        self._count += 1
        os.utime(path, (self._count, self._count))
        return path


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def found(runs: Runs, now: dict[str, Any]) -> tuple[Path, tuple[str, ...]]:
    past = find_past_run("best", runs.root, now)
    return past.path, past.differences


def test_newest_of_the_same_configuration(runs: Runs) -> None:
    runs.add(config())
    newest = runs.add(config(batch_size=99, partition={"seed": 5}))  # how it is cut and sampled makes no other graph
    runs.add(config(width=32))
    runs.add(config("Other"))
    runs.add(config(dataset="b.npz"))
    assert found(runs, config()) == (newest, ())


def test_another_option_of_the_model_is_said(runs: Runs) -> None:
    only = runs.add(config(width=32))
    assert found(runs, config()) == (only, ("width 32 (here 16)",))


def test_file_beside_the_checkpoint_counts_where_that_has_none(runs: Runs) -> None:
    old = runs.add(None, beside=config())
    runs.add(config("Other"), beside=config())  # of a later command in the same folder
    runs.add(None)
    assert found(runs, config()) == (old, ())


@pytest.mark.parametrize(
    ("past", "now", "said"),
    [
        (config("Other"), config(), r"has model Other \(here Sage\)"),
        (config(dataset="b.npz"), config(), r"has data.dataset b.npz \(here a.npz\)"),
        (
            config(dataset={"nodes": {"a": {"path": "a.csv"}, "b": {"path": "b.csv" * 20, "id": "id"}}}),
            config(dataset={"nodes": {"a": {"path": "a.csv"}, "b": {"path": "b.csv" * 20, "label": "y"}}}),
            r"has data.dataset.nodes.b.id id \(here None\); data.dataset.nodes.b.label None \(here y\)",
        ),
        (config(undirected=True), config(undirected=None), r"has data.undirected True \(here None\)"),
        (config(transforms=["T"]), config(transforms=[]), r"has data.transforms \['T'\] \(here None\)"),
        (
            config(transforms=["RandomNodeSplit"], partition={"seed": 1}),
            config(transforms=["RandomNodeSplit"], partition={"seed": 2}),
            r"data.partition.seed 1 \(here 2\)",
        ),
        (config(dataset=None, partition={"dir": "p"}), config(dataset=None, partition={"dir": "q"}), "partition.dir p"),
        (config(dataset=None, servers=["h:1"]), config(dataset=None, servers=["h:2"]), "servers"),
        (None, config(), "does not record its configuration"),
    ],
)
def test_others_are_refused(runs: Runs, past: dict[str, Any] | None, now: dict[str, Any], said: str) -> None:
    path = runs.add(past)
    with pytest.raises(OptionError, match=said) as error:
        find_past_run("best", runs.root, now)
    assert str(path) in str(error.value)
    assert "Run fit first, or give the path" in str(error.value)


def test_nothing_there(runs: Runs) -> None:
    with pytest.raises(OptionError, match=r"there is no last checkpoint of an earlier fit"):
        find_past_run("last", runs.root, config())


def test_programs_that_choose_the_class(runs: Runs) -> None:
    def flat(width: int) -> dict[str, Any]:
        return {"model": {"width": width}, "data": {"dataset": "a.npz"}}

    path = runs.add(flat(16))
    assert found(runs, flat(16)) == (path, ())
    assert found(runs, flat(8)) == (path, ("width 16 (here 8)",))


def test_checkpoints_have_the_configuration_which_is_made_once() -> None:
    class Parser:
        dumps = 0

        def dump(self, config: Namespace, **_: Any) -> str:
            Parser.dumps += 1
            return yaml.safe_dump({**vars(config), "trainer": {}})

    keeps = RunConfig(Parser(), Namespace(model={"a": 1}, data=None))
    saved: list[dict[str, Any]] = [{}, {}]
    for checkpoint in saved:
        keeps.on_save_checkpoint(None, None, checkpoint)
    assert saved == [{"glt_run": {"model": {"a": 1}, "data": None, "cluster": None}}] * 2
    assert Parser.dumps == 1


def state(folder: Path, best: str, *, score: float | None = None, last: str = "") -> dict[str, Any]:
    """What a `ModelCheckpoint` of Lightning writes into each checkpoint."""
    paths = {"best_model_path": str(folder / best), "last_model_path": str(folder / last) if last else ""}
    return {"dirpath": str(folder), "best_model_score": score, **paths}


def save(path: Path, when: int, **states: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"glt_run": config(), "callbacks": states}, path)
    os.utime(path, (when, when))
    return path


def test_best_is_what_the_run_recorded_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "lightning_logs/version_0/checkpoints"
    mine = save(folder / "mine/val=0.5.ckpt", 1, A=state(folder, "mine/val=0.5.ckpt", score=0.5))
    end = save(folder / "end.ckpt", 2, A=state(folder, "mine/val=0.5.ckpt", score=0.5, last="end.ckpt"))
    assert find_past_run("best", tmp_path, config()).path == mine
    assert find_past_run("last", tmp_path, config()).path == end
    # in a folder that was moved since
    folder.parent.rename(folder.parent.with_name("copy"))
    assert find_past_run("best", tmp_path, config()).path == folder.parent.with_name("copy") / mine.relative_to(
        folder.parent
    )


def test_best_of_several_is_of_the_callback_that_compares(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    best = save(folder / "accuracy.ckpt", 1)
    save(folder / "best.ckpt", 2)  # of an earlier release in the same folder
    steps = {"Steps": state(folder, "step=9.ckpt"), "Best": state(folder, "accuracy.ckpt", score=0.9)}
    save(folder / "step=9.ckpt", 3, **steps)
    assert find_past_run("best", tmp_path, config()).path == best


def test_checkpoints_in_a_folder_of_the_users_are_found(tmp_path: Path) -> None:
    own = tmp_path / "elsewhere"
    best = save(own / "best-v1.ckpt", 2, A=state(own, "best-v1.ckpt", score=0.5))
    save(own / "best.ckpt", 1, A=state(own, "best.ckpt", score=0.9))  # of an earlier run
    now = config() | {"trainer": {"callbacks": [{"class_path": "M", "init_args": {"dirpath": str(own)}}]}}
    assert find_past_run("best", tmp_path / "logs", now).path == best


def test_trees_below_the_folders_of_checkpoints_are_not_searched(tmp_path: Path) -> None:
    """A ``dirpath`` may be a home folder. A name of a checkpoint may have folders."""
    named = save(tmp_path / "a/b/c/best.ckpt", 1)
    save(tmp_path / "a/b/c/other/best.ckpt", 2)
    save(tmp_path / "a/b/checkpoints/x/y/z/w/best.ckpt", 3)
    callback = {"class_path": "M", "init_args": {"dirpath": str(tmp_path), "filename": "{val/a/b/acc}"}}
    assert find_past_run("best", tmp_path, config() | {"trainer": {"callbacks": [callback]}}).path == named
    with pytest.raises(OptionError, match="there is no best checkpoint"):
        find_past_run("best", tmp_path, config())


def test_files_that_vanish_meanwhile_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lightning_logs/version_0/checkpoints"
    stays, goes, whole = save(folder / "best.ckpt", 1), save(folder / "sub/best.ckpt", 2), Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        found = whole(path, **options)
        if path == goes:
            os.unlink(path)
        return found

    monkeypatch.setattr(Path, "stat", stat)
    assert find_past_run("best", tmp_path, config()).path == stays
    assert not os.path.exists(goes)
