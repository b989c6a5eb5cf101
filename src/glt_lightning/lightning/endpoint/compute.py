"""From the samples of some requests to their predictions: one batch for the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from glt_lightning.base import OptionError
from glt_lightning.lightning.callbacks.predictions import class_column
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.embeddings import embeddings_of
from glt_lightning.lightning.endpoint.question import QuestionError
from glt_lightning.lightning.endpoint.served_graph import AskedRows
from glt_lightning.lightning.new_rows import extend_embeddings
from glt_lightning.loader import AskedSample

Columns = dict[str, np.ndarray]
_EMBEDDING = "embedding"  # in an answer where it is asked for, or is all there is
_NAMES = ("n_id", "destination", "edge_type")  # columns that say what the rows are, which answers do anyway


class Model:
    """A module that predicts what requests ask for.

    Attributes:
        module: The module.
        hash: Of its weights.
    """

    def __init__(self, module: LightningModule, data: GLTDataModule, embeddings: str) -> None:
        self.module = module
        self._module: Any = module
        self._data = data
        self._moving: Any = module if is_overridden("transfer_batch_to_device", module) else data
        ours = type(self._moving).transfer_batch_to_device is GLTDataModule.transfer_batch_to_device
        if ours and module.device.type == "cpu":
            self._moving = None  # batches are there already; a walk through one takes 0.07 ms
        extend_embeddings(module, embeddings)
        if isinstance(getattr(module, "embeddings", None), bool):  # of a ready module: its predictions have them
            setattr(module, "embeddings", True)  # noqa: B010
        names = getattr(module, "class_names", None) or data.class_names or ()
        self._classes = [str(name) for name in names]
        self.hash = _hash(module)

    def predict(self, asked: Sequence[AskedRows]) -> list[Columns]:
        """Predicts the rows of requests as one batch. Returns the columns of each. Raises whatever the module raises."""
        samples = [each.asked for each in asked if each.asked is not None]
        batch: Any = AskedSample.join(samples)
        if self._data.transform is not None:
            batch = self._data.transform(batch, "predict", 0)
        outputs = self._outputs(self._moved(batch), asked[0])
        rows = [len(each.rows) for each in asked]
        found = {name: _array(name, values, sum(rows)) for name, values in outputs.items() if name not in _NAMES}
        if "pred" in found and self._classes:
            found |= {name: _objects(values) for name, values in class_column(found["pred"], self._classes).items()}
        without = {name: values for name, values in found.items() if name != _EMBEDDING} or found
        spans = zip(asked, pairwise(np.cumsum([0, *rows])), strict=True)
        return [
            {name: values[begin:end] for name, values in (found if each.embedding else without).items()}
            for each, (begin, end) in spans
        ]

    def _moved(self, batch: Any) -> Any:
        module = self._module
        batch = module.on_before_batch_transfer(batch, 0)
        if self._moving is not None:
            batch = self._moving.transfer_batch_to_device(batch, module.device, 0)
        return module.on_after_batch_transfer(batch, 0)

    def _outputs(self, batch: Any, first: AskedRows) -> Mapping[str, Any]:
        if self._data.links is None or first.is_pairs:
            outputs = self._module.predict_step(batch, 0)
            if not isinstance(outputs, Mapping):
                raise OptionError(
                    "deploy: predict_step of the model: expected a dictionary of tensors with a row for each seed, got "
                    f"{type(outputs).__name__}."
                )
            return outputs
        if not hasattr(self._module, "embed"):
            raise QuestionError(
                "ids: the model predicts edges and has no method embed for nodes. Ask for pairs.", "ids"
            )
        found = self._module.embed(batch)
        if not isinstance(found, tuple):
            return {_EMBEDDING: found}
        source = self._data.links.edge_types(self._data.opened_graph.schema)[0][0]
        of_source = self._data.opened_graph.schema.homogeneous or first.of_type == source
        return {_EMBEDDING: found[0 if of_source else 1]}


def _array(name: str, values: Any, count: int) -> np.ndarray:
    if not isinstance(values, torch.Tensor) or values.dim() == 0 or len(values) != count:
        shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise OptionError(f"deploy: {name!r} of predict_step: expected a row for each of {count} seeds, got {shape}.")
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _objects(values: Any) -> np.ndarray:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _hash(module: torch.nn.Module) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, torch.Tensor):
            found.update(f"{name}:{value.dtype}:{tuple(value.shape)}:".encode())
            found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for name, rows in sorted(embeddings_of(module).items()):
        found.update(f"{name}:{rows.trained.hash}:".encode())
    return found.hexdigest()
