"""Checks of a manifest. Each refuses one violation of a fact that later code relies on."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import PartitionError
from glt_lightning.graph.regular_file import open_regular, parse_json
from glt_lightning.graph.row_order import TIMES
from glt_lightning.kernels import ENCODINGS

_ARRAY_PATH = re.compile(
    r"(splits|tables|nodes/[0-9]+|edge_splits/[0-9]+/(train|val|test)|part[0-9]+/(nodes|edges|hot/[a-z]+)/[0-9]+)"
    r"/[A-Za-z_][A-Za-z0-9_]*(?P<sums>\.cum)?\.npy"
)
_Folders = dict[str, dict[str, Any]]
_STRUCTURE = {"n_id", "hotness", "indptr", "indices", "edge_ids"}
CHUNK_BYTES = 64 << 20  # of the data of an array, after its header; what a broken copy fetches again
MOST_CLASSES = 2**31 - 1  # larger labels are ids or times rather than classes
# Array of a split of edges -> whether it has the right shape for a number of edges.
_EDGE_SPLIT: dict[str, Callable[[list[int], int], bool]] = {
    "edge": lambda shape, count: shape == [2, count],
    "label": lambda shape, count: shape[0] == count,
    "time": lambda shape, count: shape == [count],
    "negatives": lambda shape, count: len(shape) == 2 and shape[0] == count,
    "source_negatives": lambda shape, count: len(shape) == 2 and shape[0] == count,
    "negative_edges": lambda shape, count: len(shape) == 2 and shape[0] == 2,
    "attr": lambda shape, count: len(shape) == 2 and shape[0] == count,
    "codes": lambda shape, count: len(shape) == 2 and shape[0] == count,
}
_ID_DTYPES = {"int32": "<i4", "int64": "<i8"}


def require(condition: bool, message: str) -> None:
    if not condition:
        raise PartitionError(message)


def checked(raw: Mapping[str, Any]) -> None:
    """Checks every field of a parsed manifest; raises `PartitionError` without the file's name."""
    for key, (test, expected) in _FIELDS.items():
        require(key in raw, f"key {key!r} is missing")
        require(test(raw[key]), f"{key}: expected {expected}, found {_short(raw[key])}")
    version = raw.get("of_version")
    good = version is None or (_count(version) and raw["num_parts"] % 2 == 0)
    require(good, f"of_version: it is damaged: {_short(version)}")
    _check_types(raw)
    _check_bounds(raw)
    _check_array_entries(raw)
    folders = _by_folder(raw["arrays"])
    _check_nodes(raw, folders)
    _check_edges(raw, folders)
    _check_splits(raw, folders.get("splits", {}))
    _check_edge_splits(raw, folders)
    _check_edge_labels(raw)
    _check_row_order(raw, folders)
    _check_edge_columns(raw)
    _check_gids(raw, folders)
    _check_hot(raw, folders)
    _check_encodings(raw, folders)
    _check_normalization(raw, folders)
    _check_categories(raw, folders)
    _check_class_names(raw)
    _check_tables(folders.get("tables", {}), raw["num_nodes"])


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _edge_type(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_text, value))


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_parts": (lambda v: _count(v) and v >= 1, "an integer >= 1"),
    "homogeneous": (lambda v: isinstance(v, bool), "true or false"),
    "node_types": (lambda v: _list_of(_text)(v) and len(v) > 0, "a list of names"),
    "edge_types": (_list_of(_edge_type), "a list of [source, relation, destination]"),
    "edge_direction": (lambda v: v == "in", "'in'"),
    "num_nodes": (_list_of(_count), "a list of counts"),
    "num_edges": (_list_of(_count), "a list of counts"),
    "bounds": (_list_of(_list_of(_count)), "a list of lists of counts"),
    "id_dtype": (lambda v: _text(v) and v in _ID_DTYPES, "'int32' or 'int64'"),
    "edge_id_dtype": (lambda v: _text(v) and v in _ID_DTYPES, "'int32' or 'int64'"),
    "num_classes": (lambda v: v is None or (_count(v) and v <= MOST_CLASSES), f"a count up to {MOST_CLASSES} or null"),
    "target_type": (lambda v: v is None or _text(v), "a node type or null"),
    "splits": (lambda v: isinstance(v, dict), "an object"),
    "arrays": (lambda v: isinstance(v, dict), "an object"),
    "made_by": (lambda v: isinstance(v, dict), "an object"),
    "hotness": (lambda v: isinstance(v, dict) and all(isinstance(e, dict) for e in v.values()), "an object of objects"),
    "options_hash": (_text, "a hash"),
}


def _check_types(raw: Mapping[str, Any]) -> None:
    nodes, edges = raw["node_types"], raw["edge_types"]
    require(nodes == sorted(set(nodes)), "node_types: names are not sorted or not unique")
    require(edges == [list(e) for e in sorted({tuple(e) for e in edges})], "edge_types: not sorted or not unique")
    for source, relation, destination in edges:
        known = source in nodes and destination in nodes
        require(known, f"edge_types: {[source, relation, destination]} names a node type that is not in node_types")
    if raw["homogeneous"]:
        require(len(nodes) == 1 and len(edges) == 1, "homogeneous: true, but there is more than one node or edge type")
    require(raw["target_type"] in (None, *nodes), f"target_type: {raw['target_type']!r} is not in node_types")


def _check_bounds(raw: Mapping[str, Any]) -> None:
    for key, types in (("num_nodes", "node_types"), ("bounds", "node_types"), ("num_edges", "edge_types")):
        require(len(raw[key]) == len(raw[types]), f"{key}: {len(raw[key])} entries for {len(raw[types])} {types}")
    for name, count, bounds in zip(raw["node_types"], raw["num_nodes"], raw["bounds"], strict=True):
        good = len(bounds) == raw["num_parts"] + 1 and bounds == sorted(bounds)
        good = good and bounds[0] == 0 and bounds[-1] == count
        require(good, f"bounds: those of node type {name!r} do not divide {count} nodes into {raw['num_parts']} parts")


def _check_array_entries(raw: Mapping[str, Any]) -> None:
    for path, entry in raw["arrays"].items():
        found = _ARRAY_PATH.fullmatch(path)
        known = found is not None and (not found["sums"] or "/edges/" in path)
        require(known, f"arrays: {_short(path)} is not a path of this format")
        good = isinstance(entry, dict) and _list_of(_count)(entry.get("shape")) and len(entry["shape"]) > 0
        good = good and _count(entry.get("bytes")) and _count(entry.get("crc32")) and _is_dtype(entry.get("dtype"))
        require(good, f"arrays: the entry of {path} is damaged: {_short(entry)}")
        size = int(np.dtype(entry["dtype"]).itemsize) * _product(entry["shape"])
        require(
            size < entry["bytes"], f"arrays: {path} has {entry['bytes']} bytes, its shape {entry['shape']} needs more"
        )
        chunks = entry.get("chunks")
        good = chunks is None or (
            isinstance(chunks, list) and len(chunks) == -(-size // CHUNK_BYTES) and all(map(_digest, chunks))
        )
        require(good, f"arrays: the chunks of {path} are damaged: {_short(chunks)}")


def _digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def _is_dtype(value: object) -> bool:
    """Tells whether a value is numpy's string for a little-endian number or boolean."""
    try:
        dtype = np.dtype(value) if isinstance(value, str) else None
    except (TypeError, ValueError, SyntaxError):
        return False
    return dtype is not None and dtype.kind in "biuf" and dtype.newbyteorder("<").str == value


def _base_parts(raw: Mapping[str, Any]) -> int:
    """Returns the number of parts without those of an overlay."""
    return int(raw["num_parts"]) // (1 if raw.get("of_version") is None else 2)


def _check_nodes(raw: Mapping[str, Any], arrays: _Folders) -> None:
    for t, bounds in enumerate(raw["bounds"]):
        rows = [bounds[p + 1] - bounds[p] for p in range(raw["num_parts"])]
        folders = [arrays.get(f"part{p}/nodes/{t}", {}) for p in range(raw["num_parts"])]
        _check_same_names(f"nodes of type {raw['node_types'][t]!r}", folders, {"n_id"})
        for p, folder in enumerate(folders):
            for name, entry in folder.items():
                _check_entry(f"part{p}/nodes/{t}/{name}.npy", entry, folders[0][name], rows[p])
            _check_vector(f"part{p}/nodes/{t}/n_id.npy", folder["n_id"], _ID_DTYPES[raw["id_dtype"]], rows[p])


def _check_edges(raw: Mapping[str, Any], arrays: _Folders) -> None:
    for r, (edge_type, count) in enumerate(zip(raw["edge_types"], raw["num_edges"], strict=True)):
        bounds = raw["bounds"][raw["node_types"].index(edge_type[2])]
        folders = [arrays.get(f"part{p}/edges/{r}", {}) for p in range(raw["num_parts"])]
        _check_same_names(f"edges of type {edge_type}", folders, {"indptr", "indices", "edge_ids"})
        for p, folder in enumerate(folders):
            prefix, edges = f"part{p}/edges/{r}/", folder["indices"]["shape"][0]
            for name in sorted(set(folder) - {"indptr"}):
                _check_entry(f"{prefix}{name}.npy", folder[name], folders[0][name], edges)
            rows = bounds[p + 1] - bounds[p]
            if p >= _base_parts(raw):  # and the rows that are read in place of those of the base
                rows = max(rows, _product(folder["indptr"]["shape"]) - 1)
            _check_vector(prefix + "indptr.npy", folder["indptr"], "<i8", rows + 1)
            _check_vector(prefix + "indices.npy", folder["indices"], _ID_DTYPES[raw["id_dtype"]], edges)
            _check_vector(prefix + "edge_ids.npy", folder["edge_ids"], _ID_DTYPES[raw["edge_id_dtype"]], edges)
            for name in (name for name in folder if name.endswith(".cum")):
                require(name.removesuffix(".cum") in folder, f"arrays: {prefix}{name}.npy are sums of no attribute")
                _check_vector(f"{prefix}{name}.npy", folder[name], "<i4", edges)
        total = sum(folder["indices"]["shape"][0] for folder in folders)
        good = total == count or (total > count and _base_parts(raw) < raw["num_parts"])  # replaced rows come twice
        require(good, f"num_edges: {count} edges of type {edge_type}, but the parts have {total}")


def _check_edge_columns(raw: Mapping[str, Any]) -> None:
    columns, types = raw.get("edge_columns"), raw["edge_types"]
    if columns is None:
        return
    good = isinstance(columns, list) and len(columns) == len(types)
    good = good and all(isinstance(c, dict) and _count(c.get("count")) for c in columns)
    good = good and all("reverse_of" in c and (c["reverse_of"] is None or _count(c["reverse_of"])) for c in columns)
    require(good, f"edge_columns: it is damaged: {_short(columns)}")
    for edge_type, of in zip(types, (c["reverse_of"] for c in columns), strict=True):
        source, _, destination = types[of] if of is not None and of < len(types) else (None, None, None)
        good = of is None or (edge_type[0], edge_type[2]) == (destination, source)
        require(good, f"edge_columns: {edge_type} cannot have the reverses of edge type {of}")


def _check_row_order(raw: Mapping[str, Any], folders: _Folders) -> None:
    order = raw.get("row_order")
    if order is None:
        return
    good = isinstance(order, dict) and _text(order.get("time_attr")) and order.get("of") in ("nodes", "edges")
    good = good and _list_of(_count)(types := order.get("edge_types")) and types == sorted(set(types))
    require(good and all(r < len(raw["edge_types"]) for r in types), f"row_order: it is damaged: {_short(order)}")
    for r in types:
        source = raw["node_types"].index(raw["edge_types"][r][0])
        owner = f"edges/{r}" if order["of"] == "edges" else f"nodes/{source}"
        require(
            order["time_attr"] in folders[f"part0/{owner}"],
            f"row_order: {owner} has no attribute {_short(order['time_attr'])}",
        )
        for p in range(raw["num_parts"]):
            path, folder = f"part{p}/edges/{r}/{TIMES}.npy", folders[f"part{p}/edges/{r}"]
            require(TIMES in folder, f"arrays: {path} is missing")
            _check_vector(path, folder[TIMES], "<i8", folder["indices"]["shape"][0])


def _check_splits(raw: Mapping[str, Any], arrays: dict[str, Any]) -> None:
    require(set(arrays) == set(raw["splits"]), "splits: the names do not match the arrays of the folder splits/")
    for name, split in raw["splits"].items():
        good = isinstance(split, dict) and split.get("node_type") in raw["node_types"] and _count(split.get("count"))
        good = good and (split.get("ids_hash") is None or _text(split["ids_hash"]))
        require(good, f"splits: the entry of {name!r} is damaged: {_short(split)}")
        _check_vector(f"splits/{name}.npy", arrays[name], "<i8", split["count"])


def _check_edge_splits(raw: Mapping[str, Any], folders: _Folders) -> None:
    given = raw.get("edge_splits", {})
    require(isinstance(given, dict), f"edge_splits: expected an object, found {_short(given)}")
    stored = {folder.removeprefix("edge_splits/") for folder in folders if folder.startswith("edge_splits/")}
    require(stored == set(given), "edge_splits: the names do not match the folders in edge_splits/")
    for key, entry in given.items():
        good = isinstance(entry, dict) and _count(entry.get("count")) and _text(entry.get("digest"))
        require(
            good and int(key.split("/")[0]) < len(raw["edge_types"]), f"edge_splits: the entry of {key!r} is damaged"
        )
        arrays, count = folders[f"edge_splits/{key}"], entry["count"]
        require("edge" in arrays and set(arrays) <= set(_EDGE_SPLIT), f"arrays: edge_splits/{key} has {sorted(arrays)}")
        for name, array in arrays.items():
            kind = array["dtype"] if name == "label" else "<f4" if name == "attr" else "<i8"
            good = _EDGE_SPLIT[name](array["shape"], count) and array["dtype"] == kind
            require(
                good, f"arrays: edge_splits/{key}/{name}.npy is {array['dtype']} {array['shape']} for {count} edges"
            )


def _check_edge_labels(raw: Mapping[str, Any]) -> None:
    given = raw.get("edge_labels", {})
    require(isinstance(given, dict), f"edge_labels: expected an object, found {_short(given)}")
    for key, entry in given.items():
        good = f"{key}/train" in raw.get("edge_splits", {}) and isinstance(entry, dict)
        good = good and set(entry) == {"num_classes", "class_names"}
        good = good and (entry["num_classes"] is None or _count(entry["num_classes"]))
        good = good and (entry["class_names"] is None or _list_of(_text)(entry["class_names"]))
        require(good, f"edge_labels: the entry of {key!r} is damaged: {_short(entry)}")


def _check_gids(raw: Mapping[str, Any], arrays: _Folders) -> None:
    expected = {f"nodes/{t}" for t in range(len(raw["node_types"]))}
    found = {folder for folder in arrays if folder.startswith("nodes/")}
    require(found in (set(), expected), f"arrays: the folder nodes/ has {sorted(found)}, expected {sorted(expected)}")
    for t, count in enumerate(raw["num_nodes"]) if found else ():
        files = arrays[f"nodes/{t}"]
        timed = _has_times(raw, arrays, t)
        expected = {"gid", TIMES} if timed else {"gid"}
        require(
            set(files) - {"deleted"} == expected,
            f"arrays: nodes/{t} has {sorted(files)}, expected {', '.join(sorted(expected))}",
        )
        _check_vector(f"nodes/{t}/gid.npy", files["gid"], _ID_DTYPES[raw["id_dtype"]], count)
        if timed:
            _check_vector(f"nodes/{t}/{TIMES}.npy", files[TIMES], "<i8", count)
        if "deleted" in files:
            deleted = files["deleted"]
            _check_vector(f"nodes/{t}/deleted.npy", deleted, "<i8", min(count, _product(deleted["shape"])))


def _has_times(raw: Mapping[str, Any], arrays: _Folders, node_type: int) -> bool:
    order = raw.get("row_order") or {}
    return order.get("of") == "nodes" and order["time_attr"] in arrays[f"part0/nodes/{node_type}"]


def _check_hot(raw: Mapping[str, Any], arrays: _Folders) -> None:
    kinds = {folder.split("/")[2] for folder in arrays if "/hot/" in folder}
    require(
        kinds <= set(raw["hotness"]), f"hotness: the entry of one of the rankings {', '.join(sorted(kinds))} is missing"
    )
    num_parts = _base_parts(raw)
    places = itertools.product(range(num_parts if num_parts > 1 else 0), range(len(raw["node_types"])))
    expected = {f"part{p}/hot/{kind}/{t}" for p, t in places for kind in kinds}
    found = {folder for folder in arrays if "/hot/" in folder}
    require(
        found <= expected,
        f"arrays: {min(found - expected, default=None)} belongs to no part or node type of this graph",
    )
    require(found == expected, f"arrays: {min(expected - found, default=None)} is missing")
    for folder, files in arrays.items():
        if "/hot/" in folder:
            require(set(files) == {"gids", "hotness"}, f"arrays: {folder} has {sorted(files)}, expected gids, hotness")
            rows = files["gids"]["shape"][0]
            _check_vector(f"{folder}/gids.npy", files["gids"], _ID_DTYPES[raw["id_dtype"]], rows)
            _check_vector(f"{folder}/hotness.npy", files["hotness"], "<f4", rows)


def _check_encodings(raw: Mapping[str, Any], arrays: _Folders) -> None:
    encodings = raw.get("encodings", {})
    require(isinstance(encodings, dict), f"encodings: expected an object, found {_short(encodings)}")
    for key, entry in encodings.items():
        folder, _, name = key.rpartition("/")
        array = arrays.get(f"part0/{folder}", {}).get(name, {})
        attribute = bool(array) and name not in _STRUCTURE and not folder.startswith("hot")
        require(attribute, f"encodings: {_short(key)} is not an attribute")
        stored, given = (entry.get("stored"), entry.get("given")) if isinstance(entry, dict) else (None, None)
        encoding = ENCODINGS.get(str(stored))
        if encoding is None or not (given == "float32" or given == stored == "bfloat16"):
            raise PartitionError(f"encodings: the entry of {key} is unknown to this release: {_short(entry)}")
        row = array["shape"][1:]
        good = array["dtype"] == encoding.dtype.str
        good = good and (not encoding.head or (len(row) == 1 and row[0] >= encoding.head))
        require(good, f"encodings: {key} is {array['dtype']} {array['shape']}, which cannot store {stored}")


def _check_normalization(raw: Mapping[str, Any], arrays: _Folders) -> None:
    given = raw.get("normalization", {})
    require(isinstance(given, dict), f"normalization: expected an object, found {_short(given)}")
    known = {str(t) for t in range(len(raw["node_types"])) if "x" in arrays.get(f"part0/nodes/{t}", {})}
    numbers = _list_of(lambda each: isinstance(each, (int, float)) and math.isfinite(each))
    for key, entry in given.items():
        good = key in known and isinstance(entry, dict) and set(entry) == {"rows", "shift", "scale"}
        good = good and isinstance(entry["rows"], bool) and numbers(entry["shift"]) and numbers(entry["scale"])
        good = good and len(entry["shift"]) == len(entry["scale"]) and (not entry["rows"] or len(entry["shift"]) == 1)
        require(good, f"normalization: the entry of {key!r} is damaged: {_short(entry)}")


def _check_categories(raw: Mapping[str, Any], arrays: _Folders) -> None:
    of_nodes = {t: f"nodes/{number}" for number, t in enumerate(raw["node_types"])}
    of_edges = {str(number): f"edges/{number}" for number in range(len(raw["edge_types"]))}
    for key, name, folders in (
        ("num_categories", "x_codes", of_nodes),
        ("num_edge_categories", "edge_codes", of_edges),
    ):
        given = raw.get(key, {})
        require(isinstance(given, dict), f"{key}: expected an object, found {_short(given)}")
        for each, counts in given.items():
            known = "node_types" if key == "num_categories" else "edge_types"
            require(each in folders, f"{key}: {_short(each)} is not in {known}")
            good = _list_of(lambda v: _count(v) and v >= 1)(counts) and len(counts) > 0
            require(good, f"{key}: of {each!r}: expected counts >= 1, found {_short(counts)}")
            codes = arrays[f"part0/{folders[each]}"].get(name, {})
            good = bool(codes) and np.dtype(codes["dtype"]).kind in "iu" and codes["shape"][1:] == [len(counts)]
            require(good, f"{key}: of {each!r}: {name} is not an array of integers [rows, {len(counts)}]")


def _check_tables(arrays: dict[str, Any], num_nodes: list[int]) -> None:
    kinds = [{"numbers"}, {"ends", "bytes"}]
    known = {"encoding", *(f"ids{t}_{name}" for t in range(len(num_nodes)) for kind in kinds for name in kind)}
    require(set(arrays) <= known, f"arrays: tables/ has {sorted(set(arrays) - known)}")
    for t, count in enumerate(num_nodes):
        found = {name.partition("_")[2] for name in arrays if name.startswith(f"ids{t}_")}
        require(not found or found in kinds, f"arrays: tables/ has of the ids of node type {t} only {sorted(found)}")
        for name in found:
            entry, path = arrays[f"ids{t}_{name}"], f"tables/ids{t}_{name}.npy"
            _check_vector(path, entry, "|u1" if name == "bytes" else "<i8", _product(entry["shape"]))
            require(name == "bytes" or _product(entry["shape"]) <= count + 1, f"arrays: {path} has more ids than nodes")
    if "encoding" in arrays:
        _check_vector("tables/encoding.npy", arrays["encoding"], "|u1", _product(arrays["encoding"]["shape"]))


def _by_folder(arrays: dict[str, Any]) -> _Folders:
    """Groups entries: folder -> name of the array -> entry."""
    folders: _Folders = {}
    for path, entry in arrays.items():
        folder, _, file = path.rpartition("/")
        folders.setdefault(folder, {})[file.removesuffix(".npy")] = entry
    return folders


def _check_same_names(owner: str, folders: list[dict[str, Any]], needed: Iterable[str]) -> None:
    for p, folder in enumerate(folders):
        missing = sorted((set(needed) | set(folders[0])) - set(folder))
        require(not missing, f"arrays: part {p} lacks {', '.join(missing)} of the {owner}")
        extra = sorted(set(folder) - set(folders[0]))
        require(not extra, f"arrays: part {p} has {', '.join(extra)} of the {owner}, which part 0 lacks")


def _check_entry(path: str, entry: dict[str, Any], first: dict[str, Any], rows: int) -> None:
    good = entry["dtype"] == first["dtype"] and entry["shape"][1:] == first["shape"][1:]
    require(good, f"arrays: {path} differs in dtype or width from part 0")
    require(entry["shape"][0] == rows, f"arrays: {path} has {entry['shape'][0]} rows, expected {rows}")


def _check_vector(path: str, entry: dict[str, Any], dtype: str, rows: int) -> None:
    good = entry["dtype"] == dtype and entry["shape"] == [rows]
    require(good, f"arrays: {path} is {entry['dtype']} {entry['shape']}, expected {dtype} [{rows}]")


def _product(shape: list[int]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_class_names(raw: Mapping[str, Any]) -> None:
    names = raw.get("class_names")
    good = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    require(good, f"class_names: expected a list of names, found {_short(names)}")
    require(
        names is None or len(names) == raw["num_classes"],
        f"class_names: {0 if names is None else len(names)} names for {raw['num_classes']} classes",
    )


def read_json(path: Path) -> dict[str, Any]:
    """Reads the JSON object in a file. Raises `PartitionError`, with the file, if it has none."""
    try:
        with open_regular(path) as stream:
            raw = parse_json(stream.read())
    except FileNotFoundError:
        reason = "the folder is not a partition" if path.parent.is_dir() else "there is no such folder"
        raise PartitionError(f"{path}: not found; {reason}. Check the path, or run the partition command.") from None
    except (OSError, ValueError) as error:
        raise PartitionError(
            f"{path}: cannot be read as JSON ({error}). Delete the folder and partition again."
        ) from None
    if not isinstance(raw, dict):
        raise PartitionError(
            f"{path}: expected a JSON object, found {type(raw).__name__}. Delete the folder and partition again."
        )
    return raw
