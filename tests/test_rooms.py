"""Rooms meet at their faces, imports point down one line, and each outside library has its doors (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "glt_lightning"

# A room imports from the faces of those before it. What stands outside uses faces as a user's code does.
LINE = ["base", "kernels", "graph", "sampling", "partition", "workers", "loader", "tensors", "inference", "lightning"]
# The command line is the outermost of all.
OUTSIDE = {
    "models": LINE,
    "launch": LINE,
    "compat": [*LINE, "launch"],
    "cli": [*LINE, "models", "launch", "compat"],
}
BELOW = {room: LINE[:at] for at, room in enumerate(LINE)} | OUTSIDE

# Which files may import an outside library: folders and files of the package, or beginnings of their names.
DOORS = {
    "ctypes": ("kernels/",),
    "torch": (
        "kernels/cuda/",
        "sampling/device_",
        "graph/device_store.py",
        "graph/device_store.py",
        "partition/sources/",
        "workers/producer/on_gpu.py",
        "loader/",
        "tensors/",
        "inference/",
        "lightning/",
        "models/",
        "compat/",
        "launch/rank_group.py",
        "cli/",
    ),
    "torch_geometric": ("partition/sources/", "loader/", "inference/", "lightning/", "models/", "compat/"),
    "ogb": ("partition/sources/",),
    "pyarrow": ("workers/transport/flight_", "partition/", "lightning/callbacks/", "lightning/endpoint/"),
    "starlette": ("lightning/endpoint/app.py",),
    "uvicorn": ("lightning/endpoint/app.py",),
    "prometheus_client": ("lightning/endpoint/app.py",),
    "cryptography": ("workers/transport/certs.py",),
    "lightning": ("lightning/", "models/", "cli/"),
    "pytorch_lightning": (),  # another class tree than `lightning`'s: never
}


def imports(file: Path, package: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of each import, wherever in the file it stands; ``import a.b`` is (a.b, "")."""
    parents = ["glt_lightning", *file.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def complaints(package: Path) -> list[str]:
    found = []
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package).as_posix()
        for line, module, name in imports(file, package):
            complaint = _outside(path, module) if not _ours(module) else _inside(path, module, name)
            found += [f"{path}:{line}: {complaint}"] if complaint else []
    return list(dict.fromkeys(found))


def _ours(module: str) -> bool:
    return module.split(".")[0] == "glt_lightning"


def _outside(path: str, module: str) -> str | None:
    library = module.split(".")[0]
    doors = DOORS.get(library)
    if doors is None or any(path.startswith(door) for door in doors):
        return None
    return f"imports {library}, which is for {', '.join(doors) or 'nobody'}"


def _inside(path: str, module: str, name: str) -> str | None:
    room, _, rest = path.partition("/")
    if not rest:  # the root's __init__ and __main__ may import everything
        return None
    target = module.split(".")[1] if "." in module else name
    if target == room:
        return None
    if target not in BELOW.get(room, ()):
        return f"{room} imports {target or 'the root'}, which does not stand before it"
    return f"imports {module}, past the face of {target}" if module.count(".") > 1 else None


def test_rooms_are_those_of_the_line() -> None:
    assert sorted(each.parent.name for each in PACKAGE.glob("*/__init__.py")) == sorted(BELOW)


def test_imports_go_down_the_line_and_to_faces() -> None:
    assert not (found := complaints(PACKAGE)), "\n".join(found)


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        (
            "graph/x.py",
            "from glt_lightning.sampling import Sample",
            "graph imports sampling, which does not stand before",
        ),
        (
            "graph/x.py",
            "def f():\n    import glt_lightning.loader.collate",
            "graph imports loader, which does not stand",
        ),
        ("graph/x.py", "from ..sampling.khop import sample", "graph imports sampling, which does not stand before it"),
        (
            "graph/x.py",
            "from glt_lightning import GraphSAGE",
            "graph imports GraphSAGE, which does not stand before it",
        ),
        ("graph/x.py", "import glt_lightning", "graph imports the root, which does not stand before it"),
        ("loader/x.py", "from glt_lightning.kernels.khop import sample", "past the face of kernels"),
        ("models/x.py", "from glt_lightning.cli import main", "models imports cli, which does not stand before it"),
        ("workers/x.py", "import ctypes", "imports ctypes, which is for kernels/"),
        ("sampling/khop.py", "import torch.nn", "imports torch, which is for"),
        ("lightning/x.py", "import pytorch_lightning", "imports pytorch_lightning, which is for nobody"),
    ],
)
def test_planted_violation_is_found(tmp_path: Path, path: str, code: str, complaint: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(code)
    [found] = complaints(tmp_path)
    assert found.startswith(path)
    assert complaint in found
