"""``python -m lightning``, ``python -m glt_lightning`` and the script ``glt-lightning`` are this program."""

import sys

if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:  # starts on every host of a launched job, and must not wait for torch
        from glt_lightning.launch.agent import main
    else:
        from glt_lightning.lightning.cli.command_line import main
    main()
