"""``python -m lightning``, ``python -m glt_lightning`` and the script ``glt-lightning`` are this program."""

from glt_lightning.lightning.cli.command_line import main

if __name__ == "__main__":
    main()
