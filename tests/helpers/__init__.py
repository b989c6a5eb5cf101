"""What several tests share: `run` starts programs, `family` finds what they started, `leaks` is the leak police."""

from tests.helpers.run import Run, run_cli, run_script, started

__all__ = ["Run", "run_cli", "run_script", "started"]
