"""The owner of some parts: answers calls about their rows. It keeps no state, so every call may be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from glt_lightning.cluster.expansion import (
    Expansion,
    answer_among,
    answer_walks,
    read_arrays,
    require_caller,
    require_ids,
    within_work,
)
from glt_lightning.cluster.silence import is_stopped
from glt_lightning.data.edge_ends import ENDS, EdgeEnds, stored_rows
from glt_lightning.data.local_partition import LocalPartition
from glt_lightning.data.manifest import Manifest
from glt_lightning.data.row_draws import OwnerDraws
from glt_lightning.errors import DataError
from glt_lightning.ops.file_map import guarded
from glt_lightning.ops.gather import Shards
from glt_lightning.ops.has_edges import has_edges, require_pairs
from glt_lightning.options import DrawOptions, PickerSpec
from glt_lightning.sampler.sample import Draft, Field
from glt_lightning.sampler.source import MOST_PAIRS, wire_dtype
from glt_lightning.transport.base import Caller, CallHandler
from glt_lightning.transport.memory import Recycler
from glt_lightning.transport.message import Message, layout_entries, pack, read_integer, unpack
from glt_lightning.types import MAX_FANOUT

_PAIR_BYTES = 48  # of memory for each pair of a question: its ids, its degree, and what is found
_SLOTS = 16  # replies in flight that are gathered into recycled memory


class Owner:
    """The operations on the parts that a process maps: ``expand`` (sample rows), ``gather`` (attributes of rows),
    ``has_edges`` (whether edges are stored), ``induce`` (the edges among some nodes), ``walk`` (walks through these parts) and
    ``here`` (a heartbeat).
    docs/wire-format.md has their messages.

    reply_bytes: limit of one reply; larger answers take several.  works_for: pid of the process whose sampler this one is;
    None: it samples for itself.  picker: that other processes may ask for.

    Raises `DataError` for a picker that cannot be made here.
    """

    def __init__(
        self,
        partition: LocalPartition,
        reply_bytes: int,
        works_for: int | None = None,
        picker: PickerSpec | None = None,
    ) -> None:
        self._reply_bytes, self._works_for = reply_bytes, works_for
        self._partition, self._manifest = partition, partition.manifest
        self._wire = wire_dtype(partition.manifest)
        self._draws = OwnerDraws(partition, picker)
        self._memory = Recycler(_SLOTS)
        self._shards = cache(partial(stored_rows, partition))

    @property
    def calls(self) -> Mapping[str, CallHandler]:
        return {
            "expand": self._expand,
            "gather": self._gather,
            "has_edges": self._has_edges,
            "induce": self._induce,
            "walk": self._walk,
            "here": self._here,
        }

    def close(self) -> None:
        self._memory.close()
        self._shards.cache_clear()
        self._draws.close()

    def _here(self, _message: Message, _caller: Caller) -> Message:
        pid = self._works_for
        return Message({"stopped": pid} if pid is not None and is_stopped(pid) else {})

    @guarded()  # a truncated file becomes an error to the caller, and this process goes on
    def _expand(self, message: Message, caller: Caller) -> Message:
        ask, draw = message.header, DrawOptions.from_wire(message.header)
        draws = self._draws.of(draw)
        view = draws.view
        fanouts = _integers(ask, "fanouts", view.num_edge_types, -1, MAX_FANOUT)
        key, hop = read_integer(ask, "key", 0, 2**64 - 1), read_integer(ask, "hop", 0, 15)
        named, excluded, trees = read_arrays(unpack(message))
        rows = {_index(name, view.num_types): require_ids(ids) for name, ids in named.items()}
        first = read_integer({"first": 0} | dict(ask), "first", 0, 2**62)
        question = Expansion(key, hop, fanouts, rows, first, excluded, trees)
        return question.answer(draws, self._wire, self._reply_bytes, caller)

    @guarded()
    def _gather(self, message: Message, caller: Caller) -> Message:
        """Rows of several tables, written straight into the body of the reply: the first ones, as many as fit."""
        tables, ids = message.header.get("tables"), unpack(message)
        if not isinstance(tables, list) or len(tables) != len(ids):
            raise DataError(f"gather: expected one array of ids per table, got {len(ids)} for {tables!r:.200}.")
        given: list[tuple[np.ndarray, dict[str, Shards | EdgeEnds]]] = []
        left, whole = self._reply_bytes, True
        for number, table in enumerate(tables):
            kind, index, names = _table(table, self._manifest)
            rows = require_ids(ids.get(str(number)))
            found = {name: self._shards(kind, index, name) for name in names}
            # the ids of narrow rows take more memory than the rows
            row_bytes = max(8, sum(shards.row_bytes for shards in found.values()))
            # at least one row in a reply, or the caller would ask for the rest for ever
            fit = max(left // row_bytes, 0 if any(len(each) for each, _ in given) else 1) if whole else 0
            whole = fit >= len(rows)
            given.append((rows[:fit], found))
            left -= len(rows[:fit]) * row_bytes
        with caller.working(self._reply_bytes - left + 8 * sum(len(rows) for rows, _ in given)):
            fields = []
            for number, (rows, found) in enumerate(given):
                gids, shape = rows.astype(np.int64), (len(rows),)
                for name, shards in found.items():
                    gather = partial(shards.gather, gids)
                    fields.append(Field(f"{number}/{name}", shards.dtype, shape + shards.row_shape, gather))
            draft = Draft(fields)
            memory = self._memory.take(draft.nbytes)  # comes back when the transport has sent it
            draft.write(memory)
            return Message({"arrays": layout_entries(draft.layout)}, memory)

    @guarded()
    def _has_edges(self, message: Message, caller: Caller) -> Message:
        """Answers the first pairs: as many as fit, no more than `MOST_PAIRS`, and no more entries than `within_work`."""
        view, arrays = self._partition.weighted(DrawOptions.from_wire(message.header).weights), unpack(message)
        edge_type = read_integer(message.header, "edge_type", 0, view.num_edge_types - 1)
        most = max(1, min(self._reply_bytes, MOST_PAIRS))
        dst, src = (require_ids(arrays.get(name)) for name in ("dst", "src"))
        if len(dst) != len(src):
            raise DataError(f"has_edges: expected as many dst as src, got {len(dst)} and {len(src)}.")
        dst, src = dst[:most], src[:most]
        with caller.working(_PAIR_BYTES * len(dst)):
            require_caller(caller)
            require_pairs(view, edge_type, dst, src)
            most = len(within_work(view, edge_type, dst))
            found = has_edges(view, edge_type, dst[:most], src[:most])
            entries, body = pack({"found": found.view(np.uint8)})
            return Message({"arrays": entries}, body)

    @guarded()
    def _induce(self, message: Message, caller: Caller) -> Message:
        """Answers the first rows: no more than `MOST_PAIRS`, and no more entries than `within_work`."""
        header, view = message.header, self._partition.weighted(DrawOptions.from_wire(message.header).weights)
        edge_type = read_integer(header, "edge_type", 0, view.num_edge_types - 1)
        limit = read_integer(header, "limit", 0, 2**62) if "limit" in header else None
        return answer_among(view, edge_type, unpack(message), limit, self._wire, self._reply_bytes, MOST_PAIRS, caller)

    @guarded()
    def _walk(self, message: Message, caller: Caller) -> Message:
        """Answers the first walks, as many as fit."""
        return answer_walks(message, self._partition, self._wire, self._reply_bytes, caller)


def _table(given: Any, manifest: Manifest) -> tuple[str, int, list[str]]:
    """(node or edge, type, names) of a requested table. Raises `DataError` for one that the graph does not have."""
    schema = manifest.schema
    if isinstance(given, list) and len(given) == 3 and given[0] in ("node", "edge") and isinstance(given[2], list):
        kind, index, names = given
        types = schema.node_types if kind == "node" else schema.edge_types
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(types):
            known = ("n_id", *manifest.node_attrs(index)) if kind == "node" else (ENDS, *manifest.edge_rows(index))
            if all(name in known for name in names):
                return kind, index, names
    raise DataError(f"gather: the graph has no table {json.dumps(given)[:200]}.")


def _index(name: str, count: int) -> int:
    if not name.isdecimal() or int(name) >= count:
        raise DataError(f"rows: expected arrays named by node types 0 to {count - 1}, got {name!r:.50}.")
    return int(name)


def _integers(header: Mapping[str, Any], name: str, count: int, least: int, most: int) -> list[int]:
    values = header.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise DataError(f"{name}: expected {count} integers, got {values!r:.100}.")
    return [read_integer({name: value}, name, least, most) for value in values]
