"""What a job leaves behind: sockets, names in /dev/shm, temporary files, half-written folders. Processes are `family`'s.

A memfd ends with the last process that has it, so where no process is left there is none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.helpers.leaks import new_shared_memory, shared_memory

_LISTENING = "0A"
# PyG writes a module per kind of layer, which torch's compiler wants to find in a file; Python compiles it beside.
_OF_LIBRARIES = ("torch_geometric.", "__pycache__", "tmp_pyg", "torchinductor_")
# Names of what is being written: ours, Lightning's and fsspec's.
_HALF = (".part", ".tmp", ".old", ".lock")


@dataclass(frozen=True)
class Sockets:
    """Of some processes: TCP ports that are listened on, and abstract Unix sockets."""

    ports: frozenset[int]
    names: frozenset[str]

    @classmethod
    def of(cls, processes: Iterable[psutil.Process]) -> Sockets:
        ports: set[int] = set()
        names: set[str] = set()
        for process in processes:
            inodes = _socket_inodes(process.pid)
            with contextlib.suppress(OSError):
                ports |= {port for port, inode in _listening(process.pid) if inode in inodes}
                names |= {name for name, inode in _abstract(process.pid) if inode in inodes}
        return cls(frozenset(ports), frozenset(names))

    def __or__(self, other: Sockets) -> Sockets:
        return Sockets(self.ports | other.ports, self.names | other.names)

    def still_there(self, pid: int) -> list[str]:
        """Those that exist in the network of a process."""
        ports = {port for port, _ in _listening(pid)} & self.ports
        names = {name for name, _ in _abstract(pid)} & self.names
        return [f"port {port}" for port in sorted(ports)] + [f"socket @{name}" for name in sorted(names)]


NO_SOCKETS = Sockets(frozenset(), frozenset())


class Files:
    """What is in /dev/shm, and the folders of a job: of its temporary files, and those where it writes results."""

    def __init__(self, temporary: Path, written: Iterable[Path]) -> None:
        self._temporary, self._written = temporary, list(written)
        self._shared = shared_memory()

    def left(self) -> list[str]:
        found = [f"shared memory {path.name}" for path in new_shared_memory(self._shared)]
        found += [f"temporary {p.name}" for p in self._temporary.iterdir() if not p.name.startswith(_OF_LIBRARIES)]
        for folder in self._written:
            found += [f"half-written {p.relative_to(folder.parent)}" for p in folder.rglob("*") if _is_half(p)]
        return found


def _is_half(path: Path) -> bool:
    """By its name, or because it is a checkpoint or an archive that ends too soon."""
    if path.name.startswith(".") or path.name.endswith(_HALF):
        return True
    with contextlib.suppress(OSError):
        if path.suffix in (".ckpt", ".npz") and path.is_file():
            # both are zip archives, whose directory comes last: 22 bytes that begin with this mark
            return b"PK\x05\x06" not in path.read_bytes()[-4096:]
    return False


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                if link.startswith("socket:["):
                    found.add(link[len("socket:[") : -1])
    return found


def _listening(pid: int) -> list[tuple[int, str]]:
    """(port, inode) of each TCP socket that listens in the network of a process."""
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING:
                found.append((int(fields[1].rpartition(":")[2], 16), fields[9]))
    return found


def _abstract(pid: int) -> list[tuple[str, str]]:
    """(name, inode) of each abstract Unix socket in the network of a process."""
    lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
    rows = [line.split(maxsplit=7) for line in lines]
    return [(row[7][1:], row[6]) for row in rows if len(row) == 8 and row[7].startswith("@")]
