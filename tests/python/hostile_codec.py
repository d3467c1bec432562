"""Hostile calls of kvlathe.codec (hostile_test.py)."""

import itertools
import os
import pathlib
import tempfile
import threading
from typing import Any

import numpy as np

from hostile_calls import Calls, batch
from kvlathe.codec import Calibrator, Codec, Sequence, Shape, Statistics

SHAPE = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "max_positions": 512, "rope_theta": 1e4}
NUMBERS = (None, -1, 0, 2**31, 2**70, 1.5, float("nan"), "7", b"7", [], object())


def rows(n: int = 8) -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((n, heads, 32)).astype(np.float32) for heads in (4, 2, 2))
    return q, k, v


@batch
def codec_making(calls: Calls, model: pathlib.Path) -> None:
    for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "max_positions"):
        for value in (*NUMBERS, 2**30):
            calls.refused(f"Shape({name}={value!r})", lambda name=name, value=value: Shape(**(SHAPE | {name: value})))
    for theta in ("x", b"1", [], float("nan"), float("inf"), -1.0, 0.0, 1e300):
        calls.refused(f"rope_theta={theta!r}", lambda theta=theta: Shape(**(SHAPE | {"rope_theta": theta})))
    for windows in ("ab", 5, [1], [1, -2], [1, 2, 3], [None, 1], [2**40, 1]):
        calls.refused(f"windows={windows!r}", lambda windows=windows: Shape(**SHAPE, windows=windows))
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "config.json").write_text("{" * 100000)
    (folder / "garbage.gguf").write_bytes(os.urandom(4096))
    (folder / "garbage.safetensors").write_bytes(os.urandom(4096))
    for config in (None, 5, {}, [], "", "a\0b", "/", folder, folder / "garbage.gguf", {"model_type": 7}, {"model_type": "llama"}):
        calls.refused(f"from_config({config!r})", lambda config=config: Shape.from_config(config))
    shape = Shape(**SHAPE)
    for kv in (None, 5, [], "", "(", "kivi(bits=99)", "lathe(ratio=4)", "fdc", "kvquant", "kvzip", "\ud800", "x" * 10000):
        calls.refused(f"Codec(kv={str(kv)[:20]!a})", lambda kv=kv: Codec(shape, kv, n_threads=1))
    for basis in (5, folder, folder / "missing", folder / "garbage.safetensors", object()):
        calls.refused(f"Codec(basis={basis!r})", lambda basis=basis: Codec(shape, "fdc", basis=basis, n_threads=1))
    for value in (-1, 0, 1.5, "two", 2**40):
        calls.refused(f"n_threads={value!r}", lambda value=value: Codec(shape, n_threads=value))
        calls.refused(f"max_positions={value!r}", lambda value=value: Codec(shape, n_threads=1, max_positions=value))
    for dtype in (None, 5, "int8", "float16", np.float32):
        calls.refused(f"dtype={dtype!r}", lambda dtype=dtype: Codec(shape, n_threads=1, dtype=dtype))
    calls.refused("Codec without a shape", lambda: Codec(None))
    calls.refused("Calibrator without a shape", lambda: Calibrator(7))
    calls.refused("Statistics.load", lambda: Statistics.load(folder / "garbage.safetensors"))
    calls.refused("Sequence of nothing", lambda: Sequence(None, None))


@batch
def codec_rows(calls: Calls, model: pathlib.Path) -> None:
    codec = Codec(Shape(**SHAPE), "kivi(bits=4)", n_threads=2)
    q, k, v = rows()
    sequence = codec.sequence()
    wrong = (None, 5, "rows", [], object(), q[0], q[:, :1], q.astype(np.float64), q.astype(np.complex64), q.astype(object),
             np.float32(1), np.zeros((8, 4, 33), np.float32), np.zeros((0, 4, 32), np.float32), memoryview(b"x" * 64))
    for i, array in itertools.product(range(3), wrong):
        arguments = [q, k, v]
        arguments[i] = array
        calls.refused(f"attend argument {i}: {str(array)[:30]!r}", lambda a=tuple(arguments): sequence.attend(0, *a))
    for layer in (*NUMBERS, 1, 2):
        if layer != 0:
            calls.refused(f"layer={layer!r}", lambda layer=layer: sequence.attend(layer, q, k, v))
    for n_new in (5, "ab", [], [7], [9, -1], [None], [2**40], [4, 4]):
        calls.refused(f"n_new={n_new!r}", lambda n_new=n_new: codec.attend([sequence], 0, q, k, v, n_new=n_new))
    for scale in ("x", [], float("nan"), float("inf")):
        calls.refused(f"scale={scale!r}", lambda scale=scale: sequence.attend(0, q, k, v, scale=scale))
    for out in (5, [], q[:4], q.astype(np.float16), np.empty((8, 4, 64), np.float32)[..., ::2]):
        calls.refused("out", lambda out=out: sequence.attend(0, q, k, v, out=out))
    for sequences in ([], [None], [sequence, sequence], [codec], [Codec(Shape(**SHAPE), n_threads=1).sequence()]):
        calls.refused("sequences", lambda s=sequences: codec.attend(s, 0, q, k, v))
    for n_prompt in (-1, 0, 1.5, "all", 2**40):
        calls.refused(f"n_prompt={n_prompt!r}", lambda n_prompt=n_prompt: codec.sequence(n_prompt))
    stacked = np.stack([k, k])
    for given in (None, k, stacked[:1], stacked[:, :0], stacked.astype(np.int32)):
        calls.refused("encode", lambda given=given: codec.encode(given, stacked))
    for n in (-1, 1.5, "x", 2**70):
        calls.refused(f"bytes_at({n!r})", lambda n=n: codec.bytes_at(n))
    calls.survived("NaN in all rows", lambda: sequence.attend(0, q * np.nan, k * np.nan, v * np.inf))
    sequence.reset()
    long = np.zeros((513, 4, 32), np.float32)
    calls.refused("more positions than there are", lambda: sequence.attend(0, long, long[:, :2], long[:, :2]))
    if sequence.n_tokens != 0 or sequence.next_layer != 0:
        raise SystemExit("a refused call has changed the sequence")


@batch
def codec_bytes(calls: Calls, model: pathlib.Path) -> None:
    codec = Codec(Shape(**SHAPE), "kivi(bits=4,run=64)", n_threads=1)
    q, k, v = rows(200)
    sequence = codec.sequence()
    for layer in range(2):
        sequence.attend(layer, q, k, v)
    data = sequence.to_bytes()
    for wrong in (None, 5, "text", [], object(), b"", b"KVLCODEC", data[:50], data[:-1], data + b"x", data[::-1], os.urandom(5000)):
        calls.refused(f"load({str(wrong)[:20]!r})", lambda wrong=wrong: codec.load(wrong))
    draw = np.random.default_rng(1)
    for place in draw.integers(0, len(data), 100):
        changed = bytearray(data)
        changed[place] ^= 1 << int(draw.integers(8))
        calls.refused(f"load with a bit changed at {place}", lambda changed=changed: codec.load(changed))
    calls.refused("decode", lambda: codec.decode(None))
    calls.refused("to_bytes of nothing", codec.sequence().to_bytes)
    calls.survived("decode of nothing", lambda: codec.decode(codec.sequence()))
    calls.survived("keys of nothing", lambda: codec.sequence().keys(0))
    calls.survived("copy of nothing", lambda: codec.sequence().copy())
    for layer, head in ((-1, 0), (2, 0), (0, 2), (0, -1), ("x", 0), (0, None)):
        calls.refused(f"positions({layer!r}, {head!r})", lambda layer=layer, head=head: sequence.positions(layer, head))
    calls.refused("keys of no layer", lambda: sequence.keys(2))

    # Sequences that are closed while others compute.
    def compute() -> None:
        for _ in range(20):
            codec.encode(np.stack([k, k]), np.stack([v, v])).close()

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        codec.sequence()
    for thread in threads:
        thread.join()
    sequence.close()
    for name in ("n_tokens", "nbytes", "fraction", "failure", "next_layer", "n_prompt", "bytes_by_kind"):
        calls.refused(f"{name} of what is closed", lambda name=name: getattr(sequence, name))
    for name in ("to_bytes", "copy", "reset"):
        calls.refused(f"{name} of what is closed", lambda name=name: getattr(sequence, name)())
