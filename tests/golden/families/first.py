"""The models of the first families. Their configurations are as transformers 4.46.3 and 5.24.0 saved them;
their weights follow from their places in this table."""

import transformers

from .model import EPSILON, Golden, N_TOKENS, VOCAB

SIZES = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             bos_token_id=1, eos_token_id=2)
LLAMA_LIKE = dict(SIZES, num_key_value_heads=2, intermediate_size=40, max_position_embeddings=256,
                  rms_norm_eps=EPSILON)
FALCON = dict(SIZES, ffn_hidden_size=40, max_position_embeddings=256, layer_norm_epsilon=EPSILON,
              alibi=False)
# With rope_theta 1e4 and heads of 16 channels the wavelengths are 6, 20, 63, 199, ... positions: one
# kept, two blended, the rest stretched.
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
LONGROPE = dict(type="longrope", short_factor=[1 + 0.1 * i for i in range(8)],
                long_factor=[1.5 + 0.9 * i for i in range(8)])

# Made when they are asked for: not every version of transformers has all of them.
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**LLAMA_LIKE, head_dim=16, rope_theta=10000.0,
                                              rope_scaling=LLAMA3_ROPE),
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA_LIKE, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**LLAMA_LIKE, head_dim=16, sliding_window=21),
    "phi3": lambda: transformers.Phi3Config(**LLAMA_LIKE, pad_token_id=0, sliding_window=33),
    "phi3_longrope": lambda: transformers.Phi3Config(**dict(LLAMA_LIKE, num_key_value_heads=1),
                                                     pad_token_id=0, rope_scaling=LONGROPE,
                                                     original_max_position_embeddings=64),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_inner=40,
                                            n_positions=N_TOKENS, layer_norm_epsilon=EPSILON, bos_token_id=1,
                                            eos_token_id=2),
    "falcon_7b": lambda: transformers.FalconConfig(**FALCON),
    "falcon_40b": lambda: transformers.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon_11b": lambda: transformers.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2,
                                                    num_ln_in_parallel_attn=1, tie_word_embeddings=False),
    "falcon_sequential": lambda: transformers.FalconConfig(**FALCON, multi_query=False, parallel_attn=False,
                                                           bias=True),
    "qwen3": lambda: transformers.Qwen3Config(**LLAMA_LIKE, head_dim=32, tie_word_embeddings=True),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **dict(LLAMA_LIKE, num_hidden_layers=4), head_dim=32, query_pre_attn_scalar=20, sliding_window=21,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e6),
                             sliding_attention=dict(rope_type="default", rope_theta=1e4))),
}
MODELS = {name: Golden(config, lengths=(48, N_TOKENS) if name == "phi3_longrope" else (N_TOKENS,),
                       reloads=False) for name, config in MODELS.items()}
