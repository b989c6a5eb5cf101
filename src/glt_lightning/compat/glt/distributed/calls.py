"""Calls of a process by name: a fixed table. No function and no pickle goes over the network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import DataError, OptionError
from glt_lightning.workers import Caller, Message

_TENSOR = "tensor"

# A server answers it for the first nodes of ``index``, as many as fit into a reply; the client asks for the others.
LABELS = "DistServer.get_node_label"


def name_of(func: Callable[..., Any] | str) -> str:
    """By which name a server knows a callable: ``torch.cuda.device_count``."""
    if isinstance(func, str):
        return func
    return f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', func)}"


def to_message(values: Mapping[str, Any]) -> Message:
    """Values that JSON can represent, and tensors, also in lists and dictionaries. Raises `OptionError` for others."""
    arrays: dict[str, np.ndarray] = {}
    header = {name: _out(value, arrays) for name, value in values.items()}
    return Message.of(arrays, header)


def from_message(message: Message, *, copy: bool = True) -> dict[str, Any]:
    """The inverse of `to_message`. copy: False: tensors are views of the body, which has to be writable."""
    # copied once each, however often the header names one
    tensors = {name: torch.from_numpy(array.copy() if copy else array) for name, array in message.arrays().items()}
    return {name: _in(value, tensors) for name, value in message.header.items() if name != "arrays"}


def _out(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        arrays[str(len(arrays))] = np.ascontiguousarray(array)
        return {_TENSOR: str(len(arrays) - 1)}
    if isinstance(value, Mapping):
        return {str(key): _out(each, arrays) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_out(each, arrays) for each in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise OptionError(
        f"expected numbers, strings, tensors, lists and dictionaries of them; got {type(value).__name__}."
    )


def _in(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_TENSOR} and isinstance(value[_TENSOR], str) and value[_TENSOR] in tensors:
            return tensors[value[_TENSOR]]
        return {key: _in(each, tensors) for key, each in value.items()}
    return [_in(each, tensors) for each in value] if isinstance(value, list) else value


class CallTable:
    """What `request_server` may call: name -> callable. working: of some, the bytes of memory that a call with these arguments
    takes, to be reserved before it."""

    def __init__(
        self, table: Mapping[str, Callable[..., Any]], working: Mapping[str, Callable[..., int]] | None = None
    ) -> None:
        self._table, self._working = table, working or {}

    def __call__(self, message: Message, caller: Caller) -> Message:
        given = from_message(message, copy=False)  # no memory is reserved yet
        name, args, kwargs = str(given.get("func"))[:200], given.get("args", []), given.get("kwargs", {})
        if name not in self._table:
            raise DataError(
                f"request_server: this server calls no {name!r}, because functions are not sent. It knows: "
                f"{', '.join(sorted(self._table))}."
            )
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise DataError(f"request_server: {name}: its arguments cannot be read.")
        try:
            inspect.signature(self._table[name]).bind(*args, **kwargs)
        except TypeError as error:
            raise DataError(f"request_server: {name}: {error}.") from None
        nbytes = self._working[name](*args, **kwargs) if name in self._working else 0
        with caller.working(nbytes):
            return to_message({"value": self._table[name](*args, **kwargs)})
