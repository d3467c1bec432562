#!/usr/bin/env python3
"""Writes GGUF files with random weights in the shapes of gpt-oss-20b and Qwen3-30B-A3B, cut to four layers.

  lab/speed/experts_models.py --tokenizer models/fetched/smollm2.gguf --out DIRECTORY
  lab/speed/weights_beside_peers.py --kvlathe build/release/bin/kvlathe --llama-bench .../llama-bench --rounds 5 \\
      --model DIRECTORY/gpt-oss-20b-mxfp4.gguf:256:64 --model DIRECTORY/qwen3-30b-a3b-q4_k.gguf:256:64 \\
      --model DIRECTORY/qwen3-30b-a3b-mxfp4.gguf:256:64 --out docs/speed/experts.json

Experts are MXFP4 or Q4_K, embedding and head Q8_0; the vocabulary and the tokenizer are those of the file that is
named. It needs the package gguf, and 5 GB of disk. Every block has random codes and one scale, with which what a
layer puts out neither dies out nor grows over all bounds.
"""

import argparse
import dataclasses
import pathlib

import gguf
import numpy

N_LAYERS = 4
Types = gguf.GGMLQuantizationType
# Bytes at the front of a block: scales of the size of a trained model's, or an exponent.
SCALES = {
    Types.Q8_0: numpy.array([2.7e-4], numpy.float16).view(numpy.uint8),
    Types.Q4_K: numpy.array([8e-5, 6e-4], numpy.float16).view(numpy.uint8),
    Types.MXFP4: numpy.array([120], numpy.uint8),
}


@dataclasses.dataclass
class Shape:
    """What a model is, and in which blocks its attention is stored."""

    name: str
    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    experts: int
    used: int
    theta: float
    attention: Types

    @property
    def is_gpt_oss(self):
        return self.architecture == "gpt-oss"


GPT_OSS = Shape("gpt-oss-20b", "gpt-oss", 2880, 64, 8, 64, 2880, 32, 4, 150000.0, Types.Q8_0)
QWEN = Shape("qwen3-30b-a3b", "qwen3moe", 2048, 32, 4, 128, 768, 128, 8, 1e6, Types.Q4_K)


class ModelWriter:
    """One file."""

    def __init__(self, path, shape, tokenizer):
        self.shape, self.random = shape, numpy.random.default_rng(1)
        self.file = gguf.GGUFWriter(str(path), shape.architecture)
        self.vocab_size = self._copy_tokenizer(tokenizer)

    def _copy_tokenizer(self, path):
        reader = gguf.GGUFReader(path)
        for key, field in reader.fields.items():
            if not key.startswith("tokenizer."):
                continue
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                self.file.add_array(key, field.contents())
            else:
                self.file.add_key_value(key, field.contents(), field.types[0])
        return len(reader.fields["tokenizer.ggml.tokens"].contents())

    def add_keys(self):
        file, s = self.file, self.shape
        file.add_block_count(N_LAYERS)
        file.add_context_length(32768)
        file.add_embedding_length(s.hidden)
        file.add_head_count(s.heads)
        file.add_head_count_kv(s.kv_heads)
        file.add_key_length(s.head_dim)
        file.add_value_length(s.head_dim)
        file.add_feed_forward_length(s.ffn)
        file.add_expert_feed_forward_length(s.ffn)
        file.add_expert_count(s.experts)
        file.add_expert_used_count(s.used)
        file.add_layer_norm_rms_eps(1e-5)
        file.add_rope_freq_base(s.theta)
        file.add_vocab_size(self.vocab_size)
        if s.is_gpt_oss:
            file.add_sliding_window(128)
            file.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            file.add_rope_scaling_factor(32.0)
            file.add_rope_scaling_orig_ctx_len(4096)

    def add_blocks(self, name, blocks, *shape):
        n_values, n_bytes = gguf.GGML_QUANT_SIZES[blocks]
        n_blocks = int(numpy.prod(shape)) // n_values
        data = numpy.frombuffer(self.random.bytes(n_blocks * n_bytes), numpy.uint8).reshape(-1, n_bytes).copy()
        data[:, : len(SCALES[blocks])] = SCALES[blocks]
        self.file.add_tensor(name, data.reshape(*shape[:-1], shape[-1] // n_values * n_bytes), raw_dtype=blocks)

    def add_ones(self, name, size):
        self.file.add_tensor(name, numpy.ones(size, numpy.float32))

    def add_numbers(self, name, *shape):
        self.file.add_tensor(name, self.random.normal(0, 0.05, shape).astype(numpy.float32))

    def add_attention(self, layer):
        s = self.shape
        self.add_ones(layer + "attn_norm.weight", s.hidden)
        for name, n_heads in ("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads):
            self.add_blocks(f"{layer}attn_{name}.weight", s.attention, n_heads * s.head_dim, s.hidden)
            if s.is_gpt_oss:
                self.add_numbers(f"{layer}attn_{name}.bias", n_heads * s.head_dim)
        self.add_blocks(layer + "attn_output.weight", s.attention, s.hidden, s.heads * s.head_dim)
        if s.is_gpt_oss:
            self.add_numbers(layer + "attn_output.bias", s.hidden)
            self.add_numbers(layer + "attn_sinks.weight", s.heads)
        else:
            self.add_ones(layer + "attn_q_norm.weight", s.head_dim)
            self.add_ones(layer + "attn_k_norm.weight", s.head_dim)

    def add_experts(self, layer, blocks):
        s = self.shape
        self.add_ones(layer + ("post_attention_norm.weight" if s.is_gpt_oss else "ffn_norm.weight"), s.hidden)
        self.add_numbers(layer + "ffn_gate_inp.weight", s.experts, s.hidden)
        if s.is_gpt_oss:
            self.add_numbers(layer + "ffn_gate_inp.bias", s.experts)
        for name, n_out, n_in in ("gate", s.ffn, s.hidden), ("up", s.ffn, s.hidden), ("down", s.hidden, s.ffn):
            self.add_blocks(f"{layer}ffn_{name}_exps.weight", blocks, s.experts, n_out, n_in)
            if s.is_gpt_oss:
                self.add_numbers(f"{layer}ffn_{name}_exps.bias", s.experts, n_out)

    def write(self, blocks):
        self.add_keys()
        self.add_blocks("token_embd.weight", Types.Q8_0, self.vocab_size, self.shape.hidden)
        self.add_blocks("output.weight", Types.Q8_0, self.vocab_size, self.shape.hidden)
        self.add_ones("output_norm.weight", self.shape.hidden)
        for i in range(N_LAYERS):
            self.add_attention(f"blk.{i}.")
            self.add_experts(f"blk.{i}.", blocks)
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a GGUF file whose tokenizer the models have")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for shape, blocks in (GPT_OSS, Types.MXFP4), (QWEN, Types.Q4_K), (QWEN, Types.MXFP4):
        path = options.out / f"{shape.name}-{blocks.name.lower()}.gguf"
        ModelWriter(path, shape, options.tokenizer).write(blocks)
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
