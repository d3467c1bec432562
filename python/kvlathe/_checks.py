"""Arguments that have the wrong type, said in one line that names them."""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from kvlathe.errors import InvalidArgumentError

Path: TypeAlias = "str | os.PathLike[str]"


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


def integer_of(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """An integer, which True and 1.0 are not, of a range where one is given."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {type(value).__name__}; give an integer")
    number = int(value)
    if (least is not None and number < least) or (most is not None and number > most):
        raise InvalidArgumentError(f"{name} is {number}; give an integer from {least} to {most}")
    return number


def int32_of(name: str, value: Any) -> int:
    """An integer of 32 bits; what it may be, the library says."""
    return integer_of(name, value, -(2**31), 2**31 - 1)


def number_of(name: str, value: Any) -> float:
    """A number of Python or of NumPy."""
    if isinstance(value, (bool, str)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{name} is {type(value).__name__}; give a number")
    return float(value)


def array_of(name: str, value: Any) -> Any:
    """Anything but None; whether it is an array or bytes, the compiled part says."""
    if value is None:
        raise TypeError(f"{name} is None, and has to be there")
    return value


def count_of(name: str, value: int | None, most: int = 2**31 - 1) -> int:
    """A number of at least 1, or 0 for None."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgumentError(f"{name} is {value!r}; give an integer from 1 on")
    return value
