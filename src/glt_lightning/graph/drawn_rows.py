"""Draws the neighbours of rows by draw options: with the kernels, or with a user's picker."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from glt_lightning.base import DrawOptions, PickerSpec, edge_type_str
from glt_lightning.graph.local_partition import LocalPartition
from glt_lightning.graph.manifest import Manifest, edge_path
from glt_lightning.kernels import (
    ExcludedEntries,
    GraphView,
    PickableRows,
    PickerDraw,
    RowDraw,
    RowView,
    Shards,
    Trees,
    from_bfloat16,
    mix64,
    probe,
)

_MOST_DRAWS = 16  # draw options of an owner that are kept open
_DEGREES = np.append(np.arange(40), [150, 1000])  # of the rows that `probed` makes up


@dataclass(frozen=True)
class RowDraws:
    """Draws from rows of ``view`` by the options ``draw``. pickable: the rows for a picker; None: kernels draw."""

    view: GraphView
    draw: DrawOptions
    pickable: PickableRows | None = None

    @classmethod
    def of_parts(cls, partition: LocalPartition, draw: DrawOptions) -> RowDraws:
        """Makes the draws from the mapped parts. Raises `DataError` for weights, times or a picker that this process does not
        have."""
        view, manifest = partition.drawn_by(draw.weights, draw.timed, draw.labor), partition.manifest
        if draw.picker is None:
            return cls(view, draw)
        edge_types = range(len(manifest.schema.edge_types))
        shards = {(r, name): partition.edge_shards(r, name) for r in edge_types for name in manifest.edge_attrs(r)}
        return cls(view, draw, pickable(view, manifest, draw.picker, lambda r, name: shards[r, name]))

    def of(
        self,
        edge_type: int,
        gids: np.ndarray,
        fanout: int,
        batch_key: int,
        hop: int,
        excluded: ExcludedEntries | None = None,
        trees: Trees | None = None,
    ) -> RowDraw | PickerDraw:
        """Makes the draw for some rows. gids: int64 [F], destination nodes whose rows are in the view. Further arguments as for
        `RowDraw`."""
        rows = (edge_type, gids, fanout, batch_key, hop, self.draw, excluded, trees)
        return RowDraw(self.view, *rows) if self.pickable is None else PickerDraw(self.pickable, *rows)


def pickable(
    view: GraphView, manifest: Manifest, picker: PickerSpec, shards: Callable[[int, str], Shards]
) -> PickableRows:
    """Makes the rows of a view for a picker. shards: returns an attribute of an edge type, by edge row of the view.

    Raises `DataError` for a picker that cannot be made here, or whose picks differ from those in the process that sent
    ``picker``.
    """
    if picker.probe:
        picker.require(probed(picker, manifest))

    def read(edge_type: int, name: str, edge_rows: np.ndarray) -> np.ndarray:
        values = shards(edge_type, name).gather(edge_rows)
        return from_bfloat16(values) if manifest.is_bfloat16("edges", edge_type, name) else values

    names = [edge_type_str(each) for each in manifest.schema.edge_types]
    attrs = [manifest.edge_attrs(r) for r in range(len(names))]
    return PickableRows(view, names, attrs, read, picker.picker)


class OwnerDraws:
    """Makes draws from the mapped parts for requests of other processes, with ``picker`` or with none. Thread-safe. Close it.

    Raises `DataError` for a picker that cannot be made here.
    """

    def __init__(self, partition: LocalPartition, picker: PickerSpec | None) -> None:
        self._picker = None if picker is None else probed(picker, partition.manifest)
        self._made = lru_cache(_MOST_DRAWS)(partial(RowDraws.of_parts, partition))

    def of(self, draw: DrawOptions) -> RowDraws:
        """Returns the draws for a request's options. Raises `DataError` for another picker, and as `RowDraws.of_parts`."""
        if draw.picker is not None:
            draw.picker.require(self._picker)
            draw = replace(draw, picker=self._picker)  # the picker of this process, which has been made already
        return self._made(draw)

    def close(self) -> None:
        self._made.cache_clear()


def probed(spec: PickerSpec, manifest: Manifest) -> PickerSpec:
    """Adds a hash of the picks from made-up rows of each edge type, which other processes compare with their own. It is no error
    if a picker fails on these rows, since their attributes are meaningless. Raises `DataError` for one that is not pure."""
    found = hashlib.blake2b(digest_size=8)
    for r, edge_type in enumerate(manifest.schema.edge_types):
        uid = np.arange(len(_DEGREES))
        rows = RowView(
            edge_type_str(edge_type), 0, uid, _DEGREES, manifest.edge_attrs(r), partial(_made_up, manifest, r)
        )
        for fanout in (3, -1):
            picks = probe(spec.picker, str(spec), rows, fanout, mix64(uid))
            found.update(b"failed" if picks is None else picks)
    return spec.with_probe(found.hexdigest())


def _made_up(manifest: Manifest, edge_type: int, name: str) -> np.ndarray:
    """Makes values of an attribute for the entries of all made-up rows."""
    entry, encoding = (
        manifest.arrays[edge_path(0, edge_type, name)],
        manifest.decoded_by("edges", edge_type, name),
    )
    dtype, shape = np.dtype(entry.dtype), tuple(entry.shape[1:])
    if encoding is not None:
        dtype, shape = np.dtype(np.float32), encoding.row_shape(shape)
    elif manifest.is_bfloat16("edges", edge_type, name):
        dtype = np.dtype(np.float32)
    shape = (int(_DEGREES.sum()), *shape)
    bits = mix64(np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(1)).reshape(shape)
    if dtype.kind == "f":
        return ((bits >> np.uint64(40)) / 2**24).astype(dtype)
    return (bits % np.uint64(2 if dtype.kind == "b" else 100)).astype(dtype)
