"""What an environment returns, as plain Python: texts, lists of texts, numbers and flags."""

import reprlib
from collections.abc import Iterable, Set
from itertools import islice
from typing import Any

_MOST_TEXTS = 1_000_000
_STR = {str}
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxtuple = _SHORT.maxlist = 20


class Unmet(Exception):
    """An answer is not what the contract says; the message continues `expected ...`."""


def shown(value: Any) -> str:
    """The value for a message: its `repr`, shortened."""
    return _SHORT.repr(value)


def text(found: Any, what: str) -> str:
    """A str, with numpy's and other subclasses converted to plain ones.

    Raises:
        Unmet: it is not a str, or UTF-8 cannot represent it, so that neither a tokenizer nor a file can take it.
    """
    if not isinstance(found, str):
        raise Unmet(f"{what} as a str, got {shown(found)}")
    try:
        found.isascii() or found.encode()
    except UnicodeEncodeError as error:
        raise Unmet(f"{what} as valid Unicode, got a lone surrogate at {error.start} of {shown(found)}") from None
    return found if type(found) is str else str.__str__(found)


def texts(found: Any, what: str) -> tuple[str, ...]:
    """The texts of any ordered iterable.

    Raises:
        Unmet: it is a set, whose order differs between processes; or a str, which is a sequence of letters; or it
            does not consist of texts.
    """
    if type(found) is tuple and {*map(type, found)} <= _STR and "".join(found).isascii():
        return found
    if isinstance(found, (str, bytes, Set)) or not isinstance(found, Iterable):
        raise Unmet(f"{what} as a tuple of str, in a fixed order; got {shown(found)}")
    given = tuple(text(each, f"each of {what}") for each in islice(found, _MOST_TEXTS + 1))
    if len(given) > _MOST_TEXTS:
        raise Unmet(f"{what} as at most {_MOST_TEXTS:,} texts, got more")
    return given


def number(found: Any, what: str) -> int | float:
    """An int or a float; numpy's numbers, and arrays of one element, become these.

    Raises:
        Unmet: it is not a number, or is several.
    """
    if type(found) is float:
        return found
    try:
        plain = found if isinstance(found, (int, float)) else found.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        plain = None
    if not isinstance(plain, (int, float)):
        raise Unmet(f"{what} as a number, got {shown(found)}")
    return plain


def flag(found: Any, what: str) -> bool:
    """A bool; 0, 1 and numpy's become one.

    Raises:
        Unmet: it is anything else.
    """
    if type(found) is bool:
        return found
    value = number(found, what)
    if value not in (0, 1):
        raise Unmet(f"{what} as True or False, got {shown(found)}")
    return bool(value)


def length(found: Any, what: str) -> int | None:
    """A whole number of at least 0, or None.

    Raises:
        Unmet: it is neither.
    """
    if found is None:
        return None
    value = number(found, what)
    if isinstance(value, bool) or not 0 <= value < float("inf") or value != int(value):
        raise Unmet(f"{what} as an int of at least 0, or None without a planner; got {shown(found)}")
    return int(value)
