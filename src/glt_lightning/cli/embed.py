"""``python -m lightning embed``, ``recommend``, ``deploy`` and ``replay``: what follows training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from glt_lightning import inference, lightning as seam  # by name below: a fit needs none of it
from glt_lightning.base import DataError, DeployOptions, LayerwiseOptions, OptionError, RecommendOptions
from glt_lightning.cli.messages import OneLineParser

_LAYERWISE, _RECOMMEND, _ENDPOINT = LayerwiseOptions(), RecommendOptions(), DeployOptions()


class EmbeddingTrainer(Trainer):
    """Lightning's Trainer with the subcommands ``embed``, ``recommend``, ``deploy`` and ``replay``."""

    shortens_log_interval = False  # whether the user left it to the Trainer
    _log_interval = 50

    @property
    def log_every_n_steps(self) -> int:
        """The interval of logging; by default at most the batches of an epoch. With Lightning's default of 50, no step of a
        shorter epoch would be logged, and a warning would be shown."""
        if not self.shortens_log_interval or not self._log_interval:  # 0: never
            return self._log_interval
        return int(max(1, min(self._log_interval, self.fit_loop.max_batches)))

    @log_every_n_steps.setter
    def log_every_n_steps(self, value: int) -> None:
        self._log_interval = value

    def embed(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        out: str = "embeddings",
        ckpt_path: str | None = None,
        layerwise: LayerwiseOptions = _LAYERWISE,
    ) -> None:
        """Writes a model's outputs for all nodes, computed exactly, layer by layer.

        Args:
            model: The model.
            datamodule: Its data.
            out: The folder for the Parquet files: a new one, an empty one, or one with nothing but earlier embeddings, which
                these replace when they are complete. Or a URL of fsspec (s3://bucket/emb); other files there stay.
            ckpt_path: The checkpoint to read: a path, or ``best`` or ``last`` for that of the latest fit. None: the weights in
                memory; on the command line ``none``, for a module that loads weights of its own.
            layerwise: Options of the computation: memory, chunks and precision.
        """
        if not isinstance(datamodule, seam.GLTDataModule):
            raise OptionError(
                f"embed: data: expected class_path: glt_lightning.GLTDataModule, whose graph is read; got "
                f"{type(datamodule).__name__}."
            )
        seam.predict_layerwise(self, model, datamodule, out, ckpt_path=ckpt_path, options=layerwise)

    def recommend(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        out: str = "recommendations",
        ckpt_path: str | None = None,
        k: int = 10,
        sources: str | None = None,
        exclude: list[str] = _RECOMMEND.exclude,
        edge_type: str | None = None,
        relation: str | None = None,
        index: str = "exact",
        layerwise: LayerwiseOptions = _LAYERWISE,
    ) -> None:
        """Writes the k best destinations of each source by a link model, without those that it has.

        Args:
            model: A `LinkPredictor`.
            datamodule: Its data, with ``task: link``.
            out: The folder for the Parquet files, or a URL of fsspec, as of ``embed``.
            ckpt_path: The checkpoint to read: a path, or ``best`` or ``last`` for that of the latest fit.
            k: Destinations for each source.
            sources: The sources: a file with an id of your table on each line (``.txt``), a table whose first column has them
                (CSV with a header, Parquet), or an ``.npy`` file of node ids. None: all.
            exclude: What sources have already: splits of the edges (``train``, with those that were appended, ``val``, ``test``)
                and edge types between the same node types.
            edge_type: Edge type to recommend by, where the model predicts several.
            relation: Relation to recommend by, where edges have several: its name, or its number.
            index: ``exact``, or ``hnsw``, by faiss, which misses a few of the best.
            layerwise: Options of the computation of all outputs.
        """
        by = {"edge_type": edge_type, "relation": relation}
        options = RecommendOptions(k=k, sources=sources, exclude=exclude, index=index, **by)
        seam.recommend(self, model, datamodule, out, ckpt_path=ckpt_path, options=options, layerwise=layerwise)  # type: ignore[arg-type]

    def deploy(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        ckpt_path: str | None = None,
        host: str | None = None,
        port: int | None = None,
        endpoint: DeployOptions = _ENDPOINT,
    ) -> None:
        """Answers requests over HTTP with a model's predictions, until SIGTERM or Ctrl-C.

        Args:
            model: The model.
            datamodule: Its data. With ``partition.version: latest`` the endpoint moves to new versions.
            ckpt_path: The checkpoint to read: a path, or ``best`` or ``last`` for that of the latest fit.
            host: In place of ``endpoint.host``.
            port: In place of ``endpoint.port``.
            endpoint: How it listens, and what a request may cost.
        """
        given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
        seam.deploy(self, model, datamodule, ckpt_path=ckpt_path, options=replace(endpoint, **given))  # type: ignore[arg-type]

    def replay(
        self,
        model: LightningModule,
        datamodule: LightningDataModule,
        record: str,
        ckpt_path: str | None = None,
        alone: bool = False,
        endpoint: DeployOptions = _ENDPOINT,
    ) -> None:
        """Computes the answers of an endpoint once more, from its record, and compares them.

        Args:
            model: The model of the endpoint.
            datamodule: Its data.
            record: The file of ``endpoint.record``.
            ckpt_path: The checkpoint of the endpoint.
            alone: Compute each answer by itself, too.
            endpoint: The options of the endpoint.
        """
        found = seam.replay(self, model, datamodule, record, ckpt_path=ckpt_path, options=endpoint, alone=alone)  # type: ignore[arg-type]
        print(f"replay: {record}: {found}", flush=True)
        if not found.equal:
            raise DataError(f"{record}: these answers are not those of this model, graph and machine.")


# ``python -m lightning neighbours``: the nodes whose embeddings are nearest to those of a node.


_DESCRIPTION = "Prints the nodes whose embeddings are nearest to that of a node, the nearest first, one a line."


def run_neighbours(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end. Raises `GLTError` for errors, SystemExit for help and wrong options."""
    parser = OneLineParser(prog=prog, description=_DESCRIPTION)
    parser.add_argument("folder", type=str, help="The folder that embed wrote.")
    parser.add_argument(
        "--of", type=str, required=True, metavar="ID", help="The node: its id in your table, or its n_id."
    )
    parser.add_argument("--k", type=int, default=10, help="How many.")
    parser.add_argument("--metric", type=str, default="cosine", help="cosine, dot, or l2, the Euclidean distance.")
    parser.add_argument("--index", type=str, default="exact", help="exact, or hnsw, which misses a few.")
    given = parser.parse_args(list(argv))
    found = seam.read_embeddings(given.folder)
    ids = found.get("id", found["n_id"])
    at = np.flatnonzero(ids.astype(str) == given.of)
    if not len(at):
        raise DataError(
            f"--of: no node of {given.folder} has the id {given.of!r}. Its {len(ids):,} nodes have ids such as "
            f"{', '.join(map(str, ids[:3]))}."
        )
    rows = found["embedding"]
    positions, near = inference.nearest(rows, rows[at[:1]], given.k + 1, metric=given.metric, index=given.index)
    others = [(p, n) for p, n in zip(positions[0], near[0], strict=True) if p not in (at[0], -1)][: given.k]
    for position, value in others:
        print(f"{ids[position]}\t{value:.4f}", flush=True)
