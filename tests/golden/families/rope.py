"""Golden models of the ways in which positions are scaled, each a Llama ("llama" itself has Llama 3.1's)."""

import transformers

from . import published
from .model import EPSILON, Golden, NARROW, N_TOKENS


def llama(lengths=(N_TOKENS,), max_positions=256, publish=published.older_rope, **rope):
    sizes = dict(NARROW, max_position_embeddings=max_positions)
    return Golden(lambda: transformers.LlamaConfig(**sizes, head_dim=16, rms_norm_eps=EPSILON,
                                                   tie_word_embeddings=True, rope_theta=10000.0,
                                                   rope_scaling=rope), publish, lengths)


# With these the ramp between kept and stretched wavelengths goes from channel 0.8 to 2 (truncated: 0 to 3).
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=1.0)
FACTORS = dict(short_factor=[1 + 0.1 * i for i in range(8)], long_factor=[1.5 + 0.9 * i for i in range(8)])

MODELS = {
    "llama_linear": llama(rope_type="linear", factor=3.0),
    # Another base for texts longer than 64 tokens.
    "llama_dynamic": llama((48, N_TOKENS), 64, rope_type="dynamic", factor=3.0),
    "llama_yarn": llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    "llama_yarn_factor": llama(**YARN, attention_factor=1.3),
    "llama_yarn_mscale": llama(**YARN, mscale=1.0, mscale_all_dim=0.6, publish=None),
    "llama_yarn_untruncated": llama(**YARN, truncate=False),
    "llama_longrope": llama((48, N_TOKENS), rope_type="longrope", factor=4.0,
                            original_max_position_embeddings=64, **FACTORS),
}
