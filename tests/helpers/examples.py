"""How many examples tests of Hypothesis try: a third of them in `make test`, all in `make test-all`."""

from __future__ import annotations

import os


def examples(most: int) -> int:
    return most if os.environ.get("GLT_TEST_EXAMPLES") == "all" else most // 3
