"""A picker of neighbours by its class, as options name it and as messages carry it."""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

from glt_lightning.base.class_spec import ClassSpec
from glt_lightning.base.errors import DataError, OptionError

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
    class, and a hash of its source.  probe: a hash of what it picks from made-up rows (`data.row_draws.probed`); empty where no
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
