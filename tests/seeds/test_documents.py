"""How code is read from documents, and the list of what is replaced in it."""

from __future__ import annotations

import pytest

from tests.seeds.documents import python_blocks
from tests.seeds.replacements import REPLACEMENTS, replaced

PAGE = """\
Text.

```
x = [1,
     2]
```

```
folder/
|-- file
```

```
>>> y = f(
    x,
    z=1
)
<an object>
>>> y[0]
1
```

In [1]:
import a

def f():
    return 1

Using it: none
## More

In [2]:
f()
"""


def test_python_is_found() -> None:
    assert python_blocks(PAGE) == [
        "x = [1,\n     2]\n",
        "y = f(\n    x,\n    z=1\n)\ny[0]\n",
        "import a\n\ndef f():\n    return 1\n",
        "f()\n",
    ]


def test_every_replacement_has_a_reason() -> None:
    assert [each for each in REPLACEMENTS if len(each.reason.split()) < 4] == []


def test_a_replacement_that_does_not_apply_fails() -> None:
    with pytest.raises(AssertionError, match="nothing to replace"):
        replaced("002", ["x = 1\n"])
