"""Configurations of ``fit`` for subcommands that want only a part of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from glt_lightning.base import OptionError, read_yaml
from glt_lightning.cli.messages import without_removed_options


def keep_groups(argv: Sequence[str], groups: Collection[str]) -> list[str]:
    """The arguments, with these groups of each configuration in place of its path. Raises `OptionError`."""
    given, out = iter(argv), []
    for arg in given:
        name, equals, value = arg.partition("=")
        if name not in ("--config", "-c"):
            out.append(arg)
            continue
        path = value if equals else next(given, None)
        if path is None:
            raise OptionError("--config: expected the path of a YAML file.")
        out.append(f"--config={json.dumps(_read(path, groups))}")
    return out


def _read(path: str, groups: Collection[str]) -> dict[str, Any]:
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise OptionError(f"--config: {path} contains no configuration.")
    try:
        return without_removed_options({key: raw[key] for key in groups if raw.get(key) is not None})
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None
