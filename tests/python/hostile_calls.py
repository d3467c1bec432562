"""Batches of hostile calls, and what writes down what becomes of them (hostile_test.py)."""

import faulthandler
import json
import os
import pathlib
from collections.abc import Callable
from typing import IO, Any

# AddressSanitizer of GCC 12 leaves the locks of its allocator as they are in a child of fork, where a thread that begins may
# wait for one of them for good.
IS_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
# A single call that takes longer hangs.
CALL_SECONDS = 100


class Calls:
    """Makes calls and writes a line before and after each."""

    def __init__(self, record: IO[str]) -> None:
        self._record = record

    def _write(self, **line: Any) -> None:
        self._record.write(json.dumps(line) + "\n")
        self._record.flush()

    def refused(self, call: str, function: Callable[[], Any]) -> None:
        """A call that has to raise."""
        self._make(call, function, is_refused=True)

    def survived(self, call: str, function: Callable[[], Any]) -> None:
        """A call that may raise or not."""
        self._make(call, function, is_refused=False)

    def _make(self, call: str, function: Callable[[], Any], is_refused: bool) -> None:
        self._write(call=call)
        faulthandler.dump_traceback_later(CALL_SECONDS, exit=True)
        line: dict[str, Any] = {"call": call, "has_ended": True, "is_refused": is_refused}
        try:
            function()
        except Exception as error:  # noqa: BLE001 - hostile_test.py says which are clear
            line |= {"error": type(error).__name__, "message": str(error)}
        except KeyboardInterrupt as error:
            line |= {"error": "KeyboardInterrupt", "message": f"KeyboardInterrupt {error}"}
        faulthandler.cancel_dump_traceback_later()
        self._write(**line)


Batch = Callable[[Calls, pathlib.Path], None]
BATCHES: dict[str, Batch] = {}


def batch(function: Batch) -> Batch:
    """Each batch is a process of its own, which gets the folder of a model."""
    BATCHES[function.__name__] = function
    return function
