"""The hosts of a launched job: as its file lists them, checked, and with their defaults filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from glt_lightning.base import OptionError

Role = Literal["trainer", "server"]
Devices = int | list[int]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_DEVICES = 1024
_HIGHEST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class LaunchDefaults:
    """Defaults of all hosts; options of a host override them.

    Attributes:
        user: User to log in as. None: the one that ssh chooses.
        port: Port of the host's sshd. None: the one that ssh chooses.
        python: Python interpreter on the host, in which glt_lightning is installed.
        dir: Folder on the host that the processes run in; it is made if it is missing.
        devices: Number of trainer processes on a host, or the list of its GPUs, one process for each.
        env: Environment variables of the processes.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchDefaults(user="ml", devices=4).python
        'python3'
    """

    user: str | None = None
    port: int | None = None
    python: str = "python3"
    dir: str = "glt-run"
    devices: Devices = 1
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_place("defaults", self.user, self.port, self.python, self.dir)
        check_devices("defaults.devices", self.devices)
        check_env("defaults.env", self.env)


@dataclass(frozen=True, kw_only=True)
class LaunchHost:
    """A host that trains. Options that are None are taken from ``defaults``.

    Attributes:
        host: Its name for ssh: a name, an address, or an alias of ``~/.ssh/config``.
        address: Name or address by which other hosts reach it. None: ``host``.
        user: User to log in as.
        port: Port of its sshd.
        python: Python interpreter.
        dir: Folder that the processes run in.
        devices: Number of trainer processes, or the list of GPUs.
        env: Environment variables, besides those of ``defaults``.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchHost(host="n1", devices=[4, 5, 6, 7]).host
        'n1'
    """

    host: str
    address: str | None = None
    user: str | None = None
    port: int | None = None
    python: str | None = None
    dir: str | None = None
    devices: Devices | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_host("hosts", self.host, self.address)
        check_place(f"hosts ({self.host})", self.user, self.port, self.python, self.dir)
        if self.devices is not None:
            check_devices(f"hosts ({self.host}): devices", self.devices)
        check_env(f"hosts ({self.host}): env", self.env)


@dataclass(frozen=True, kw_only=True)
class LaunchServer:
    """A host that runs a graph server. Options that are None are taken from ``defaults``.

    Attributes:
        host: Its name for ssh.
        port: Port at which the graph server listens.
        address: Name or address by which other hosts reach it. None: ``host``.
        user: User to log in as.
        ssh_port: Port of its sshd.
        python: Python interpreter.
        dir: Folder that the server runs in.
        env: Environment variables, besides those of ``defaults``.

    Raises:
        OptionError: For a value that is not allowed; the message names the option, the value and the allowed ones.

    Example:
        >>> LaunchServer(host="g0").port
        18800
    """

    host: str
    port: int = 18800
    address: str | None = None
    user: str | None = None
    ssh_port: int | None = None
    python: str | None = None
    dir: str | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_host("servers", self.host, self.address)
        check_port(f"servers ({self.host}): port", self.port)
        check_place(f"servers ({self.host})", self.user, self.ssh_port, self.python, self.dir)
        check_env(f"servers ({self.host}): env", self.env)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A host with its defaults filled in. A host that serves and trains has one for each role.

    Attributes:
        role: Role of its processes.
        number: Rank of the host among those of its role.
        host: Name for ssh.
        address: Name or address for the other hosts.
        user: User to log in as; None: the one that ssh chooses.
        ssh_port: Port of sshd; None: the one that ssh chooses.
        python: Python interpreter.
        dir: Folder that the processes run in.
        env: Environment variables of the processes.
        num_devices: Number of trainer processes.
        gpus: GPUs that these use; None: all that they see.
        port: Port at which the graph server listens; 0 for a trainer.
    """

    role: Role
    number: int
    host: str
    address: str
    user: str | None
    ssh_port: int | None
    python: str
    dir: str
    env: Mapping[str, str] = field(default_factory=dict)
    num_devices: int = 1
    gpus: tuple[int, ...] | None = None
    port: int = 0

    @property
    def name(self) -> str:
        """Prefix of its lines in the log, and name of its log file."""
        return self.host if self.role == "trainer" else f"{self.host}:server{self.number}"

    @property
    def is_server(self) -> bool:
        return self.role == "server"

    @property
    def endpoint(self) -> str:
        """Address of the graph server, as it stands in ``cluster.servers``."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def trainer_machine(defaults: LaunchDefaults, number: int, host: LaunchHost) -> Machine:
    devices = defaults.devices if host.devices is None else host.devices
    return Machine(
        role="trainer",
        number=number,
        host=host.host,
        address=host.address or host.host,
        user=host.user or defaults.user,
        ssh_port=host.port or defaults.port,
        python=host.python or defaults.python,
        dir=host.dir or defaults.dir,
        env={**defaults.env, **host.env},
        num_devices=devices if isinstance(devices, int) else len(devices),
        gpus=None if isinstance(devices, int) else tuple(devices),
    )


def server_machine(defaults: LaunchDefaults, number: int, server: LaunchServer) -> Machine:
    return Machine(
        role="server",
        number=number,
        host=server.host,
        address=server.address or server.host,
        user=server.user or defaults.user,
        ssh_port=server.ssh_port or defaults.port,
        python=server.python or defaults.python,
        dir=server.dir or defaults.dir,
        env={**defaults.env, **server.env},
        port=server.port,
    )


def check_host(name: str, host: str, address: str | None) -> None:
    for text in (host, *([] if address is None else [address])):
        if not isinstance(text, str) or not text or text.startswith("-") or any(c.isspace() for c in text):
            raise OptionError(f"{name}: expected the name or address of a host, got {text!r}.")


def check_place(name: str, user: str | None, port: int | None, python: str | None, folder: str | None) -> None:
    if user is not None and (not user or user.startswith("-")):
        raise OptionError(f"{name}: user: expected the name of a user, got {user!r}.")
    if port is not None:
        check_port(f"{name}: port of sshd", port)
    if python == "" or folder == "":
        raise OptionError(f"{name}: python and dir: expected paths, got {python!r} and {folder!r}.")


def check_port(name: str, port: int) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= _HIGHEST_PORT:
        raise OptionError(f"{name}: expected 1 to {_HIGHEST_PORT}, got {port!r}.")


def check_devices(name: str, devices: Devices) -> None:
    count = len(set(devices)) if isinstance(devices, list) else devices
    listed = devices if isinstance(devices, list) else [0]
    if isinstance(count, bool) or not 1 <= count <= _MOST_DEVICES or len(listed) != len(set(listed)) or min(listed) < 0:
        raise OptionError(f"{name}: expected a number of processes, or a list of GPUs such as [0, 1]; got {devices!r}.")


def check_env(name: str, env: Mapping[str, str]) -> None:
    for key, value in env.items():
        if not _VARIABLE.fullmatch(str(key)) or not isinstance(value, str) or "\0" in value:
            raise OptionError(f"{name}: expected names of variables and texts, got {key!r}: {value!r}.")
