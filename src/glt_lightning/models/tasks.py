"""The prediction tasks: the loss, the inputs of metrics and the predictions for each kind of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import classification

from glt_lightning.base import DataError, OptionError

Facts = Mapping[str, Any]


class Task(Protocol):
    """A prediction task: the loss and the metrics of outputs [S, out_channels] of a model and labels y [S] or [S, D] of its
    seeds. It is a module, whose buffers hold what `learn` has computed from the training labels."""

    name: str
    out_channels: int
    needs_labels: bool  # True if `learn` must be called, to take values from the labels or to check them

    def labelled(self, y: Tensor) -> Tensor:
        """Returns bool [S]: whether each seed has a label."""

    def learn(self, labels: Tensor) -> None:
        """Called with the labels of the training seeds before the first step, to compute class weights or scales."""

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean loss, and the weight of these seeds in a mean over several batches."""

    def scores(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns scores and targets in the form that torchmetrics takes."""

    def predict(self, out: Tensor) -> dict[str, Tensor]:
        """Returns the values to write for each node, by name of the column."""


class Multiclass(nn.Module):
    """The task with one of C classes for each node. Labels are integers [S]; a negative one means none."""

    name: ClassVar[str] = "multiclass"

    def __init__(self, facts: Facts, class_weights: Any) -> None:
        super().__init__()
        self.weight: Tensor
        self.out_channels = int(facts["num_classes"])
        self.balanced = self.needs_labels = class_weights == "balanced"
        self.register_buffer("weight", _weights(class_weights, self.out_channels, facts))

    def labelled(self, y: Tensor) -> Tensor:
        return y >= 0

    def learn(self, labels: Tensor) -> None:
        if self.balanced:
            counts = torch.bincount(labels[labels >= 0].long(), minlength=self.out_channels)
            self.weight.copy_(_balanced(counts))

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = y.long(), _full(self.weight)
        total = weights[y].sum()
        return _mean(functional.cross_entropy(_full(out), y, weights, reduction="sum"), total), total

    def scores(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return out.float().softmax(dim=-1), y.long()

    def predict(self, out: Tensor) -> dict[str, Tensor]:
        return {"pred": out.argmax(dim=-1), "probability": out.float().softmax(dim=-1)}


class Binary(nn.Module):
    """The task with two classes. Labels [S] are booleans, or 0 and 1; a negative one means none. The model outputs one logit."""

    name: ClassVar[str] = "binary"
    out_channels = 1

    def __init__(self, facts: Facts, class_weights: Any) -> None:
        super().__init__()
        self.weight: Tensor
        self.balanced = class_weights == "balanced"
        self.needs_labels = self.balanced or facts["kind"] == "float"  # of integers num_classes says it
        self.register_buffer("weight", _weights(class_weights, 2, facts))

    def labelled(self, y: Tensor) -> Tensor:
        return _column(y) >= 0

    def learn(self, labels: Tensor) -> None:
        labels = _column(labels)
        if (labels > 1).any() or (labels != labels.long()).any():
            raise DataError("task: binary: expected labels 0 and 1, or booleans; the training seeds have other values.")
        if self.balanced:
            self.weight.copy_(_balanced(torch.bincount(labels[labels >= 0].long(), minlength=2)))

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = _column(y)
        out, weight = _full(out[:, 0]), _full(self.weight)[y.long()]
        losses = functional.binary_cross_entropy_with_logits(out, y.to(out.dtype), weight, reduction="sum")
        return _mean(losses, weight.sum()), weight.sum()

    def scores(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return out[:, 0].float().sigmoid(), _column(y).long()

    def predict(self, out: Tensor) -> dict[str, Tensor]:
        probability = out[:, 0].float().sigmoid()
        return {"pred": (probability > 0.5).long(), "probability": probability}


class Multilabel(nn.Module):
    """The task with any of C labels for each node. y [S, C] is of 0 and 1; a negative value or NaN means unknown."""

    name: ClassVar[str] = "multilabel"

    def __init__(self, facts: Facts, class_weights: Any) -> None:
        super().__init__()
        self.weight: Tensor
        self.out_channels = int(facts["width"])
        self.balanced = class_weights == "balanced"
        self.needs_labels = self.balanced or facts["kind"] != "bool"
        self.register_buffer("weight", _weights(class_weights, self.out_channels, facts))

    def labelled(self, y: Tensor) -> Tensor:
        return (y >= 0).any(dim=1)

    def learn(self, labels: Tensor) -> None:
        known = labels >= 0
        if ((labels != 0) & (labels != 1) & known).any():
            raise DataError(
                "task: multilabel: expected labels 0 and 1, or booleans; the training seeds have other values."
            )
        if self.balanced:
            positive = (labels > 0).sum(dim=0)
            ratio = (known.sum(dim=0) - positive) / positive.clamp(min=1)
            some = (positive > 0) & (ratio > 0)  # a label that all have, or none, counts as it is
            self.weight.copy_(torch.where(some, ratio, 1.0))

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        known = (y >= 0).to(out.dtype)
        target = torch.where(y >= 0, y, 0).to(out.dtype)
        losses = functional.binary_cross_entropy_with_logits(
            out, target, known, pos_weight=self.weight.to(out.dtype), reduction="sum"
        )
        return losses / known.sum(), known.sum()

    def scores(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return out.float().sigmoid(), torch.where(y >= 0, y, -1).long()

    def predict(self, out: Tensor) -> dict[str, Tensor]:
        probability = out.float().sigmoid()
        return {"pred": probability > 0.5, "probability": probability}


class Regression(nn.Module):
    """The task with one number for each node, or D of them. y is [S] or [S, D]; NaN, or a negative integer, means none.

    The model learns normalised numbers: less their mean over the training seeds, divided by their deviation. The magnitude of a
    price or a year would take Adam thousands of steps to reach. Losses are of normalised numbers; predictions and metrics are in
    the units of the labels.
    """

    name: ClassVar[str] = "regression"
    needs_labels = True

    def __init__(self, facts: Facts, class_weights: Any) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        if class_weights is not None:
            raise OptionError("class_weights: a regression has no classes; leave it out.")
        self.out_channels = int(facts["width"] or 1)
        self.register_buffer("mean", torch.zeros(self.out_channels))
        self.register_buffer("deviation", torch.ones(self.out_channels))

    def labelled(self, y: Tensor) -> Tensor:
        if y.dim() == 1 and not y.is_floating_point():
            return y >= 0
        return ~_rows(y).isnan().any(dim=1)

    def learn(self, labels: Tensor) -> None:
        rows = _rows(labels)[self.labelled(labels)].double()
        if not rows.isfinite().all():
            raise DataError("task: regression: a label of the training seeds is infinite. Correct the labels.")
        if not len(rows):
            raise DataError("task: regression: no training seed has a label. Correct the labels or the split.")
        deviation = rows.std(dim=0, correction=0)
        self.mean.copy_(rows.mean(dim=0))
        self.deviation.copy_(torch.where(deviation > 0, deviation, 1.0))

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        # in float64: under bf16-true the buffers are bfloat16, in which years are multiples of 8
        wanted = (_rows(y).double() - self.mean.double()) / self.deviation.double()
        return functional.mse_loss(out, wanted.to(out.dtype)), torch.tensor(float(len(out)), device=out.device)

    def scores(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values, wanted = self._values(out), _rows(y).float()
        return (values[:, 0], wanted[:, 0]) if self.out_channels == 1 else (values, wanted)

    def predict(self, out: Tensor) -> dict[str, Tensor]:
        values = self._values(out)
        return {"pred": values[:, 0] if self.out_channels == 1 else values}

    def _values(self, out: Tensor) -> Tensor:
        return out.float() * self.deviation + self.mean


class Ordinal(nn.Module):
    """The task with one of C classes that have an order, such as 1 to 5 stars. Labels are integers [S]; a negative one is none.

    The model outputs one number; C - 1 learned bounds, which ascend, divide it into classes (proportional odds: McCullagh,
    Regression models for ordinal data, 1980), so the probabilities of "more than k" never cross.
    """

    name: ClassVar[str] = "ordinal"
    out_channels = 1
    needs_labels = False

    def __init__(self, facts: Facts, class_weights: Any) -> None:
        super().__init__()
        if class_weights is not None:
            raise OptionError("class_weights: not for ordinal labels; leave it out.")
        self.num_classes = int(facts["num_classes"])
        self.first = nn.Parameter(torch.tensor(-1.0))
        self.gaps = nn.Parameter(torch.zeros(max(0, self.num_classes - 2)))

    def labelled(self, y: Tensor) -> Tensor:
        return y >= 0

    def learn(self, labels: Tensor) -> None:
        pass

    def _probabilities(self, out: Tensor) -> Tensor:
        """Returns [S, C], differences of the probabilities of "more than k"."""
        bounds = self.first + torch.cat([self.first.new_zeros(1), functional.softplus(self.gaps).cumsum(0)])
        above = (_full(out) - _full(bounds)).sigmoid()
        ends = above.new_ones(len(out), 1), above.new_zeros(len(out), 1)
        return torch.cat([ends[0], above], dim=1) - torch.cat([above, ends[1]], dim=1)

    def loss(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self._probabilities(out).gather(1, y.long()[:, None]).clamp(min=1e-7)
        return -chosen.log().mean(), torch.tensor(float(len(out)), device=out.device)

    def scores(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self._probabilities(out), y.long()

    def predict(self, out: Tensor) -> dict[str, Tensor]:
        probability = self._probabilities(out)
        return {"pred": _median(probability), "probability": probability}


def _median(probability: Tensor) -> Tensor:
    """Returns the class [S] at which the probabilities [S, C] add up to a half: of the least absolute error."""
    return (probability.cumsum(1) < 0.5).sum(1)


def no_loss(task: nn.Module, out: Tensor) -> Tensor:
    """A loss of 0 that all parameters take part in, for a rank without labels, so that all ranks make the step."""
    return out.sum() * 0 + sum((p.sum() * 0 for p in task.parameters()), out.new_zeros(()))


_TASKS: dict[str, type[Any]] = {kind.name: kind for kind in (Multiclass, Binary, Multilabel, Regression, Ordinal)}


# What each task can take: kinds of labels [N], kinds of labels [N, D].
_TAKES = {
    "multiclass": (("int", "bool"), ()),
    "binary": (("int", "bool", "float"), ()),
    "multilabel": ((), ("int", "bool", "float")),
    "regression": (("int", "float"), ("int", "float")),
    "ordinal": (("int",), ()),
}


def make_task(name: str | None, facts: Facts | None, class_weights: Any) -> Any:
    """Makes the `Task` of a name, or the one that the labels suggest. Raises `OptionError` or `DataError` if they do not fit."""
    if name is not None and name not in _TASKS:
        raise OptionError(f"task: expected one of {', '.join(_TASKS)}; got {name!r}.")
    if facts is None:
        raise DataError(
            "the data set has no labels y, so there is nothing to train on. Give them with the data set; in a "
            "script pass label_facts=data.label_facts. To predict for nodes without labels, give the --ckpt_path of "
            "a model that was trained on nodes with labels."
        )
    chosen = _suggested(facts) if name is None else name
    flat, wide = _TAKES[chosen]
    kind, width, classes = facts["kind"], facts["width"], facts["num_classes"]
    fits = kind in (flat if width is None else wide)
    if chosen in ("multiclass", "ordinal"):
        fits = fits and (classes or 0) > (chosen == "ordinal")
    if chosen == "binary":
        fits = fits and (kind == "float" or (classes or 0) <= 2)
    if not fits:
        raise DataError(
            f"task: {chosen}: does not fit the labels, which are {_shown(facts)}. They suit "
            f"{' or '.join(each for each in _TASKS if each == _suggested(facts))}."
        )
    return _TASKS[chosen](facts, class_weights)


def _suggested(facts: Facts) -> str:
    if facts["width"] is not None:
        return "regression" if facts["kind"] == "float" else "multilabel"
    if facts["kind"] == "float" or not facts["num_classes"]:  # integers too great for classes are times or amounts
        return "regression"
    return "binary" if facts["num_classes"] <= 2 else "multiclass"


def _shown(facts: Facts) -> str:
    shape = "[N]" if facts["width"] is None else f"[N, {facts['width']}]"
    classes = facts["num_classes"] if facts["width"] is None else None
    return f"{facts['kind']} {shape}" + (f" with {classes} classes" if classes else "")


def _weights(given: Any, count: int, facts: Facts) -> Tensor:
    """Returns float32 [C]: the given weights; ones for ``balanced``, whose weights `learn` computes when training begins."""
    if given is None or given == "balanced":
        return torch.ones(count)
    if isinstance(given, Mapping):
        given = _by_name(given, count, facts.get("class_names"))
    good = isinstance(given, (list, tuple)) and all(_is_weight(w) for w in given)
    if not good or len(given) != count:
        raise OptionError(
            f"class_weights: expected balanced, or {count} numbers >= 0, one for each class; got "
            f"{f'{len(given)} of them' if good else repr(given)}."
        )
    if not any(given):
        raise OptionError(
            "class_weights: all are 0, so nothing would be learned. Give at least one class a weight above 0."
        )
    return torch.tensor([float(w) for w in given])


def _is_weight(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _by_name(given: Mapping[Any, Any], count: int, names: Any) -> list[Any]:
    names = names or [str(c) for c in range(count)]
    if unknown := [str(key) for key in given if str(key) not in names]:
        raise OptionError(f"class_weights: expected names of classes ({', '.join(names[:20])}); got {unknown[0]!r}.")
    by_name = {str(key): weight for key, weight in given.items()}
    return [by_name.get(name, 1.0) for name in names]


def _balanced(counts: Tensor) -> Tensor:
    """Returns weights [C] that give all classes that occur the same total weight; 1 for a class that does not."""
    present = counts > 0
    weights = counts.sum() / (present.sum() * counts.clamp(min=1))
    return torch.where(present, weights, 1.0)


def _mean(losses: Tensor, weight: Tensor) -> Tensor:
    """Divides a sum of losses by the sum of their weights: 0, not NaN, for a batch of classes that all weigh 0."""
    return losses / weight.clamp(min=torch.finfo(weight.dtype).tiny)


def _full(values: Tensor) -> Tensor:
    """Converts values to float32 at least: the sum of many losses overflows a float16."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _column(y: Tensor) -> Tensor:
    """Converts boolean labels to integers."""
    return y.long() if y.dtype == torch.bool else y


def _rows(y: Tensor) -> Tensor:
    y = y if y.is_floating_point() else y.double()
    return y[:, None] if y.dim() == 1 else y


# Metrics by name for each task, from torchmetrics.


# Name -> (class of torchmetrics, how classes or labels are averaged; None: the class has no such argument).
_CLASSES: dict[str, tuple[str, str | None]] = {
    "acc": ("Accuracy", "micro"),
    "macro_acc": ("Accuracy", "macro"),
    "f1": ("F1Score", "macro"),
    "micro_f1": ("F1Score", "micro"),
    "auc": ("AUROC", "macro"),
    "ap": ("AveragePrecision", "macro"),
    "precision": ("Precision", "macro"),
    "recall": ("Recall", "macro"),
    "mcc": ("MatthewsCorrCoef", None),
}


# Of ordinal labels beside those of `_CLASSES`
_ORDERED = ("mae", "qwk")

_NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mae": ("MeanAbsoluteError", {}),
    "mse": ("MeanSquaredError", {}),
    "rmse": ("MeanSquaredError", {"squared": False}),
    "r2": ("R2Score", {}),
}

_DEFAULT = {
    "multiclass": ("acc",),
    "binary": ("acc", "auc"),
    "multilabel": ("micro_f1", "auc"),
    "regression": ("mae", "rmse", "r2"),
    "ordinal": ("mae", "acc", "qwk"),
}

_LOWER_IS_BETTER = ("loss", "mae", "mse", "rmse")


def metric_names(task: str, given: Sequence[str] | None) -> list[str]:
    """Names of the metrics: the given ones, else the defaults of the task. Raises `OptionError` for an unknown one."""
    known = [*_NUMBERS] if task == "regression" else [*_CLASSES, *(_ORDERED if task == "ordinal" else ())]
    names = list(_DEFAULT[task]) if given is None else [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in names if name not in known]:
        raise OptionError(f"metrics: expected any of {', '.join(known)} for task {task}; got {unknown[0]!r}.")
    return list(dict.fromkeys(names))


def make_task_metrics(task: Any, names: Sequence[str]) -> nn.ModuleDict:
    """Makes the metrics of a `Task` by name."""
    return make_metrics(task.name, getattr(task, "num_classes", task.out_channels), names)


def make_metrics(task: str, out_channels: int, names: Sequence[str]) -> nn.ModuleDict:
    """Makes metrics by name. `update_metric` passes them scores between 0 and 1, or numbers for a regression."""
    return nn.ModuleDict({name: _make(task, out_channels, name) for name in names})


def monitor_of(val_metric: str | None, names: Sequence[str]) -> tuple[str, str]:
    """Returns the logged name, and ``min`` or ``max``, of the metric that chooses the best checkpoint; None: the first of
    ``names``."""
    known = [*names, "loss"]
    name = known[0] if val_metric is None else str(val_metric).removeprefix("val_")
    if name not in known:
        raise OptionError(
            f"val_metric: expected one of {', '.join(f'val_{each}' for each in known)}; got {val_metric!r}. Add it to metrics."
        )
    return f"val_{name}", "min" if name in _LOWER_IS_BETTER else "max"


def update_metric(metric: Any, scores: Tensor, targets: Tensor) -> None:
    """Updates a metric with rows; a rank without seeds has none.

    torchmetrics cannot add zero rows. A metric that stores all rows (``auc``, ``ap``) gathers them from every rank, and a rank
    with an empty list would contribute a tensor of another shape, at which the other ranks hang or fail. Such a metric gets a
    copy of the targets: a view would keep the memory of its batch until the end of the epoch.
    """
    stores_rows = isinstance(getattr(metric, "preds", None), list)
    targets = targets.clone() if stores_rows else targets
    if len(scores):
        metric.update(scores, targets)
    elif stores_rows:
        metric.preds.append(scores)
        metric.target.append(targets)


def only_checks(module: Any) -> bool:
    """Tells whether the Trainer runs its sanity check. Its few batches may be of one class, for which torchmetrics warns, so
    metrics are updated and not computed then."""
    return bool(getattr(module._trainer, "sanity_checking", False))


def _make(task: str, out_channels: int, name: str) -> nn.Module:
    if name == "r2":
        return _R2()
    if task == "ordinal":
        return _of_levels(name, out_channels)
    kind, options = _NUMBERS[name] if task == "regression" else _classes_options(task, out_channels, name)
    return getattr(torchmetrics, kind)(**options)


class _R2(torchmetrics.R2Score):
    """R2 that is NaN for fewer than two rows, for which torchmetrics raises: a validation split without labels would end the
    run."""

    def compute(self) -> Tensor:
        return super().compute() if self.total > 1 else torch.full_like(self.total, torch.nan, dtype=torch.float32)


class _OfLevels(torchmetrics.Metric):
    """A metric of ordinal labels by the classes that are predicted, which are medians."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        super().update(_median(preds), target)  # type: ignore[safe-super]  # of the other base


def _of_levels(name: str, num_classes: int) -> nn.Module:
    kind: Any
    if name == "mae":
        kind, options = torchmetrics.MeanAbsoluteError, dict[str, Any]()
    elif name == "qwk":
        kind, options = classification.MulticlassCohenKappa, {"num_classes": num_classes, "weights": "quadratic"}
    else:
        named, average = _CLASSES[name]
        kind = getattr(classification, f"Multiclass{named}")
        options = {"num_classes": num_classes} | ({} if average is None else {"average": average})
    if name not in ("auc", "ap"):
        kind = type(kind.__name__, (_OfLevels, kind), {})
    return kind(**options)


def _classes_options(task: str, out_channels: int, name: str) -> tuple[str, dict[str, Any]]:
    kind, average = _CLASSES[name]
    options: dict[str, Any] = {"task": task}
    if task == "multiclass":
        options |= {"num_classes": out_channels}
    if task == "multilabel":
        options |= {"num_labels": out_channels, "ignore_index": -1}
    if average is not None and task != "binary":
        options |= {"average": average}
    return kind, options
