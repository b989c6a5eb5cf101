"""`Optimizers`: a dense optimizer and sparse ones as the one optimizer that Lightning's automatic optimisation takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from glt_lightning.base import DataError, OptionError
from glt_lightning.tensors.sparse import SparseOptimizer


class Optimizers(Optimizer):
    """A dense optimizer and sparse ones as one. Its groups are theirs, those of tables behind the others, so that schedulers,
    clipping and `torch.amp` work on all of them.

    Args:
        dense: Of the parameters.
        sparse: Of the tables: one, or a list.

    Raises:
        OptionError: For other optimizers, or an embedding that two of them train.

    Example:
        >>> model, embedding = torch.nn.Linear(8, 2), DistEmbedding(8)
        >>> both = Optimizers(torch.optim.Adam(model.parameters(), lr=0.1), SparseAdagrad([embedding], lr=0.5))
        >>> [group["lr"] for group in both.param_groups]
        [0.1, 0.5]
    """

    def __init__(self, dense: Optimizer, sparse: SparseOptimizer | Sequence[SparseOptimizer]) -> None:
        self.dense = dense
        self.sparse = [sparse] if isinstance(sparse, SparseOptimizer) else list(sparse)
        if not isinstance(dense, Optimizer) or isinstance(dense, (SparseOptimizer, Optimizers)):
            raise OptionError(f"Optimizers: dense: expected an optimizer of parameters, got {dense!r:.100}.")
        if not self.sparse or not all(isinstance(each, SparseOptimizer) for each in self.sparse):
            raise OptionError(
                f"Optimizers: sparse: expected SparseSGD, SparseAdagrad or SparseAdam, got {sparse!r:.100}."
            )
        trained = [id(embedding) for each in self.sparse for embedding in each.embeddings]
        if len(set(trained)) < len(trained):
            raise OptionError("Optimizers: sparse: two optimizers train the same embedding.")
        self._is_built = False
        super().__init__(self._inner_groups, {})
        self._is_built = True
        self._regroup()

    @staticmethod
    def sparse_among(optimizers: Sequence[Any]) -> Iterator[SparseOptimizer]:
        """Yields those of some optimizers, such as a Trainer's, that train tables, also from within `Optimizers`."""
        for each in optimizers:
            if isinstance(each, SparseOptimizer):
                yield each
            elif isinstance(each, Optimizers):
                yield from each.sparse

    @property
    def _inner_groups(self) -> list[dict[str, Any]]:
        return [group for each in (self.dense, *self.sparse) for group in each.param_groups]

    def _regroup(self) -> None:
        """Refers to the groups and states of the inner optimizers anew: they replace theirs when they load a state dict."""
        self.param_groups = self._inner_groups
        self.state = self.dense.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not self._is_built:
            return super().add_param_group(param_group)
        self.dense.add_param_group(param_group)
        self._regroup()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps all. A collective call."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.dense.step()
        for each in self.sparse:
            each.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.dense.zero_grad(set_to_none)
        for each in self.sparse:
            each.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"dense": self.dense.state_dict(), "sparse": [each.state_dict() for each in self.sparse]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads the states of all inner optimizers. A collective call. Raises `DataError` for another number of sparse ones."""
        found = state_dict.get("sparse")
        if not isinstance(found, list) or len(found) != len(self.sparse):
            raise DataError(
                f"Optimizers: the checkpoint has the state of {'no' if found is None else len(found)} sparse optimizers beside a "
                f"dense one, this module has {len(self.sparse)}."
            )
        self.dense.load_state_dict(state_dict["dense"])
        for each, theirs in zip(self.sparse, found, strict=True):
            each.load_state_dict(theirs)
        self._regroup()
