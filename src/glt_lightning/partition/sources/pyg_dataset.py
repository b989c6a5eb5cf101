"""PyG data sets by class path: made when they are needed, and a download that fails says what to fetch."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_geometric.data import Dataset

from glt_lightning.base import ClassSpec, DataError
from glt_lightning.partition.folder import exclusive
from glt_lightning.partition.sources.fingerprint import folder_name
from glt_lightning.partition.sources.pyg import PygSource
from glt_lightning.partition.sources.randomness import fixed_randomness

_LOCK_S = 3600.0
_MOST_FILES = 8


def open_class_path(given: Any, root: str | Path) -> PygSource:
    """``torch_geometric.datasets.KarateClub``, or with arguments: the class is imported now, its data made when needed."""
    spec = ClassSpec.parse("dataset", given)
    kind = spec.load()
    if not issubclass(kind, Dataset):
        raise DataError(f"dataset: {spec.path} is not a PyG data set class.")
    short = spec.path.rpartition(".")[2]
    folder = Path(root) / folder_name(short)
    takes_root = "root" in inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    values = {**({"root": str(folder)} if takes_root else {}), **spec.arguments}
    spec.check(kind, values)
    name = "-".join([short, *(v for v in [spec.arguments.get("name")] if isinstance(v, str))])
    return PygSource(_maker(kind, spec.path, values, folder), name)


def _maker(kind: type, path: str, values: dict[str, Any], folder: Path) -> Callable[[], object]:
    def make() -> object:
        with exclusive(folder, _LOCK_S), fixed_randomness():  # ranks that start together would download the same files
            try:
                return kind(**values)
            except Exception as error:  # a third-party data set may raise anything
                raise _explained(error, path, values) from error

    return make


def _explained(error: Exception, path: str, values: dict[str, Any]) -> DataError:
    reason = " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    data = next((d for f in frames if isinstance(d := f.f_locals.get("self"), Dataset)), None)
    if data is None or not any(f.f_code.co_name in ("download", "_download") for f in frames):
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items() if name != "root")
        return DataError(f"dataset: {path}({arguments}) cannot be made ({reason}). GLT_TRACEBACK=1 shows where.")
    urls = (
        v for f in frames for v in f.f_locals.values() if isinstance(v, str) and v.startswith(("http://", "https://"))
    )
    return DataError(
        f"dataset: {path} cannot download {next(urls, 'its files')} ({reason}). Where there is a network, fetch "
        f"{_files_of(data)} and put them into {_raw_dir(data)}; they are not downloaded again."
    )


def _files_of(data: Dataset) -> str:
    try:
        names = [Path(path).name for path in data.raw_paths]
    except Exception:  # not all say which
        return "its raw files"
    shown = ", ".join(names[:_MOST_FILES])
    return f"{shown} and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else shown or "its raw files"


def _raw_dir(data: Dataset) -> Path:
    return Path(data.raw_dir).absolute()
