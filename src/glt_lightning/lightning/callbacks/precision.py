"""`PrecisionProbe`: whether this machine multiplies the model's matrices faster in bfloat16."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities.rank_zero import rank_zero_info

_BUDGET_S = 0.02
_PRODUCT_FLOPS = 1e8  # of one product: about a millisecond
_MOST_ROWS, _FEWEST_ROWS = 4096, 64
_MOST_TURNS = 100
_NARROWEST = 8  # matrices with a shorter side take no time that counts
_PAYS = 1.25  # a ratio from which on it is worth a line
_DEFAULT: Final = "32-true"
_MIXED: Final = "bf16-mixed"


class PrecisionProbe(Callback):
    """Measures for 20 ms, before a fit on a CPU in Lightning's default precision, how much faster products of the shapes of the
    model's weights are in bfloat16, and logs a line where that pays. Processors differ: some are twice as fast, some half.

    A step is more than its products, so the ratio is the most that ``bf16-mixed`` can gain.

    Args:
        choose: Whether the run then trains in ``bf16-mixed``, as if `Trainer` had been given that. Rank 0 decides for all ranks,
            and a run that resumes from a checkpoint keeps what was chosen. Where `Trainer` has another precision than its
            default, that stays.

    Example:
        >>> trainer = Trainer(callbacks=[PrecisionProbe(choose=True)], max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> trainer.precision in ("32-true", "bf16-mixed")
        True
    """

    def __init__(self, choose: bool = False) -> None:
        self.choose = choose
        self.ratio: float | None = None  # time in float32 / in bfloat16, on rank 0; None: not measured
        self.chosen: str | None = None
        self._measure: Callable[[dict[tuple[int, int], int]], float | None] = bfloat16_ratio

    @property
    def line(self) -> str | None:
        """What was found, for people; None where nothing was measured, or bfloat16 does not pay."""
        if self.ratio is None or self.ratio < _PAYS:
            return None
        found = f"products of the model's shapes are {self.ratio:.1f} times as fast in bfloat16 here"
        if self.chosen == _MIXED:
            return f"{found}: training in {_MIXED}"
        return f"{found}; --trainer.precision {_MIXED} may speed up the step by up to that"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        strategy = trainer.strategy
        if trainer.precision != _DEFAULT or strategy.root_device.type != "cpu" or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self.chosen is None:
            shapes = weight_shapes(pl_module)
            self.ratio = self._measure(shapes) if shapes and trainer.is_global_zero else None
            if self.choose:
                pays = self.ratio is not None and self.ratio >= _PAYS
                self.chosen = _MIXED if _on_any_rank(trainer, pays) else _DEFAULT
            if (line := self.line) is not None:
                rank_zero_info(f"precision: {line}.")
        elif self.choose:
            rank_zero_info(f"precision: {self.chosen}, as the run that is resumed chose.")
        if self.choose and self.chosen == _MIXED:
            strategy.precision_plugin = MixedPrecision(_MIXED, "cpu")

    def state_dict(self) -> dict[str, Any]:
        return {} if self.chosen is None else {"chosen": self.chosen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.chosen = state_dict.get("chosen")


def _on_any_rank(trainer: Trainer, value: bool) -> bool:
    """A collective call. Numbers alone go between ranks, no pickled objects."""
    if trainer.world_size == 1:
        return value
    return bool(trainer.strategy.reduce(torch.tensor([int(value)]), reduce_op="sum") > 0)


def weight_shapes(module: torch.nn.Module) -> dict[tuple[int, int], int]:
    """The shapes (inputs, outputs) of the weight matrices of a module, embeddings apart, with the number of each."""
    return dict(Counter(_shapes(module)))


def _shapes(module: torch.nn.Module) -> Iterator[tuple[int, int]]:
    for each in module.modules():
        for weight in each.parameters(recurse=False):
            known = not isinstance(weight, torch.nn.UninitializedParameter) and not isinstance(each, torch.nn.Embedding)
            if known and weight.dim() == 2 and min(weight.shape) >= _NARROWEST:
                yield int(weight.shape[1]), int(weight.shape[0])


def bfloat16_ratio(shapes: dict[tuple[int, int], int]) -> float | None:
    """The time of products of rows with matrices of these ``shapes`` in float32, divided by that in bfloat16, casts of the rows
    included. In CPU time of one thread, so that other programs do not count. Takes about 20 ms, and no random number.

    None where that clock is too coarse for one product: some virtual machines advance it by 10 ms at a time."""
    until, best = time.perf_counter() + _BUDGET_S, {torch.float32: {}, torch.bfloat16: {}}  # type: ignore[var-annotated]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            cases = [(shape, kind, *_operands(*shape, kind)) for shape in shapes for kind in best]
            for turn in range(_MOST_TURNS):
                for shape, kind, rows, weight in cases:
                    began = time.thread_time()
                    torch.mm(rows.to(kind), weight)
                    took = time.thread_time() - began
                    best[kind][shape] = min(took, best[kind].get(shape, took))
                if turn >= 2 and time.perf_counter() > until:  # the first turn pays for what the libraries set up
                    break
    finally:
        torch.set_num_threads(threads)
    spent = {kind: sum(shapes[shape] * took for shape, took in found.items()) for kind, found in best.items()}
    if not all(took > 0 for found in best.values() for took in found.values()):
        return None
    return spent[torch.float32] / spent[torch.bfloat16]


def _operands(inputs: int, outputs: int, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rows = int(_PRODUCT_FLOPS / (2 * inputs * outputs))
    return torch.ones(min(_MOST_ROWS, max(_FEWEST_ROWS, rows)), inputs), torch.ones(inputs, outputs, dtype=kind)
