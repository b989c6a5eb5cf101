"""The public objects of a checkout, and their docstrings. Nothing is imported, so that another checkout can be read, too."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class PublicObject:
    """A class or function that a package names in ``__all__``. module: where it is defined."""

    module: str
    name: str
    doc: str

    @property
    def has_example(self) -> bool:
        return ">>>" in self.doc


def public_objects(root: Path) -> list[PublicObject]:
    """Those of the root, the faces of rooms and the packages in compat, once each, by module and name, without types' aliases."""
    found, package = {}, root / "src" / "glt_lightning"
    for init in sorted(
        [package / "__init__.py", *package.glob("*/__init__.py"), *package.glob("compat/*/**/__init__.py")]
    ):
        for name in _exported(ast.parse(init.read_text())):
            if (public := _find(root / "src", init, name)) is not None:
                found[public.module, public.name] = public
    return [found[key] for key in sorted(found)]


def _exported(tree: ast.Module) -> list[str]:
    """Names in ``__all__``; ``*_HOMES`` in it stands for the keys of that dictionary."""
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names: list[str] = []
    listed = values.get("__all__")
    for entry in listed.elts if isinstance(listed, ast.List) else []:
        if isinstance(entry, ast.Starred) and isinstance(entry.value, ast.Name):
            starred = values[entry.value.id]
            keys = starred.keys if isinstance(starred, ast.Dict) else []
            names += [key.value for key in keys if isinstance(key, ast.Constant)]
        elif isinstance(entry, ast.Constant):
            names.append(entry.value)
    return names


def _find(src: Path, file: Path, name: str) -> PublicObject | None:
    """Follows imports from ``file`` to the class or function; None for anything else, such as a package."""
    tree = ast.parse(file.read_text())
    for node in tree.body:
        if isinstance(node, Definition) and node.name == name:
            module = file.relative_to(src).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
            return PublicObject(module, name, ast.get_docstring(node) or "")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    path = src / node.module.replace(".", "/")
                    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                    return _find(src, file, alias.name) if file.exists() else None
    return None
