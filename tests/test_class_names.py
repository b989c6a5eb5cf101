"""A class name says one thing: it is defined once in the package."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "glt_lightning"


def test_every_class_name_is_defined_once():
    where = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(PACKAGE)))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert not twice
