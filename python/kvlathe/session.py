"""Sequences that go on: what was read and generated stays in its compressed cache."""

from __future__ import annotations

import os
from types import TracebackType

from kvlathe import _native


class Session:
    """A sequence between two requests (LLM.session, LLM.load_session).

    Each generate with it goes on behind all that came before, which is not read again. One request
    has it at a time.
    """

    def __init__(self, native: _native.Session, kv: str | None) -> None:
        self._native = native
        self._kv = kv

    @property
    def kv(self) -> str | None:
        """Its cache; None before the first request where none was named."""
        return self._native.kv or self._kv

    @property
    def token_ids(self) -> list[int]:
        """All of its tokens so far."""
        return self._native.token_ids

    @property
    def kv_bytes(self) -> int:
        """Bytes of its cache."""
        return self._native.kv_bytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keeps it in a file, as kvlathe run --save-session does."""
        self._native.save(os.fspath(path))

    def reset(self) -> None:
        """Forgets all tokens."""
        self._native.reset()

    def close(self) -> None:
        """Gives its cache back."""
        self._native.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
