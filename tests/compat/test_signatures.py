"""The arguments of GLT's names, in GLT's order and with its defaults: a script may give them by position or by name."""

from __future__ import annotations

import ast
import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import glt_lightning.compat.glt as glt

# As GLT 0.2.4 has them; `...` is a default that is another one here, such as a GPU, for which we take the CPU.
SIGNATURES = Path(__file__).with_name("signatures.txt").read_text()


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """(name, argument -> default; `inspect.Parameter.empty` without one)"""
    call = ast.parse(f"def f{line[line.index('(') :]}: pass").body[0]
    assert isinstance(call, ast.FunctionDef)
    names = [each.arg for each in call.args.args]
    defaults = [ast.literal_eval(each) for each in call.args.defaults]
    given = [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults
    return line[: line.index("(")], dict(zip(names, given, strict=True))


@pytest.mark.parametrize(("name", "theirs"), map(parsed, SIGNATURES.splitlines()))
def test_arguments_are_those_of_glt(name: str, theirs: dict[str, Any]) -> None:
    ours = inspect.signature(attrgetter(name)(glt)).parameters
    positional = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[: len(theirs)] == list(theirs)
    for argument, default in theirs.items():
        found = ours[argument].default
        if default is ...:
            assert found is not inspect.Parameter.empty, argument
        elif default is not inspect.Parameter.empty:
            assert found == default, argument


def test_a_difference_is_found() -> None:
    for wrong in ("id2idx(ids, more)", "get_free_port(host='a')", "seed_everything(seed=...)"):
        with pytest.raises(AssertionError):
            test_arguments_are_those_of_glt(*parsed(f"utils.{wrong}"))
