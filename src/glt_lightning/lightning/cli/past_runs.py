"""``--ckpt_path best`` and ``last``: the checkpoint of an earlier run of the same configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from glt_lightning.errors import OptionError

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

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[_KEY] = self._of_run


@dataclass(frozen=True)
class PastRun:
    """A checkpoint, and how the configuration of its run differs from the present one. differences: of the model."""

    path: Path
    differences: tuple[str, ...] = ()


def find_past_run(word: str, root: str | Path, config: Mapping[str, Any]) -> PastRun:
    """The newest ``best.ckpt`` (or ``last.ckpt``: word) below a ``default_root_dir`` that is of this configuration, else
    the newest whose model has other options. Raises `OptionError` if each is of another graph or another model."""
    found = checkpoints_below(root, word)
    if not found:
        raise OptionError(
            f"ckpt_path: {word}: there is no checkpoints/{word}.ckpt of an earlier fit below {Path(root).resolve()}. "
            "Run fit first, or give the path of a checkpoint."
        )
    different: list[PastRun] = []
    for path in found:
        past = _config_of(path)
        if past is None or _of_another(past, config):
            continue
        differences = _differences(_model(past), _model(config))
        if not differences:
            return PastRun(path)
        different.append(PastRun(path, tuple(differences)))
    if different:
        return different[0]
    past = _config_of(found[0])
    why = "does not record its configuration" if past is None else f"has {_of_another(past, config)}"
    raise OptionError(
        f"ckpt_path: {word}: no {word}.ckpt below {Path(root).resolve()} was saved for this graph and model. The "
        f"newest, {found[0]}, {why}. Run fit first, or give the path of a checkpoint."
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


def checkpoints_below(root: str | Path, word: str) -> list[Path]:
    """Each run's, newest first."""
    root = Path(root)
    found = [*root.glob(f"*/*/checkpoints/{word}.ckpt"), *root.glob(f"checkpoints/{word}.ckpt")]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def nothing_left(path: Any, trainer: Trainer) -> str:
    """Why a fit from this checkpoint would end before its first step, and what to do; empty where it would not, or where the
    file does not say."""
    found = _read(Path(str(path)))
    try:
        epochs = int(found["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])
        steps = int(found["global_step"])
    except (TypeError, KeyError, ValueError):
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
