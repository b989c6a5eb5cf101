"""GraphLearn-for-PyTorch's channels: queues of dictionaries of tensors between processes of one host, for scripts.

A message travels as the bytes of our wire format. Loaders do not use these: their batches lie in slots of shared memory.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import OptionError, at_least, parse_bytes
from glt_lightning.workers import Message, decode_header, encode_header, pack, unpack

SampleMessage: TypeAlias = dict[str, Tensor]
_TIMEOUT_S = 180.0  # as GLT's calls


class QueueTimeoutError(Exception):
    """No message came, or none was taken, in time."""


class ChannelBase:
    """A queue of messages. capacity: messages that wait in it.  timeout_s: of waits without a limit of their own."""

    def __init__(self, capacity: int = 0, timeout_s: float = _TIMEOUT_S) -> None:
        self._queue = multiprocessing.get_context("spawn").Queue(capacity)
        self._timeout_s = timeout_s

    def send(self, msg: Mapping[str, Tensor]) -> None:
        """Tensors of any device; they are copied. Raises `QueueTimeoutError` where the channel stays full."""
        entries, body = pack({name: each.detach().cpu().numpy() for name, each in msg.items()})
        self._check(body)
        try:
            self._queue.put((encode_header({"arrays": entries}), body.tobytes()), timeout=self._timeout_s)
        except queue.Full:
            raise QueueTimeoutError(
                f"{type(self).__name__}: no message was taken within {self._timeout_s:g} s."
            ) from None

    def recv(self, timeout_ms: int | None = None) -> SampleMessage:
        """The oldest message, on the CPU. timeout_ms: None or 0: the channel's. Raises `QueueTimeoutError`."""
        limit_s = timeout_ms / 1000 if timeout_ms else self._timeout_s
        try:
            header, body = self._queue.get(timeout=limit_s)
        except queue.Empty:
            raise QueueTimeoutError(f"{type(self).__name__}: no message came within {limit_s:g} s.") from None
        found = unpack(Message(decode_header(header), np.frombuffer(body, dtype=np.uint8)))
        return {name: self._placed(torch.from_numpy(array.copy())) for name, array in found.items()}

    def empty(self) -> bool:
        return self._queue.empty()

    def close(self) -> None:
        """Safe to call twice. What was sent and not received yet may be lost."""
        self._queue.close()

    def _check(self, body: np.ndarray) -> None: ...

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor


class MpChannel(ChannelBase):
    """A queue of Python's multiprocessing. maxsize: messages that wait in it; 0: any number.  timeout_s: most that `send` and
    `recv` wait.

    >>> channel = glt.channel.MpChannel()
    >>> channel.send({"ids": torch.arange(3)})
    >>> channel.recv()
    {'ids': tensor([0, 1, 2])}
    >>> channel.close()
    """

    def __init__(self, maxsize: int = 0, *, timeout_s: float = _TIMEOUT_S) -> None:
        super().__init__(maxsize, timeout_s)


class ShmChannel(ChannelBase):
    """The same with a limit of messages and of bytes. capacity: messages that wait in it.  shm_size: most bytes of a message.
    timeout_s: most that `send` and `recv` wait.

    >>> channel = glt.channel.ShmChannel(capacity=2, shm_size="1MB")
    >>> channel.send({"ids": torch.arange(3)})
    >>> channel.recv(timeout_ms=1000)["ids"].tolist()
    [0, 1, 2]
    >>> channel.close()
    """

    def __init__(self, capacity: int = 128, shm_size: int | str = "256MB", *, timeout_s: float = _TIMEOUT_S) -> None:
        at_least("capacity", capacity, 1)
        super().__init__(capacity, timeout_s)
        self._most, self._pinned = parse_bytes("shm_size", shm_size), False

    def pin_memory(self) -> None:
        """Page-locks what is received, where there is a GPU."""
        self._pinned = torch.cuda.is_available()

    def _check(self, body: np.ndarray) -> None:
        if body.nbytes > self._most:
            raise OptionError(
                f"ShmChannel: shm_size: a message has {body.nbytes} bytes, at most {self._most}. Raise it."
            )

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self._pinned else tensor
