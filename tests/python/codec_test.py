#!/usr/bin/env python3
"""kvlathe.codec: the cache without the model, from Python.

usage: codec_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import gc
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

try:
    import numpy as np
except ImportError:
    sys.exit(77)

import kvlathe
from kvlathe.codec import Calibrator, Codec, Shape, Statistics, WeightGrams
from kvlathe.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, UnsupportedError

MODEL = pathlib.Path(sys.argv[2])
N = 300
SHAPE = Shape(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, max_positions=4096, rope_theta=10000.0)


def rows(seed: int = 0, n: int = N, shape: Shape = SHAPE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values of all layers, drawn."""
    draw = np.random.default_rng(seed)
    of = lambda heads: draw.standard_normal((shape.n_layers, n, heads, shape.head_dim)).astype(np.float32)
    return of(shape.n_heads), of(shape.n_kv_heads), of(shape.n_kv_heads)


def literal(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float | None = None,
    window: int = 0,
    cap: float = 0,
    sink_logits: np.ndarray | None = None,
) -> np.ndarray:
    """Causal attention in float64; the queries are of the last positions."""
    n, n_heads, d = q.shape
    group = n_heads // k.shape[1]
    out = np.zeros(q.shape)
    position = np.arange(k.shape[0] - n, k.shape[0])[:, None]
    back = position - np.arange(k.shape[0])[None]
    hidden = (back < 0) | ((back >= window) if window else False)
    for h in range(n_heads):
        score = q[:, h].astype(float) @ k[:, h // group].astype(float).T * (scale or 1 / math.sqrt(d))
        if cap:
            score = cap * np.tanh(score / cap)
        score[hidden] = -np.inf
        top = score.max(axis=1, keepdims=True)
        weight = np.exp(score - top)
        total = weight.sum(axis=1, keepdims=True)
        if sink_logits is not None:
            total += np.exp(sink_logits[h] - top)
        out[:, h] = weight / total @ v[:, h // group].astype(float)
    return out


def turned(x: np.ndarray, theta: float = 10000.0) -> np.ndarray:
    """Rows [n, heads, d] at their positions, as RoPE turns them."""
    n, _, d = x.shape
    angle = np.arange(n)[:, None] * theta ** (-np.arange(0, d, 2) / d)[None]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., : d // 2].astype(float), x[..., d // 2 :].astype(float)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1).astype(np.float32)


def feed(sequence, q, k, v, begin: int = 0, end: int = N, **options) -> list[np.ndarray]:
    """A step of all layers."""
    of_layers = range(q.shape[0])
    return [sequence.attend(l, q[l, begin:end], k[l, begin:end], v[l, begin:end], **options) for l in of_layers]


class CodecTest(unittest.TestCase):
    def test_plain_rows_give_attention_by_its_definition(self):
        q, k, v = rows()
        with Codec(SHAPE, n_threads=2).sequence() as sequence:
            got = feed(sequence, q, k, v, 0, 200)
            for t in range(200, N):
                got = [np.concatenate(pair) for pair in zip(got, feed(sequence, q, k, v, t, t + 1))]
            for l in range(SHAPE.n_layers):
                np.testing.assert_allclose(got[l], literal(q[l], k[l], v[l]), atol=2e-6)
            self.assertEqual(sequence.n_tokens, N)

    def test_windows_scales_and_rows_before_rope(self):
        q, k, v = rows()
        shape = Shape(
            n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, max_positions=512, rope_theta=10000.0, windows=[0, 50]
        )
        got = feed(Codec(shape, n_threads=1).sequence(), q, k, v, scale=0.1)
        np.testing.assert_allclose(got[0], literal(q[0], k[0], v[0], 0.1), atol=2e-6)
        np.testing.assert_allclose(got[1], literal(q[1], k[1], v[1], 0.1, 50), atol=2e-6)
        before = feed(Codec(SHAPE, n_threads=1).sequence(), q, k, v, rotated=False)
        np.testing.assert_allclose(before[0], literal(turned(q[0]), turned(k[0]), v[0]), atol=2e-5)

    def test_caps_and_sink_logits(self):
        q, k, v = rows()
        sinks = np.array([0.5, -1.0, 2.0, 3.0], np.float32)
        sizes = dict(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, max_positions=512, rope_theta=10000.0)
        for cap, logits in ((1.5, None), (0.0, sinks), (1.5, sinks)):
            with self.subTest(cap=cap, logits=logits):
                shape = Shape(**sizes, score_cap=cap, sink_logits=logits is not None)
                self.assertEqual((shape.score_cap, shape.sink_logits), (cap, logits is not None))
                sequence = Codec(shape, n_threads=1).sequence()
                got = feed(sequence, q, k, v, sink_logits=logits)
                for l in range(SHAPE.n_layers):
                    np.testing.assert_allclose(got[l], literal(q[l], k[l], v[l], cap=cap, sink_logits=logits), atol=4e-6)
        with self.assertRaisesRegex(ValueError, "shape has sink logits"):
            feed(Codec(Shape(**sizes, sink_logits=True), n_threads=1).sequence(), q, k, v)
        with self.assertRaisesRegex(ValueError, "the shape has none"):
            feed(Codec(SHAPE, n_threads=1).sequence(), q, k, v, sink_logits=sinks)
        with self.assertRaisesRegex(ValueError, "score_cap"):
            Shape(**sizes, score_cap=-1.0)

    def test_bytes_are_those_that_the_spec_promises(self):
        q, k, v = rows()
        for kv in ("none", "kivi(bits=4)", "turboquant(bits=3)", "snapkv(budget=100)", "kivi(bits=2)+sparse"):
            with self.subTest(kv):
                codec = Codec(SHAPE, kv, n_threads=1)
                sequence = codec.sequence()
                self.assertEqual((sequence.nbytes, sequence.fraction), (0, 0))
                feed(sequence, q, k, v, 0, 250)
                for t in range(250, N):
                    feed(sequence, q, k, v, t, t + 1)
                self.assertEqual(sequence.nbytes, codec.bytes_at(N, 250))
                self.assertEqual(sum(sequence.bytes_by_kind.values()), sequence.nbytes)
                of_16_bits = 2 * 2 * SHAPE.n_layers * SHAPE.n_kv_heads * SHAPE.head_dim * N
                self.assertAlmostEqual(sequence.fraction, sequence.nbytes / of_16_bits)
                if kv == "kivi(bits=4)":
                    self.assertLess(codec.fraction, 0.45)
                    self.assertIn("bits=4", codec.spec)

    def test_rows_come_back(self):
        q, k, v = rows()
        for kv, most in (("none", 1e-7), ("int8", 0.01), ("kivi(bits=4)", 0.12), ("kcvt(bits=2)", 0.6)):
            with self.subTest(kv):
                codec = Codec(SHAPE, kv, n_threads=2)
                of_k, of_v = codec.decode(codec.encode(k, v))
                self.assertEqual(of_k.shape, k.shape)
                for got, want in ((of_k, k), (of_v, v)):
                    self.assertLessEqual(np.linalg.norm(got - want) / np.linalg.norm(want), most)
        codec = Codec(SHAPE, "snapkv(budget=100)", n_threads=1)
        with self.assertRaisesRegex(InvalidArgumentError, "give q"):
            codec.encode(k, v)
        sequence = codec.encode(k, v, q)
        with self.assertRaisesRegex(FailedPreconditionError, "of 300 positions"):
            codec.decode(sequence)
        with self.assertRaisesRegex(FailedPreconditionError, "no positions"):
            sequence.positions(0, 1)
        sequence = Codec(SHAPE, "h2o(keep=0.5)", n_threads=1).encode(k, v, q)
        positions = sequence.positions(0, 1)
        self.assertEqual(len(positions), sequence.keys(0).shape[0])
        np.testing.assert_array_equal(sequence.keys(0)[:, 1], k[0, positions, 1])
        np.testing.assert_array_equal(sequence.values(0)[:, 1], v[0, positions, 1])

    def test_biases_of_keys_are_taken_off_and_given_back(self):
        _, k, v = rows()
        # Of pairs that hardly turn; a group of a token's code has all channels of a key.
        biases = np.zeros((2, 2, 32), dtype=np.float32)
        biases[..., [15, 31]] = 60, -40
        k += np.stack([turned(np.broadcast_to(of_layer, (N, 2, 32))) for of_layer in biases]).astype(np.float32)
        errors = []
        for weights in (None, WeightGrams(key_biases=biases)):
            codec = Codec(SHAPE, "token(bits=4)", weights=weights, max_positions=1024)
            sequence = codec.encode(k, v)
            read, _ = codec.decode(sequence)
            np.testing.assert_array_equal(sequence.keys(1), read[1])
            errors.append(float(np.mean((read - k) ** 2)))
        self.assertLess(errors[1], errors[0] / 4)
        with self.assertRaisesRegex(ValueError, "weights.key_biases has another shape"):
            Codec(SHAPE, "token(bits=4)", weights=WeightGrams(key_biases=biases[:1]))

    def test_saved_sequences_go_on(self):
        q, k, v = rows()
        codec = Codec(SHAPE, "kivi(bits=4,run=64)", n_threads=2)
        sequence = codec.sequence(n_prompt=250)
        feed(sequence, q, k, v, 0, 260)
        data = sequence.to_bytes()
        others = [codec.load(data), codec.load(bytearray(data)), sequence.copy()]
        want = feed(sequence, q, k, v, 260, 280)
        for other in others:
            self.assertEqual(other.n_tokens, 260)
            np.testing.assert_array_equal(feed(other, q, k, v, 260, 280), want)
        # The same by another codec, and by none of another spec or shape.
        Codec(SHAPE, "kivi(bits=4,run=64)", n_threads=1).load(data)
        for foreign in (
            Codec(SHAPE, "kivi(bits=3,run=64)", n_threads=1),
            Codec(SHAPE, "kivi(bits=4,run=64)", dtype="bfloat16", n_threads=1),
            Codec(
                Shape(n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32, max_positions=4096, rope_theta=5e5),
                "kivi(bits=4,run=64)",
                n_threads=1,
            ),
        ):
            with self.assertRaises(DataLossError):
                foreign.load(data)
        for damaged in (b"", b"KVLCODEC", data[:100], data[:-1], data + b"x", data[:5000] + b"?" + data[5001:]):
            with self.assertRaises(DataLossError):
                codec.load(damaged)
        with self.assertRaises(TypeError):
            codec.load("text")

    def test_a_batch_is_its_sequences_apart(self):
        q, k, v = rows()
        codec = Codec(SHAPE, "kivi(bits=4,run=64)", n_threads=2)
        pair, alone = [codec.sequence(), codec.sequence()], codec.sequence()
        for l in range(SHAPE.n_layers):
            out = np.empty_like(q[l])
            self.assertIs(codec.attend(pair, l, q[l], k[l], v[l], n_new=[100, 200], out=out), out)
            want = alone.attend(l, q[l, 100:], k[l, 100:], v[l, 100:])
            np.testing.assert_allclose(out[100:], want, atol=2e-6)
        self.assertEqual([s.n_tokens for s in pair], [100, 200])
        self.assertEqual(pair[1].to_bytes(), alone.to_bytes())

    def test_rows_that_are_not_finite_fail_alone(self):
        q, k, v = rows()
        codec = Codec(SHAPE, "kivi(bits=4,run=64)", n_threads=2)
        broken, whole = codec.sequence(), codec.sequence()
        k[0, 10, 0, 0] = np.nan
        out = np.empty_like(q[0])
        with self.assertRaisesRegex(DataLossError, "sequence 0: layer 0: .*NaN"):
            codec.attend([broken, whole], 0, q[0], k[0], v[0], out=out)
        half = N // 2
        np.testing.assert_allclose(out[half:], codec.sequence().attend(0, q[0, half:], k[0, half:], v[0, half:]), atol=2e-6)
        self.assertEqual(np.abs(out[:half]).max(), 0)
        whole.attend(1, q[1, half:], k[1, half:], v[1, half:])
        self.assertEqual((broken.n_tokens, whole.n_tokens), (0, half))
        self.assertIn("NaN", broken.failure)
        with self.assertRaisesRegex(FailedPreconditionError, "reset it"):
            broken.attend(1, q[1, :half], k[1, :half], v[1, :half])
        broken.reset()
        self.assertIsNone(broken.failure)
        feed(broken, q, k + np.float32(0), v, 20, 40)

    def test_wrong_arrays_are_one_clear_line(self):
        q, k, v = (x[0] for x in rows(n=8))
        sequence = Codec(SHAPE, n_threads=1).sequence()
        for arguments, kind, line in (
            ((0, q[:, :3], k, v), ValueError, r"q has shape \[8, 3, 32\]; it should be \[n, 4, 32\]"),
            ((0, q, k[:7], v), ValueError, r"k has shape \[7, 2, 32\]; it should be \[8, 2, 32\]"),
            ((0, q, k, v[0]), ValueError, "v has shape"),
            ((0, q.astype(np.float64), k, v), TypeError, "q is of 64 bits"),
            ((0, q.astype(np.int32), k, v), TypeError, "q is of 32 bits of another type"),
            ((0, q.tolist(), k, v), TypeError, "q is no array"),
            ((0, None, k, v), TypeError, "q is None"),
            ((0, q[:0], k[:0], v[:0]), ValueError, "no new positions"),
            ((2, q, k, v), ValueError, "layer 2: there are layers 0 to 1"),
            ((-1, q, k, v), ValueError, "layer -1: there are layers 0 to 1"),
            ((1, q, k, v), ValueError, "its next layer is 0"),
        ):
            with self.assertRaisesRegex(kind, line):
                sequence.attend(*arguments)
        with self.assertRaisesRegex(TypeError, "out is written in float32"):
            sequence.attend(0, q, k, v, out=np.empty(q.shape, np.float16))
        with self.assertRaisesRegex(ValueError, "not contiguous"):
            sequence.attend(0, q, k, v, out=np.empty((8, 4, 64), np.float32)[..., ::2])
        read_only = np.empty_like(q)
        read_only.flags.writeable = False
        with self.assertRaises(TypeError):
            sequence.attend(0, q, k, v, out=read_only)
        with self.assertRaisesRegex(ValueError, "scale"):
            sequence.attend(0, q, k, v, scale=math.inf)
        self.assertEqual((sequence.n_tokens, sequence.next_layer), (0, 0))
        # Half numbers and arrays with gaps are read.
        want = sequence.attend(0, q, k, v)
        wide = np.zeros((8, 2, 64), np.float32)
        wide[..., ::2] = k
        other = Codec(SHAPE, n_threads=1).sequence()
        np.testing.assert_array_equal(other.attend(0, q.swapaxes(0, 1).copy().swapaxes(0, 1), wide[..., ::2], v), want)
        with self.assertRaisesRegex(ValueError, "the step began with 8"):
            other.attend(1, q[:4], k[:4], v[:4])
        half = Codec(SHAPE, n_threads=1).sequence().attend(0, *(x.astype(np.float16) for x in (q, k, v)))
        np.testing.assert_allclose(half, want, atol=5e-3)

    def test_wrong_calls_are_one_clear_line(self):
        q, k, v = (x[0] for x in rows(n=8))
        codec, other = Codec(SHAPE, n_threads=1), Codec(SHAPE, n_threads=1)
        sequence = codec.sequence()
        with self.assertRaisesRegex(ValueError, "of another codec"):
            other.attend([sequence], 0, q, k, v)
        with self.assertRaisesRegex(ValueError, "of another codec"):
            other.decode(sequence)
        with self.assertRaisesRegex(ValueError, "there twice"):
            codec.attend([sequence, sequence], 0, q, k, v)
        with self.assertRaisesRegex(ValueError, "no sequences"):
            codec.attend([], 0, q, k, v)
        with self.assertRaisesRegex(ValueError, "n_new has 1 numbers of sum 7"):
            codec.attend([sequence], 0, q, k, v, n_new=[7])
        with self.assertRaisesRegex(ValueError, "sequence 1: no new positions"):
            codec.attend([sequence, codec.sequence()], 0, q, k, v, n_new=[9, -1])
        sequence.attend(0, q, k, v)
        for call in (sequence.to_bytes, sequence.copy, lambda: sequence.keys(0)):
            with self.assertRaisesRegex(FailedPreconditionError, "within a step, at layer 1 of 2"):
                call()
        sequence.close()
        sequence.close()
        for call in (sequence.to_bytes, sequence.copy, sequence.reset, lambda: sequence.nbytes, lambda: sequence.n_tokens):
            with self.assertRaisesRegex(FailedPreconditionError, "closed"):
                call()
        with self.assertRaisesRegex(FailedPreconditionError, "closed"):
            sequence.attend(1, q, k, v)
        long = Codec(SHAPE, max_positions=4, n_threads=1).sequence()
        self.assertEqual(long.n_tokens, 0)

    def test_specs_and_shapes_that_cannot_be(self):
        for kv, kind, line in (
            ("no such", InvalidArgumentError, "no such"),
            ("kvzip", UnsupportedError, "second time"),
            ("dmc", InvalidArgumentError, "retrofitted"),
            ("lathe(ratio=4)", InvalidArgumentError, "needs statistics"),
        ):
            with self.assertRaisesRegex(kind, line):
                Codec(SHAPE, kv, n_threads=1)
        with self.assertRaisesRegex(ValueError, "dtype is 'float16'"):
            Codec(SHAPE, dtype="float16")
        with self.assertRaisesRegex(ValueError, "max_positions=5000"):
            Codec(SHAPE, max_positions=5000, n_threads=1)
        with self.assertRaisesRegex(ValueError, "n_threads"):
            Codec(SHAPE, n_threads=-1)
        with self.assertRaises(TypeError):
            Codec({"n_layers": 2}, n_threads=1)  # type: ignore[arg-type]
        good = {"n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "max_positions": 64}
        for change in ({"n_layers": 0}, {"n_kv_heads": 3}, {"head_dim": 24}, {"windows": [1, 2]}, {"rope_theta": -1.0}):
            with self.assertRaises(InvalidArgumentError):
                Shape(**(good | change))
        with self.assertRaises(kvlathe.KvlatheError):
            Shape.from_config({"model_type": "no such family"})
        with self.assertRaises(FileNotFoundError):
            Shape.from_config("/no/such/folder")
        with self.assertRaises(TypeError):
            Shape.from_config(7)

    def test_shapes_are_those_of_a_config(self):
        config = json.loads((MODEL / "config.json").read_text())

        class Configuration:
            def to_dict(self):
                return config

        for given in (MODEL, MODEL / "config.json", config, Configuration()):
            shape = Shape.from_config(given)
            self.assertEqual(shape.n_layers, config["num_hidden_layers"])
            self.assertEqual(shape.n_kv_heads, config["num_key_value_heads"])
            self.assertEqual(shape.max_positions, config["max_position_embeddings"])
            self.assertEqual(shape.windows, [0] * shape.n_layers)

    def test_captured_rows_give_bases(self):
        q, k, v = rows(1, 600)
        mix = np.random.default_rng(2).standard_normal((32, 32)) * np.exp(-0.3 * np.arange(32))[:, None]
        k, v = (np.ascontiguousarray(x @ mix, dtype=np.float32) for x in (k, v))
        calibrator = Calibrator(SHAPE, n_threads=2)
        with self.assertRaisesRegex(InvalidArgumentError, "the next layer is 0"):
            calibrator.add(1, q[1], k[1], v[1])
        for begin, end in ((0, 400), (400, 600), (0, 600)):
            for l in range(SHAPE.n_layers):
                calibrator.add(l, q[l, begin:end], k[l, begin:end], v[l, begin:end], rotated=False, first_position=begin)
        statistics = calibrator.finish()
        self.assertEqual(statistics.n_tokens, 1200)
        with self.assertRaisesRegex(FailedPreconditionError, "finished"):
            calibrator.finish()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "basis.safetensors")
            statistics.save(path)
            for basis in (statistics, path, Statistics.load(path)):
                codec = Codec(SHAPE, "fdc(rate=0.3)+kivi(bits=8)", basis=basis, n_threads=2)
                sequence = codec.sequence()
                for l in range(SHAPE.n_layers):
                    sequence.attend(l, q[l], k[l], v[l], rotated=False)
                of_v = codec.decode(sequence)[1]
                self.assertLess(np.linalg.norm(of_v - v) / np.linalg.norm(v), 0.2)
                self.assertEqual(sequence.nbytes, codec.bytes_at(600))
            with self.assertRaisesRegex(FailedPreconditionError, "gradients"):
                Codec(SHAPE, "lathe(ratio=4)", basis=path, n_threads=1)
            other = Shape(n_layers=3, n_heads=4, n_kv_heads=2, head_dim=32, max_positions=4096, rope_theta=10000.0)
            with self.assertRaises(InvalidArgumentError):
                Codec(other, "fdc", basis=path, n_threads=1)

    def test_the_example_runs(self):
        example = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/python/codec.py"
        for arguments in ([], [str(MODEL), "turboquant(bits=3)"]):
            command = [sys.executable, "-B", str(example), *arguments]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self.assertIn("520 positions in", said)

    def test_threads_take_turns(self):
        q, k, v = rows()
        codec = Codec(SHAPE, "kivi(bits=4,run=64)", n_threads=2)
        want = feed(codec.sequence(), q, k, v)
        errors = []

        def work():
            try:
                for _ in range(3):
                    np.testing.assert_array_equal(feed(codec.sequence(), q, k, v), want)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            gc.collect()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_children_of_a_fork_get_an_exception(self):
        q, k, v = rows()
        codec = Codec(SHAPE, "kivi(bits=4)", n_threads=2)
        sequence = codec.sequence()
        feed(sequence, q, k, v)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sequence.attend(0, q[0], k[0], v[0])
            except FailedPreconditionError:
                code = 0
            del sequence, codec
            gc.collect()
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        feed(sequence, q, k, v, 0, 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
