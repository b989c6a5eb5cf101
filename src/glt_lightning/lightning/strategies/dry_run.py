"""One batch through a model with lazy parameters, before DDP wraps it: DDP takes only parameters that have their shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from glt_lightning.base import OptionError

_LOGGING = ("log", "log_dict")


def give_shapes_early(trainer: Trainer) -> None:
    """`give_shapes` where DDP wraps the model without asking a strategy of ours: in ``setup`` of the data module, before
    the module's own."""
    if type(trainer.strategy) is DDPStrategy:
        give_shapes(trainer)


def give_shapes(trainer: Trainer) -> None:
    """Runs ``training_step`` once without gradients if the model has lazy parameters, which get their shapes by it.

    All ranks must call it, after `setup` of the data. Dropout is off, metrics are reset, buffers and modes of the modules
    are what they were, and nothing is logged. Raises `OptionError` for parameters that are lazy still.
    """
    module = trainer.lightning_module
    lazy = _lazy_names(module)
    if not lazy:
        return
    rank_zero_info(f"a dry run of training_step gives {len(lazy)} lazy parameters of the model their shapes")
    trainer.strategy.model_to_device()
    if not module.automatic_optimization:
        raise OptionError(
            f"{_listed(lazy)}: lazy parameters need a dry run of training_step, which a module with manual optimization "
            "cannot have. Give the sizes, or run one batch through the layers in setup() of the module."
        )
    # random numbers go on as before, as after Lightning's sanity check, which makes the shapes in a run without DDP
    with isolate_rng(), torch.no_grad(), _without_traces(module), trainer.precision_plugin.train_step_context():
        module.eval()
        module.training_step(_first_batch(trainer), 0)
    if left := _lazy_names(module):
        raise OptionError(
            f"{_listed(left)}: lazy parameters that training_step does not use, so they have no shape for DDP. Leave them "
            "out of the model, or give their sizes."
        )


def warn_of_unused(module: LightningModule) -> None:
    """Warns, while a checkpoint is saved without DDP, of lazy parameters that no batch has given a shape: torch reads them as
    objects, not as tensors."""
    if left := _lazy_names(module):
        rank_zero_warn(
            f"{_listed(left)}: lazy parameters that training_step does not use, so they have no shape, and this checkpoint is "
            "read with weights_only false alone. Leave them out of the model, or give their sizes."
        )


def _first_batch(trainer: Trainer) -> Any:
    """The first training batch of this rank, as Lightning hands it to ``training_step``."""
    source = trainer.fit_loop._data_source
    if not source.is_defined():
        raise OptionError("lazy parameters need a training batch before DDP wraps the model, and there is no loader.")
    loaders = source.dataloader()
    combined = loaders if isinstance(loaders, CombinedLoader) else CombinedLoader(loaders, "max_size_cycle")
    batch, _, _ = next(iter(combined))
    for leaf in combined.flattened:  # Lightning asks for new ones
        if source.is_module() and callable(close := getattr(leaf, "close", None)):
            close()
    batch = trainer.precision_plugin.convert_input(batch)
    return trainer.strategy.batch_to_device(trainer.lightning_module._on_before_batch_transfer(batch))


@contextmanager
def _without_traces(module: LightningModule) -> Iterator[None]:
    """Undoes what a step leaves in a module besides shapes. There is no loop yet that could take what is logged."""
    modes = {each: each.training for each in module.modules()}  # a part may be frozen in eval
    buffers = [
        (each._buffers, name, buffer, buffer.clone())
        for each in module.modules()
        for name, buffer in each._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    for name in _LOGGING:
        object.__setattr__(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name in _LOGGING:
            object.__delattr__(module, name)
        for each, training in modes.items():
            each.training = training
        for target, name, buffer, content in buffers:
            target[name] = buffer.copy_(content)
        for each in module.modules():
            if isinstance(each, Metric):
                each.reset()


def _lazy_names(module: nn.Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if is_lazy(parameter)]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
