"""The sparse optimizers: `SparseSGD`, `SparseAdagrad`, `SparseAdam`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from glt_lightning.base import DataError, OptionError, one_of
from glt_lightning.kernels import Adjust, RowSums
from glt_lightning.tensors.dist_embedding import MARKER, DistEmbedding
from glt_lightning.tensors.exchange import Exchange, norms, open_exchange
from glt_lightning.tensors.saved import WEIGHT, SavedRows, open_saved, write_rows

Reduction = Literal["ddp", "occurrences"]
REDUCTIONS = ("ddp", "occurrences")
_F32, _I32 = np.dtype(np.float32), np.dtype(np.int32)
States = dict[str, tuple[np.dtype, tuple[int, ...]]]


class _Trained:
    """An embedding in an optimizer: the gradients of the rows that this rank applies, and the carrier of their norm.

    carrier: a parameter whose gradient is the norm of the gradient of the whole table, the same on all ranks. Code that unscales
    or clips gradients changes it as that of any parameter; the step multiplies the rows' gradients by the same factor. So
    `torch.amp` and clipping by norm are exact over dense parameters and rows, and all ranks skip the same steps.
    """

    def __init__(self, embedding: DistEmbedding) -> None:
        self.embedding = embedding
        self.carrier = nn.Parameter(torch.zeros((), device=embedding.like.device))
        self.sums: RowSums | None = None  # of the rows of this rank, over ranks and backward passes
        self._norm: Tensor | None = None

    def add(self, received: list[RowSums], *, steps_next: bool) -> None:
        parts = [*([] if self.sums is None else [self.sums]), *received]
        if len(parts) == 1:  # from one rank, in its first backward pass: each row comes once
            self.sums = parts[0] if steps_next else parts[0].copied()
            return
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "sums", "counts"))
        self.sums = RowSums.merge(*columns, threads=torch.get_num_threads())

    def squares(self, mean: Adjust) -> np.ndarray:
        """Returns float64 [n]: the squared norm of the gradient of each row."""
        assert self.sums is not None
        return self.sums.squares(mean, threads=torch.get_num_threads())

    def carry(self, norm: float) -> None:
        self.carrier.grad = torch.full_like(self.carrier, norm)
        self._norm = self.carrier.grad.clone()

    def factor(self) -> float:
        """The factor by which others have multiplied the gradient since `carry`: unscaling and clipping."""
        if self.carrier.grad is None or self._norm is None:
            raise DataError(
                "sparse optimizer: the norm of the rows' gradient was removed between the backward pass and the step. Call "
                "zero_grad before the backward pass, or after the step."
            )
        now, before = float(self.carrier.grad), float(self._norm)
        # 0 / 0 and nan / nan are no factors
        if now == before or before == 0.0 or (math.isnan(now) and math.isnan(before)):
            return 1.0
        return now / before

    def clear(self) -> None:
        self.sums, self._norm, self.carrier.grad = None, None, None
        self.embedding.drop()


class SparseOptimizer(torch.optim.Optimizer):
    """The base of the sparse optimizers. A step changes only the rows that got a gradient since the last one.

    The ranks exchange gradients after each backward pass (`exchange`; a `GLTDataModule` has the Trainer call it), or else in
    `step`. Each rank sums its own gradients per row, and the rank that applies a row adds the ranks' sums in rank order, so that
    neither parts nor timing change a bit. All ranks take part in every step, also without a lookup.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        embeddings: Sequence[DistEmbedding],
        defaults: Mapping[str, Any],
        reduction: Reduction = "ddp",
        clip_value: float | None = None,
        clip_row_norm: float | None = None,
    ) -> None:
        embeddings = [embeddings] if isinstance(embeddings, DistEmbedding) else list(embeddings)
        if not embeddings or not all(isinstance(each, DistEmbedding) for each in embeddings):
            raise OptionError(f"{self.kind}: expected a list of DistEmbedding, got {embeddings!r:.100}.")
        if len(set(map(id, embeddings))) < len(embeddings):
            raise OptionError(f"{self.kind}: an embedding is there twice.")
        one_of(f"{self.kind}: reduction", reduction, REDUCTIONS)
        for name, value, least in (
            *((name, defaults[name], 0.0) for name in ("lr", "eps") if name in defaults),
            *(
                (name, v, 0.0)
                for name, v in (("clip_value", clip_value), ("clip_row_norm", clip_row_norm))
                if v is not None
            ),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
                raise OptionError(f"{self.kind}: {name}: expected a number >= 0, got {value!r}.")
        self.reduction = reduction
        self._adjust = Adjust(1.0, _or_inf(clip_value), _or_inf(clip_row_norm))
        self._trained = [_Trained(each) for each in embeddings]
        self._exchange: Exchange | None = None
        self._is_ready = self._is_exchanged = False
        self.timeout: timedelta | None = None
        super().__init__([{"params": [each.carrier]} for each in self._trained], dict(defaults))

    @property
    def embeddings(self) -> list[DistEmbedding]:
        return [each.embedding for each in self._trained]

    # The update rule, which subclasses define

    def _states(self, width: int) -> States:
        """Dtype and shape of a row of each state."""
        return {}

    def _begin(self, group: dict[str, Any]) -> None:
        """Is called once in each step, before rows are changed."""

    def _apply(
        self,
        weight: np.ndarray,
        states: Mapping[str, np.ndarray],
        gradients: RowSums,
        group: dict[str, Any],
        adjust: Adjust,
    ) -> None:
        raise NotImplementedError

    # The step

    def prepare(self) -> Exchange:
        """Creates the states and the `Exchange` if they do not exist yet. The first call is a collective one; the first step
        makes it otherwise."""
        if not self._is_ready:
            for each in self._trained:
                each.embedding.rows.renew_states(self._states(each.embedding.embedding_dim))
            self._is_ready = True
        if self._exchange is None:
            self._exchange = open_exchange(self.timeout)
        return self._exchange

    @torch.no_grad()
    def exchange(self, *, steps_next: bool = False) -> None:
        """Sends the gradients of the last backward passes to the ranks that apply them. A collective call.

        steps_next: the next call is `step`. Otherwise gradients are copied, as the next backward pass may overwrite their memory.
        """
        exchange = self._receive(steps_next=steps_next)
        mean = self._mean(exchange.size)
        # the norms of all tables at once: two collective calls, however many tables there are
        for each, norm in zip(
            self._trained, norms([each.squares(mean) for each in self._trained], exchange), strict=True
        ):
            each.carry(norm)
        self._is_exchanged = True

    def _receive(self, *, steps_next: bool) -> Exchange:
        exchange = self.prepare()
        for each in self._trained:
            mine = each.embedding.take()
            each.add(exchange.send(mine, each.embedding.rows.home_of(mine.rows)), steps_next=steps_next)
        return exchange

    def _mean(self, ranks: int) -> Adjust:
        """The clipping of gradients, with the divisor that makes a mean of their sum."""
        return replace(self._adjust, divisor=float(ranks), by_count=self.reduction == "occurrences")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Applies the gradients. A collective call."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # without `exchange` nobody has seen a norm, so that nobody can have changed one
        is_exchanged = self._is_exchanged
        exchange = self.prepare() if is_exchanged else self._receive(steps_next=True)
        for each, group in zip(self._trained, self.param_groups, strict=True):
            rows, sums = each.embedding.rows, each.sums
            assert sums is not None
            gradients = replace(sums, rows=rows.table.position(sums.rows))
            # by the carriers, whose gradients are the same on all ranks: so are the factors
            adjust = replace(self._mean(exchange.size), factor=each.factor() if is_exchanged else 1.0)
            states = {name: table.own for name, table in rows.states.items()}
            self._begin(group)
            for piece in rows.pieces_of(gradients):
                self._apply(rows.table.own, states, piece, group, adjust)
        self._clear()
        exchange.barrier()  # the next lookups, of any rank, read the new rows
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._clear()

    def _clear(self) -> None:
        for each in self._trained:
            each.clear()
        self._is_exchanged = False

    def close(self) -> None:
        """Closes the process group. Safe to call twice."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    # State dicts: rows are beside the checkpoint

    def state_dict(self) -> dict[str, Any]:
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        names = [each.embedding.rows.name for each in self._trained]
        return {"kind": self.kind, "groups": groups, MARKER: {"names": names}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads hyper-parameters, and the states from the folder beside the checkpoint. A collective call. Raises `DataError` for
        a checkpoint of another optimizer, or a damaged one."""
        kind, groups = state_dict.get("kind"), state_dict.get("groups", [])
        found: Mapping[str, Any] = state_dict.get(MARKER, {})
        if kind != self.kind:
            raise DataError(
                f"{self.kind}: the checkpoint has the state of {kind or 'another optimizer'}. Use that optimizer, or load the "
                "weights alone (load_from_checkpoint)."
            )
        names = [each.embedding.rows.name for each in self._trained]
        if found.get("names") != names or len(groups) != len(names):
            raise DataError(f"{self.kind}: the checkpoint trains {found.get('names')}, this optimizer {names}.")
        if "folder" not in found:
            raise DataError(
                f"{self.kind}: this state dict has no rows: they are beside the checkpoint that a Trainer writes."
            )
        self.prepare()
        saved = open_saved(found)
        for each, group, theirs in zip(self._trained, self.param_groups, groups, strict=True):
            rows = each.embedding.rows
            rows.load(saved, rows.states, strict=not found.get("lenient"))
            group.update(theirs)

    def save_rows(self, folder: Path) -> None:
        """Writes the rows of the embeddings, and their states, to a new folder, by the user's ids. A collective call."""
        rows = [each.rows for each in self.embeddings]

        def write() -> None:
            if rows[0].tables.ranks.rank == 0:
                write_rows(folder, [each.to_save(self.kind) for each in rows], rows[0].held.graph)

        rows[0].tables.ranks.all_or_none(write, lambda _: None)

    def load_rows(self, folder: Path) -> None:
        """Reads what `save_rows` has written, with any number of parts and ranks, into embeddings of the same names. A collective
        call."""
        self.prepare()  # makes the states
        saved = SavedRows(folder, None)
        for each in self.embeddings:
            each.rows.load(saved, {WEIGHT: each.rows.table, **each.rows.states})


def _or_inf(limit: float | None) -> float:
    return math.inf if limit is None else float(limit)


class SparseSGD(SparseOptimizer):
    """w -= lr * g, for the rows of a `DistEmbedding` that got a gradient.

    Args:
        embeddings: The embeddings to train.
        lr: Learning rate. Steps use that of the groups, which schedulers change.
        reduction: ``ddp``: the gradients of all occurrences of a row in all ranks' batches are summed, and divided by the number
            of ranks, as DDP does for an `nn.Embedding`. ``occurrences``: divided by the number of occurrences, as DGL does.
        clip_value: Cuts each value of a gradient to [-clip_value, clip_value].
        clip_row_norm: Scales the gradient of a row down to this norm.

    Raises:
        OptionError: For invalid embeddings or numbers.

    Example:
        >>> SparseSGD([DistEmbedding(8)], lr=0.1).param_groups[0]["lr"]
        0.1
    """

    kind = "SparseSGD"

    def __init__(
        self,
        embeddings: Sequence[DistEmbedding],
        lr: float,
        *,
        reduction: Reduction = "ddp",
        clip_value: float | None = None,
        clip_row_norm: float | None = None,
    ) -> None:
        super().__init__(embeddings, {"lr": lr}, reduction, clip_value, clip_row_norm)

    def _apply(self, weight: Any, states: Any, gradients: RowSums, group: dict[str, Any], adjust: Adjust) -> None:
        gradients.sgd(weight, lr=group["lr"], adjust=adjust, threads=torch.get_num_threads())


class SparseAdagrad(SparseOptimizer):
    """s += g * g; w -= lr * g / (sqrt(s) + eps), for the rows that got a gradient.

    Args:
        embeddings: The embeddings to train.
        lr: Learning rate.
        eps: Added to the root.
        rowwise: One s for each row, which grows by the mean of g * g: 4 bytes of state a row.
        reduction: As in `SparseSGD`.
        clip_value: As in `SparseSGD`.
        clip_row_norm: As in `SparseSGD`.

    Raises:
        OptionError: For invalid embeddings or numbers.

    Example:
        >>> SparseAdagrad([DistEmbedding(8)], lr=0.1, rowwise=True).rowwise
        True
    """

    kind = "SparseAdagrad"

    def __init__(
        self,
        embeddings: Sequence[DistEmbedding],
        lr: float,
        *,
        eps: float = 1e-10,
        rowwise: bool = False,
        reduction: Reduction = "ddp",
        clip_value: float | None = None,
        clip_row_norm: float | None = None,
    ) -> None:
        super().__init__(embeddings, {"lr": lr, "eps": eps}, reduction, clip_value, clip_row_norm)
        self.rowwise = rowwise

    def _states(self, width: int) -> States:
        return {"sum": (_F32, (1 if self.rowwise else width,))}

    def _apply(self, weight: Any, states: Any, gradients: RowSums, group: dict[str, Any], adjust: Adjust) -> None:
        rule = {"lr": group["lr"], "eps": group["eps"]}
        gradients.adagrad(weight, states["sum"], **rule, adjust=adjust, threads=torch.get_num_threads())


class SparseAdam(SparseOptimizer):
    """Adam for the rows that got a gradient.

    Args:
        embeddings: The embeddings to train.
        lr: Learning rate.
        betas: Decay rates of the two moments.
        eps: Added to the root.
        correction: ``row``: the moments of a row are corrected by the number of its own steps, as DGL does. ``global``: by the
            number of all steps, as `torch.optim.SparseAdam`; a row that comes late then begins with a step of about 3.2 lr.
        reduction: As in `SparseSGD`.
        clip_value: As in `SparseSGD`.
        clip_row_norm: As in `SparseSGD`.

    Raises:
        OptionError: For invalid embeddings or numbers.

    Example:
        >>> SparseAdam([DistEmbedding(8)], lr=0.01, correction="global").param_groups[0]["betas"]
        (0.9, 0.999)
    """

    kind = "SparseAdam"

    def __init__(
        self,
        embeddings: Sequence[DistEmbedding],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        correction: Literal["row", "global"] = "row",
        reduction: Reduction = "ddp",
        clip_value: float | None = None,
        clip_row_norm: float | None = None,
    ) -> None:
        one_of(f"{self.kind}: correction", correction, ("row", "global"))
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise OptionError(f"{self.kind}: betas: expected two numbers in [0, 1), got {betas!r}.")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps}
        if correction == "global":
            defaults["steps"] = 0
        super().__init__(embeddings, defaults, reduction, clip_value, clip_row_norm)
        self.correction = correction

    def _states(self, width: int) -> States:
        moments: States = {"first": (_F32, (width,)), "second": (_F32, (width,))}
        return moments | ({"steps": (_I32, ())} if self.correction == "row" else {})

    def _begin(self, group: dict[str, Any]) -> None:
        if self.correction == "global":
            group["steps"] += 1

    def _apply(self, weight: Any, states: Any, gradients: RowSums, group: dict[str, Any], adjust: Adjust) -> None:
        rule = {"lr": group["lr"], "betas": group["betas"], "eps": group["eps"]}
        steps, moments = states.get("steps", group.get("steps")), (states["first"], states["second"])
        gradients.adam(weight, moments, steps, **rule, adjust=adjust, threads=torch.get_num_threads())
