"""Golden models of dense families: the attention, norms and feed-forward networks that each has."""

import transformers

from . import published
from .model import EPSILON, Golden, HALF_ROTARY, NARROW, N_TOKENS, SMALL

RMS = dict(rms_norm_eps=EPSILON)
LAYER = dict(layer_norm_eps=EPSILON)
SLIDING, FULL = "sliding_attention", "full_attention"
# Four layers must be thin, so that the file stays small.
FOUR = dict(NARROW, num_hidden_layers=4)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
MINISTRAL_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32,
                      beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
# Hunyuan's files say "dynamic" and mean a base of theta * alpha^(d / (d - 2)), whatever the text.
HUNYUAN_ROPE = dict(rope_type="dynamic", alpha=50.0, factor=1.0, beta_fast=32, beta_slow=1, mscale=1.0,
                    mscale_all_dim=1.0)

MODELS = {
    "gemma": Golden(lambda: transformers.GemmaConfig(**dict(SMALL, num_key_value_heads=1), **RMS),
                    published.setting(hidden_act="gelu", hidden_activation=None)),
    "gemma2": Golden(lambda: transformers.Gemma2Config(
        **dict(SMALL, num_hidden_layers=3, num_key_value_heads=1, intermediate_size=32), **RMS, query_pre_attn_scalar=16,
        sliding_window=21, attn_logit_softcapping=5.0, final_logit_softcapping=10.0),
        published.dropping("layer_types")),
    # As the model of 27B: scores are divided by the root of another number than the channels of a head.
    "gemma2_scale": Golden(lambda: transformers.Gemma2Config(
        **dict(NARROW, num_hidden_layers=1), head_dim=16, **RMS, query_pre_attn_scalar=24, sliding_window=21,
        attn_logit_softcapping=5.0, final_logit_softcapping=10.0), published.dropping("layer_types")),
    "smollm3": Golden(lambda: transformers.SmolLM3Config(
        **FOUR, **RMS, rope_theta=5000.0, pad_token_id=0, no_rope_layers=[1, 1, 1, 0]),
        published.older_rope),
    "olmo2": Golden(lambda: transformers.Olmo2Config(**NARROW, **RMS)),
    "olmo3": Golden(lambda: transformers.Olmo3Config(
        # The base is the family's default: 5.24 gives it to sliding layers whatever rope_theta says.
        **FOUR, **RMS, sliding_window=21, rope_theta=500000.0,
        rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=32.0,
                          beta_slow=1.0, attention_factor=1.2079441541679836)), published.olmo3),
    "granite": Golden(lambda: transformers.GraniteConfig(
        **NARROW, **RMS, embedding_multiplier=6.0, attention_multiplier=0.17, residual_multiplier=0.7,
        logits_scaling=3.0, tie_word_embeddings=True)),
    # llama.cpp's converter knows no theta of a layer's own.
    "granite_swa": Golden(lambda: transformers.GraniteSWAConfig(
        **dict(NARROW, num_hidden_layers=4), **RMS, embedding_multiplier=6.0, attention_multiplier=0.17,
        residual_multiplier=0.7, logits_scaling=3.0, tie_word_embeddings=True, sliding_window=21)),
    "glm4": Golden(lambda: transformers.Glm4Config(
        **dict(SMALL, num_attention_heads=2, num_key_value_heads=1, head_dim=32), **RMS, pad_token_id=0),
        published.older_rope),
    "glm": Golden(lambda: transformers.GlmConfig(
        **dict(SMALL, num_attention_heads=2, num_key_value_heads=1, head_dim=16), **RMS, pad_token_id=0),
        published.older_rope),
    "cohere": Golden(lambda: transformers.CohereConfig(**NARROW, **LAYER, logit_scale=0.4), published.older_rope),
    "cohere_qk_norm": Golden(lambda: transformers.CohereConfig(
        **dict(NARROW, num_key_value_heads=2), **LAYER, logit_scale=0.4, use_qk_norm=True),
        published.older_rope),
    "cohere2": Golden(lambda: transformers.Cohere2Config(**FOUR, **LAYER, logit_scale=0.4, sliding_window=21),
                      published.setting("layer_types", "head_dim", sliding_window_pattern=4, rotary_pct=1.0)),
    "starcoder2": Golden(lambda: transformers.Starcoder2Config(**NARROW, norm_epsilon=EPSILON),
                         published.older_rope),
    "starcoder2_window": Golden(lambda: transformers.Starcoder2Config(
        **NARROW, norm_epsilon=EPSILON, sliding_window=21), published.older_rope),
    "stablelm": Golden(lambda: transformers.StableLmConfig(
        **dict(HALF_ROTARY, intermediate_size=16), **LAYER, partial_rotary_factor=0.5, use_qkv_bias=True),
        published.older_rope),
    # As the model of 12B.
    "stablelm_parallel": Golden(lambda: transformers.StableLmConfig(
        **dict(HALF_ROTARY, num_hidden_layers=1), **LAYER, partial_rotary_factor=0.5, qk_layernorm=True,
        use_parallel_residual=True), published.older_rope),
    "gpt_neox": Golden(lambda: transformers.GPTNeoXConfig(
        **dict(HALF_ROTARY, num_hidden_layers=1), **LAYER, rotary_pct=0.5), published.gpt_neox),
    "gpt_neox_sequential": Golden(lambda: transformers.GPTNeoXConfig(
        **dict(HALF_ROTARY, num_hidden_layers=1), **LAYER, rotary_pct=0.5, use_parallel_residual=False),
        published.gpt_neox),
    "phi": Golden(lambda: transformers.PhiConfig(
        **dict(NARROW, num_attention_heads=1, intermediate_size=128), **LAYER, partial_rotary_factor=0.5),
        published.older_rope),
    "mistral3": Golden(lambda: transformers.MistralConfig(**SMALL, **RMS, sliding_window=None),
                       published.wrapped("mistral"), reloads=False),
    "ministral3": Golden(lambda: transformers.Ministral3Config(
        **SMALL, **RMS, tie_word_embeddings=True, pad_token_id=0,
        rope_parameters=dict(MINISTRAL_ROPE, max_position_embeddings=256)), published.wrapped("ministral3"),
        reloads=False),
    "exaone4": Golden(lambda: transformers.Exaone4Config(
        **FOUR, **RMS, sliding_window=21, sliding_window_pattern=4, rope_theta=10000.0, rope_scaling=LLAMA3_ROPE),
        published.setting(sliding_window_pattern="LLLG")),
    "exaone4_global": Golden(lambda: transformers.Exaone4Config(
        **NARROW, **RMS, sliding_window=None, layer_types=[FULL] * 2, rope_theta=10000.0,
        rope_scaling=LLAMA3_ROPE, tie_word_embeddings=True),
        published.setting("layer_types", sliding_window_pattern=None), reloads=False),
    "seed_oss": Golden(lambda: transformers.SeedOssConfig(**SMALL, **RMS, attention_bias=True, pad_token_id=0),
                       published.older_rope),
    "hunyuan_v1_dense": Golden(lambda: transformers.HunYuanDenseV1Config(
        **dict(SMALL, max_position_embeddings=32768), **RMS, rope_theta=10000.0, rope_scaling=HUNYUAN_ROPE,
        tie_word_embeddings=True, eod_token_id=3), published.older_rope),
    "ernie4_5": Golden(lambda: transformers.Ernie4_5Config(**SMALL, **RMS)),
    "ernie4_5_bias": Golden(lambda: transformers.Ernie4_5Config(
        **NARROW, head_dim=16, **RMS, use_bias=True), published.older_rope),
    "nemotron": Golden(lambda: transformers.NemotronConfig(
        **HALF_ROTARY, norm_eps=EPSILON, partial_rotary_factor=0.5),
        published.older_rope),
    "internlm2": Golden(lambda: transformers.LlamaConfig(**dict(SMALL, hidden_size=64, num_hidden_layers=1),
                                                         **RMS), published.internlm2, reloads=False),
    "arcee": Golden(lambda: transformers.ArceeConfig(**SMALL, **RMS), published.older_rope),
    "apertus": Golden(lambda: transformers.ApertusConfig(
        **NARROW, **RMS, rope_theta=10000.0, rope_scaling=LLAMA3_ROPE, pad_token_id=0)),
    "qwen2_window": Golden(lambda: transformers.Qwen2Config(
        **dict(NARROW, num_hidden_layers=3), **RMS, use_sliding_window=True, sliding_window=21,
        max_window_layers=1, tie_word_embeddings=True), published.dropping("layer_types")),
    "qwen3_window": Golden(lambda: transformers.Qwen3Config(
        **dict(NARROW, num_hidden_layers=3), head_dim=16, **RMS, use_sliding_window=True, sliding_window=21,
        max_window_layers=2, tie_word_embeddings=True), published.dropping("layer_types")),
}
assert all(n <= N_TOKENS for model in MODELS.values() for n in model.lengths)
