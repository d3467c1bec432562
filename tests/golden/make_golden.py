"""Writes the golden models of tests/golden_test.cc: one folder per family and layout beside this file,
saved by Hugging Face transformers, with the F32 logits that transformers computes for a fixed text.

Usage: make_golden.py [NAME ...]     (without a name: all of them)

Run with Python 3.11.2, torch 1.13.1 (of Debian 12), transformers 4.46.3, tokenizers 0.20.3,
safetensors 0.4.5 and numpy 1.24.2; qwen3 and gemma3, which came later, with Python 3.11.7, torch 2.15.0 and
transformers 5.24.0. Other versions draw other weights, and the logits change with them: commit what one run
wrote. The tests need the files, none of these packages.
"""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
VOCAB = 84
N_TOKENS = 80  # beyond a block of the cache (64) and every window below
SIZES = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             bos_token_id=1, eos_token_id=2)
EPSILON = 3e-5  # no family's default
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
# Texts, as lengths: a model whose positions depend on the length of the text has one of each kind.
LENGTHS = {"phi3_longrope": [48, N_TOKENS]}


def draw(model):
    """Weights at scales where attention is far from uniform, and norms and biases that do something
    (transformers starts them at one and zero). Rounded to BF16: the file holds them exactly."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.normal_(0, 0.2)
        elif name.endswith("bias"):
            parameter.normal_(0, 0.3)
        else:  # Gemma 3 adds one
            parameter.normal_(0 if "Gemma3" in type(model).__name__ else 1, 0.1)
        parameter.copy_(parameter.bfloat16().float())


def write(name, config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval()
    draw(model)
    ids = torch.randint(VOCAB, (N_TOKENS,))
    logits = {str(length): model(ids[None, :length], use_cache=False).logits[0].contiguous()
              for length in LENGTHS.get(name, [N_TOKENS])}
    folder = HERE / name
    model.bfloat16().save_pretrained(folder)
    save_file(logits, folder / "golden_logits.safetensors",
              metadata={"golden": json.dumps({"ids": ids.tolist(), "torch": torch.__version__,
                                              "transformers": transformers.__version__})})
    (folder / "generation_config.json").unlink(missing_ok=True)
    # Between positions, so that a model whose text does not matter is noticed.
    print(name, "standard deviation of a logit:", logits[str(N_TOKENS)].std(0).mean().item())


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:] or MODELS
    with torch.no_grad():
        for name in names:
            write(name, MODELS[name](), seed=list(MODELS).index(name) + 1)


if __name__ == "__main__":
    main()
