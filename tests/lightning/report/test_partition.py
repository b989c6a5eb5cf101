"""The report as text, as a page, as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from glt_lightning.base import OptionError, Progress
from glt_lightning.lightning import PartitionReport
from glt_lightning.loader import TrafficOptions
from tests.helpers.partitions import partitioned, small_graph, small_hetero

OPTIONS = TrafficOptions(num_neighbors=[3, 2], batch_size=16, batches=3, cache=(0.1, 0.5))


@pytest.fixture(scope="module", params=[1, 2, 13])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PartitionReport:
    data = small_hetero() if request.param == 2 else small_graph()
    partition = partitioned(data, tmp_path_factory.mktemp("parts"), request.param, undirected=True)
    return PartitionReport.of(partition, OPTIONS, Progress(False))


def test_text(report: PartitionReport) -> None:
    text = report.text()
    parts = report.contents.num_parts
    assert "algorithm random, seed 0" in text
    for wanted in (
        "edge cut",
        "hotness",
        "Memory per host",
        "seed_placement owner",
        "seed_placement global",
        "train",
    ):
        assert wanted in text
    assert all(f"part {p}" in text for p in range(parts))
    assert text.count("Hit rate of a cache") == (0 if parts == 1 else 2)
    assert max(map(len, text.splitlines())) < 250
    nodes, remote = (
        [getattr(part, name).mean for part in report.traffic[0].parts] for name in ("nodes", "remote_nodes")
    )
    share = f"{100 * sum(remote) / sum(nodes):.1f} %"
    assert share in text


class Page(HTMLParser):
    """Notes tags, and fails when they do not close in order."""

    VOID = ("meta", "line", "rect", "circle", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag == "tr":
            self.cells.append(0)
        if tag in ("td", "th"):
            self.cells[-1] += 1
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_stands_alone(report: PartitionReport) -> None:
    page = report.html()
    parser = Page()
    parser.feed(page)
    assert parser.open == []
    assert {"svg", "table", "style"} <= parser.tags
    assert ("Hit rate by size of the cache" in page) == (report.contents.num_parts > 1)
    assert not {"script", "link", "img", "iframe"} & parser.tags
    assert "url(" not in page.replace("url(#", "")
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    assert set(re.findall(r"var\((--\w+)\)", page)) <= set(re.findall(r"(--\w+):", page))


def test_names_are_escaped(tmp_path: Path) -> None:
    data = small_hetero()
    data["<script>"].num_nodes = 5
    report = PartitionReport.of(partitioned(data, tmp_path, 2), OPTIONS, Progress(False))
    assert "<script>" not in report.html()
    assert "&lt;script&gt;" in report.html()


def test_json(report: PartitionReport) -> None:
    said = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert said["contents"]["num_parts"] == report.contents.num_parts
    assert said["contents"]["edge_cut"] == report.contents.edge_cut
    assert said["contents"]["counts"][0]["balance"] == report.contents.counts[0].balance
    assert said["traffic"][0]["parts"][0]["bytes"]["mean"] == report.traffic[0].parts[0].bytes.mean


def test_weights_are_said(tmp_path: Path) -> None:
    data = small_graph()
    data.rare = torch.arange(data.num_edges) % 4 == 0
    whole = partitioned(data, tmp_path, 2, weights=["rare"])
    report = PartitionReport.of(whole, replace(OPTIONS, weight_attr="rare"), Progress(False))
    assert "neighbours by weight (rare), one rank" in report.text()


@pytest.mark.parametrize(
    ("splits", "why"), [((), "has no split 'train'"), (("train",), "split 'train' has 1 seed for 2 ranks")]
)
def test_without_seeds_the_rest_is_shown(tmp_path: Path, splits: tuple[str, ...], why: str) -> None:
    data = small_graph()
    for name in ("train", "val", "test"):
        mask = data[f"{name}_mask"]
        del data[f"{name}_mask"]
        if name in splits:
            mask[:], mask[5] = False, True
            data[f"{name}_mask"] = mask
    report = PartitionReport.of(partitioned(data, tmp_path, 2), OPTIONS, Progress(False))
    assert why in str(report.no_traffic)
    assert f"cannot be predicted: {report.no_traffic}" in report.text()
    assert "cannot be predicted" in report.html()
    assert report.to_json()["traffic"] == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_neighbors": [3, 0]}, "num_neighbors: expected one integer per hop"),
        ({"num_neighbors": {"a__b__c": [0]}}, r"num_neighbors\[a__b__c\]: expected"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, got 0"),
        ({"batches": True}, "batches: expected an integer >= 1, got True"),
        ({"cache": [0.1, 1.5]}, "cache: expected shares"),
        ({"cache": [0]}, "cache: expected shares"),
        ({"seed": -1}, "seed: expected an integer >= 0, got -1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TrafficOptions(**options)
