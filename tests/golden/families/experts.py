"""Golden models of mixtures of experts: routers, shared experts, and layers that stay dense."""

import math

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from . import blocks, published
from .model import EPSILON, Golden, NARROW, N_TOKENS, SMALL

RMS = dict(rms_norm_eps=EPSILON)
EXPERTS = 8
# Experts as wide as half a row: the rest of a file is as small as it can be.
WIDTH = 16
MOE = dict(NARROW, head_dim=16, intermediate_size=WIDTH)
# The ramp of YaRN ends at 2.99999, so that it is nearly the same for llama.cpp, which rounds it to 3 whatever
# a file says.
GPT_OSS_ROPE = dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                    original_max_position_embeddings=64)
GPT_OSS_THETA = math.exp(8 * math.log(64 / (2 * math.pi)) / 2.99999)
# As in the checkpoints both are what LongRoPE computes from the stretch of the context, here 4.
LONGROPE_SCALE = math.sqrt(1 + math.log(4) / math.log(64))
LONGROPE = dict(rope_type="longrope", short_factor=[1 + 0.1 * i for i in range(8)],
                long_factor=[1.5 + 0.9 * i for i in range(8)], short_mscale=LONGROPE_SCALE, long_mscale=LONGROPE_SCALE,
                original_max_position_embeddings=64)


def longer_factors(model, length):
    """Phimoe of transformers 5.24 forgets to pass the length of a text on, and has the short factors for all."""
    rope = model.model.rotary_emb
    rope.rope_init_fn = lambda config: ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)


def gpt_oss(experts=EXPERTS, **sizes):
    return transformers.GptOssConfig(**sizes, **RMS, num_local_experts=experts, sliding_window=21,
                                     swiglu_limit=7.0, rope_theta=GPT_OSS_THETA, rope_scaling=GPT_OSS_ROPE)


def glm4_moe(**fields):
    return transformers.Glm4MoeConfig(**dict(
        dict(MOE, head_dim=32, intermediate_size=40), **RMS, n_routed_experts=EXPERTS, num_experts_per_tok=3,
        moe_intermediate_size=WIDTH, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.7,
        attention_bias=True, **fields))


MODELS = {
    "mixtral": Golden(lambda: transformers.MixtralConfig(**MOE, **RMS,
                                                         num_local_experts=EXPERTS, num_experts_per_tok=2)),
    "qwen2_moe": Golden(lambda: transformers.Qwen2MoeConfig(
        **NARROW, **RMS, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=WIDTH,
        shared_expert_intermediate_size=24), published.dropping("layer_types")),
    # A dense layer by the step, and one by the list.
    "qwen2_moe_dense": Golden(lambda: transformers.Qwen2MoeConfig(
        **dict(NARROW, num_hidden_layers=4), **RMS, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
        moe_intermediate_size=WIDTH, shared_expert_intermediate_size=24, decoder_sparse_step=2,
        mlp_only_layers=[1]), published.dropping("layer_types")),
    "qwen3_moe": Golden(lambda: transformers.Qwen3MoeConfig(
        **dict(MOE, intermediate_size=40), **RMS, num_experts=EXPERTS, num_experts_per_tok=3,
        moe_intermediate_size=WIDTH, norm_topk_prob=True), published.older_rope),
    "olmoe": Golden(lambda: transformers.OlmoeConfig(
        # llama.cpp's converter writes this epsilon whatever the model has.
        **dict(NARROW, num_key_value_heads=2, intermediate_size=WIDTH), rms_norm_eps=1e-5,
        num_experts=EXPERTS, num_experts_per_tok=4)),
    "granitemoe": Golden(lambda: transformers.GraniteMoeConfig(
        **dict(NARROW, intermediate_size=WIDTH), **RMS, num_local_experts=EXPERTS, num_experts_per_tok=3,
        embedding_multiplier=6.0, attention_multiplier=0.17, residual_multiplier=0.7, logits_scaling=3.0,
        tie_word_embeddings=True), published.older_rope),
    "granitemoeshared": Golden(lambda: transformers.GraniteMoeSharedConfig(
        **dict(NARROW, intermediate_size=WIDTH), **RMS, num_local_experts=EXPERTS, num_experts_per_tok=3,
        embedding_multiplier=6.0, attention_multiplier=0.17, residual_multiplier=0.7, logits_scaling=3.0,
        shared_intermediate_size=24, tie_word_embeddings=True), published.older_rope),
    "gpt_oss": Golden(lambda: gpt_oss(**dict(SMALL, intermediate_size=WIDTH), num_experts_per_tok=4),
                      published.older_rope),
    # As the checkpoints are: experts in MXFP4. Two blocks in a row of the first matrix.
    "gpt_oss_mxfp4": Golden(lambda: gpt_oss(**dict(MOE, hidden_size=64, intermediate_size=32),
                                            num_experts_per_tok=3, experts=6), blocks.publish_mxfp4, reloads=False,
                            drawn=blocks.round_experts),
    # For GGUF files with experts in blocks; the folder keeps the logits only.
    "qwen3_moe_blocks": Golden(lambda: transformers.Qwen3MoeConfig(
        **dict(MOE, hidden_size=64, num_hidden_layers=1), **RMS, num_experts=EXPERTS, num_experts_per_tok=3,
        moe_intermediate_size=32, norm_topk_prob=True, tie_word_embeddings=True), published.older_rope,
        drawn=blocks.round_experts),
    "glm4_moe": Golden(lambda: glm4_moe(use_qk_norm=True), published.older_rope),
    "glm4_moe_groups": Golden(lambda: glm4_moe(n_group=4, topk_group=2),
                              published.older_rope),
    # llama.cpp knows no windows and no shared heads of it.
    "dots1": Golden(lambda: transformers.Dots1Config(
        **dict(MOE, intermediate_size=40, num_key_value_heads=2), **RMS, n_routed_experts=EXPERTS, num_experts_per_tok=3,
        moe_intermediate_size=WIDTH, n_shared_experts=2, first_k_dense_replace=1, routed_scaling_factor=1.3,
        norm_topk_prob=True, sliding_window=200, max_window_layers=1), published.setting("layer_types", scoring_func="sigmoid")),
    "minimax_m2": Golden(lambda: transformers.MiniMaxM2Config(
        **dict(MOE, head_dim=32, num_attention_heads=2, num_key_value_heads=1), **RMS, num_local_experts=EXPERTS,
        num_experts_per_tok=3, rotary_dim=16), published.setting(rotary_dim=16, scoring_func="sigmoid")),
    "ernie4_5_moe": Golden(lambda: transformers.Ernie4_5_MoeConfig(
        **dict(SMALL, intermediate_size=32), **RMS,
        moe_num_experts=EXPERTS, moe_k=3, moe_intermediate_size=WIDTH, moe_num_shared_experts=1,
        moe_layer_start_index=1), published.older_rope),
    "phimoe": Golden(lambda: transformers.PhimoeConfig(
        **dict(NARROW, intermediate_size=WIDTH), **RMS, num_local_experts=EXPERTS, num_experts_per_tok=2,
        attention_bias=True, lm_head_bias=True, sliding_window=256, rope_theta=10000.0,
        rope_scaling=LONGROPE), published.phimoe, (48, N_TOKENS), before=longer_factors),
    "bailing_moe_v2": Golden(lambda: transformers.Glm4MoeConfig(**dict(
        MOE, num_attention_heads=1, head_dim=32, intermediate_size=40, **RMS, n_routed_experts=EXPERTS, num_experts_per_tok=3,
        moe_intermediate_size=WIDTH, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5,
        n_group=4, topk_group=2, use_qk_norm=True, num_nextn_predict_layers=0)),
        published.bailing_moe_v2, reloads=False),
}
