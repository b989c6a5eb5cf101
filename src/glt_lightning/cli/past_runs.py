"""``--ckpt_path best`` and ``last``: the checkpoint of an earlier run of the same configuration."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from jsonargparse._paths import PathError
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from glt_lightning.base import OptionError, WriteError
from glt_lightning.lightning import set_position

_KEY = "glt_run"  # in a checkpoint: the configuration of its run
_GRAPH = ("dataset", "transforms", "undirected", "normalize")  # what says which graph it is
_MOST_NAMED = 3


class RunConfig(SaveConfigCallback):
    """Keeps the configuration of a run also in its checkpoints. The file beside them may be another command's."""

    @cached_property
    def text(self) -> str:
        """The configuration as YAML. Made once, as it takes 0.14 s of CPU time and each epoch saves two checkpoints."""
        return str(self.parser.dump(self.config, skip_none=False))

    @cached_property
    def _of_run(self) -> dict[str, Any]:
        config = yaml.safe_load(self.text)
        return {name: config.get(name) for name in ("model", "data", "cluster")}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raises `WriteError` if the file cannot be written, and leaves no truncated one."""
        try:
            super().setup(trainer, pl_module, stage)
        except (OSError, PathError) as error:
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
    """A checkpoint, and how the configuration of its run differs from the present one. differences: of the model."""

    path: Path
    differences: tuple[str, ...] = ()


def find_past_run(word: str, root: str | Path, config: Mapping[str, Any]) -> PastRun:
    """The ``best`` (or ``last``: word) checkpoint of the newest run of this configuration below a ``default_root_dir``, else
    of the newest whose model has other options. Raises `OptionError` if each is of another graph or another model."""
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
    """The checkpoint of a path that a user gives. Its graph may be another one, as when a model predicts for new nodes. Raises
    `OptionError` if it is of another model, whose options and weights would take the place of the given one's."""
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


def hyperparameters_of(path: str) -> dict[str, Any]:
    """The arguments of the checkpoint's model, as far as the module has kept them (`save_hyperparameters`)."""
    try:
        found = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # any of a dozen
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OptionError(f"ckpt_path: {path}: torch cannot read this checkpoint: {reason}") from error
    known = found.get("hyper_parameters") if isinstance(found, Mapping) else None
    return {name: value for name, value in (known or {}).items() if name not in ("_class_path", "_instantiator")}


def recorded_checkpoints(word: str, root: str | Path, config: Mapping[str, Any]) -> Iterator[Path]:
    """What the runs below a ``default_root_dir`` call their ``best`` or ``last`` checkpoint, newest run first: a
    `ModelCheckpoint` names its files as the user likes, and each checkpoint has what they were when it was saved.

    config: its callbacks may keep checkpoints in other folders (``dirpath``).
    """
    folders = [Path(root) / "checkpoints", *(Path(each) for each in _found_in(root, "*/*/checkpoints"))]
    given = _checkpoint_callbacks(config)
    folders += [Path(each["dirpath"]) for each in given if isinstance(each.get("dirpath"), str)]
    # A name may have folders, as of a metric val/acc. No tree is searched: dirpath may be a home folder.
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
    """The paths of a pattern below a folder. Folders that are gone meanwhile, or closed to this user, have none."""
    return glob.glob(os.path.join(glob.escape(str(folder)), pattern), include_hidden=True)


def _mtime(path: Path) -> int | None:
    """None for a file that is gone: other runs replace and remove their checkpoints."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _checkpoint_callbacks(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The arguments of the callbacks of a configuration, among which are those of its `ModelCheckpoint`."""
    callbacks = (config.get("trainer") or {}).get("callbacks") or []
    return [each.get("init_args") or {} for each in (callbacks if isinstance(callbacks, list) else [callbacks])]


def _recorded(word: str, checkpoint: Path) -> Path | None:
    """The best or last checkpoint of a run as one of its checkpoints knows it; one that knows nothing of it goes by its name."""
    read = _read(checkpoint)
    states = read.get("callbacks") if isinstance(read, Mapping) else None
    state = chosen_state(word, states.values() if isinstance(states, Mapping) else [])
    if state is None:
        return checkpoint if checkpoint.stem == word else None
    path, folder = Path(state[f"{word}_model_path"]), Path(state.get("dirpath") or "")
    if path.is_relative_to(folder):
        # The run's folder may have been moved since: the other one is beside this one.
        own = next((each for each in checkpoint.parents if each.name == folder.name), checkpoint.parent)
        if os.path.exists(own / path.relative_to(folder)):
            return own / path.relative_to(folder)
    return path if os.path.exists(path) else None


def chosen_state(word: str, states: Iterable[Any]) -> Mapping[str, Any] | None:
    """That of the `ModelCheckpoint` whose best (or last) counts: the first that compares a metric, else the first."""
    key = f"{word}_model_path"
    found = [each for each in states if isinstance(each, Mapping) and each.get(key)]
    return next((each for each in found if each.get("best_model_score") is not None), found[0] if found else None)


def nothing_left(path: Any, trainer: Trainer) -> str:
    """Why a fit from this checkpoint would end before its first step, and what to do; empty where it would not, or where the
    file does not say."""
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
    """The configuration of its run; of earlier releases the one in the folder of the run. None if there is none."""
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
    """How the graph or the kind of model differs; empty if they are the same."""
    then_model, now_model = _model(past).get("class_path"), _model(now).get("class_path")
    if then_model != now_model:
        return f"model {then_model} (here {now_model})"
    differences = _differences(_graph(past), _graph(now))
    return f"data.{'; data.'.join(differences)}" if differences else ""


def _model(config: Mapping[str, Any]) -> dict[str, Any]:
    return _class_and_arguments(config["model"])


def _class_and_arguments(part: Mapping[str, Any]) -> dict[str, Any]:
    """A LightningCLI whose program chooses the class has the arguments without it."""
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
    """``name then (here now)`` of what both have and is different. An option of another release is in one alone."""
    names = [name for name in past if name in now and past[name] != now[name]]
    texts = [f"{name} {_short(past[name])} (here {_short(now[name])})" for name in names[:_MOST_NAMED]]
    return texts + ([f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else [])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
