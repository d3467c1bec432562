"""Whole tensors of shards, as safetensors of BF16."""

import functools
import json
import math
import struct

from megatron_parts.torch_file import ELEMENT_BYTES, CheckpointError

WEIGHT_TYPES = ("BF16", "F16", "F32")
_LANES = 1 << 16  # values that are rounded at once


class Rows:
    """A matrix or vector in memory, of which rows are taken. `data` holds shape[0] rows of the same size."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), data
        self._row_bytes = math.prod(self.shape[1:]) * ELEMENT_BYTES[dtype]

    def part(self, begin, end):
        data = memoryview(self.data)[begin * self._row_bytes : end * self._row_bytes]
        return Rows(self.dtype, (end - begin, *self.shape[1:]), data)


class Whole:
    """A tensor of all shards: its shape, and a function that reads its Rows."""

    def __init__(self, shape, read):
        self.shape, self.read = tuple(shape), read


def rows_of(tensor):
    return Rows(tensor.dtype, tensor.shape, tensor.data())


def stack(parts):
    """Matrices below one another."""
    return Rows(parts[0].dtype, (sum(p.shape[0] for p in parts), *parts[0].shape[1:]), b"".join(p.data for p in parts))


def join_columns(parts):
    """Matrices side by side."""
    n_rows = parts[0].shape[0]
    rows = [part.part(r, r + 1).data for r in range(n_rows) for part in parts]
    return Rows(parts[0].dtype, (n_rows, sum(p.shape[1] for p in parts)), b"".join(rows))


@functools.lru_cache(maxsize=16)
def _lanes(value, n):
    return int.from_bytes(struct.pack("<I", value) * n, "little")


def _some_is_not_finite(bits, n):
    """Of F32: whether an exponent is all ones."""
    return ((bits & _lanes(0x7F800000, n)) + _lanes(0x00800000, n)) & _lanes(0x80000000, n) != 0


def _round_to_bf16(data, name):
    """Of F32, to the nearest, ties to even: many numbers at once, as lanes of 32 bits of one long integer."""
    n = len(data) // 4
    bits = int.from_bytes(data, "little")
    if _some_is_not_finite(bits, n):
        raise CheckpointError(f"{name} holds numbers that are not finite")
    rounded = bits + _lanes(0x7FFF, n) + ((bits >> 16) & _lanes(1, n))
    if _some_is_not_finite(rounded, n):
        raise CheckpointError(f"{name} holds numbers that are too large for BF16")
    lanes = rounded.to_bytes(4 * n, "little")
    halves = bytearray(2 * n)
    halves[0::2], halves[1::2] = lanes[2::4], lanes[3::4]
    return halves


def to_bf16(rows, name):
    """The bytes in BF16. F16 goes by way of F32."""
    if rows.dtype == "BF16":
        return rows.data
    data = memoryview(rows.data)
    step = _LANES * ELEMENT_BYTES[rows.dtype]
    parts = []
    for begin in range(0, len(data), step):
        part = data[begin : begin + step]
        if rows.dtype == "F16":
            n = len(part) // 2
            part = struct.pack(f"<{n}f", *struct.unpack(f"<{n}e", part))
        parts.append(_round_to_bf16(part, name))
    return b"".join(parts)


def write_safetensors(path, tensors):
    """tensors: (name, shape, function that returns the BF16 bytes), which are asked for one after the other."""
    header, end = {}, 0
    for name, shape, _ in tensors:
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape, read in tensors:
            data = read()
            if len(data) != 2 * math.prod(shape):
                raise CheckpointError(f"{name} has {len(data)} bytes where {2 * math.prod(shape)} were expected")
            file.write(data)
