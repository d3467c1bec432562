"""Bars of tqdm, where they are asked for."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator

from kvlathe import _native


@contextlib.contextmanager
def progress_bar(total: int, what: str, use_tqdm: bool) -> Iterator[Callable[..., None] | None]:
    """What tells a bar how many are done, and perhaps their tokens; None without a bar."""
    if not use_tqdm:
        yield None
        return
    tqdm = importlib.import_module("tqdm.auto").tqdm

    with tqdm(total=total, desc=what, dynamic_ncols=True) as bar:

        def show(n_done: int, n_tokens: int | None = None) -> None:
            if n_tokens is not None:
                bar.set_postfix(tokens=n_tokens, refresh=False)
            bar.update(n_done - bar.n)

        yield show
        bar.update(total - bar.n)


@contextlib.contextmanager
def told_of(model: _native.Model, use_tqdm: bool) -> Iterator[None]:
    """A bar of what the library works at."""
    if not use_tqdm:
        yield
        return
    tqdm = importlib.import_module("tqdm.auto").tqdm

    with tqdm(total=100, dynamic_ncols=True, bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}") as bar:

        def show(what: str, share: float) -> None:
            bar.set_description_str(what, refresh=False)
            bar.n = 100 * share
            bar.refresh()

        model.set_on_progress(show)
        try:
            yield
        finally:
            model.set_on_progress(None)
