"""The manifest of a partition folder: its contents, the options it was made with, and the checks before it is used.

This text defines the format, version 3. A partition is a folder of plain arrays and one JSON file. It is written once
and never changed; any number of processes map it and share the page cache. `numpy.load` without pickles and a JSON
parser read all of it.

    manifest.json
    splits/<name>.npy                     int64 [S]       seeds: gids in the order of the user's split; the position is input_id
    edge_splits/<r>/<split>/<array>.npy   int64           optional: edges to predict, by the user's ids (below)
    nodes/<t>/gid.npy                     ids [num_nodes]  gids of all nodes of the type by the user's id
    nodes/<t>/times.npy                   int64 [num_nodes]  their times, where row_order has some
    nodes/<t>/deleted.npy                 int64 [K]       optional: user's ids of deleted nodes, ascending
    tables/encoding.npy                   uint8 [bytes]   optional: JSON (UTF-8), the encoding of columns of tables as features
    tables/ids<t>_<kind>.npy              int64, uint8    optional: the tables' ids of the last nodes of a type (below)
    part<p>/nodes/<t>/n_id.npy            ids [rows]      the user's node id by row
    part<p>/nodes/<t>/hotness.npy         float32 [rows]  expected accesses of the row by one batch of the part's own seeds
    part<p>/nodes/<t>/<attr>.npy          [rows, ...]     node attributes by row: x, y and all others of the data
    part<p>/hot/<policy>/<t>/gids.npy     ids [K]         nodes of other parts in the part's batches, hottest first
    part<p>/hot/<policy>/<t>/hotness.npy  float32 [K]     their expected accesses by one batch
    part<p>/edges/<r>/indptr.npy          int64 [rows+1]  row pointers; rows are those of the edge type's destination type
    part<p>/edges/<r>/indices.npy         ids [edges]     gids of the sources
    part<p>/edges/<r>/edge_ids.npy        edge ids [edges]  the user's edge id of each stored edge
    part<p>/edges/<r>/<attr>.npy          [edges, ...]    edge attributes in the order of edge_ids
    part<p>/edges/<r>/<attr>.cum.npy      int32 [edges]   sums of the weights of the row, of partition.weights
    part<p>/edges/<r>/times.npy           int64 [edges]   for edge types in row_order: times, which ascend within each row

``<p>`` counts parts from 0. ``<t>`` and ``<r>`` are positions in ``node_types`` and ``edge_types``, which are in
lexicographic order. A homogeneous graph has the one node type ``node`` and the one edge type ``["node", "to",
"node"]``.

**Numbers of nodes.** Nodes of a type are numbered anew so that part *p* owns one contiguous range, ``bounds[t][p]`` up
to ``bounds[t][p + 1]``. A **gid** is the new number plus the number of nodes of all earlier types. A node's **row** is
its new number minus ``bounds[t][p]``. The part of a gid is thus found by a search among P + 1 numbers per type, and
``n_id`` has a row's user id. ``gid`` has the gid of a user id: one array for the whole graph, which every host maps,
since negatives are drawn among the user's ids. Folders of version 2 lack it: they can be read, but no negatives can be
drawn. Seeds are stored as gids.

Nodes in ``deleted`` have no edges, are in no split, and are never seeds or negatives. Their numbers are not used again.

Within a part, nodes are ordered by **hotness** for the batches of the part's seeds, hottest first, ties by the number
of edges that have the node as source, then by the user's id. A prefix of a part's rows is thus the best set of its rows
to cache, without an index.

Nodes of *other* parts that a part's batches are expected to access are listed under ``hot/<policy>``, where
``<policy>`` is the method by which hotness was computed (``vip``, ``presample``, ``degree``, ``given``;
partitioning.md): all nodes with a hotness above zero that another part owns. With more than one part, each policy of
the manifest has a list for every part and node type.

**Edges.** An edge is stored in the part of its destination (``edge_direction`` is ``"in"``): row ``i`` of ``indptr``
lists the sources of the edges into node ``i``. A row is sorted by (user id of the source, edge id). This order, and
with it the samples, does not depend on the number of parts.

With ``partition.time_attr`` the manifest has ``row_order``: ``time_attr``, the attribute; ``of``, ``nodes`` or
``edges``, which have it; and ``edge_types``, the positions of the edge types that have times. Their rows are sorted by
(time, user id of the source, edge id), and ``times.npy`` has the time of each entry: the attribute of the edge, or of
its source. Rows of other edge types are in the order above. Parallel edges are merged only if their times are equal.

An **edge id** is the edge's column in the user's ``edge_index``. With ``undirected``:

* within one node type, the reverse of column *k* gets the id *k*, too, then parallel edges are merged and keep the
  lowest id; ids do not depend on the number of edges, so that a graph to which edges are added keeps them. Folders
  without ``edge_columns`` are of an earlier release: there the reverse of column *k* of E columns has the id E + *k*;
* between two node types, a second edge type ``[dst, "rev_" + rel, src]`` holds the reverse edges, with the columns as
  ids and nothing merged. It is not added when the data has that edge type already.

A reverse edge has the attributes of the edge from which it was made.

**Edges to predict.** ``edge_splits/<r>/<split>`` has the edges to predict of an edge type, for ``<split>`` train, val
or test: ``edge`` int64 [2, S], sources and destinations; and if they are given, ``label`` [S, ...] of numbers, ``time``
int64 [S], ``attr`` float32 [S, D] and ``codes`` int64 [S, C] (attributes of edges with labels), ``negatives`` int64 [S,
K] (destinations; -1: to be drawn), ``source_negatives`` int64 [S, K] (sources) and ``negative_edges`` int64 [2, M]. All are the
user's ids, so that they do not depend on the parts. Edges whose pair of nodes has no training edge are not stored as
edges of the graph, nor are their reverses; ids of the others are still columns of the user's ``edge_index``.

**Encoding of tables.** ``tables/encoding.npy`` exists if the data set was tables. Its bytes are JSON: ``nodes`` (by
node type) and ``edges`` (by ``SRC__REL__DST``) each have ``columns``, the fitted columns in the order of the features,
each with its kind in ``as`` (``plain``, ``number``, ``date``, ``one_hot``, ``code``), the name of its ``column`` and
its numbers or ``categories``; ``features``, the names of the columns of ``x`` or ``edge_attr``; ``asked``, the keys of
the user's mapping by which they were fitted; and ``classes``, the names of labels 0, 1, ..., if labels are text. The
data page explains them; ``encode_rows`` applies them.

**Ids of tables.** What the user's tables call nodes is not in the folder, except in one that was made of a version
(``compact``): there ``tables/ids<t>_numbers.npy``, int64, or ``tables/ids<t>_ends.npy`` and ``_bytes.npy``, from each end
to the next one the UTF-8 of an id, have the ids of the nodes that came after the tables were converted, the last ones of
the type.

**Types of numbers.** All arrays are little-endian, in C order. Node ids (``n_id``, ``indices``) are int32 when all gids
fit, else int64 (``id_dtype``); edge ids likewise (``edge_id_dtype``).

An ``.npy`` file's data begins at byte 4096, so that a map of it is aligned for any type. Readers must still take the
offset from the header.

**Attributes in fewer bytes.** An attribute is stored unchanged unless ``encodings`` names it, as ``nodes/<t>/<attr>``
or ``edges/<r>/<attr>``. ``stored`` is its encoding. Value, ``dtype`` of the file, and a row of D values:

* ``float16``: ``<f2``; the nearest float16
* ``bfloat16``: ``<u2``; the nearest bfloat16: the upper half of a float32
* ``int8``: ``|u1``, [rows, 4 + D]; a little-endian float32 *s*, the greatest absolute value of the row by 127; then D
  signed bytes, each value by *s*. A row of zeros has *s* = 0

Rounding is to the nearest, ties to even. ``given`` is the dtype in batches: ``float32``, decoded (for ``int8``, *s*
times the byte, rounded once), or for ``stored: bfloat16`` also ``bfloat16``, as the user's data had it. Encoded and
decoded values are finite. An array may have any number of dimensions; for ``int8`` it has two. Rows are mapped, cached
and sent in their stored form, and decoded when they are gathered into a batch.

**manifest.json:**

* ``format``, ``version``: ``"glt_lightning.partition"``, ``3`` (read, too: ``2``, without ``nodes/<t>/gid.npy``)
* ``num_parts``: number of parts P, at least 1; parts may be empty
* ``homogeneous``: true if batches are ``Data``, false if they are ``HeteroData``
* ``node_types``, ``edge_types``: sorted names; an edge type is ``[source, relation, destination]``
* ``edge_direction``: ``"in"``
* ``num_nodes``, ``num_edges``: per type; edges as stored
* ``bounds``: per node type, P + 1 numbers from 0 to ``num_nodes``
* ``id_dtype``, ``edge_id_dtype``: ``"int32"`` or ``"int64"``
* ``num_classes``, ``target_type``: number of classes and node type of the labels, or ``null``
* ``splits``: name → ``{"node_type", "count", "ids_hash"}``; the last, optional, is BLAKE2b (16 bytes) of the user's ids
  as int64 in the order of the split
* ``edge_splits``: optional: ``"<r>/<split>"`` → ``{"count", "digest"}``; the digest is a hash of the arrays
* ``arrays``: relative path → ``{"dtype", "shape", "bytes", "crc32", "chunks"}``; every file but the manifest is listed
* ``class_names``: optional: names of the classes, ``num_classes`` of them
* ``edge_columns``: per edge type ``{"count", "reverse_of"}``: the number of columns of the user's ``edge_index`` that
  it was made from, and if it has their reverses, the position of the edge type that has the edges themselves (its own
  where it has both); else ``null``. Folders of earlier releases lack it: no rows can be added to them
* ``encodings``: optional: attribute → ``{"stored", "given"}`` (above)
* ``normalization``: optional, with ``normalize``: index of a node type, as text → ``{"rows", "shift", "scale"}``, how
  its ``x`` was normalised, and later rows are. ``rows`` true: less ``shift[0]``, then each row divided by its sum, or by
  1 if that is smaller; false: column c less ``shift[c]``, times ``scale[c]``
* ``num_categories``: optional: node type → the number of codes of each column of its attribute ``x_codes``, integers
  [rows, C]
* ``num_edge_categories``: optional: the same of ``edge_codes``, by index of the edge type, as text
* ``edge_labels``: optional: index of an edge type with labels, as text → ``{"num_classes", "class_names"}``, or ``null``s
* ``made_by``: data set (``source``, ``fingerprint``), ``undirected``, ``normalize``, ``splits`` (hash of the splits
  that the user gave), ``algorithm`` (for a file of part numbers, its hash), ``num_parts``, ``seed``, ``hotness``,
  ``num_neighbors``, ``batch_size``, ``wide_ids``, ``storage`` (if set), ``package_version``; and all other values that
  the algorithm depends on. In a folder that was made of a version: ``compacted``, the ``folder`` and identity of the
  ``partition`` and the ``version``, and ``overlay``, a hash of its rows
* ``hotness``: policy → the batches that it was computed for (``num_neighbors``, ``batch_size``); the first policy
  orders the rows
* ``options_hash``: BLAKE2b (16 bytes) of ``made_by`` without ``package_version``, as JSON with sorted keys and no
  blanks

``dtype`` is numpy's spelling (``"<f4"``), ``bytes`` the size of the file, ``crc32`` that of the data without the
header. ``chunks``, which folders of earlier releases lack, has for each 64 MiB of the data, and for the rest, the first
16 bytes of its SHA-256 in hexadecimal: by it a copy is checked piece by piece.

**A reader must refuse** the following. Each is an error that names the file: no manifest; no JSON object; another
format or version; a key missing or of another kind; types not sorted; bounds that do not divide the nodes; a path that
is not one of the above (no ``..``, nothing absolute); an array missing in one part and present in another; rows, edges
or splits that do not add up; an encoding of something that is no attribute, or that its array cannot hold;
``num_categories`` that do not fit ``x_codes``, or of edges ``edge_codes``; an ``options_hash`` that does not match. For
an array: file missing, no regular file, another size, another dtype or shape than listed, Fortran order, objects. For
``n_id``, over the parts of a type: a number outside 0 to N - 1, or one that occurs twice. This is checked whenever user
ids are looked up (splits of the user's, predictions of all nodes), and on opening for types whose ids take up to 16
MiB.

**Checksums.** Arrays up to 16 MiB are verified whenever they are opened; larger ones, which every process of a host
would have to read before its first batch, on demand (``python -m lightning partition --verify FOLDER``). Damage that
changes a size is always noticed.

**Files that shrink while they are mapped.** Reading a page beyond the end of the file raises SIGBUS. In a training
process that makes batches, and in an owner, the batch or the reply becomes an error that names the file. A sampler
process names the file and ends; its successor refuses the file. Other reads name the file before the process ends.
Bytes missing from the last remaining page read as zeros, without a signal; the next opening checks the size.

**Writing.** The writer holds a lock beside the target (``.<name>.lock``, ``flock``), writes into ``.<name>.tmp-<pid>``
beside it and renames that folder when it is complete: a target that exists is whole. A killed run leaves at most these
two names, which the next run removes; it waits for a writer that is alive, up to a deadline. Working files have no
name, so that the system always frees them. After a power failure verify the large arrays once.

A folder that several runs fill (``partition --parts``) gets each part by one rename, and beside its arrays a
``part.json``: the entries of its arrays, and what it must share with the others. The run that adds the last part writes
``manifest.json``. Parts that were written with different options are refused.

A complete folder with the requested ``options_hash`` is used again. Any other folder is left unchanged, and the error
lists the options that differ.

Memory is bounded by ``partition.memory_bytes`` plus some bytes per node: edges are distributed over ranges of
destination rows (in memory while they fit, else in a working file), and each range is sorted by itself; feature rows
likewise. The content does not depend on ``memory_bytes``. A single row with more edges than the memory holds is still
sorted in one piece.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import DataError, EdgeType, GraphSchema, NodeType, OptionError, PartitionError, edge_type_str
from glt_lightning.graph.manifest_checks import checked, read_json, require
from glt_lightning.graph.row_order import TIMES, RowOrder
from glt_lightning.kernels import ENCODINGS, Encoding

FORMAT = "glt_lightning.partition"
VERSION = 3
READABLE = (2, VERSION)  # folders of version 2 have no `gid_path`
MANIFEST = "manifest.json"
_CUM = ".cum"

_LISTS = re.compile(r"part0/hot/(\w+)/\d+/gids\.npy")


@dataclass(frozen=True)
class ArrayEntry:
    """One ``.npy`` file: numpy type string, shape, size of the file in bytes, CRC-32 of the data after the header.

    chunks: a hash of each chunk of the data (``partition/arrays.py``); None in a folder of an earlier release.
    """

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    crc32: int
    chunks: tuple[str, ...] | None = None

    @property
    def offset(self) -> int:
        """Offset of the data in bytes."""
        return self.bytes - int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        raw = {"dtype": self.dtype, "shape": list(self.shape), "bytes": self.bytes, "crc32": self.crc32}
        return raw if self.chunks is None else raw | {"chunks": list(self.chunks)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ArrayEntry:
        chunks = None if raw.get("chunks") is None else tuple(raw["chunks"])
        return cls(raw["dtype"], tuple(raw["shape"]), raw["bytes"], raw["crc32"], chunks)


@dataclass(frozen=True)
class EncodingEntry:
    """The encoding of an attribute. stored: name of a `kernels.build.Encoding`.  given: dtype in batches: ``float32`` after
    decoding, or ``bfloat16`` without decoding."""

    stored: str
    given: str


@dataclass(frozen=True)
class SplitEntry:
    """Seeds of one split: their node type and their number.

    ids_hash: `graph.graph.seeds_hash` of the user's ids; None in a folder of an earlier release.
    """

    node_type: NodeType
    count: int
    ids_hash: str | None = None

    def to_json(self) -> dict[str, Any]:
        hashed = {} if self.ids_hash is None else {"ids_hash": self.ids_hash}
        return {"node_type": self.node_type, "count": self.count, **hashed}


@dataclass(frozen=True)
class EdgeSplitEntry:
    """The edges to predict of one edge type and split: their number, and the `EdgeSplit.digest` of the user's ids."""

    count: int
    digest: str


@dataclass(frozen=True)
class EdgeLabelEntry:
    """The classes of the labels of edges. num_classes: None for a regression.  class_names: None where they have none."""

    num_classes: int | None
    class_names: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "num_classes": self.num_classes,
            "class_names": None if self.class_names is None else list(self.class_names),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> EdgeLabelEntry:
        names = raw["class_names"]
        return cls(raw["num_classes"], None if names is None else tuple(names))


@dataclass(frozen=True)
class EdgeColumns:
    """The user's edges that an edge type was made from. count: their number, with those that are not stored.  reverse_of: the
    edge type whose reverse edges it has, its own if it has both directions; None: it has no added reverse edges."""

    count: int
    reverse_of: int | None = None


def node_path(part: int, node_type: int, name: str) -> str:
    """Relative path of a node array; ``node_type`` is the index in the schema."""
    return f"part{part}/nodes/{node_type}/{name}.npy"


def edge_path(part: int, edge_type: int, name: str) -> str:
    """Relative path of an edge array; ``edge_type`` is the index in the schema."""
    return f"part{part}/edges/{edge_type}/{name}.npy"


def cum_name(attribute: str) -> str:
    """Name of the edge array with the prefix sums within each row, int32 [edges], of an attribute that edges are sampled by."""
    return attribute + _CUM


def attr_key(kind: str, index: int, name: str) -> str:
    """Key of an attribute in ``Manifest.encodings``; ``kind`` is nodes or edges, ``index`` the type's in the schema."""
    return f"{kind}/{index}/{name}"


def hot_path(part: int, policy: str, node_type: int, name: str) -> str:
    """Relative path of a list of the hottest remote rows of a part; ``node_type`` is the index in the schema."""
    return f"part{part}/hot/{policy}/{node_type}/{name}.npy"


def gid_path(node_type: int) -> str:
    """Relative path of the gids of all nodes of a type by the user's id; ``node_type`` is the index in the schema."""
    return f"nodes/{node_type}/gid.npy"


def node_times_path(node_type: int) -> str:
    """Relative path of the times of all nodes of a type, int64, by the user's id; ``node_type`` is the index in the schema."""
    return f"nodes/{node_type}/{TIMES}.npy"


def deleted_path(node_type: int) -> str:
    """Relative path of the user ids of deleted nodes of a type, int64, ascending; ``node_type`` is the index in the schema."""
    return f"nodes/{node_type}/deleted.npy"


def split_path(name: str) -> str:
    return f"splits/{name}.npy"


def edge_split_key(edge_type: int, name: str) -> str:
    """Key in ``Manifest.edge_splits``; ``edge_type`` is the index in the schema."""
    return f"{edge_type}/{name}"


def edge_split_path(edge_type: int, name: str, array: str) -> str:
    """Relative path of an array of an `EdgeSplit`; ``edge_type`` is the index in the schema."""
    return f"edge_splits/{edge_type}/{name}/{array}.npy"


def options_hash(made_by: Mapping[str, Any]) -> str:
    """Hash of all entries of ``made_by`` that determine content: everything but the version of the package."""
    hashed = {key: value for key, value in made_by.items() if key != "package_version"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`. Per-type tuples follow the order of the types in ``schema``.

    Attributes:
        schema: Node and edge types.
        num_parts: Number of parts P.
        num_nodes: Nodes of each node type.
        num_edges: Stored edges of each edge type.
        bounds: Per node type P + 1 numbers; part p owns the new numbers [bounds[p], bounds[p + 1]).
        id_dtype: ``int32`` or ``int64``: type of ``n_id`` and ``indices``.
        edge_id_dtype: ``int32`` or ``int64``: type of ``edge_ids``.
        num_classes: Number of classes of the target, ``None`` if it is not a classification.
        target_type: Node type that carries the labels and splits.
        splits: Name -> seeds.
        arrays: Relative path -> array.
        made_by: The options that the partition was made with.
        hotness: Ranking (``vip``, ``presample``, ``degree``) -> the options it was computed with; the first orders the rows.
        encodings: `attr_key` of each attribute that is stored in another dtype than batches have -> its encoding.
        normalization: Index of a node type whose ``x`` was normalised -> how.
        num_categories: Node type -> number of codes of each column of its ``x_codes``.
        num_edge_categories: Index of an edge type -> number of codes of each column of its ``edge_codes``.
        edge_labels: Index of an edge type whose edges to predict have labels -> their classes.
        class_names: Names of the classes, ``None`` where the data has none.
        edge_splits: `edge_split_key` -> the edges to predict.
        row_order: The order of rows by time; None: rows are ordered by the user id of the source.
        edge_columns: For each edge type the user's edges that it was made from; None in a folder of an earlier release.
        of_version: Of a partition with an overlay, which no folder has: the number of the version; 0: rows of this process alone.

    Raises:
        PartitionError: By `load`, for a manifest that is missing, damaged or of another version.

    Example:
        >>> manifest = Manifest.load("parts")
        >>> manifest.num_parts, manifest.num_nodes, manifest.num_edges
        (2, (10,), (20,))
        >>> manifest.bounds  # part 0 owns rows 0 to 4, part 1 rows 5 to 9
        ((0, 5, 10),)
        >>> manifest.num_features("node"), manifest.num_classes
        (3, 2)
    """

    schema: GraphSchema
    num_parts: int
    num_nodes: tuple[int, ...]
    num_edges: tuple[int, ...]
    bounds: tuple[tuple[int, ...], ...]
    id_dtype: str
    edge_id_dtype: str
    num_classes: int | None
    target_type: NodeType | None
    splits: Mapping[str, SplitEntry]
    arrays: Mapping[str, ArrayEntry]
    made_by: Mapping[str, Any] = field(default_factory=dict)
    hotness: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    encodings: Mapping[str, EncodingEntry] = field(default_factory=dict)
    normalization: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    num_categories: Mapping[NodeType, tuple[int, ...]] = field(default_factory=dict)
    num_edge_categories: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    edge_labels: Mapping[int, EdgeLabelEntry] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    edge_splits: Mapping[str, EdgeSplitEntry] = field(default_factory=dict)
    row_order: RowOrder | None = None
    edge_columns: tuple[EdgeColumns, ...] | None = None
    of_version: int | None = None

    @property
    def base_parts(self) -> int:
        """Number of parts without those of an overlay: its part ``base_parts`` + p is where part p is."""
        return self.num_parts if self.of_version is None else self.num_parts // 2

    @property
    def options_hash(self) -> str:
        return options_hash(self.made_by)

    def files_of(self, parts: Sequence[int] | None) -> dict[str, ArrayEntry]:
        """Returns the files of some parts, and those that all hosts need; None: all. Raises `OptionError` for parts that do not
        exist."""
        if parts is None:
            return dict(self.arrays)
        unknown = sorted(set(parts) - set(range(self.num_parts)))
        if unknown or not parts:
            raise OptionError(f"parts: expected numbers from 0 to {self.num_parts - 1}, got {list(parts)}.")
        own = {f"part{p}" for p in parts}
        heads = {path: path.split("/")[0] for path in self.arrays}
        return {
            path: entry
            for path, entry in self.arrays.items()
            if heads[path] in own or not heads[path].startswith("part")
        }

    def with_parts(self, arrays: Mapping[str, ArrayEntry]) -> Manifest:
        """Adds the arrays of all parts, and counts their edges."""
        num_edges = (
            sum(arrays[edge_path(p, r, "indices")].shape[0] for p in range(self.num_parts))
            for r in range(len(self.schema.edge_types))
        )
        return replace(self, arrays={**self.arrays, **arrays}, num_edges=tuple(num_edges))

    @property
    def offsets(self) -> tuple[int, ...]:
        """First gid of each node type, and the number of all nodes: T + 1 numbers."""
        return (0, *(int(n) for n in np.cumsum(self.num_nodes, dtype=np.int64)))

    @property
    def total_nodes(self) -> int:
        return sum(self.num_nodes)

    def rows(self, part: int, node_type: int) -> int:
        """Returns the number of nodes of a type that a part owns."""
        return self.bounds[node_type][part + 1] - self.bounds[node_type][part]

    def part_of(self, node_type: int, gids: np.ndarray) -> np.ndarray:
        """Returns int64 [n]: the parts that own nodes of a type."""
        bounds = np.asarray(self.bounds[node_type][1:-1], dtype=np.int64) + self.offsets[node_type]
        return np.asarray(np.searchsorted(bounds, gids, side="right"))

    @property
    def given_edge_types(self) -> dict[EdgeType, int]:
        """The types of the user's edges and their indices: without the types that ``undirected`` made of them."""
        columns = self.edge_columns
        return {
            e: r for r, e in enumerate(self.schema.edge_types) if columns is None or columns[r].reverse_of in (None, r)
        }

    def edges(self, part: int, edge_type: int) -> int:
        """Returns the number of edges of a type that a part stores."""
        return self.arrays[edge_path(part, edge_type, "indices")].shape[0]

    def node_attrs(self, node_type: int) -> tuple[str, ...]:
        """Names of the node attributes of a type, without ``n_id`` and ``hotness``."""
        return self._names(node_path(0, node_type, ""), {"n_id", "hotness"})

    def edge_attrs(self, edge_type: int) -> tuple[str, ...]:
        """Names of the edge attributes of a type, without the structure arrays and the prefix sums of weights."""
        structure = {"indptr", "indices", "edge_ids"} | ({TIMES} if self.is_timed(edge_type) else set())
        names = self._names(edge_path(0, edge_type, ""), structure)
        return tuple(name for name in names if not name.endswith(_CUM))

    def is_timed(self, edge_type: int) -> bool:
        """Tells whether the edges of a type have times, by which their rows are ordered."""
        return self.row_order is not None and edge_type in self.row_order.edge_types

    def require_times(self) -> None:
        """Raises `DataError` unless some edge type `is_timed`."""
        if self.row_order is None or not self.row_order.edge_types:
            raise DataError(
                "times: no edge type of this partition has times. Set partition.time_attr and partition again."
            )

    def weights(self, edge_type: int) -> tuple[str, ...]:
        """Names of the edge attributes of a type that edges can be sampled by: those with `cum_name`."""
        return tuple(
            name for name in self.edge_attrs(edge_type) if edge_path(0, edge_type, cum_name(name)) in self.arrays
        )

    def edge_rows(self, edge_type: int) -> tuple[str, ...]:
        """Names of all arrays with a row for each edge of a type that other processes may ask for."""
        times = (TIMES,) if self.is_timed(edge_type) else ()
        return ("edge_ids", *self.edge_attrs(edge_type), *map(cum_name, self.weights(edge_type)), *times)

    def require_weights(self, weights: Sequence[str | None]) -> None:
        """Raises `DataError` unless ``weights`` are empty, or for each edge type None or one of its `weights`."""
        edge_types = self.schema.edge_types
        if weights and len(weights) != len(edge_types):
            raise DataError(f"weights: expected one for each of {len(edge_types)} edge types, got {len(weights)}.")
        for r, name in enumerate(weights):
            if name is not None and name not in self.weights(r):
                raise DataError(
                    f"weights: edges of type {edge_type_str(edge_types[r])} have no prefix sums of {name!r:.50}; they have those "
                    f"of: {', '.join(self.weights(r)) or 'no attribute'}. Name the attribute in partition.weights."
                )

    def decoded_by(self, kind: str, index: int, name: str) -> Encoding | None:
        """Returns the encoding by which gathered rows of an attribute are decoded; None if batches have the stored form. kind:
        nodes or edges.  index: the type's in the schema."""
        entry = self.encodings.get(attr_key(kind, index, name))
        return ENCODINGS[entry.stored] if entry is not None and entry.given == "float32" else None

    def is_bfloat16(self, kind: str, index: int, name: str) -> bool:
        """Tells whether the uint16 values of an attribute are bfloat16."""
        entry = self.encodings.get(attr_key(kind, index, name))
        return entry is not None and entry.given == "bfloat16"

    @property
    def remote_policies(self) -> tuple[str, ...]:
        """The policies by which the folder ranks remote rows, in the order of ``hotness``."""
        listed = {found[1] for path in self.arrays if (found := _LISTS.fullmatch(path))}
        return tuple(policy for policy in self.hotness if policy in listed)

    def with_edge_types(self, edge_types: Sequence[EdgeType]) -> Manifest:
        """Returns the manifest of the same nodes with these edge types, none of which has a stored edge."""
        schema = replace(self.schema, edge_types=tuple(edge_types))
        stored = {path: entry for path, entry in self.arrays.items() if "/edges/" not in path}
        none = ArrayEntry("<i4", (0,), 0, 0)
        empty = {edge_path(p, r, "indices"): none for r in range(len(schema.edge_types)) for p in range(self.num_parts)}
        num_edges = (0,) * len(schema.edge_types)
        return replace(self, schema=schema, num_edges=num_edges, arrays=stored | empty, edge_splits={}, row_order=None)

    @cached_property
    def as_stored(self) -> Manifest:
        """The same partition with attributes as they are stored, not decoded; except ``int8``, whose values are meaningless
        without the scale of their row."""
        encodings = {}
        for key, entry in self.encodings.items():
            if ENCODINGS[entry.stored].head:
                encodings[key] = entry
            elif entry.stored == "bfloat16":
                encodings[key] = EncodingEntry("bfloat16", "bfloat16")
        return replace(self, encodings=encodings)

    def num_features(self, node_type: NodeType) -> int | None:
        """Returns the width of ``x``; ``None`` for a type without it, 1 for a one-dimensional ``x``."""
        t = self.schema.node_index(node_type)
        entry = self.arrays.get(node_path(0, t, "x"))
        if entry is None:
            return None
        encoding = self.decoded_by("nodes", t, "x")
        shape = entry.shape[1:] if encoding is None else encoding.row_shape(entry.shape[1:])
        return shape[0] if shape else 1

    def edge_width(self, edge_type: int, name: str) -> int | None:
        """Returns the width of an edge attribute, 1 for a one-dimensional one; ``None`` for edges without it."""
        entry = self.arrays.get(edge_path(0, edge_type, name))
        if entry is None:
            return None
        encoding = self.decoded_by("edges", edge_type, name)
        shape = entry.shape[1:] if encoding is None else encoding.row_shape(entry.shape[1:])
        return math.prod(shape)

    def edge_bounds(self, edge_type: int) -> np.ndarray:
        """Returns int64 [P + 1]: the edge row of each part's first edge of a type, and their number."""
        return np.cumsum([0, *(self.edges(p, edge_type) for p in range(self.num_parts))], dtype=np.int64)

    def _names(self, pattern: str, reserved: set[str]) -> tuple[str, ...]:
        folder = pattern.removesuffix(".npy")
        names = {path[len(folder) : -4] for path in self.arrays if path.startswith(folder)}
        return tuple(sorted(names - reserved))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "num_parts": self.num_parts,
            "homogeneous": self.schema.homogeneous,
            "node_types": list(self.schema.node_types),
            "edge_types": [list(e) for e in self.schema.edge_types],
            "edge_direction": "in",
            "num_nodes": list(self.num_nodes),
            "num_edges": list(self.num_edges),
            "bounds": [list(b) for b in self.bounds],
            "id_dtype": self.id_dtype,
            "edge_id_dtype": self.edge_id_dtype,
            "num_classes": self.num_classes,
            "target_type": self.target_type,
            "splits": {k: s.to_json() for k, s in sorted(self.splits.items())},
            "arrays": {path: entry.to_json() for path, entry in sorted(self.arrays.items())},
            "made_by": dict(self.made_by),
            "hotness": {k: dict(v) for k, v in self.hotness.items()},
            **({"encodings": {k: asdict(e) for k, e in sorted(self.encodings.items())}} if self.encodings else {}),
            **(
                {"normalization": {str(t): dict(each) for t, each in sorted(self.normalization.items())}}
                if self.normalization
                else {}
            ),
            **({"num_categories": {t: list(c) for t, c in self.num_categories.items()}} if self.num_categories else {}),
            **(
                {"num_edge_categories": {str(r): list(c) for r, c in sorted(self.num_edge_categories.items())}}
                if self.num_edge_categories
                else {}
            ),
            **(
                {"edge_labels": {str(r): each.to_json() for r, each in sorted(self.edge_labels.items())}}
                if self.edge_labels
                else {}
            ),
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **(
                {"edge_splits": {k: asdict(e) for k, e in sorted(self.edge_splits.items())}} if self.edge_splits else {}
            ),
            **({} if self.row_order is None else {"row_order": self.row_order.to_json()}),
            **({} if self.edge_columns is None else {"edge_columns": [asdict(e) for e in self.edge_columns]}),
            **({} if self.of_version is None else {"of_version": self.of_version}),
            "options_hash": self.options_hash,
        }

    def save(self, folder: str | Path) -> None:
        """Writes ``folder/manifest.json`` in one step: a reader sees the old file, the new one, or none."""
        path = Path(folder) / MANIFEST
        temporary = path.with_suffix(f".tmp-{os.getpid()}")
        temporary.unlink(missing_ok=True)
        # "x" follows no link that another user may have put there
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(self.to_json(), indent=1) + "\n")
        os.replace(temporary, path)

    @classmethod
    def load(cls, folder: str | Path) -> Manifest:
        """Reads and checks ``folder/manifest.json``. Raises `PartitionError` with the file and the fault."""
        path = Path(folder) / MANIFEST
        manifest = cls.parse(read_json(path), str(path))
        if manifest.of_version is not None:
            raise PartitionError(f"{path}: of_version: no folder has an overlay, so the file was edited.")
        return manifest

    @classmethod
    def parse(cls, raw: Mapping[str, Any], where: str) -> Manifest:
        """Parses and checks a manifest: the inverse of `to_json`. Raises `PartitionError` with ``where`` (the source) and the
        reason."""
        try:
            require(isinstance(raw, Mapping), "it is not a JSON object")
            require(raw.get("format") == FORMAT, f"it is not a partition manifest (format {raw.get('format')!r})")
            require(
                raw.get("version") in READABLE,
                f"it has version {raw.get('version')!r}, this release reads versions 2 and 3; partition again",
            )
            checked(raw)
            manifest = cls.from_json(raw)
            require(
                raw["options_hash"] == manifest.options_hash,
                "options_hash does not match made_by: the file was edited or is damaged",
            )
        except PartitionError as error:
            raise PartitionError(f"{where}: {error}.") from None
        return manifest

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Manifest:
        """Parses a manifest without checks, for values that this package wrote in this run: the inverse of `to_json`."""
        edge_types: tuple[EdgeType, ...] = tuple((e[0], e[1], e[2]) for e in raw["edge_types"])
        return cls(
            schema=GraphSchema(tuple(raw["node_types"]), edge_types, raw["homogeneous"]),
            num_parts=raw["num_parts"],
            num_nodes=tuple(raw["num_nodes"]),
            num_edges=tuple(raw["num_edges"]),
            bounds=tuple(tuple(b) for b in raw["bounds"]),
            id_dtype=raw["id_dtype"],
            edge_id_dtype=raw["edge_id_dtype"],
            num_classes=raw["num_classes"],
            target_type=raw["target_type"],
            splits={k: SplitEntry(s["node_type"], s["count"], s.get("ids_hash")) for k, s in raw["splits"].items()},
            arrays={path: ArrayEntry.from_json(entry) for path, entry in raw["arrays"].items()},
            made_by=raw["made_by"],
            hotness=raw["hotness"],
            encodings={k: EncodingEntry(e["stored"], e["given"]) for k, e in raw.get("encodings", {}).items()},
            normalization={int(t): each for t, each in raw.get("normalization", {}).items()},
            num_categories={t: tuple(counts) for t, counts in raw.get("num_categories", {}).items()},
            num_edge_categories={int(r): tuple(c) for r, c in raw.get("num_edge_categories", {}).items()},
            edge_labels={int(r): EdgeLabelEntry.from_json(each) for r, each in raw.get("edge_labels", {}).items()},
            class_names=None if raw.get("class_names") is None else tuple(raw["class_names"]),
            edge_splits={k: EdgeSplitEntry(e["count"], e["digest"]) for k, e in raw.get("edge_splits", {}).items()},
            row_order=RowOrder.from_json(raw.get("row_order")),
            edge_columns=None
            if raw.get("edge_columns") is None
            else tuple(EdgeColumns(e["count"], e["reverse_of"]) for e in raw["edge_columns"]),
            of_version=raw.get("of_version"),
        )
