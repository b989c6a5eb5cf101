"""Options are found as jsonargparse finds them, and in less time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest
from jsonargparse import ArgumentParser, _subcommands
from jsonargparse._link_arguments import ActionLink
from jsonargparse._typehints import ActionTypeHint

from glt_lightning.cli.lookups import find_option, quick_lookups

OWN = _subcommands.find_action_and_subcommand
NAMES = ["fit", "test", "cfg", "config", "help", "version", "seed", "data", "data.rows", "data.rows.x", "data.of.depth"]
NAMES += ["data.of", "model", "model.width", "wide", "info", "info.x", "none", "", "config.x"]


@dataclass
class Inner:
    depth: int = 1


@dataclass
class Data:
    rows: int = 3
    of: Inner = field(default_factory=Inner)


@dataclass
class Model:
    width: int = 2


def made(option: str = "--info") -> ArgumentParser:
    parser = ArgumentParser(version="1")
    parser.add_argument(option, type=int, default=1)
    commands = parser.add_subcommands(required=False)
    for name in ("fit", "info"):
        of = ArgumentParser()
        of.add_argument("--config", action="config")
        of.add_argument("-w", "--wide", "--wider", dest="wide_rows", type=int)
        of.add_argument("--seed", type=int, default=0)
        of.add_class_arguments(Data, "data")
        of.add_class_arguments(Model, "model")
        of.link_arguments("data.rows", "model.width")
        commands.add_subcommand(name, of)
    return parser


@pytest.mark.parametrize("exclude", [None, ActionTypeHint, (ActionTypeHint, ActionLink)])
def test_as_jsonargparse(exclude: object) -> None:
    parser, found = made(), 0
    for name in [*NAMES, *(f"{command}.{name}" for command in ("fit", "info", "test") for name in NAMES)]:
        expected = OWN(parser, name, exclude=exclude)
        action, command = find_option(parser, name, exclude)
        assert action is expected[0], name
        assert command == expected[1], name
        found += action is not None
    assert found >= 10


def test_only_inside_the_block() -> None:
    with pytest.raises(KeyError), quick_lookups():
        assert _subcommands.find_action_and_subcommand is find_option
        assert made("--more").parse_args(["fit", "--data.rows=7"]).fit.model.width == 7
        raise KeyError
    assert _subcommands.find_action_and_subcommand is OWN


def test_a_release_without_it_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jsonargparse._subcommands")
    with quick_lookups():
        assert _subcommands.find_action_and_subcommand is OWN
