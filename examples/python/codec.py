#!/usr/bin/env python3
"""Compresses keys and values that come from elsewhere, attends to them, and reads them back.

usage: codec.py [CONFIG] [KV]

CONFIG is a config.json or a folder that has one; without it the shape is said by hand. The rows are drawn: put those of
a model in their place.
"""

import sys

import numpy as np

from kvlathe.codec import Codec, Shape


def main() -> None:
    if len(sys.argv) > 1:
        shape = Shape.from_config(sys.argv[1])
    else:
        shape = Shape(n_layers=4, n_heads=8, n_kv_heads=2, head_dim=64, max_positions=8192, rope_theta=10000.0)
    codec = Codec(shape, sys.argv[2] if len(sys.argv) > 2 else "kivi(bits=4)", dtype="bfloat16")
    print(f"{shape}\n{codec.spec}\nfraction at the full context: {codec.fraction:.3f}")

    draw = np.random.default_rng(0)

    def rows(n: int, n_heads: int) -> np.ndarray:
        return draw.standard_normal((n, n_heads, shape.head_dim)).astype(np.float32)

    sequence = codec.sequence()
    # A prompt of 500 positions, then 20 more, one at a time: each is a step of all layers.
    for n_new in (500, *[1] * 20):
        for layer in range(shape.n_layers):
            q, k, v = rows(n_new, shape.n_heads), rows(n_new, shape.n_kv_heads), rows(n_new, shape.n_kv_heads)
            out = sequence.attend(layer, q, k, v)
            assert out.shape == q.shape
    print(f"{sequence.n_tokens} positions in {sequence.nbytes} bytes, {sequence.fraction:.3f} of those of 16 bits")
    print({kind: n for kind, n in sequence.bytes_by_kind.items() if n})

    saved = sequence.to_bytes()
    again = codec.load(saved)
    keys, values = codec.decode(again)
    print(f"saved in {len(saved)} bytes; keys {keys.shape} and values {values.shape} read back")


if __name__ == "__main__":
    main()
