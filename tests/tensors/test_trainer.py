"""Embeddings in a Trainer of one process, against their dense twins."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision

from glt_lightning.base import OptionError
from tests.helpers.partitions import small_graph
from tests.tensors.twins import QUIET, RULES, Twin, data_of, first_values, fit


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("graph") / "graph.pt"
    torch.save(small_graph(), file)
    return file


def both(
    graph: Path, tmp_path: Path, *, real: bool = False, parts: int = 1, **options
) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for kind in ("dense", "sparse"):
        module = Twin(kind, real=real)
        plugins = options.pop("plugins")() if "plugins" in options else None
        fit(module, data_of(graph, tmp_path, parts), plugins=plugins, **options)
        found.append(module.table())
        assert module.steps == options.get("max_epochs", 2) * 7
    return found[0], found[1]


@pytest.mark.diagonal
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_equals_the_dense_twin(graph, tmp_path, parts, accumulate):
    """7 steps an epoch: the last window of 3 is a ragged one."""
    dense, sparse = both(graph, tmp_path, parts=parts, accumulate_grad_batches=accumulate)
    assert (sparse != first_values()).any()
    assert np.array_equal(dense, sparse)


def test_real_numbers_clipping_and_all_that(graph, tmp_path):
    """Clipped by the norm over parameters and rows, as the dense twin is."""
    dense, sparse = both(graph, tmp_path, real=True, gradient_clip_val=0.3, accumulate_grad_batches=2)
    assert (sparse != first_values() / 100).any()
    np.testing.assert_allclose(sparse, dense, rtol=1e-6, atol=1e-7)


def test_scaled_gradients(graph, tmp_path):
    """Scales are powers of two: with a scaler the rows are the same to the last bit."""

    def scaler() -> MixedPrecision:
        return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3))

    dense, sparse = both(graph, tmp_path, plugins=scaler)
    assert np.array_equal(dense, sparse)


@pytest.mark.diagonal(most=1)
@pytest.mark.parametrize("rule", RULES)
def test_a_module_without_parameters(graph, tmp_path, rule):
    """Its loss falls, by each of the rules."""
    module = Twin(rule=rule, real=True, bare=True)
    before = np.square(first_values() / 100).sum()
    fit(module, data_of(graph, tmp_path))
    assert np.square(module.table()).sum() < before


def test_tables_outlive_the_fit(graph, tmp_path, caplog):
    """A second fit goes on from the rows of the first, and a test reads them."""
    module, data = Twin(), data_of(graph, tmp_path)
    with caplog.at_level("INFO"):
        fit(module, data)
    assert re.search(
        r"embedding 'emb': 300 rows of 3; with no states [0-9.]+ kB in the memory of this host", caplog.text
    )
    first = module.table()
    trainer = Trainer(**QUIET)
    module.test_step = lambda batch, batch_idx: module.log("sum", module.emb(batch).sum(), batch_size=1)
    trainer.test(module, data, verbose=False)
    assert np.array_equal(module.table(), first)
    fit(module, data)
    assert not np.array_equal(module.table(), first)


def test_refusals(graph, tmp_path):
    with pytest.raises(OptionError, match="gradient_clip_algorithm: value: the values of rows are on other ranks"):
        fit(Twin(), data_of(graph, tmp_path), gradient_clip_val=1.0, gradient_clip_algorithm="value")
    module = Twin()
    module.configure_optimizers = lambda: torch.optim.SGD([module.bias], lr=1.0)
    with pytest.warns(UserWarning, match="embedding 'emb' is in none of the optimizers"), warnings.catch_warnings():
        fit(module, data_of(graph, tmp_path), limit_train_batches=1)
