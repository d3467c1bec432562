"""Forms that checkpoints on the hub have and that transformers 5 reads but no longer writes: the tests must
see both. A function of this file takes the dictionary of config.json and that of the tensors, and
changes them."""


def older_rope(config, _tensors):
    """`rope_theta`, `rope_scaling` and `partial_rotary_factor` beside the other fields."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None


def dropping(*keys):
    """Without fields that older files do not have, and with the older form of RoPE."""
    def publish(config, tensors):
        for key in keys:
            del config[key]
        older_rope(config, tensors)
    return publish


def setting(*dropped, **fields):
    """As dropping, and with fields that only older files have."""
    def publish(config, tensors):
        dropping(*dropped)(config, tensors)
        config.update(fields)
    return publish


def olmo3(config, _tensors):
    """RoPE's scaling is that of the layers without a window; those with one have none."""
    rope = config.pop("rope_parameters")["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope


def gpt_neox(config, tensors):
    older_rope(config, tensors)
    config["rotary_emb_base"] = config.pop("rope_theta")
    config["rotary_pct"] = config.pop("partial_rotary_factor")


def phimoe(config, tensors):
    older_rope(config, tensors)
    config["architectures"] = ["PhiMoEForCausalLM"]


def wrapped(model_type):
    """The text model of Mistral3ForConditionalGeneration, between a tower for images and a projector."""
    def publish(config, tensors):
        import torch
        text = dict(config, model_type=model_type)
        text.pop("architectures")
        config.clear()
        config.update(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3",
                      dtype=text.pop("dtype"), image_token_index=10, spatial_merge_size=2,
                      text_config=text, vision_config=dict(model_type="pixtral", hidden_size=16,
                                                           num_hidden_layers=0, num_attention_heads=1))
        for name in list(tensors):
            tensors["language_model." + name] = tensors.pop(name)
        tensors["multi_modal_projector.linear_1.weight"] = torch.ones(2, 16, dtype=torch.bfloat16)
        tensors["vision_tower.ln_pre.weight"] = torch.ones(16, dtype=torch.bfloat16)
    return publish


def internlm2(config, tensors):
    """A Llama as InternLM2 stores it: for each head of keys its heads of queries, itself and its head of
    values in one matrix, and other names. transformers has no class for it; the mathematics are Llama's."""
    import torch
    older_rope(config, tensors)
    heads, kv, d = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    del config["head_dim"], config["attention_bias"], config["mlp_bias"]
    config.update(architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False,
                  rope_scaling=None,
                  auto_map={"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"})
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        q, k, v = (tensors.pop(f"{layer}self_attn.{c}_proj.weight") for c in "qkv")
        rows = torch.cat([q.view(kv, heads // kv * d, -1), k.view(kv, d, -1), v.view(kv, d, -1)], 1)
        tensors[layer + "attention.wqkv.weight"] = rows.flatten(0, 1).contiguous()
        for theirs, ours in (("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"),
                             ("mlp.down_proj", "feed_forward.w2"), ("mlp.up_proj", "feed_forward.w3"),
                             ("input_layernorm", "attention_norm"),
                             ("post_attention_layernorm", "ffn_norm")):
            tensors[f"{layer}{ours}.weight"] = tensors.pop(f"{layer}{theirs}.weight")
    tensors["model.tok_embeddings.weight"] = tensors.pop("model.embed_tokens.weight")
    tensors["output.weight"] = tensors.pop("lm_head.weight")


def bailing_moe_v2(config, tensors):
    """A GLM 4 MoE as Ling 2.0 and Ring 2.0 store it: all queries, keys and values in one matrix, and other names.
    transformers has no class for it; the mathematics are those of Glm4MoeForCausalLM."""
    import torch
    older_rope(config, tensors)
    for key in ("attention_bias", "n_routed_experts", "n_shared_experts", "num_local_experts"):
        config.pop(key, None)
    config.update(architectures=["BailingMoeV2ForCausalLM"], model_type="bailing_moe", num_experts=8,
                  num_shared_experts=1, score_function="sigmoid", moe_router_enable_expert_bias=True,
                  use_qkv_bias=False, use_bias=False, use_rmsnorm=True, norm_head=False,
                  moe_shared_expert_intermediate_size=config["moe_intermediate_size"],
                  auto_map={"AutoModelForCausalLM": "modeling_bailing_moe_v2.BailingMoeV2ForCausalLM"})
    config["num_nextn_predict_layers"] = 0
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        tensors[layer + "attention.query_key_value.weight"] = torch.cat(
            [tensors.pop(f"{layer}self_attn.{c}_proj.weight") for c in "qkv"])
        for theirs, ours in (("self_attn.o_proj.weight", "attention.dense.weight"),
                             ("self_attn.q_norm.weight", "attention.query_layernorm.weight"),
                             ("self_attn.k_norm.weight", "attention.key_layernorm.weight"),
                             ("mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias")):
            if layer + theirs in tensors:
                tensors[layer + ours] = tensors.pop(layer + theirs)
    tensors["model.word_embeddings.weight"] = tensors.pop("model.embed_tokens.weight")
