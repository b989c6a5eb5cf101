"""The hosts of a launched job, as its file lists them."""

from __future__ import annotations

from dataclasses import dataclass, field

from glt_lightning.launch.checks import Devices, check_devices, check_env, check_host, check_place, check_port
from glt_lightning.launch.machine import Machine


@dataclass(frozen=True, kw_only=True)
class LaunchDefaults:
    """What holds for each host that does not say otherwise.

    Attributes:
        user: User to log in as. None: ssh's own choice.
        port: Port of the host's sshd. None: ssh's own choice.
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
    """A host that trains. What is None is taken from ``defaults``.

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
    """A host that runs a graph server. What is None is taken from ``defaults``.

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
