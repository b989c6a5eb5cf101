"""The files of a partition, from a process that serves it to a host that copies it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from glt_lightning.data.arrays import DATA_OFFSET
from glt_lightning.data.chunk_hashes import CHUNK_BYTES
from glt_lightning.data.manifest import Manifest
from glt_lightning.data.regular_file import open_regular, parse_json
from glt_lightning.errors import DataError, PartitionError, PeerError
from glt_lightning.transport.base import Caller, CallHandler
from glt_lightning.transport.message import Message
from glt_lightning.transport.peer import Peer

_MOST_BYTES = CHUNK_BYTES + DATA_OFFSET  # of a reply: a chunk, and the header before the first


class PartitionFiles(Protocol):
    """A folder with some parts of a partition, such as a `LocalPartition`."""

    @property
    def directory(self) -> Path: ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def parts(self) -> Sequence[int]: ...


def manifest_message(manifest: Manifest, parts: Sequence[int]) -> Message:
    """The answer to ``info``."""
    return Message({"parts": list(parts)}, np.frombuffer(json.dumps(manifest.to_json()).encode(), dtype=np.uint8))


class FileService:
    """A server's operation ``file``: bytes of a file of the manifest, which is named by its number in the order of paths, so that
    no path comes from a peer."""

    def __init__(self, partition: PartitionFiles) -> None:
        self._partition = partition
        self._paths = sorted(partition.manifest.arrays)

    @property
    def calls(self) -> Mapping[str, CallHandler]:
        return {"file": self._file}

    def _file(self, message: Message, caller: Caller) -> Message:
        path = self._paths[_number("number", message, len(self._paths) - 1)]
        size = self._partition.manifest.arrays[path].bytes
        begin, count = _number("begin", message, size), _number("bytes", message, _MOST_BYTES)
        file, count = self._partition.directory / path, min(count, size - begin)
        try:
            with caller.working(count), open_regular(file) as stream:
                stream.seek(begin)
                body = np.fromfile(stream, dtype=np.uint8, count=count)
        except FileNotFoundError:
            raise DataError(
                f"{path}: it is not on this host, which has the parts {list(self._partition.parts)}."
            ) from None
        except OSError as error:
            raise PartitionError(f"{path}: it cannot be read ({error.strerror}).") from None
        return Message({}, body)


def _number(name: str, message: Message, most: int) -> int:
    value = message.header.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise DataError(f"{name}: expected 0 to {most}, got {value!r:.50}.")
    return value


class PeerCopySource:
    """`partition.copies.CopySource` of a graph server. Close it: that ends the connection."""

    def __init__(self, server: Peer, address: str) -> None:
        self._server, self.name = server, address
        self._numbers: dict[str, int] = {}

    def manifest(self) -> Mapping[str, Any]:
        try:
            raw: Mapping[str, Any] = parse_json(self._server.ask("info").result().body.tobytes())
        except ValueError as error:
            raise PartitionError(f"{self.name}: the manifest that it sent cannot be read ({error}).") from None
        arrays = raw.get("arrays") if isinstance(raw, dict) else None
        self._numbers = {path: number for number, path in enumerate(sorted(arrays if isinstance(arrays, dict) else {}))}
        return raw

    def read(self, path: str, offset: int, length: int) -> memoryview:
        header = {"number": self._numbers[path], "begin": offset, "bytes": length}
        try:
            return memoryview(self._server.ask("file", header, bulk=True).result().body)
        except PeerError as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        self._server.close()
