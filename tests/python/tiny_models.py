"""Small random models of transformers, in folders that the engine opens too."""

import pathlib
import shutil

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

FAMILIES = ("llama", "qwen3", "gemma3")
# Lower than the prompts of the tests are long, so that windows are passed.
WINDOW = 64
# Of families that have biases of keys: far above what weights make of keys. With 50 and more, what
# float32 rounds of a key moves codes in torch and in the engine apart, and with experts a fifth of it.
KEY_BIASES = {"qwen2": 10.0, "gpt_oss": 3.0}

_LAYER_TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]

_CONFIGS = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {}),
    "gemma3": (
        Gemma3TextConfig,
        {
            "sliding_window": WINDOW,
            "layer_types": _LAYER_TYPES,
            "query_pre_attn_scalar": 48,
        },
    ),
    "gemma2": (
        Gemma2Config,
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 48,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gpt_oss": (
        GptOssConfig,
        {
            "sliding_window": WINDOW,
            "layer_types": _LAYER_TYPES,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}


def make_tiny_model(family: str, folder: pathlib.Path, tokenizer: pathlib.Path) -> PreTrainedModel:
    """Writes a model of four layers with the vocabulary of `tokenizer`, and gives it in float32.

    Weights are large enough that what such a model says hangs on its cache: other bytes, other text.
    """
    torch.manual_seed(52)
    kind, own = _CONFIGS[family]
    config = kind(
        vocab_size=4096,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.15,
        tie_word_embeddings=False,
        **own,
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias"):
            torch.nn.init.normal_(parameter, std=KEY_BIASES[family])
    model.save_pretrained(folder)
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    return model


def write_tokenizer(folder: pathlib.Path, text: str) -> None:
    """Adds a tokenizer that transformers reads without other packages, with at most 1000 ids, learned from `text`."""
    special = ["<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=1000, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    pad, bos, eos = special
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=bos, eos_token=eos
    ).save_pretrained(folder)
