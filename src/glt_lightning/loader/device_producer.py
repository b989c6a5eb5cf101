"""Batches made by the GPU that trains, on separate streams, while it trains on earlier batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt_lightning.base import CacheOptions, OptionError, Progress, SamplerError
from glt_lightning.graph import DeviceIndex, DeviceStore, LocalPartition
from glt_lightning.kernels import Mark, SideStream, wait_for
from glt_lightning.loader.collate import DEVICE_ROWS, Batch, to_tensor
from glt_lightning.sampling import BatchRequest, RemoteRows, Sample, SamplerConfig
from glt_lightning.workers import InFlight, LoaderRun, LookAhead, OwnSamplers, Ranks, Sampler, Samplers, read_rows

_CLOSE_S = 30.0  # for the batches that are being made when the producer is closed
_log = logging.getLogger(__name__)
_Made = tuple[Sample, Mark]  # and when its device has made it
_Task = tuple[BatchRequest, Future[_Made]]
_Run = LoaderRun[_Task]


class DeviceProducer(OwnSamplers, LookAhead[_Task, _Made]):
    """Makes batches ahead of those in use, in threads that each have a stream of ``device``. Close it.

    make_sampler: called once per thread and configuration; its drafts lie on the device.
    prefetch: batches ahead of the one that is given out.
    threads: batches made at once; more than one where they wait for other processes.  timeout_s: for one batch.
    release: frees what the samplers use, when the device has done with it.
    samplers: serve the mapped parts and request rows of the other parts from their owners; None where all parts are mapped.
    """

    fresh_slots = 0

    def __init__(
        self,
        device: torch.device,
        make_sampler: Callable[[SamplerConfig], Sampler],
        *,
        prefetch: int,
        threads: int = 1,
        timeout_s: float = 300.0,
        release: Callable[[], None] = lambda: None,
        samplers: Samplers | None = None,
    ) -> None:
        OwnSamplers.__init__(self, samplers)
        most = InFlight(prefetch + 1, f"sampling.prefetch {prefetch}", None)
        LookAhead.__init__(self, most, in_use=1)  # a batch takes memory of the device also while training uses it
        self._device, self._make_sampler, self._release = device, make_sampler, release
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"glt-{device}")
        self._own = threading.local()
        self._unfinished: set[Future[_Made]] = set()
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise SamplerError("the loader's session is closed; open a new one.")

    def _ask(self, run: _Run, request: BatchRequest) -> _Task:
        future = self._threads.submit(self._make, run.config, request)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return request, future

    def _wait(self, run: _Run, task: _Task) -> _Made:
        request, future = task
        try:
            return future.result(self._timeout_s)
        except CancelledError:
            raise SamplerError("the loader's session is closed; open a new one.") from None
        except TimeoutError:
            if future.done():  # an error of the sampler
                raise
            raise SamplerError(
                f"batch {request.number} was not made within {self._timeout_s:g} s (sampling.timeout_s) on {self._device}."
            ) from None

    def _nbytes(self, made: _Made) -> int:
        return 0  # sampling.prefetch is a number of batches, whatever their size

    def _deliver(self, made: _Made) -> Sample:
        sample, mark = made
        mark.hand_over(value for value in sample.arrays.values() if isinstance(value, Tensor))
        return sample

    def _leave(self, run: _Run) -> None:
        while (
            run.tasks
        ):  # dropped now: a finished batch takes memory of the device, and no further run may come to drop it
            _, future = run.tasks.popleft()
            future.cancel()

    def _make(self, config: SamplerConfig, request: BatchRequest) -> _Made:
        own = self._own
        if not hasattr(own, "samplers"):
            own.stream, own.samplers = SideStream(self._device), {}
        with own.stream.current():
            if config not in own.samplers:
                own.samplers[config] = self._make_sampler(config)
            draft = own.samplers[config].draft(request)
        return Sample(request.number, draft.values(), draft.counters), own.stream.mark()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.close_samplers()  # first, so that no thread of this process waits for other processes any more
            self._threads.shutdown(wait=False, cancel_futures=True)
            if wait(tuple(self._unfinished), _CLOSE_S).not_done:
                _log.error(
                    "%s is still making a batch after %g s; the memory that it reads is not released.",
                    self._device,
                    _CLOSE_S,
                )
                return
            self._threads.shutdown()
            try:
                wait_for(self._device)
            finally:
                self._release()


_ALONE = Ranks()


# torch copies no rows of these; it does of the signed integers with the same bytes
_CARRIED_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class DeviceRows:
    """``n_id`` and the attributes of the hottest nodes, one copy on ``device``; edges are not among them.

    Made before the samplers, which leave out what its ``index`` names; filled (`fill`) before their first batch. Close it.
    Raises `OptionError` where the rows do not fit the device, or the graph has a node attribute of a reserved name.
    """

    def __init__(self, partition: LocalPartition, budget_bytes: int, device: torch.device) -> None:
        manifest = partition.manifest
        for t, node_type in enumerate(manifest.schema.node_types):
            if DEVICE_ROWS in manifest.node_attrs(t):
                raise OptionError(
                    f"cache.device: {node_type!r} nodes have an attribute {DEVICE_ROWS!r}, a name that "
                    "cache.device reserves in batches. Rename the attribute, or remove cache.device."
                )
        self.device, self._partition = device, partition
        self._gids, self.nbytes = DeviceIndex.choose(partition, budget_bytes)
        free = DeviceStore.free_bytes(device)
        if free is not None and self.nbytes > free:
            raise OptionError(
                f"cache.device: its rows take {self.nbytes:,} bytes, and {device} has {free:,} free. Lower cache.device."
            )
        try:
            self.index = DeviceIndex.create(manifest, self._gids)
        except MemoryError as error:
            raise OptionError(
                "cache.device: not enough host memory for the index of the rows on the GPU: "
                f"{error}. Lower cache.device, or free memory on the host."
            ) from None
        self._tables: list[dict[str, torch.Tensor]] = []

    def fill(self, remote: RemoteRows | None = None, progress: bool | None = None) -> None:
        """Copies the rows to the device. remote: who has the parts that are not mapped here. Raises as `read_rows`.

        progress: show it; None: on a terminal.
        """
        with Progress(progress).phase(f"filling {self.device}", sum(map(len, self._gids)), "rows") as done:
            for t, gids in enumerate(self._gids):
                table: dict[str, torch.Tensor] = {}
                for first, rows in read_rows(self._partition, remote, t, gids):
                    for name, values in self._tensors(t, rows):
                        if name not in table:
                            shape = (len(gids), *values.shape[1:])
                            table[name] = torch.empty(shape, dtype=values.dtype, device=self.device)
                        table[name][first : first + len(values)].copy_(values)
                    done(len(rows["n_id"]))
                self._tables.append(table)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # batches may be completed on another stream
        _log.info("%s", self._summary())

    def complete(self, batch: Batch) -> Batch:
        """Gives a batch, moved to the device, the rows that it came without; the same object. Never waits for the device."""
        if not self._tables:
            raise SamplerError("the rows of this batch on the GPU were released, because its Session is closed.")
        for table, store in self._stores(batch):
            if DEVICE_ROWS in store:
                ranks = store[DEVICE_ROWS]
                delattr(store, DEVICE_ROWS)
                _complete(table, store, ranks)
        return batch

    def close(self) -> None:
        """Gives the memory on the device back, as far as no batch has it. Safe to call twice."""
        self._tables.clear()
        self.index.close()

    def _stores(self, batch: Batch) -> Iterator[tuple[dict[str, torch.Tensor], Any]]:
        schema = self._partition.schema
        stores: Sequence[Any] = [batch] if schema.homogeneous else [batch[name] for name in schema.node_types]
        yield from zip(self._tables, stores, strict=True)

    def _tensors(self, node_type: int, rows: Any) -> Iterator[tuple[str, torch.Tensor]]:
        manifest = self._partition.manifest
        for name, array in rows.items():
            if name == "n_id":
                yield name, torch.from_numpy(array.astype(np.int64, copy=False))
            else:
                yield name, _carried(to_tensor(array, manifest.is_bfloat16("nodes", node_type, name)))

    def _summary(self) -> str:
        manifest, shares = self._partition.manifest, []
        for name, n, gids in zip(manifest.schema.node_types, manifest.num_nodes, self._gids, strict=True):
            of = "nodes" if manifest.schema.homogeneous else name
            if len(gids):
                shares.append(f"{len(gids):,} rows ({len(gids) / n:.1%} of all {of})")
        return f"cache.device: {', '.join(shares) or 'no rows'} on {self.device}, {self.nbytes / 1e6:,.1f} MB."


def device_rows(
    partition: LocalPartition,
    options: CacheOptions,
    device: torch.device,
    ranks: Ranks = _ALONE,
    *,
    stored: bool = False,
) -> DeviceRows | None:
    """What the options ask to keep on the device that trains; None for nothing. stored: as `Manifest.as_stored` gives
    attributes. Raises as `DeviceRows`."""
    if options.device_bytes is None:
        return None
    if not is_apart(device):
        if ranks.rank == 0:
            _log.warning("cache.device: training on %s, so it has no effect. Remove it, or train on a GPU.", device)
        return None
    return DeviceRows(partition.as_stored if stored else partition, options.device_bytes, device)


def is_apart(device: torch.device) -> bool:
    """Whether a device has memory of its own."""
    return device.type != "cpu"


def _complete(table: dict[str, torch.Tensor], store: Any, ranks: torch.Tensor) -> None:
    """Puts the rows of ``table`` between those of ``store``. ranks: int32 [n], row in the table, -1: the next of the store.

    The number of either is known here without asking the device.
    """
    brought = len(store["n_id"])
    nth = torch.arange(1, brought + 1, device=ranks.device)
    places = torch.searchsorted((ranks < 0).cumsum(0), nth)
    ranks = ranks.clamp(min=0)
    for name, cached in table.items():
        left = store[name]
        rows = cached.index_select(0, ranks).index_copy_(0, places, _carried(left))
        store[name] = rows.view(left.dtype)


def _carried(values: torch.Tensor) -> torch.Tensor:
    return values.view(_CARRIED_AS.get(values.dtype, values.dtype))
