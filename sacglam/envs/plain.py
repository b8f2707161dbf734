"""What an environment returns, as plain Python: texts, lists of texts, numbers and flags; or `Unmet`."""

import reprlib
from collections.abc import Iterable, Set
from itertools import islice
from typing import Any

_MOST_TEXTS = 1_000_000
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxtuple = _SHORT.maxlist = 20


class Unmet(Exception):
    """An answer is not what the contract says; the message continues `expected ...`."""


def shown(value: Any) -> str:
    """The value for a message: its `repr`, shortened."""
    return _SHORT.repr(value)


def text(found: Any, what: str) -> str:
    """A plain str that UTF-8 can represent, as tokenizers and files need."""
    if not isinstance(found, str):
        raise Unmet(f"{what} as a str, got {shown(found)}")
    try:
        found.isascii() or found.encode()
    except UnicodeEncodeError as error:
        raise Unmet(f"{what} as valid Unicode, got a lone surrogate at {error.start} of {shown(found)}") from None
    return str.__str__(found)


def texts(found: Any, what: str) -> tuple[str, ...]:
    """The texts of any iterable, other than a set, whose order differs between processes, or a str of letters."""
    if type(found) is tuple and {*map(type, found)} <= {str} and "".join(found).isascii():
        return found
    if isinstance(found, (str, bytes, Set)) or not isinstance(found, Iterable):
        raise Unmet(f"{what} as a tuple of str, in a fixed order; got {shown(found)}")
    given = tuple(text(each, f"each of {what}") for each in islice(found, _MOST_TEXTS + 1))
    if len(given) > _MOST_TEXTS:
        raise Unmet(f"{what} as at most {_MOST_TEXTS:,} texts, got more")
    return given


def number(found: Any, what: str) -> int | float:
    """An int or a float; numpy's numbers, and arrays of one element, become these."""
    try:
        plain = found if isinstance(found, (int, float)) else found.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        plain = None
    if not isinstance(plain, (int, float)):
        raise Unmet(f"{what} as a number, got {shown(found)}")
    return plain


def flag(found: Any, what: str) -> bool:
    """A bool; 0, 1 and numpy's become one."""
    if type(found) is bool:
        return found
    value = number(found, what)
    if value not in (0, 1):
        raise Unmet(f"{what} as True or False, got {shown(found)}")
    return bool(value)


def length(found: Any) -> int | None:
    """A whole number of at least 0, or None."""
    value = None if found is None else number(found, "a length")
    if value is None:
        return None
    if isinstance(value, bool) or not 0 <= value < float("inf") or value != int(value):
        raise Unmet(f"a length as an int of at least 0, or None without a planner; got {shown(found)}")
    return int(value)
