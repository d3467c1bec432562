"""A compressed cache for every call of generate within a context."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

from kvlathe.codec import Codec
from kvlathe.errors import InvalidArgumentError
from kvlathe.hf.cache import LatheCache, codec_for


class Pressed:
    """What `press` gives: the codec, and the cache of the latest call of generate."""

    def __init__(self, codec: Codec):
        self.codec = codec
        self.cache: LatheCache | None = None


@contextlib.contextmanager
def press(model: PreTrainedModel, kv: str | Codec, **options: Any) -> Iterator[Pressed]:
    """Has every `model.generate` within it run on a new LatheCache, that of a pipeline too.

        with kvlathe.hf.press(model, "snapkv(keep=0.5)") as pressed:
            model.generate(**inputs)
            print(pressed.cache.fraction)

    Arguments are those of LatheCache. A call that names a cache, or `use_cache=False`, keeps to it.
    """
    if not isinstance(model, PreTrainedModel) or not model.can_generate():
        raise InvalidArgumentError(f"press takes a model of transformers that generates, not {type(model).__name__}")
    pressed = Pressed(codec_for(model, kv, **options))
    generate = model.generate
    replaced = vars(model).get("generate")
    argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def generate_compressed(*args: Any, **kwargs: Any) -> Any:
        named = kwargs.get("cache") is not None or kwargs.get("past_key_values") is not None
        if not named and kwargs.get("use_cache") is not False:
            pressed.cache = kwargs[argument] = LatheCache(model, pressed.codec)
        return generate(*args, **kwargs)

    model.generate = generate_compressed
    try:
        yield pressed
    finally:
        if replaced is None:
            del model.generate
        else:
            model.generate = replaced
