"""A class name says one thing: it is defined once in the package.

The rooms of others' names may say it again. In `dgl/`, of a class with another signature, if that is a subclass of the class of
this name: whoever has one has the other. In `distributed/`, once: its loaders are made with GLT's arguments and own what
ours are made by. A name without another signature is imported there, not defined.
"""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "glt_lightning"


def defined(package: Path) -> dict[str, list[str]]:
    """Class name -> files that define it, but for what rooms may repeat."""
    where = defaultdict(list)
    for path in sorted(package.rglob("*.py"), key=lambda each: each.relative_to(package).parts[0] == "distributed"):
        file = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not _repeats(file, node, where[node.name]):
                where[node.name].append(file)
    return where


def _repeats(file: str, node: ast.ClassDef, found: list[str]) -> bool:
    if file.startswith("dgl/"):
        return any(isinstance(base, ast.Attribute) and base.attr == node.name for base in node.bases)
    return file.startswith("distributed/") and len(found) == 1 and not found[0].startswith("distributed/")


def test_every_class_name_is_defined_once():
    assert not {name: files for name, files in defined(PACKAGE).items() if len(files) > 1}


def test_a_room_may_repeat_the_name_of_its_base_class_alone(tmp_path):
    code = {
        "a.py": "class A: ...\nclass B: ...",
        "dgl/a.py": "class A(a.A): ...",
        "dgl/b.py": "class A: ...",
        "b.py": "class A(a.A): ...",
        "distributed/b.py": "class B: ...",
        "distributed/c.py": "class C: ...\nclass C: ...",
    }
    for name, text in code.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {name: sorted(files) for name, files in defined(tmp_path).items()}
    assert found == {"A": ["a.py", "b.py", "dgl/b.py"], "B": ["a.py"], "C": ["distributed/c.py", "distributed/c.py"]}
