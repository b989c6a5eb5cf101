"""The process of a command: its threads and imports before torch is loaded, and its end.

Only the program uses this, not a script that imports the package: it changes the state of a whole process.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any

from glt_lightning.base import threads_that_sleep


@contextmanager
def command_process() -> Iterator[None]:
    """Sets the process up for a command, inside of the ``with`` block, and has it end at once when the command is done.

    * Threads of OpenMP sleep while they wait for work (`threads_that_sleep`); OpenMP reads that when torch is loaded.
    * `scipy.signal`, matplotlib, torch's compiler, `torch.distributions`,
      `torch_geometric.datasets` and s3fs are imported when they are used (`_LATE`), unless torch is newer than those this was
      tried with.
    * After the block, the process ends without taking apart the memory of torch, which takes about a second.
    """
    end = _QuickEnd()  # runs after all that others register
    late = _LateFinder()
    if _torch_is_known():
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
    After the ``with`` block they are no longer looked through. PyG's use of TorchScript is not warned of."""
    # torch 2.14; a user can do nothing about it. It stays: to restore the filters would take those of the imports away.
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is deprecated", category=FutureWarning)
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is done
        for kind in (io.TextIOWrapper, (io.BufferedWriter, io.BufferedRandom)):  # a text file writes into a buffer
            # not isinstance, which asks an object for its class, and an old name of torch answers with a warning
            for file in [each for each in gc.get_objects() if issubclass(type(each), kind)]:
                with suppress(OSError, ValueError):
                    file.flush()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # its reader is gone: Python has a status for that
                return
        os._exit(self.status)


# Modules that are imported when a name of them is used that they do not have before. Lightning and torch's optimizers import
# torch's compiler, and torchmetrics matplotlib, which take half of the time of all imports, for names that a run does not use;
# torch itself its quantization and distributions;
# a checkpoint of PyG's linear layers asks whether the model is exported to ONNX.


_NEWEST_TORCH = (2, 15)


def _torch_is_known() -> bool:
    with suppress(PackageNotFoundError, ValueError):
        major, minor = version("torch").split(".")[:2]
        return (int(major), int(minor)) <= _NEWEST_TORCH
    return False


class _LateModule(ModuleType):
    """A module that is read when a name of it is used that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name != "__path__":  # which every import of a name asks for
            _read(self)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def _read(module: ModuleType) -> None:
    """Makes a `_LateModule` the real one; nothing for other modules, and while one is read."""
    own = vars(module)
    if not isinstance(module, _LateModule) or "_lock" not in own:
        return
    with own["_lock"]:  # another thread waits until the module is whole
        if (real := own.pop("_real", None)) is not None:
            own["__spec__"], own["__loader__"] = real, real.loader
            # with a name of a part, that part would not be imported where the module imports it
            before = {name: own.pop(name) for name in _LATE[module.__name__]}
            real.loader.exec_module(module)
            own.update({name: value for name, value in before.items() if name not in own})
            module.__class__ = ModuleType  # type: ignore[assignment]


class _LateName:
    """Stands for a class or a function of a `_LateModule`. Calls and subclasses get the real one; no object is an instance of a
    class that was not read."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _real(self) -> Any:
        _read(module := import_module(self._module))
        return getattr(module, self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return not _is_late(self._module) and isinstance(instance, self._real())

    def __subclasscheck__(self, subclass: Any) -> bool:
        return not _is_late(self._module) and issubclass(subclass, self._real())


class _LatePart(SimpleNamespace):
    """Stands for a module of the compiler, with the names that it has before."""

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(**names)
        self.__name__ = f"{_COMPILER}.{name}"

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def _is_late(name: str) -> bool:
    return isinstance(sys.modules.get(name), _LateModule)


def _late_before(name: str) -> str | None:
    return next((each for start, each in _BEFORE.items() if name.startswith(start) and _is_late(each)), None)


def _disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """torch's: has the compiler leave a function alone. There is nothing to leave alone before the compiler is read."""
    if fn is None:
        return partial(_disable, recursive=recursive, **options)
    disabled: Any = None

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if _is_late(_COMPILER):
                return fn(*args, **kwargs)
            disabled = sys.modules[_COMPILER].disable(fn, recursive, **options)
        return disabled(*args, **kwargs)

    return call


def _graph_break(*_: Any, **__: Any) -> None:
    """torch's: ends the part of a function that is compiled together."""


_COMPILER, _ONNX, _PLOTS = "torch._dynamo", "torch.onnx", "torchmetrics.utilities.plot"
_UNUSED = tuple(
    f"torch.{name}"
    for name in ("distributions", "quantization", "nn.intrinsic", "nn.qat", "nn.quantizable", "nn.quantized")
)
# Late modules that are read before others: parts expect to be imported by their package.
_BEFORE = {f"{name}.": name for name in (_COMPILER, _ONNX, *_UNUSED)}
_PLOT_TYPES = ("_AX_TYPE", "_CMAP_TYPE", "_PLOT_OUT_TYPE")  # for annotations
_PLOT_FUNCTIONS = ("plot_single_or_multi_val", "plot_confusion_matrix", "plot_curve")
# The names that they have before: those that Lightning, torch's optimizers and groups of ranks, the linear layers of PyG, and
# torchmetrics, which puts ``hamming`` where SciPy had it, take from them.
_LATE: dict[str, dict[str, Any]] = {
    "scipy.signal": {"hamming": _LateName("scipy.signal.windows", "hamming")},
    "torch_geometric.datasets": {},
    "s3fs": {"S3FileSystem": _LateName("s3fs", "S3FileSystem")},  # Lightning asks each file system whether it is one
    _COMPILER: {
        "OptimizedModule": _LateName(_COMPILER, "OptimizedModule"),
        "disable": _disable,
        "graph_break": _graph_break,
        "trace_rules": _LatePart("trace_rules", clear_lru_cache=lambda: None),
        "utils": _LatePart(
            "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"
        ),  # torch's default: nobody has set another
    },
    _ONNX: {"is_in_onnx_export": lambda: False},
    **{name: {} for name in _UNUSED},
    _PLOTS: {**dict.fromkeys(_PLOT_TYPES, Any), **{name: _LateName(_PLOTS, name) for name in _PLOT_FUNCTIONS}},
}


class _LateFinder:
    """Finds each of `_LATE` as a `_LateModule`, once."""

    def __init__(self) -> None:
        self._left = set(_LATE)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if (whole := f"{name}.").startswith(tuple(_BEFORE)) and (before := _late_before(whole)) and before != name:
            _read(sys.modules[before])
            if (found := sys.modules.get(name)) is not None:
                # the import system takes the module's spec, in place of ours, and would run its code again; modules of options
                # refuse names that they do not know
                vars(found)["__spec__"] = spec = ModuleSpec(name, _FoundLoader(found))
                return spec
            return None
        if name not in self._left:
            return None
        real = PathFinder.find_spec(name, path)
        if real is None or real.loader is None:
            return None
        is_package = real.submodule_search_locations is not None
        return ModuleSpec(name, _LateLoader(real, self._left), origin=real.origin, is_package=is_package)


class _LateLoader(Loader):
    def __init__(self, real: ModuleSpec, left: set[str]) -> None:
        self._real, self._left = real, left

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._left.discard(spec.name)
        module = _LateModule(spec.name)
        vars(module).update(_LATE[spec.name], __file__=self._real.origin)
        if (folders := self._real.submodule_search_locations) is not None:
            module.__path__ = folders
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leaves that to `_read`."""
        vars(module).update(_real=self._real, _lock=RLock())


class _FoundLoader(Loader):
    """Of a module that was imported while it was looked for."""

    def __init__(self, found: ModuleType) -> None:
        self._found, self._spec = found, vars(found)["__spec__"]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._found

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec
