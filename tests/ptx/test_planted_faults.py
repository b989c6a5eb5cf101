"""The emulated device finds what it is there to find: kernels with one instruction changed each."""

import pytest

from glt_lightning.base import GLTError
from tests.ptx.build import nvcc
from tests.ptx.cases import CASES
from tests.ptx.device import PtxDevice
from tests.ptx.faults import FAULTS, Fault

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(nvcc() is None, reason="needs nvcc, which makes the PTX"),
]

_SEEDS = 24


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_is_found(device: PtxDevice, fault: Fault):
    case, _ = CASES[fault.case]
    for seed in range(_SEEDS):
        found: list[str] = []
        try:
            with device.running(seed, fine=True, races=True, fault=fault.name) as found:
                case(device.kernels, seed)
        except (GLTError, AssertionError):
            pass  # a grid that was ended, or a wrong result
        if found:
            assert any(kind in found[0] for kind in fault.findings), found
            return
    pytest.fail(f"{_SEEDS} seeds of case {fault.case} did not find it")
