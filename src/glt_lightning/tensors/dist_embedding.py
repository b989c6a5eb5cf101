"""`DistEmbedding`: a vector for each node of a type, in a table that the ranks share."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glt_lightning.base import DataError, NoEmbeddingError, OptionError, TensorOptions, one_of
from glt_lightning.graph import Manifest, partition_id
from glt_lightning.kernels import RowSums
from glt_lightning.tensors.dist_graph import DistGraph
from glt_lightning.tensors.exchange import EmbeddingRows, Held
from glt_lightning.tensors.saved import WEIGHT, SavedRows, open_saved
from glt_lightning.tensors.tables import TableSpec

MARKER = "glt_rows"  # in a state dict: the name of a table whose rows are beside the checkpoint
_FLOAT32 = np.dtype(np.float32)
_AT_ONCE = 1 << 16  # rows


class _LookUp(torch.autograd.Function):
    """Returns rows, and hands their gradient to ``receive``. A leaf tensor with a hook would copy a gradient that is referred to
    elsewhere."""

    @staticmethod
    def forward(ctx: Any, needed: Tensor, values: Tensor, receive: Callable[[Tensor], object]) -> Tensor:
        """needed: a tensor that requires a gradient, without which autograd would not call `backward`."""
        ctx.receive = receive
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.receive(gradients[0])
        return None, None, None


class _TrainedRows:
    """Rows that are read by the user's ids of nodes and not trained any more: of a module that was attached to a graph, or of a
    checkpoint, whose file is mapped.

    Attributes:
        count: Number of nodes that have one.
        hash: Of all rows, in the order of the ids: of their file beside a checkpoint, whether there is one or not.
    """

    def __init__(self, read: Callable[[np.ndarray], np.ndarray], count: int, width: int, hash_: str) -> None:
        self._read, self.count, self._width, self.hash = read, count, width, hash_

    @classmethod
    def of_table(cls, rows: EmbeddingRows) -> _TrainedRows:
        saved = rows.to_save(None)
        _, (count, width), read = saved.arrays[WEIGHT]
        return cls(lambda ids: read(saved.order[ids]), count, width, saved.hash(WEIGHT))

    @classmethod
    def of_checkpoint(cls, saved: SavedRows, name: str, width: int) -> _TrainedRows:
        values = saved.open(name, WEIGHT, (width,), _FLOAT32)
        return cls(lambda ids: values[ids], len(values), width, saved.table(name)["arrays"][WEIGHT]["blake2b"])

    def read(self, ids: np.ndarray, rule: str) -> np.ndarray:
        """Returns float32 [n, width] of int64 ids. rule: `DistEmbedding.new_nodes`. Raises `NoEmbeddingError` by ``error``."""
        later = ids >= self.count
        if not later.any():
            return self._read(ids)
        if rule == "error":
            raise NoEmbeddingError(
                f"{int(later.sum())} nodes of the batch came after training, and have no embedding. Choose mean or zero as "
                "embeddings, or train again."
            )
        found = np.empty((len(ids), self._width), np.float32)
        found[~later] = self._read(ids[~later])
        found[later] = self._mean if rule == "mean" else 0
        return found

    @cached_property
    def _mean(self) -> np.ndarray:
        total = np.zeros(self._width)
        for begin in range(0, self.count, _AT_ONCE):
            rows = self._read(np.arange(begin, min(begin + _AT_ONCE, self.count)))
            total += rows.sum(axis=0, dtype=np.float64)
        return (total / max(1, self.count)).astype(np.float32)


def _base_of(manifest: Manifest) -> str:
    """Returns the identity of the partition, whatever version of it the graph is."""
    return str(manifest.made_by.get("base") or partition_id(manifest))


def _require_graph(name: str, theirs: str | None, identity: str) -> None:
    if theirs is not None and theirs != identity:
        raise OptionError(
            f"embedding {name!r} has the rows of another graph or partition ({theirs}) than this one ({identity}). Make a new "
            "module and load a checkpoint, which finds rows by the user's ids."
        )


class DistEmbedding(nn.Module):
    """A vector for each node of a type. The vectors lie in a table that the ranks of the host share, not in parameters, so DDP
    does not see them: lookups read rows, and the backward pass hands their gradients to a sparse optimizer.

    A `GLTDataModule` attaches the embeddings of the module that it feeds to its graph; in a script `attach` does. The results
    depend neither on the number of parts nor on timing. Tables lie in the memory of the host, also when a GPU trains.

    Args:
        embedding_dim: Width of the vectors.
        of: Node type; None: the only one.
        init: First values, by the user's ids of the nodes, as in `DistTensor`. The default is that of `nn.Embedding`.
        storage: Place of the table and the states of its optimizer: ``memory`` or ``disk``. None: ``cluster.tensors.storage``.

    Attributes:
        new_nodes: In predictions, the row of a node that came after training: ``mean`` of all, ``zero``, or ``error``. Rows are
            then read by ids of nodes, and not trained. None: all nodes have rows.

    Raises:
        OptionError: For a width that is no positive integer; by `attach` for rows of another graph.
        DataError: For lookups before `attach`, or of rows that do not exist.

    Example:
        >>> embedding = DistEmbedding(4, init="zeros")
        >>> with DistGraph("parts") as graph:
        ...     embedding.attach(graph)
        >>> optimizer = SparseAdagrad([embedding], lr=0.1)
        >>> embedding(torch.tensor([2, 5])).sum().backward()
        >>> optimizer.step()
        >>> embedding(torch.tensor([2, 3])).detach()
        tensor([[-0.1000, -0.1000, -0.1000, -0.1000],
                [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """

    like: Tensor

    def __init__(
        self,
        embedding_dim: int,
        of: str | None = None,
        *,
        init: Any = ("normal", 0.0, 1.0),
        storage: str | None = None,
    ) -> None:
        super().__init__()
        if type(embedding_dim) is not int or embedding_dim < 1:
            raise OptionError(f"DistEmbedding: embedding_dim: expected an integer >= 1, got {embedding_dim!r}.")
        if storage is not None:
            one_of("DistEmbedding: storage", storage, TensorOptions.STORAGES)
        self.embedding_dim, self.of, self.init, self.storage = embedding_dim, of, init, storage
        self.register_buffer("like", torch.empty(0), persistent=False)  # moves with the module, and so tells its device
        self._rows: EmbeddingRows | None = None
        self._saved: dict[str, Any] | None = None  # of a checkpoint that was loaded before there was a graph
        self.new_nodes: str | None = None
        self._name, self._most = "", 0  # of `prepare`
        self._forget()

    def _forget(self) -> None:
        self._received: list[tuple[int, np.ndarray, Tensor]] = []
        self._sums: RowSums | None = None
        self._lookups, self._lock = 0, threading.Lock()
        self._trained: _TrainedRows | None = None

    def extra_repr(self) -> str:
        return f"{self.embedding_dim}" + ("" if self.of is None else f", of={self.of!r}")

    # The table

    @property
    def rows(self) -> EmbeddingRows:
        """The table and its states. Raises `DataError` before `attach`."""
        if self._rows is None:
            raise DataError(
                "DistEmbedding: not attached to a graph. Give the Trainer a GLTDataModule, or call attach(graph) first."
            )
        return self._rows

    @property
    def is_attached(self) -> bool:
        """True if the embedding has a table."""
        return self._rows is not None

    def attach(self, graph: DistGraph, name: str = "embedding") -> None:
        """Makes the table, or keeps the one that all ranks have already. All ranks call it at the same time. The table stays open
        when the graph is closed.

        name: of the table; random first values depend on it.  Raises `OptionError`, on all ranks, if it has the rows of another
        graph.
        """
        space = graph.space(self.of, "node")
        before = None if self._rows is None else self._rows.held
        mine, identity = None if before is None else [before.token, before.graph], graph.hash
        everyone = [json.loads(text) for text in graph.ranks.exchange(json.dumps([mine, secrets.token_hex(8)]))]
        for theirs, _ in everyone:
            _require_graph(name, None if theirs is None else theirs[1], identity)
        tables = graph.tables.apart()
        token = None if everyone[0][0] is None else everyone[0][0][0]
        if before is not None and all(theirs == mine for theirs, _ in everyone) and before.lies_as(tables.homes):
            for table in before.all():
                tables.adopt(table)
            self._rows = EmbeddingRows(name, tables, space, before, self.storage)
        else:
            spec = TableSpec(space, _FLOAT32, (self.embedding_dim,), name=name, init=self.init, storage=self.storage)
            wide = np.dtype(np.int32 if space.num_rows < 1 << 31 else np.int64)  # half the memory for most graphs
            ids = TableSpec(
                space,
                wide,
                (),
                name=f"{name}/user_id",
                init=np.arange(space.num_rows, dtype=wide),
                storage=self.storage,
            )
            base = _base_of(graph.reader.manifest)
            held = Held(tables.create(spec), tables.create(ids), identity, base, everyone[0][1])
            self._rows = EmbeddingRows(name, tables, space, held, self.storage)
            if token is not None:
                self._take_over(before if before is not None and before.token == token else None)
        self.new_nodes, self._trained = None, None
        if self._saved is not None:
            self._load_saved(self._saved)

    def prepare(self, name: str, manifest: Manifest) -> None:
        """Prepares the reading of trained rows by ``new_nodes``, instead of `attach`. name: of the table in checkpoints.
        manifest: of the graph. Raises `OptionError` if there are rows of another graph."""
        if self._rows is not None:
            _require_graph(name, self._rows.held.base, _base_of(manifest))
        count = manifest.num_nodes[0 if self.of is None else manifest.schema.node_index(self.of)]
        self._name, self._most, self._trained = name, count, None

    @property
    def trained(self) -> _TrainedRows:
        """The rows for ``new_nodes``. Raises `DataError` where there are none, or those of a checkpoint are damaged."""
        if self._trained is None and self._rows is not None:
            self._trained = _TrainedRows.of_table(self._rows)
        elif self._trained is None and self._saved is not None:
            self._trained = _TrainedRows.of_checkpoint(open_saved(self._saved), self._name, self.embedding_dim)
        if self._trained is None:
            raise DataError(f"embedding {self._name!r} has no trained rows. Give the checkpoint, as ckpt_path.")
        if self._trained.count > self._most:
            raise DataError(
                f"embedding {self._name!r} has {self._trained.count} rows of another graph; this one has {self._most} nodes of "
                "the type. Use the data that the model was trained on."
            )
        return self._trained

    def _take_over(self, before: Held | None) -> None:
        """Copies the values that the ranks have from an earlier run with other ranks or hosts. A collective call.

        before: the table of that run; None: this rank did not take part in it.
        """
        rows, own = self.rows, None
        if before is not None and before.table.homes.is_first:
            own = before.table
        everyone = rows.tables.ranks.exchange(json.dumps(0 if own is None else len(own.own)))
        if (found := sum(map(json.loads, everyone))) != rows.space.num_rows:
            raise DataError(
                f"embedding {rows.name!r}: of its {rows.space.num_rows} rows from the run before, {found} lie on hosts of this "
                "run. Load a checkpoint of that run into a new module."
            )

        def write() -> None:
            if own is None:
                return
            for each in own.own_parts:
                for begin in range(0, each.count, _AT_ONCE):
                    at = np.arange(begin, min(begin + _AT_ONCE, each.count))
                    rows.table.write(each.first + at, own.own[each.begin + at])

        rows.tables.ranks.all_or_none(write, lambda _: None)

    def close(self) -> None:
        """Closes the table, as garbage collection of this object does. Safe to call twice."""
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.held.close()

    # Lookups

    def forward(self, rows: Any) -> Tensor:
        """Looks up rows. Returns float32 [*, embedding_dim].

        rows: int64 or int32 [*], numbers of nodes in the type; or a batch, of which the nodes' numbers (``row``) are taken; with
            ``new_nodes`` it has to be a batch.
        """
        look_up = self._look_up if self.new_nodes is None else self._look_up_by_id
        values: Tensor = look_up(rows)
        return values

    def _store(self, batch: Any) -> Any:
        return batch[self.of] if self.of is not None and hasattr(batch, "node_types") else batch

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look_up_by_id(self, batch: Any) -> Tensor:
        if isinstance(batch, Tensor):
            raise DataError(
                "DistEmbedding: nodes that came after training are found by their ids, not by rows. Call it with the batch."
            )
        assert self.new_nodes is not None
        ids: Tensor = self._store(batch).n_id
        found = torch.from_numpy(self.trained.read(ids.cpu().numpy(), self.new_nodes))
        return found.to(ids.device)

    def _rows_of(self, batch: Any) -> Tensor:
        found = getattr(self._store(batch), "row", None)
        if not isinstance(found, Tensor):
            raise DataError(
                "DistEmbedding: the batch has no row numbers. Set data.batches.with_row: true, or with_row=True of the loader."
            )
        return found

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look_up(self, given: Any) -> Tensor:
        rows = given if isinstance(given, Tensor) else self._rows_of(given)
        if rows.dtype not in (torch.int64, torch.int32):
            raise DataError(f"DistEmbedding: expected rows as int64, got {rows.dtype}.")
        at = np.array(rows.detach().reshape(-1).cpu().numpy(), np.int64)  # a copy: the memory of batches is used again
        found = torch.from_numpy(self.rows.table.read(at))
        values = found.to(rows.device).reshape(*rows.shape, self.embedding_dim)
        if not torch.is_grad_enabled():
            return values
        # gradients of an earlier backward pass, whose memory the caller may overwrite in the next one
        if self._received:
            self._fold()
            self._sums = None if self._sums is None else self._sums.copied()
        number, self._lookups = self._lookups, self._lookups + 1

        def receive(gradient: Tensor) -> None:
            with self._lock:  # autograd has threads of its own
                self._received.append((number, at, gradient))

        needed = torch.empty(0, requires_grad=True)
        looked_up: Tensor = _LookUp.apply(needed, values, receive)  # type: ignore[no-untyped-call]
        return looked_up

    # Gradients

    def _fold(self) -> None:
        """Adds the received gradients to the sums of this rank, in the order of the lookups: threads may deliver others first."""
        with self._lock:
            received, self._received = sorted(self._received, key=lambda each: each[0]), []
        if not received:
            return
        rows = [at for _, at, _ in received]
        values = [g.detach().reshape(-1, self.embedding_dim).float().cpu().numpy() for _, _, g in received]
        counts = None
        if self._sums is not None:
            rows, values = [self._sums.rows, *rows], [self._sums.sums, *values]
            counts = np.concatenate([self._sums.counts, *(np.ones(len(each), np.int64) for each in rows[1:])])
        joined, summands = (each[0] if len(each) == 1 else np.concatenate(each) for each in (rows, values))
        self._sums = RowSums.merge(joined, summands, counts, threads=torch.get_num_threads())

    def take(self) -> RowSums:
        """Returns the gradients of all backward passes since the last call, and forgets them."""
        self._fold()
        sums, self._sums = self._sums, None
        return RowSums.none(self.embedding_dim) if sums is None else sums

    def drop(self) -> None:
        """Drops the gradients that were received and not taken."""
        with self._lock:
            self._received.clear()
        self._sums = None

    # State dicts: the rows are beside the checkpoint

    def get_extra_state(self) -> dict[str, Any]:
        return {MARKER: {"name": None if self._rows is None else self._rows.name}}

    def set_extra_state(self, state: Any) -> None:
        found = state.get(MARKER) if isinstance(state, Mapping) else None
        if not isinstance(found, Mapping) or "folder" not in found:
            raise DataError(
                "DistEmbedding: this state dict has no rows: they are beside the checkpoint that a Trainer writes. Load the "
                "checkpoint (Trainer.fit(ckpt_path=...), load_from_checkpoint)."
            )
        self._trained = None
        if self._rows is None:
            self._saved = dict(found)
        else:
            self._load_saved(found)

    def _load_saved(self, found: Mapping[str, Any]) -> None:
        rows, self._saved = self.rows, None
        saved = rows.tables.ranks.all_or_none(lambda: open_saved(found), lambda _: None)
        rows.load(saved, {WEIGHT: rows.table}, strict=not found.get("lenient"))

    # Copies

    def __getstate__(self) -> dict[str, Any]:
        state = {
            key: value for key, value in self.__dict__.items() if key not in ("_received", "_sums", "_lock", "_trained")
        }
        return state | {"_rows": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> DistEmbedding:
        """Returns a copy that shares the table."""
        copied = DistEmbedding(self.embedding_dim, self.of, init=self.init, storage=self.storage)
        copied.to(self.like.device).train(self.training)
        copied._rows, copied._saved = self._rows, self._saved
        return copied
