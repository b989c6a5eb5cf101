"""Errors of the command line in one line instead of a page."""

from __future__ import annotations

import difflib
import re
import sys
from typing import NoReturn

from lightning.pytorch.cli import LightningArgumentParser

_KEY = re.compile(r'Parser key "([^"]+)":?')
_NOISE = re.compile(
    r"Does not validate against any|Subtypes:|Errors:|Expected a <class 'NoneType'>|Given value|Expected a path but|"
    r"Problem with given class_path"
)


class OneLineParser(LightningArgumentParser):
    """Says what is wrong in one line, without the usage of two hundred options."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        parser = getattr(ex, "subcommand_parser", None) or self
        if not self.exit_on_error:
            super().error(message, ex)
        prog = parser.prog.replace(" [options]", "")
        sys.stderr.write(f"error: {one_line(message)}{self._hint(parser, message)} Options: {prog} --help\n")
        self.exit(2)

    @staticmethod
    def _hint(parser: LightningArgumentParser, message: str) -> str:
        unknown = re.search(r"unrecognized arguments: (--[\w.]+)", message)
        known = [option for action in parser._actions for option in action.option_strings]
        near = difflib.get_close_matches(unknown.group(1), known, n=1, cutoff=0.6) if unknown else []
        return f" Did you mean {near[0]}?" if near else ""


def one_line(message: str) -> str:
    """The part of a message of jsonargparse that names the key and what is wrong with it."""
    keys = _KEY.findall(message)
    lines = [line.strip().lstrip("- ") for line in _KEY.sub("", message).splitlines()]
    said = " ".join(dict.fromkeys(line for line in lines if line and not _NOISE.search(line)))
    text = f"{'.'.join(keys)}: {said}" if keys else said or message.splitlines()[0]
    text = re.sub(r"<class '([^']+)'>", r"\1", text).replace("init_args.", "")
    return text if text.endswith((".", "?", "!")) else f"{text}."
