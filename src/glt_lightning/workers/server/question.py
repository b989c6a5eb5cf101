"""The request for one batch as a message to a graph server. It carries everything that the batch depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glt_lightning.base import DataError, PickerSpec, read_integer
from glt_lightning.graph import Manifest
from glt_lightning.sampling import BatchRequest, SamplerConfig, split_by_type
from glt_lightning.workers.producer.request_codec import (
    read_config,
    read_request,
    write_config,
    write_request,
    wrong_fields,
)
from glt_lightning.workers.transport.message import Message

_FIELDS = {"session", "talk", "run", "number", "key", "config", "arrays"}
_MOST_SEEDS = 1 << 22  # per batch: bounds the memory that one message can claim


@dataclass(frozen=True)
class Question:
    """The request for one batch of a client's run.

    run: the client's number of the run.  body_bytes: size of the message that the arrays are views of: all of it stays in
    memory with them.
    """

    run: int
    config: SamplerConfig
    request: BatchRequest
    body_bytes: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.run, self.request.number

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the question takes while it waits."""
        return max(self.request.nbytes, self.body_bytes)

    def to_message(self, session: str, stream: int) -> Message:
        """Encodes the question for a client's session. stream: number of the stream that is to carry the answer."""
        header, body = write_request(self.request)
        ids = {"session": session, "talk": stream, "run": self.run, "config": write_config(self.config)}
        return Message(ids | header, body)


def read_question(
    message: Message,
    manifest: Manifest,
    *,
    most_threads: int,
    most_bytes: int | None = None,
    picker: PickerSpec | None = None,
) -> Question:
    """The question in a message, checked against the graph, and the ``picker`` of this server. Raises `DataError`.

    most_threads, most_bytes: limits of this server for the batch, regardless of the client's.
    """
    header, schema = message.header, manifest.schema
    if set(header) - {"neighbor_key"} != _FIELDS:
        raise wrong_fields("make", _FIELDS, header, optional={"neighbor_key"})
    config = read_config(header["config"], len(schema.edge_types))
    manifest.require_weights(config.weights)
    if config.timed:
        manifest.require_times()
    if config.importance is not None:
        config.importance.require(schema)
    if config.picker is not None:
        config.picker.require(picker)
    read_integer(header["config"], "seed_type", 0, len(schema.node_types) - 1)
    config = replace(config, most_bytes=most_bytes, threads=min(config.threads, most_threads))
    request = read_request(message)
    _check_ids("seeds", request.seeds, config.seed_type, manifest)
    _check_links(config, request, manifest)
    for node_type, seeds in request.more_seeds.items():
        if node_type == config.seed_type or node_type >= len(schema.node_types):
            raise DataError(
                f"seeds/{node_type}: expected a node type from 0 to {len(schema.node_types) - 1} other than seed_type "
                f"({config.seed_type}), whose seeds are named seeds."
            )
        _check_ids("seeds", seeds, node_type, manifest)
    _check_trees(config, request)
    for edge_type, ends in () if request.excluded is None else request.excluded.pairs.items():
        read_integer({"excluded": edge_type}, "excluded", 0, len(schema.edge_types) - 1)
        types = schema.destination_types()[edge_type], schema.source_types()[edge_type]
        for ids, node_type in zip(ends, types, strict=True):
            _check_ids("excluded", ids, node_type, manifest)
    return Question(read_integer(header, "run", 0, 2**62), config, request, message.body.nbytes)


def _check_links(config: SamplerConfig, request: BatchRequest, manifest: Manifest) -> None:
    if config.link is None:
        return
    for task, own in zip(config.links, split_by_type(request, config.links), strict=True):
        given = own.link.get("source_negatives")
        if task.count(len(own.seeds)) + (0 if given is None else given.size) > _MOST_SEEDS:
            raise DataError(
                f"link: at most {_MOST_SEEDS} negatives per batch are allowed, got {task.amount} for each of "
                f"{len(own.seeds)} edges. Use a smaller batch_size or neg_sampling.amount."
            )
        src_type, dst_type = task.ends(manifest.schema)
        _check_ids("link/src", own.seeds, src_type, manifest)
        if "dst" in own.link:
            _check_ids("link/dst", own.link["dst"], dst_type, manifest)


def _check_trees(config: SamplerConfig, request: BatchRequest) -> None:
    trees = request.trees
    if trees is None:
        return
    if not config.disjoint:
        raise DataError("trees: only disjoint batches have some. Set disjoint in config.")
    if config.link is None:
        trees.for_seeds(request.typed_seeds(config.seed_type))


def _check_ids(name: str, ids: np.ndarray, node_type: int, manifest: Manifest) -> None:
    if len(ids) > _MOST_SEEDS:
        raise DataError(
            f"{name}: at most {_MOST_SEEDS} per batch are allowed, got {len(ids)}. Use a smaller batch_size."
        )
    begin = manifest.offsets[node_type]
    end = begin + manifest.num_nodes[node_type]
    bad = np.flatnonzero((ids < begin) | (ids >= end))
    if len(bad):
        raise DataError(
            f"{name}: {ids[bad[0]]} at position {bad[0]} is no node of type {manifest.schema.node_types[node_type]!r}, "
            f"whose numbers in the partition are {begin} to {end - 1}."
        )
