"""Reads the PTX that nvcc writes: the kernels of a file, with parameters, registers, shared memory and instructions.

Only what nvcc writes for this project is known. Anything else raises `UnknownPtxError` with the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_ENTRY = re.compile(r"(?:\.visible |\.weak )*\.entry (\w+)\s*\(?\s*\)?$")
_PARAMETER = re.compile(
    r"\.param (?:\.align (?P<align>\d+) )?\.(?P<type>\w+) (?:\.ptr (?:\.\w+ )?\.align \d+ )?(?P<name>\w+)"
    r"(?:\[(?P<count>\d+)\])?,?$"
)
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+(%\w+)(?:<(\d+)>)?$")
_SHARED = re.compile(r"\.shared \.align (\d+) \.b8 (\w+)\[(\d+)\]$")
_LOCATION = re.compile(r"\.loc\s+(\d+) (\d+) \d+")
_GUARD = re.compile(r"@(!?%\w+)\s+(.*)", re.DOTALL)
_IGNORED = (".version", ".target", ".address_size", ".file", ".pragma", ".minnctapersm", ".maxnreg")


class UnknownPtxError(Exception):
    """PTX that the translator does not know."""


def bits_of(type_: str) -> int:
    """32 of ``u32``."""
    return int(re.sub(r"\D", "", type_))


@dataclass(frozen=True)
class Instruction:
    """text: without the guard, such as ``add.s64 %rd1, %rd2, 4``.  where: the line of the source."""

    text: str
    guard: str = ""
    where: str = ""

    @property
    def opcode(self) -> list[str]:
        return self.text.split(maxsplit=1)[0].split(".")

    @property
    def operands(self) -> list[str]:
        """Split at the commas that stand outside of brackets."""
        rest = self.text.partition(" ")[2] if " " in self.text else ""
        return [part.strip() for part in re.split(r",(?![^\[{]*[\]}])", rest) if part.strip()]


@dataclass(frozen=True)
class Label:
    name: str


@dataclass
class Kernel:
    """parameters, shared: by name, offset and bytes.  registers: type by name, numbered ones written out."""

    name: str
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    max_threads: int = 0
    body: list[Instruction | Label] = field(default_factory=list)

    @property
    def shared_bytes(self) -> int:
        return max((offset + size for offset, size in self.shared.values()), default=0)


def _place(taken: dict[str, tuple[int, int]], align: int, size: int) -> tuple[int, int]:
    end = max((offset + nbytes for offset, nbytes in taken.values()), default=0)
    return -(-end // align) * align, size


def read_ptx(text: str) -> list[Kernel]:
    """The kernels of one file."""
    return _Reader(text).kernels()


class _Reader:
    def __init__(self, text: str) -> None:
        names = re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', text, re.MULTILINE)
        self._files = {number: path.rpartition("/")[2] for number, path in names}
        lines = (re.sub(r"//.*", "", line).strip() for line in text.splitlines())
        self._lines = iter([line for line in lines if line])
        self._where = "?"
        self._kernel: Kernel | None = None

    def kernels(self) -> list[Kernel]:
        found = []
        for line in self._lines:
            if line.startswith(".section"):  # debug information, up to the end
                break
            if entry := _ENTRY.match(line):
                self._kernel = Kernel(entry[1])
                found.append(self._kernel)
                if not line.endswith(")"):
                    self._read_parameters(self._kernel)
            elif not line.startswith(_IGNORED):
                self._read(line)
        return found

    def _read_parameters(self, kernel: Kernel) -> None:
        for line in self._lines:
            if line == ")":
                return
            if line == "(":
                continue
            found = _PARAMETER.match(line)
            if found is None:
                raise UnknownPtxError(line)
            nbytes = bits_of(found["type"]) // 8
            place = _place(kernel.parameters, int(found["align"] or nbytes), int(found["count"] or 1) * nbytes)
            kernel.parameters[found["name"]] = place

    def _read(self, line: str) -> None:
        if self._kernel is None:
            raise UnknownPtxError(line)
        if location := _LOCATION.match(line):
            self._where = f"{self._files.get(location[1], location[1])}:{location[2]}"
        elif threads := re.match(r"\.maxntid (\d+)", line):
            self._kernel.max_threads = int(threads[1])
        elif label := re.match(r"\$?(\w+):$", line):
            self._kernel.body.append(Label(label[1]))
        else:
            for statement in _statements(line):
                self._read_statement(self._kernel, statement)

    def _read_statement(self, kernel: Kernel, text: str) -> None:
        if found := _REGISTERS.match(text):
            type_, name, count = found.groups()
            names = [name] if count is None else [f"{name}{k}" for k in range(int(count))]
            kernel.registers |= dict.fromkeys(names, type_)
        elif found := _SHARED.match(text):
            kernel.shared[found[2]] = _place(kernel.shared, int(found[1]), int(found[3]))
        elif text.startswith("."):
            raise UnknownPtxError(text)
        else:
            self._read_instruction(kernel, text)

    def _read_instruction(self, kernel: Kernel, text: str) -> None:
        text = re.sub(r"\s+", " ", text)
        guarded = _GUARD.match(text)
        instruction = Instruction(guarded[2], guarded[1]) if guarded else Instruction(text)
        kernel.body.append(replace(instruction, where=self._where))


def _statements(line: str) -> Iterator[str]:
    """Of one line, without the braces of a scope; an operand in braces never begins a line or follows a semicolon."""
    for part in line.split(";"):
        text = re.sub(r"^[{}]\s*", "", part.strip()).strip()
        if text and text not in {"(", ")"}:
            yield text
