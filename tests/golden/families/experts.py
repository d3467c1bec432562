"""Golden models of mixtures of experts: routers, shared experts, and layers that stay dense."""

import transformers

from . import published
from .model import EPSILON, Golden, NARROW, N_TOKENS, SMALL

RMS = dict(rms_norm_eps=EPSILON)
EXPERTS = 8
# Experts as wide as half a row: the rest of a file is as small as it can be.
WIDTH = 16
MOE = dict(NARROW, head_dim=16, intermediate_size=WIDTH)
GPT_OSS_ROPE = dict(rope_type="yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0, truncate=False,
                    original_max_position_embeddings=64)
LONGROPE = dict(rope_type="longrope", short_factor=[1 + 0.1 * i for i in range(8)],
                long_factor=[1.5 + 0.9 * i for i in range(8)], short_mscale=1.1, long_mscale=1.25,
                original_max_position_embeddings=64)


def gpt_oss(**sizes):
    return transformers.GptOssConfig(**sizes, **RMS, num_local_experts=EXPERTS, sliding_window=21,
                                     swiglu_limit=2.0, rope_theta=10000.0, rope_scaling=GPT_OSS_ROPE)


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
        **dict(NARROW, intermediate_size=WIDTH), **RMS, num_experts=EXPERTS, num_experts_per_tok=4)),
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
    "glm4_moe": Golden(lambda: glm4_moe(use_qk_norm=True), published.older_rope),
    "glm4_moe_groups": Golden(lambda: glm4_moe(n_group=4, topk_group=2),
                              published.older_rope),
    "ernie4_5_moe": Golden(lambda: transformers.Ernie4_5_MoeConfig(
        **SMALL, **RMS,
        moe_num_experts=EXPERTS, moe_k=3, moe_intermediate_size=WIDTH, moe_num_shared_experts=1,
        moe_layer_start_index=1), published.older_rope),
    "phimoe": Golden(lambda: transformers.PhimoeConfig(
        **dict(NARROW, intermediate_size=WIDTH), **RMS, num_local_experts=EXPERTS, num_experts_per_tok=2,
        attention_bias=True, lm_head_bias=True, rope_theta=10000.0, rope_scaling=LONGROPE),
        published.older_rope, (48, N_TOKENS)),
    "bailing_moe_v2": Golden(lambda: transformers.Glm4MoeConfig(**dict(
        MOE, head_dim=32, intermediate_size=40, **RMS, n_routed_experts=EXPERTS, num_experts_per_tok=3,
        moe_intermediate_size=WIDTH, n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5,
        n_group=4, topk_group=2, use_qk_norm=True, num_nextn_predict_layers=0)),
        published.bailing_moe_v2, reloads=False),
}
