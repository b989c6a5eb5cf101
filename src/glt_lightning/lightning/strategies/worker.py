"""`GLTWorkerStrategy`: every rank samples for itself, from the parts that its host maps and those that other hosts serve."""

from __future__ import annotations

from pathlib import Path

from glt_lightning.base import CacheOptions, OptionError, PartitionError, SamplingOptions
from glt_lightning.graph import LocalPartition, Manifest, difference
from glt_lightning.lightning.strategies.base import GLTStrategy
from glt_lightning.partition import Versions, open_version
from glt_lightning.workers import DistContext, HostsGraph, Role, SampledGraph, end_by_deadline, placed_parts

_SAMPLING, _CACHE = SamplingOptions(), CacheOptions()


class GLTWorkerStrategy(GLTStrategy):
    """DDP on one or more hosts. The ranks of a host share the parts that it maps; those of several hosts serve each other.

    Registered as ``glt_worker``. It owns the sampler processes of its rank and ends them with the run, however that ends.
    `GLTStrategy` has the arguments.

    Example:
        >>> trainer = Trainer(strategy="glt_worker", devices=1, max_epochs=1)
        >>> trainer.fit(model, datamodule)
        >>> trainer.state.status.value
        'finished'
    """

    strategy_name = "glt_worker"
    description = "DDP; each rank samples, from parts that its host maps and from those of other hosts"

    _role = Role.WORKER.value
    _parts: tuple[int, ...] = ()
    _serves = False
    _opened: tuple[LocalPartition, ...] = ()

    @property
    def context(self) -> DistContext:
        peers = [rank for rank in range(self.world_size) if rank != self.global_rank]
        return DistContext(
            role=Role.WORKER,
            rank=self.global_rank,
            world_size=self.world_size,
            parts=self._parts,
            peers=tuple(f"rank {rank}" for rank in peers),
        )

    def open_graph(
        self,
        folder: str | Path | None,
        sampling: SamplingOptions = _SAMPLING,
        cache: CacheOptions = _CACHE,
        version: int | str | None = None,
    ) -> LocalPartition | SampledGraph:
        """Maps the parts that ``cluster.placement`` gives to this rank. Raises `PartitionError`, on all ranks, where one
        of them misses a file or has a different partition."""
        if folder is None:
            raise OptionError(
                "cluster.servers: only strategy glt_server_client samples from graph servers; glt_worker needs "
                "data.dataset or data.partition.dir."
            )
        self._close_graph()

        number = 0
        if version not in (None, 0):  # the latest one is that of rank 0: an append may come between
            number = int(self._gather_found(lambda: str(Versions(folder).number(version)))[0])

        def find() -> str:
            base = self._open_parts(folder)
            self._opened = (base,)
            self._opened = (open_version(base, number), base)
            return self._opened[0].identity

        hashes = self._gather_found(find)
        self._check_same(hashes, folder)
        self._parts = self._opened[-1].parts
        return self._of_partition(self._opened[0])

    def _close_graph(self) -> None:
        for each in self._opened:
            each.close()

    def _open_parts(self, folder: str | Path) -> LocalPartition:
        by_host = self.options.placement == "host"
        slot, slots = (self.node_rank, self.num_nodes) if by_host else (self.global_rank, self.world_size)
        num_parts = Manifest.load(folder).num_parts
        parts = placed_parts(slot, slots, num_parts)
        try:
            return LocalPartition.open(folder, parts=parts)
        except PartitionError as error:
            if slots == 1:
                raise
            where = f"host {slot} of {slots}" if by_host else f"rank {slot} of {slots}"
            raise PartitionError(f"{where} needs part {', '.join(map(str, parts))} of {num_parts}: {error}") from None

    def _check_same(self, hashes: list[str], folder: str | Path) -> None:
        for rank, theirs in enumerate(hashes):
            if theirs != hashes[0]:
                raise PartitionError(
                    f"{folder}: rank {rank} (there) has a different partition than rank 0 (here): "
                    f"{difference(theirs, hashes[0])}"
                )

    def _of_partition(self, partition: LocalPartition) -> LocalPartition | SampledGraph:
        """With the parts of other ranks, where some are not mapped here."""
        self._serves = len(partition.parts) < partition.manifest.num_parts
        if not self._serves:
            return partition
        link = self._link(self._role, self._secret())
        # a rank of another host may go while this one is in a collective call that waits for it for ever
        end = end_by_deadline(f"rank {self.global_rank}", self.options.peer_timeout_s, "cluster.peer_timeout_s")
        return HostsGraph(partition, link, self._host(), end, self.options.peer_silence_s)

    def _leave_together(self) -> None:
        # evaluation and prediction end at different times, and other ranks may need rows of this one
        if self._serves or self.num_nodes > 1:
            self._ranks.exchange("")
