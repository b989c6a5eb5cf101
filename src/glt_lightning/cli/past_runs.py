"""``--ckpt_path best`` and ``last``: the checkpoint of an earlier run of the same configuration."""

from __future__ import annotations

import glob
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from glt_lightning.base import OptionError, WriteError
from glt_lightning.lightning import set_position

_KEY = "glt_run"  # in a checkpoint: the configuration of its run
_GRAPH = ("dataset", "transforms", "undirected", "normalize")  # options that identify the graph
_MOST_NAMED = 3


class RunConfig(SaveConfigCallback):
    """Saves the configuration of a run in its checkpoints, too: the file beside them may be that of another command."""

    @cached_property
    def text(self) -> str:
        """The configuration as YAML. Cached, as it takes 0.04 s of CPU time and each epoch saves two checkpoints."""
        return str(self.parser.dump(self.config, skip_none=False, skip_check=True))  # parsing has checked it

    @cached_property
    def _of_run(self) -> dict[str, Any]:
        config = yaml.safe_load(self.text)
        return {name: config.get(name) for name in ("model", "data", "cluster")}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Writes the configuration beside the run. Raises `WriteError` if that fails, and leaves no truncated file."""
        try:
            super().setup(trainer, pl_module, stage)
        except (OSError, TypeError) as error:
            if type(error) is TypeError:  # not the one of jsonargparse about a folder
                raise
            path = Path(trainer.log_dir or "") / self.config_filename
            if isinstance(error, OSError) and error.filename is None:  # it was opened, and the disk is full
                path.unlink(missing_ok=True)
            why = error.strerror if isinstance(error, OSError) else "the folder is not writable"
            raise WriteError(
                f"{path}: the configuration of this run cannot be written ({why}). Free some space, or choose another folder "
                "with --trainer.default_root_dir or with save_dir of the logger."
            ) from error

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[_KEY] = self._of_run


@dataclass(frozen=True)
class PastRun:
    """A checkpoint, and the differences of its run's model options from the present ones, as text."""

    path: Path
    differences: tuple[str, ...] = ()


def find_past_run(word: str, root: str | Path, config: Mapping[str, Any]) -> PastRun:
    """Finds the ``best`` or ``last`` checkpoint (``word``) of the newest run of this configuration below a ``default_root_dir``,
    else of the newest run whose model has other options. Raises `OptionError` if all are of another graph or model class."""
    different: list[PastRun] = []
    newest: Path | None = None
    for path in recorded_checkpoints(word, root, config):
        newest = newest or path
        past = _config_of(path)
        if past is None or _of_another(past, config):
            continue
        differences = _differences(_model(past), _model(config))
        if not differences:
            return PastRun(path)
        different.append(PastRun(path, tuple(differences)))
    if different:
        return different[0]
    if newest is None:
        raise OptionError(
            f"ckpt_path: {word}: there is no {word} checkpoint of an earlier fit below {Path(root).resolve()}. "
            "Run fit first, or give the path of a checkpoint."
        )
    past = _config_of(newest)
    why = "does not record its configuration" if past is None else f"has {_of_another(past, config)}"
    raise OptionError(
        f"ckpt_path: {word}: no {word} checkpoint below {Path(root).resolve()} was saved for this graph and model. The "
        f"newest, {newest}, {why}. Run fit first, or give the path of a checkpoint."
    )


def past_run_at(path: str, config: Mapping[str, Any]) -> PastRun:
    """Reads the checkpoint of a path that a user gives. It may be of another graph, as when a model predicts for new nodes.
    Raises `OptionError` if it is of another model class, whose options and weights would replace those of the given one."""
    found, now = _read(Path(path)), _model(config)
    if not isinstance(found, Mapping):
        return PastRun(Path(path))
    recorded = found.get(_KEY) or {}
    if isinstance(recorded.get("model"), Mapping):
        past = _model(recorded)
    else:  # saved by a script, or by a release that did not record the run
        given = dict(found.get("hyper_parameters") or {})
        past = {"class_path": given.get("_class_path"), **given}
    if past["class_path"] is not None and now["class_path"] not in (None, past["class_path"]):
        raise OptionError(
            f"ckpt_path: {path} has model {past['class_path']}, and --model is {now['class_path']}. Give the model of the "
            "checkpoint, or a checkpoint of this model."
        )
    past["class_path"] = now["class_path"]
    return PastRun(Path(path), tuple(_differences(past, now)))


def hyperparameters_of(path: str, weights_only: bool = True) -> dict[str, Any]:
    """Reads the arguments of the checkpoint's model, as far as the module has saved them (`save_hyperparameters`)."""
    try:
        found = torch.load(path, weights_only=weights_only, map_location="cpu")
    except Exception as error:  # any of a dozen; those about a file of another kind advise to load it unsafely
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if not zipfile.is_zipfile(path):
            reason = "it is cut off, or no file of torch.save"
        elif known := re.search(r"Unsupported (?:global|class).*?((?:\w+\.)+\w+)", str(error)):
            reason = (
                f"it holds {known[1]}, not only tensors and plain values. If you trust it, add --weights_only false."
            )
        raise OptionError(f"ckpt_path: {path}: torch cannot read this checkpoint: {reason}") from error
    known = found.get("hyper_parameters") if isinstance(found, Mapping) else None
    return {name: value for name, value in (known or {}).items() if name not in ("_class_path", "_instantiator")}


def recorded_checkpoints(word: str, root: str | Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """Yields the ``best`` or ``last`` checkpoints of the runs below a ``default_root_dir``, newest run first. They are not found
    by name, which the user may choose, but by the state of `ModelCheckpoint` in each checkpoint, which has both paths.

    config: the configuration, whose callbacks may save checkpoints in other folders (``dirpath``).
    """
    folders = [Path(root) / "checkpoints", *(Path(each) for each in _found_in(root, "*/*/checkpoints"))]
    given = _checkpoint_callbacks(config)
    folders += [Path(each["dirpath"]) for each in given if isinstance(each.get("dirpath"), str)]
    # A name may have folders, as with a metric val/acc. Only so deep, not whole trees: dirpath may be a home directory
    deep = max([1, *(str(each.get("filename")).count("/") for each in given)])
    names = [f"{'*/' * depth}*.ckpt" for depth in range(deep + 1)]
    paths = {Path(each) for folder in folders for name in names for each in _found_in(folder, name)}
    times = {path: when for path in paths if (when := _mtime(path)) is not None}
    seen: set[Path] = set()
    for path in sorted(times, key=lambda path: times[path], reverse=True):
        found = _recorded(word, path)
        if found is not None and found not in seen:
            seen.add(found)
            yield found


def _found_in(folder: str | Path, pattern: str) -> list[str]:
    """Finds the paths of a pattern below a folder; none in a folder that was removed meanwhile or cannot be read."""
    return glob.glob(os.path.join(glob.escape(str(folder)), pattern), include_hidden=True)


def _mtime(path: Path) -> int | None:
    """The modification time in ns; None for a removed file, as other runs replace and remove their checkpoints."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _checkpoint_callbacks(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arguments of all callbacks of a configuration, its `ModelCheckpoint` included."""
    callbacks = (config.get("trainer") or {}).get("callbacks") or []
    return [each.get("init_args") or {} for each in (callbacks if isinstance(callbacks, list) else [callbacks])]


def _recorded(word: str, checkpoint: Path) -> Path | None:
    """The best or last checkpoint of a run according to the state in one of its checkpoints; without such a state, by the name
    of the file. None if it does not exist."""
    read = _read(checkpoint)
    states = read.get("callbacks") if isinstance(read, Mapping) else None
    state = chosen_state(word, states.values() if isinstance(states, Mapping) else [])
    if state is None:
        return checkpoint if checkpoint.stem == word else None
    path, folder = Path(state[f"{word}_model_path"]), Path(state.get("dirpath") or "")
    if path.is_relative_to(folder):
        # The run's folder may have been moved since: then the path is relative to this checkpoint's folder
        own = next((each for each in checkpoint.parents if each.name == folder.name), checkpoint.parent)
        if os.path.exists(own / path.relative_to(folder)):
            return own / path.relative_to(folder)
    return path if os.path.exists(path) else None


def chosen_state(word: str, states: Iterable[Any]) -> Mapping[str, Any] | None:
    """Chooses the state of a `ModelCheckpoint` for ``best`` or ``last``: the first one that compares a metric, else the first."""
    key = f"{word}_model_path"
    found = [each for each in states if isinstance(each, Mapping) and each.get(key)]
    return next((each for each in found if each.get("best_model_score") is not None), found[0] if found else None)


def nothing_left(path: Any, trainer: Trainer) -> str:
    """The message for a fit from a checkpoint that would end before its first step; empty if it would not, or if the checkpoint
    lacks the numbers."""
    found = _read(Path(str(path)))
    try:
        set_position(found["loops"]["fit_loop"])  # an epoch that max_steps ended early is not over
        epochs = int(found["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
        steps = int(found["global_step"])
    except (AttributeError, TypeError, KeyError, ValueError):
        return ""
    for name, done in (("max_epochs", epochs), ("max_steps", steps)):
        limit = getattr(trainer, name)
        if limit is not None and 0 <= limit <= done:
            return (
                f"ckpt_path: {path}: this run has finished: trainer.{name} is {limit}, and the checkpoint already "
                f"has {done}, so nothing is trained. Set --trainer.{name} above {done} to continue, or test or predict with "
                "this checkpoint; leave out --ckpt_path to train from the beginning."
            )
    return ""


def _read(checkpoint: Path) -> Any:
    if not os.path.isfile(checkpoint):  # a named pipe would be waited for
        return None
    try:
        return torch.load(checkpoint, weights_only=True, mmap=True, map_location="cpu")
    except Exception:  # a file that torch cannot read, or with classes that it does not know: any of a dozen errors
        return None


def _config_of(checkpoint: Path) -> Mapping[str, Any] | None:
    """The configuration of a checkpoint's run; for a checkpoint of an earlier release, that in the run's folder. None without
    one."""
    read = _read(checkpoint)
    found = read.get(_KEY) if isinstance(read, Mapping) else None
    if found is None:
        try:
            found = yaml.safe_load((checkpoint.parent.parent / "config.yaml").read_text())
        except (OSError, ValueError, yaml.YAMLError):
            return None
    known = isinstance(found, Mapping) and all(isinstance(found.get(name), Mapping) for name in ("model", "data"))
    return found if known else None


def _of_another(past: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the graph or the class of the model differs; empty if they are the same."""
    then_model, now_model = _model(past).get("class_path"), _model(now).get("class_path")
    if then_model != now_model:
        return f"model {then_model} (here {now_model})"
    differences = _differences(_graph(past), _graph(now))
    return f"data.{'; data.'.join(differences)}" if differences else ""


def _model(config: Mapping[str, Any]) -> dict[str, Any]:
    return _class_and_arguments(config["model"])


def _class_and_arguments(part: Mapping[str, Any]) -> dict[str, Any]:
    """Normalises a part of a configuration. A LightningCLI with a fixed class has the arguments without ``class_path``."""
    if "class_path" not in part:
        return {"class_path": None, **part}
    return {"class_path": part["class_path"], **(part.get("init_args") or {})}


def _graph(config: Mapping[str, Any]) -> dict[str, Any]:
    given = _class_and_arguments(config["data"])
    graph = {"class_path": given["class_path"], **{name: given.get(name) or None for name in _GRAPH}}
    if graph["transforms"] is not None:  # which may draw, such as RandomNodeSplit
        graph["partition.seed"] = (given.get("partition") or {}).get("seed")
    if graph["dataset"] is None:  # then a finished partition, or servers have it
        graph["partition.dir"] = (given.get("partition") or {}).get("dir")
        graph["servers"] = (config.get("cluster") or {}).get("servers") or None
    return graph


def _differences(past: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Texts ``name then (here now)`` for options that differ, and for each key within mappings. Options that only one has, as of
    another release, are ignored."""
    texts = [text for name in past if name in now for text in _unlike(name, past[name], now[name])]
    return texts[:_MOST_NAMED] + ([f"{len(texts) - _MOST_NAMED} more"] if len(texts) > _MOST_NAMED else [])


def _unlike(name: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*then, *now]):
            yield from _unlike(f"{name}.{key}", then.get(key), now.get(key))
    elif then != now:
        yield f"{name} {_short(then)} (here {_short(now)})"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
