"""What the tree comes to: lines of code, k-hop loops, assemblers, modules that know much, names that stand twice.

    python tests/house/count.py [ROOT] [--files a.py,b.py]

Prints one line per number. ``ROOT`` is a checkout (this one); with another one's, the same numbers of that. ``--files`` (below
``src/glt_lightning``) are counted apart, as all lines. Nothing is imported, so it runs without an installation.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that it also runs as a script

from tests.house.public import public_objects

# What makes batches of the graph: loops, sources, tables and the assembler, and what they replaced.
SAMPLING = (
    "ops/hops.py,ops/merge.py,ops/cuda/khop_steps.py,sampler/assemble.py,sampler/cluster.py,sampler/device_cluster.py,"
    "sampler/device_cluster_khop.py,sampler/device_draft.py,sampler/device_neighbors.py,sampler/device_sampler.py,"
    "sampler/fields.py,sampler/finder.py,sampler/foreign.py,sampler/host_source.py,sampler/khop.py,sampler/neighbor.py,"
    "sampler/neighbors.py,sampler/routed_source.py,sampler/source.py,sampler/table.py"
)


# What repeats the signatures of other libraries, in which every loader names its options.
DOORS = ("distributed/", "dgl/", "glt/")


def code_lines(text: str) -> int:
    """Lines that are neither empty, nor a comment, nor part of a docstring."""
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def hop_loops(tree: ast.Module) -> int:
    """Loops that go from hop to hop and expand: ``for hop ...`` with a call of something named expand, sample or stitch."""
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and "hop" in {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}:
            calls = [c.func for c in ast.walk(node) if isinstance(c, ast.Call)]
            names = [f.attr for f in calls if isinstance(f, ast.Attribute)]
            found += any(name.lstrip("_").startswith(("expand", "sample", "stitch")) for name in names)
    return found


def choosers(tree: ast.Module) -> list[str]:
    """Functions that say how many rows of a ranking lie in a memory: they sum sizes up to a budget, or take a share of rows."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {a.arg for a in node.args.args}
            calls = [c for c in ast.walk(node) if isinstance(c, ast.Call)]
            sums = any(isinstance(c.func, ast.Attribute) and c.func.attr == "cumsum" for c in calls)
            shares = any(isinstance(c.func, ast.Name) and c.func.id == "int" and _is_share(c.args) for c in calls)
            if (sums and "budget" in names) or shares:
                found.append(node.name)
    return found


def _is_share(args: Sequence[ast.expr]) -> bool:
    """Whether this is a product with a share: ``ratio * n``, ``s * n``."""
    factors = {
        n.id
        for arg in args
        if isinstance(arg, ast.BinOp) and isinstance(arg.op, ast.Mult)
        for n in ast.walk(arg)
        if isinstance(n, ast.Name)
    }
    return bool(factors & {"ratio", "share", "s"})


def row_sizes(tree: ast.Module) -> list[str]:
    """Functions and methods that say what a row takes."""
    functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.endswith("row_bytes")]


def imported(tree: ast.Module) -> set[str]:
    """Modules of the package that a module imports, also for type checkers."""
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    return {node.module for node in froms if node.module and node.module.startswith("glt_lightning.")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[2])
    parser.add_argument("--files", type=lambda text: text.split(","), default=SAMPLING.split(","))
    args = parser.parse_args()
    for what, number in numbers(args.root, args.files).items():
        print(f"{what}: {number}")


def numbers(root: Path, files: Sequence[str]) -> dict[str, str]:
    """What is printed: name -> number, and where it comes from."""
    package = root / "src" / "glt_lightning"
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    chosen = [path for path in files if path in texts]
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    twice = sorted(name for name, count in classes.items() if count > 1)
    fan_out, most = max((len(imported(tree)), path) for path, tree in trees.items())
    loops = {
        path: n for path, tree in trees.items() if path.startswith(("ops/", "sampler/")) and (n := hop_loops(tree))
    }
    assemblers = [
        p for p, text in texts.items() if re.search(r"\bnode_key\b", text) and re.search(r"\bedge_key\b", text)
    ]
    assemblers = [p for p in assemblers if p.startswith("sampler/") and p != "sampler/sample.py"]
    chosen_by = {p: names for p, tree in trees.items() if (names := choosers(tree))}
    sized_by = {p: names for p, tree in trees.items() if (names := row_sizes(tree))}
    public = public_objects(root)
    native = len({name for text in texts.values() for name in re.findall(r"\bglt_(?:cuda_)?khop\b", text)})
    return {
        "lines of code in src": f"{sum(map(code_lines, texts.values()))}",
        "lines of the files that make batches": f"{sum(len(texts[p].splitlines()) for p in chosen)} in {len(chosen)} files",
        "of these, code": f"{sum(code_lines(texts[p]) for p in chosen)}",
        "k-hop loops in Python": f"{sum(loops.values())} ({', '.join(loops)})",
        "native k-hop calls": f"{native}",
        "assemblers of a batch": f"{len(assemblers)} ({', '.join(assemblers)})",
        "files that choose rows for a memory": _listed(chosen_by),
        "files that define row_bytes": _listed(sized_by),
        "files that name with_edge": f"{sum('with_edge' in t for p, t in texts.items() if not p.startswith(DOORS))}",
        "largest fan-out": f"{fan_out} ({most})",
        "class names defined twice": f"{len(twice)} ({', '.join(twice)})",
        "public objects with an example": f"{sum(each.has_example for each in public)} of {len(public)}",
    }


def _listed(found: dict[str, list[str]]) -> str:
    where = (f"{path}: {', '.join(names)}" for path, names in found.items())
    return f"{len(found)} ({'; '.join(where)})"


if __name__ == "__main__":
    main()
