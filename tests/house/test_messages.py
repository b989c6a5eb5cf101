"""Messages name options that exist: who is told to set an option can set it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

from glt_lightning import base as options
from glt_lightning.lightning import GLTDataModule

SOURCE = Path(__file__).parents[2] / "src"
GROUPS = {
    "partition": options.PartitionOptions,
    "sampling": options.SamplingOptions,
    "cache": options.CacheOptions,
    "seeds": options.SeedOptions,
    "links": options.LinkOptions,
    "batches": options.BatchOptions,
    "evaluation": options.EvaluationOptions,
    "evaluation.layerwise": options.LayerwiseOptions,
    "cluster": options.ClusterOptions,
    "cluster.deadlines": options.DeadlineOptions,
    "cluster.limits": options.LimitOptions,
    "cluster.security": options.SecurityOptions,
}
KNOWN: dict[str, set[str]] = {group: {each.name for each in fields(kind)} for group, kind in GROUPS.items()}
KNOWN["data"] = set(dir(GLTDataModule)) | set(GLTDataModule.__init__.__annotations__)
NAMED = re.compile(rf"(?<![\w./])({'|'.join(sorted(KNOWN, key=len, reverse=True))})\.([a-z]\w*)")


def unknown_options(code: str) -> list[str]:
    """Names of options that do not exist, in texts of several words that are no docstrings."""
    tree = ast.parse(code)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    return [m[0] for text in texts if " " in text for m in NAMED.finditer(text) if m[2] not in KNOWN[m[1]]]


def test_messages_name_options_that_exist() -> None:
    found = {str(path): unknown_options(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_an_unknown_option_is_found() -> None:
    assert unknown_options('f"set partition.normalize: {kind}"\nraise E(f"set cluster.limits.bytes to {n}")') == [
        "partition.normalize",
        "cluster.limits.bytes",
    ]
    assert unknown_options('raise E("set data.normalize or cluster.limits.streams, see my.partition.x")') == []
