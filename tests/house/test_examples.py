"""Every public object has an example in its docstring, and the example gives what it shows.

The examples run in a folder that has ``graph.npz`` (ten nodes in a ring), ``parts`` (its partition in two), ``papers`` (a
partition made of ``papers.csv`` and ``cites.csv``), ``run.yaml`` and an OGB data set below ``ogb``; public names, ``np``,
``torch`` and `names` below need no import there.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import shutil
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything

import glt_lightning.compat.glt as glt
from glt_lightning import GLTDataModule, GraphSAGE, PartitionOptions
from glt_lightning.partition import open_source, partition_graph
from tests.helpers.ogb_layout import RawGraph
from tests.helpers.ogb_links import lay_out_links, write_link_splits
from tests.house.public import PublicObject, public_objects

ROOT = Path(__file__).parents[2]
OBJECTS = public_objects(ROOT)
ROOMS = sorted(each.parent.name for each in (ROOT / "src" / "glt_lightning").glob("*/__init__.py"))
TABLES = {
    "nodes": {"paper": {"path": "papers.csv", "id": "paper", "features": "*", "encode": "auto"}},
    "edges": {"paper__cites__paper": {"path": "cites.csv", "source": "paper", "destination": "cited"}},
}
RUN = """\
model: {class_path: glt_lightning.GraphSAGE, init_args: {hidden_channels: 8, num_layers: 2}}
data:
  class_path: glt_lightning.GLTDataModule
  init_args: {dataset: graph.npz, root: data, num_neighbors: [2, 2], batch_size: 4}
trainer: {max_epochs: 1, accelerator: cpu, logger: false, enable_progress_bar: false, enable_model_summary: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ring = np.arange(10)
        np.savez(
            "graph.npz",
            x=np.arange(30, dtype=np.float32).reshape(10, 3),
            y=ring % 2,
            edge_index=np.stack([np.concatenate([ring, ring]), np.concatenate([ring + 1, ring + 2]) % 10]),
            train_idx=np.arange(6),
            valid_idx=np.array([6, 7]),
            test_idx=np.array([8, 9]),
        )
        Path("papers.csv").write_text("paper,year,kind\nW-1,1999,book\nW-2,2001,journal\nW-3,2004,book\n")
        Path("cites.csv").write_text("paper,cited\nW-2,W-1\nW-3,W-1\n")
        Path("run.yaml").write_text(RUN)
        for data, name in (("graph.npz", "parts"), (TABLES, "papers")):
            options = PartitionOptions(num_parts=2 if name == "parts" else 1)
            partition_graph(open_source(data, "data"), name, options, progress=False)
        graph = RawGraph.random(np.random.default_rng(0))
        write_link_splits(lay_out_links(Path("ogb"), "ogbl-collab", graph), "ogbl-collab")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("sys.argv", ["python -m lightning"])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def names() -> dict[str, Any]:
    """What an example need not import: public names, and these."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    seed_everything(0, verbose=False)
    datamodule = GLTDataModule("graph.npz", root="data", num_neighbors=[2, 2], batch_size=4)
    own = {
        "glt": glt,
        "np": np,
        "torch": torch,
        "Path": Path,
        "Trainer": partial(Trainer, accelerator="cpu", enable_checkpointing=False, **quiet),
        "tables": TABLES,
        "datamodule": datamodule,
        "model": GraphSAGE(3, 2, hidden_channels=8, num_layers=2),
    }
    return own | {each.name: getattr(importlib.import_module(each.module), each.name) for each in OBJECTS}


@pytest.mark.parametrize("public", OBJECTS, ids=lambda each: f"{each.module}.{each.name}")
def test_example_gives_what_it_shows(public: PublicObject, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert public.has_example, f"{public.module}.{public.name}: its docstring has no example (>>> ...). Add one."
    monkeypatch.chdir(folder)
    _run_example(public.doc, names(), public.name, public.module)


def _run_example(doc: str, known: dict[str, Any], name: str, module: str) -> None:
    test = doctest.DocTestParser().get_doctest(doc, known, name, module, 0)
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, about loaders without processes
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=shown.append)
    assert result.attempted >= 1, "every statement of the example is skipped"
    assert not result.failed, "".join(shown)


@pytest.mark.parametrize("room", ROOMS)
def test_example_of_a_face_gives_what_it_shows(room: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    face = importlib.import_module(f"glt_lightning.{room}")
    monkeypatch.chdir(folder)
    _run_example(face.__doc__ or "", {}, room, face.__name__)


@pytest.mark.parametrize("public", OBJECTS, ids=lambda each: f"{each.module}.{each.name}")
def test_docstring_names_every_argument(public: PublicObject) -> None:
    given = getattr(importlib.import_module(public.module), public.name)
    if inspect.isclass(given) and not getattr(given.__init__, "__module__", "").startswith("glt_lightning"):
        return  # a protocol, or the arguments of a class of Lightning
    docs = " ".join(each.__doc__ or "" for each in given.__mro__) if inspect.isclass(given) else public.doc
    names = [name for name in inspect.signature(given).parameters if name not in ("args", "kwargs")]
    assert [name for name in names if not re.search(rf"\b{name}\b", docs)] == []
    assert public.doc.partition("\n\n")[0].endswith(".")
