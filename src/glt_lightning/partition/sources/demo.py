"""``dataset: demo``: the import graph of torch, sympy and networkx, built on first use."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from glt_lightning.base import DataError
from glt_lightning.partition.folder import disk_full_speaks, exclusive, whole_file
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


# The import graph of installed packages: a real graph that every machine has already.


_DIM = 256
_MIN_CLASS = 25
_SKIPPED_FOLDERS = {"tests", "testing"}

_STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<base>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#;]+)"
    r"|import[ \t]+(?P<plain>[\w., \t]+))",
    re.MULTILINE,
)

_WORD = re.compile(r"[a-z]{3,}")
_COMMENT = re.compile(r"#[^\n]*")


def build_import_graph(packages: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of the graph, in the keys of our ``.npz`` format."""
    files = {name: path for package in packages for name, path in _modules(package)}
    names = sorted(files)
    number = {name: i for i, name in enumerate(names)}
    edges: set[tuple[int, int]] = set()
    words: list[Counter[str]] = []
    for i, name in enumerate(names):
        text = files[name].read_text(encoding="utf-8", errors="replace")
        package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
        found = (number.get(target, i) for target in _imports(text, package))
        edges.update((i, j) for j in found if j != i)
        words.append(_own_words(text, name))
    labels, classes = _labels(names)
    return _select(_features(words), labels, classes, np.array(sorted(edges), np.int64).reshape(-1, 2).T)


def _modules(package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)  # does not import a top-level package
    if spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if not _SKIPPED_FOLDERS.intersection(parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imports(text: str, package: str) -> Iterator[str]:
    """Dotted names that may be modules: ``from a.b import c`` yields ``a.b`` and ``a.b.c``."""
    for statement in _STATEMENT.finditer(text):
        if statement["plain"]:
            yield from _listed(statement["plain"])
            continue
        base = _absolute(statement["base"], package)
        yield base
        for name in _listed(_COMMENT.sub("", statement["names"]).strip("()")):
            yield f"{base}.{name}"


def _listed(names: str) -> Iterator[str]:
    """``"a as b, c"`` -> a, c"""
    return (name.split()[0] for name in names.split(",") if name.strip())


def _absolute(base: str, package: str) -> str:
    """Resolves leading dots against the package that the statement stands in."""
    name = base.lstrip(".")
    dots = len(base) - len(name)
    if not dots:
        return name
    parents = package.split(".")
    return ".".join(parents[: len(parents) - dots + 1] + ([name] if name else []))


def _own_words(text: str, module: str) -> Counter[str]:
    """Counts the words of a module, except for its imports and its own name, which would give its label away."""
    counts = Counter(_WORD.findall(_STATEMENT.sub(" ", text).lower()))
    for part in re.split(r"[._]", module.lower()):
        counts.pop(part, None)
    return counts


def _features(words: Sequence[Counter[str]]) -> np.ndarray:
    """Returns float32 [N, D]: signed feature hashing of (1 + log tf) * idf, rows of length 1."""
    documents = Counter(word for counts in words for word in counts)
    idf = {word: math.log(len(words) / n) for word, n in documents.items()}
    slot = {word: zlib.crc32(word.encode()) for word in documents}
    x = np.zeros((len(words), _DIM), np.float64)
    for row, counts in zip(x, words, strict=True):
        for word, n in counts.items():
            sign = 1.0 if slot[word] >> 31 else -1.0
            row[slot[word] % _DIM] += sign * (1.0 + math.log(n)) * idf[word]
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    return x.astype(np.float32)


def _labels(names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Returns int64 [N], -1 for modules of subpackages that are too small, and the names of the classes."""
    subpackage = [".".join(name.split(".")[:2]) for name in names]
    classes = sorted(name for name, n in Counter(subpackage).items() if n >= _MIN_CLASS)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number.get(name, -1) for name in subpackage], np.int64), classes


def _select(x: np.ndarray, y: np.ndarray, classes: list[str], edges: np.ndarray) -> dict[str, np.ndarray]:
    """Keeps the labelled modules and splits them 20/20/60."""
    keep = np.flatnonzero(y >= 0)
    new = np.full(len(y), -1, np.int64)
    new[keep] = np.arange(len(keep))
    edges = new[edges]
    order = np.random.RandomState(0).permutation(len(keep))  # a frozen generator: the same split with any numpy
    train, val = len(keep) // 5, 2 * len(keep) // 5
    return {
        "x": x[keep],
        "y": y[keep],
        "edge_index": np.ascontiguousarray(edges[:, (edges >= 0).all(axis=0)]),
        "train_idx": np.sort(order[:train]),
        "valid_idx": np.sort(order[train:val]),
        "test_idx": np.sort(order[val:]),
        "class_names": np.array(classes),
    }
