"""Options of a launched job: its hosts, its command, restarts and deadlines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from glt_lightning.base import OptionError, above_zero, as_options, at_least, one_of, read_yaml
from glt_lightning.launch.batch import LaunchKubernetes, LaunchRay, LaunchSlurm, check_engine
from glt_lightning.launch.hosts import (
    LaunchDefaults,
    LaunchHost,
    LaunchServer,
    Machine,
    check_port,
    server_machine,
    trainer_machine,
)
from glt_lightning.partition import CopySource

COMMANDS = ("fit", "validate", "test", "predict", "embed", "recommend")  # subcommands that run on all trainers
PARTITION = "partition"  # the subcommand that runs as a job array
FILE_ENGINES = ("slurm", "kubernetes")  # a file is written for the cluster, which starts the job
CLUSTER_ENGINES = (*FILE_ENGINES, "ray")  # the cluster chooses the hosts
ENGINES = ("ssh", "here", *CLUSTER_ENGINES)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class LaunchPartition:
    """The place of the graph's partition.

    Attributes:
        source: Source of ``--copy``: a folder that the hosts can read, or a URL of fsspec. In YAML also ``from``.
        dir: Folder of the partition on each host. None: that of the run's configuration.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchPartition(source="s3://bucket/products", dir="/data/parts").dir
        '/data/parts'
    """

    source: str | None = None
    dir: str | None = None

    def __post_init__(self) -> None:
        if self.source is None:
            return
        CopySource.check_url(self.source)
        if self.dir is None:
            raise OptionError(
                f"partition: {self.source} is to be copied, and dir does not say where to. Set partition: dir."
            )


@dataclass(frozen=True, kw_only=True)
class LaunchSecurity:
    """Certificates and the secret of the job.

    Attributes:
        dir: Folder on the launching host with ``ca.pem``, ``ca.key``, ``token``, and a certificate for each host. Missing files
            are made, and each host gets only its own. None: ``cluster.security`` of the run's configuration.
        insecure: Allow clear text between hosts.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchSecurity(dir="certs").insecure
        False
    """

    dir: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.dir is not None and self.insecure:
            raise OptionError(f"security: dir is {self.dir}, and insecure is true. Drop one of them.")


@dataclass(frozen=True, kw_only=True)
class LaunchRestarts:
    """Limits of restarts.

    Attributes:
        servers: Restarts of a graph server at its address, within an hour.
        job: Restarts of the whole job, from its last checkpoint.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchRestarts(job=2).servers
        5
    """

    servers: int = 5
    job: int = 0

    def __post_init__(self) -> None:
        at_least("restarts.servers", self.servers, 0)
        at_least("restarts.job", self.job, 0)


@dataclass(frozen=True, kw_only=True)
class LaunchLimits:
    """Deadlines of the launcher and its agents, in seconds.

    Attributes:
        start_s: Time until the agent of a host answers, and until a graph server is healthy.
        stop_s: Time between SIGTERM and SIGKILL.
        run_s: Time that the job may take.
        copy_s: Time that copying the partition may take.
        heartbeat_s: Pause between heartbeats. Three missed ones end the job.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchLimits(stop_s=5).start_s
        120.0
    """

    start_s: float = 120.0
    stop_s: float = 20.0
    run_s: float = 604_800.0
    copy_s: float = 86_400.0
    heartbeat_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("start_s", "stop_s", "run_s", "copy_s", "heartbeat_s"):
            above_zero(f"limits.{name}", getattr(self, name))

    @property
    def silence_s(self) -> float:
        """Seconds without a message after which the other side counts as lost."""
        return 3 * self.heartbeat_s


_DEFAULTS, _PARTITION, _SECURITY = LaunchDefaults(), LaunchPartition(), LaunchSecurity()
_RESTARTS, _LIMITS = LaunchRestarts(), LaunchLimits()


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """A job on several hosts.

    Attributes:
        command: ``fit``, ``validate``, ``test``, ``predict``, ``embed``, ``recommend``, or a Python script of your own.
            ``partition``, with engine ``slurm`` or ``kubernetes``: a job array that makes the partition.
        hosts: Hosts that train, in the order of their ranks. Empty if the engine chooses them.
        run_config: Configuration of the command; in a launch file it is called ``config``. It is copied to each host.
        name: Name of the run; its logs are in ``runs/NAME/TIME``.
        args: Further arguments of the command. For a script, ``{node_rank}``, ``{num_nodes}``, ``{devices}``,
            ``{master_addr}``, ``{master_port}`` and ``{host}`` are replaced.
        files: Further files and folders, below the current folder, that are copied to each host.
        engine: ``ssh``; ``here`` starts, without ssh, only what belongs to this host; ``slurm`` and ``kubernetes`` write a file
            for the cluster; ``ray`` starts the ranks as workers of Ray Train.
        ranks: ``torchrun`` starts a process for each device; ``script`` starts one process for each host, and the script
            starts the others.
        defaults: Options of all hosts, which those of a host override.
        servers: Hosts that run graph servers. Empty: those that train hold the graph.
        strategy: Strategy of the trainer. None: ``glt_server_client`` with servers, else the configuration's, or ``glt_worker``.
        master_port: Port at which the ranks meet, on the first host.
        partition: The place of the graph's partition.
        security: Certificates and the secret of the job.
        restarts: Limits of restarts.
        limits: Deadlines.
        ssh_command: The ssh client and its options.
        slurm: The job of SLURM, with engine ``slurm``.
        kubernetes: The JobSet of Kubernetes, with engine ``kubernetes``.
        ray: The job on a cluster of Ray, with engine ``ray``.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> config = LaunchConfig(command="fit", run_config="run.yaml", hosts=[LaunchHost(host="n0"), LaunchHost(host="n1")])
        >>> [machine.host for machine in config.trainers], config.world_size
        (['n0', 'n1'], 2)
    """

    command: str
    hosts: list[LaunchHost] = field(default_factory=list)
    run_config: str | None = None
    name: str = "run"
    args: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    engine: Literal["ssh", "here", "slurm", "kubernetes", "ray"] = "ssh"
    ranks: Literal["torchrun", "script"] = "torchrun"
    defaults: LaunchDefaults = _DEFAULTS
    servers: list[LaunchServer] = field(default_factory=list)
    strategy: str | None = None
    master_port: int = 29500
    partition: LaunchPartition = _PARTITION
    security: LaunchSecurity = _SECURITY
    restarts: LaunchRestarts = _RESTARTS
    limits: LaunchLimits = _LIMITS
    ssh_command: list[str] = field(default_factory=lambda: ["ssh"])
    slurm: LaunchSlurm | None = None
    kubernetes: LaunchKubernetes | None = None
    ray: LaunchRay | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, type[Any]] = {
            "defaults": LaunchDefaults,
            "partition": LaunchPartition,
            "security": LaunchSecurity,
            "restarts": LaunchRestarts,
            "limits": LaunchLimits,
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, as_options(kind, name, getattr(self, name)))
        object.__setattr__(self, "hosts", _listed(LaunchHost, "hosts", self.hosts))
        object.__setattr__(self, "servers", _listed(LaunchServer, "servers", self.servers))
        one_of("engine", self.engine, ENGINES)
        one_of("ranks", self.ranks, ("torchrun", "script"))
        check_port("master_port", self.master_port)
        if not _NAME.fullmatch(self.name):
            raise OptionError(f"name: expected letters, digits, '.', '_' and '-', got {self.name!r}.")
        if not self.ssh_command or not all(self.ssh_command):
            raise OptionError("ssh_command: expected the ssh client and its options, such as [ssh]; got nothing.")
        for name, batch in (("slurm", LaunchSlurm), ("kubernetes", LaunchKubernetes), ("ray", LaunchRay)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_options(batch, name, getattr(self, name)))
        _check_command(self)
        groups = {name: getattr(self, name) for name in CLUSTER_ENGINES}
        check_engine(self.engine, groups, [*self.hosts, *self.servers], self.defaults)
        if self.engine not in CLUSTER_ENGINES:
            _check_hosts(self)

    @property
    def is_script(self) -> bool:
        """True if the command is a script of the user."""
        return self.command not in (*COMMANDS, PARTITION)

    @property
    def devices(self) -> int:
        """Number of trainer processes of each host."""
        return self.trainers[0].num_devices

    def on(self, hosts: Sequence[str], servers: Sequence[LaunchServer]) -> LaunchConfig:
        """Returns the same job on hosts that the engine has chosen."""
        listed = [LaunchHost(host=host) for host in hosts]
        return replace(self, engine="ssh", slurm=None, kubernetes=None, ray=None, hosts=listed, servers=list(servers))

    @property
    def world_size(self) -> int:
        return self.devices * len(self.hosts)

    @property
    def trainers(self) -> tuple[Machine, ...]:
        """The hosts that train, in the order of their ranks, with their defaults."""
        return tuple(trainer_machine(self.defaults, number, host) for number, host in enumerate(self.hosts))

    @property
    def graph_servers(self) -> tuple[Machine, ...]:
        """The hosts of graph servers, in the order of their ranks, with their defaults."""
        return tuple(server_machine(self.defaults, number, server) for number, server in enumerate(self.servers))

    @property
    def machines(self) -> tuple[Machine, ...]:
        """All hosts, in the order in which they are started: graph servers first."""
        return self.graph_servers + self.trainers


# Checks

_Kind = TypeVar("_Kind", LaunchHost, LaunchServer)


def _listed(kind: type[_Kind], name: str, given: Sequence[_Kind | Mapping[str, Any] | str]) -> list[_Kind]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise OptionError(f"{name}: expected a list such as [{{host: n0}}, {{host: n1}}], got {given!r}.")
    hosts = ({"host": each} if isinstance(each, str) else each for each in given)
    return [as_options(kind, f"{name}[{number}]", each) for number, each in enumerate(hosts)]


def _check_command(config: LaunchConfig) -> None:
    if config.run_config is None and (config.servers or not config.is_script):
        who = config.command if not config.is_script else "each graph server"
        raise OptionError(f"config: {who} needs the configuration of the run. Set config: FILE.")
    if config.is_script:
        if not config.command.endswith(".py"):
            raise OptionError(
                f"command: expected {', '.join([*COMMANDS, PARTITION])}, or the path of a Python script (.py); got "
                f"{config.command!r}."
            )
        if config.run_config is not None and not config.servers:
            raise OptionError(
                f"config: only graph servers would read it, since the command is the script {config.command}. Move "
                f"{config.run_config} to files, and name it in args."
            )
        if config.strategy is not None:
            raise OptionError("strategy: a script chooses its strategy itself. Drop the option, or name it in args.")
    if config.engine == "ray" and config.command not in COMMANDS:
        what = "engine ray of data.partition" if config.command == PARTITION else "TorchTrainer in the script"
        raise OptionError(
            f"command: engine ray runs {', '.join(COMMANDS)}; for {config.command} use {what} (docs/ray.md)."
        )
    if config.command == PARTITION:
        _check_partition(config)
    elif config.ranks == "script" and not config.is_script:
        raise OptionError(
            f"ranks: script is for a script of your own; the command is {config.command}. Drop the option."
        )


def _check_partition(config: LaunchConfig) -> None:
    if config.partition.source is not None:
        raise OptionError(
            f"partition: from: {config.partition.source} is to be copied, and the command makes a partition. Drop from, and "
            "set dir alone."
        )


def _check_hosts(config: LaunchConfig) -> None:
    if not config.hosts:
        raise OptionError("hosts: expected at least one host that trains, such as [{host: n0}]; got none.")
    for name, places in (("hosts", config.trainers), ("servers", config.graph_servers)):
        keys = [(place.host, place.port) for place in places]
        twice = next((key[0] for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise OptionError(f"{name}: {twice} is listed twice. List each host once.")
    if config.engine == "here" and config.restarts.job and len(config.hosts) > 1:
        raise OptionError(
            f"restarts.job: got {config.restarts.job} with engine here, which would start this host again and no other. Use "
            "engine ssh, or let the tool that runs launch start the job again."
        )
    counts = {place.host: place.num_devices for place in config.trainers}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{host} {count}" for host, count in counts.items())
        raise OptionError(f"devices: each host needs the same number of devices; got {listed}.")


# Reads the file of ``launch --config``: ours, GLT's YAML of nodes, or DGL's list of addresses.


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
    """Reads a launch file. Returns the options of `LaunchConfig` as a mapping, and a note for the user about a file of GLT or
    DGL; empty for our own.

    Raises `OptionError` for a file that cannot be read.
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
    """Parses DGL's list of hosts: a line for each, with an address and, if given, a port of DGL's server, which is ignored.
    Returns None for any other text."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [_ADDRESS.fullmatch(line) for line in lines]
    return [{"host": each[1]} for each in found if each] if found and all(found) else None


def _renamed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Renames the keys of a file to the names of the dataclasses: ``config``, which is an option of the command line, and
    ``partition: from``, a keyword of Python. A host that is a text becomes a mapping with its name."""
    given = dict(raw)
    if "config" in given:
        given["run_config"] = given.pop("config")
    if isinstance(given.get("partition"), Mapping) and "from" in given["partition"]:
        partition = dict(given["partition"])
        given["partition"] = {"source": partition.pop("from"), **partition}
    return {key: named_hosts(value) if key in ("hosts", "servers") else value for key, value in given.items()}


def named_hosts(given: Any) -> Any:
    """Replaces each text in a list of hosts by a mapping with this name; returns anything but a list unchanged."""
    return [{"host": each} if isinstance(each, str) else each for each in given] if isinstance(given, list) else given


def _of_glt(path: str, raw: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Converts GLT's file, which has a list for each option, in the order of the nodes. Its other keys are arguments of GLT's own
    script, and are ignored."""
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
    """Parses numbers of GPUs such as ``0,1,2,3``; YAML reads a single one as an integer."""
    try:
        return [given] if isinstance(given, int) else [int(each) for each in str(given).split(",")]
    except ValueError:
        raise OptionError(f"{path}: visible_devices: expected numbers of GPUs such as 0,1; got {given!r}.") from None
