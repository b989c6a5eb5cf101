"""``python -m lightning``, ``python -m glt_lightning`` and the script ``glt-lightning`` are this program."""

import sys


def main() -> None:
    """Runs the program with the words of this process, importing torch only for what needs it."""
    try:
        _main()
    except KeyboardInterrupt:  # during the imports, which take seconds: a later one has an end of its own
        sys.exit(130)  # as a shell has it


def _main() -> None:
    from glt_lightning.cli import quick_answer

    # an editable installation may have the file of an earlier release, without it
    if (reveal := getattr(sys.modules.get("_glt_lightning_boot"), "reveal", None)) is not None:
        reveal()
    words = sys.argv[1:]
    if (answer := quick_answer(words)) is not None:
        print(answer)
        return
    from glt_lightning.cli import command_process, without_collections

    with command_process():
        with without_collections():
            from glt_lightning.cli import asks_a_server  # not before: its imports register functions for the end

            if words == ["agent"]:  # starts on every host of a launched job, and must not wait for torch
                from glt_lightning.launch import main as run
            elif asks_a_server(words):
                from glt_lightning.cli import run_question as run
            else:
                from glt_lightning.cli import main as run
        run()


if __name__ == "__main__":
    main()
