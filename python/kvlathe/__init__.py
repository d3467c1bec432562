"""Language models on a compressed key/value cache.

    import kvlathe

    llm = kvlathe.LLM("model.gguf", kv="lathe(ratio=8)")
    print(llm.generate("Once upon a time")[0].text)
"""

from kvlathe._certificates import use_certificates as _use_certificates
from kvlathe._native import version as __version__
from kvlathe._notes import KvlatheWarning
from kvlathe.comparison import Comparison, ComparisonRow, Profile
from kvlathe.errors import KvlatheError
from kvlathe.llm import LLM
from kvlathe.outputs import ChatPrompt, CompletionOutput, Cost, Logprob, Piece, RequestOutput, Score
from kvlathe.sampling_params import SamplingParams
from kvlathe.session import Session

__all__ = [
    "LLM",
    "ChatPrompt",
    "Comparison",
    "ComparisonRow",
    "CompletionOutput",
    "Cost",
    "KvlatheError",
    "KvlatheWarning",
    "Logprob",
    "Piece",
    "Profile",
    "RequestOutput",
    "SamplingParams",
    "Score",
    "Session",
    "__version__",
]

_use_certificates()
