"""Checks of all hosts of a launched job before it starts. They report every fault of every host at once, and what to do.

Each host reports facts, holds the ports that the job will use, and connects to those of the others (`launch.on_host`).
`findings` is a pure function of the facts of all hosts.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from glt_lightning.base import counted, size
from glt_lightning.launch.hosts import Machine
from glt_lightning.launch.messages import MergedLog, Shape
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import folder_of, group_of, question_to, security_of, slots_of
from glt_lightning.launch.remote import LaunchError, Remote

_OPEN_FILES = 4096
_SCRATCH = 1 << 30  # bytes for logs and a checkpoint of the model
_CLOCK_S = 2.0
_WORDS_OF_ROOT = "--trainer.default_root_dir"
_VERSIONS = ("Python", "glt_lightning", "torch", "lightning", "wire protocol")

_PARTITION: Shape = {
    "options_hash": str,
    "hashes": str,
    "rows": str,
    "parts": [int],
    "absent": [str],
    "absent_parts": [str],
    "absent_bytes": int,
}
_FACTS: Shape = {
    "versions": dict.fromkeys(_VERSIONS, str),
    "partition": (_PARTITION, {"error": str}, None),
    "free_bytes": int,
    "open_files": int,
}
_LISTENING: Shape = {"listeners": [{"address": (str, None), "port": int, "tls": bool, "error": (str, None)}]}
_GREETED: Shape = {"errors": [(str, None)], "marked": (bool, None)}


@dataclass(frozen=True)
class Finding:
    """A fault of one host: what was found, what was expected and what to do. A warning does not keep the job from starting."""

    host: str
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.host}: {self.text}"


@dataclass(frozen=True)
class HostFacts:
    """The facts of a host. offset_s: seconds by which its clock is ahead of the launcher's."""

    machine: Machine
    found: Mapping[str, Any]
    offset_s: float = 0.0


class Preflight:
    """The check of all hosts. verify: each host compares all files of its parts with their hashes."""

    def __init__(self, config: LaunchConfig, log: MergedLog, *, verify: bool = False) -> None:
        self._config, self._log, self._verify = config, log, verify
        # Checkpoints must be on storage that all hosts share if another start is to go on from them.
        mark = PurePosixPath(root_of(config), f".glt-launch-{secrets.token_hex(8)}")
        self._marker = str(mark) if config.restarts.job and len(config.hosts) > 1 else None

    async def check(self, remotes: Sequence[Remote]) -> None:
        """Checks the hosts. Logs all findings, and raises `LaunchError` if one is more than a warning."""
        limits, answered = self._config.limits, set[str]()
        name, seconds = ("copy_s", limits.copy_s) if self._verify else ("start_s", limits.start_s)
        try:
            async with asyncio.timeout(seconds):
                facts = await asyncio.gather(*(self._facts(remote, answered) for remote in remotes))
                found = findings(facts)
                found += await self._reach(remotes)
        except TimeoutError:
            silent = ", ".join(remote.machine.name for remote in remotes if remote.machine.name not in answered)
            raise LaunchError(
                f"the checks took longer than {seconds:g} s (limits.{name}){f'; no answer from {silent}' if silent else ''}."
            ) from None
        for each in found:
            self._log.info(str(each))
        faults = sum(not each.warning for each in found)
        if faults:
            raise LaunchError(
                f"{faults} of the checks failed, and nothing was started. They are listed above.", status=2
            )
        self._log.info(f"checked {counted(len({remote.machine.host for remote in remotes}), 'host')}")

    async def _facts(self, remote: Remote, answered: set[str]) -> HostFacts:
        asked = question(self._config, remote.machine, verify=self._verify)
        found = await remote.ask(question_to(remote.machine, "facts"), asked, _FACTS)
        answered.add(remote.machine.name)
        return HostFacts(remote.machine, found, remote.offset_s or 0.0)

    async def _reach(self, remotes: Sequence[Remote]) -> list[Finding]:
        """Holds each port that the job will use, and connects to it from all other hosts."""
        listening = await asyncio.gather(*(self._listen(remote) for remote in remotes))
        try:
            answers = {remote.machine.name: found for remote, (found, _) in zip(remotes, listening, strict=True)}
            found = [
                Finding(
                    name,
                    f"cannot listen at {_address_of(each)}: {each['error']}. End what uses it, or choose another port.",
                )
                for name, listeners in answers.items()
                for each in listeners
                if each.get("error") is not None
            ]
            for each in await asyncio.gather(*(self._greet(remote, answers) for remote in remotes)):
                found += each
        finally:
            for remote, (_, going) in zip(remotes, listening, strict=True):
                remote.end("listen")
                await going
        return found

    async def _listen(self, remote: Remote) -> tuple[list[dict[str, Any]], asyncio.Task[Any]]:
        machine = remote.machine
        asked = {
            "listeners": listeners(self._config, machine),
            "security": security_of(self._config, machine),
            "marker": self._marker if machine.number == 0 and not machine.is_server else None,
        }
        answer, going = await remote.first_line(question_to(machine, "listen"), asked, _LISTENING)
        return answer["listeners"], going

    async def _greet(self, remote: Remote, answers: dict[str, list[dict[str, Any]]]) -> list[Finding]:
        mine, config = remote.machine, self._config
        others = [each for each in config.machines if each.name in answers and each.host != mine.host]
        ports = [
            (other.name, {**listener, "address": other.address})
            for other in others
            for listener in answers[other.name]
            if listener.get("error") is None
        ]
        asked = {
            "listeners": [port for _, port in ports],
            "security": security_of(config, mine),
            "marker": None if mine.is_server else self._marker,
        }
        answer = await remote.ask(question_to(mine, "greet"), asked, _GREETED)
        errors, first = answer["errors"], config.trainers[0].name
        if len(errors) != len(ports):
            raise LaunchError(f"{mine.name}: it was to greet {len(ports)} ports, and answers for {len(errors)}.")
        found = [
            Finding(
                mine.name,
                f"cannot reach {name} at {_address_of(port)}: {error}. Check names, firewalls and certificates.",
            )
            for (name, port), error in zip(ports, errors, strict=True)
            if error is not None
        ]
        if answer["marked"] is False and mine.number != 0 and first in answers:
            text = f"{root_of(config)}, where checkpoints are, is another folder than on {first}, and restarts.job needs it here."
            found.append(Finding(mine.name, f"{text} Put {_WORDS_OF_ROOT} on storage that all hosts share."))
        return found


def question(config: LaunchConfig, machine: Machine, *, verify: bool) -> dict[str, Any]:
    """The arguments of `on_host.facts` for a host."""
    slots, of = slots_of(config, machine)
    return {
        "folder": folder_of(config) if slots else None,
        "version": version_of(config),
        "slots": slots,
        "of": of,
        "verify": verify,
    }


def root_of(config: LaunchConfig) -> str:
    """The root folder of checkpoints, below the folder of each host."""
    return str(_argument(config, _WORDS_OF_ROOT) or group_of(config, "trainer").get("default_root_dir") or ".")


def version_of(config: LaunchConfig) -> int | str | None:
    """The version of the partition that the job reads, as ``data.partition.version``."""
    given = _argument(config, "--data.partition.version")
    if given is None:
        given = group_of(config, "data", "init_args", "partition").get("version")
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def _argument(config: LaunchConfig, option: str) -> Any:
    """The value of an option in the arguments of the job; None if they do not have it."""
    for number, word in enumerate(config.args):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else config.args[number + 1] if number + 1 < len(config.args) else None
    return None


def listeners(config: LaunchConfig, machine: Machine) -> list[dict[str, Any]]:
    """The ports at which the processes of a host will listen. Port 0 stands for ports that samplers choose themselves."""
    tls = bool(security_of(config, machine).get("ca"))
    if machine.is_server:
        return [{"address": machine.address, "port": machine.port, "tls": tls}]
    if len(config.hosts) == 1:
        return []
    found: list[dict[str, Any]] = []
    if machine.number == 0:  # where the ranks meet
        found.append({"address": None, "port": config.master_port, "tls": False})
    if slots_of(config, machine)[0]:
        found.append({"address": machine.address, "port": 0, "tls": tls})
    return found


def _address_of(listener: Mapping[str, Any]) -> str:
    return f"port {listener['port']}" if listener["address"] is None else f"{listener['address']}:{listener['port']}"


def findings(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Finds the faults of all hosts, host by host. Versions and partitions are compared with those of the first host."""
    out = []
    for each in hosts:
        name = each.machine.name
        for check in (_software, _partition, _limits):
            out += [Finding(name, text) for text in check(each, hosts)]
        if abs(each.offset_s) > _CLOCK_S:
            way = "ahead of" if each.offset_s > 0 else "behind"
            text = f"its clock is {abs(each.offset_s):,.1f} s {way} the launcher's. Set it, by NTP for example."
            out.append(Finding(name, text, warning=True))
    return out


def _software(host: HostFacts, hosts: Sequence[HostFacts]) -> Iterator[str]:
    first, python = hosts[0], host.machine.python
    for name, here in host.found["versions"].items():
        there = first.found["versions"].get(name, "none")
        if here == "none":
            yield f"{name} is not installed for {python}. Install it, or set python of the host."
        elif here != there:
            yield f"{name} is {here}; {first.machine.name} has {there}. Install the same release on both."


def _partition(host: HostFacts, hosts: Sequence[HostFacts]) -> Iterator[str]:
    here = host.found["partition"]
    if here is None:
        return
    if here.get("error") is not None:
        yield f"{here['error'].removesuffix('.')}. Copy it: set partition: from, and add --copy."
        return
    first = next(each for each in hosts if each.found["partition"] and each.found["partition"].get("error") is None)
    there = first.found["partition"]
    known = (("options_hash", "another partition (options_hash)"), ("hashes", "other files (hashes)"))
    for key, name in (*known, ("rows", "another version (hash of its rows)")):
        if here[key] != there[key]:
            yield (
                f"its folder holds {name}: {here[key][:12] or 'none'}; that of {first.machine.name} has "
                f"{there[key][:12] or 'none'}. Copy one "
                "partition to all hosts: --copy."
            )
            return
    if here["absent"]:
        parts = ", ".join(here["absent_parts"])
        yield f"{parts} of its parts {here['parts']} lack files, such as {here['absent'][0]}. Copy them: --copy."


def _limits(host: HostFacts, hosts: Sequence[HostFacts]) -> Iterator[str]:
    free, files = host.found["free_bytes"], host.found["open_files"]
    needed = (host.found["partition"] or {}).get("absent_bytes", 0) + _SCRATCH
    if free < needed:
        yield f"{size(free)} are free on its disk; {size(needed)} are needed. Free some space."
    if files < _OPEN_FILES:
        yield f"a process may open {files} files; {_OPEN_FILES} are needed. Raise ulimit -n (hard)."
