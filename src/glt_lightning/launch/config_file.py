"""Reads the file of ``launch --config``: ours, GLT's YAML of nodes, or DGL's list of addresses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from glt_lightning.errors import OptionError


def read_launch_file(path: str) -> dict[str, Any]:
    """The options of `LaunchConfig` that a file gives, as a mapping. Raises `OptionError`."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--config: cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise OptionError(f"--config: {path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(raw, Mapping):
        raise OptionError(f"--config: {path} contains no options.")
    return renamed(raw)


def renamed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Names of the file that are no names of Python: ``config`` (an option of the command line), ``partition: from``."""
    given = dict(raw)
    if "config" in given:
        given["run_config"] = given.pop("config")
    if isinstance(given.get("partition"), Mapping) and "from" in given["partition"]:
        partition = dict(given["partition"])
        given["partition"] = {**partition, "source": partition.pop("from")}
        given["partition"].pop("from")
    return given
