"""Starts a job on several hosts, watches it and ends it: ``glt-lightning launch``.

Names are imported when they are first asked for: an agent needs few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.lazy import lazy_names

if TYPE_CHECKING:
    from glt_lightning.launch.batch import LaunchKubernetes as LaunchKubernetes, LaunchSlurm as LaunchSlurm
    from glt_lightning.launch.hosts import (
        LaunchDefaults as LaunchDefaults,
        LaunchHost as LaunchHost,
        LaunchServer as LaunchServer,
    )
    from glt_lightning.launch.options import (
        LaunchConfig as LaunchConfig,
        LaunchLimits as LaunchLimits,
        LaunchPartition as LaunchPartition,
        LaunchRestarts as LaunchRestarts,
        LaunchSecurity as LaunchSecurity,
    )

_HOMES = {
    "LaunchConfig": "glt_lightning.launch.options",
    "LaunchDefaults": "glt_lightning.launch.hosts",
    "LaunchHost": "glt_lightning.launch.hosts",
    "LaunchKubernetes": "glt_lightning.launch.batch",
    "LaunchLimits": "glt_lightning.launch.options",
    "LaunchPartition": "glt_lightning.launch.options",
    "LaunchRestarts": "glt_lightning.launch.options",
    "LaunchSecurity": "glt_lightning.launch.options",
    "LaunchSlurm": "glt_lightning.launch.batch",
    "LaunchServer": "glt_lightning.launch.hosts",
}
__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
