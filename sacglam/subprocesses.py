"""Starts other Python processes with this one's module path, and no other folders."""

import os
import sys


def python(*arguments: str) -> list[str]:
    """A command that runs this interpreter.

    Without `-P`, `python -m` and `python -c` search the working directory before Python's own modules, so a json.py
    there would run.
    """
    return [sys.executable, "-P", *arguments]


def searches_working_directory() -> bool:
    """Whether this process searches the working directory for modules: through `python -m`, say, or PYTHONPATH."""
    return os.getcwd() in map(os.path.abspath, sys.path)


def environment(**changes: str) -> dict[str, str]:
    """This process's environment variables for a command from `python`, which then finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **changes}
