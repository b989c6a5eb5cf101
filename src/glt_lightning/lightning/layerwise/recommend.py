"""`recommend`: the k best destinations of each source, exactly by all outputs of a link model, in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from glt_lightning.base import (
    SPLITS,
    EdgeType,
    LayerwiseOptions,
    OptionError,
    RecommendOptions,
    as_options,
    edge_type_str,
)
from glt_lightning.inference import Candidates, KnownPairs, TopK
from glt_lightning.lightning.callbacks.prediction_places import folder_of, require_ours
from glt_lightning.lightning.callbacks.predictions import PredictionWriter
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.layerwise.predict import EmbeddingWriter, LayerwiseModule
from glt_lightning.tensors import DistGraph

_SOURCES = 1024  # at once
_ROWS = 16_384  # destinations whose edges are read at once
_PAIRS = 1 << 20  # edges of a split that are looked at at once


def recommend(
    trainer: Trainer,
    model: LightningModule,
    datamodule: GLTDataModule,
    out: str | Path,
    *,
    ckpt_path: str | Path | None = None,
    options: RecommendOptions | dict[str, Any] | None = None,
    layerwise: LayerwiseOptions | dict[str, Any] | None = None,
) -> None:
    """Writes the k best destinations of each source, by the scores of a link model, without those that the source has.

    The outputs of all nodes are computed layer by layer (`predict_layerwise`), and each source is scored with all destinations,
    in blocks. The folder has a Parquet file for each rank, with ``n_id`` and ``destination`` (in tables also ``id`` and
    ``destination_id``), ``rank`` from 1, and ``score``.

    Args:
        trainer: Whose strategy, devices and progress bar are used.
        model: A `LinkPredictor`, or a module of one's own with its ``pair_scores``.
        datamodule: Its graph, with ``task: link``.
        out: The folder, or a URL of fsspec, as of `predict_layerwise`.
        ckpt_path: A checkpoint to load first.
        options: How many, for whom, and what is known: fields of `RecommendOptions`.
        layerwise: Fields of `LayerwiseOptions`.

    Raises:
        OptionError: For a model without scores of pairs, more than there are, and as `predict_layerwise`.

    Example:
        >>> links = {"edge_splits": {"num_val": 2, "num_test": 4}}
        >>> data = GLTDataModule("graph.npz", task="link", links=links, num_neighbors=[2], batch_size=4)
        >>> model = LinkPredictor(data.num_features, hidden_channels=8, num_layers=1)
        >>> recommend(Trainer(), model, data, "folder", options={"k": 2})
        >>> sorted(read_predictions("folder"))
        ['destination', 'n_id', 'rank', 'score']
    """
    if not isinstance(datamodule, GLTDataModule):
        raise OptionError(f"recommend: datamodule: expected a GLTDataModule, got {type(datamodule).__name__}.")
    if datamodule.links is None or datamodule.links.labelled:
        raise OptionError("recommend: ranks edges that a model of data.task: link scores. Set data.task: link.")
    if not callable(getattr(model, "pair_scores", None)):
        raise OptionError(f"recommend: {type(model).__name__} has no scores of pairs. Use a LinkPredictor.")
    chosen = as_options(LayerwiseOptions, "layerwise", {} if layerwise is None else layerwise)
    if "://" not in str(out) and trainer.world_size == 1:
        require_ours(folder_of(str(out)))
    beside = Path(tempfile.gettempdir()) if "://" in str(out) else folder_of(str(out)).parent
    scratch = beside if chosen.scratch is None else Path(chosen.scratch)
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    others = [each for each in callbacks if not isinstance(each, PredictionWriter)]
    wanted = as_options(RecommendOptions, "recommend", {} if options is None else options)
    module = RecommendingModule(model, chosen, scratch, wanted)
    trainer.callbacks = [*others, RecommendationWriter(str(out))]  # type: ignore[attr-defined]
    try:
        trainer.predict(module, datamodule=datamodule, return_predictions=False, ckpt_path=ckpt_path)
    finally:
        trainer.callbacks = callbacks  # type: ignore[attr-defined]
        module.close()


class RecommendationWriter(EmbeddingWriter):
    """The files of `recommend`."""

    _noun = "recommendations"


class SourceBlocks:
    """The sources of a rank in blocks, which Lightning iterates as it does a loader. rows: int64 [S]."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = torch.from_numpy(rows)

    def __len__(self) -> int:
        return max(1, -(-len(self._rows) // _SOURCES))

    def __iter__(self) -> Iterator[Tensor]:
        for begin in range(0, max(1, len(self._rows)), _SOURCES):
            yield self._rows[begin : begin + _SOURCES]


class RecommendingModule(LayerwiseModule):
    """Computes the layers of ``inner``, and then the best destinations of a rank's share of the sources."""

    _keep_outputs = True

    def __init__(self, inner: Any, layerwise: LayerwiseOptions, folder: Path, options: RecommendOptions) -> None:
        super().__init__(inner, layerwise, folder)
        self._wanted = options
        self._known, self._candidates = KnownPairs([]), Candidates(0)
        self._ranker: Any = None
        self._graph: Any = None
        self._ends = ("", "")
        self._relation: int | None = None
        self._short = 0  # sources with fewer candidates than were asked for

    @property
    def type_names(self) -> list[str]:
        """Names of the edge types, where the model predicts several."""
        names = list(getattr(self.inner, "type_names", ()))
        return names if len(names) > 1 else []

    def loaders_of(self, data: GLTDataModule) -> list[Any]:
        edge_type, graph = self._edge_type(data), data.dist_graph
        self._ends, self._ranker, self._graph = (edge_type[0], edge_type[2]), None, graph
        ids = _sources(data, self._wanted.sources, edge_type[0])
        mine = ids[graph.rank :: graph.world_size]
        self._relation = _relation(data, self._wanted.relation)
        loaders = super().loaders_of(data)  # before owners of other parts are asked
        known = [_known(data, graph, name, edge_type, self._relation) for name in self._wanted.exclude]
        self._known = KnownPairs(_of_sources(chain.from_iterable(known), mine))
        self._candidates = Candidates.of(graph, edge_type[2])
        if not 1 <= self._wanted.k <= (count := len(self._candidates)):  # before all layers are computed
            raise OptionError(f"recommend.k: expected 1 to {count}, the number of destinations; got {self._wanted.k}.")
        return [*loaders, SourceBlocks(mine)]

    def _edge_type(self, data: GLTDataModule) -> EdgeType:
        assert data.links is not None
        known = {edge_type_str(e): e for e in data.links.edge_types(data.dist_graph.schema)}
        given = self._wanted.edge_type or next(iter(known))
        if given not in known or (self._wanted.edge_type is None and len(known) > 1):
            raise OptionError(
                f"recommend.edge_type: expected the edge type to recommend by, one of {', '.join(known)}; got "
                f"{self._wanted.edge_type!r}."
            )
        return known[given]

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Ranks a block of sources, once all layers are computed: a row for each source and destination."""
        assert self.run is not None
        if dataloader_idx < len(self.run.steps):
            return super().predict_step(batch, batch_idx, dataloader_idx)
        self.run.marks.beat("ranking destinations")
        ids = batch.cpu().numpy()
        known = self._known.of(ids)
        if self._ends[0] == self._ends[1]:  # nobody is recommended to themselves
            known = np.concatenate([known, np.stack([np.arange(len(ids)), ids])], axis=1)
            known = np.unique(known, axis=1)
        best = self._made_ranker().of(self._rows(ids, self._ends[0]), self._candidates.pairs(known))
        at, rank = (best.ids >= 0).nonzero(as_tuple=True)
        self._short += int((best.ids[:, -1] < 0).sum())
        destination = torch.from_numpy(self._candidates.at(best.ids[at, rank].cpu().numpy()))
        found = {"n_id": torch.from_numpy(ids).to(at.device)[at], "destination": destination.to(at.device)}
        found |= {"rank": rank + 1, "score": best.scores[at, rank]}
        if self.type_names:
            number = self.type_names.index(self._wanted.edge_type or "")
            found["edge_type"] = torch.full_like(found["n_id"], number)
        return found

    def on_predict_epoch_end(self) -> None:
        if self.run is not None:
            self.run.release()  # when no rank reads rows any more
        short = torch.tensor(self._short, device=self.device)
        total = int(short if self.trainer.world_size == 1 else self.trainer.strategy.reduce(short, reduce_op="sum"))
        if total:
            rank_zero_info(
                f"recommend: {total:,} sources have fewer than {self._wanted.k} destinations that are not known."
            )

    def _made_ranker(self) -> Any:
        if self._ranker is None:
            assert self.run is not None
            nodes, node_type = self._candidates, self._ends[1]
            by = {} if self._relation is None else {"relation": self._relation}
            scores, transformed = self.inner.pair_scores(self._wanted.edge_type, **by)  # type: ignore[operator]
            exact = TopK(lambda at: self._rows(nodes.at(at), node_type), len(nodes), scores, self._wanted.k)
            if self._wanted.index != "exact" and transformed is None:
                raise OptionError(
                    "recommend.index: hnsw finds inner products; use model.decoder dot, bilinear, distmult or complex, or index "
                    "exact."
                )
            self._ranker = exact if self._wanted.index == "exact" else exact.approximate(transformed)
        return self._ranker

    def _rows(self, ids: np.ndarray, node_type: str) -> Tensor:
        """Returns the embeddings [n, D] of nodes by the user's ids."""
        assert self.run is not None
        rows = self._graph.rows_of(torch.from_numpy(ids), node_type)
        found = self.run.module.head(self.run.outputs(rows.to(self.device), node_type), node_type)
        return found["embedding"].float()


def _sources(data: GLTDataModule, given: Any, node_type: str) -> np.ndarray:
    """Returns the user's ids of the sources, int64 [S]."""
    if given is not None:
        return data.node_ids("recommend.sources", given, node_type)
    nodes = Candidates.of(data.dist_graph, node_type)
    return nodes.at(np.arange(len(nodes)))


def _relation(data: GLTDataModule, given: str | int | None) -> int | None:
    """Number of the relation to recommend by; None where edges have none. Raises `OptionError` for an unknown one."""
    names = data.relation_names or [str(number) for number in range(data.num_relations or 0)]
    if str(given) in names:
        return names.index(str(given))
    if names or given is not None:
        known = f"one of {', '.join(names[:20])}" if names else "none, as edges have no relations (links.relation)"
        raise OptionError(f"recommend.relation: expected {known}; got {given!r}.")
    return None


def _known(
    data: GLTDataModule, graph: DistGraph, name: str, edge_type: EdgeType, relation: int | None
) -> Iterator[np.ndarray]:
    """Iterates over the pairs int64 [2, n] that a split or an edge type says, as edges of ``edge_type``. relation: the one by
    which splits are excluded. Raises `OptionError` for an edge type that there is not."""
    if name not in SPLITS:
        of = _type_between(graph, name, edge_type)
        every = chain(*(_edges_of_split(data, split, of, None) for split in SPLITS), _edges_of_graph(graph, of))
        return (pairs if of[0] == edge_type[0] else pairs[::-1] for pairs in every)
    found: Iterator[np.ndarray] = _edges_of_split(data, name, edge_type, relation)
    if edge_type[0] == edge_type[2] and data.undirected:
        found = (np.concatenate([pairs, pairs[::-1]], axis=1) for pairs in found)
    if name == "train" and not data.has_edge_labels(edge_type):  # edges that came after the splits, too
        return chain(found, _edges_of_graph(graph, edge_type))
    return found


def _of_sources(known: Iterator[np.ndarray], sources: np.ndarray) -> Iterator[np.ndarray]:
    wanted = np.zeros(sources.max(initial=-1) + 2, dtype=bool)
    wanted[sources] = True  # the last one stands for all greater ids
    return (pairs[:, wanted[np.minimum(pairs[0], len(wanted) - 1)]] for pairs in known)


def _type_between(graph: DistGraph, name: str, edge_type: EdgeType) -> EdgeType:
    """Returns the edge type of that name between the node types of ``edge_type``, or the other way round."""
    ends = {(edge_type[0], edge_type[2]), (edge_type[2], edge_type[0])}
    fitting = {edge_type_str(e): e for e in graph.given_edge_types if (e[0], e[2]) in ends}
    if name not in fitting:
        raise OptionError(
            f"recommend.exclude: expected any of train, val, test and {', '.join(fitting) or 'no edge type'}; got {name!r}."
        )
    return fitting[name]


def _edges_of_split(data: GLTDataModule, split: str, of: EdgeType, relation: int | None) -> Iterator[np.ndarray]:
    pairs = data.edges_of(split, of)
    if pairs is None:
        return
    relations = None if relation is None else data.relations_of(split, of)
    for begin in range(0, pairs.shape[1], _PAIRS):
        some = slice(begin, begin + _PAIRS)
        yield pairs[:, some] if relations is None else pairs[:, some][:, relations[some] == relation]


def _edges_of_graph(graph: DistGraph, of: EdgeType) -> Iterator[np.ndarray]:
    """Iterates over the edges of a type, int64 [2, n], the user's ids."""
    for first in range(0, count := graph.num_nodes(of[2]), _ROWS):
        near = graph.sample_neighbors(np.arange(first, min(first + _ROWS, count)), -1, of)
        yield np.stack([graph.user_ids(near.src, of[0]).numpy(), graph.user_ids(near.dst, of[2]).numpy()])
