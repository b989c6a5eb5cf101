"""A stream of a thread's own."""

from contextlib import nullcontext

import torch

from glt_lightning.kernels import SideStream


def test_a_thread_stays_on_its_device(monkeypatch):
    """Where a thread is on device 0, torch goes back there from a stream of another, and takes memory of it."""
    asked = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(str(device)))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: asked.append(stream) or nullcontext())
    with SideStream(torch.device("cuda", 1)).current():
        assert asked == ["cuda:1", "a stream of cuda:1"]


def test_the_cpu_has_no_streams():
    stream = SideStream(torch.device("cpu"))
    with stream.current():
        stream.mark().hand_over([torch.zeros(1)])
