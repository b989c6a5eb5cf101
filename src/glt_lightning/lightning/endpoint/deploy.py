"""`deploy`: answers requests with the predictions of a model, in a Trainer's predict loop."""

from __future__ import annotations

import base64
import gc
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from glt_lightning.base import DeployOptions, GLTError, NoEmbeddingError, OptionError, WriteError, as_options
from glt_lightning.lightning.callbacks.predictions import PredictionWriter
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.endpoint.compute import Columns, Model
from glt_lightning.lightning.endpoint.question import JSON, Answer, Question, QuestionError, read_question
from glt_lightning.lightning.endpoint.queue import Request, RequestQueue
from glt_lightning.lightning.endpoint.served_graph import AskedRows, ServedGraph
from glt_lightning.lightning.new_rows import extend_embeddings
from glt_lightning.lightning.wrapper import ModuleWrapper

_log = logging.getLogger(__name__)
_FEW = 8  # rows of a request whose sample takes no longer than its batch


class Watcher(Protocol):
    """Is told what an endpoint does, for metrics."""

    def sampled(self, rows: AskedRows) -> None: ...

    def computed(self, batch: Sequence[Request]) -> None: ...


class Listener(Protocol):
    """Brings requests to an endpoint, between `__enter__` and `__exit__`: an HTTP server, or a test."""

    def __call__(self, endpoint: Endpoint) -> Any: ...


def deploy(
    trainer: Trainer,
    model: LightningModule,
    datamodule: GLTDataModule,
    *,
    ckpt_path: str | Path | None = None,
    options: DeployOptions | dict[str, Any] | None = None,
    listen: Listener | None = None,
) -> None:
    """Answers requests with a model's predictions until SIGTERM or SIGINT comes (docs/after-training.md).

    Args:
        trainer: Whose strategy, device and precision are used; one device.
        model: A module whose ``predict_step`` returns a dictionary of tensors with a row for each seed.
        datamodule: Its data. With ``partition.version: latest`` it moves to new versions as they are appended.
        ckpt_path: A checkpoint to load first; as of `Trainer.predict`.
        options: Fields of `DeployOptions`.
        listen: What brings requests; None: an HTTP server.

    Raises:
        OptionError: For options, a model or a data module that an endpoint cannot have, before it listens.

    Example:
        >>> from contextlib import contextmanager
        >>> answers = []
        >>> @contextmanager
        ... def listen(endpoint):  # in place of HTTP
        ...     answers.append(endpoint.submit(b'{"ids": [7]}'))
        ...     endpoint.queue.close()  # once it is answered
        ...     yield
        >>> deploy(Trainer(logger=False), model, datamodule, listen=listen)
        >>> answers[0].result().to_json()["predictions"][0]["id"]
        7
    """
    chosen = as_options(DeployOptions, "endpoint", {} if options is None else options)
    check_deployable(trainer, datamodule)
    with ExitStack() as until:
        if listen is None:
            from glt_lightning.lightning.endpoint.app import HttpListener

            listen = until.enter_context(HttpListener(chosen))  # a port that is taken is known before the graph is read
        module = EndpointModule(model, chosen, listen)
        predict_with(trainer, module, datamodule, ckpt_path)


def predict_with(trainer: Trainer, module: ServingModule, data: GLTDataModule, ckpt_path: str | Path | None) -> None:
    extend_embeddings(module.inner, module.options.embeddings)  # before the data module attaches them to the graph
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    others = [each for each in callbacks if not isinstance(each, PredictionWriter | ProgressBar)]
    trainer.callbacks = others  # type: ignore[attr-defined]
    embeddings = getattr(module.inner, "embeddings", None)  # which `Model` asks for
    try:
        trainer.predict(module, datamodule=data, return_predictions=False, ckpt_path=ckpt_path)
    finally:
        trainer.callbacks = callbacks  # type: ignore[attr-defined]
        extend_embeddings(module.inner, None)
        if isinstance(embeddings, bool):
            setattr(module.inner, "embeddings", embeddings)  # noqa: B010
        module.close()


def check_deployable(trainer: Trainer, data: Any) -> None:
    if not isinstance(data, GLTDataModule):
        raise OptionError(f"deploy: data: expected a GLTDataModule, got {type(data).__name__}.")
    if trainer.world_size > 1:
        raise OptionError(
            f"trainer.devices: an endpoint is one process with one device, got {trainer.world_size}. Set --trainer.devices 1, "
            "and start several endpoints behind a proxy."
        )
    if data.new is not None:
        raise OptionError("data.new: requests bring the new rows of an endpoint. Leave it out.")
    if data.sampling.aggregate_first is not None or data.sampling.batch_sampler is not None:
        name = "aggregate_first" if data.sampling.aggregate_first is not None else "batch_sampler"
        raise OptionError(f"sampling.{name}: samples of several requests cannot be joined with it. Leave it out.")
    if data.links is not None and data.links.labelled and data.links.with_target_attrs:
        raise OptionError("links.with_target_attrs: requests have no attributes of pairs. Leave it out.")
    if data.links is not None and data.links.relation is not None:
        raise OptionError(
            "links.relation: requests have no relations of pairs. Predict them with `recommend` or `predict`."
        )


class ServingModule(ModuleWrapper):
    """Predicts with ``inner``, what others ask for, in the only step of a predict loop.

    A batch for each batch of requests would cost Lightning's hooks each time, about as much as a small model.
    """

    def __init__(self, inner: LightningModule, options: DeployOptions) -> None:
        super().__init__(inner)
        self.options = options

    @property
    def takes_aggregates(self) -> tuple[str, ...]:
        return ()

    def loaders_of(self, data: GLTDataModule) -> list[Any]:
        """The loader of the only step, which has nothing."""
        self.open(data)
        return [[0]]

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.run()
        return {}

    def on_predict_end(self) -> None:
        self.close()  # before the graph is

    def open(self, data: GLTDataModule) -> None:
        """Opens what answers."""
        raise NotImplementedError

    def run(self) -> None:
        """Answers until there is nothing more."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of what `open` opened. Safe to call twice."""


class EndpointModule(ServingModule):
    """A `ServingModule` of requests that come while it runs."""

    def __init__(self, inner: LightningModule, options: DeployOptions, listen: Listener) -> None:
        super().__init__(inner, options)
        self._listen, self._until = listen, ExitStack()
        self._endpoint: Endpoint | None = None

    def open(self, data: GLTDataModule) -> None:
        self._endpoint = Endpoint(self.inner, data, self.options)
        self._until.callback(self._endpoint.abandon)

    def run(self) -> None:
        endpoint = self._endpoint
        assert endpoint is not None
        endpoint.warm_up()
        with stopped_by_signals(endpoint.queue.close), without_long_collections(), self._listen(endpoint):
            for batch in endpoint.queue.batches():
                endpoint.answer(batch)

    def close(self) -> None:
        self._until.close()
        self._endpoint = None


class Endpoint:
    """Answers questions. Requests come from any thread; the model runs in the thread of the predict loop.

    Attributes:
        graph: The graph that it answers from.
        queue: The requests in work.
        watcher: Is told what happens; None: nobody.
    """

    def __init__(self, module: LightningModule, data: GLTDataModule, options: DeployOptions) -> None:
        self.data, self.options = data, options
        self.graph = ServedGraph(data, module)
        self.model = Model(module, data, options.embeddings)
        self.queue = RequestQueue(self._sample, options, is_quick=self._is_quick)
        self.watcher: Watcher | None = None
        self._record = Record(options.record, self)
        self._stop = threading.Event()
        self._mover: threading.Thread | None = None
        if self.graph.follows:
            self._mover = threading.Thread(target=self._move, name="versions")
            self._mover.start()

    @property
    def facts(self) -> dict[str, Any]:
        """What answers are of."""
        return {"model": self.model.hash, "graph": self.graph.hash, "version": self.graph.current.number}

    def warm_up(self) -> None:
        """Predicts once, so that a model that cannot answer is known before the first request. Raises `OptionError` for it."""
        try:
            self.model.predict([self.graph.current.first(self.graph.key, self.options)])
        except GLTError as error:
            raise OptionError(f"deploy: the model cannot answer: {error}") from error

    def submit(self, body: bytes, content_type: str = JSON) -> Future[Answer]:
        """Takes a request, from any thread. Raises `QuestionError` for one that is damaged, `FullError` if too many are in work;
        other errors are the future's."""
        request = Request(body, content_type, read_question(body, content_type, self.options))
        self.queue.put(request)
        return request.future

    def _is_quick(self, question: Question) -> bool:
        """Few nodes of a graph that is mapped here."""
        return self.graph.is_mapped and question.num_rows <= _FEW and not (question.nodes or question.edges)

    def _sample(self, question: Question) -> AskedRows:
        key = self.graph.key if question.key is None else question.key
        rows = self.graph.answerable(question, key, self.options)
        if self.watcher is not None:
            self.watcher.sampled(rows)
        return rows

    def answer(self, batch: Sequence[Request]) -> None:
        """Answers the requests of a batch. Where the model fails, each alone: one that it cannot answer takes no others down."""
        asked = [each.rows for each in batch if each.rows is not None]
        try:
            found = self.model.predict(asked)
        except Exception as error:
            if len(batch) > 1:
                for each in batch:
                    self.answer([each])
                return
            if isinstance(error, NoEmbeddingError):  # by the rule of the endpoint, of a node that this request reads
                error = QuestionError(str(error), "body")
            elif not isinstance(error, QuestionError):
                _log.exception("a request failed")
            batch[0].fail(error)
            return
        self._record.add(batch, asked, found)
        for request, rows, columns in zip(batch, asked, found, strict=True):
            request.answer(self._answer(rows, columns))
        if self.watcher is not None:
            self.watcher.computed(batch)

    def _answer(self, rows: AskedRows, columns: Columns) -> Answer:
        assert rows.asked is not None
        facts = {**self.facts, "version": rows.version, "key": str(rows.key), "sample": rows.asked.digest}
        return Answer(rows.names, rows.rows, columns, rows.errors, facts)

    def _move(self) -> None:
        """Moves to new versions as they are appended."""
        while not self._stop.wait(self.options.poll_s):
            try:
                if self.graph.move():
                    _log.info("deploy: the graph is at version %d.", self.graph.current.number)
            except Exception as error:  # the version before goes on
                _log.error("deploy: the next version of the graph cannot be read: %s", error)

    def abandon(self) -> None:
        """Ends now; requests that have no answer fail. Safe to call twice."""
        self._stop.set()
        self.queue.abandon(GLTError("the endpoint stopped before this request was answered."))
        if self._mover is not None:
            self._mover.join()
        self._record.close()
        self.graph.close()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` on SIGTERM and SIGINT, in a ``with`` block; in another thread than the main one signals are left alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda *_: stop()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def without_long_collections() -> Iterator[None]:
    """Leaves the objects that live already out of collections of garbage, in a ``with`` block: among the 500,000 of a process
    with torch and Lightning one takes 0.2 s, in which nothing is answered."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Record:
    """The file of ``endpoint.record``: a line for each batch, with all that `replay` needs."""

    def __init__(self, path: str | None, endpoint: Endpoint) -> None:
        self._path, self._endpoint = path, endpoint
        try:
            self._file: TextIO | None = None if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise WriteError(f"endpoint.record: {path}: {error.strerror or error}.") from None

    def add(self, batch: Sequence[Request], asked: Sequence[AskedRows], found: Sequence[Columns]) -> None:
        if self._file is None:
            return
        parts = []
        for request, rows, columns in zip(batch, asked, found, strict=True):
            assert rows.asked is not None
            parts.append(
                {
                    "body": base64.b64encode(request.body).decode(),
                    "content_type": request.content_type,
                    "key": str(rows.key),
                    "version": rows.version,
                    "sample": rows.asked.digest,
                    "columns": {name: values.tolist() for name, values in columns.items()},
                }
            )
        line = {
            "model": self._endpoint.model.hash,
            "graph": self._endpoint.graph.hash,
            "threads": torch.get_num_threads(),
            "requests": parts,
        }
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:  # answers go on
            _log.error("endpoint.record: %s: %s. No more requests are recorded.", self._path, error.strerror or error)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
