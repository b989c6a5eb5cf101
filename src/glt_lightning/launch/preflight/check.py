"""Checks all hosts of a launched job before it starts: every fault of every host, in one go."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from glt_lightning.launch.machine import Machine
from glt_lightning.launch.merged_log import MergedLog
from glt_lightning.launch.messages import Shape
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import Process, folder_of, group_of, security_of, slots_of
from glt_lightning.launch.preflight.verdict import FACTS, Finding, HostFacts, findings
from glt_lightning.launch.remote import LaunchError, Remote
from glt_lightning.page.numbers import counted

_REACH = "Check names and firewalls."
_LISTENING: Shape = {"listeners": [{"address": (str, None), "port": int, "tls": bool, "error": (str, None)}]}
_GREETED: Shape = {"errors": [(str, None)], "marked": (bool, None)}
_GPUS = ("gpu", "cuda")
_WORDS_OF_ROOT = "--trainer.default_root_dir"


class Preflight:
    """verify: whether each host reads all of its parts."""

    def __init__(self, config: LaunchConfig, log: MergedLog, *, verify: bool = False) -> None:
        self._config, self._log, self._verify = config, log, verify
        self._marked = str(PurePosixPath(root_of(config), f".glt-launch-{secrets.token_hex(8)}"))

    async def check(self, remotes: Sequence[Remote]) -> None:
        """Raises `LaunchError` after all findings have been logged."""
        limits, answered = self._config.limits, set[str]()
        name, seconds = ("copy_s", limits.copy_s) if self._verify else ("start_s", limits.start_s)
        try:
            async with asyncio.timeout(seconds):
                facts = await asyncio.gather(*(self._facts(remote, answered) for remote in remotes))
                found = findings(self._config, facts)
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
        process = _process(remote.machine, "facts")
        found = await remote.ask(process, question(self._config, remote.machine, verify=self._verify), FACTS)
        answered.add(remote.machine.name)
        return HostFacts(remote.machine, found, remote.offset_s or 0.0)

    async def _reach(self, remotes: Sequence[Remote]) -> list[Finding]:
        """Holds each port that the job will use, and connects to it from all other hosts."""
        listening = await asyncio.gather(*(self._listen(remote) for remote in remotes))
        try:
            answers = {
                remote.machine.name: listeners for remote, (listeners, _) in zip(remotes, listening, strict=True)
            }
            found = [
                Finding(
                    name,
                    f"cannot listen at {_address_of(listener)}: {listener['error']}. End what uses it, or choose another port.",
                )
                for name, listeners in answers.items()
                for listener in listeners
                if listener.get("error") is not None
            ]
            for each in await asyncio.gather(*(self._greet(remote, answers) for remote in remotes)):
                found += each
        finally:
            for remote, (_, going) in zip(remotes, listening, strict=True):
                remote.end("listen")
                await going
        return found

    async def _listen(self, remote: Remote) -> tuple[list[dict[str, Any]], asyncio.Task[Any]]:
        asked: dict[str, Any] = {
            "kind": "listen",
            "listeners": listeners(self._config, remote.machine),
            "security": self._security(remote),
        }
        first = remote.machine.number == 0 and not remote.machine.is_server and len(self._config.hosts) > 1
        asked["marker"] = self._marked if first else None
        answer, going = await remote.first_line(_process(remote.machine, "ports", "listen"), asked, _LISTENING)
        return answer["listeners"], going

    async def _greet(self, remote: Remote, answers: dict[str, list[dict[str, Any]]]) -> list[Finding]:
        mine = remote.machine
        machines = {
            each.name: each for each in self._config.machines if each.name in answers and each.host != mine.host
        }
        names = [(name, listener) for name in machines for listener in answers[name] if listener.get("error") is None]
        asked = {
            "kind": "greet",
            "listeners": [{**listener, "address": machines[name].address} for name, listener in names],
            "security": self._security(remote),
            "marker": None if mine.is_server else self._marked,
        }
        answer = await remote.ask(_process(mine, "ports", "greet"), asked, _GREETED)
        if len(answer["errors"]) != len(names):
            raise LaunchError(
                f"{mine.name}: it was to greet {len(names)} ports, and answers for {len(answer['errors'])}."
            )
        found = [
            Finding(
                mine.name,
                f"cannot reach {name} at {_address_of({**listener, 'address': machines[name].address})}: {error}. {_REACH}",
            )
            for (name, listener), error in zip(names, answer["errors"], strict=True)
            if error is not None
        ]
        return found + self._of_checkpoints(
            mine, answer["marked"] if self._config.trainers[0].name in answers else None
        )

    def _of_checkpoints(self, machine: Machine, marked: bool | None) -> list[Finding]:
        if marked is not False or machine.number == 0:
            return []
        folder, first = root_of(self._config), self._config.trainers[0].name
        if self._config.restarts.job:
            text = (
                f"{folder}, where checkpoints are, is another folder than on {first}, and restarts.job needs it here. "
            )
            return [Finding(machine.name, f"{text}Put {_WORDS_OF_ROOT} on storage that all hosts share.")]
        return [Finding(machine.name, f"checkpoints are in {folder} of {first} alone.", warning=True)]

    def _security(self, remote: Remote) -> dict[str, Any]:
        return security_of(self._config, remote.machine)


def question(config: LaunchConfig, machine: Machine, *, verify: bool) -> dict[str, Any]:
    """What `preflight.facts` is asked on a host."""
    slots, of = slots_of(config, machine)
    accelerator = group_of(config, "trainer").get("accelerator")
    return {
        "modules": [] if config.is_script and not machine.is_server else ["torch", "lightning", *_modules(config)],
        "script": config.command if config.is_script and not machine.is_server else None,
        "folder": folder_of(config) if slots else None,
        "slots": slots,
        "of": of,
        "verify": verify,
        "security": security_of(config, machine),
        "gpus": not machine.is_server and (machine.gpus is not None or accelerator in _GPUS),
    }


def _modules(config: LaunchConfig) -> list[str]:
    """Modules of the classes that a configuration names."""
    found: dict[str, None] = {}
    todo: list[Any] = [group_of(config)]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            if isinstance(path := each.get("class_path"), str) and "." in path:
                found[path.rpartition(".")[0].partition(".")[0]] = None
            todo += each.values()
        elif isinstance(each, list):
            todo += each
    return list(found)


def root_of(config: LaunchConfig) -> str:
    """Where checkpoints are, below the folder of each host."""
    for number, word in enumerate(config.args):
        name, equals, value = word.partition("=")
        if name == _WORDS_OF_ROOT:
            return value if equals else config.args[number + 1] if number + 1 < len(config.args) else "."
    return str(group_of(config, "trainer").get("default_root_dir") or ".")


def listeners(config: LaunchConfig, machine: Machine) -> list[dict[str, Any]]:
    """The ports at which the processes of a host will listen. Port 0 stands for those that samplers choose."""
    tls = bool(security_of(config, machine).get("ca"))
    if machine.is_server:
        return [{"address": machine.address, "port": machine.port, "tls": tls}]
    meeting = {"address": None, "port": config.master_port, "tls": False}
    found: list[dict[str, Any]] = [meeting] if machine.number == 0 and len(config.hosts) > 1 else []
    if len(config.hosts) > 1 and slots_of(config, machine)[0]:
        found.append({"address": machine.address, "port": 0, "tls": tls})
    return found


def _address_of(listener: dict[str, Any]) -> str:
    return f"port {listener['port']}" if listener["address"] is None else f"{listener['address']}:{listener['port']}"


def _process(machine: Machine, module: str, name: str | None = None) -> Process:
    return Process(name or module, [machine.python, "-m", f"glt_lightning.launch.preflight.{module}"], machine.env)
