"""A notebook, or another interactive session, is one rank: a further one is a process that runs the whole program again."""

from __future__ import annotations

from lightning.fabric.utilities import imports

from glt_lightning.base import OptionError


def in_notebook() -> bool:
    """Whether the program is typed in while it runs, so that no second process can run it."""
    return bool(imports._IS_INTERACTIVE)


def check_ranks(ranks: int) -> None:
    """Raises `OptionError` for more than one rank in a notebook."""
    if ranks > 1 and in_notebook():
        raise OptionError(
            f"devices: {ranks} ranks cannot train from a notebook, because each of them runs the whole program. Take "
            "devices=1 here, or write the cells into a file, under `if __name__ == '__main__':`, and run `python train.py`; "
            f"with a configuration: `python -m lightning fit --config run.yaml --trainer.devices {ranks}`."
        )
