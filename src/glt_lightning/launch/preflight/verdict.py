"""Whether a job may start on hosts, from the facts that each of them gave. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glt_lightning.launch.machine import Machine
from glt_lightning.launch.messages import Shape, number as finite
from glt_lightning.launch.options import LaunchConfig
from glt_lightning.launch.plan import security_of
from glt_lightning.page.numbers import size

_OPEN_FILES = 4096
_SCRATCH = 1 << 30  # bytes for logs and a checkpoint of the model
_CLOCK_S = 2.0
_BUSY_GPU = 1 << 30  # bytes in use by others


def _pair(given: Any) -> bool:
    return isinstance(given, list) and len(given) == 2 and all(isinstance(n, int) and finite(n) for n in given)


# What `preflight.facts` answers.
FACTS: Shape = {
    "versions": dict.fromkeys(("Python", "glt_lightning", "torch", "lightning", "wire protocol"), str),
    "missing_modules": [str],
    "missing_script": bool,
    "partition": (
        {
            "options_hash": str,
            "hashes": str,
            "parts": [int],
            "absent": [str],
            "absent_parts": [str],
            "absent_bytes": int,
            "bytes": int,
        },
        {"error": str},
        None,
    ),
    "certificate": (
        {"names": [str], "begin": finite, "end": finite, "signed": bool, "has_key": bool},
        {"error": str},
        None,
    ),
    "now": finite,
    "free_bytes": int,
    "memory_bytes": int,
    "open_files": int,
    "interfaces": [str],
    "gpus": ([_pair], str, None),
}


@dataclass(frozen=True)
class Finding:
    """What is, what should be and what to do, on one host. A warning does not keep the job from starting."""

    host: str
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{'warning: ' if self.warning else ''}{self.host}: {self.text}"


@dataclass(frozen=True)
class HostFacts:
    """What `preflight.facts` answered on a host. offset_s: how far its clock is ahead of the launcher's."""

    machine: Machine
    found: Mapping[str, Any]
    offset_s: float = 0.0


def findings(config: LaunchConfig, hosts: Sequence[HostFacts]) -> list[Finding]:
    """All of them, host by host. Versions and partitions are compared with those of the first host."""
    out = []
    for each in hosts:
        for check in (_software, _partition, _certificate, _clock, _room, _devices, _interfaces):
            out += [Finding(each.machine.name, text, warning) for text, warning in check(config, each, hosts)]
    return out


_Findings = Iterator[tuple[str, bool]]  # text, whether it is a warning


def _software(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    first = hosts[0]
    for name, here in host.found["versions"].items():
        there = first.found["versions"].get(name, "none")
        if here == "none":
            yield f"{name} is not installed for {host.machine.python}. Install it, or set python of the host.", False
        elif here != there:
            yield f"{name} is {here}; {first.machine.name} has {there}. Install the same release on both.", False
    for module in host.found["missing_modules"]:
        yield (
            f"the configuration names {module}, which {host.machine.python} cannot import. Install it there, or list it in "
            "files.",
            False,
        )
    if host.found["missing_script"]:
        yield (
            f"{config.command}: there is no such file in {host.machine.dir}. List it in files, or give its path there.",
            False,
        )


def _partition(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    here = host.found["partition"]
    if here is None:
        return
    if here.get("error") is not None:
        yield f"{here['error'].removesuffix('.')}. Copy it: set partition: from, and add --copy.", False
        return
    first = next(each for each in hosts if each.found["partition"] and each.found["partition"].get("error") is None)
    there = first.found["partition"]
    for key, name in (("options_hash", "another partition (options_hash)"), ("hashes", "other files (hashes)")):
        if here[key] != there[key]:
            yield (
                f"its folder holds {name}: {here[key][:12]}; that of {first.machine.name} has {there[key][:12]}. Copy one "
                "partition to all hosts: --copy.",
                False,
            )
            return
    if here["absent"]:
        parts = ", ".join(here["absent_parts"])
        yield f"{parts} of its parts {here['parts']} lack files, such as {here['absent'][0]}. Copy them: --copy.", False


def _certificate(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    found = host.found["certificate"]
    if found is None:
        open_ = security_of(config, host.machine).get("insecure") or config.is_script
        if len({each.machine.address for each in hosts}) > 1 and not open_:
            yield (
                "it has no certificate. Set security: {dir: certs}, which makes them, or security: {insecure: true}.",
                False,
            )
        return
    if found.get("error") is not None:
        yield f"its certificate cannot be read: {found['error']}. Make it again: set security: dir.", False
        return
    address, now = host.machine.address, host.found["now"]
    again = (
        f"Delete it in {config.security.dir}, and start again." if config.security.dir else "Run glt-lightning certs."
    )
    if address not in found["names"]:
        yield f"its certificate names {', '.join(found['names'])}; other hosts call it {address}. {again}", False
    if not found["signed"]:
        yield f"its certificate is not signed by its ca.pem. {again}", False
    if not found["has_key"]:
        yield f"its certificate and its key do not belong together. {again}", False
    if now < found["begin"]:
        yield f"its certificate will be valid in {found['begin'] - now:,.0f} s by its clock. Set the clock.", False
    elif now > found["end"]:
        yield f"its certificate expired {now - found['end']:,.0f} s ago by its clock. {again}", False
    elif now + config.limits.run_s > found["end"]:
        yield (
            f"its certificate expires in {found['end'] - now:,.0f} s; the job may take {config.limits.run_s:,.0f} s "
            f"(limits.run_s). {again}",
            False,
        )


def _clock(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    if abs(host.offset_s) > _CLOCK_S:
        way = "ahead of" if host.offset_s > 0 else "behind"
        yield f"its clock is {abs(host.offset_s):,.1f} s {way} the launcher's. Set it, by NTP for example.", True


def _room(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    found, partition = host.found, host.found["partition"] or {}
    needed = partition.get("absent_bytes", 0) + _SCRATCH
    if found["free_bytes"] < needed:
        yield f"{size(found['free_bytes'])} are free on its disk; {size(needed)} are needed. Free some space.", False
    mapped = partition.get("bytes", 0)
    if found["memory_bytes"] < mapped:
        yield (
            f"{size(found['memory_bytes'])} of memory are available; its parts take {size(mapped)} and would be read from disk "
            "again and again. Use more hosts, or more memory.",
            True,
        )
    if found["open_files"] < _OPEN_FILES:
        yield (
            f"a process may open {found['open_files']} files; {_OPEN_FILES} are needed. Raise ulimit -n (hard).",
            False,
        )


def _devices(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    gpus = host.found["gpus"]
    if gpus is None:
        return
    if isinstance(gpus, str):
        yield f"it is to train on GPUs, and has none: {gpus}. Check its driver, or devices.", False
        return
    used = dict(gpus)
    wanted = host.machine.gpus if host.machine.gpus is not None else tuple(range(host.machine.num_devices))
    missing = [number for number in wanted if number not in used]
    if missing:
        yield f"devices: there is no GPU {missing}; it has {sorted(used)}. Correct devices.", False
    for number in wanted:
        if used.get(number, 0) > _BUSY_GPU:
            yield f"GPU {number} has {size(used[number])} in use. Check for other jobs.", True


def _interfaces(config: LaunchConfig, host: HostFacts, hosts: Sequence[HostFacts]) -> _Findings:
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        given = host.machine.env.get(variable, "")
        exact = variable.startswith("GLOO") or given.startswith("=")
        names = [] if given.startswith("^") else [each for each in given.removeprefix("=").split(",") if each]
        there = host.found["interfaces"]
        if names and not any(each == name or (not exact and each.startswith(name)) for name in names for each in there):
            yield f"{variable} is {given}; its interfaces are {', '.join(there)}. Correct env of the host.", False
