"""The partition folders of DGL, read by the user's own DGL: its files are in a binary form of its own."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from glt_lightning.base import EDGE, NODE, DataError, EdgeType, OptionError
from glt_lightning.compat.others.pieces import ENDS, ForeignPartition, NamedArrays, PartRows
from glt_lightning.graph import open_regular, parse_json
from glt_lightning.partition import ArraySource

_SCRIPT = Path(__file__).with_name("dgl_export.py")
_ALONE = ("_N", "_E")  # DGL's names of the types of a graph without types


def read_dgl(folder: Path, python: str | None, timeout_s: float) -> ForeignPartition:
    """folder: with the JSON file of the partition, or that file.  python: an interpreter that has the package dgl.

    Raises `OptionError` without an interpreter. DataError: if it cannot read the partition.
    """
    if python is None:
        raise OptionError("--python: not given. DGL's files are read by DGL: give the path of a Python that has it.")
    config = _config_of(folder)
    with tempfile.TemporaryDirectory(prefix="glt-dgl-") as out:
        try:
            # -I: neither the folder of the script nor the caller's PYTHONPATH, where modules may have DGL's names
            done = subprocess.run(
                [python, "-I", _SCRIPT, config, out], cwd=out, capture_output=True, text=True, timeout=timeout_s
            )
        except OSError as error:
            raise OptionError(f"--python: cannot run {python!r} ({error.strerror}).") from None
        except subprocess.TimeoutExpired:
            raise DataError(f"{config}: DGL has not read it in {timeout_s:g} s. Set --timeout_s.") from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            raise DataError(f"{config}: {python} cannot read it ({reason}).")
        try:
            return _read(Path(out))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, MemoryError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{config}: {python} has written no such parts as expected ({type(error).__name__}: {error}). Is its package dgl "
                "DGL's own?"
            ) from None


def _config_of(folder: Path) -> Path:
    if folder.is_file():
        return folder.resolve()
    found = [path for path in sorted(folder.glob("*.json")) if _names_parts(path)]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DataError(f"{folder}: expected one JSON file of a partition of DGL, found {names}. Give its path.")
    return found[0].resolve()


def _names_parts(path: Path) -> bool:
    try:
        with open_regular(path) as stream:
            return b'"part-0"' in stream.read()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Give the path of the partition's JSON file."
        ) from None


def _read(out: Path) -> ForeignPartition:
    meta = parse_json((out / "meta.json").read_bytes())
    if not meta["num_parts"]:
        raise ValueError("num_parts is 0")
    files = []
    for part in range(meta["num_parts"]):
        with np.load(out / f"part{part}.npz", allow_pickle=False) as file:
            files.append({name: file[name] for name in file.files})
    nodes = sorted({name.split("/")[1] for name in files[0] if name.startswith("node/")})
    edges = sorted({name.split("/")[1] for name in files[0] if name.startswith("edge/")})
    if not nodes or not edges:
        raise ValueError("there are no nodes, or no edges")
    homogeneous = nodes == [_ALONE[0]] and len(edges) == 1
    found = ForeignPartition(meta["name"], meta["num_parts"], homogeneous)
    ids = {t: _ids(files, f"node/{t}/") for t in nodes}
    for t in nodes:
        ours = NODE if homogeneous else t
        found.parts[ours] = np.empty(sum(map(len, ids[t])), np.int32)
        for part, (file, given) in enumerate(zip(files, ids[t], strict=True)):
            found.parts[ours][given] = part
            found.nodes.setdefault(ours, []).append(PartRows(given, _data(file, f"node/{t}/data/")))
    for name in edges:
        edge_type = EDGE if homogeneous else _edge_type(name)
        of = (_ALONE[0],) * 3 if homogeneous else edge_type
        user = [np.concatenate(ids[of[end]])[_order(files, of[end])] for end in (0, 2)]
        for file, given in zip(files, _ids(files, f"edge/{name}/"), strict=True):
            ends = file[f"edge/{name}/ends"]
            ends = np.stack([user[0][ends[:, 0]], user[1][ends[:, 1]]], axis=1)
            found.edges.setdefault(edge_type, []).append(
                PartRows(given, {ENDS: ends} | _data(file, f"edge/{name}/data/"))
            )
    return found


def _ids(files: list[dict[str, np.ndarray]], prefix: str) -> list[np.ndarray]:
    """The user's ids of each part, where all parts have them, else those after DGL's shuffling."""
    name = "original" if all(f"{prefix}original" in file for file in files) else "id"
    return [file[prefix + name] for file in files]


def _order(files: list[dict[str, np.ndarray]], node_type: str) -> np.ndarray:
    """Position of each of DGL's ids among those of all parts."""
    return np.argsort(np.concatenate([file[f"node/{node_type}/id"] for file in files]))


def _data(file: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in file.items() if name.startswith(prefix)}


def _edge_type(name: str) -> EdgeType:
    source, relation, destination = name.split(":")
    return source, relation, destination


# A graph object of DGL, known by what it can do: the package itself is not imported.


_HIDDEN = "_"  # names such as _ID are DGL's own


def is_dgl_graph(given: Any) -> bool:
    return all(hasattr(given, name) for name in ("canonical_etypes", "ntypes", "all_edges", "nodes", "edges"))


def dgl_source(graph: Any, name: str) -> ArraySource:
    """The graph with its data: ``feat`` is stored as ``x``, ``label`` as ``y``, masks as splits. Raises `DataError` for data that
    do not fit."""
    types: list[EdgeType] = [(e[0], e[1], e[2]) for e in graph.canonical_etypes]
    homogeneous = len(types) == 1 and len(graph.ntypes) == 1
    ours = {e: EDGE if homogeneous else e for e in types}
    nodes = {t: NODE if homogeneous else str(t) for t in graph.ntypes}
    return NamedArrays(
        name,
        {nodes[t]: int(graph.num_nodes(t)) for t in graph.ntypes},
        {ours[e]: np.stack([_array(end) for end in graph.all_edges(order="eid", etype=e)]) for e in types},
        {nodes[t]: _arrays(graph.nodes[t].data) for t in graph.ntypes},
        {ours[e]: _arrays(graph.edges[e].data) for e in types},
        homogeneous,
    ).source()


def _array(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.cpu().numpy())


def _arrays(data: Any) -> dict[str, np.ndarray]:
    return {str(name): _array(values) for name, values in data.items() if not str(name).startswith(_HIDDEN)}
