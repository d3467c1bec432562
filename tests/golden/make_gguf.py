"""Writes tests/golden/gguf/NAME.gguf: the golden models of make_golden.py in the form that llama.cpp's
converter gives a model of their family, so that a test can compare the logits of both forms.

Usage: make_gguf.py [NAME ...]     (without a name: all of them)

Names of tensors and keys are those of the Python package gguf (0.17.1 or later; numpy beside it), which
is llama.cpp's own. What the converter does to tensors: rows of W_Q and W_K of architecture llama are
ordered by pairs that rotate together; matrices of GPT-2 are transposed; Falcon's fused matrix has all
queries, then all keys, then all values; Llama 3.1's scaling of RoPE and Phi-3's factors are tensors; norms of
Gemma 3 have the one that they add. A file of Gemma 3 cannot say query_pre_attn_scalar: the norm of queries takes
it up here.
"""

import json
import math
import pathlib
import sys

import gguf
import numpy

HERE = pathlib.Path(__file__).parent
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2,
    "phi3": gguf.MODEL_ARCH.PHI3, "phi3_longrope": gguf.MODEL_ARCH.PHI3, "gpt2": gguf.MODEL_ARCH.GPT2,
    "falcon_7b": gguf.MODEL_ARCH.FALCON, "falcon_40b": gguf.MODEL_ARCH.FALCON,
    "falcon_11b": gguf.MODEL_ARCH.FALCON, "qwen3": gguf.MODEL_ARCH.QWEN3, "gemma3": gguf.MODEL_ARCH.GEMMA3,
}


def read_safetensors(path):
    """BF16 tensors as F32 arrays."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", name
        begin, end = entry["data_offsets"]
        bits = numpy.frombuffer(data[8 + size + begin:8 + size + end], numpy.uint16)
        yield name, (bits.astype(numpy.uint32) << 16).view(numpy.float32).reshape(entry["shape"])


def pairs(w, n_heads):
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def ordered(name, w, c):
    """The tensor as the converter stores it."""
    if c["model_type"] in ("llama", "mistral"):
        if ".q_proj." in name:
            return pairs(w, c["num_attention_heads"])
        if ".k_proj." in name:
            return pairs(w, c["num_key_value_heads"])
    if c["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
        scale = math.sqrt(c["head_dim"] / c["query_pre_attn_scalar"]) if ".q_norm." in name else 1
        return (1 + w) * numpy.float32(scale)
    if c["model_type"] == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return w.T
    if "query_key_value" in name:
        n_heads, n_kv = c["num_attention_heads"], c.get("num_kv_heads") or 1
        n_kv = n_kv if c["new_decoder_architecture"] else 1
        d = c["hidden_size"] // n_heads
        w = w.reshape(n_kv, n_heads // n_kv + 2, d, -1)
        return numpy.concatenate([w[:, :-2].reshape(n_heads * d, -1), w[:, -2].reshape(n_kv * d, -1),
                                  w[:, -1].reshape(n_kv * d, -1)])
    return w


def llama3_factors(c):
    r, d = c["rope_scaling"], c["head_dim"]
    low = r["original_max_position_embeddings"] / r["low_freq_factor"]
    high = r["original_max_position_embeddings"] / r["high_freq_factor"]
    for i in range(d // 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (2 * i / d)
        if wavelength < high:
            yield 1
        elif wavelength > low:
            yield r["factor"]
        else:
            smooth = ((r["original_max_position_embeddings"] / wavelength - r["low_freq_factor"])
                      / (r["high_freq_factor"] - r["low_freq_factor"]))
            yield 1 / ((1 - smooth) / r["factor"] + smooth)


def add_keys(writer, c):
    family = c["model_type"]
    get = lambda *names: next(c[n] for n in names if c.get(n) is not None)
    n_heads = get("num_attention_heads", "n_head")
    writer.add_context_length(get("max_position_embeddings", "n_positions") if family != "falcon" else 2048)
    writer.add_embedding_length(get("hidden_size", "n_embd"))
    writer.add_block_count(get("num_hidden_layers", "n_layer"))
    writer.add_head_count(n_heads)
    writer.add_feed_forward_length(get("intermediate_size", "n_inner", "ffn_hidden_size"))
    if family in ("gpt2", "falcon"):
        writer.add_layer_norm_eps(c["layer_norm_epsilon"])
        if family == "falcon":
            writer.add_head_count_kv(c["num_kv_heads"] if c["new_decoder_architecture"] else 1)
        return
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    if family in ("qwen3", "gemma3_text"):
        add_newer_keys(writer, c)
    else:
        writer.add_rope_freq_base(c["rope_theta"])
        writer.add_rope_dimension_count(c["hidden_size"] // n_heads)
    if family == "llama":
        writer.add_key_length(c["head_dim"])
    if c.get("sliding_window") and family != "qwen2":
        writer.add_sliding_window(c["sliding_window"])
    if family == "phi3":
        writer.add_rope_scaling_orig_ctx_len(get("original_max_position_embeddings"))


def add_newer_keys(writer, c):
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    rope = c["rope_parameters"]
    if c["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern(c["layer_types"].index("full_attention") + 1)
        rope = rope["full_attention"]
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_freq_base(rope["rope_theta"])


def add_factors(writer, c):
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", numpy.array(list(llama3_factors(c)), numpy.float32))
    if scaling.get("type") == "longrope":
        original = c["original_max_position_embeddings"]
        stretch = c["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight",
                              numpy.array(scaling[f"{kind}_factor"], numpy.float32))


def write(name):
    folder = HERE / name
    c = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(HERE / "gguf" / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    add_keys(writer, c)
    add_factors(writer, c)
    names = gguf.get_tensor_name_map(arch, c.get("num_hidden_layers") or c["n_layer"])
    for theirs, w in read_safetensors(folder / "model.safetensors"):
        w = numpy.ascontiguousarray(ordered(theirs, w, c))
        ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        assert ours is not None, theirs
        if w.ndim == 1:
            writer.add_tensor(ours, w)  # the converter keeps vectors in F32
        else:
            writer.add_tensor(ours, (w.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for wanted in sys.argv[1:] or ARCHITECTURES:
    write(wanted)
