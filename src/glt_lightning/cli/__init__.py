"""The command line: ``python -m lightning``, its subcommands of training, and ours beside them (``partition``,
``embed``, ``launch``, ...).

It is the outermost package and uses the public names of all others. `GLTCLI` is Lightning's command line, with our data module,
strategies and callbacks available by short names; an error becomes one line that says what to do.

Example:
    >>> from glt_lightning.cli import GLTCLI
    >>> GLTCLI.__name__
    'GLTCLI'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glt_lightning.base import lazy_names

if TYPE_CHECKING:
    from glt_lightning.cli.command_line import (
        GLTCLI as GLTCLI,
        main as main,
    )
    from glt_lightning.cli.process import (
        command_process as command_process,
        without_collections as without_collections,
    )
    from glt_lightning.cli.program import quick_answer as quick_answer
    from glt_lightning.cli.server_status import (
        asks_a_server as asks_a_server,
        run_question as run_question,
    )


__all__ = ["GLTCLI", "main"]

__getattr__, __dir__ = lazy_names(__name__)
