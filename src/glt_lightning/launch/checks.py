"""Checks that several options of a launched job share. Each raises `OptionError` with the name of the option."""

from __future__ import annotations

import re
from collections.abc import Mapping

from glt_lightning.errors import OptionError

Devices = int | list[int]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_DEVICES = 1024
_HIGHEST_PORT = 65535


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
