"""Golden models of close relatives of families in the other tables."""

import transformers

from . import published
from .dense import LAYER, LLAMA3_ROPE, RMS
from .model import Golden, N_TOKENS, NARROW, SMALL

THIN = dict(NARROW, num_hidden_layers=1)
ALIKE = dict(THIN, num_key_value_heads=2)  # as many heads of keys as of queries


def rename(tensors, *pairs):
    for name in list(tensors):
        renamed = name
        for theirs, ours in pairs:
            renamed = renamed.replace(theirs, ours)
        tensors[renamed] = tensors.pop(name)


def exaone(config, tensors):
    """As EXAONE 3.5, whose names transformers reads and no longer writes."""
    published.older_rope(config, tensors)
    for theirs, ours in (("num_hidden_layers", "num_layers"), ("rms_norm_eps", "layer_norm_epsilon"),
                         ("hidden_act", "activation_function")):
        config[ours] = config.pop(theirs)
    config.update(architectures=["ExaoneForCausalLM"], model_type="exaone")
    rename(tensors, ("model.embed_tokens", "transformer.wte"), ("model.layers.", "transformer.h."),
           ("model.norm", "transformer.ln_f"), ("self_attn.o_proj", "self_attn.out_proj"),
           ("self_attn.", "attn.attention."), ("input_layernorm", "ln_1"),
           ("post_attention_layernorm", "ln_2"), ("mlp.gate_proj", "mlp.c_fc_0"),
           ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down_proj", "mlp.c_proj"))


def internlm3(config, tensors):
    published.older_rope(config, tensors)
    for theirs, ours in (("attention_bias", "qkv_bias"), ("mlp_bias", "bias")):
        config[ours] = config.pop(theirs)
    config.update(architectures=["InternLM3ForCausalLM"], model_type="internlm3")


def orion(config, tensors):
    """A StableLM all of whose channels rotate. transformers has no class for Orion."""
    published.older_rope(config, tensors)
    for key in ("partial_rotary_factor", "qk_layernorm", "use_parallel_residual", "use_qkv_bias"):
        config.pop(key, None)
    config["rms_norm_eps"] = config.pop("layer_norm_eps")
    config.update(architectures=["OrionForCausalLM"], model_type="orion")


def qwen(config, tensors):
    """A Qwen2 as the first Qwen stores it: queries, keys and values in one matrix, twice the width of the
    MLP. transformers has no class for it."""
    import torch
    theta = config.pop("rope_parameters")["rope_theta"]
    ffn = config["intermediate_size"]
    kept = {key: config[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                                         "bos_token_id", "eos_token_id", "dtype", "tie_word_embeddings",
                                         "max_position_embeddings")}
    epsilon = config["rms_norm_eps"]
    config.clear()
    config.update(kept, architectures=["QWenLMHeadModel"], model_type="qwen", intermediate_size=2 * ffn,
                  kv_channels=kept["hidden_size"] // kept["num_attention_heads"], layer_norm_epsilon=epsilon,
                  no_bias=True, rotary_emb_base=theta, rotary_pct=1.0, scale_attn_weights=True, seq_length=128,
                  use_dynamic_ntk=True, use_logn_attn=True)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}.self_attn."
        for kind in ("weight", "bias"):
            tensors[f"{layer}c_attn.{kind}"] = torch.cat([tensors.pop(f"{layer}{c}_proj.{kind}") for c in "qkv"])
    rename(tensors, ("model.embed_tokens", "transformer.wte"), ("model.layers.", "transformer.h."),
           ("model.norm", "transformer.ln_f"), ("self_attn.o_proj", "attn.c_proj"), ("self_attn.", "attn."),
           ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"), ("mlp.gate_proj", "mlp.w2"),
           ("mlp.up_proj", "mlp.w1"), ("mlp.down_proj", "mlp.c_proj"))


def minicpm(config, tensors):
    """A Granite whose multipliers MiniCPM names otherwise. transformers has no class for MiniCPM."""
    published.older_rope(config, tensors)
    for key in ("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"):
        del config[key]
    config.update(architectures=["MiniCPMForCausalLM"], model_type="minicpm", scale_emb=6, dim_model_base=16,
                  scale_depth=0.7)


MODELS = {
    "phi_qk_norm": Golden(lambda: transformers.PhiConfig(
        **dict(ALIKE, intermediate_size=64), **LAYER, partial_rotary_factor=0.5, qk_layernorm=True),
        published.older_rope),
    "jais2": Golden(lambda: transformers.Jais2Config(**ALIKE, head_dim=16, **LAYER)),
    "olmo": Golden(lambda: transformers.OlmoConfig(**ALIKE, pad_token_id=0), published.older_rope),
    "orion": Golden(lambda: transformers.StableLmConfig(**ALIKE, **LAYER, partial_rotary_factor=1.0), orion,
                    reloads=False),
    "exaone": Golden(lambda: transformers.LlamaConfig(
        **dict(SMALL, num_hidden_layers=1, hidden_size=64), **RMS, rope_theta=10000.0,
        rope_scaling=LLAMA3_ROPE, tie_word_embeddings=True), exaone),
    # Another base for texts longer than 64 tokens.
    "internlm3": Golden(lambda: transformers.LlamaConfig(
        **dict(SMALL, num_hidden_layers=1, hidden_size=64, max_position_embeddings=64), **RMS,
        attention_bias=True, mlp_bias=True, rope_theta=10000.0, rope_scaling=dict(rope_type="dynamic", factor=3.0)),
        internlm3, (48, N_TOKENS), reloads=False),
    "qwen": Golden(lambda: transformers.Qwen2Config(**ALIKE, **RMS, pad_token_id=0), qwen, reloads=False),
    # Scores are divided by the root of the channels, residuals multiplied by 0.7 / sqrt(2).
    "minicpm": Golden(lambda: transformers.GraniteConfig(
        **NARROW, **RMS, embedding_multiplier=6.0, attention_multiplier=0.25, residual_multiplier=0.7 / 2**0.5,
        logits_scaling=2.0, tie_word_embeddings=True), minicpm, reloads=False),
}
