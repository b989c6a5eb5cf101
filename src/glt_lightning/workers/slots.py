"""Recycled memory for batches.

Fresh memory costs more than the gather that fills it (page faults), so batches live in slots that are used again. A slot
is lent as a buffer; when the last array or tensor that views the buffer is gone, the slot returns by itself.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from glt_lightning.kernels import address_of, lend

_GRAIN = 2 << 20  # slots grow in steps of a huge page, 2 MiB on x86-64


# Page-locks [address, address + bytes) and returns a function that undoes it; the loader passes it in when training on a
# GPU, since nothing below the loader may import torch.
PinMemory = Callable[[int, int], Callable[[], None]]


class _Map(mmap.mmap):
    """A map that is page-locked until its last view is gone.

    CUDA must unregister the pages before the kernel unmaps them. If an address is mapped again while it is still
    registered, it cannot be registered, or copies read the old pages. Views outlive their slot, so the map itself, which
    the last view keeps alive, undoes the registration.
    """

    unpin: Callable[[], None] | None = None

    def pin(self, pin: PinMemory) -> None:
        self.unpin = pin(address_of(self), len(self))

    def __del__(self) -> None:
        if self.unpin is not None:
            self.unpin()


class Slot:
    """Memory for one batch at a time, private to this process. It grows to the largest batch it ever held.

    Args:
        index: Number of the slot in its pool.
        pin: Page-locks (address, bytes) and returns the function that undoes it. None: the memory is not page-locked.

    Raises:
        OSError: By ``reserve``, if the host has no memory left.

    Example:
        >>> slot = Slot(0)
        >>> slot.reserve(1000)
        >>> slot.capacity  # rounded up to huge pages
        2097152
    """

    def __init__(self, index: int, pin: PinMemory | None = None) -> None:
        self.index = index
        self._memory: _Map | None = None
        self._pin = pin
        self._largest = 0  # bytes that were asked for

    @property
    def capacity(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    @property
    def taken(self) -> int:
        """Bytes of memory behind it: huge pages up to the end of its largest batch. 0 where another process writes it."""
        return -(-self._largest // _GRAIN) * _GRAIN

    def reserve(self, nbytes: int) -> None:
        """Makes room for ``nbytes``. Only while the slot is not lent."""
        if nbytes > self.capacity:
            # An eighth more than asked: sizes of batches vary, and each growth maps (and faults in) fresh pages.
            self._map(-(-(nbytes + nbytes // 8) // _GRAIN) * _GRAIN)
        self._largest = max(self._largest, nbytes)

    def _map(self, capacity: int) -> None:
        self._memory = None  # the old map goes with its last view
        memory = _Map(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        self._use(memory)

    def _use(self, memory: _Map) -> None:
        if self._pin is not None:
            memory.pin(self._pin)
        self._memory = memory

    def buffer(self) -> Any:
        """Returns a new object that exports the memory. It is garbage-collected when no view of the batch is left."""
        assert self._memory is not None
        return lend(self._memory)

    def close(self) -> None:
        self._memory = None


class SharedSlot(Slot):
    """A slot that another process writes: a memfd, which has no name and is freed when the last process that has it closes
    it or ends, in whatever way.

    Args:
        index: Number of the slot in its pool.
        pin: Page-locks (address, bytes) and returns the function that undoes it. None: the memory is not page-locked.
        fd: File descriptor of a slot that another process created; this object owns it from now on. None: a new memfd.

    Raises:
        OSError: If the host has no memory or file descriptors left.

    Example:
        >>> import os
        >>> slot = SharedSlot(0)
        >>> writer = SlotWriter(os.dup(slot.fd))
        >>> writer.memory(3)[:3] = [1, 2, 3]
        >>> slot.attach()
        >>> np.frombuffer(slot.buffer(), np.uint8, 3)
        array([1, 2, 3], dtype=uint8)
        >>> writer.close(), slot.close()
        (None, None)
    """

    def __init__(self, index: int, pin: PinMemory | None = None, fd: int | None = None) -> None:
        super().__init__(index, pin)
        self.fd = os.memfd_create(f"glt-slot-{index}", os.MFD_CLOEXEC) if fd is None else fd

    def attach(self) -> None:
        """Maps the memory again if the writer made it larger."""
        size = os.fstat(self.fd).st_size
        if size > self.capacity:
            self._memory = None
            self._use(_Map(self.fd, size))

    def close(self) -> None:
        super().close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SlotWriter:
    """The writing process's view of a `SharedSlot`: maps it, and enlarges it if a batch does not fit.

    Args:
        fd: File descriptor of the slot; this object owns it and closes it.

    Raises:
        OSError: By ``memory``, if the host has no memory left.

    Example:
        >>> import os
        >>> slot = SharedSlot(0)
        >>> writer = SlotWriter(os.dup(slot.fd))
        >>> len(writer.memory(100)), slot.capacity
        (2097152, 0)
        >>> slot.attach()
        >>> slot.capacity
        2097152
        >>> writer.close(), slot.close()
        (None, None)
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None

    def memory(self, nbytes: int) -> np.ndarray:
        """uint8 [>= nbytes] to write one batch into. Raises OSError when the host has no memory left."""
        size = os.fstat(self._fd).st_size
        if size < nbytes:
            size = -(-(nbytes + nbytes // 8) // _GRAIN) * _GRAIN
            os.ftruncate(self._fd, size)
        if self._memory is None or len(self._memory) < size:
            self._memory = mmap.mmap(self._fd, size)
        return np.frombuffer(self._memory, dtype=np.uint8)

    def close(self) -> None:
        self._memory = None
        os.close(self._fd)


class SlotPool:
    """Slots of one kind, created as they are needed up to ``limit``; beyond it batches come in one-off memory.

    Not thread-safe, but a lent slot may come back on any thread.

    Args:
        kind: `Slot` or `SharedSlot`.
        limit: The largest number of slots.
        pin: Page-locks their memory, as for `Slot`.

    Example:
        >>> pool = SlotPool(Slot, limit=1)
        >>> slot = pool.take()
        >>> slot.reserve(8)
        >>> batch = pool.lend(slot, 8)
        >>> pool.take() is None  # the only slot is lent
        True
        >>> del batch  # the last view of the memory
        >>> pool.take() is slot
        True
    """

    def __init__(self, kind: type[Slot], limit: int, pin: PinMemory | None = None) -> None:
        self.limit = limit
        self.fresh_slots = 0  # batches that came in one-off memory because the consumer held every slot
        self._kind, self._pin = kind, pin
        self._slots: list[Slot] = []
        self._free: deque[Slot] = deque()
        self._made = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory behind all slots, lent or free."""
        return sum(slot.taken for slot in self._slots)

    def take(self, nbytes: int = 0) -> Slot | None:
        """Takes a free slot, the most recently used first because its memory is warm, one with room for ``nbytes`` before others,
        so that not all grow to the batches of the loader with the largest; None if all are in use."""
        newest = range(len(self._free) - 1, -1, -1)  # by index: another thread may append meanwhile
        if (at := next((i for i in newest if self._free[i].capacity >= nbytes), newest.start)) >= 0:
            slot = self._free[at]
            del self._free[at]
            return slot
        if len(self._slots) >= self.limit:
            return None
        slot = self._make(self._pin)
        self._slots.append(slot)
        return slot

    def take_fresh(self) -> Slot:
        """Makes a one-off slot, whose memory is freed with its batch. It is not page-locked: that takes longer than the copy
        from it, and blocks the host in the driver."""
        self.fresh_slots += 1
        if self.fresh_slots == 1:
            warnings.warn(
                f"all {self.limit} batch slots are in use by batches that the program still references; further batches get "
                "fresh memory, which is slower. Drop references to batches that are no longer needed.",
                stacklevel=2,
            )
        return self._make(None)

    def give_back(self, slot: Slot) -> None:
        """Returns a slot that was taken but not lent."""
        if self.owns(slot):
            self._free.append(slot)
        else:
            slot.close()

    def retire(self, slot: Slot) -> None:
        """Removes a taken slot from the pool and closes it: its memory is freed with its last view and never written again."""
        self._slots = [each for each in self._slots if each is not slot]
        slot.close()

    def trim(self, most: int) -> list[Slot]:
        """Closes free slots until ``most`` are left, those that were used last; returns the closed ones."""
        gone = [self._free.popleft() for _ in range(len(self._free) - most)]
        for slot in gone:
            self.retire(slot)
        return gone

    def owns(self, slot: Slot) -> bool:
        return any(slot is s for s in self._slots)

    def lend(self, slot: Slot, nbytes: int) -> np.ndarray:
        """Lends uint8 [nbytes] of a taken slot. The slot is free again when every view of the array is gone."""
        buffer = slot.buffer()
        memory = np.frombuffer(buffer, np.uint8, nbytes)
        if self.owns(slot):
            # Runs on whichever thread drops the last view: `deque.append` is atomic, so it needs no lock.
            weakref.finalize(buffer, self._free.append, slot).atexit = False
        elif isinstance(slot, SharedSlot):
            # a mapping of a memfd holds a file descriptor, and the program may reference thousands of batches
            memory = memory.copy()
            slot.close()
        return memory

    def lend_room(self, slot: Slot, nbytes: int) -> np.ndarray:
        """Makes a slot of this process large enough and lends it, as `lend` does. If the host has no memory left, frees the slot
        and raises OSError."""
        try:
            slot.reserve(nbytes)
        except BaseException:
            self.give_back(slot)
            raise
        return self.lend(slot, nbytes)

    def close(self) -> None:
        """Closes all slots. Batches that are still in use keep their memory, page-locked as it was."""
        for slot in self._slots:
            slot.close()
        self._slots.clear()
        self._free.clear()
        self.limit = 0

    def _make(self, pin: PinMemory | None) -> Slot:
        self._made += 1
        return self._kind(self._made, pin)


# Messages between a rank and its sampler processes: a JSON header, raw bytes, file descriptors; no pickle.


_LENGTHS = struct.Struct("<II")
_MOST = 1 << 31  # bytes of a header or body: lengths beyond it mean that the stream is out of step


class ClosedError(ConnectionError):
    """The other end is gone."""


def send(
    sock: socket.socket, header: dict[str, Any], body: bytes | memoryview = b"", fds: list[int] | None = None
) -> None:
    """Sends one message. Raises `ClosedError` if the other end is gone, TimeoutError at the socket's deadline."""
    text = json.dumps(header).encode()
    lengths = _LENGTHS.pack(len(text), len(body))
    try:
        if fds:
            socket.send_fds(sock, [lengths], fds)
            sock.sendall(text)
        else:
            sock.sendall(lengths + text)
        if len(body):
            sock.sendall(body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ClosedError(str(error)) from None


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes, list[int]]:
    """Receives one message. Raises `ClosedError` at the end of the stream, TimeoutError at the socket's deadline."""
    fds: list[int] = []
    try:
        first, fds, _, _ = socket.recv_fds(sock, _LENGTHS.size, 1)
        if not first:
            raise ClosedError("the other process closed the connection")
        lengths = first + _exactly(sock, _LENGTHS.size - len(first))
        header_size, body_size = _LENGTHS.unpack(lengths)
        if header_size > _MOST or body_size > _MOST:
            raise ClosedError(
                f"received a frame of {header_size} + {body_size} bytes; at most {_MOST} each are possible"
            )
        header = json.loads(_exactly(sock, header_size))
        return header, _exactly(sock, body_size), list(fds)
    except BaseException as error:
        for fd in fds:  # the descriptors arrive with the first bytes of a message, whose rest may be missing
            os.close(fd)
        if isinstance(error, ConnectionResetError):
            raise ClosedError(str(error)) from None
        raise


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        n = sock.recv_into(view[got:])
        if n == 0:
            raise ClosedError("the other process closed the connection in the middle of a message")
        got += n
    return bytes(data)
