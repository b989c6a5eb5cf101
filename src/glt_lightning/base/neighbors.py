"""A picker of neighbours by its class, as options name it and as messages carry it."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import threading
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from glt_lightning.base.checks import ClassSpec, as_options, at_least, one_of
from glt_lightning.base.errors import DataError, OptionError
from glt_lightning.base.types import MAX_FANOUT

_OPTION = "sampling.picker"
_MOST = 1 << 16  # characters of the arguments in a message

_reading = (
    threading.Lock()
)  # CPython 3.11 cannot parse sources in two threads at once (`inspect.getsource` parses them)


def as_class(option: str, given: Any) -> dict[str, Any] | None:
    """``{class_path, init_args}`` of a class path, of such a mapping, or of an object, which other processes know by its class
    and, of a dataclass, its fields.

    Raises `OptionError` for an object that has more, `DataError` for what is none of these.
    """
    if given is None:
        return None
    if not isinstance(given, (str, Mapping, Namespace)):
        kind = type(given)
        if not is_dataclass(given) and getattr(given, "__dict__", None):
            raise OptionError(
                f"{option}: {kind.__qualname__} has attributes ({', '.join(vars(given))}) that other processes cannot be told. "
                "Make it a dataclass of plain values, or give {class_path, init_args}."
            )
        arguments = {f.name: getattr(given, f.name) for f in fields(given) if f.init} if is_dataclass(given) else {}
        given = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}
    spec = ClassSpec.parse(option, given)
    _ = spec.text  # which refuses arguments that are no plain values
    return {"class_path": spec.path, "init_args": dict(spec.arguments)}


@dataclass(frozen=True)
class PickerSpec:
    """A `Picker` in plain text, so that it can be sent to another process.

    class_path: of its class.  arguments: of the class, a JSON object with sorted names.  version: attribute ``version`` of the
    class, and a hash of its source.  probe: a hash of what it picks from made-up rows (`graph.probed`); empty where no
    graph is known yet.

    Example:
        >>> PickerSpec("my_module.Heaviest", '{"attr": "weight"}', version="2/1f3a77c0")  # `of` makes it of options
        PickerSpec(class_path='my_module.Heaviest', arguments='{"attr": "weight"}', version='2/1f3a77c0', probe='')
    """

    class_path: str
    arguments: str = "{}"
    version: str = ""
    probe: str = ""

    @classmethod
    def of(cls, given: Any) -> PickerSpec | None:
        """given: what `as_class` takes. Raises `DataError` for a class that cannot be imported, or with wrong arguments."""
        named = as_class(_OPTION, given)
        if named is None:
            return None
        spec = ClassSpec.parse(_OPTION, named)
        kind = spec.load()
        spec.check(kind)
        if not callable(getattr(kind, "pick", None)):
            raise DataError(f"{_OPTION}: {spec.path} has no method pick(rows, fanout, stream).")
        return cls(spec.path, json.dumps(named["init_args"], sort_keys=True), _version(kind))

    def __str__(self) -> str:
        return f"{self.class_path}({'' if self.arguments == '{}' else self.arguments}) version {self.version}"

    @property
    def named(self) -> dict[str, Any]:
        """As options name it."""
        return {"class_path": self.class_path, "init_args": json.loads(self.arguments)}

    @cached_property
    def picker(self) -> Any:
        """The `Picker`, one for all threads of this process. Raises `DataError` for one that cannot be made here, or that has
        another version."""
        here = PickerSpec.of(self.named)
        assert here is not None
        if here.version != self.version:
            raise DataError(
                f"{_OPTION}: {self} is asked for, and this process has version {here.version}. Install the same code everywhere, "
                "and start the run again."
            )
        kind = ClassSpec(_OPTION, self.class_path, json.loads(self.arguments))
        try:
            return kind.load()(**kind.arguments)
        except Exception as error:  # the user's class may raise anything
            raise DataError(f"{_OPTION}: {self} cannot be made ({type(error).__name__}: {error}).") from error

    def with_probe(self, probe: str) -> PickerSpec:
        """The same picker, which is not made again."""
        made = replace(self, probe=probe)
        made.__dict__["picker"] = self.picker
        return made

    def require(self, own: PickerSpec | None) -> None:
        """Raises `DataError` unless ``own``, that of this process, is this picker, which another process asks for."""
        if own == self:
            return
        remedy = "Give this process the sampling.picker of the training run, and install the same code."
        if own is None:
            raise DataError(f"{_OPTION}: {self} is asked for, and this process was started without a picker. {remedy}")
        if (own.class_path, own.arguments, own.version) != (self.class_path, self.arguments, self.version):
            raise DataError(f"{_OPTION}: {self} is asked for, and this process has {own}. {remedy}")
        raise DataError(
            f"{_OPTION}: {self} picks other neighbours here than in the process that asks, from the same rows. A picker must "
            "be a function of its arguments alone: no clock, no random state, no file or setting of the host."
        )

    def to_wire(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_wire(cls, given: Any, _num_edge_types: int | None = None) -> PickerSpec:
        """Nothing is imported. Raises `DataError` for anything else than `to_wire` gives."""
        names = {f.name for f in fields(cls)}
        texts = isinstance(given, Mapping) and set(given) == names and all(isinstance(t, str) for t in given.values())
        if not texts or sum(map(len, given.values())) > _MOST:
            raise DataError(f"picker: expected {', '.join(sorted(names))}, all text; got {given!r:.200}.")
        return cls(**given)


def _version(kind: type) -> str:
    """What the class says, and a hash of its source: who forgets to count up is noticed, too."""
    with _reading:
        return f"{getattr(kind, 'version', 0)}/{_source_hash(kind)}"


@cache
def _source_hash(kind: type) -> str:
    try:
        return hashlib.blake2b(inspect.getsource(kind).encode(), digest_size=4).hexdigest()
    except (OSError, TypeError):  # a class without a file
        return "unknown"


# Which nodes count as the neighbours of a node by random walks.


_NAME = "sampling.importance_neighbors"


@dataclass(frozen=True, kw_only=True)
class ImportanceNeighbors:
    """The nodes that random walks from a node visit most often are its neighbours, as in PinSAGE: ``num_neighbors`` of them.

    A batch has an edge from each of them to the node, with ``visits``, how often it was visited, and ``edge_weight``, its share
    of the visits of all these neighbours. Of nodes that were visited equally often the first visited is taken.

    Attributes:
        walks: Walks from each node.
        length: How often a walk goes along ``metapath``: without one, its steps. A step goes against an edge, to its source, as
            neighbours are drawn. A walk ends at a node without incoming edges.
        restart: Probability with which a walk goes back to its node, before it goes along ``metapath`` again.
        stop: Probability with which it ends there instead, as in DGL.
        metapath: In a graph with several edge types, those that a walk goes along, one step each. The nodes at its end are
            counted, and the edges of a batch are of the type ``(end, visited_from, begin)``. Several metapaths have names for
            these edge types: ``{item__near__item: [...]}``. ``None``: the only edge type.
        self_loops: Whether a node may be a neighbour of itself.

    Raises:
        OptionError: For a value that is not allowed, or options that exclude each other.

    Example:
        >>> ImportanceNeighbors(walks=50, length=3, restart=0.5).walks
        50
        >>> ImportanceNeighbors(restart=2)
        Traceback (most recent call last):
            ...
        glt_lightning.base.errors.OptionError: sampling.importance_neighbors.restart: ...
    """

    walks: int = 10
    length: int = 3
    restart: float = 0.0
    stop: float = 0.0
    metapath: list[str] | dict[str, list[str]] | None = None
    self_loops: bool = False

    def __post_init__(self) -> None:
        at_least(f"{_NAME}.walks", self.walks, 1)
        at_least(f"{_NAME}.length", self.length, 1)
        for name in ("restart", "stop"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise OptionError(f"{_NAME}.{name}: expected a probability, 0 to 1; got {value!r:.80}.")
        if self.restart and self.stop:
            raise OptionError(
                f"{_NAME}.stop: excludes restart: a walk ends, or goes back to its node. Remove one of them."
            )
        if not isinstance(self.self_loops, bool):
            raise OptionError(f"{_NAME}.self_loops: expected true or false, got {self.self_loops!r:.80}.")
        given: Any = self.metapath
        for each in given.values() if isinstance(given, Mapping) else [] if given is None else [given]:
            names = isinstance(each, Sequence) and not isinstance(each, str)
            if not names or not each or not all(isinstance(name, str) for name in each):
                raise OptionError(
                    f"{_NAME}.metapath: expected edge types such as [user__rates__item, item__rated_by__user], or a mapping "
                    f"from edge types of the batch to such lists; got {given!r:.200}."
                )
        longest = max((len(each) for each in self.metapaths.values()), default=1)
        if self.walks * self.length * longest > MAX_FANOUT:
            raise OptionError(
                f"{_NAME}: {self.walks} walks of {self.length * longest} steps: expected at most {MAX_FANOUT} steps from one "
                "node. Use fewer or shorter walks."
            )

    @property
    def metapaths(self) -> dict[str, list[str]]:
        """By the edge type of the batch; of a single one that is ''. Empty: the only edge type of the graph."""
        if self.metapath is None:
            return {}
        return dict(self.metapath) if isinstance(self.metapath, Mapping) else {"": list(self.metapath)}

    @classmethod
    def of(cls, given: Any) -> ImportanceNeighbors | None:
        """given: None, an object, or a mapping of its fields."""
        return None if given is None else as_options(cls, _NAME, given)


# How negative edges are drawn for a loader of edges.


NegativeMode = Literal["binary", "triplet"]
Sharing = Literal["none", "shared", "in_batch"]
Unresolved = Literal["error", "oldest"]
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

    MODES: ClassVar = get_args(NegativeMode)
    SHARINGS: ClassVar = get_args(Sharing)
    UNRESOLVED: ClassVar = get_args(Unresolved)

    mode: NegativeMode = "binary"
    amount: int | float = 1
    src_weight: Any = None
    dst_weight: Any = None
    strict: bool = True
    sharing: Sharing = "none"
    self_loops: bool = False
    unresolved: Unresolved = "error"

    def __post_init__(self) -> None:
        one_of("neg_sampling.mode", self.mode, self.MODES)
        one_of("neg_sampling.sharing", self.sharing, self.SHARINGS)
        one_of("neg_sampling.unresolved", self.unresolved, self.UNRESOLVED)
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
