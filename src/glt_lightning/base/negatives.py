"""How negative edges are drawn for a loader of edges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from glt_lightning.base.checks import as_options, one_of
from glt_lightning.base.errors import OptionError

NegativeMode = Literal["binary", "triplet"]
NEGATIVE_MODES = ("binary", "triplet")
Sharing = Literal["none", "shared", "in_batch"]
SHARINGS = ("none", "shared", "in_batch")
Unresolved = Literal["error", "oldest"]
UNRESOLVED = ("error", "oldest")
DEGREE_WEIGHTS = ("degree", "degree^0.75")


@dataclass(frozen=True, kw_only=True, eq=False)
class NegativeSampling:
    """Which pairs of nodes a batch has beside its edges, as examples of pairs that are no edges.

    Attributes:
        mode: ``binary``: pairs of a source and a destination drawn apart, with label 0. ``triplet``: destinations alone, for the
            source of each edge of the batch.
        amount: Negatives for each edge of a batch; for triplets an integer.
        src_weight: Weights of the source nodes: a number for each node, by the user's id, or ``degree`` or ``degree^0.75``, the
            number of the loader's edges at the node. Nodes of weight 0 are never drawn. ``None``: all alike. Binary alone.
        dst_weight: The same of the destination nodes.
        strict: No negative is an edge of the graph or of the loader, or a loop. ``false``: any pair is taken.
        sharing: ``none``: every edge has its own negatives. ``shared``: ``amount`` destinations for all edges of a batch.
            ``in_batch``: the destinations of the other edges of the batch, so ``amount`` is 1 and there are no weights. Triplets
            alone; the last two give ``neg_mask``, which is false where a pair is an edge.
        self_loops: Whether a strict negative may be a loop.
        unresolved: With ``sampling.time_attr`` and times of nodes, a negative consists of nodes that exist at the time of its
            edge. Where none of 32 drawn ones does: ``error``, or ``oldest``: the oldest node of the type is taken, whether it
            makes an edge or not.

    Raises:
        OptionError: For a value that is not allowed, or options that exclude each other.

    Example:
        >>> NegativeSampling(mode="triplet", amount=5).strict
        True
        >>> NegativeSampling(amount=0.5, sharing="shared")
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: neg_sampling.sharing: ...
    """

    mode: NegativeMode = "binary"
    amount: int | float = 1
    src_weight: Any = None
    dst_weight: Any = None
    strict: bool = True
    sharing: Sharing = "none"
    self_loops: bool = False
    unresolved: Unresolved = "error"

    def __post_init__(self) -> None:
        one_of("neg_sampling.mode", self.mode, NEGATIVE_MODES)
        one_of("neg_sampling.sharing", self.sharing, SHARINGS)
        one_of("neg_sampling.unresolved", self.unresolved, UNRESOLVED)
        for name in ("strict", "self_loops"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"neg_sampling.{name}: expected true or false, got {getattr(self, name)!r:.80}.")
        self._check_amount()
        for name in ("src_weight", "dst_weight"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _weights(f"neg_sampling.{name}", getattr(self, name)))
        if self.sharing != "none" and self.mode == "binary":
            raise OptionError(
                f"neg_sampling.sharing: {self.sharing!r} needs mode triplet; with mode binary each negative has a source of its "
                "own. Set neg_sampling.mode to triplet, or sharing to none."
            )
        if self.mode == "triplet" and self.src_weight is not None:
            raise OptionError(
                "neg_sampling.src_weight: has no effect with mode triplet, which draws destinations alone. Remove it, or set "
                "neg_sampling.mode to binary."
            )
        if self.sharing == "in_batch" and (self.amount != 1 or self.dst_weight is not None):
            name = "amount" if self.amount != 1 else "dst_weight"
            raise OptionError(
                f"neg_sampling.{name}: has no effect with sharing in_batch, which draws no nodes. Remove it, or set "
                "neg_sampling.sharing to shared or none."
            )

    def _check_amount(self) -> None:
        amount = self.amount
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
            raise OptionError(f"neg_sampling.amount: expected a number > 0, got {amount!r:.80}.")
        if self.mode == "triplet" and amount != int(amount):
            raise OptionError(f"neg_sampling.amount: expected an integer with mode triplet, got {amount!r}.")
        object.__setattr__(self, "amount", int(amount) if amount == int(amount) else float(amount))

    @classmethod
    def of(cls, given: Any) -> NegativeSampling | None:
        """Of what PyG takes: None, a mode, a pair of mode and amount, a mapping of the fields, or an object that has them.

        Raises `OptionError` for anything else.
        """
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls(mode=given)  # type: ignore[arg-type]  # checked there
        if isinstance(given, (tuple, list)) and len(given) == 2:
            return cls(mode=given[0], amount=given[1])
        if not isinstance(given, Mapping) and all(hasattr(given, name) for name in ("mode", "amount")):
            known = {field.name: getattr(given, field.name) for field in fields(cls) if hasattr(given, field.name)}
            given = known | {"mode": getattr(known["mode"], "value", known["mode"])}  # an enumeration in PyG
        return as_options(cls, "neg_sampling", given)


def _weights(name: str, given: Any) -> str | np.ndarray:
    if isinstance(given, str):
        one_of(name, given, DEGREE_WEIGHTS, "a number for each node")
        return given
    try:
        weights = np.array(given)
    except ValueError:  # rows of different lengths
        weights = np.array(None)
    if weights.ndim != 1 or weights.dtype.kind not in "iuf":
        raise OptionError(
            f"{name}: expected numbers [N], {' or '.join(DEGREE_WEIGHTS)}; got {weights.dtype} {list(weights.shape)}."
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise OptionError(f"{name}: expected numbers >= 0, got {weights[bad[0]]} for the node {bad[0]}.")
    if not weights.any():
        raise OptionError(f"{name}: all {len(weights)} weights are 0, so no node can be drawn. Give one above 0.")
    weights.flags.writeable = False
    return weights
