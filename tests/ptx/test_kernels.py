"""Every kernel as nvcc made it, run from its PTX and compared with the CPU ops, with barriers, masks, addresses and races
looked after. See docs/kernels.md for what the emulated device is and is not."""

import pytest

from tests.ptx.build import nvcc
from tests.ptx.cases import CASES
from tests.ptx.device import PtxDevice

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(nvcc() is None, reason="needs nvcc, which makes the PTX"),
]

_NEVER = "probe"  # is asked about, not launched (abi.cu)

_done: set[str] = set()


@pytest.mark.parametrize("name", CASES)
def test_equals_the_cpu(device: PtxDevice, launched, name):
    case, seeds = CASES[name]
    for seed in range(seeds):
        before = device.launches()
        try:
            with device.running(seed, fine=seed % 4 > 1, races=seed % 2 == 1) as found:
                case(device.kernels, seed)
        except Exception as error:
            error.add_note(f"case {name}, seed {seed}; the device found: {found or 'nothing'}")
            raise
        assert not found, f"case {name}, seed {seed}"
        for kernel, count in device.launches().items():
            _, cases = launched.get(kernel, (0, 0))
            launched[kernel] = (count, cases + (count > before[kernel]))
    _done.add(name)


def test_every_kernel_was_launched(device: PtxDevice, launched):
    if _done != set(CASES):
        pytest.skip("only some of the cases ran, or some failed")
    never = [name for name in device.kernel_names if not launched[name][0] and _NEVER not in name]
    assert not never, "no case launches these kernels; add one to tests/ptx/cases.py"
