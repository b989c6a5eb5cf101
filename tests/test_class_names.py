"""A class name says one thing: it is defined once in the package.

The rooms of others' names (`dgl/`, `distributed/`) may say it again, of a class with another signature, if that is a subclass
of the class of this name: whoever has one has the other. A name without another signature is imported there, not defined.
"""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "glt_lightning"
ROOMS = ("dgl/", "distributed/")


def defined(package: Path) -> dict[str, list[str]]:
    """Class name -> files that define it, but for rooms that subclass the class of the same name."""
    where = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not (file.startswith(ROOMS) and _subclasses_its_name(node)):
                where[node.name].append(file)
    return where


def _subclasses_its_name(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Attribute) and base.attr == node.name for base in node.bases)


def test_every_class_name_is_defined_once():
    assert not {name: files for name, files in defined(PACKAGE).items() if len(files) > 1}


def test_a_room_may_repeat_the_name_of_its_base_class_alone(tmp_path):
    code = {
        "a.py": "class A: ...",
        "dgl/a.py": "class A(a.A): ...",
        "dgl/b.py": "class A: ...",
        "b.py": "class A(a.A): ...",
    }
    for name, text in code.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert defined(tmp_path) == {"A": ["a.py", "b.py", "dgl/b.py"]}
