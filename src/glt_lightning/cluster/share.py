"""Serves the files of a partition folder to hosts that copy it, and nothing else: no part is mapped and nothing is sampled."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from glt_lightning.cluster.files import FileService, manifest_message
from glt_lightning.cluster.link import Link
from glt_lightning.data.manifest import Manifest
from glt_lightning.errors import PartitionError
from glt_lightning.options import ClusterOptions, parse_address
from glt_lightning.transport.base import Caller, Server, Service
from glt_lightning.transport.message import Message


@dataclass(frozen=True)
class SharedFolder:
    """A folder with all parts of a partition, or some."""

    directory: Path
    manifest: Manifest
    parts: tuple[int, ...]

    @classmethod
    def open(cls, folder: str | Path) -> SharedFolder:
        """Raises `PartitionError` for a folder that is no partition, or that nobody could copy from."""
        directory = Path(folder)
        manifest = Manifest.load(directory)
        if any(entry.chunks is None for entry in manifest.arrays.values()):
            raise PartitionError(
                f"{folder}: its manifest has no hashes of some files, so nobody could check a copy: an earlier release made it. "
                f"Run: python -m lightning partition --hash {folder}"
            )
        return cls(
            directory, manifest, tuple(p for p in range(manifest.num_parts) if (directory / f"part{p}").is_dir())
        )


def share_files(folder: SharedFolder, address: str, cluster: ClusterOptions) -> Server:
    """Serves at ``address`` until it is closed; a `Link` of the tool that copies is answered as by a graph server.

    Raises `OptionError` for an address or certificates that cannot be used.
    """
    parse_address("address", address)
    link = Link(
        job="",
        role="server",
        name=f"share (pid {os.getpid()} on {socket.gethostname()})",
        security=cluster.security,
        deadlines=cluster.deadlines,
        limits=cluster.limits,
    )

    def info(_message: Message, _caller: Caller) -> Message:
        return manifest_message(folder.manifest, folder.parts)

    calls = {"info": info, **FileService(folder).calls}
    return link.open_transport().serve(address, Service(link.greet, calls, {}))
