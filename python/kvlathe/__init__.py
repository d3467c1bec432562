"""Language models on a compressed key/value cache.

    import kvlathe

    llm = kvlathe.LLM("model.gguf", kv="lathe(ratio=8)")
    print(llm.generate("Once upon a time")[0].text)
"""

from kvlathe import _native
from kvlathe._notes import KvlatheWarning
from kvlathe.comparison import Comparison, ComparisonRow, Profile
from kvlathe.errors import KvlatheError
from kvlathe.llm import LLM
from kvlathe.outputs import CompletionOutput, Cost, Logprob, Piece, RequestOutput, Score
from kvlathe.sampling_params import SamplingParams
from kvlathe.session import Session

__version__ = _native.version

__all__ = [
    "LLM",
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
