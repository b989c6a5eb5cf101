"""The graph of an endpoint: own ids, new rows, versions; and the sample of each request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lightning.pytorch import LightningModule

from glt_lightning.base import (
    CacheOptions,
    DataError,
    DeployOptions,
    OptionError,
    SamplerError,
    edge_type_str,
)
from glt_lightning.graph import GrownPartition, LocalPartition, among, partition_id
from glt_lightning.lightning.datamodule import GLTDataModule
from glt_lightning.lightning.endpoint.question import Question, QuestionError
from glt_lightning.lightning.endpoint.row_reader import NewRows, RowReader
from glt_lightning.lightning.new_rows import require_embeddings
from glt_lightning.loader import AskedSample, Session
from glt_lightning.partition import (
    Additions,
    Appended,
    LaterTables,
    Versions,
    add_rows,
    check_rows,
    is_tables,
)
from glt_lightning.sampling import batch_key

LATEST = "latest"
_MOST_CONFIGS = 16  # of one session: each has a sampler


@dataclass(frozen=True)
class AskedRows:
    """The sample of a request, and what belongs to it.

    Attributes:
        names: What all rows were asked by: column -> values.
        rows: Positions of the rows that are in the sample, in its order.
        errors: What was wrong with the others.
        asked: The sample; None where no row is left.
        of_type: Node type or edge type of the rows.
        is_pairs: Whether they are pairs.
        version: Number of the graph's version.
        key: The key of its draws.
        embedding: Whether embeddings are asked for.
    """

    names: Mapping[str, Sequence[Any]]
    rows: np.ndarray
    errors: Sequence[QuestionError]
    asked: AskedSample | None
    of_type: str
    is_pairs: bool
    version: int
    key: int
    embedding: bool = False


class GraphVersion:
    """One version of the graph. Several threads ask it.

    data: the options.  module: the model.  graph: this version.  base: the partition below it.  appended: its rows.
    """

    def __init__(
        self,
        data: GLTDataModule,
        module: LightningModule,
        graph: Any,
        session: Session,
        base: LocalPartition | None,
        appended: Appended | None,
    ) -> None:
        self.data, self.module, self.graph, self.base, self.appended = data, module, graph, base, appended
        self.number = (graph.manifest.of_version or 0) if appended is None else appended.version
        self._session, self._lock = session, threading.Lock()
        self._configs: set[Any] = set()
        self._users, self._retired, self._counting = 0, False, threading.Lock()

    @contextmanager
    def used(self) -> Iterator[bool]:
        """Keeps it open in a ``with`` block; false where it is retired, so that another one has to be asked."""
        with self._counting:
            usable = not self._retired
            self._users += usable
        try:
            yield usable
        finally:
            with self._counting:
                self._users -= usable
                last = usable and self._retired and not self._users
            if last:
                self._close()

    def retire(self) -> None:
        """Closes it, when nobody uses it any more. Safe to call twice."""
        with self._counting:
            idle, self._retired = not self._retired and not self._users, True
        if idle:
            self._close()

    def _close(self) -> None:
        if isinstance(self.graph, LocalPartition):  # a session of its own
            self._session.close()
        if isinstance(self.graph, GrownPartition) and self.graph is not self.data.opened_graph:
            self.graph.close()

    # What rows are called

    @cached_property
    def _tables(self) -> LaterTables | None:
        """The tables of the graph, with the ids of all nodes; None for a graph that is no tables."""
        if not is_tables(self.data.dataset):
            return None
        folder = self.base.directory if self.base is not None else Path()
        return LaterTables(self.data.dataset, self.data.root, self.graph.manifest, folder, self.appended, many=True)

    @cached_property
    def _recipe(self) -> dict[str, Any]:
        return self.data.recipe_to_predict() | {"edge_format": "tensor", "transform": None}

    def prepare(self) -> None:
        """Reads the ids of all nodes that can be asked for."""
        if self._tables is not None:
            for t in self.graph.schema.node_types:
                self._tables.ids(t)

    def node_type(self, question: Question) -> str:
        """Raises `QuestionError` for a type that the graph does not have."""
        return self._type("node_type", question.node_type, self.node_types, self.graph.schema.node_types)

    @property
    def node_types(self) -> list[str]:
        """The node types that the model predicts; of edges, those of their ends."""
        schema, links = self.graph.schema, self.data.links
        if schema.homogeneous:
            return list(schema.node_types)
        if links is not None:
            return list(dict.fromkeys(t for e in links.edge_types(schema) for t in (e[0], e[2])))
        found = self.data.target_type
        return [found] if isinstance(found, str) else list(found or ())

    @property
    def edge_types(self) -> list[str]:
        """The edge types whose pairs the model scores."""
        links = self.data.links
        return [] if links is None else [edge_type_str(e) for e in links.edge_types(self.graph.schema)]

    def _type(self, field: str, given: str | None, predicted: list[str], known: Sequence[str]) -> str:
        if given is None and len(predicted) == 1:
            return predicted[0]
        if given not in known or given not in predicted:
            raise QuestionError(f"{field}: expected {' or '.join(predicted)}, got {given!r:.80}.", field)
        return given

    # One request

    def answerable(self, question: Question, key: int, limits: DeployOptions) -> AskedRows:
        """Samples a request. Raises `QuestionError` for one of which no row can be answered."""
        new = self._read_new(question) if question.nodes or question.edges else None
        find = self._finder(new)
        if question.pairs is not None:
            if not self.edge_types:
                raise QuestionError("pairs: this model predicts nodes, not edges. Ask for ids.", "pairs")
            of_type = self._type("edge_type", question.edge_type, self.edge_types, self.edge_types)
            seeds, rows, errors = self._find_pairs(question.pairs, of_type, find)
            names: dict[str, Sequence[Any]] = {
                "source": [pair[0] for pair in question.pairs],
                "destination": [pair[1] for pair in question.pairs],
            }
        else:
            of_type = self.node_type(question)
            ids: Sequence[Any] = question.ids if question.ids is not None else self._new_names(new, of_type)
            seeds, rows, errors = self._find("ids", ids, of_type, find)
            names = {"id": ids}
        errors = [*([] if new is None else new.errors), *errors]
        if not len(rows):
            raise errors[0] if errors else QuestionError("ids: there is nothing to predict.", "ids")
        self._check_times(question, of_type)
        times = None if question.times is None else np.array(question.times, np.int64)[rows]
        recipe: dict[str, Any] = {}
        if question.num_neighbors is not None:
            recipe["num_neighbors"] = list(question.num_neighbors)
        try:
            asked = self._sample(of_type, seeds, times, key, recipe, limits, new)
        except QuestionError:
            raise
        except (DataError, OptionError) as error:
            raise _sample_error(error, limits) from error
        pairs = question.pairs is not None
        return AskedRows(names, rows, errors, asked, of_type, pairs, self.number, key, question.embedding)

    def first(self, key: int, limits: DeployOptions) -> AskedRows:
        """Samples the first node, or the first pair of nodes, that the model predicts."""
        pairs = bool(self.edge_types)
        of_type = self.edge_types[0] if pairs else self.node_types[0]
        ends = of_type.split("__")[::2] if pairs else [of_type]
        seeds = np.array([[self._first_alive(t)] for t in ends], np.int64)
        seeds = seeds if pairs else seeds[0]
        times = np.zeros(1, np.int64) if self._needs_times(of_type) else None
        asked = self._sample(of_type, seeds, times, key, {}, limits, None)
        return AskedRows({}, np.zeros(1, np.int64), [], asked, of_type, pairs, self.number, key)

    def _first_alive(self, t: str) -> int:
        deleted = self._deleted(t)
        missing = np.flatnonzero(
            deleted != np.arange(len(deleted))
        )  # ascending: the first number that is not among them
        return int(missing[0]) if len(missing) else len(deleted)

    def _needs_times(self, of_type: str) -> bool:
        """Whether neighbours are drawn by time, and seeds of this type, such as pairs of nodes, have none of their own."""
        time_attr, schema = self.data.sampling.time_attr, self.graph.schema
        own = self.graph.manifest.node_attrs(schema.node_index(of_type)) if of_type in schema.node_types else ()
        return time_attr is not None and time_attr not in own

    def _check_times(self, question: Question, of_type: str) -> None:
        if question.times is not None and self.data.sampling.time_attr is None:
            raise QuestionError("times: this model does not draw neighbours by time. Remove them.", "times")
        if question.times is None and self._needs_times(of_type):
            raise QuestionError(f"times: {of_type} has no times of its own: expected one for each id or pair.", "times")

    def _sample(
        self,
        of_type: str,
        seeds: np.ndarray,
        times: np.ndarray | None,
        key: int,
        recipe: dict[str, Any],
        limits: DeployOptions,
        new: NewRows | None,
    ) -> AskedSample:
        spec = self.data.spec_of(self.graph.schema, of_type, seeds, times, **self._recipe | recipe)
        if new is None:
            with self._lock:
                found = self._session.ask(spec, key, limits.sample_bytes)
                self._configs.add(found.config)
                if len(self._configs) > _MOST_CONFIGS and isinstance(self.graph, LocalPartition):
                    self._session.close()
                    self._session, self._configs = open_session(self.data, self.graph), set()
            return found
        with closing(add_rows(self.graph, new.additions)) as grown, open_session(self.data, grown) as session:
            return session.ask(spec, key, limits.sample_bytes)

    # Own ids

    def _finder(self, new: NewRows | None) -> Callable[[str, Sequence[Any]], np.ndarray]:
        """Returns what finds the numbers of nodes of a type by their own ids: int64, -1 for none."""

        def find(t: str, ids: Sequence[Any]) -> np.ndarray:
            count = self.graph.manifest.num_nodes[self.graph.schema.node_index(t)]
            texts = [str(each) if isinstance(each, int | str) and not isinstance(each, bool) else "" for each in ids]
            tables, deleted = self._tables, self._deleted(t)
            if tables is not None:
                found = np.array(tables.ids(t).find(pa.array(texts, pa.large_string())))
            else:
                found = np.array(
                    [int(each) if each.isdecimal() and int(each) < count else -1 for each in texts], np.int64
                )
            if len(deleted):
                found = np.where(among(found, deleted), -1, found)
            if new is not None:
                own = {str(name): count + at for at, name in enumerate(self._new_names(new, t))}
                bad = new.bad.get(t, set())
                later = [-1 if each in bad else own.get(each, -1) for each in texts]
                found = np.where(found < 0, later, found)
            return found

        return find

    def _deleted(self, t: str) -> np.ndarray:
        return self.graph.deleted(self.graph.schema.node_index(t))

    def _find(
        self, field: str, ids: Sequence[Any], t: str, find: Callable[[str, Sequence[Any]], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, list[QuestionError]]:
        found = find(t, ids)
        errors = [
            QuestionError(
                f"{field}: {ids[row]!r:.80} is no id of a node of type {t!r} that can be predicted.", field, row
            )
            for row in np.flatnonzero(found < 0).tolist()
        ]
        rows = np.flatnonzero(found >= 0)
        return found[rows], rows, errors

    def _find_pairs(
        self, pairs: Sequence[Sequence[Any]], name: str, find: Callable[[str, Sequence[Any]], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, list[QuestionError]]:
        src, _, dst = name.split("__")
        errors: dict[int, QuestionError] = {}
        ends = []
        for at, t in enumerate((src, dst)):
            ids = [pair[at] for pair in pairs]
            numbers, rows, bad = self._find("pairs", ids, t, find)
            whole = np.full(len(pairs), -1)
            whole[rows] = numbers
            ends.append(whole)
            errors |= {each.row: each for each in bad if each.row is not None and each.row not in errors}
        both = np.stack(ends)
        rows = np.flatnonzero((both >= 0).all(axis=0))
        return both[:, rows], rows, [errors[row] for row in sorted(errors)]

    # New rows

    def _read_new(self, question: Question) -> NewRows:
        if self.base is None:
            raise QuestionError("nodes: graph servers have the graph, to which this endpoint cannot add rows.", "nodes")
        return RowReader(self.graph.schema, self._tables, self._check).read(question)

    def _check(self, rows: Additions) -> None:
        require_embeddings(self.module, rows)
        check_rows(self.graph, rows)

    def _new_names(self, new: NewRows | None, t: str) -> Sequence[Any]:
        """Own ids of the new nodes of a type, in their order; without ids of their own their numbers."""
        if new is None or t not in new.additions.nodes:
            return []
        if t in new.names:
            return new.names[t]
        count = self.graph.manifest.num_nodes[self.graph.schema.node_index(t)]
        return list(range(count, count + new.additions.nodes[t].count))


def _sample_error(error: Exception, limits: DeployOptions) -> QuestionError:
    """An error of sampling, as one of the request."""
    if "cluster.limits.batch_size" not in str(error):  # the option of graph servers, which make the same check
        return QuestionError(str(error), "body")
    return QuestionError(
        f"the sample of this request takes more than {limits.max_sample} (endpoint.max_sample). Ask for fewer rows at once, "
        "or for fewer neighbours.",
        "body",
        status=413,
    )


# Versions


def open_session(data: GLTDataModule, graph: LocalPartition) -> Session:
    """Opens what samples a mapped graph in this process, for requests."""
    sampling = replace(data.sampling, num_workers=0, worker_devices=[], topology="auto", pin_memory=False)
    return Session(graph, sampling, seed=data.sampling_seed, cache=CacheOptions())


class ServedGraph:
    """The graph of an endpoint: the version that answers, and those before it."""

    def __init__(self, data: GLTDataModule, module: LightningModule) -> None:
        self.data, self.module = data, module
        graph = data.opened_graph
        self._base: LocalPartition | None = None
        if isinstance(graph, LocalPartition):
            self._base = graph.base if isinstance(graph, GrownPartition) else graph
            appended = Versions(self._base.directory).read(self._base.manifest, data.partition.version)
            self.current = GraphVersion(data, module, graph, open_session(data, graph), self._base, appended)
        else:
            self.current = GraphVersion(data, module, graph, data.session, None, data.later_rows)
        self.current.prepare()
        # that of the partition, whatever version of it answers
        self.hash: str = graph.manifest.made_by.get("base") or partition_id(graph.manifest)
        self.key = batch_key(data.sampling_seed, "predict", 0, 0)
        self._known = {self.current.number: self.current}

    @property
    def is_mapped(self) -> bool:
        """Whether this process has the graph; else graph servers have it."""
        return self._base is not None

    @property
    def follows(self) -> bool:
        """Whether it moves to new versions."""
        return self._base is not None and self.data.partition.version == LATEST

    def answerable(self, question: Question, key: int, limits: DeployOptions) -> AskedRows:
        """Samples a request in the current version, or the next one if it moves meanwhile. Raises `QuestionError`."""
        while True:
            version = self.current
            with version.used() as usable:
                if usable:
                    return version.answerable(question, key, limits)
            if version is self.current:
                raise SamplerError("the graph of this endpoint is closed.")

    def move(self) -> bool:
        """Moves to the latest version, once that is open. Returns whether there was a later one."""
        assert self._base is not None
        number = Versions(self._base.directory).number(LATEST)
        if number <= self.current.number:  # less where `compact --forget` removes them: an earlier one has deleted rows
            return False
        before, self.current = self.current, self.at(number)
        del self._known[before.number]
        before.retire()
        return True

    def at(self, number: int) -> GraphVersion:
        """Returns a version. Raises `PartitionError` for one that does not exist."""
        if number not in self._known:
            if self._base is None:
                raise OptionError(f"version {number}: the graph servers read version {self.current.number}.")
            appended = Versions(self._base.directory).read(self._base.manifest, number)
            graph = appended.added_to(self._base)
            session = open_session(self.data, graph)
            found = self._known[number] = GraphVersion(self.data, self.module, graph, session, self._base, appended)
            found.prepare()
        return self._known[number]

    def close(self) -> None:
        """Closes all versions. Safe to call twice."""
        while self._known:
            self._known.popitem()[1].retire()
