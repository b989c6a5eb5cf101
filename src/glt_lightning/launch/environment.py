"""What ``launch`` tells a script: its hosts, and how processes on them reach each other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glt_lightning.errors import OptionError
from glt_lightning.options import ClusterOptions
from glt_lightning.options.checks import as_options

VARIABLE = "GLT_LAUNCH"
DGL_PARTITION = "DGL_CONF_PATH"  # of DGL's launcher: the partition


@dataclass(frozen=True)
class LaunchedScript:
    """hosts: addresses of those that train, by node rank.  cluster: this host's address and the job's security."""

    hosts: tuple[str, ...]
    cluster: ClusterOptions


def script_environment(
    hosts: Sequence[str], host: str, security: Mapping[str, Any], folder: str | None
) -> dict[str, str]:
    """The variables of a script on a host. folder: of the partition."""
    given = {VARIABLE: json.dumps(script_job(hosts, host, security))}
    return given if folder is None else given | {DGL_PARTITION: folder}


def script_job(hosts: Sequence[str], host: str, security: Mapping[str, Any]) -> dict[str, Any]:
    """What `VARIABLE` contains, as JSON."""
    return {"hosts": list(hosts), "cluster": {"host": host, "security": dict(security)}}


def launched_script() -> LaunchedScript | None:
    """What this process was given; None where ``launch`` did not start it. Raises `OptionError`."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    try:
        given = json.loads(text)
        hosts, cluster = tuple(map(str, given["hosts"])), dict(given["cluster"])
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{VARIABLE}: cannot read {text!r:.100} ({error}); `launch` sets this variable.") from None
    return LaunchedScript(hosts, as_options(ClusterOptions, "cluster", cluster))
