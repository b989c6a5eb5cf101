"""The job launcher: starts a job on several hosts, watches it and ends it (``glt-lightning launch``), and writes job files
for SLURM and Kubernetes.

`start_job` is the whole of it (``start.py``). The launcher starts an agent on each host over ssh (``agent.py``) and exchanges
lines of JSON with it (``messages.py``). An agent starts the processes of its host, sends their log, and ends them all when
the connection ends, so nothing is left behind. ``plan.py`` assigns processes to hosts; ``preflight.py`` checks the hosts
before anything starts. On each host torchrun starts the ranks (``rank_group.py``).

Names are imported when they are first asked for: an agent needs few of them, and no torch.

Example:
    >>> from glt_lightning.launch import LaunchHost
    >>> LaunchHost(host="node-0").host
    'node-0'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.launch.agent import main as main
    from glt_lightning.launch.batch import (
        LaunchKubernetes as LaunchKubernetes,
        LaunchRay as LaunchRay,
        LaunchSlurm as LaunchSlurm,
    )
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
        named_hosts as named_hosts,
        read_launch_file as read_launch_file,
    )
    from glt_lightning.launch.plan import launched_script as launched_script
    from glt_lightning.launch.start import (
        LaunchFlags as LaunchFlags,
        start_job as start_job,
    )


__all__ = [
    "LaunchConfig",
    "LaunchDefaults",
    "LaunchHost",
    "LaunchKubernetes",
    "LaunchLimits",
    "LaunchPartition",
    "LaunchRay",
    "LaunchRestarts",
    "LaunchSecurity",
    "LaunchServer",
    "LaunchSlurm",
]

__getattr__, __dir__ = lazy_names(__name__)
