"""Faults that are planted in kernels, to see that the emulated device finds them: one instruction each is changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tests.ptx.ptx import Instruction, Kernel


@dataclass(frozen=True)
class Fault:
    """kernel: a pattern of mangled names.  instruction: what is changed, the `nth` that matches in a kernel.
    becomes: what it is then; empty: nothing.  case: which of `cases.CASES` meets it.  findings: what may be told of it."""

    name: str
    kernel: str
    instruction: str
    becomes: str
    case: str
    findings: tuple[str, ...]
    nth: int = 0


FAULTS = [
    Fault(
        "one thread too many gathers",
        kernel=r"EachRowILi1E.*CopyRow",
        instruction=r"setp\.ge\.s64 (.*)",
        becomes=r"setp.gt.s64 \1",
        case="gather",
        findings=("outside of the memory",),
    ),
    Fault(
        "an id enters the table by a plain store",
        kernel=r"EnterNew",
        instruction=r"(?:atom|red)[.\w]*\.min\.u64 (?:%\w+, )?(\[[^\]]*\]), (%\w+)",
        becomes=r"st.global.u64 \1, \2",
        case="relabel",
        findings=("race",),
    ),
    Fault(
        "the sums of warps are read before all are written",
        kernel=r"KHopCountIi",
        instruction=r"bar\.sync 0",
        becomes="",
        case="khop",
        findings=("race", "outside of the memory"),
        nth=1,
    ),
    Fault(
        "lanes look for taken positions before all are drawn",
        kernel=r"run_lanesILi(8|16|32)E.*KHopPickIi.*DirectLids",
        instruction=r"bar\.warp\.sync .*",
        becomes="",
        case="khop",
        findings=("race",),
    ),
    Fault(
        "the sums of lanes are added before all are written",
        kernel=r"run_lanesILi16E.*EdgeProducts",
        instruction=r"bar\.warp\.sync .*",
        becomes="",
        case="aggregate",
        findings=("race",),
    ),
]


def plant(fault: Fault, kernel: Kernel) -> Kernel | None:
    """A copy of the kernel with the fault; None if it is another kernel's. Raises `LookupError` where the kernel has no such
    instruction."""
    if not re.search(fault.kernel, kernel.name):
        return None
    found = [
        k for k, each in enumerate(kernel.body) if isinstance(each, Instruction) and _change(fault, each) is not None
    ]
    if len(found) <= fault.nth:
        raise LookupError(f"{fault.name}: {kernel.name} has {len(found)} instructions like {fault.instruction!r}")
    k = found[fault.nth]
    changed = _change(fault, kernel.body[k])
    return replace(kernel, body=[*kernel.body[:k], *([changed] if changed.text else []), *kernel.body[k + 1 :]])


def _change(fault: Fault, each: Instruction) -> Instruction | None:
    found = re.fullmatch(fault.instruction, each.text)
    return replace(each, text=found.expand(fault.becomes)) if found else None
