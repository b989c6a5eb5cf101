"""``python -m lightning``, ``python -m glt_lightning`` and the script ``glt-lightning`` are this program."""

import sys

from glt_lightning.base import quick_answer


def main() -> None:
    """Runs the program with the words of this process, importing torch only for what needs it."""
    if (answer := quick_answer(sys.argv[1:])) is not None:
        print(answer)
        return
    if sys.argv[1:] == ["agent"]:  # starts on every host of a launched job, and must not wait for torch
        from glt_lightning.launch import main as run
    else:
        from glt_lightning.cli import main as run
    run()


if __name__ == "__main__":
    main()
