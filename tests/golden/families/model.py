"""What the tables of golden models are made of: sizes, and the record of one model."""

import dataclasses
from collections.abc import Callable
from typing import Any

VOCAB = 84
N_TOKENS = 80  # beyond a block of the cache (64) and every window of the tables
EPSILON = 3e-5  # no family's default

TOKENS = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2)
# Two heads for each head of keys, and more channels in the heads together than in a row.
SMALL = dict(TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, intermediate_size=40, max_position_embeddings=256)
# For families whose heads share the row out among themselves, and for variants of a model.
NARROW = dict(TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
              intermediate_size=40, max_position_embeddings=256)
# Heads of 32 channels, so that half a head is 16.
HALF_ROTARY = dict(TOKENS, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                   intermediate_size=32, max_position_embeddings=256)


@dataclasses.dataclass
class Golden:
    """A model of the tables. `config` makes the configuration of transformers; `publish` changes what
    transformers saves, the dictionary of config.json and the dictionary of tensors, to what the family's
    checkpoints have; `lengths` are those of the texts: a model whose positions depend on the length of
    the text has one of each kind. `reloads` says whether transformers reads the published form, which the
    generator then tries. `drawn` changes drawn weights, and `before` a model that is about to read a text of
    that many tokens."""

    config: Callable[[], Any]
    publish: Callable[[dict, dict], None] | None = None
    lengths: tuple[int, ...] = (N_TOKENS,)
    reloads: bool = True
    drawn: Callable[[Any], None] | None = None
    before: Callable[[Any, int], None] | None = None
