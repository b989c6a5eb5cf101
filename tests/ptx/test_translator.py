"""PTX is read as it is meant, and what is not known is refused. Needs no nvcc."""

import pytest

from tests.ptx.faults import Fault, plant
from tests.ptx.ptx import Instruction, Label, UnknownPtxError, read_ptx
from tests.ptx.translate import Translator

_PTX = """
.version 9.0
.target sm_90
.address_size 64
\t.file\t1 "/somewhere/body.cuh"
.visible .entry kernel(
\t.param .align 8 .b8 kernel_param_0[12],
\t.param .u64 kernel_param_1
)
.maxntid 256
{
\t.reg .pred \t%p<2>;
\t.reg .b16 \t%rs<3>;
\t.reg .b32 \t%r<4>;
\t.reg .f32 \t%f<3>;
\t.reg .b64 \t%rd<4>;
\t.shared .align 8 .b8 first[12];
\t.shared .align 16 .b8 second[20];
\t.loc\t1 7 3, function_name $L__info_string0, inlined_at 1 34 3
$L__BB0_1:
\t@!%p1 bra \t$L__BB0_1;
\tst.global.v2.u32 \t[%rd1+8], {%r1, %r2};
BODY
\tret;
}
\t.section\t.debug_str
"""


def kernel_with(body: str):
    (kernel,) = read_ptx(_PTX.replace("BODY", body))
    return kernel


def translated(body: str) -> str:
    return Translator(kernel_with(body)).function("f")


def test_a_kernel_is_read():
    kernel = kernel_with("")
    assert kernel.name == "kernel"
    assert kernel.parameters == {"kernel_param_0": (0, 12), "kernel_param_1": (16, 8)}
    assert kernel.shared == {"first": (0, 12), "second": (16, 20)}
    assert (kernel.shared_bytes, kernel.max_threads) == (36, 256)
    assert kernel.registers["%rd3"] == "b64"
    label, jump, store, _ = kernel.body
    assert label == Label("L__BB0_1")
    assert jump == Instruction("bra $L__BB0_1", "!%p1", "body.cuh:7")
    assert (store.opcode, store.operands) == (["st", "global", "v2", "u32"], ["[%rd1+8]", "{%r1, %r2}"])


@pytest.mark.parametrize(
    ("ptx", "code"),
    [
        ("ld.param.u32 %r1, [kernel_param_0+8];", "params + uint64_t(UINT64_C(0)) + uint64_t(8)"),
        ("mov.u32 %r1, second;", "r_r1 = uint32_t(uint32_t(16));"),
        (
            "sub.s32 %r1, %r2, -1;",
            "int32_t(uint64_t(int32_t(r_r2)) - uint64_t(int32_t(UINT64_C(18446744073709551615))))",
        ),
        ("shr.s64 %rd1, %rd2, 70;", "int64_t(r_rd2) >> (uint32_t(UINT64_C(70)) >= 64 ? 63 : "),
        ("add.f32 %f1, %f2, 0fBF000000;", "r_f1 = as_bits(as_float(r_f2) + as_float(0xBF000000u));"),
        ("div.rn.f64 %rd1, %rd2, 0d3FF0000000000000;", "as_double(r_rd2) / as_double(0x3FF0000000000000u));"),
        ("setp.neu.f32 %p1, %f1, %f2;", "r_p1 = (as_float(r_f1) != as_float(r_f2));"),
        ("setp.ne.f32 %p1, %f1, %f2;", "(as_float(r_f1) < as_float(r_f2) || as_float(r_f1) > as_float(r_f2));"),
        ("rem.s64 %rd1, %rd2, %rd3;", "r_rd1 = int64_t(int64_t(r_rd2) % int64_t(r_rd3));"),
        ("mov.b32 {%rs1, %rs2}, %r1;", "r_rs2 = uint16_t(uint64_t(uint32_t(r_r1)) >> 16);"),
        ("@%p1 bar.warp.sync -1;", "if (r_p1) { wait_for_lanes(t, uint32_t(UINT64_C(18446744073709551615)), 1); }"),
        ("red.global.min.s32 [%rd1], %r1;", "atomic_min<int32_t>(t, uint64_t(r_rd1) + uint64_t(0), 1, int32_t(r_r1));"),
    ],
)
def test_an_instruction_is_translated(ptx, code):
    text = translated(ptx)
    assert code.replace("params + uint64_t(UINT64_C(0))", "params + uint64_t(0)") in text, text


@pytest.mark.parametrize(
    "ptx",
    [
        "frobnicate.u32 %r1, %r2;",
        "add.sat.s32 %r1, %r2, 1;",
        "ld.global.nc.u32 %r1, [%rd1];",
        "ld.local.u32 %r1, [%rd1];",
        "atom.global.or.b32 %r1, [%rd1], %r2;",
        "cvt.rzi.s32.f32 %r1, %f1;",
        "cvt.f64.f32 %rd1, %f1;",
        "div.full.f32 %f1, %f2, %f3;",
        "rem.f32 %f1, %f2, %f3;",
        "max.f32 %f1, %f2, %f3;",
        "setp.neu.s32 %p1, %r1, %r2;",
        "mov.u32 %r1, %clock;",
        "mov.u32 %r9, 1;",
        "bar.sync 1;",
        ".local .align 8 .b8 depot[16];",
    ],
)
def test_what_is_not_known_is_refused(ptx):
    with pytest.raises(UnknownPtxError) as error:
        translated(ptx)
    assert ptx.rstrip(";") in str(error.value)


def test_a_fault_that_cannot_be_planted_is_told():
    fault = Fault("none", kernel="kernel", instruction=r"bar\.sync 0", becomes="", case="khop", findings=())
    with pytest.raises(LookupError, match="kernel has 0 instructions"):
        plant(fault, kernel_with(""))
    broken = plant(fault, kernel_with("bar.sync 0;"))
    assert broken is not None
    assert len(broken.body) == len(kernel_with("").body)
