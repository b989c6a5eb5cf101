"""Errors of the command line, shortened from a page to one line."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

import yaml  # type: ignore[import-untyped]
from jsonargparse import ArgumentParser, set_dumper

from glt_lightning.base import OptionError, read_yaml, removed_in, without_removed

_KEY = re.compile(r'Parser key "([^"]+)":?')
_CLASS = re.compile(r"Problem with given class_path '([\w.]+)'")
_NOISE = re.compile(
    r"Does not validate against any|Subtypes:|Errors:|Expected a <class 'NoneType'>|Given value|Expected a path but|"
    r"Problem with given class_path|Not a valid subclass|Subclass types expect|^a class path \(str\)|^a dict with"
)
_WORDING = (
    (r"<class '([^']+)'>", r"\1"),
    (r"Expected a typing\.Literal\[(.*?)\]\. Got value:", r"expected one of \1; got"),
    (
        r"Expected a dot import path string: ([^\s;]+)",
        r"unknown class \1; give the name of a built-in class or a dotted path",
    ),
    (r"Expected an? ([\w.]+)\. Got value:", r"expected \1; got"),
)
# What has no public name in jsonargparse, without the names of its private modules, which a release may change.
_TypedAction: Any = type(ArgumentParser().add_argument("--any", type=dict))
_OF_ACTIONS: dict[str, Any] = _TypedAction.__call__.__globals__
_OF_DUMPERS: dict[str, Any] = set_dumper.__globals__
_READS_AGAIN = "parse_value_or_config"  # of jsonargparse, by which it reads a text that it is about to write
_ABSTRACT = {"LightningDataModule": "--data GLTDataModule", "LightningModule": "--model GraphSAGE"}
_REMOVED = {"SeedProgressBar": "is removed: Lightning's own progress bar shows the rate. Remove this callback."}
_OF_REASON = re.compile(r"^([\w.-]+):")
_STRAY = re.compile(r"[Oo]ption '([\w.-]+)'")  # not accepted
_OF_GROUP = re.compile(r"Group '([\w.-]+)' does not accept")
_NO_CLASS = re.compile(r"Expected a dot import path string: (\w+)$", re.MULTILINE)
# the modules whose classes have short names, imported before one is named
_READY = ("glt_lightning", "lightning.pytorch.callbacks", "lightning.pytorch.loggers")
# Lightning's errors about a metric that is not logged: who asks for it, and its name
_UNLOGGED = re.compile(
    r"(?:(Early stopping|ReduceLROnPlateau) conditioned on metric `?(.+?)`? which is not available"
    r"|`(ModelCheckpoint)\(monitor='(.+?)'\)` could not find the monitored key)"
)
_NO_SUBCOMMAND = 'expected "subcommand" to be one of'
_SUBCOMMANDS = (
    "fit",
    "validate",
    "test",
    "predict",
    "embed",
    "recommend",
    "deploy",
    "replay",
    "serve",
)  # whose options a configuration may have below them
_OTHER_WORDS = {"train": "fit", "eval": "validate", "evaluate": "validate", "status": "serve --status host:port"}


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
    """Writes text in quotes also where only the reader of jsonargparse takes it for a number: of YAML 1.2, such as 1e3."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@contextmanager
def _own_dumper() -> Iterator[None]:
    """Writes YAML by `_Dumper` within a ``with`` block. jsonargparse has one dumper for all parsers of a process, and those of
    other programs keep theirs."""
    before = _OF_DUMPERS["dumpers"]["yaml"]
    set_dumper(
        "yaml",
        lambda config: str(
            yaml.dump(config, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
        ),
    )
    try:
        yield
    finally:
        set_dumper("yaml", before)


class OneLineParser(ArgumentParser):
    """A parser that reports an error in one line, without the usage of two hundred options. It accepts no abbreviated options: an
    option that a later release adds would change their meaning."""

    _file = ""  # the configuration that is being read

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self._read: dict[
            str, str
        ] = {}  # all configurations: path -> text; jsonargparse changes the folder while it reads one

    def _place(self, reason: str) -> str:
        """The place of an error in a configuration, such as ``run.yaml, line 3: ``; empty for one in the arguments."""
        parsers = [] if self._subcommands_action is None else [*self._subcommands_action.choices.values()]
        stray = _STRAY.search(reason)  # unknown options are reported after all files were read, so any may have it
        files: dict[str, str] = {}
        for each in [self] if self._file else parsers if stray else []:
            files |= each._read
        found = [_OF_REASON.search(reason), _OF_GROUP.search(reason), stray]
        keys = [key for each in found if each for key in each[1].split(".")]
        places = [(*place_of(text, keys), file) for file, text in files.items() if self._file in ("", file)]
        depth, line, file = max(
            places, key=lambda place: place[0], default=(0, 0, "")
        )  # the file that has most of the keys
        return f"{file}, line {line}: " if depth else f"{self._file}: " if self._file else ""

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Parses a file as jsonargparse does, with the file and the line in errors."""
        if not os.path.isfile(path):  # a pipe can be read once
            return super().parse_path(path, *args, **kwargs)
        self._file = str(path)
        read_yaml(self._file)
        self._read[self._file] = Path(path).read_text()
        try:
            return super().parse_path(path, *args, **kwargs)
        finally:
            self._file = ""

    def _apply_actions(
        self, cfg: Any, *args: Any, **kwargs: Any
    ) -> Any:  # of jsonargparse: every configuration passes here
        if self._file and isinstance(cfg, dict):
            try:
                cfg = without_removed_options(cfg)
            except OptionError as error:
                raise TypeError(str(error)) from None
        return super()._apply_actions(cfg, *args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Writes a configuration as jsonargparse does, but untyped text as text. jsonargparse reads it again, and writes the name
        of a column "007" as 7, and "no" as false."""
        with _own_dumper():
            # None: a later release, which may do otherwise; a test says so
            if (read := _OF_ACTIONS.get(_READS_AGAIN)) is None:
                return str(super().dump(*args, **kwargs))
            _OF_ACTIONS[_READS_AGAIN] = lambda value, **_: (value, None)
            try:
                return str(super().dump(*args, **kwargs))
            finally:
                _OF_ACTIONS[_READS_AGAIN] = read

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Writes files as jsonargparse does, by our dumper also those of groups that were read from files of their own."""
        with _own_dumper():
            super().save(*args, **kwargs)

    def _parse_known_args(self, *args: Any, **kwargs: Any) -> Any:  # of argparse: all words pass here
        for action in self._actions:
            if type(action) is _TypedAction:
                action.__class__ = _LeafOverrides
        return super()._parse_known_args(*args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # of a class: only here are its options known
            hint = did_you_mean(message, self._option_string_actions)
            super().error(f"{message}.{hint}" if hint else message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        prog = parser.prog.replace(" [options]", "")
        known = [option for action in parser._actions for option in action.option_strings]
        reason = wrong_subcommand(message, _subcommands(parser)) or removed_in(message)
        reason = reason or f"{one_line(message)}{did_you_mean(message, known)}"
        reason = f"{self._place(reason)}{reason}"
        sys.stderr.write(f"error: {reason} Options: {prog} {_help(message)}\n")
        self.exit(2)


def place_of(text: str, keys: Sequence[str]) -> tuple[int, int]:
    """The number of keys that a YAML text has, one in the other, and the line of the last of them; (0, 0) where it has none.

    ``init_args`` and the subcommand may stand between keys.
    """
    node, depth, line = yaml.compose(text, Loader=yaml.SafeLoader), 0, 0
    for wanted in keys:
        while node is not None and node.id == "mapping":
            found = {key.value: (key.start_mark.line + 1, value) for key, value in node.value if key.id == "scalar"}
            if wanted in found or "init_args" not in found:
                break
            node = found["init_args"][1]
        else:
            break
        if wanted not in found:
            break
        line, node = found[wanted]
        depth += 1
    return depth, line


def without_removed_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drops options of earlier releases that have their old defaults from a configuration. Raises `OptionError` for those with
    other values."""
    kept = dict(config)
    for key, value in config.items():
        if not isinstance(value, Mapping):
            continue
        if key == "data":
            kept[key] = _of_data(value)
        elif key in ("cluster", "layerwise"):
            kept[key] = without_removed(key, value)
        elif key in _SUBCOMMANDS:
            kept[key] = without_removed_options(value)
    return kept


def _of_data(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if isinstance(given.get("init_args"), Mapping):
            return {**given, "init_args": without_removed("", given["init_args"])}
        return without_removed("", given)
    except OptionError as error:
        raise OptionError(f"data.{error}") from None


_NULLS = ("null", "Null", "NULL", "~")


class _AsWritten(str):
    """A word that jsonargparse hands on to the parser of a class as it is. It would read a null, and hand on the text None."""


class _LeafOverrides(_TypedAction):  # type: ignore[misc]  # found, not imported
    """The action of an option whose value may be a mapping of mappings: ``--data.dataset.nodes.movie.path X`` changes only this
    leaf. jsonargparse itself replaces everything below ``nodes``, and reads the name of a column 007 as the number 7."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args:
            parser, config, value, option = args
            base = next((each for each in self.option_strings if str(option).startswith(f"{each}.")), None)
            present = config.get(self.dest) if base else None
            if base and str(value).strip() in _NULLS:
                args = (parser, config, _AsWritten(value), option)
            if base and isinstance(present, dict):
                first, *below = _keys_of(option[len(base) + 1 :], present)
                if below:
                    leaf = _value(value, _is_text(self._typehint, self.dest.rpartition(".")[2], [first, *below]))
                    changed = _with_leaf(present.get(first), below, leaf, f"{option}: {self.dest}.{first}")
                    args = (parser, config, json.dumps(changed, default=str), f"{base}.{first}")
        return super().__call__(*args, **kwargs)


def _with_leaf(present: Any, keys: list[str], value: Any, where: str) -> dict[str, Any]:
    """Returns a copy of a mapping with one leaf set. Raises TypeError if a value on the way to it is no mapping."""
    if present is None:
        present = {}
    if not isinstance(present, dict):
        raise TypeError(f"{where} is {present!r}, which has no {keys[0]!r} below it. Give all of it as a mapping.")
    first, *below = _keys_of(".".join(keys), present)
    return {**present, first: _with_leaf(present.get(first), below, value, f"{where}.{first}") if below else value}


def _is_text(kind: Any, name: str, keys: Sequence[str]) -> bool:
    """Tells whether a leaf of an option is text, by the type of the option or by the fields of table descriptions."""
    from glt_lightning.partition import is_text  # a question to a server needs no tables

    if name == "dataset" and is_text(keys):
        return True
    kinds = {kind}
    for _ in keys:
        mappings = [each for each in _alternatives(kinds) if get_origin(each) in (dict, Mapping)]
        kinds = {get_args(each)[1] for each in mappings}
    return _alternatives(kinds) - {type(None)} == {str}


def _alternatives(kinds: Iterable[Any]) -> set[Any]:
    return {one for each in kinds for one in (get_args(each) if get_origin(each) in (Union, UnionType) else (each,))}


def _value(text: str, texts: bool) -> Any:
    """Parses a word of the command line as YAML. texts: everything but null is text, such as 007 and ``on``."""
    try:
        found = yaml.safe_load(text)
        return yaml.load(text, yaml.BaseLoader) if texts and found is not None else found  # makes text alone
    except yaml.YAMLError:  # such as the glob *.csv
        return text


def _keys_of(dotted: str, present: dict[str, Any]) -> list[str]:
    """Splits a dotted path into keys; a key of the mapping may contain dots itself."""
    known = [str(key) for key in present if f"{dotted}.".startswith(f"{key}.")]
    first = max(known, key=len, default=dotted.partition(".")[0])
    return [first, *filter(None, dotted[len(first) + 1 :].split("."))]


def one_line(message: str) -> str:
    """Extracts from a message of jsonargparse the key and the fault."""
    keys = _KEY.findall(message)
    lines = [line.strip().lstrip("- ") for line in _KEY.sub("", message).splitlines()]
    reason = "; ".join(dict.fromkeys(line for line in lines if line and not _NOISE.search(line)))
    if removed := next((name for name in _REMOVED if name in message), None):
        reason = f"{removed} {_REMOVED[removed]}"
    text = f"{'.'.join(keys)}: {reason}" if keys else reason or message.splitlines()[0]
    for pattern, replacement in _WORDING:
        text = re.sub(pattern, replacement, text)
    if given := re.search(r"Given value: (.*)", message):  # of a type that has several alternatives
        text = re.sub(r"Expected an? ([\w.]+)$", lambda m: f"expected {m[1]}; got {given[1]}", text)
    return text if text.endswith((".", "?", "!")) else f"{text}."


def wrong_subcommand(message: str, known: Sequence[str]) -> str:
    """The error for a missing or unknown subcommand; empty if the message is about something else."""
    given = re.search(r"invalid choice: '([^']*)'", message)
    if not known or (given is None and _NO_SUBCOMMAND not in message):
        return ""
    what = "no subcommand is given" if given is None else f"there is no subcommand {given.group(1)!r}"
    near = [] if given is None else difflib.get_close_matches(given.group(1), known, n=1)
    hint = near[0] if near else "" if given is None else _OTHER_WORDS.get(given.group(1), "")
    return f"{what}; expected one of {', '.join(known)}.{f' Did you mean {hint}?' if hint else ''}"


def _subcommands(parser: ArgumentParser) -> list[str]:
    action = parser._subcommands_action
    return [] if action is None else list(action.choices)


def misfit(message: str) -> str:
    """Shortens torch's error about a checkpoint of another model to one line, which follows the path."""
    lines = [line.strip() for line in message.splitlines()[1:] if line.strip()]
    first = re.sub(r"torch\.Size\((\[.*?\])\)", r"\1", lines[0]).rstrip(".")
    more = f", and {len(lines) - 1} more" if len(lines) > 1 else ""
    return (
        f"was saved by a different model or for a different graph: {first}{more}. Give the options of the model "
        "that it was trained with; config.yaml in the folder of its run has them."
    )


def unlogged(message: str, logged: Iterable[str]) -> str:
    """Shortens Lightning's error about a mistyped ``monitor`` to one line with the nearest of the metrics that are logged; empty
    if the message is about something else."""
    found = _UNLOGGED.search(message)
    if found is None:
        return ""
    asker, name = [each for each in found.groups() if each]
    names = list(logged)
    near = difflib.get_close_matches(name, names, n=2)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    asker = asker.replace("Early stopping", "EarlyStopping")
    return f"{asker}.monitor: {name!r} is not logged.{hint} Logged are {', '.join(names) or 'no metrics'}."


def did_you_mean(message: str, options: Iterable[str]) -> str:
    """A hint at the nearest option or class, or at parameters that need none; empty if there is none to give."""
    if "Did you mean" in message:
        return ""
    if argument := re.search(r"unrecognized arguments: (--[\w.]+)", message):
        word, known = argument.group(1), list(options)
    elif "arguments are required" in message and "model" in _KEY.findall(message):
        return " Parameters named in_channels and out_channels are filled in from the data: features and classes."
    elif option := re.search(r"Option '(\w+)' is not accepted", message):
        kind = _CLASS.search(message)
        if kind is not None and (example := _ABSTRACT.get(kind[1].rpartition(".")[2])):
            return f" Name the class before its options, such as {example}."
        word, known = option.group(1), _parameters(message)
    elif option := re.search(r"(?:Group '([\w.]+)'|Subcommand '\w+') does not accept option '([\w.]+)'", message):
        word, known = ".".join(filter(None, option.groups())), [each.lstrip("-") for each in options]
    elif name := _NO_CLASS.search(message):
        word = name[1]
        known = [each for module in _READY for each in dir(sys.modules.get(module)) if each[:1].isupper()]
    else:
        return ""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def _parameters(message: str) -> list[str]:
    """Names of the arguments of the class that a message is about; empty if it is about none."""
    found = _CLASS.search(message)
    if found is None:
        return []
    module, _, name = found.group(1).rpartition(".")
    return list(inspect.signature(getattr(import_module(module), name)).parameters)


def _help(message: str) -> str:
    """The flag that shows help for the options that a message is about."""
    keys, kind = _KEY.findall(message), _CLASS.search(message)
    return f"--{keys[0]}.help {kind.group(1).rpartition('.')[2]}" if keys and kind else "--help"


# Configurations of ``fit`` for subcommands that want only a part of them.


def keep_groups(argv: Sequence[str], groups: Collection[str]) -> list[str]:
    """Replaces the path of each configuration in the arguments by some of its groups. Raises `OptionError` for a file that cannot
    be read."""
    given, out = iter(argv), []
    for arg in given:
        name, equals, value = arg.partition("=")
        if name not in ("--config", "-c"):
            out.append(arg)
            continue
        path = value if equals else next(given, None)
        if path is None:
            raise OptionError("--config: expected the path of a YAML file.")
        out.append(f"--config={json.dumps(_read(path, groups))}")
    return out


def _read(path: str, groups: Collection[str]) -> dict[str, Any]:
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise OptionError(f"--config: {path} contains no configuration.")
    try:
        return without_removed_options({key: raw[key] for key in groups if raw.get(key) is not None})
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None
