"""What the library has to say goes to warnings and to the logger kvlathe."""

from __future__ import annotations

import logging
import warnings

logger = logging.getLogger("kvlathe")
logger.addHandler(logging.NullHandler())


class KvlatheWarning(UserWarning):
    """What will probably not be what a person wants."""


def log_note(kind: str, text: str) -> None:
    """Warnings are KvlatheWarning; all else is logged, and nothing is printed."""
    if kind != "warning":
        logger.info(text)
        return
    try:
        warnings.warn(text, KvlatheWarning, stacklevel=3)
    except KvlatheWarning:  # where warnings are errors: work that has begun goes on
        logger.warning(text)
