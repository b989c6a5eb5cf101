"""The rows of the hottest nodes on the device that trains, which batches then come without."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from glt_lightning.base import OptionError, Progress, SamplerError
from glt_lightning.graph import DeviceIndex, DeviceStore, LocalPartition
from glt_lightning.loader.collate import DEVICE_ROWS, Batch, to_tensor
from glt_lightning.sampling import RemoteRows
from glt_lightning.workers import ProducerSetup, read_rows

_log = logging.getLogger(__name__)


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


def device_rows(partition: LocalPartition, setup: ProducerSetup) -> DeviceRows | None:
    """Returns the rows that ``cache.device`` asks to keep on the device that trains; None without it. Raises as `DeviceRows`."""
    budget, device = setup.cache.device_bytes, torch.device(setup.device)
    if budget is None:
        return None
    if not is_apart(device):
        if setup.ranks.rank == 0:
            _log.warning("cache.device: training on %s, so it has no effect. Remove it, or train on a GPU.", device)
        return None
    return DeviceRows(partition.as_stored if setup.sampling.feature_dtype == "stored" else partition, budget, device)


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
