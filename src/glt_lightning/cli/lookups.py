"""Options of a parser, found in less time than jsonargparse takes.

jsonargparse looks up an option ten thousand times in a command with a checkpoint, and each time filters the two hundred of its
parser by type first. Without that each look-up takes 0.05 ms less CPU time, which is half a second.
"""

from __future__ import annotations

import sys
from argparse import Action
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jsonargparse import ArgumentParser, _actions

_MODULE, _NAME = "jsonargparse._subcommands", "find_action_and_subcommand"
_NOT_PARSED: tuple[type[Action], ...] | None = getattr(_actions, "non_parsing_actions", None)
_LAST = tuple(getattr(_actions, name) for name in ("_ActionConfigLoad", "ActionFail") if hasattr(_actions, name))


@contextmanager
def quick_lookups() -> Iterator[None]:
    """Replaces the look-up of jsonargparse inside a ``with`` block. A release that has none of this name keeps its own."""
    module: Any = sys.modules.get(_MODULE)
    own = getattr(module, _NAME, None)
    if own is None or _NOT_PARSED is None:
        yield
        return
    setattr(module, _NAME, find_option)
    try:
        yield
    finally:
        setattr(module, _NAME, own)


def find_option(
    parser: ArgumentParser, dest: str, exclude: type[Action] | tuple[type[Action], ...] | None = None
) -> tuple[Action | None, str | None]:
    """Returns the option of a dotted name, and the subcommand that has it. As in jsonargparse, names of subcommands come first,
    and an option that reads configurations comes last."""
    omitted = (*(_NOT_PARSED or ()), *(exclude if isinstance(exclude, tuple) else (exclude,) if exclude else ()))
    subcommands: Any = getattr(parser, "_subcommands_action", None)
    if subcommands is not None and not isinstance(subcommands, omitted):
        parsers = subcommands._name_parser_map
        if dest in parsers:
            return subcommands, None
        name, _, rest = dest.partition(".")
        if name in parsers:
            option, further = find_option(parsers[name], rest, exclude)
            return option, name if further is None else f"{name}.{further}"
    word = f"--{dest}"
    last: Action | None = None
    for option in parser._actions:
        if (option.dest == dest or word in option.option_strings) and not isinstance(option, omitted):
            if not isinstance(option, _LAST):
                return option, None
            last = option
    return last, None
