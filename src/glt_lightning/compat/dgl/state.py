"""What `initialize` and `seed` set for the script of this process. This room alone keeps such a state, as DGL does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType

from glt_lightning.base import at_least
from glt_lightning.compat.dgl.hosts import ScriptHosts


@dataclass
class ScriptState:
    """num_workers: sampler processes of each trainer, for loaders that are not told another number.  hosts: None for one.
    seed: of all draws.  graph: the `DistGraph` that was made last, which tensors belong to."""

    num_workers: int = 0
    hosts: ScriptHosts | None = None
    seed: int = 0
    graph: ReferenceType[Any] | None = None


STATE = ScriptState()


def seed(value: int) -> None:
    """Sets the seed of the graphs, loaders and draws that are made from here on; the same ``value`` on every rank.

    Example:
        >>> import glt_lightning.compat.dgl as dgl
        >>> dgl.seed(0)
    """
    at_least("seed", value, 0)
    STATE.seed = value
