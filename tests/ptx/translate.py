"""Translates kernels from PTX to C++, one instruction at a time: a function that one fiber runs for each CUDA thread.

Registers are bits. An instruction's type says how it reads its operands, and how far its result is extended. What an
instruction does beyond one thread (memory, barriers, shuffles) is a call of `native/simt.h`. An instruction, a modifier
or an operand that is not known here is an error: a kernel is never run by a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.ptx.ptx import Instruction, Kernel, Label, UnknownPtxError, bits_of

_SPECIAL = {"%tid.x": "t.index", "%ctaid.x": "t.block", "%ntid.x": "t.num_threads", "%nctaid.x": "t.num_blocks"}
_SPECIAL |= {"%laneid": "(t.index % 32)"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_COMPARE |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_COMPARE_INTEGERS = {name: f"({{a}} {sign} {{b}})" for name, sign in _COMPARE.items()}
# Of numbers, of which NaN is none: the C++ of each comparison. With a "u", it also holds where one of them is NaN.
_COMPARE_FLOATS = {name: f"({{a}} {_COMPARE[name]} {{b}})" for name in ("lt", "le", "gt", "ge", "eq")}
_COMPARE_FLOATS |= {"ne": "({a} < {b} || {a} > {b})", "neu": "({a} != {b})", "equ": "!({a} < {b} || {a} > {b})"}
_COMPARE_FLOATS |= {"ltu": "!({a} >= {b})", "leu": "!({a} > {b})", "gtu": "!({a} <= {b})", "geu": "!({a} < {b})"}
_COMPARE_FLOATS |= {"num": "({a} == {a} && {b} == {b})", "nan": "({a} != {a} || {b} != {b})"}
_FLOATS = {"f32": ("float", "0f"), "f64": ("double", "0d")}  # what they are in C++, and how a number begins
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_SPACES = {"global", "shared", "param"}
_ATOMIC = {"cas", "add", "min", "max", "exch"}

# The modifiers that each instruction may have between its name and its type.
_MODIFIERS: dict[str, set[str]] = {
    **{name: set() for name in ("mov", "neg", "not", "and", "or", "xor", "shl", "shr", "selp", "min", "max")},
    **{name: set() for name in ("popc", "brev", "clz", "bfi", "bfe", "prmt")},
    "add": {"rn"},
    "sub": {"rn"},
    "mul": {"lo", "hi", "wide", "rn"},
    "mad": {"lo", "wide"},
    "div": {"rn"},
    "rem": set(),
    "rcp": {"rn"},
    "setp": {*_COMPARE, *_COMPARE_FLOATS, *_LOGIC},
    "cvt": {"rn", "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"},
    "cvta": {"to", "global", "shared", "param"},
    "bfind": {"shiftamt"},
    "ld": {"global", "shared", "param", "volatile", "relaxed", "gpu", "sys", "v2", "v4"},
    "st": {"global", "shared", "volatile", "relaxed", "gpu", "sys", "v2", "v4"},
    "atom": {"global", "shared", "relaxed", "gpu", *_ATOMIC},
    "red": {"global", "shared", "relaxed", "gpu", *_ATOMIC},
    "bar": {"warp"},
    "shfl": {"sync", "up", "down", "bfly", "idx"},
    "vote": {"sync", "any", "all", "ballot"},
}


def is_signed(type_: str) -> bool:
    return type_[0] == "s"


def _c_type(type_: str) -> str:
    if type_ == "pred" or type_ in _FLOATS:
        return "bool" if type_ == "pred" else _FLOATS[type_][0]
    if not re.fullmatch(r"[bus](8|16|32|64)", type_):
        raise UnknownPtxError(f"type {type_!r}")
    return f"{'' if is_signed(type_) else 'u'}int{bits_of(type_)}_t"


def _unsigned(type_: str) -> str:
    return type_ if type_ == "pred" or type_ in _FLOATS else f"u{bits_of(type_)}"


def _wider(type_: str) -> str:
    return f"{type_[0]}{2 * bits_of(type_)}"


@dataclass
class Translator:
    """kernel: what is translated.  sites: instructions that touch memory or wait, by the number that stands for each."""

    kernel: Kernel
    sites: list[Instruction] = field(default_factory=list)

    def function(self, name: str) -> str:
        """``static void name(Thread& t, const char* params)``."""
        lines = [f"static void {name}(Thread& t, const char* const params) {{", "  (void)t, (void)params;"]
        for register, type_ in self.kernel.registers.items():
            lines.append(f"  {self._storage(type_)} {self._name(register)} = 0;")
        for each in self.kernel.body:
            lines.append(f"{each.name}:;" if isinstance(each, Label) else f"  {self.statement(each)}")
        return "\n".join([*lines, "}"])

    def statement(self, each: Instruction) -> str:
        name, *modifiers = each.opcode
        guard = ""
        if each.guard:
            guard = f"if ({'!' if each.guard[0] == '!' else ''}{self._name(each.guard.lstrip('!'))}) "
        try:
            if name == "bra":
                code = f"goto {each.operands[0].removeprefix('$')};"
            elif name == "ret":
                code = "return;"
            else:
                code = self._instruction(name, modifiers, each)
        except (UnknownPtxError, KeyError, IndexError, ValueError) as error:
            raise UnknownPtxError(f"{each.text!r} in {self.kernel.name}: {error!r}") from None
        return f"{guard}{{ {code} }}"

    def _instruction(self, name: str, modifiers: list[str], each: Instruction) -> str:
        waits = name == "bar"
        type_ = "" if waits else modifiers.pop()
        allowed = {*_MODIFIERS[name], *({"sync"} if waits else ())}
        if not allowed.issuperset(modifiers):
            raise UnknownPtxError(f"modifiers {sorted({*modifiers} - allowed)}")
        one = _ONE.get(name)
        if one is not None:
            return self._set(each.operands[0], type_, one(self, modifiers, each.operands, type_))
        return getattr(self, f"_{name}")(modifiers, each.operands, type_, each)

    # --- operands

    def _name(self, register: str) -> str:
        if register not in self.kernel.registers:
            raise UnknownPtxError(f"register {register!r}")
        return "r_" + register.removeprefix("%")

    def _storage(self, type_: str) -> str:
        return "bool" if type_ == "pred" else f"uint{max(16, bits_of(type_))}_t"

    def value(self, text: str, type_: str) -> str:
        """An operand as a C++ value of the type."""
        if text in _SPECIAL:
            return f"{_c_type(type_)}({_SPECIAL[text]})"
        if text.startswith("%"):
            name = self._name(text)
            return f"as_{_c_type(type_)}({name})" if type_ in _FLOATS else f"{_c_type(type_)}({name})"
        if type_ in _FLOATS:
            number, begin = _FLOATS[type_]
            if not text.startswith(begin):
                raise UnknownPtxError(f"number {text!r}")
            return f"as_{number}(0x{text[2:]}u)"
        for space in (self.kernel.shared, self.kernel.parameters):  # addresses there are offsets
            if text in space:
                return f"{_c_type(type_)}({space[text][0]})"
        return f"{_c_type(type_)}(UINT64_C({int(text.removesuffix('U'), 0) % 2**64}))"

    def _wide(self, text: str, type_: str) -> str:
        """As an unsigned word that holds any integer, for arithmetic that wraps."""
        return f"uint64_t({self.value(text, type_)})"

    def _set(self, register: str, type_: str, value: str) -> str:
        if type_ in _FLOATS:
            return f"{self._name(register)} = as_bits({value});"
        return f"{self._name(register)} = {_c_type(type_)}({value});"

    def _address(self, text: str, space: str) -> str:
        found = re.fullmatch(r"\[([%$\w]+)(?:\s*\+\s*(-?\d+))?\]", text)
        if found is None:
            raise UnknownPtxError(f"address {text!r}")
        base, offset = found[1], int(found[2] or 0)
        at = f"{self.value(base, 'u32' if space == 'shared' else 'u64')} + uint64_t({offset})"
        if space == "param":
            return f"params + {at}"
        return f"shared_at(t, {at})" if space == "shared" else at

    def _site(self, each: Instruction) -> int:
        self.sites.append(each)
        return len(self.sites) - 1

    # --- instructions that are more than one value

    def _mov(self, _: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, source = operands
        if to.startswith("{"):  # the pieces of a word, lowest first
            names = [self._name(part.strip()) for part in to.strip("{}").split(",")]
            size, word = bits_of(type_) // len(names), self._wide(source, _unsigned(type_))
            return " ".join(f"{name} = uint{size}_t({word} >> {k * size});" for k, name in enumerate(names))
        if source.startswith("{"):
            parts = [part.strip() for part in source.strip("{}").split(",")]
            size = bits_of(type_) // len(parts)
            word = " | ".join(f"{self._wide(part, f'u{size}')} << {k * size}" for k, part in enumerate(parts))
            return self._set(to, _unsigned(type_), word)
        if type_ in _FLOATS and source.startswith("%"):  # bits, also those of a NaN
            return f"{self._name(to)} = {self._name(source)};"
        return self._set(to, type_, self.value(source, type_))

    def _mul(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, a, b = operands
        if type_ in _FLOATS:
            return self._set(to, type_, f"{self.value(a, type_)} * {self.value(b, type_)}")
        if modifiers == ["lo"]:
            return self._set(to, type_, f"{self._wide(a, type_)} * {self._wide(b, type_)}")
        if modifiers == ["hi"] and type_ == "u64":
            return self._set(to, type_, f"(unsigned __int128){self.value(a, type_)} * {self.value(b, type_)} >> 64")
        wide = _c_type(_wider(type_))
        product = f"{wide}({self.value(a, type_)}) * {wide}({self.value(b, type_)})"
        if modifiers == ["hi"]:
            return self._set(to, type_, f"{product} >> {bits_of(type_)}")
        if modifiers != ["wide"]:
            raise UnknownPtxError("product")
        return self._set(to, _wider(type_), product)

    def _mad(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, a, b, c = operands
        if modifiers == ["lo"]:
            return self._set(to, type_, f"{self._wide(a, type_)} * {self._wide(b, type_)} + {self._wide(c, type_)}")
        wider = _wider(type_)  # the product of two halves does not overflow, its sum may wrap
        product = f"uint64_t({_c_type(wider)}({self.value(a, type_)}) * {_c_type(wider)}({self.value(b, type_)}))"
        return self._set(to, wider, f"{product} + {self._wide(c, wider)}")

    def _popc(self, _: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        return self._set(operands[0], "u32", f"__builtin_popcountll({self.value(operands[1], _unsigned(type_))})")

    def _clz(self, _: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        bits = bits_of(type_)
        word = self._wide(operands[1], _unsigned(type_))
        return self._set(operands[0], "u32", f"{word} ? __builtin_clzll({word}) - {64 - bits} : {bits}")

    def _bfind(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        if modifiers != ["shiftamt"] or type_ != "u32":
            raise UnknownPtxError("search")
        word = self.value(operands[1], type_)
        return self._set(operands[0], "u32", f"{word} ? uint32_t(__builtin_clz({word})) : ~0u")

    def _setp(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, a, b = (operands[0], *(self.value(x, type_) for x in operands[1:3]))
        forms = _COMPARE_FLOATS if type_ in _FLOATS else _COMPARE_INTEGERS
        found = forms[modifiers[0]].format(a=a, b=b)
        if len(modifiers) == 2:
            found = f"{found} {_LOGIC[modifiers[1]]} {self.value(operands[3], 'pred')}"
        return f"{self._name(to)} = {found};"

    def _cvt(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to_type = modifiers[-1]
        if {to_type, type_} & {*_FLOATS} and (type_ in _FLOATS or to_type not in _FLOATS or "rn" not in modifiers):
            raise UnknownPtxError("conversion")
        return self._set(operands[0], to_type, f"{_c_type(to_type)}({self.value(operands[1], type_)})")

    def _cvta(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, source = operands
        if modifiers == ["shared"]:
            return f"{self._name(to)} = shared_at(t, {self.value(source, 'u64')});"
        if modifiers not in (["to", "global"], ["global"]):
            raise UnknownPtxError("conversion")
        return self._set(to, "u64", self.value(source, "u64"))

    def _ld(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        space = next((m for m in modifiers if m in _SPACES), "generic")
        to = [part.strip() for part in operands[0].strip("{}").split(",")]
        address, stored = self._address(operands[1], space), _unsigned(f"u{bits_of(type_)}")
        kept = "u" if type_[0] in "fb" else type_[0]
        into = " ".join(
            f"{self._name(r)} = {_c_type(f'{kept}{bits_of(type_)}')}(q[{k}]);" for k, r in enumerate(to) if r != "_"
        )
        array = f"{_c_type(stored)} q[{len(to)}];"
        if space == "param":
            return f"{array} std::memcpy(q, {address}, sizeof q); {into}"
        return f"{array} load(t, {address}, q, {_strong(modifiers)}, {self._site(each)}); {into}"

    def _st(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        space, stored = next((m for m in modifiers if m in _SPACES), "generic"), f"u{bits_of(type_)}"
        values = [self._bits(part.strip(), stored) for part in operands[1].strip("{}").split(",")]
        address = self._address(operands[0], space)
        array = f"const {_c_type(stored)} q[] = {{{', '.join(values)}}};"
        return f"{array} store(t, {address}, q, {_strong(modifiers)}, {self._site(each)});"

    def _bits(self, text: str, type_: str) -> str:
        return f"{_c_type(type_)}(0x{text[2:]}u)" if text.startswith(("0f", "0d")) else self.value(text, type_)

    def _atom(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, address, *values = operands
        call = self._atomic(modifiers, address, values, type_, each)
        return f"{call};" if to == "_" else self._set(to, _unsigned(type_), call)

    def _red(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        return f"{self._atomic(modifiers, operands[0], operands[1:], type_, each)};"

    def _atomic(self, modifiers: list[str], address: str, values: list[str], type_: str, each: Instruction) -> str:
        kind = next(m for m in modifiers if m in _ATOMIC)
        space = next((m for m in modifiers if m in _SPACES), "generic")
        given = ", ".join(self.value(v, type_) for v in values)
        where = f"{self._address(address, space)}, {self._site(each)}"
        return f"atomic_{kind}<{_c_type(type_)}>(t, {where}, {given})"

    def _bar(self, modifiers: list[str], operands: list[str], _: str, each: Instruction) -> str:
        if "warp" in modifiers:
            return f"wait_for_lanes(t, {self.value(operands[0], 'u32')}, {self._site(each)});"
        if operands != ["0"]:
            raise UnknownPtxError("barrier")
        return f"wait_for_block(t, {self._site(each)});"

    def _shfl(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        to, _, found = operands[0].partition("|")
        given = ", ".join(self.value(x, "u32") for x in operands[1:])
        call = f"bool in_range; const uint32_t got = shuffle(t, Shuffle::{modifiers[1]}, {given}, in_range, {self._site(each)});"
        tell = f" {self._name(found)} = in_range;" if found else ""
        return f"{call} {self._set(to, 'u32', 'got')}{tell}"

    def _vote(self, modifiers: list[str], operands: list[str], type_: str, each: Instruction) -> str:
        mask = self.value(operands[2], "u32")
        call = f"ballot(t, {self.value(operands[1], 'pred')}, {mask}, {self._site(each)})"
        if modifiers[1] == "all":
            call = f"{call} == {mask}"
        elif modifiers[1] == "any":
            call = f"{call} != 0"
        return f"{self._name(operands[0])} = {call};"


def _strong(modifiers: list[str]) -> str:
    return "true" if {"volatile", "relaxed"} & {*modifiers} else "false"


# --- instructions that are one value of their type: (translator, modifiers, operands, type) -> C++


def _arithmetic(sign: str):
    def one(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
        if type_ in _FLOATS:
            return f"{tr.value(o[1], type_)} {sign} {tr.value(o[2], type_)}"
        return f"{tr._wide(o[1], type_)} {sign} {tr._wide(o[2], type_)}"

    return one


def _quotient(sign: str):
    """Of integers, where none is said to be 0, or of floats."""

    def one(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
        if (type_ in _FLOATS) != (modifiers == ["rn"]):
            raise UnknownPtxError("quotient")
        return f"{tr.value(o[1], type_)} {sign} {tr.value(o[2], type_)}"

    return one


def _reciprocal(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
    if modifiers != ["rn"]:
        raise UnknownPtxError("quotient")
    return f"{_c_type(type_)}(1) / {tr.value(o[1], type_)}"


def _bitwise(sign: str):
    def one(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
        return f"{tr.value(o[1], _unsigned(type_))} {sign} {tr.value(o[2], _unsigned(type_))}"

    return one


def _shift(tr: Translator, modifiers: list[str], o: list[str], type_: str, *, left: bool) -> str:
    by, bits = tr.value(o[2], "u32"), bits_of(type_)
    if left:
        return f"{by} >= {bits} ? 0 : {tr._wide(o[1], _unsigned(type_))} << {by}"
    if is_signed(type_):
        return f"{tr.value(o[1], type_)} >> ({by} >= {bits} ? {bits - 1} : {by})"
    return f"{by} >= {bits} ? 0 : {tr._wide(o[1], _unsigned(type_))} >> {by}"


def _not(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
    return f"{'!' if type_ == 'pred' else '~'}{tr.value(o[1], _unsigned(type_))}"


def _choice(name: str):
    def one(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
        if type_ in _FLOATS:  # NaN and the sign of 0 have rules of their own there
            raise UnknownPtxError("choice")
        return f"std::{name}<{_c_type(type_)}>({tr.value(o[1], type_)}, {tr.value(o[2], type_)})"

    return one


def _select(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
    return f"{tr.value(o[3], 'pred')} ? {tr.value(o[1], _unsigned(type_))} : {tr.value(o[2], _unsigned(type_))}"


def _call(function: str, *types: str):
    """A function of simt.h; the types of its operands, "" for the instruction's."""

    def one(tr: Translator, modifiers: list[str], o: list[str], type_: str) -> str:
        given = ", ".join(tr.value(x, own or type_) for x, own in zip(o[1:], types, strict=True))
        return f"{function}({given})"

    return one


_ONE = {
    "add": _arithmetic("+"),
    "sub": _arithmetic("-"),
    "div": _quotient("/"),
    "rem": _quotient("%"),
    "rcp": _reciprocal,
    "neg": lambda tr, modifiers, o, type_: f"0 - {tr._wide(o[1], type_)}",
    "and": _bitwise("&"),
    "or": _bitwise("|"),
    "xor": _bitwise("^"),
    "not": _not,
    "shl": lambda *given: _shift(*given, left=True),
    "shr": lambda *given: _shift(*given, left=False),
    "min": _choice("min"),
    "max": _choice("max"),
    "selp": _select,
    "brev": _call("reversed_bits", "u32"),
    "bfi": _call("insert_bits", "", "", "u32", "u32"),
    "bfe": _call("extract_bits", "", "u32", "u32"),
    "prmt": _call("permute_bytes", "u32", "u32", "u32"),
}
