"""Seeds of several types in one loader: one plan over all of them, type after type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glt_lightning.base import OptionError, edge_type_str
from glt_lightning.graph import Seeds
from glt_lightning.sampling import BatchRequest, EpochPlan


@dataclass(frozen=True)
class TypedSeeds:
    """Seeds of one or several node types, ascending.

    gids: int64 [S], those of one type after those of another: the seeds of a plan, in its order.
    """

    parts: tuple[Seeds, ...]

    @property
    def node_type(self) -> int:
        """The first type."""
        return self.parts[0].node_type

    @property
    def types(self) -> list[int]:
        return [part.node_type for part in self.parts]

    @property
    def gids(self) -> np.ndarray:
        return joined([part.gids for part in self.parts])


class Pieces:
    """Arrays that lie one after the other in a plan. counts: their lengths."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts

    def split(self, positions: np.ndarray) -> list[np.ndarray]:
        """int64 for each array: its own positions among those in the plan, in their order."""
        piece = np.searchsorted(self._ends, positions, side="right")
        return [positions[piece == i] - begin for i, begin in enumerate(self._begins)]

    def join(self, pieces: Sequence[np.ndarray]) -> np.ndarray:
        """int64: the positions in the plan, one array after the other."""
        return np.concatenate([piece + begin for piece, begin in zip(pieces, self._begins, strict=True)])


@dataclass(frozen=True, kw_only=True)
class TypedPlan(EpochPlan):
    """An `EpochPlan` over seeds of several node types. of: the seeds.  extras: those of further types by `of_type`."""

    of: TypedSeeds

    @classmethod
    def over(cls, plan: EpochPlan, of: TypedSeeds, extras: Sequence[Mapping[str, np.ndarray]]) -> TypedPlan:
        """extras: of each type."""
        named = {_name(of, t, n): a for t, own in zip(of.types, extras, strict=True) for n, a in own.items()}
        return cls(**vars(plan) | {"extras": named}, of=of)

    def request(self, number: int, key: int, positions: np.ndarray) -> BatchRequest:
        by_type = Pieces([len(part.gids) for part in self.of.parts])
        pieces = by_type.split(positions)
        at = dict(zip(self.of.types, pieces, strict=True))
        seeds = {part.node_type: part.gids[at[part.node_type]] for part in self.of.parts}
        first, *others = self.of.types
        extras = {BatchRequest.of_type(t, "input_id"): at[t] for t in others}
        for name, values in self.extras.items():
            prefix, _, _ = name.rpartition("/")
            extras[name] = values[at[int(prefix) if prefix else first]]
        trees = self._trees(by_type.join(pieces))  # in the order of the types, as trees are numbered
        return BatchRequest(number, key, seeds.pop(first), at[first], seeds, extras, trees=trees)


def _name(seeds: TypedSeeds, node_type: int, name: str) -> str:
    return name if node_type == seeds.node_type else BatchRequest.of_type(node_type, name)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def type_name(given: Any) -> str:
    """Of a node type or an edge type: PyG writes edge types as tuples, too."""
    return given if isinstance(given, str) else edge_type_str(given)


def has_types(given: Any, types: Sequence[str]) -> bool:
    """Whether an option that may be one for all types is given by type."""
    return isinstance(given, Mapping) and not set(map(type_name, given)).isdisjoint(types)


def for_each_type(where: str, given: Any, types: Sequence[str]) -> dict[str, Any]:
    """What a mapping by type has for each, None where it has nothing. Raises `OptionError` for an unknown type."""
    if given is None:
        return dict.fromkeys(types)
    found = {type_name(t): value for t, value in given.items()} if isinstance(given, Mapping) else {}
    unknown = sorted(set(found) - set(types))
    if unknown or not isinstance(given, Mapping):
        got = unknown[0] if unknown else type(given).__name__
        raise OptionError(
            f"{where}: with seeds of several types, expected a mapping from {', '.join(types)}; got {got!r:.80}."
        )
    return {t: found.get(t) for t in types}
