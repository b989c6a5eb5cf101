"""Batches that are moved without a data module are kept until their copies are done."""

from __future__ import annotations

import pytest
import torch

from glt_lightning import SamplingOptions
from glt_lightning.loader import LoaderSpec, Session
from tests.helpers.partitions import partitioned, small_graph

ELSEWHERE = torch.device("meta")  # a device that every torch has


class Event:
    """An event of a device that has not come to it yet."""

    done = False

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return Event.done


@pytest.fixture
def device(monkeypatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Event, "done", False)
    return ELSEWHERE


@pytest.mark.filterwarnings("ignore:all 3 batch slots")
def test_memory_is_not_used_again_under_a_copy(tmp_path, device):
    spec = LoaderSpec(name="t", num_neighbors=[2], batch_size=4, split=None, shuffle=False)
    graph = partitioned(small_graph(), tmp_path, 1)
    with Session(graph, SamplingOptions(num_workers=0), seed=7) as context:
        held = []
        for batch in context.make_loader(spec):
            Event.done = len(held) == 5
            held.append(batch.n_id.data_ptr())
            moved = context.to_device(batch, device)
            assert (moved.n_id.device, moved.n_id.shape) == (ELSEWHERE, batch.n_id.shape)
            del batch, moved
            if Event.done:
                break
        assert len(set(held)) == len(held)
        again = next(iter(context.make_loader(spec)))
        assert again.n_id.data_ptr() in held  # the copies were done by then


def test_on_the_cpu_a_batch_stays_what_it_is(tmp_path):
    spec = LoaderSpec(name="t", num_neighbors=[2], batch_size=4, split=None, shuffle=False)
    with Session(partitioned(small_graph(), tmp_path, 1), seed=7) as context:
        batch = next(iter(context.make_loader(spec)))
        assert context.to_device(batch) is batch
