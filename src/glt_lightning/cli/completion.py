"""``glt-lightning completion bash``: prints a script that completes subcommands, options and the names of classes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress

from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import StrategyRegistry

from glt_lightning.cli.messages import OneLineParser
from glt_lightning.cli.subcommands import TOOLS, class_names

_PROGRAM = "glt-lightning"  # a shell completes the words behind the name of a program, so not `python -m lightning`
_OPTION = re.compile(r"^ +(?:-\w(?: [\w.]+)?, )?(--[\w.]+)", re.MULTILINE)
_SCRIPT = """\
# Completion of {program} for bash; in zsh, after: autoload -U +X bashcompinit && bashcompinit
_glt_lightning() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" known=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{subcommands} --help --version" -- "$word"))
        return
    fi
    case "$before" in
{values}
    esac
    if [ -n "$known" ]; then
        COMPREPLY=($(compgen -W "$known" -- "$word"))
        return
    fi
    case "$word" in
        -*) ;;
        *) COMPREPLY=($(compgen -f -- "$word")); return ;;
    esac
    case "${{COMP_WORDS[1]}}" in
{options}
    esac
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o filenames -F _glt_lightning {program}
"""


def run_completion(argv: Sequence[str], prog: str) -> None:
    """Runs the subcommand to its end."""
    from glt_lightning.cli.command_line import run_trainer

    parser = OneLineParser(prog=prog, description=f"Prints a script that completes the words after {_PROGRAM}.")
    parser.add_argument("shell", choices=["bash", "zsh"], help="bash: source <(glt-lightning completion bash).")
    parser.parse_args(list(argv))
    pages: dict[str, str] = {}
    for name in (*LightningCLI.subcommands(), "embed", "recommend", "deploy", "replay"):
        pages[name] = _page(lambda name=name: run_trainer([name, "--help"]))  # type: ignore[misc]
        for group in ("data", "model"):
            for kind in class_names(group):
                pages[name] += _page(lambda *_, a=[name, f"--{group}.help", kind]: run_trainer(a))
    for name, tool in TOOLS.items():
        pages[name] = "" if name == "completion" else _page(lambda t=tool: t.run(["--help"], prog))  # type: ignore[misc]
    print(completion_script({name: options_of(page) for name, page in pages.items()}), end="")


def completion_script(options: Mapping[str, Sequence[str]]) -> str:
    """Returns the script. options: options of each subcommand."""
    values = {
        "--trainer.strategy": ["auto", *StrategyRegistry.available_strategies()],
        **{f"--{group}": class_names(group) for group in ("data", "model")},
        **{f"--{group}.help": class_names(group) for group in ("data", "model")},
    }
    return _SCRIPT.format(
        program=_PROGRAM,
        subcommands=" ".join(options),
        values="\n".join(f'        {name}) known="{" ".join(each)}" ;;' for name, each in values.items()),
        options="\n".join(f'        {name}) known="{" ".join(each)}" ;;' for name, each in options.items()),
    )


def options_of(page: str) -> list[str]:
    """Finds the options in a help page."""
    return list(dict.fromkeys(_OPTION.findall(page)))


def _page(show: Callable[[], None]) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        show()
    return shown.getvalue()
