"""Language models on a compressed key/value cache.

    import kvlathe

    llm = kvlathe.LLM("model.gguf", kv="lathe(ratio=8)")
    print(llm.generate("Once upon a time")[0].text)
"""

from kvlathe._certificates import use_certificates as _use_certificates
from kvlathe._native import __version__
from kvlathe.errors import KvlatheError

_use_certificates()

__all__ = ["KvlatheError", "__version__"]
