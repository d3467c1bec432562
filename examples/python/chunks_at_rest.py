"""What a prompt loses whose keys and values lay at rest in chunks: chunks_at_rest.py MODEL TEXT CACHE...

    chunks_at_rest.py models/lathe-nano models/lathe-nano/sample.txt 'kivi(bits=4,group=64,sink=0)'

A model of transformers reads a text. Its cache is cut into chunks of 256 tokens, each of which is packed and unpacked by
itself, as LMCache does with kvlathe's serde. Then the model reads on with the rows that came back, and with its own. MODEL
is a directory of Hugging Face, or a .gguf file (with the packages gguf and accelerate). CACHE@FILE gives a cache its basis.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import torch
import transformers

import kvlathe
from kvlathe.chunks import ChunkCodec

CHUNK, N_CHUNKS, N_READ_ON = 256, 2, 256


def load(path: pathlib.Path) -> transformers.PreTrainedModel:
    if path.suffix == ".gguf":
        return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def chunk_of(cache: transformers.DynamicCache, begin: int) -> np.ndarray:
    """[2, n_layers, 256, n_kv_heads * head_dim]: keys behind RoPE, and values."""
    rows = [[getattr(layer, name)[0, :, begin : begin + CHUNK] for layer in cache.layers] for name in ("keys", "values")]
    return np.stack([[one.transpose(0, 1).flatten(1).numpy() for one in layers] for layers in rows])


def cache_of(chunks: list[np.ndarray], config: transformers.PretrainedConfig) -> transformers.DynamicCache:
    """The cache of all these chunks, one behind the other."""
    rows = torch.from_numpy(np.concatenate(chunks, axis=2))
    by_heads = rows.view(*rows.shape[:3], config.num_key_value_heads, -1).transpose(2, 3)
    cache = transformers.DynamicCache()
    for layer in range(by_heads.shape[1]):
        cache.update(by_heads[0, layer, None], by_heads[1, layer, None], layer)
    return cache


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(f"usage: {sys.argv[0]} MODEL TEXT CACHE[@BASIS]...")
    path = pathlib.Path(sys.argv[1])
    with kvlathe.LLM(path, quiet=True) as llm:
        ids = llm.encode(pathlib.Path(sys.argv[2]).read_text())
    n = CHUNK * N_CHUNKS
    if len(ids) < n + N_READ_ON:
        sys.exit(f"the text has {len(ids)} tokens, but has to have {n + N_READ_ON}")
    model = load(path)
    prompt, rest = torch.tensor([ids[:n]]), torch.tensor([ids[n : n + N_READ_ON]])
    with torch.no_grad():
        cache = model(prompt, use_cache=True).past_key_values
        chunks = [chunk_of(cache, begin) for begin in range(0, n, CHUNK)]
        expected = model(rest, past_key_values=cache).logits.log_softmax(-1)
        for given in sys.argv[3:]:
            kv, _, basis = given.partition("@")
            codec = ChunkCodec(kv, path, basis=basis or None, chunk_tokens=CHUNK)
            packed = [codec.pack(chunk) for chunk in chunks]
            again = cache_of([codec.unpack(data) for data in packed], model.config)
            log_likely = model(rest, past_key_values=again).logits.log_softmax(-1)
            kl = (expected.exp() * (expected - log_likely)).sum(-1).mean()
            share = sum(map(len, packed)) / (2 * sum(chunk.size for chunk in chunks))
            print(f"{kv:45} {100 * share:5.1f}% of 16 bits, KL {kl:.5f} nats a token")


if __name__ == "__main__":
    main()
