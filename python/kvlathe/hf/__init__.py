"""Compressed caches in Hugging Face transformers.

    import kvlathe.hf

    cache = kvlathe.hf.LatheCache(model, "lathe(ratio=8)", basis="model.basis.safetensors")
    model.generate(**inputs, past_key_values=cache)
    print(cache.nbytes, cache.fraction)

`LatheCache` keeps the rows of attention as the bytes of a spec, and attention reads those bytes.
`press` makes such a cache for every call of `generate` within it, and `calibrate` captures queries,
keys and values of a model for methods that learn from them. docs/python/hf.md has the rest.
"""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"kvlathe.hf needs torch and transformers, and {error.name} is not there; pip install torch transformers"
    ) from error

from kvlathe.hf.cache import LatheCache
from kvlathe.hf.calibration import calibrate
from kvlathe.hf.pressing import Pressed, press

__all__ = ["LatheCache", "Pressed", "calibrate", "press"]
