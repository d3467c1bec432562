#!/usr/bin/env python3
"""A calibrator that is shown gradients: what it makes of them is their Fisher information.

usage: calibrator_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""
import json
import pathlib
import struct
import sys
import tempfile
import unittest

import numpy as np

from kvlathe.codec import Calibrator, Codec, Shape
from kvlathe.errors import FailedPreconditionError, InvalidArgumentError

N_LAYERS, N_KV_HEADS, DIM = 2, 2, 16
N_TOKENS, N_SINKS = 40, 4
SHAPE = dict(n_layers=N_LAYERS, n_heads=4, n_kv_heads=N_KV_HEADS, head_dim=DIM, max_positions=64)


def tensors_of(statistics):
    """What the file of statistics holds, by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "basis.safetensors"
        statistics.save(path)
        data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
    return tensors


class Rows:
    """Of one sequence, all layers: queries, keys, values, and gradients to the latter two."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.q = random.standard_normal((N_LAYERS, N_TOKENS, 4, DIM), dtype=np.float32)
        of_keys = (N_LAYERS, N_TOKENS, N_KV_HEADS, DIM)
        self.k, self.v, self.to_k, self.to_v, self.all_k, self.all_v = (
            random.standard_normal(of_keys, dtype=np.float32) for _ in range(6)
        )

    def show(self, calibrator, **options):
        for layer in range(N_LAYERS):
            calibrator.add(layer, self.q[layer], self.k[layer], self.v[layer], **options)

    def show_gradients(self, calibrator, layers=range(N_LAYERS - 1, -1, -1), n=N_TOKENS):
        for layer in layers:
            pairs = ((self.k, self.v), (self.to_k, self.to_v), (self.all_k, self.all_v))
            calibrator.add_gradients(layer, *((one[layer, :n], other[layer, :n]) for one, other in pairs))


def fisher_of(gradients):
    """[layers, 1, heads * dim, heads * dim], of the positions behind the sinks."""
    behind = gradients[:, N_SINKS:].reshape(N_LAYERS, N_TOKENS - N_SINKS, -1).astype(np.float64)
    return (np.swapaxes(behind, 1, 2) @ behind / (2 * N_TOKENS))[:, None]


def turned_back(rows, theta):
    """Rows after RoPE as they are before it; gradients alike, for RoPE keeps lengths."""
    half = DIM // 2
    angles = np.arange(N_TOKENS)[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[None, :, None], np.sin(angles)[None, :, None]
    x, y = rows[..., :half], rows[..., half:]
    return np.concatenate([x * cos + y * sin, y * cos - x * sin], -1)


class CalibratorTest(unittest.TestCase):
    def test_gradients_become_fisher_information(self):
        theta = 100.0
        calibrator = Calibrator(Shape(**SHAPE, rope_theta=theta), n_threads=1)
        rows, held_back = Rows(1), Rows(2)
        rows.show(calibrator)
        rows.show_gradients(calibrator)
        held_back.show(calibrator, held_back=True)
        held_back.show_gradients(calibrator)
        tensors = tensors_of(calibrator.finish())
        for name, gradients in (
            ("joint.v.fisher", rows.to_v),
            ("joint.k.fisher", rows.to_k),
            ("joint.k_pre.fisher", turned_back(rows.to_k, theta)),
            ("held_back.v.fisher", held_back.to_v),
            ("through_all.v.fisher", rows.all_v),
        ):
            with self.subTest(name=name):
                np.testing.assert_allclose(tensors[name], fisher_of(gradients), rtol=1e-4, atol=1e-4)

    def test_lathe_needs_them(self):
        shape = Shape(**SHAPE, rope_theta=100.0)
        for has_gradients in (True, False):
            calibrator = Calibrator(shape, n_threads=1)
            rows = Rows(3)
            rows.show(calibrator)
            if has_gradients:
                rows.show_gradients(calibrator)
            statistics = calibrator.finish()
            if has_gradients:
                self.assertIn("lathe", Codec(shape, "lathe(rate=0.3)", basis=statistics, n_threads=1).spec)
                continue
            with self.assertRaisesRegex(FailedPreconditionError, "gradients"):
                Codec(shape, "lathe(rate=0.3)", basis=statistics, n_threads=1)

    def test_gradients_out_of_order(self):
        calibrator = Calibrator(Shape(**SHAPE), n_threads=1)
        rows = Rows(4)
        with self.assertRaisesRegex(InvalidArgumentError, "behind all rows"):
            rows.show_gradients(calibrator)
        rows.show(calibrator)
        with self.assertRaisesRegex(InvalidArgumentError, "gradients of 7 rows"):
            rows.show_gradients(calibrator, n=7)
        with self.assertRaisesRegex(InvalidArgumentError, "layers 0 to 1"):
            rows.show_gradients(calibrator, layers=[0, -1])
        with self.assertRaisesRegex(InvalidArgumentError, "has its gradients already"):
            rows.show_gradients(calibrator, layers=[0])
        with self.assertRaisesRegex(FailedPreconditionError, "of 1 layers of 1 sequences"):
            calibrator.finish()
        rows.show_gradients(calibrator, layers=[1])
        self.assertEqual(calibrator.finish().n_tokens, N_TOKENS)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
