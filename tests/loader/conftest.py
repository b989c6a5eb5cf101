"""Loaders of a module's ``graph`` by everybody who can make its batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glt_lightning.base import SamplingOptions
from glt_lightning.kernels import Kernels
from glt_lightning.loader import Session
from glt_lightning.workers.producer import on_gpu
from tests.helpers.servers import open_farm


@pytest.fixture(params=["sampler process", "server", "gpu"])
def context(request, graph, monkeypatch) -> Iterator[Session]:
    if request.param == "server":
        with open_farm("in process") as farm:
            yield farm.context(farm.serve(graph).address)
        return
    if request.param == "gpu":  # the CPU counts as one
        kernels = request.getfixturevalue("kernels")
        monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
        monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    workers = int(request.param == "sampler process")
    with Session(graph, SamplingOptions(num_workers=workers, max_restarts=0), seed=3) as context:
        yield context
