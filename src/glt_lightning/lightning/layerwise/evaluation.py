"""`ExactEvaluation`: validation and test with outputs that are computed layer by layer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from glt_lightning.base import OptionError, long_work
from glt_lightning.inference import LayerwiseRun
from glt_lightning.lightning.layerwise.start import layers_of, start_run

if TYPE_CHECKING:
    from glt_lightning.lightning.datamodule import GLTDataModule

_log = logging.getLogger(__name__)


def evaluate_exactly(trainer: Trainer, data: GLTDataModule) -> None:
    """Has validation and test of a data module be exact, in this run and in later ones of the Trainer."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if not any(isinstance(each, ExactEvaluation) and each.data is data for each in callbacks):
        callbacks.insert(0, ExactEvaluation(data))


class ExactEvaluation(Callback):
    """Before the batches of validation and test, computes the outputs of all nodes, each layer over the whole graph before the
    next one. Batches then hold the seeds alone, and where the module's own steps call what computes their outputs, these
    are read instead.

    Args:
        data: The data module, with ``evaluation.mode: layerwise``. Nothing happens in runs of another one.
    """

    def __init__(self, data: GLTDataModule) -> None:
        self.data = data
        self._run: LayerwiseRun | None = None
        self._split = ""
        self._answers: _Answers | None = None

    # Lightning's hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.datamodule is self.data:  # type: ignore[attr-defined]
            for split in {"fit": ("val", "test"), "validate": ("val",), "test": ("test",)}.get(stage, ()):
                self._refuse_exclusion(split)  # before training, also for the test that follows it

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module, "val")

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._next(batch)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._require_asked(f"{type(pl_module).__name__}.validation_step")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module, "test")

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._next(batch)

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._require_asked(f"{type(pl_module).__name__}.test_step")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rank = getattr(pl_module, "rank_test_edges", None)  # of modules that predict links
        if self._run is not None and callable(rank):
            rank(self.data, self._run)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    # An evaluation

    def _begin(self, trainer: Trainer, module: LightningModule, split: str) -> None:
        """Computes all layers. A collective call."""
        if trainer.datamodule is not self.data:  # type: ignore[attr-defined]
            return
        if self._run is None or self._split != split:
            self._close()
            folder = Path(self.data.evaluation.layerwise.scratch or tempfile.gettempdir())
            self._run = start_run(
                module,
                trainer,
                self.data,
                self.data.evaluation.layerwise,
                folder=folder,
                device=module.device,
                weight_attr=self.data.weight_attr_of(split),
                keep_outputs=True,
            )
            self._split = split
        else:
            self._run.restart(layers_of(module, self.data.dist_graph))
        _compute(trainer, self._run, {"val": "validation"}.get(split, split))
        self._answers = _Answers(self._run)

    def _refuse_exclusion(self, split: str) -> None:
        excluded = None if self.data.links is None else self.data.links.exclude_target_edges
        if isinstance(excluded, Mapping) and excluded[split] != "none":
            raise OptionError(
                f"data.links.exclude_target_edges: {split}: {excluded[split]}: each batch would pass other messages, so that a "
                "node "
                f"has no one output. Set data.evaluation.mode: sampled, or data.links.exclude_target_edges: {{{split}: none}}."
            )

    def _next(self, batch: Any) -> None:
        if self._answers is not None:
            self._answers.batch, self._answers.asked = batch, False

    def _require_asked(self, step: str) -> None:
        if self._answers is not None and not self._answers.asked:
            raise OptionError(
                f"data.evaluation.mode: layerwise: {step} did not call {self._answers.name}, whose outputs are computed layer "
                "by layer, so its metrics would be of something else. Call it there, or set data.evaluation.mode: sampled."
            )

    def _end(self) -> None:
        """A collective call."""
        if self._run is not None and self._answers is not None:
            self._forget()
            self._run.release()

    def _forget(self) -> None:
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def _close(self) -> None:
        self._forget()
        if self._run is not None:
            self._run.close()
            self._run = None


class _Answers:
    """Stands in for the method that a module calls for the outputs of a batch's seeds, until it is closed.

    Attributes:
        batch: The batch that is evaluated.
        asked: Whether the module has called it for this batch.
    """

    def __init__(self, run: LayerwiseRun) -> None:
        self._run, self.batch, self.asked = run, None, False
        self._of, self._method = run.module.asked
        self.name = f"{type(self._of).__name__}.{self._method}"
        self._before = vars(self._of).get(self._method)
        setattr(self._of, self._method, self._answer)

    def _answer(self, *arguments: Any, **named: Any) -> Any:
        module, self.asked = self._run.module, True
        module.check_call(self.batch, [*arguments, *named.values()])
        stores = {t: module.store(self.batch, t) for t in module.output_types}
        return module.answer({t: self._run.outputs(store.row, t) for t, store in stores.items()})

    def close(self) -> None:
        if self._before is None:
            vars(self._of).pop(self._method, None)
        else:
            setattr(self._of, self._method, self._before)


def _compute(trainer: Trainer, run: LayerwiseRun, title: str) -> None:
    """All layers, in batches that are moved as those of a loop of Lightning."""
    plugin, strategy = trainer.precision_plugin, trainer.strategy
    with _progress(trainer, f"{title}, layer by layer", sum(step.num_rows for step in run.steps)) as done:
        for number, (step, loader) in enumerate(zip(run.steps, run.loaders(), strict=True)):
            last = len(loader) - 1
            for i, batch in enumerate(loader):
                moved = strategy.batch_to_device(plugin.convert_input(batch))
                with plugin.forward_context(), torch.no_grad():
                    run.take(number, moved, last=i == last)
                done(step.rows_in(i))
            loader.close()


@contextmanager
def _progress(trainer: Trainer, title: str, rows: int) -> Iterator[Callable[[int], object]]:
    """Of the first rank: a bar where Lightning shows one, else lines of the log."""
    if trainer.global_rank:
        yield lambda n: None
        return
    with long_work(_log, title, rows, shown=None if trainer.progress_bar_callback is not None else False) as done:
        yield done
