"""Options of sampler processes: one type for those of a rank and those of a graph server, and their old names."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import pytest
from jsonargparse import ArgumentParser

from glt_lightning.base import ClusterOptions, OptionError, SamplingOptions, WorkerOptions, as_options

OLD = [("prefetch_size", "prefetch", 9), ("buffer_size", "channel_size", "100MB")]


def parse(*argv: str) -> ClusterOptions:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--cluster", type=ClusterOptions, default=ClusterOptions())
    return parser.instantiate(parser.parse_args(list(argv))).cluster


def test_both_groups_have_the_same_fields():
    shared = {each.name for each in fields(WorkerOptions)}
    assert shared == {"num_workers", "concurrency", "worker_devices", "prefetch", "channel_size"}
    for kind in (SamplingOptions, ClusterOptions):
        assert issubclass(kind, WorkerOptions)
        assert shared <= {each.name for each in fields(kind)}


@pytest.mark.parametrize("kind", [SamplingOptions, ClusterOptions])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("concurrency", 0),
        ("prefetch", 0),
        ("prefetch", True),
        ("worker_devices", ["gpu"]),
        ("channel_size", "much"),
    ],
)
def test_a_wrong_value_is_named_with_its_group(kind, name, value):
    with pytest.raises(OptionError, match=rf"{kind.group}\.{name}: expected .* got "):
        kind(**{name: value})


def test_where_the_groups_differ():
    assert SamplingOptions(num_workers=0, channel_size=None).channel_bytes is None
    with pytest.raises(OptionError, match=r"cluster\.num_workers: expected an integer >= 1, got 0"):
        ClusterOptions(num_workers=0)
    with pytest.raises(OptionError, match=r"cluster\.channel_size: null .* Give auto, or bytes"):
        ClusterOptions(channel_size=None)


@pytest.mark.parametrize(("old", "new", "value"), OLD)
def test_an_old_name_is_read_with_one_line_of_advice(tmp_path, old, new, value):
    config = tmp_path / "run.yaml"
    config.write_text(f"cluster: {{{old}: {value}}}")
    ways = [
        lambda: ClusterOptions(**{old: value}),
        lambda: as_options(ClusterOptions, "cluster", {old: value}),
        lambda: parse(f"--cluster.{old}={value}"),
        lambda: parse("--config", str(config)),
    ]
    for way in ways:
        with pytest.warns(
            FutureWarning, match=rf"^cluster\.{old} is now called cluster\.{new}\. The value {value!r} is "
        ) as got:
            options = way()
        assert getattr(options, new) == value
        assert len({str(each.message) for each in got if each.category is FutureWarning}) == 1
        assert options == replace(options) == ClusterOptions(**{new: value})  # no further advice: the name is taken


@pytest.mark.parametrize(("old", "new", "value"), OLD)
def test_both_names_are_refused(old, new, value):
    other = 5 if new == "prefetch" else "1GB"
    with pytest.raises(
        OptionError, match=rf"cluster\.{old}: is the old name of cluster\.{new}, and both are given: {value!r} and"
    ):
        ClusterOptions(**{old: value, new: other})


def test_advice_is_for_the_first_rank(monkeypatch, recwarn):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ClusterOptions(prefetch_size=9).prefetch == 9
    assert not recwarn.list


def test_a_pickle_of_an_earlier_release_keeps_its_values(recwarn):
    """Hyperparameters in checkpoints are pickled; there the old names were the fields."""
    saved = ClusterOptions(num_workers=5)
    for old, new, value in OLD:
        del saved.__dict__[new]
        saved.__dict__[old] = value
    read = pickle.loads(pickle.dumps(saved))
    assert read == ClusterOptions(num_workers=5, prefetch=9, channel_size="100MB")
    assert pickle.loads(pickle.dumps(read)) == read
    assert not recwarn.list
