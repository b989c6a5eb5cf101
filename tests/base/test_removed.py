"""Options of earlier releases: defaults are passed over, anything else is refused with what to write instead."""

import pickle
from pathlib import Path

import pytest

from glt_lightning.base import (
    BatchOptions,
    CacheOptions,
    EvaluationOptions,
    LinkOptions,
    OptionError,
    SeedOptions,
    as_options,
    removed_in,
    without_removed,
)
from glt_lightning.base.removed import _MOVED, _OPTIONS
from glt_lightning.cli import main
from glt_lightning.cli.messages import keep_groups

GROUPS = {"seeds": SeedOptions, "links": LinkOptions, "batches": BatchOptions, "evaluation": EvaluationOptions}
DATA = "data:\n  class_path: glt_lightning.GLTDataModule\n  init_args:\n    dataset: demo\n"


@pytest.mark.parametrize("name", _OPTIONS)
def test_its_default_is_passed_over_and_another_value_refused(name: str) -> None:
    group, _, key = name.rpartition(".")
    assert without_removed(group, {key: _OPTIONS[name][0], "other": 1}) == {"other": 1}
    with pytest.raises(OptionError, match=f"^{name}: was removed. [A-Z]"):
        without_removed(group, {key: "something"})


@pytest.mark.parametrize("name", _MOVED)
def test_a_moved_option_is_where_it_is_said_to_be(name: str) -> None:
    default, now = _MOVED[name]
    group, _, key = now.partition(".")
    assert without_removed("", {name: default, "root": "x"}) == {"root": "x"}
    with pytest.raises(OptionError, match=f"^{name}: was renamed. Write data.{now}."):
        without_removed("", {name: "something"})
    of_now = getattr(GROUPS[group](), key)
    if name == "layerwise":
        assert {**default, **vars(of_now)} == default
    elif name == "predict_split":
        assert of_now is None  # all nodes, as then; of edges the test
    else:
        assert of_now == default


def test_a_moved_option_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(DATA)
    for given, now in (
        ("--data.eval_num_neighbors=[5]", "evaluation.num_neighbors"),
        ("--data.splits.train=a.npy", "seeds.splits"),
        ("--data.layerwise.batch_size=5", "evaluation.layerwise"),
    ):
        with pytest.raises(SystemExit):
            main(["fit", "--config", str(tmp_path / "run.yaml"), given])
        assert f": was renamed. Write data.{now}." in capsys.readouterr().err


def test_groups_in_groups() -> None:
    assert without_removed("", {"cache": {"save": False, "ratio": 0.1}, "root": "x"}) == {
        "cache": {"ratio": 0.1},
        "root": "x",
    }
    with pytest.raises(OptionError, match=r"cache\.save: was removed"):
        without_removed("", {"cache": {"save": True}})


def test_mappings_of_a_script() -> None:
    assert as_options(CacheOptions, "cache", {"save": False, "ratio": 0.1}) == CacheOptions(ratio=0.1)
    with pytest.raises(OptionError, match=r"cache\.policy: dynamic was removed\. Write auto"):
        as_options(CacheOptions, "cache", {"policy": "dynamic"})


def test_a_pickle() -> None:
    plain = CacheOptions(ratio=0.1)
    old = pickle.loads(pickle.dumps(plain))
    state = {**vars(plain), "save": False, "num_neighbors": None}
    old.__setstate__(state)
    assert old == plain
    assert "save" not in vars(old)
    with pytest.raises(OptionError, match=r"cache\.policy: presample was removed"):
        old.__setstate__({**state, "policy": "presample"})


def test_words_that_name_one() -> None:
    assert (
        removed_in("unrecognized arguments: --cache.save=true")
        == f"cache.save: was removed. {_OPTIONS['cache.save'][1]}"
    )
    assert removed_in("unrecognized arguments: --cache.saved=true") is None
    for message in ("Group 'cluster' does not accept option 'num_workers'", "arguments: --cluster.retry.first_s 3"):
        assert (removed_in(message) or "").startswith("cluster."), message


@pytest.mark.parametrize("below", [False, True])
def test_a_configuration_of_an_earlier_run(tmp_path, capsys, below: bool) -> None:
    file = tmp_path / "run.yaml"
    text = f"{DATA}    cache:\n      ratio: 0.1\n      save: false\n      num_neighbors: null\n"
    file.write_text("fit:\n" + "".join(f"  {line}\n" for line in text.splitlines()) if below else text)
    words = ["--config", str(file), "fit"] if below else ["fit", "--config", str(file)]
    with pytest.raises(SystemExit) as end:
        main([*words, "--print_config"])
    found = capsys.readouterr()
    assert end.value.code == 0, found.err
    assert "ratio: 0.1" in found.out
    assert "save" not in found.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "    cache:\n      save: true\n",
            "line 6: data.cache.save: was removed. The cache is filled when a run starts.",
        ),
        ("    cache:\n      policy: dynamic\n", "line 6: data.cache.policy: dynamic was removed. Write auto"),
    ],
)
def test_a_configuration_that_sets_one(tmp_path, capsys, given: str, said: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(DATA + given)
    with pytest.raises(SystemExit) as end:
        main(["fit", "--config", str(file)])
    assert end.value.code == 2
    assert f"error: {file}, {said}" in capsys.readouterr().err


def test_words_of_the_command_that_set_one(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--data", "GLTDataModule", "--data.cache.save", "true"])
    assert "error: cache.save: was removed." in capsys.readouterr().err


def test_a_configuration_that_serve_and_partition_read(tmp_path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("cluster: {num_workers: 2, prefetch: 3}\ndata: {init_args: {cache: {save: false}}}\n")
    assert keep_groups(["--config", str(file)], ["cluster", "data"]) == [
        '--config={"cluster": {"prefetch": 3}, "data": {"init_args": {"cache": {}}}}'
    ]
    file.write_text("cluster: {num_workers: 3}\n")
    with pytest.raises(
        OptionError, match=r"run.yaml: cluster\.num_workers: was removed\. Write data\.sampling\.num_workers"
    ):
        keep_groups([f"--config={file}"], ["cluster"])
