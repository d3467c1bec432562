#!/usr/bin/env python3
"""Averages BF16 safetensors of the same tensors: average_weights.py OUT FILE=WEIGHT FILE=WEIGHT ...

Runs that start from each other's weights lie close enough that their mean is better than any of them
(models/README.md). Sums are in double, rounded to nearest even.
"""
import array
import json
import struct
import sys


def read(path):
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    return data, 8 + size, json.loads(data[8 : 8 + size])


def numbers(data, base, tensor):
    if tensor["dtype"] != "BF16":
        sys.exit(f"average_weights.py: {tensor['dtype']} where BF16 is wanted")
    begin, end = tensor["data_offsets"]
    halves = array.array("H", data[base + begin : base + end])
    wide = array.array("I", (half << 16 for half in halves))
    return array.array("f", wide.tobytes())


def to_bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def main():
    out, parts = sys.argv[1], [part.rsplit("=", 1) for part in sys.argv[2:]]
    files = [(read(path), float(weight)) for path, weight in parts]
    data, base, header = files[0][0]
    result = bytearray(data)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        columns = [numbers(d, b, h[name]) for (d, b, h), _ in files]
        weights = [weight for _, weight in files]
        means = array.array("H", (to_bf16(sum(w * x for w, x in zip(weights, row))) for row in zip(*columns)))
        begin, end = tensor["data_offsets"]
        result[base + begin : base + end] = means.tobytes()
    with open(out, "wb") as file:
        file.write(result)


main()
