"""A batch asked of a graph server, as a message: all that the batch depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from glt_lightning.data.manifest import Manifest
from glt_lightning.errors import DataError
from glt_lightning.sampler.request import BatchRequest, SamplerConfig
from glt_lightning.transport.message import Message, pack, unpack
from glt_lightning.types import MAX_FANOUT

_MOST_HOPS = 16
_MOST_SEEDS = 1 << 22
_FIELDS = {"session", "talk", "run", "number", "key", "config", "arrays"}
_CONFIG_FIELDS = {"seed_type", "fanouts", "replace", "with_edge", "threads"}
_STORED = "stored"  # only where it is true, so that servers of older releases serve all others


@dataclass(frozen=True)
class Question:
    """One batch of a client's run. Numbers of runs are the client's own."""

    run: int
    config: SamplerConfig
    request: BatchRequest

    @property
    def key(self) -> tuple[int, int]:
        return self.run, self.request.number

    @property
    def nbytes(self) -> int:
        """What it takes while it waits."""
        return self.request.seeds.nbytes + self.request.input_id.nbytes

    def to_message(self, session: str, talk: int) -> Message:
        """The question of a client's session. talk: see `producer.sessions.Session`."""
        arrays, body = pack({"seeds": self.request.seeds, "input_id": self.request.input_id})
        config = asdict(self.config)
        del config["most_bytes"]  # the server's own limit
        if not self.config.stored:
            del config[_STORED]
        header = {
            "session": session,
            "talk": talk,
            "run": self.run,
            "number": self.request.number,
            "key": self.request.key,
            "config": config,
            "arrays": arrays,
        }
        return Message(header, body)


def read_question(message: Message, manifest: Manifest, most_bytes: int | None = None) -> Question:
    """The question in a message. Raises `DataError` for one that the graph has no answer to.

    most_bytes: largest memory of its batch.
    """
    header = message.header
    _check_fields(header, _FIELDS, "make")
    config = replace(_config(header["config"], manifest), most_bytes=most_bytes)
    arrays = unpack(message)
    _check_fields(arrays, {"seeds", "input_id"}, "arrays")
    seeds, input_id = (_ids(arrays, name) for name in ("seeds", "input_id"))
    if len(seeds) != len(input_id):
        raise DataError(f"make: {len(seeds)} seeds, but {len(input_id)} positions in input_id.")
    _check_seeds(seeds, config.seed_type, manifest)
    request = BatchRequest(
        read_integer(header, "number", 0, 2**62), read_integer(header, "key", 0, 2**64 - 1), seeds, input_id
    )
    return Question(read_integer(header, "run", 0, 2**62), config, request)


def read_integer(header: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """An integer of a header. Raises `DataError`."""
    value = header.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DataError(f"{name}: expected an integer from {least} to {most}, got {value!r:.50}.")
    return value


def _config(given: Any, manifest: Manifest) -> SamplerConfig:
    given = {_STORED: False} | given if isinstance(given, dict) else given
    _check_fields(given, _CONFIG_FIELDS | {_STORED}, "config")
    relations = len(manifest.schema.edge_types)
    fanouts = given["fanouts"]
    if not isinstance(fanouts, list) or len(fanouts) > _MOST_HOPS:
        raise DataError(f"fanouts: expected a list of at most {_MOST_HOPS} hops, got {fanouts!r:.100}.")
    for hop in fanouts:
        ok = isinstance(hop, list) and len(hop) == relations
        if not ok or not all(type(k) is int and -1 <= k <= MAX_FANOUT for k in hop):
            raise DataError(
                f"fanouts: expected {relations} integers per hop, one per edge type, each -1 (all) or 0 to {MAX_FANOUT}; "
                f"got {hop!r:.100}."
            )
    for name in ("replace", "with_edge", _STORED):
        if not isinstance(given[name], bool):
            raise DataError(f"{name}: expected true or false, got {given[name]!r:.50}.")
    return SamplerConfig(
        seed_type=read_integer(given, "seed_type", 0, len(manifest.schema.node_types) - 1),
        fanouts=tuple(tuple(hop) for hop in fanouts),
        replace=given["replace"],
        with_edge=given["with_edge"],
        stored=given[_STORED],
        threads=min(read_integer(given, "threads", 1, 1 << 16), os.cpu_count() or 1),
    )


def _ids(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    array = arrays[name]
    if array.dtype != np.int64 or array.ndim != 1 or len(array) > _MOST_SEEDS:
        raise DataError(
            f"{name}: expected int64 [S] with S at most {_MOST_SEEDS}, got {array.dtype} {list(array.shape)}."
        )
    return array


def _check_seeds(seeds: np.ndarray, seed_type: int, manifest: Manifest) -> None:
    begin = manifest.offsets[seed_type]
    end = begin + manifest.num_nodes[seed_type]
    bad = np.flatnonzero((seeds < begin) | (seeds >= end))
    if len(bad):
        raise DataError(
            f"seeds: {seeds[bad[0]]} at position {bad[0]} is no node of type {manifest.schema.node_types[seed_type]!r}, "
            f"whose numbers in the partition are {begin} to {end - 1}."
        )


def _check_fields(given: Any, known: set[str], what: str) -> None:
    if not isinstance(given, Mapping) or set(given) != known:
        got = sorted(given) if isinstance(given, Mapping) else given
        raise DataError(f"{what}: expected the fields {', '.join(sorted(known))}; got {got!r:.200}.")
