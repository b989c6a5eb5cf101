"""Every kernel as nvcc made it, run from its PTX and compared with the CPU ops, with barriers, masks, addresses and races
checked.

``make ptx-check``, part of ``make test-all`` if nvcc is found, runs every kernel as nvcc compiled it, on the CPU. nvcc
compiles each ``.cu`` file once: its host object launches kernels and packs their arguments as on a GPU, and the PTX is
translated to C++, instruction by instruction (``tests/ptx/translate.py``). An instruction that the translator does not
know is an error. ``tests/ptx/native`` runs the kernels, one fiber for each CUDA thread, and replaces the CUDA runtime.
Each op is compared with the CPU's, with numbers of items around the borders of lanes, warps, blocks and tiles. The
table at the end has the launches and cases of each kernel; a kernel in the PTX that no case launches fails the check by
name.

* order of blocks and threads: blocks ascending, descending or random, 1 to 8 at a time; threads by four policies, each
  independent of its warp; switched at atomic and volatile accesses, barriers, shuffles, votes and, in half of the runs,
  at plain accesses
* barriers, shuffles, votes: with their masks. Found: a mask that names a lane that has left or waits elsewhere, a
  shuffle from outside of the mask, a barrier that not all reach, a deadlock
* memory: each tensor lies alone in an arena: an access to a byte that was not allocated, or not aligned to its width,
  ends the grid. Fresh and shared memory contains garbage
* races: two accesses of which one writes, not ordered by a barrier of the block or of lanes, and not both atomic or
  volatile
* limits: of the grid, threads a block, static shared memory, bytes of arguments

Not modelled, and left to ``tests/gpu``: a weak order of memory (it is sequentially consistent), caches, streams that
overlap (a launch runs at once), ptxas and machine code, the driver, the bus, torch's tensors and allocator for CUDA.

``tests/ptx/faults.py`` injects faults into copies of the kernels (a comparison off by one, a plain store for an atomic
minimum, a missing barrier of a block or of lanes); for each a test shows that it is found. ``make ptx-check
PTX_ARCHITECTURE=120`` takes the PTX for another device; from compute capability 10.0 on, another compiler inside nvcc
makes it. The check takes about 1.5 minutes of processor time.

[1] Bentley and Floyd, *A sample of brilliance*, CACM 30(9), 1987. [2] Steele, Lea, Flood, *Fast splittable pseudorandom
number generators*, OOPSLA 2014. [3] Lemire, *Fast random integer generation in an interval*, TOMACS 29(1), 2019. [4]
Merrill, Garland, *Single-pass parallel prefix scan with decoupled look-back*, NVIDIA NVR-2016-002. Concurrent open
addressing: cf. NVIDIA cuCollections, ``static_set``.
"""

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
