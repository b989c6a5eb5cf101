"""``dataset: demo``: the import graph of torch, sympy and networkx, built on first use."""

from __future__ import annotations

import hashlib
import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.graph import disk_full_speaks
from glt_lightning.partition.folder import exclusive, whole_file
from glt_lightning.partition.sources.import_graph import build_import_graph
from glt_lightning.partition.sources.npz import NpzSource

_log = logging.getLogger(__name__)

PACKAGES = ("torch", "sympy", "networkx")  # torch requires the other two
_GENERATOR = 1  # raise it when `import_graph` changes what it builds
_TIMEOUT_S = 300.0  # wait for another process that builds the demo graph, which takes some seconds


def open_demo(root: str | Path) -> NpzSource:
    """The demo graph, from ``root/demo``; it is built (some seconds) when there is none for the installed versions."""
    versions = {package: v for package in PACKAGES if (v := _version(package)) is not None}
    if not versions:
        raise DataError(f"dataset: demo is made of the sources of {', '.join(PACKAGES)}; none of them is installed.")
    key = hashlib.blake2b(f"{_GENERATOR}:{sorted(versions.items())}".encode(), digest_size=6).hexdigest()
    path = Path(root) / "demo" / f"imports-{key}.npz"
    if not path.exists():
        with exclusive(path, _TIMEOUT_S):
            if not path.exists():  # another process may have built it during the wait
                _build(path, tuple(versions))
    source = NpzSource(path)
    source.name = "demo"
    return source


def _build(path: Path, packages: tuple[str, ...]) -> None:
    _log.info("building the demo graph from the sources of %s: %s", ", ".join(packages), path)
    arrays = build_import_graph(packages)
    size = sum(array.nbytes for array in arrays.values())
    with whole_file(path) as temporary, disk_full_speaks(path.parent, size), open(temporary, "wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
