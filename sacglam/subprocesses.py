"""Starts other Python processes with this one's module path, and no other folders."""

import os
import sys


def python(*arguments: str) -> list[str]:
    """A command that runs this interpreter.

    Without `-P`, Python puts the working directory before its own modules for `-m` and `-c`, and a file there that is
    called json.py would run.
    """
    return [sys.executable, "-P", *arguments]


def searches_working_directory() -> bool:
    """Whether this process searches the working directory for modules: through `python -m`, say, or PYTHONPATH."""
    return os.getcwd() in map(os.path.abspath, sys.path)


def environment(**changes: str) -> dict[str, str]:
    """This process's environment for a command of `python`, which then finds modules where this process does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **changes}
