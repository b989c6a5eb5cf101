"""Tables stay in the host's memory when a GPU makes the batches and trains."""

from __future__ import annotations

import numpy as np
import torch

from glt_lightning.kernels import Kernels
from glt_lightning.workers.producer import on_gpu
from tests.helpers.partitions import small_graph
from tests.tensors.twins import Twin, data_of, fit


def test_rows_of_batches_that_a_gpu_makes(kernels, monkeypatch, tmp_path):
    """The emulated kernels stand in for the GPU: its batches have the row numbers, and the rows and states learned are those of
    the CPU, bit for bit."""
    torch.save(small_graph(), tmp_path / "graph.pt")
    monkeypatch.setattr(on_gpu, "is_gpu", lambda device: True)
    monkeypatch.setattr(Kernels, "open", lambda device: kernels)
    learned = {}
    for topology in ("cpu", "device"):
        module = Twin(rule="adam", real=True)
        trainer = fit(module, data_of(tmp_path / "graph.pt", tmp_path, 2, sampling={"seed": 5, "topology": topology}))
        made_by = type(trainer.train_dataloader._producer).__name__
        assert (made_by == "DeviceProducer") == (topology == "device")
        assert isinstance(module.emb.rows.table.own, np.ndarray)
        learned[topology] = module.state() | {"weight": module.table()}
    for name, values in learned["cpu"].items():
        assert np.array_equal(learned["device"][name], values), name
