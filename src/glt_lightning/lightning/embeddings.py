"""What a Trainer does for the embeddings of its module: attaches them to the graph, exchanges gradients, saves their rows."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn

from glt_lightning.base import OptionError, numbers, size
from glt_lightning.graph import Manifest
from glt_lightning.lightning.callbacks.row_checkpoints import save_rows_of
from glt_lightning.tensors import DistEmbedding, DistGraph, Optimizers


def embeddings_of(module: nn.Module | None) -> dict[str, DistEmbedding]:
    """By their names in the module."""
    module = getattr(module, "inner", module)  # of one that is computed layer by layer
    if module is None:
        return {}
    return {name: each for name, each in module.named_modules() if isinstance(each, DistEmbedding)}


def attach_embeddings(trainer: Trainer, graph: Callable[[], DistGraph], manifest: Manifest) -> None:
    """Attaches the module's embeddings to the graph, which is not opened for a module without any, nor for embeddings that are
    read alone (`DistEmbedding.new_nodes`). A collective call.

    Raises `OptionError` for what cannot work with them.
    """
    found = embeddings_of(trainer.lightning_module)
    if not found:
        return
    if (
        trainer.gradient_clip_val
        and str(trainer.gradient_clip_algorithm or "norm").rpartition(".")[2].lower() == "value"
    ):
        error = OptionError(
            "trainer.gradient_clip_algorithm: value: the values of rows are on other ranks. Use norm, or clip_value of the "
            "sparse optimizer."
        )
        error.on_all_ranks = True
        raise error
    save_rows_of(trainer, found)
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    if not any(isinstance(callback, TrainRows) for callback in callbacks):
        callbacks.insert(0, TrainRows())  # checkpoints stay last
    if not all(embedding.is_attached for embedding in found.values()):
        # Trainer, strategy and module refer to each other, so the tables of an earlier fit whose module was dropped are there
        # until a collection. These need the memory now.
        gc.collect()
    for name, embedding in found.items():
        if embedding.new_nodes is not None and trainer.state.fn == TrainerFn.PREDICTING:
            embedding.prepare(name, manifest)
        else:
            embedding.attach(graph(), name)


def _pages_and_faults(module: nn.Module) -> tuple[int, int]:
    """Pages of tables on disk that this process has asked for, and its major page faults."""
    tables = [table for each in embeddings_of(module).values() for table in each.rows.held.all()]
    pages = sum(table.pages.asked for table in tables if table.pages is not None)
    return pages, resource.getrusage(resource.RUSAGE_SELF).ru_majflt


class TrainRows(Callback):
    """Exchanges the gradients of rows after each backward pass: before scalers and clipping look at them."""

    _before = (0, 0)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trained = []
        for each in Optimizers.sparse_among(trainer.optimizers):
            each.timeout = getattr(trainer.strategy, "_timeout", None)
            each.prepare()
            trained += each.embeddings
        for name, embedding in embeddings_of(pl_module).items():
            held = embedding.rows.held
            rank_zero_info(
                f"embedding {name!r}: {embedding.rows.space.num_rows:,} rows of {embedding.embedding_dim}; with "
                f"{', '.join(held.states) or 'no states'} {size(sum(each.nbytes for each in held.all()))} "
                f"{'on the disk' if held.table.on_disk else 'in the memory'} of this host"
            )
        for name, embedding in embeddings_of(pl_module).items():
            if not any(embedding is each for each in trained):
                rank_zero_warn(
                    f"embedding {name!r} is in none of the optimizers of configure_optimizers: it is not trained."
                )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before = _pages_and_faults(pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pages, faults = (now - before for now, before in zip(_pages_and_faults(pl_module), self._before, strict=True))
        if pages:
            rank_zero_info(
                f"rows on the disk: {pages:,} pages of 4 KiB were asked for in this epoch; the process waited for the disk in "
                f"{faults:,} major page faults ({numbers.percent(faults / pages)})"
            )

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps_next = pl_module.automatic_optimization and trainer.accumulate_grad_batches == 1
        for each in Optimizers.sparse_among(trainer.optimizers):
            each.exchange(steps_next=steps_next)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        for each in Optimizers.sparse_among(trainer.optimizers):
            each.close()
