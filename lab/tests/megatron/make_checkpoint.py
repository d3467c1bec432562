#!/usr/bin/env python3
"""Writes the checkpoint beside it with torch itself (made with 1.13.0): two tensor-parallel ranks of a model of one layer, arguments with an
enumeration of a module that the reader does not have, a state of fp8 and a state of the random numbers. Not part of the tests.
"""

import argparse
import collections
import enum
import io
import json
import pathlib
import sys
import types

import torch

HERE = pathlib.Path(__file__).resolve().parent
HIDDEN, HEADS, GROUPS, DIM, FFN, VOCABULARY, PADDED = 16, 4, 2, 8, 16, 10, 16


def make_enumeration():
    """megatron.core.enums.ModelType, as the arguments hold it."""
    for name in ("megatron", "megatron.core", "megatron.core.enums"):
        sys.modules[name] = types.ModuleType(name)
    kind = enum.Enum("ModelType", "encoder_or_decoder encoder_and_decoder", module="megatron.core.enums")
    sys.modules["megatron.core.enums"].ModelType = kind
    return kind


def arguments_of(n_tensor):
    return argparse.Namespace(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS, group_query_attention=True, kv_channels=DIM,
        ffn_hidden_size=FFN, max_position_embeddings=64, normalization="RMSNorm", swiglu=True, untie_embeddings_and_output_weights=True,
        position_embedding_type="rope", tensor_model_parallel_size=n_tensor, pipeline_model_parallel_size=1, dmc_init_val=5.0,
        dmc_window_size=12, params_dtype=torch.bfloat16, model_type=make_enumeration().encoder_or_decoder)


def main():
    torch.manual_seed(1)
    draw = lambda *shape: torch.randn(*shape).bfloat16()  # noqa: E731
    q, k, v = draw(HEADS * DIM, HIDDEN), draw(GROUPS * DIM, HIDDEN), draw(GROUPS * DIM, HIDDEN)
    o, gate, up, down = draw(HIDDEN, HEADS * DIM), draw(FFN, HIDDEN), draw(FFN, HIDDEN), draw(HIDDEN, FFN)
    norms, embedding, head = [draw(HIDDEN) for _ in range(3)], draw(PADDED, HIDDEN), draw(PADDED, HIDDEN)
    qkv = torch.cat([q.view(GROUPS, -1, HIDDEN), k.view(GROUPS, -1, HIDDEN), v.view(GROUPS, -1, HIDDEN)], 1).view(-1, HIDDEN)
    for t in range(2):
        rows = lambda m: m.chunk(2, 0)[t].clone()  # noqa: B023, E731
        columns = lambda m: m.chunk(2, 1)[t].contiguous()  # noqa: B023, E731
        layer = "decoder.layers.0."
        weights = collections.OrderedDict([
            ("embedding.word_embeddings.weight", rows(embedding)), (layer + "self_attention.linear_proj.weight", columns(o)),
            (layer + "self_attention.linear_proj._extra_state", io.BytesIO(b"fp8")),
            (layer + "self_attention.linear_qkv.layer_norm_weight", norms[0]), (layer + "self_attention.linear_qkv.weight", rows(qkv)),
            (layer + "mlp.linear_fc1.layer_norm_weight", norms[1]), (layer + "mlp.linear_fc1.weight", torch.cat([rows(gate), rows(up)])),
            (layer + "mlp.linear_fc2.weight", torch.nn.Parameter(columns(down))), ("decoder.final_layernorm.weight", norms[2]),
            ("output_layer.weight", head[t * PADDED // 2 : (t + 1) * PADDED // 2]),  # a view of a storage that is longer
        ])
        place = HERE / f"checkpoint/iter_0000007/mp_rank_{t:02d}"
        place.mkdir(parents=True, exist_ok=True)
        torch.save({"args": arguments_of(2), "checkpoint_version": 3.0, "iteration": 7, "model": weights,
                    "rng_state": [{"torch_rng_state": torch.arange(8, dtype=torch.uint8)}]}, place / "model_optim_rng.pt")
    (HERE / "checkpoint/latest_checkpointed_iteration.txt").write_text("7")
    of_layer = {"input_layernorm": norms[0], "post_attention_layernorm": norms[1], "self_attn.q_proj": q, "self_attn.k_proj": k,
                "self_attn.v_proj": v, "self_attn.o_proj": o, "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": down}
    expected = {f"model.layers.0.{name}.weight": tensor for name, tensor in of_layer.items()}
    expected |= {"model.embed_tokens.weight": embedding[:VOCABULARY], "lm_head.weight": head[:VOCABULARY], "model.norm.weight": norms[2]}
    as_hex = lambda tensor: bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()).hex()  # noqa: E731
    (HERE / "expected.json").write_text(json.dumps({n: [list(t.shape), as_hex(t)] for n, t in expected.items()}, indent=1) + "\n")
    (HERE / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {chr(97 + i): i for i in range(VOCABULARY)}}}) + "\n")


if __name__ == "__main__":
    main()
