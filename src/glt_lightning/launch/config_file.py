"""Reads the file of ``launch --config``: ours, GLT's YAML of nodes, or DGL's list of addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glt_lightning.base import OptionError, read_yaml

_OF_GLT = {  # key of GLT's file -> option of a host here
    "nodes": "host",
    "ports": "port",
    "usernames": "user",
    "python_bins": "python",
    "dst_paths": "dir",
    "visible_devices": "devices",
}
_RANKS = "node_ranks"
_ADDRESS = re.compile(r"\s*([\w.-]+|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*)(?:\s+\d+)?\s*")


def read_launch_file(path: str) -> tuple[dict[str, Any], str]:
    """The options of `LaunchConfig` that a file gives, as a mapping, and what to say about a file of GLT or DGL.

    Raises `OptionError`.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--config: cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None
    if (hosts := _addresses(text)) is not None:
        return {"hosts": hosts}, f"{path}: {len(hosts)} hosts of DGL's ip_config; ports in it are not used"
    raw = read_yaml(path, text)
    if not isinstance(raw, Mapping):
        raise OptionError(f"--config: {path} contains no options.")
    if "nodes" in raw and "hosts" not in raw:
        return _of_glt(path, raw)
    return _renamed(raw), ""


def _addresses(text: str) -> list[dict[str, Any]] | None:
    """Hosts of a list of DGL's, a line each: an address, and the port of a server of DGL's. None for anything else."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [_ADDRESS.fullmatch(line) for line in lines]
    return [{"host": each[1]} for each in found if each] if found and all(found) else None


def _renamed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The file as Python is given it: ``config`` (an option of the command line) and ``partition: from`` have other names, and
    a host that is a text has this name."""
    given = dict(raw)
    if "config" in given:
        given["run_config"] = given.pop("config")
    if isinstance(given.get("partition"), Mapping) and "from" in given["partition"]:
        partition = dict(given["partition"])
        given["partition"] = {"source": partition.pop("from"), **partition}
    return {key: named_hosts(value) if key in ("hosts", "servers") else value for key, value in given.items()}


def named_hosts(given: Any) -> Any:
    """A list of hosts with a mapping in place of each text, which is the name of a host; anything else as it is."""
    return [{"host": each} if isinstance(each, str) else each for each in given] if isinstance(given, list) else given


def _of_glt(path: str, raw: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """GLT's file: a list for each option, in the order of the nodes. Other keys are arguments of GLT's own script."""
    nodes = raw["nodes"]
    used = [key for key in (*_OF_GLT, _RANKS) if raw.get(key) is not None]
    for key in used:
        if not isinstance(raw[key], Sequence) or isinstance(raw[key], str) or len(raw[key]) != len(nodes):
            raise OptionError(f"{path}: {key}: expected a list with one entry for each of the nodes, got {raw[key]!r}.")
    hosts = [{_OF_GLT[key]: raw[key][n] for key in used if key != _RANKS} for n in range(len(nodes))]
    for host in hosts:
        if "devices" in host:
            host["devices"] = _gpus(path, host["devices"])
    ranks = list(raw.get(_RANKS) or range(len(nodes)))
    if sorted(ranks) != list(range(len(nodes))):
        raise OptionError(f"{path}: node_ranks: expected 0 to {len(nodes) - 1}, each once; got {ranks}.")
    ordered = [hosts[ranks.index(rank)] for rank in range(len(nodes))]
    unused = [str(key) for key in raw if key not in used]
    note = f"{path}: read as GLT's file: {', '.join(used)}"
    if unused:
        note += f"; not used: {', '.join(unused)} (options of the run's configuration, or args of a script)"
    return {"hosts": ordered}, note


def _gpus(path: str, given: Any) -> list[int]:
    """``0,1,2,3``, which YAML may have read as a number."""
    try:
        return [given] if isinstance(given, int) else [int(each) for each in str(given).split(",")]
    except ValueError:
        raise OptionError(f"{path}: visible_devices: expected numbers of GPUs such as 0,1; got {given!r}.") from None
