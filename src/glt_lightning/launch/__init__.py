"""The job launcher: starts a job on several hosts, watches it and ends it (``glt-lightning launch``), and writes job files
for SLURM and Kubernetes.

The launcher starts an agent on each host over ssh (``agent.py``) and exchanges lines of JSON with it (``messages.py``).
An agent starts the processes of its host, sends their log, and ends them all when the connection ends, so nothing is
left behind. ``plan.py`` assigns processes to hosts; ``preflight.py`` checks the hosts before anything starts. On each
host torchrun starts the ranks (``rank_group.py``).

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
    from glt_lightning.launch.agent import (
        main as main,
    )
    from glt_lightning.launch.batch import (
        LaunchKubernetes as LaunchKubernetes,
        LaunchRay as LaunchRay,
        LaunchSlurm as LaunchSlurm,
    )
    from glt_lightning.launch.files import (
        files_for as files_for,
        files_for_all as files_for_all,
        make_certificates as make_certificates,
    )
    from glt_lightning.launch.hosts import (
        LaunchDefaults as LaunchDefaults,
        LaunchHost as LaunchHost,
        LaunchServer as LaunchServer,
    )
    from glt_lightning.launch.job import (
        LaunchedJob as LaunchedJob,
        here as here,
    )
    from glt_lightning.launch.kubernetes import (
        job_text as job_text,
        keeps_results as keeps_results,
        needs_secret as needs_secret,
        on_pods as on_pods,
        secret_command as secret_command,
    )
    from glt_lightning.launch.messages import (
        MergedLog as MergedLog,
    )
    from glt_lightning.launch.options import (
        FILE_ENGINES as FILE_ENGINES,
        PARTITION as PARTITION,
        LaunchConfig as LaunchConfig,
        LaunchLimits as LaunchLimits,
        LaunchPartition as LaunchPartition,
        LaunchRestarts as LaunchRestarts,
        LaunchSecurity as LaunchSecurity,
        named_hosts as named_hosts,
        read_launch_file as read_launch_file,
    )
    from glt_lightning.launch.plan import (
        command_of as command_of,
        launched_script as launched_script,
        server_process as server_process,
        trainer_process as trainer_process,
    )
    from glt_lightning.launch.preflight import (
        Preflight as Preflight,
    )
    from glt_lightning.launch.remote import (
        LaunchError as LaunchError,
        agent_command as agent_command,
    )
    from glt_lightning.launch.slurm import (
        job_script as job_script,
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
