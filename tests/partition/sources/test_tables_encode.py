"""Categories, gaps and dates become features, the same ones for rows that come later."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glt_lightning.base import EDGE, NODE, DataError, PartitionOptions, Progress
from glt_lightning.graph import Manifest
from glt_lightning.partition import ConvertedTables, open_source, partition_graph, verify_partition
from glt_lightning.partition.sources.tables.encoding import encode_rows
from glt_lightning.partition.sources.tables.fit import median_of
from glt_lightning.partition.sources.tables.source import TableSource

ROWS = 240
DAY = datetime.date(2020, 2, 28)


def papers() -> dict[str, list]:
    """Each row has its gaps; codes has more values than get a column each."""
    return {
        "id": [f"p{i}" for i in range(ROWS)],
        "venue": [None if i % 11 == 0 else ("NIPS", "ICML", " KDD")[i % 3] for i in range(ROWS)],
        "word": [None if i % 13 == 0 else f"w{i * i % 97}" for i in range(ROWS)],
        "pages": [None if i % 7 == 0 else float(i % 31) for i in range(ROWS)],
        "open": [i % 2 == 0 for i in range(ROWS)],
        "when": [None if i % 17 == 0 else DAY + datetime.timedelta(days=5 * i) for i in range(ROWS)],
        "field": ["ab"[i % 2] for i in range(ROWS)],
        "fold": [("train", "val", "test")[min(i // 100, 2)] for i in range(ROWS)],
    }


def save(folder: Path, columns: dict[str, list], extension: str = "csv", files: int = 3) -> str:
    """Several files, so that the columns come in several pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    for number, begin in enumerate(range(0, len(table), -(-len(table) // files))):
        piece = table.slice(begin, -(-len(table) // files))
        if extension == "parquet":
            pq.write_table(piece, folder / f"{number}.parquet")
        else:
            piece.to_pandas(types_mapper=pd.ArrowDtype).to_csv(folder / f"{number}.csv", index=False)
    return str(folder)


def graph(folder: Path, extension: str = "csv", columns: dict[str, list] | None = None, **nodes: Any) -> dict[str, Any]:
    path = save(folder / f"papers-{extension}", columns or papers(), extension)
    (folder / "edges.csv").write_text("s,d,kind,w\np0,p1,cites,1\np2,p0,extends,2\np3,p0,cites,\n")
    edges = {"path": str(folder / "edges.csv"), "source": "s", "destination": "d"}
    given = {"path": path, "id": "id", "label": "field", "split": "fold", "features": "*", "encode": "auto"}
    return {"nodes": {key: value for key, value in (given | nodes).items() if value is not None}, "edges": edges}


def opened(mapping: dict[str, Any], folder: Path) -> TableSource:
    source = open_source(mapping, folder / "root")
    assert isinstance(source, TableSource)
    return source


def scaled(values: pd.Series, train: pd.Series) -> np.ndarray:
    """As the default says: gaps are the mean of the training rows, which then have mean 0 and deviation 1."""
    known = values[train].dropna()
    return ((values.fillna(known.mean()) - known.mean()) / known.std(ddof=0)).to_numpy()


@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_auto_takes_what_the_values_are(tmp_path: Path, extension: str) -> None:
    source = opened(graph(tmp_path, extension), tmp_path)
    frame = pd.DataFrame(papers())
    train = frame["fold"] == "train"
    venue = frame["venue"].str.strip()
    epoch = datetime.date(1970, 1, 1)
    days = pd.Series([None if day is None else (day - epoch).days for day in papers()["when"]], dtype=float)
    expected = np.stack(
        [
            *(venue == name for name in ("ICML", "KDD", "NIPS")),
            venue.isna(),
            scaled(frame["pages"].astype(float), train),
            frame["pages"].isna(),
            scaled(frame["open"].astype(float), train),
            scaled(days, train),
            frame["when"].isna(),
        ],
        axis=1,
    ).astype(np.float64)
    x = source.node_attrs(NODE)["x"][:]
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    words = sorted(set(frame["word"].dropna()))
    codes = [len(words) + 1 if word is None else words.index(word) + 1 for word in papers()["word"]]
    assert source.node_attrs(NODE)["x_codes"][:].tolist() == [[code] for code in codes]
    assert source.num_categories == {NODE: [len(words) + 2]}
    found = encode_rows(source.folder, frame)  # what was converted in pieces, as one piece of other types
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["x_codes"][:, 0], codes)


def test_the_encoding_goes_with_the_partition(tmp_path: Path, caplog) -> None:
    mapping = graph(tmp_path)
    mapping["edges"] |= {
        "features": ["kind", "w"],
        "encode": {"kind": "one_hot", "w": {"as": "number", "scale": "none"}},
    }
    source, folder, options = (
        opened(mapping, tmp_path),
        tmp_path / "partition",
        PartitionOptions(num_parts=2, hotness="degree"),
    )
    partition_graph(source, folder, options)
    manifest = Manifest.load(folder)
    assert manifest.num_categories == {NODE: (source.num_categories[NODE][0],)}
    assert "tables/encoding.npy" in manifest.arrays
    verify_partition(folder, Progress(False))
    new = {"venue": ["VLDB", "NIPS", None], "word": ["w1", "new", None], "pages": [1, None, 3]}
    new |= {"open": [True, False, None], "when": ["2020-02-28", "2021-02-28T12:00", "NA"]}
    found = encode_rows(folder, new)
    assert found["x"][:, :4].tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert found["x"][:, 5].tolist() == [0, 1, 0]
    assert found["x"][2, 6] == 0  # no gap was there when it was fitted, so only the mean says that there is none
    assert found["x_codes"][1:, 0].tolist() == [0, manifest.num_categories[NODE][0] - 1]
    assert "column venue: 1 of 3 rows have no known category" in caplog.text
    edges = encode_rows(folder, pa.table({"kind": ["cites", "b"], "w": [5, None]}), edge_type=EDGE)["edge_attr"]
    assert edges.tolist() == [[1, 0, 5, 0], [0, 0, 1.5, 1]]
    for wrong, said in (
        (new | {"pages": ["many"] * 3}, "row 0, column 'pages': 'many' is not a number"),
        ({"venue": []}, "lacks the columns word, pages, open, when; it has venue"),
        (3, "table: expected a pandas DataFrame, .* got int"),
        (new | {"open": [True]}, "cannot be read as columns of one length"),
    ):
        with pytest.raises(DataError, match=said):
            encode_rows(folder, wrong)
    with pytest.raises(DataError, match="node_type: expected one of node; got 'paper'"):
        encode_rows(folder, new, "paper")


def test_options_of_columns(tmp_path: Path) -> None:
    encode = {
        "venue": {"as": "category", "max_one_hot": 2},
        "word": {"as": "one_hot", "max_categories": 3, "indicator": False},
        "pages": {"as": "number", "fill": -1, "indicator": False, "scale": "none"},
        "open": {"as": "category", "max_categories": 1},
        "when": {"as": "date", "scale": "minmax", "cyclic": ["month", "weekday"], "indicator": False},
    }
    source = opened(graph(tmp_path, encode=encode, fit_on="all"), tmp_path)
    x, rows = source.node_attrs(NODE)["x"][:], papers()
    assert source.node_attrs(NODE)["x_codes"][:6, 0].tolist() == [4, 1, 2, 3, 1, 2]  # ICML, KDD, NIPS, none
    counts = pd.Series(rows["word"]).value_counts()
    kept = sorted(sorted(counts.index, key=lambda word: (-counts[word], word))[:3])
    assert x[:, :3].sum() == counts[kept].sum()
    assert x[:, 3].tolist() == [-1 if page is None else page for page in rows["pages"]]
    assert x[:, 4].tolist() == [not each for each in rows["open"]]  # of two as frequent, the first in their order
    known = [day for day in rows["when"] if day is not None]
    length = (known[-1] - known[0]).days
    assert x[[1, ROWS - 1], 5].tolist() == [0, 1]
    assert x[2, 5] == np.float32(5 / length)
    angle = 2 * np.pi * (rows["when"][1].month - 1) / 12
    week = 2 * np.pi * rows["when"][1].weekday() / 7
    np.testing.assert_allclose(x[1, 6:], [np.sin(angle), np.cos(angle), np.sin(week), np.cos(week)], atol=1e-6)
    assert x[0, 6:].tolist() == [0, 0, 0, 0]  # no date


def test_words_for_no_value_and_ways_of_dates(tmp_path: Path) -> None:
    columns = papers() | {
        "pages": ["?" if i % 3 else str(i) for i in range(ROWS)],
        "when": ["?" if i % 2 else f"{i % 28 + 1:02d}/03/2021" for i in range(ROWS)],
        "venue": ["NA" if i % 2 else "DE" for i in range(ROWS)],
    }
    when = {"as": "date", "format": "%d/%m/%Y", "fill": 0, "scale": "none"}
    asked = {"features": ["pages", "venue", "when"], "encode": {"when": when, "*": "auto"}, "missing": "?"}
    x = opened(graph(tmp_path, columns=columns, **asked), tmp_path).node_attrs(NODE)["x"][:]
    assert x[:3, 1].tolist() == [0, 1, 1]
    assert x[:2, 2:4].tolist() == [[1, 0], [0, 1]]  # Namibia is a country
    assert x[:2, 4].tolist() == [(datetime.date(2021, 3, 1) - datetime.date(1970, 1, 1)).days, 0]


def test_a_word_among_numbers_is_said(tmp_path: Path, caplog) -> None:
    pages = ["unknown" if i % 9 == 0 else str(i % 31) for i in range(ROWS)]
    for kind in ("auto", {"pages": "category", "*": "auto"}):
        caplog.clear()
        _ = opened(graph(tmp_path, columns=papers() | {"pages": pages}, encode=kind), tmp_path).num_nodes
        said = "column 'pages' is treated as categories: most of its 32 different values are numbers or dates, but not "
        said += "'unknown' (27 rows). If these stand for missing values, set missing: [unknown]; if"
        assert (said in caplog.text) == (kind == "auto")
        assert "'word'" not in caplog.text


@pytest.mark.parametrize(
    ("extension", "word", "said"),
    [
        ("csv", "-", "but not '-' (1 row). If these stand for missing values, set missing: ['-']. An id or"),
        ("parquet", "-", "set missing: ['-'] and, of numbers, encode: {'*': auto, pages: number}."),
        (
            "parquet",
            "0.25",
            ": its values are text that looks like numbers or dates; if it holds numbers, set encode: {'*': auto,",
        ),
    ],
)
def test_numbers_taken_for_ids_are_said(tmp_path: Path, extension: str, word: str, said: str, caplog) -> None:
    mapping = graph(tmp_path, extension, papers() | {"pages": [word, *(f"{i}.5" for i in range(1, ROWS))]})
    with pytest.raises(DataError, match=rf"column 'pages' .* has {ROWS} different values in .*{re.escape(said)}"):
        _ = opened(mapping, tmp_path).num_nodes
    assert "treated as categories" not in caplog.text


def test_numbers_stored_as_text_are_said(tmp_path: Path, caplog) -> None:
    columns = papers() | {"pages": [f"{i % 9}" for i in range(ROWS)]}
    _ = opened(graph(tmp_path, "parquet", columns), tmp_path).num_nodes
    assert (
        "column 'pages' is treated as categories: its values are text that looks like numbers or dates; " in caplog.text
    )
    encode = {"*": "auto", "pages": "number"}
    assert opened(graph(tmp_path, "parquet", columns, encode=encode), tmp_path).num_features != {NODE: None}


def test_fill_and_scale_are_those_of_training_rows(tmp_path: Path) -> None:
    mapping = graph(tmp_path, features="pages", columns=papers() | {"pages": [*map(float, range(ROWS))]})
    trained = opened(mapping, tmp_path).node_attrs(NODE)["x"][:, 0]
    assert abs(trained[:100].mean()) < 1e-6
    assert abs(trained[:100].std() - 1) < 1e-5
    mapping["nodes"]["fit_on"] = "all"
    assert abs(opened(mapping, tmp_path).node_attrs(NODE)["x"][:, 0].mean()) < 1e-6


def test_gaps_are_filled_with_the_median(tmp_path: Path) -> None:
    values = [None if i % 5 == 0 else float(i**2) for i in range(ROWS)]
    how = {"as": "number", "fill": "median", "scale": "none", "indicator": False}
    filled = opened(graph(tmp_path, features="n", columns=papers() | {"n": values}, encode={"n": how}), tmp_path)
    middle = float(np.median([value for value in values[:100] if value is not None]))  # of the training rows
    assert filled.node_attrs(NODE)["x"][:, 0].tolist() == [middle if value is None else value for value in values]


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
@pytest.mark.parametrize("spread", [1, 3, 10**6])
def test_median_of_sorted_blocks(count: int, spread: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.integers(-spread, spread, count) / 7
    blocks = [np.sort(each) for each in np.array_split(values, min(count, 5))]
    assert median_of(blocks) == np.median(values)


def test_other_options_are_another_conversion(tmp_path: Path) -> None:
    plain = graph(tmp_path, features="pages", columns=papers() | {"pages": [1.5] * ROWS}, encode=None)
    source = opened(plain, tmp_path)
    assert "encode" not in source._tables.columns_text()  # so that folders of earlier releases keep their name
    seen = {source.fingerprint}
    for change in ({"encode": "auto"}, {"encode": {"pages": {"as": "auto", "scale": "none"}}}):
        for more in ({}, {"fit_on": "all"}, {"missing": ["?"]}):
            seen.add(opened(plain | {"nodes": plain["nodes"] | change | more}, tmp_path).fingerprint)
    assert len(seen) == 7


def test_an_encoding_is_applied_to_other_tables(tmp_path: Path) -> None:
    """What the model was trained on says which column, code and class is which, whatever the new tables hold."""
    first = opened(graph(tmp_path / "a"), tmp_path / "a")
    partition_graph(first, tmp_path / "p", PartitionOptions())
    few = {name: values[200:240] for name, values in papers().items()} | {"field": ["b"] * 39 + [None]}
    given = graph(tmp_path / "b", columns=few) | {"encoding": str(tmp_path / "p")}
    (tmp_path / "b" / "edges.csv").write_text("s,d\np200,p201\n")
    second = opened(given, tmp_path / "b")
    for name in ("x", "x_codes"):
        np.testing.assert_array_equal(second.node_attrs(NODE)[name][:], first.node_attrs(NODE)[name][:][200:240])
    assert second.node_attrs(NODE)["y"][:].tolist() == [1] * 39 + [-1]
    assert (second.class_names, second.num_classes, second.num_categories) == (["a", "b"], 2, first.num_categories)
    del given["nodes"]["label"], given["nodes"]["split"]
    unlabelled = opened(given, tmp_path / "b")
    assert (unlabelled.num_classes, unlabelled.target_type, unlabelled.class_names) == (2, NODE, ["a", "b"])
    other = given | {"nodes": given["nodes"] | {"encode": {"*": "auto", "word": "one_hot"}}}
    with pytest.raises(
        DataError, match=r"encoding: .*p was made with .* for node, these tables say .*Give the same keys"
    ):
        _ = opened(other, tmp_path / "b").num_nodes
    save(tmp_path / "b" / "papers-csv", few | {"field": ["c"] * 40})
    given["nodes"] |= {"label": "field"}
    with pytest.raises(DataError, match="label: expected the classes of the encoding, a, b; found 'c'"):
        _ = opened(given, tmp_path / "b").num_nodes


@pytest.mark.parametrize(
    ("options", "texts", "values"),
    [
        ({"thousands": ","}, ["1,234", "26,167.5", "-12", " 1,00,000 ", "1e3", None], [1234, 26167.5, -12, 1e5, 1e3]),
        ({"thousands": ".", "decimal": ","}, ["1.234,5", "7", ",5", "NA"], [1234.5, 7, 0.5]),
        ({"decimal": ","}, ["1,5", "-2,25e2"], [1.5, -225]),
        ({"thousands": " "}, ["1 234", "5"], [1234, 5]),
        ({"thousands": "'"}, ["1'234'567.25"], [1234567.25]),
    ],
)
def test_numbers_in_other_characters(tmp_path: Path, options: dict, texts: list, values: list) -> None:
    """At fitting, for rows that come later as text or as numbers, and from the folder that a partition is made of."""
    column = [texts[i % len(texts)] for i in range(ROWS)]
    encode = {"*": "auto", "pages": {"as": "number", "scale": "none", "fill": -1, "indicator": False, **options}}
    source = opened(graph(tmp_path, columns=papers() | {"pages": column}, features="pages", encode=encode), tmp_path)
    expected = np.array([*values, -1] if len(values) < len(texts) else values, np.float32)
    x = source.node_attrs(NODE)["x"][:][:, 0]
    np.testing.assert_array_equal(x, expected[np.arange(ROWS) % len(texts)])
    np.testing.assert_array_equal(encode_rows(source.folder, {"pages": texts})["x"][:, 0], expected)
    np.testing.assert_array_equal(encode_rows(source.folder, {"pages": [1234.5]})["x"], [[1234.5]])


@pytest.mark.parametrize(
    ("options", "wrong", "said"),
    [
        ({"thousands": ","}, "1,5", "'1,5' is not a number with thousands ',' and decimal '.'"),
        ({"decimal": ","}, "1.5", "'1.5' is not a number with decimal ','; correct the value or these options"),
        (
            {},
            "26,167",
            r"'26,167' is not a number; .* set encode: {'\*': auto, pages: {as: number, thousands: ','}}\.$",
        ),
        ({}, "1.234,5", "pages: {as: number, thousands: '.', decimal: ','}}"),
        ({}, "1,5", "pages: {as: number, decimal: ','}}"),
        ({}, "?", r"set missing: \['\?'\]"),
    ],
)
def test_numbers_that_are_written_otherwise(tmp_path: Path, options: dict, wrong: str, said: str) -> None:
    columns = papers() | {"pages": ["3"] * 100 + [wrong] * (ROWS - 100)}
    encode = {"pages": {"as": "number", **options}}
    with pytest.raises(DataError, match=f"column 'pages': .*{said}") as error:
        _ = opened(graph(tmp_path, columns=columns, features="pages", encode=encode), tmp_path).num_nodes
    assert "26,167]" not in str(error.value)  # two words in YAML


def test_auto_says_how_to_read_such_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    way = "set encode: {'*': auto, pages: {as: number, thousands: ','}}"
    few = papers() | {"pages": [("12", "1,234", "26,167")[i % 3] for i in range(ROWS)]}
    assert opened(graph(tmp_path / "few", columns=few), tmp_path).num_nodes
    assert way in caplog.text
    assert "missing:" not in caplog.text
    many = papers() | {"pages": [f"{1000 + 7 * i:,}" for i in range(ROWS)]}
    with pytest.raises(DataError, match="different values in 240 rows") as error:
        _ = opened(graph(tmp_path / "many", columns=many), tmp_path).num_nodes
    assert way in str(error.value)
    plain = graph(tmp_path / "plain", columns=few, features="pages", encode=None)
    with pytest.raises(DataError, match="'1,234' is not a valid float") as error:
        _ = opened(plain, tmp_path).num_nodes
    assert way in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            {"encode": {"pages": {"as": "number", "thousands": "."}}},
            r"encode: pages: thousands: expected one character .* other than decimal \('.'\); got '.'",
        ),
        ({"encode": {"pages": {"as": "number", "thousands": 3}}}, "thousands: expected one character"),
        ({"encode": {"pages": {"as": "number", "decimal": ";"}}}, "decimal: expected '.' or ','; got ';'"),
        ({"encode": {"pages": {"as": "auto", "thousands": ","}}}, "auto has no option 'thousands'"),
        ({"encode": "auto", "features": None}, "nodes: encode needs features"),
        ({"encode": None, "missing": "?"}, "nodes: missing needs encode"),
        ({"encode": {"venu": "category"}}, "encode: 'venu' is not among the features .*Did you mean venue"),
        (
            {"encode": {"venue": "onehot"}},
            "encode: venue: as: expected one of auto, .* got 'onehot'. Did you mean one_hot",
        ),
        ({"encode": {"venue": 3}}, "encode: venue: as: expected one of auto"),
        ({"encode": ["auto"]}, r"encode: as: expected one of auto, .* got \['auto'\]"),
        ({"encode": {"venue": {"as": "code", "scale": "none"}}}, "code has no option 'scale'; it has max_categories"),
        ({"encode": {"pages": {"as": "number", "fil": 3}}}, "no option 'fil'; .*Did you mean fill"),
        (
            {"encode": {"pages": {"as": "number", "fill": "medan"}}},
            "fill: expected mean, median, none or a number; got 'medan'. Did you mean median",
        ),
        ({"encode": {"pages": {"as": "number", "scale": 3}}}, "scale: expected one of standard, minmax, none"),
        ({"encode": {"pages": {"as": "number", "indicator": "yes"}}}, "indicator: expected auto, true or false"),
        ({"encode": {"venue": {"as": "one_hot", "max_categories": 0}}}, "max_categories: expected an integer >= 1"),
        ({"encode": {"when": {"as": "date", "cyclic": "days"}}}, "cyclic: expected some of .*Did you mean day"),
        ({"fit_on": "val"}, "fit_on: expected train or all; got 'val'"),
        ({"fit_on": "train", "split": None}, "fit_on: train needs the column of the splits"),
        ({"missing": [1]}, "missing: expected words such as NA; got 1"),
        (
            {"encode": {"venue": "number"}},
            r"row 1, column 'venue': 'ICML' is not a number; .*encode: \{venue: category\}",
        ),
        ({"encode": {"pages": "date"}}, "'1.0' is not a date such as 2021-04-30"),
        (
            {"encode": {"when": {"as": "date", "format": "%d/%m/%Y"}}},
            "row 1, column 'when': '2020-03-04' does not match the date format '%d/%m/%Y'",
        ),
        (
            {"features": ["pages", "id"], "encode": "auto"},
            "column 'id' .* has 240 different values in 240 rows, such as 'p0': an id or free text .* set encode: {id: code}"
            ".* of dates, how they are written: {id: {as: date, format",
        ),
        (
            {"id": "identity"},
            "has no column 'identity' .* its columns: id, venue",
        ),  # rather than that id is no category
        (
            {"features": ["pages"], "encode": {"pages": {"as": "number", "fill": "none"}}},
            "row 0, column 'pages': the value is missing, and fill is none",
        ),
    ],
)
def test_errors(tmp_path: Path, nodes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        _ = opened(graph(tmp_path, **nodes), tmp_path).num_nodes
    assert "\n" not in str(error.value)


def test_no_training_rows_to_fit_on(tmp_path: Path) -> None:
    mapping = graph(tmp_path, columns=papers() | {"fold": ["test"] * (ROWS - 1) + [None]})
    said = rf"column 'fold' .*: no row of the split is train, .* say test \({ROWS - 1}\), an empty cell \(1\)\. .* fit_on: all"
    with pytest.raises(DataError, match=said):
        _ = opened(mapping, tmp_path).num_nodes


def test_no_value_in_training_rows_to_fit_on(tmp_path: Path) -> None:
    mapping = graph(tmp_path, columns=papers() | {"pages": [None] * ROWS})
    mapping["nodes"]["encode"] = {"pages": "number"}
    mapping["nodes"]["features"] = ["pages"]
    with pytest.raises(DataError, match=r"column 'pages' .* has no value in the rows .* set fit_on: all"):
        _ = opened(mapping, tmp_path).num_nodes


def test_numbers_too_wide_to_scale(tmp_path: Path) -> None:
    mapping = graph(tmp_path, features="pages", columns=papers() | {"pages": [1e300, -1e300] * (ROWS // 2)})
    with pytest.raises(
        DataError, match=r"column 'pages' .* ranges from -1e\+300 to 1e\+300, which is too wide to scale"
    ):
        _ = opened(mapping, tmp_path).num_nodes


def test_too_many_categories_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glt_lightning.partition.sources.tables.fit._MOST_CATEGORIES", 40)
    with pytest.raises(DataError, match=r"column 'word' .* has more than 40 different values"):
        _ = opened(graph(tmp_path), tmp_path).num_nodes


def test_edges_to_predict_are_encoded_as_those_of_the_graph(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mapping = graph(tmp_path)
    mapping["edges"] |= {
        "features": ["kind", "w"],
        "encode": {"kind": "one_hot", "w": {"as": "number", "scale": "none"}},
    }
    partition_graph(opened(mapping, tmp_path), tmp_path / "p", PartitionOptions())
    tables = ConvertedTables(tmp_path / "root", Manifest.load(tmp_path / "p"))
    new = tmp_path / "new.csv"
    new.write_text("s,d,kind,w\np3,p0,odd,2\n")
    read = tables.read_edges("predict", str(new), mapping, EDGE)
    assert read.edge.tolist() == [[3], [0]]
    assert read.attr is not None
    assert read.attr[0].tolist() == [*[0.0] * (read.attr.shape[1] - 2), 2.0, 0.0]
    assert "column kind: 1 of 1 rows have no known category" in caplog.text
    new.write_text("s,d,kind,w\np3,p0,odd,2\np3,p0,odd,two\n")
    with pytest.raises(DataError, match=r"new\.csv: row 1, column 'w': 'two' is not a number"):
        tables.read_edges("predict", str(new), mapping, EDGE)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("venue", "'NIPS' is not a valid float; .*set encode: {venue: category} for categories.* auto to choose"),
        ("pages", "row 0, column 'pages': the value is missing; .*set encode: {pages: number}, which fills it"),
    ],
)
def test_plain_features_name_the_remedy(tmp_path: Path, column: str, said: str) -> None:
    columns = papers() | {"venue": ["NIPS"] * ROWS}
    with pytest.raises(DataError, match=said):
        _ = opened(graph(tmp_path, columns=columns, features=column, encode=None), tmp_path).num_nodes
    mapping = graph(tmp_path, features=None, encode=None, attrs={"venue": "venue"})
    with pytest.raises(
        DataError, match=r"attributes are numbers, booleans or times. A category is a feature: .*encode:"
    ):
        _ = opened(mapping, tmp_path).num_nodes
