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
    """Names in ``__all__``; ``*listed_names(...)`` in it stands for what is imported for type checkers."""
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == "__all__"
    ]
    names: list[str] = []
    for entry in values[0].elts if values and isinstance(values[0], ast.List) else []:
        if isinstance(entry, ast.Constant):
            names.append(entry.value)
        elif isinstance(entry, ast.Starred) and isinstance(entry.value, ast.Call):
            imported = (each for node in tree.body if isinstance(node, ast.If) for each in node.body)
            names += [alias.name for each in imported if isinstance(each, ast.ImportFrom) for alias in each.names]
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
