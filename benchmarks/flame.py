"""A flame graph of where a run's time went, from stacks that py-spy recorded.

    py-spy record --subprocesses --native --format raw -o run.txt -- python -m lightning fit --config ...
    python benchmarks/flame.py run.txt docs/run.svg

A frame is as wide as the share of samples, of all threads that were at work, in which it was on the stack: callers below. Left
out are frames of less than 0.6 % of the samples, of the import system, and without a name, and threads of Python that wait. A
tool tip has the whole name.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from html import escape
from pathlib import Path

_WIDTH, _ROW, _LETTER, _LEAST = 1000.0, 13, 5.4, 0.006
_HIDDEN = re.compile(r"0x|.*<frozen |_call_with_frames_removed|\S* ?\(\S*\.so\S*\)$|clone3?\b|start_thread\b")
_WAITING = ("Condition.wait ", "_queue_SimpleQueue")
_COLOURS = (  # by what the place of a frame contains; the first that fits
    ("glt_lightning", "#c9b6f2"),
    ("lightning", "#f3c6dc"),
    ("torch_geometric", "#f6d6a8"),
    ("torch", "#f4e3a1"),
    ("libgomp", "#f2a9a0"),
    ("", "#d9d9e2"),
)


def frames_of(line: str) -> list[str]:
    """The frames of a line of py-spy, callers first, without numbers of lines."""
    frames = []
    for frame in line.split(";"):
        if frame.startswith("process "):
            name = "a process beside it" if frames else "the command"
        elif _HIDDEN.match(frame):
            continue
        else:
            name = re.sub(r":\d+\)$", ")", frame)
        if not frames or frames[-1] != name:
            frames.append(name)
    return frames


def draw(stacks: Counter[tuple[str, ...]]) -> str:
    """Makes the SVG."""
    whole: Counter[tuple[str, ...]] = Counter()
    for stack, number in stacks.items():
        for depth in range(len(stack)):
            whole[stack[: depth + 1]] += number
    scale = _WIDTH / sum(stacks.values())
    kept = {stack for stack, number in whole.items() if number * scale >= _LEAST * _WIDTH}
    height = _ROW * max(len(stack) for stack in kept)
    begins: dict[tuple[str, ...], float] = {}
    at: Counter[tuple[str, ...]] = Counter()  # where the next child of a frame begins
    parts = []
    for stack in sorted(kept, key=lambda stack: (len(stack), -whole[stack], stack)):
        parent, wide = stack[:-1], whole[stack] * scale
        begins[stack] = x = begins.get(parent, 0.0) + at[parent] * scale
        at[parent] += whole[stack]
        y, name = height - _ROW * len(stack), stack[-1]
        colour = next(colour for part, colour in _COLOURS if part in name)
        parts.append(f'<g><title>{escape(name)} {100 * wide / _WIDTH:.1f} %</title><rect x="{x:.1f}" y="{y}" ')
        parts.append(f'width="{wide - 0.4:.1f}" height="{_ROW - 1}" fill="{colour}"/>')
        if letters := int((wide - 4) / _LETTER):
            shown = re.sub(r"\(\S*?(\w+(\.\w+)?)\)$", r"(\1)", name)
            shown = shown if len(shown) <= letters else shown[: max(0, letters - 1)] + "…"
            parts.append(f'<text x="{x + 2:.1f}" y="{y + 9}">{escape(shown)}</text>' if letters > 2 else "")
        parts.append("</g>")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height}" font-family="monospace" font-size="9">'
    return f'{head}<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'


def main() -> None:
    recorded, drawn = sys.argv[1:]
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in Path(recorded).read_text().splitlines():
        frames, _, number = line.rpartition(" ")
        if any(wait in frames for wait in _WAITING):
            continue
        stacks[tuple(frames_of(frames))] += int(number)
    Path(drawn).write_text(draw(stacks))


if __name__ == "__main__":
    main()
