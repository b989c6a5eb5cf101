"""The device's aggregation, its bodies run on the host, gives the bits of the CPU's; tests/ptx runs what nvcc made of them."""

import pytest

from tests.helpers import aggregate_cases as cases


@pytest.mark.parametrize("schedule", [(1, 0), (4, 0)])
def test_equals_the_cpu(kernels, schedule):
    for seed in range(120):
        kernels.schedule(seed, *schedule)
        cases.check_aggregate(kernels, seed)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_nan_is_an_extreme(kernels, dtype):
    cases.check_nan_and_no_values(kernels, dtype)


def test_edges_that_contradict_themselves(kernels):
    for seed in range(24):
        cases.check_refused(kernels, seed)
