"""Writes docs/options.md, which is not in git, from the options classes: ``make docs``."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import yaml  # type: ignore[import-untyped]

from glt_lightning import GLTDataModule, GraphSAGE, LinkPredictor, NodePredictor
from glt_lightning.base import (
    BatchOptions,
    CacheOptions,
    ClusterOptions,
    DeadlineOptions,
    DeployOptions,
    EvaluationOptions,
    ImportanceNeighbors,
    LayerwiseOptions,
    LimitOptions,
    LinkOptions,
    NegativeSampling,
    OptionError,
    PartitionOptions,
    SamplingOptions,
    SecurityOptions,
    SeedOptions,
    TensorOptions,
)
from glt_lightning.launch import (
    LaunchConfig,
    LaunchDefaults,
    LaunchHost,
    LaunchKubernetes,
    LaunchLimits,
    LaunchPartition,
    LaunchRestarts,
    LaunchSecurity,
    LaunchServer,
    LaunchSlurm,
)

PAGE = Path(__file__).with_name("options.md")
GROUPS: dict[str, type] = {
    "data": GLTDataModule,
    "data.partition": PartitionOptions,
    "data.sampling": SamplingOptions,
    "data.sampling.importance_neighbors": ImportanceNeighbors,
    "data.cache": CacheOptions,
    "data.seeds": SeedOptions,
    "data.links": LinkOptions,
    "data.links.neg_sampling": NegativeSampling,
    "data.batches": BatchOptions,
    "data.evaluation": EvaluationOptions,
    "cluster": ClusterOptions,
    "cluster.deadlines": DeadlineOptions,
    "cluster.limits": LimitOptions,
    "cluster.security": SecurityOptions,
    "cluster.tensors": TensorOptions,
    "data.evaluation.layerwise": LayerwiseOptions,
    "endpoint": DeployOptions,
    "launch": LaunchConfig,
    "launch.defaults": LaunchDefaults,
    "launch.hosts": LaunchHost,
    "launch.servers": LaunchServer,
    "launch.partition": LaunchPartition,
    "launch.security": LaunchSecurity,
    "launch.restarts": LaunchRestarts,
    "launch.limits": LaunchLimits,
    "launch.slurm": LaunchSlurm,
    "launch.kubernetes": LaunchKubernetes,
    "model, GraphSAGE": GraphSAGE,
    "model, NodePredictor": NodePredictor,
    "model, LinkPredictor": LinkPredictor,
}
REQUIRED: dict[type, dict[str, Any]] = {  # without which there is no object whose defaults could be read
    LaunchConfig: {"command": "fit", "hosts": ["n0"], "run_config": "run.yaml"},
    LaunchHost: {"host": "n0"},
    LaunchServer: {"host": "g0"},
    LaunchKubernetes: {"image": "IMAGE"},
}
HEAD = """# Options

Every option with its type, its default and its meaning. `make docs` makes this page from the source; do not edit it.
[configuration.md](configuration.md) shows how the groups make a run, and
`python -m lightning fit --data.help GLTDataModule` prints the same in a terminal.

`data` stands in YAML as `class_path: glt_lightning.GLTDataModule` with the options under `init_args`. In Python,
`GLTDataModule(sampling=SamplingOptions(num_workers=2))` and `GLTDataModule(sampling={"num_workers": 2})` say the same.
Sizes in bytes are integers or texts such as `500MB` and `2GiB`; times (`_s`) are seconds.
"""
_INTEGERS = (-1, 0, 1, 2, 1 << 20)  # the least of these that an option takes is the bound that the page names
_NAMES = {NoneType: "null", str: "text", int: "integer", float: "number", bool: "true, false", Any: "object"}


def page() -> str:
    """The text of the page."""
    texts = [HEAD]
    for group, kind in GROUPS.items():
        table = [
            f"| `{name}` | {type_} | {default} | {meaning} |" for name, type_, default, meaning in _rows(group, kind)
        ]
        summary = _markdown(docstring_parser.parse(kind.__doc__ or "").short_description or "")
        texts.append(
            "\n".join([f"## {group}", "", summary, "", "| option | type | default | meaning |", _RULE, *table, ""])
        )
    return "\n".join(texts)


_RULE = "| --- | --- | --- | --- |"


def _rows(group: str, kind: type) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, meaning) of each option, in the order in which the class has them."""
    hints = get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__)
    meanings = _meanings(kind)
    for name, parameter in inspect.signature(kind).parameters.items():
        inner = f"{group}.{name}"
        if GROUPS.get(name) is hints[name]:  # the options of a command, here those of the data module as well
            inner = name
        if inner in GROUPS:
            yield name, f"[group](#{inner.replace('.', '')})", "", meanings[name]
            continue
        yield name, _type(hints[name]) + _least(kind, name, hints[name]), _default(kind, parameter), meanings[name]


def _meanings(kind: type) -> dict[str, str]:
    """From the docstrings of a class and of those that it extends."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if "__doc__" in vars(each) and each.__module__.startswith("glt_lightning"):
            parsed = docstring_parser.parse(each.__doc__ or "")
            found |= {param.arg_name: _markdown(param.description or "") for param in parsed.params}
    return found


def _markdown(text: str) -> str:
    """One line of Markdown from the words of a docstring."""
    text = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
    text = re.sub(r"\bdocs/([a-z-]+\.md)", r"[\1](\1)", text)
    text = text.replace("`None`", "`null`").replace("`True`", "`true`").replace("`False`", "`false`")
    return text.replace("|", "\\|")


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(each) for each in get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {_plural(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"mapping of {' to '.join(_plural(each) for each in get_args(hint))}"
    return _NAMES.get(hint) or ("mapping" if hint is dict else f"`{hint.__name__}`")


def _plural(hint: Any) -> str:
    one = _type(hint)
    return f"{one}s" if one.isalpha() else f"({one})" if " or " in one else one


def _least(kind: type, name: str, hint: Any) -> str:
    """The least integer that the class takes, found by trying."""
    if hint is not int or not dataclasses.is_dataclass(kind):
        return ""
    for value in _INTEGERS:
        try:
            kind(**REQUIRED.get(kind, {}) | {name: value})
        except OptionError:
            continue
        return f" >= {value}"
    raise ValueError(f"{kind.__name__}.{name} takes none of {_INTEGERS}")


def _default(kind: type, parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return ""
    default = parameter.default
    if dataclasses.is_dataclass(kind) and parameter.name != "run_config":
        default = getattr(kind(**REQUIRED.get(kind, {})), parameter.name)
    text = yaml.safe_dump(default, default_flow_style=True, width=1000).splitlines()[0]
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page())
