"""The command line: ``python -m lightning`` and its subcommands."""

from glt_lightning.lightning.cli.command_line import GLTCLI, main

__all__ = ["GLTCLI", "main"]
