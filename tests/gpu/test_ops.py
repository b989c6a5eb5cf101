"""Each op on a CUDA device equals the CPU op and the reference."""

import numpy as np
import pytest
import torch

from glt_lightning.base import DataError
from glt_lightning.kernels.cuda import relabel as cuda_relabel
from glt_lightning.kernels.cuda.native import SPARE_FANOUT
from tests.helpers import device_cases as cases
from tests.reference import ops as reference

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(60))
def test_sample_rows(kernels, seed):
    cases.check_sample_rows(kernels, seed)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree", [1, 16, 17, 64, 65, 200, 5000, 40000])
@pytest.mark.parametrize("fanout", [1, 5, 16, 17, SPARE_FANOUT, SPARE_FANOUT + 1, 300])
def test_every_way_of_picking(kernels, degree, fanout, replace):
    cases.check_every_way_of_picking(kernels, degree, fanout, replace)


@pytest.mark.parametrize("seed", range(60))
def test_relabel(kernels, seed):
    cases.check_relabel(kernels, seed)


def test_relabel_of_many_ids_with_few_values(kernels):
    """Thousands of threads meet in each slot."""
    ids = np.random.default_rng(0).integers(0, 100, 500_000)
    unique, lids = cuda_relabel.relabel(cases.to(kernels, ids))
    want_unique, want_lids = reference.relabel(torch.from_numpy(ids), torch.empty(0, dtype=torch.int64))
    assert unique.tolist() == want_unique.tolist()
    assert lids.tolist() == want_lids.tolist()


def test_relabel_refuses_negative_ids(kernels):
    with pytest.raises(DataError, match="id -3 at position 1"):
        cuda_relabel.relabel(cases.to(kernels, np.array([1, -3])))


@pytest.mark.parametrize("seed", range(60))
def test_walks(kernels, seed):
    cases.check_walks(kernels, seed)


def test_walks_that_are_refused(kernels):
    cases.check_walks_refuse(kernels)


@pytest.mark.parametrize("seed", range(40))
def test_neighbor_sums(kernels, seed):
    cases.check_neighbor_sums(kernels, seed)
