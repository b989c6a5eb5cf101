"""Imports point one way, and each outside library has its door (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "glt_lightning"

# A layer imports itself and what stands before it; layers on one line may import each other, but for `BESIDE`.
LAYERS = [
    {"types", "options", "errors", "progress", "program", "lazy"},
    {"page"},
    {"ops"},
    {"data"},
    {"store"},
    {"sampler"},
    {"partition"},
    {"channel"},
    {"transport"},
    {"cluster"},
    {"producer"},
    {"nn"},
    {"server", "loader"},
    {"report"},
    {"tensors"},
    {"embedding"},
    {"inference"},
    {"glt", "typing", "utils"},
    {"launch"},
    {"lightning"},
    {"distributed", "dgl"},
]
BESIDE = {frozenset({"server", "loader"})}  # neither knows the other
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# The package root gives out names of all layers up to this one, and so stands with it.
RANK["__init__"] = RANK["__main__"] = RANK["lightning"]

_WITH_GLT = ("channel", "data", "loader", "partition", "sampler")
# The imports upwards: names of GraphLearn-for-PyTorch (`glt.data.Topology`, `glt.partition.RandomPartitioner`,
# `glt.sampler.NeighborSampler`), for type checkers alone; at run time they are looked up when somebody asks for one.
UPWARDS = {f"{package}/__init__.py": "glt_lightning.glt." for package in _WITH_GLT}

# Which files may import an outside library, as files or folders of the package.
DOORS = {
    "ctypes": ("ops/",),
    "torch": (
        "ops/cuda/",
        "sampler/device_",
        "store/device_store.py",
        "store/device_memory.py",
        "partition/sources/",
        "glt/",
        "distributed/",
        "nn/",
        "loader/",
        "tensors/dist_",
        "embedding/",
        "inference/",
        "lightning/",
        "dgl/",
    ),
    "torch_geometric": (
        "partition/sources/",
        "nn/",
        "loader/blocks.py",
        "loader/collate.py",
        "loader/edge_index.py",
        "glt/transform.py",
        "lightning/",
    ),
    "ogb": ("partition/sources/",),
    "pyarrow": (
        "transport/flight_",
        "partition/sources/tables/",
        "lightning/callbacks/prediction_files.py",
        "partition/copies/arrow_store.py",
    ),
    "cryptography": ("transport/certs.py",),
    "lightning": ("lightning/",),
    "pytorch_lightning": (),  # another class tree than `lightning`'s: never
}


def imports(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import, wherever in the file it stands; ``from a import b`` is ``a.b``."""
    parents = ["glt_lightning", *file.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def complaints(package: Path) -> list[str]:
    found = []
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package).as_posix()
        layer = path.split("/")[0].removesuffix(".py")
        if layer not in RANK:
            found.append(f"{path}: {layer!r} is no layer; give it a place in LAYERS")
            continue
        said = ((line, _complaint(path, layer, name.split("."))) for line, name in imports(file, package))
        found += dict.fromkeys(f"{path}:{line}: {complaint}" for line, complaint in said if complaint)
    return found


def _complaint(path: str, layer: str, name: list[str]) -> str | None:
    if name[0] in DOORS:
        open_here = any(path == door or (door[-1] in "/_" and path.startswith(door)) for door in DOORS[name[0]])
        return None if open_here else f"imports {name[0]}, which is for {', '.join(DOORS[name[0]]) or 'nobody'}"
    if name[0] != "glt_lightning" or name[1:] == ["__version__"]:
        return None
    if ".".join(name).startswith(UPWARDS.get(path, "/")):
        return None
    # `import glt_lightning` and `from glt_lightning import GraphSAGE` go through the package root.
    target = name[1] if len(name) > 1 and name[1] in RANK else "__init__"
    if frozenset({layer, target}) in BESIDE:
        return f"{layer} imports {target}, which stands beside it"
    return None if RANK[target] <= RANK[layer] else f"{layer} imports {target}, which stands above it"


def test_imports_point_one_way() -> None:
    assert not (found := complaints(PACKAGE)), "\n".join(found)


def test_files_are_found() -> None:
    assert sum(1 for _ in PACKAGE.rglob("*.py")) > 10
    assert "glt_lightning.data.LocalPartition" in {name for _, name in imports(PACKAGE / "__init__.py", PACKAGE)}


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        ("data/graph.py", "from glt_lightning.sampler import Sample", "data imports sampler, which stands above it"),
        ("loader/x.py", "from glt_lightning.server.remote import Y", "loader imports server, which stands beside it"),
        ("server/x.py", "from glt_lightning.loader.collate import Y", "server imports loader, which stands beside it"),
        ("data/graph.py", "from glt_lightning import loader", "data imports loader, which stands above it"),
        ("data/graph.py", "import glt_lightning.loader.collate", "data imports loader, which stands above it"),
        ("data/graph.py", "from ..sampler.khop import sample", "data imports sampler, which stands above it"),
        ("data/graph.py", "from .. import sampler", "data imports sampler, which stands above it"),
        ("data/graph.py", "def f():\n    import glt_lightning.sampler", "data imports sampler, which stands above it"),
        ("data/graph.py", "from glt_lightning import GraphSAGE", "data imports __init__, which stands above it"),
        ("data/graph.py", "import glt_lightning", "data imports __init__, which stands above it"),
        (
            "sampler/__init__.py",
            "from glt_lightning.partition import x",
            "sampler imports partition, which stands above",
        ),
        ("options/cache.py", "from glt_lightning.ops import gather", "options imports ops, which stands above it"),
        (
            "lightning/cli/command_line.py",
            "import glt_lightning.distributed",
            "lightning imports distributed, which stands above it",
        ),
        ("partition/sources/npz.py", "from ...loader import x", "partition imports loader, which stands above it"),
        ("helpers.py", "", "'helpers' is no layer"),
        ("channel/ring.py", "import ctypes", "imports ctypes, which is for ops/"),
        ("sampler/khop.py", "import torch.nn", "imports torch, which is for"),
        ("ops/khop.py", "from torch import Tensor", "imports torch, which is for"),
        ("loader/neighbor.py", "import torch_geometric", "imports torch_geometric, which is for"),
        ("loader/neighbor.py", "from lightning.pytorch import Trainer", "imports lightning, which is for lightning/"),
        ("lightning/cli/command_line.py", "import pytorch_lightning", "imports pytorch_lightning, which is for nobody"),
        ("partition/sources/npz.py", "import pyarrow.parquet", "imports pyarrow, which is for"),
        ("partition/writer.py", "import ogb.nodeproppred", "imports ogb, which is for partition/sources/"),
    ],
)
def test_planted_violation_is_found(tmp_path: Path, path: str, code: str, complaint: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    found = complaints(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(path)
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("sampler/khop.py", "from glt_lightning import ops\nfrom glt_lightning.options import SamplingOptions"),
        ("sampler/khop.py", "from . import seeds\nfrom .seeds import Seeds\nfrom ..data import LocalPartition"),
        ("partition/writer.py", "from glt_lightning import __version__"),
        ("errors.py", "import glt_lightning.types"),
        ("ops/native.py", "import ctypes"),
        ("ops/cuda/gather.py", "import torch"),
        ("loader/collate.py", "import torch, torch_geometric"),
        ("lightning/cli/command_line.py", "import lightning\nfrom glt_lightning import GraphSAGE"),
        ("partition/sources/ogb/source.py", "import ogb\nimport torch"),
    ],
)
def test_allowed_import_passes(tmp_path: Path, path: str, code: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    assert complaints(tmp_path) == []
