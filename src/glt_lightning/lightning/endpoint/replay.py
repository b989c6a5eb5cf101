"""`replay`: answers of an endpoint once more, offline, from its record."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from glt_lightning.base import DataError, DeployOptions, OptionError, as_options, counted
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.endpoint.compute import Columns, Model
from glt_lightning.lightning.endpoint.deploy import ServingModule, check_deployable, predict_with
from glt_lightning.lightning.endpoint.question import read_question
from glt_lightning.lightning.endpoint.served_graph import AskedRows, ServedGraph

_CLOSE = 1e-6


@dataclass
class Replayed:
    """What a replay found.

    Attributes:
        answers: Number of answers.
        batches: Number of batches that they were computed in.
        samples: Answers whose sample is another one.
        predictions: Answers whose prediction is another one, in any bit.
        alone: Answers whose prediction, computed by itself, differs by more than 1e-6.
    """

    answers: int = 0
    batches: int = 0
    samples: int = 0
    predictions: int = 0
    alone: int = 0

    @property
    def equal(self) -> bool:
        return not (self.samples or self.predictions or self.alone)

    def __str__(self) -> str:
        found = f"{counted(self.answers, 'answer')} of {counted(self.batches, 'batch')}"
        if self.equal:
            return f"{found}: samples and predictions are equal, bit for bit"
        return f"{found}: {self.samples} other samples, {self.predictions} other predictions, {self.alone} others by themselves"


def replay(
    trainer: Trainer,
    model: LightningModule,
    datamodule: GLTDataModule,
    record: str | Path,
    *,
    ckpt_path: str | Path | None = None,
    options: DeployOptions | dict[str, Any] | None = None,
    alone: bool = False,
) -> Replayed:
    """Computes the answers of an endpoint's record once more, and compares them.

    A sample is compared by its hash. Predictions are computed in the batches of the record with its number of threads, and have
    to be equal in every bit.

    Args:
        trainer: Whose strategy, device and precision are used: those of the endpoint.
        model: The model of the endpoint; another one, by the hash of its weights, is refused.
        datamodule: Its data, with the versions of the graph that answered.
        record: The file of ``endpoint.record``.
        ckpt_path: A checkpoint to load first.
        options: Fields of `DeployOptions`: limits, and ``embeddings``.
        alone: Compute each answer by itself, too: it is that of the batch within 1e-6.

    Raises:
        DataError: For a record that is damaged, or of another model or graph.

    Example:
        >>> from contextlib import contextmanager
        >>> @contextmanager
        ... def listen(endpoint):  # in place of HTTP
        ...     endpoint.submit(b'{"ids": [7]}')
        ...     endpoint.queue.close()  # once it is answered
        ...     yield
        >>> trainer = Trainer(logger=False)
        >>> deploy(trainer, model, datamodule, options={"record": "answers.jsonl"}, listen=listen)
        >>> replay(trainer, model, datamodule, "answers.jsonl").equal
        True
    """
    check_deployable(trainer, datamodule)
    module = ReplayModule(
        model, as_options(DeployOptions, "endpoint", {} if options is None else options), record, alone
    )
    predict_with(trainer, module, datamodule, ckpt_path)
    return module.found


class ReplayModule(ServingModule):
    """A `ServingModule` of recorded batches."""

    def __init__(self, inner: LightningModule, options: DeployOptions, record: str | Path, alone: bool) -> None:
        super().__init__(inner, options)
        self._record, self._alone, self.found = Path(record), alone, Replayed()
        self._lines: list[dict[str, Any]] = []
        self._graph: ServedGraph | None = None
        self._model: Model | None = None

    def open(self, data: GLTDataModule) -> None:
        self._graph = ServedGraph(data, self.inner)
        self._model = Model(self.inner, data, self.options.embeddings)
        self._lines = list(read_record(self._record))
        for number, line in enumerate(self._lines):
            for name, own in (("model", self._model.hash), ("graph", self._graph.hash)):
                if line[name] != own:
                    raise DataError(
                        f"{self._record}, line {number + 1}: answered by another {name} ({line[name]}; here is {own}). Give the "
                        "checkpoint and the data of the endpoint."
                    )

    def close(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def run(self) -> None:
        for line in self._lines:
            self._compare(line)

    def _compare(self, line: Mapping[str, Any]) -> None:
        assert self._model is not None
        asked = [self._sample(part) for part in line["requests"]]
        before = torch.get_num_threads()
        torch.set_num_threads(line["threads"])
        try:
            found = self._model.predict(asked)
            apart = [self._model.predict([each])[0] for each in asked] if self._alone else []
        finally:
            torch.set_num_threads(before)
        self.found.batches += 1
        self.found.answers += len(asked)
        for number, (part, rows, columns) in enumerate(zip(line["requests"], asked, found, strict=True)):
            assert rows.asked is not None
            self.found.samples += rows.asked.digest != part["sample"]
            self.found.predictions += not _equal(columns, part["columns"], 0.0)
            self.found.alone += bool(apart) and not _equal(apart[number], part["columns"], _CLOSE)

    def _sample(self, part: Mapping[str, Any]) -> AskedRows:
        assert self._graph is not None
        question = read_question(base64.b64decode(part["body"]), part["content_type"], self.options)
        return self._graph.at(part["version"]).answerable(replace(question, key=None), int(part["key"]), self.options)


def read_record(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yields the batches of a record. Raises `DataError`, naming the line, for one that is damaged."""
    try:
        with open(path, encoding="utf-8") as lines:
            for number, text in enumerate(lines):
                try:
                    line = json.loads(text)
                    _ = line["model"], line["graph"], line["threads"], [part["columns"] for part in line["requests"]]
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(f"{path}, line {number + 1}: not a batch of a record ({error!r:.100}).") from None
                yield line
    except OSError as error:
        raise OptionError(f"record: {path}: {error.strerror or error}.") from None


def _equal(columns: Columns, recorded: Mapping[str, Sequence[Any]], tolerance: float) -> bool:
    if set(columns) != set(recorded):
        return False
    for name, values in columns.items():
        if values.dtype == object:
            if values.tolist() != recorded[name]:
                return False
            continue
        given = np.array(recorded[name], values.dtype)
        if given.shape != values.shape:
            return False
        if tolerance and values.dtype.kind == "f":
            if not np.allclose(values, given, rtol=tolerance, atol=tolerance, equal_nan=True):
                return False
        elif values.tobytes() != given.tobytes():
            return False
    return True
