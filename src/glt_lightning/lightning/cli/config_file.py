"""Configurations of ``fit`` for subcommands that want only a part of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from glt_lightning.errors import OptionError


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
    try:
        raw = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise OptionError(f"--config: cannot read {path}: {error.strerror or error}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"--config: {path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(raw, dict):
        raise OptionError(f"--config: {path} contains no configuration.")
    return {key: raw[key] for key in groups if raw.get(key) is not None}
