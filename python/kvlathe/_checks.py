"""Arguments that have the wrong type, said in one line that names them."""

from __future__ import annotations

from typing import Any

from kvlathe.errors import InvalidArgumentError


def text_of(name: str, value: Any) -> str:
    """A text, which is what the library takes as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}; give a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{name} is no text of Unicode: {error.reason} at {error.start}") from None
    return value


def maybe_text_of(name: str, value: Any) -> str | None:
    """The same, or None."""
    return None if value is None else text_of(name, value)


def flag_of(name: str, value: Any) -> bool:
    """True or False, of Python or of NumPy."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} is {type(value).__name__}; give True or False")
    return bool(value)


def integer_of(name: str, value: Any) -> int:
    """An integer, which True and 1.0 are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {type(value).__name__}; give an integer")
    return int(value)
