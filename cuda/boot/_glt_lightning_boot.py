"""Gives ``python -m lightning`` a program as long as Lightning has none of its own.

Python runs this file at start-up, before anything else: through ``glt_lightning_main.pth``, from Python 3.15 on through
``glt_lightning_main.start`` (PEP 829). So it imports nothing but `sys`, and no failure of it may reach the user.
"""

import sys


class LightningMainFinder:
    """Finds ``lightning.__main__``, which is ours. Asked last of all finders, so that Lightning's own, if any, wins."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != "lightning.__main__":
            return None
        from importlib.util import find_spec, spec_from_file_location

        try:
            ours = find_spec("glt_lightning.__main__")
        except ImportError:
            return None
        # Under Lightning's name: its launcher starts further ranks as `python -m <name of the main module>`.
        return spec_from_file_location(fullname, ours.origin) if ours and ours.origin else None


def install():
    """Adds the finder, once, when the command line names Lightning (a ``.start`` file cannot ask that beforehand)."""
    if "lightning" in " ".join(sys.orig_argv[1:]) and LightningMainFinder not in sys.meta_path:
        sys.meta_path.append(LightningMainFinder)


install()
