"""A further question to owners is a class of its own and an entry of `QUESTIONS`; whatever carries questions stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from glt_lightning.graph import TopologyCache
from glt_lightning.kernels import GraphView
from glt_lightning.sampling import QUESTIONS, Arrays, OwnedParts, Received, Reply, SamplerConfig, neighbor_source
from glt_lightning.sampling.source import RowsQuestion, Work, require_ids
from glt_lightning.workers.cluster import owner
from glt_lightning.workers.cluster.remote_rows import CountingOwners
from tests.helpers.owners import split_up
from tests.helpers.partitions import partitioned, small_graph
from tests.helpers.servers import open_farm
from tests.sampling.test_typed_seeds import over_the_wire

MOST = 30  # rows of a reply


@dataclass(frozen=True)
class Degrees(RowsQuestion[np.ndarray]):
    """Numbers of neighbours, int64 [n]."""

    op: ClassVar[str] = "degrees"
    gids: np.ndarray
    weights: tuple[str | None, ...] = ()

    def to_wire(self) -> tuple[dict[str, Any], Arrays]:
        return {}, {"gids": self.gids}

    def conversation(self) -> Generator[Degrees, Received, np.ndarray]:
        found = np.empty(0, np.int64)
        while len(found) < len(self.gids):
            reply = yield replace(self, gids=self.gids[len(found) :])
            found = np.concatenate([found, reply.arrays["degrees"]])
        return found

    @classmethod
    def work(cls, header: Mapping[str, Any], arrays: Arrays, parts: OwnedParts) -> Work:
        ids = require_ids(arrays.get("gids"))[:MOST]
        question, view = cls(ids), parts.partition.view
        return Work(16 * len(ids), lambda look: Reply.of({"degrees": question.answer(view)}, parts.wire))

    def rows(self, view: GraphView) -> tuple[int, np.ndarray]:
        return 0, self.gids

    def of_rows(self, ids: np.ndarray, which: np.ndarray) -> Degrees:
        return replace(self, gids=ids)

    def answer(
        self, view: GraphView, threads: int = 1, require_room: Callable[[int], None] = lambda nbytes: None
    ) -> np.ndarray:
        return view.degrees(0, self.gids)

    def answer_cached(self, lists: TopologyCache) -> np.ndarray:
        raise NotImplementedError

    def stitch(self, owner: np.ndarray, answers: Sequence[np.ndarray | None]) -> np.ndarray:
        found = np.empty(len(owner), np.int64)
        for number, answer in enumerate(answers):
            if answer is not None:
                found[owner == number] = answer
        return found


def test_a_further_question_travels_as_the_others(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "QUESTIONS", (*QUESTIONS, Degrees))
    whole = partitioned(small_graph(), tmp_path, 3)
    here, direct = split_up(whole, [[1], [0], [2]])
    config, gids = SamplerConfig(0, ()), np.random.default_rng(0).permutation(whole.manifest.total_nodes)
    truth = whole.view.degrees(0, gids)
    counting = CountingOwners(whole, config, 1, [])
    with open_farm("in process") as farm:
        for remote in (direct, over_the_wire(farm, direct), counting):
            source = neighbor_source(here, config, remote=remote)
            assert np.array_equal(source.ask(Degrees(gids))(), truth)
        assert np.array_equal(neighbor_source(whole, config).ask(Degrees(gids))(), truth)
    bounds = whole.manifest.bounds[0]
    (asked,) = counting.asked
    assert asked.requests == sum(-(-(bounds[p + 1] - bounds[p]) // MOST) for p in (0, 2))
