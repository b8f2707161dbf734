"""Turns what an environment returns into plain texts, lists of texts, numbers and flags, or raises `Unmet`."""

import reprlib
from collections.abc import Iterable, Set
from itertools import islice
from typing import Any

_MAX_TEXTS = 1_000_000
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxtuple = _SHORT.maxlist = 20


class Unmet(Exception):
    """A return value violates the contract; the message continues `expected ...`."""


def shown(value: Any) -> str:
    """The value for a message: its `repr`, shortened."""
    return _SHORT.repr(value)


def text(returned: Any, what: str) -> str:
    """A plain str that UTF-8 can represent, as tokenizers and files need."""
    if not isinstance(returned, str):
        raise Unmet(f"{what} as a str, got {shown(returned)}")
    try:
        returned.isascii() or returned.encode()
    except UnicodeEncodeError as error:
        raise Unmet(f"{what} as valid Unicode, got a lone surrogate at {error.start} of {shown(returned)}") from None
    return str.__str__(returned)


def texts(returned: Any, what: str) -> tuple[str, ...]:
    """The texts of any iterable but a set, whose order varies between processes, and a str, which yields letters."""
    if type(returned) is tuple and {*map(type, returned)} <= {str} and "".join(returned).isascii():
        return returned
    if isinstance(returned, (str, bytes, Set)) or not isinstance(returned, Iterable):
        raise Unmet(f"{what} as a tuple of str, in a fixed order; got {shown(returned)}")
    values = tuple(text(each, f"each of {what}") for each in islice(returned, _MAX_TEXTS + 1))
    if len(values) > _MAX_TEXTS:
        raise Unmet(f"{what} as at most {_MAX_TEXTS:,} texts, got more")
    return values


def number(returned: Any, what: str) -> int | float:
    """An int or a float, converted from numpy's numbers and from arrays of one element."""
    try:
        plain = returned if isinstance(returned, (int, float)) else returned.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        plain = None
    if not isinstance(plain, (int, float)):
        raise Unmet(f"{what} as a number, got {shown(returned)}")
    return plain


def flag(returned: Any, what: str) -> bool:
    """A bool, converted from 0, 1 and numpy's booleans."""
    if type(returned) is bool:
        return returned
    value = number(returned, what)
    if value not in (0, 1):
        raise Unmet(f"{what} as True or False, got {shown(returned)}")
    return bool(value)


def whole(returned: Any, what: str) -> int | None:
    """A whole number of at least 0, or None."""
    if returned is None:
        return None
    value = number(returned, what)
    if isinstance(value, bool) or not 0 <= value < float("inf") or value != int(value):
        raise Unmet(f"{what} as an int of at least 0, or None if it is not known; got {shown(returned)}")
    return int(value)
