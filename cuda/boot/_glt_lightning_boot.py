"""Gives ``python -m lightning`` a program as long as Lightning has none of its own (docs/configuration.md has its costs).

Python runs this file at start-up, before anything else: through ``glt_lightning_main.pth``, from Python 3.15 on through
``glt_lightning_main.start`` (PEP 829). So it imports nothing but `sys`, and no failure of it may reach the user.
"""

import sys

_PROGRAMS = ("lightning", "lightning.__main__")  # the second is how Lightning's launcher starts further ranks
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python that take the next word


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


class LightningShellFinder:
    """Finds ``lightning`` as a package whose code is not run, as that imports torch, before our program has begun. Asked first;
    finds nothing where Lightning has a program of its own. `reveal` ends it."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != "lightning":
            return None
        from importlib.machinery import ModuleSpec, PathFinder

        real = PathFinder.find_spec(fullname)
        folders = real and real.submodule_search_locations
        if not folders or PathFinder.find_spec("lightning.__main__", folders) is not None:
            return None
        shell = ModuleSpec(fullname, None, is_package=True)
        shell.submodule_search_locations = folders
        return shell


def install():
    """Adds the finders, once, when the command line names Lightning (a ``.start`` file cannot ask that beforehand)."""
    words = sys.orig_argv[1:]
    if "lightning" not in " ".join(words) or LightningMainFinder in sys.meta_path:
        return
    sys.meta_path.append(LightningMainFinder)
    if _program(words) in _PROGRAMS:
        sys.meta_path.insert(0, LightningShellFinder)


def reveal():
    """Has the next import of ``lightning`` find the real package."""
    if LightningShellFinder in sys.meta_path:
        sys.meta_path.remove(LightningShellFinder)
        if getattr(sys.modules.get("lightning"), "__file__", None) is None:
            sys.modules.pop("lightning", None)


def _program(words):
    """The module that Python was told to run; None where it runs something else."""
    words = iter(words)
    for word in words:
        if word == "-m":
            return next(words, None)
        if word in _WITH_VALUE:
            next(words, None)
        elif word in ("-", "-c") or not word.startswith("-"):
            return None
    return None


install()
