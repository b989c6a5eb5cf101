"""The process of a command: its threads and imports before torch is loaded, and its end.

Only the program uses this, not a script that imports the package: it changes the state of a whole process.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any

from glt_lightning.base import threads_that_sleep


@contextmanager
def command_process() -> Iterator[None]:
    """Sets the process up for a command, inside of the ``with`` block, and has it end at once when the command is done.

    * Threads of OpenMP sleep while they wait for work (`threads_that_sleep`); OpenMP reads that when torch is loaded.
    * `scipy.signal` and `torch_geometric.datasets` are imported when they are used: torchmetrics, which Lightning needs, imports
      the first for one name, and torch_geometric the second with pandas and its language models, for none.
    * After the block, the process ends without taking apart the memory of torch, which takes about a second.
    """
    end = _QuickEnd()  # runs after all that others register
    late = _LateFinder()
    sys.meta_path.insert(0, late)
    try:
        with threads_that_sleep():
            yield
    except SystemExit as error:
        end.status = 0 if error.code is None else error.code if isinstance(error.code, int) else None
        raise
    else:
        end.status = 0
    finally:
        with suppress(ValueError):
            sys.meta_path.remove(late)


@contextmanager
def without_collections() -> Iterator[None]:
    """Imports make some 900,000 objects that live until the end, and looking for garbage among them takes a sixth of the time.
    After the ``with`` block they are no longer looked through."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class _QuickEnd:
    """Ends the process with ``status`` once all other functions of `atexit` have run, and its files have been written; None
    leaves the end to Python, also where a function was registered before this one, which would run after it."""

    def __init__(self) -> None:
        self.status: int | None = None
        if not atexit._ncallbacks():
            atexit.register(self._end)

    def _end(self) -> None:
        if self.status is None:
            return
        for kind in (io.TextIOWrapper, (io.BufferedWriter, io.BufferedRandom)):  # a text file writes into a buffer
            for file in [each for each in gc.get_objects() if isinstance(each, kind)]:
                with suppress(OSError, ValueError):
                    file.flush()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # its reader is gone: Python has a status for that
                return
        os._exit(self.status)


def _hamming(*args: Any, **kwargs: Any) -> Any:
    return import_module("scipy.signal.windows").hamming(*args, **kwargs)


# Modules that are imported when a name of them is used, and the names that they have before. torchmetrics looks for ``hamming``,
# which it adds where SciPy has moved it.
_LATE: dict[str, dict[str, Any]] = {"scipy.signal": {"hamming": _hamming}, "torch_geometric.datasets": {}}


class _LateFinder:
    """Finds each of `_LATE` as a `_LateModule`, once."""

    def __init__(self) -> None:
        self._left = set(_LATE)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in self._left:
            return None
        self._left.remove(name)
        real = PathFinder.find_spec(name, path)
        if real is None or real.loader is None:
            return None
        return ModuleSpec(name, _LateLoader(real), origin=real.origin, is_package=True)


class _LateLoader(Loader):
    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _LateModule(spec.name)
        given = {"__file__": self._real.origin, "__path__": self._real.submodule_search_locations, **_LATE[spec.name]}
        vars(module).update(given, _real=self._real, _lock=RLock())
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leaves that to the module."""


class _LateModule(ModuleType):
    """A module that is read when a name of it is used that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        own = vars(self)
        with own["_lock"]:  # another thread waits until the module is whole
            if (real := own.pop("_real", None)) is not None:
                own["__spec__"], own["__loader__"] = real, real.loader
                real.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
        try:
            return own[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
