"""Writes golden.json for src/io/gguf/ggml_types_test.cc: what the Python package gguf makes of random blocks
of every type that GgmlType has, and the layouts of all types that the package knows.

Usage: make_golden.py

Run with gguf 0.19.0 and numpy 2.4.6. The blocks are not stored: the test makes the same ones from the
seed, and a CRC of them tells a difference in the blocks from one in the values.
"""

import importlib.metadata
import json
import pathlib

import gguf
import numpy as np

SEED = 20
N_BLOCKS = 300
N_VALUES = 9600  # of the types without blocks
# The F16 scales of a block by their byte offset.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}
# Of the types whose blocks have an exponent: where its byte stands.
EXPONENTS = {"MXFP4": 0}
PLAIN = ["F32", "F16", "BF16"]
GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix_bits(x):
    x = (x + GOLDEN_RATIO) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def random_numbers(stream, n):
    """The first n numbers of Random(SEED, stream) of src/base/random.h."""
    key = mix_bits(SEED ^ mix_bits(stream))
    return [mix_bits((key + i * GOLDEN_RATIO) & MASK) for i in range(n)]


def random_bytes(stream, n_bytes):
    numbers = np.array(random_numbers(stream, (n_bytes + 7) // 8), dtype="<u8")
    return numbers.view(np.uint8)[:n_bytes].copy()


def scale_bits(number):
    """One scale in eight is a zero and one subnormal, of both signs; none is infinite or a NaN."""
    bits = number >> 16 & 0xFFFF
    kind = number % 8
    if kind == 0:
        return bits & 0x8000
    if kind == 1:
        return (bits & 0x83FF) | 1
    return bits & ~0x4000 if bits & 0x7C00 == 0x7C00 else bits


def exponent_byte(number):
    """One exponent in eight is one of the two whose powers are subnormal; none makes a value infinite."""
    kind = number % 8
    return number >> 16 & 1 if kind == 0 else (number >> 16) % 253


def blocks_of(name):
    quant_type = gguf.GGMLQuantizationType[name]
    if name in PLAIN:
        dtype, exponent = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}[name]
        values = random_bytes(quant_type, N_VALUES * np.dtype(dtype).itemsize).view(dtype)
        values[values & exponent == exponent] &= np.array(~exponent & 0xFFFFFFFF).astype(dtype)
        return values.view(np.uint8)
    block_bytes = gguf.GGML_QUANT_SIZES[quant_type][1]
    blocks = random_bytes(quant_type, N_BLOCKS * block_bytes).reshape(N_BLOCKS, block_bytes)
    if name in EXPONENTS:
        numbers = random_numbers(1000 + quant_type, N_BLOCKS)
        blocks[:, EXPONENTS[name]] = [exponent_byte(number) for number in numbers]
        return blocks.reshape(-1)
    numbers = iter(random_numbers(1000 + quant_type, N_BLOCKS * len(SCALES[name])))
    for block in blocks:
        for offset in SCALES[name]:
            block[offset:offset + 2] = np.array([scale_bits(next(numbers))], dtype="<u2").view(np.uint8)
    return blocks.reshape(-1)


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def golden(name):
    blocks = blocks_of(name)
    values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    assert values.dtype == np.float32 and np.isfinite(values).all()
    bits = values.reshape(-1).view("<u4")
    spots = range(0, len(bits), len(bits) // 24 | 1)  # odd: another place in each block
    return {
        "blocks_crc32c": f"{crc32c(blocks.tobytes()):08x}",
        "n_values": len(bits),
        "values_crc32c": f"{crc32c(bits.tobytes()):08x}",
        "spots": {str(i): f"{bits[i]:08x}" for i in spots},
    }


def main():
    layouts = {
        str(int(quant_type)): "{} {} {}".format(quant_type.name, *gguf.GGML_QUANT_SIZES[quant_type])
        for quant_type in gguf.GGMLQuantizationType
    }
    document = {
        "made_with": {name: importlib.metadata.version(name) for name in ("gguf", "numpy")},
        "seed": SEED,
        "n_blocks": N_BLOCKS,
        "layouts": layouts,
        "types": {name: golden(name) for name in PLAIN + list(SCALES) + list(EXPONENTS)},
    }
    text = json.dumps(document, indent=1)
    (pathlib.Path(__file__).parent / "golden.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
