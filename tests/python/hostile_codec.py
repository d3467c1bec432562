"""Hostile calls of kvlathe.codec (hostile_test.py)."""

import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hostile_calls import IS_SANITIZED, Calls, batch
from hostile_model import in_child
from kvlathe.codec import Calibrator, Codec, Sequence, Shape, Statistics

NUMBERS = {"n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "max_positions": 512, "rope_theta": 1e4}
SPEC = "kivi(bits=4,group=32)"


def rows_of(shape: Shape, n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Queries, keys and values of a layer."""
    random = np.random.default_rng(seed)
    heads = (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)
    q, k, v = (random.standard_normal((n, h, shape.head_dim), dtype=np.float32) for h in heads)
    return q, k, v


def filled(codec: Codec, n: int = 70) -> Sequence:
    sequence = codec.sequence()
    for layer in range(codec.shape.n_layers):
        sequence.attend(layer, *rows_of(codec.shape, n, layer))
    return sequence


@batch
def codec_shapes(calls: Calls, model: pathlib.Path) -> None:
    values: dict[str, tuple[Any, ...]] = {
        "n_layers": (0, -1, 2**31, 2**70, 1.5, None, "2"),
        "n_heads": (0, -1, 3, 2**31 - 1, None),
        "n_kv_heads": (0, -1, 3, 8, 2**31 - 1),
        "head_dim": (0, -1, 1, 33, 2**30, None),
        "max_positions": (0, -1, 2**40, "x"),
        "rope_theta": (0.0, -1.0, float("nan"), float("inf"), "x"),
        "rotary_fraction": (-0.5, 1.5, float("nan"), None),
        "windows": ([1], [-1, 0], [1, 2, 3], ["x", 0], 5),
    }
    for name, each in values.items():
        for value in each:
            calls.refused(f"Shape({name}={value!r})", lambda name=name, value=value: Codec(Shape(**{**NUMBERS, name: value}), SPEC))
    calls.refused("Shape()", lambda: Shape())  # type: ignore[call-arg]
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "config.json").write_text("{")
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    for config in (None, 5, [], "", "nowhere", folder, folder / "config.json", {}, {"model_type": 5}, {"model_type": "llama"},
                   {"model_type": "llama", "hidden_size": -1, "num_attention_heads": 0}, "\ud800", b"x", deep, object(), {1: 2},
                   {"model_type": "llama", "hidden_size": float("nan")}):
        calls.refused(f"Shape.from_config({repr(config)[:50] if config is not deep else 'deep'})",
                      lambda config=config: Shape.from_config(config))
    shape = Shape(**NUMBERS)
    arguments: dict[str, tuple[Any, ...]] = {
        "kv": (None, 5, "", "(", "nonesuch", "lathe(ratio=4)", "fdc(ratio=4)", "kivi(bits=0)", "kivi(group=-5)", "\ud800", "x" * 10000, []),
        "basis": (5, "nowhere", folder, folder / "config.json", object()),
        "dtype": ("int8", None, 5, np.float32),
        "n_threads": (-1, 2**31, "x", 1.5),
        "max_positions": (-1, 2**40, "x", 10**9),
    }
    for name, each in arguments.items():
        for value in each:
            make = calls.survived if (name, value) == ("max_positions", 10**9) else calls.refused
            make(f"Codec({name}={str(value)[:40]!r})", lambda name=name, value=value: Codec(shape, **{"kv": SPEC, name: value}))
    for other in (None, 5, {}, Shape):
        calls.refused(f"Codec({other!r})", lambda other=other: Codec(other, SPEC))


@batch
def codec_rows(calls: Calls, model: pathlib.Path) -> None:
    shape = Shape(**NUMBERS)
    codec = Codec(shape, SPEC, n_threads=2)
    q, k, v = rows_of(shape, 8)
    expected = codec.encode(np.stack([k, k]), np.stack([v, v])).to_bytes()
    bad: dict[str, Any] = {
        "None": None, "a number": 5, "a list": k.tolist(), "a text": "x", "bytes": k.tobytes(), "float64": k.astype(np.float64),
        "int32": k.astype(np.int32), "bool": k > 0, "complex": k.astype(np.complex64), "objects": k.astype(object),
        "flat": k.ravel(), "one dimension more": k[None], "one row less": k[:-1], "heads and width exchanged": k.transpose(0, 2, 1),
        "another width": k[:, :, :16], "another number of heads": np.concatenate([k, k, k[:, :1]], 1), "no rows": k[:0], "a scalar": np.float32(1),
        "big-endian": k.astype(">f4"), "structured": np.zeros(8, dtype=[("a", "f4")]),
    }
    for name, array in bad.items():
        calls.refused(f"attend with k {name}", lambda array=array: codec.sequence().attend(0, q, array, v))
        calls.refused(f"attend with v {name}", lambda array=array: codec.sequence().attend(0, q, k, array))
        calls.refused(f"attend with q {name}", lambda array=array: codec.sequence().attend(0, array, k, v))
        calls.refused(f"attend with out {name}",
                      lambda array=array: codec.sequence().attend(0, q, k, v, out=5 if array is None else array))
        calls.refused(f"encode with k {name}", lambda array=array: codec.encode(array, np.stack([v, v])))
    for layer in (-1, 1, 2, 2**31, 2**70, None, "0", 0.5):
        calls.refused(f"attend of layer {layer!r}", lambda layer=layer: codec.sequence().attend(layer, q, k, v))

    def in_order(*layers: int, lengths: tuple[int, ...] = (8, 8, 8, 8)) -> None:
        sequence = codec.sequence()
        for layer, n in zip(layers, lengths):
            sequence.attend(layer, q[:n], k[:n], v[:n])

    calls.refused("layer 0 twice", lambda: in_order(0, 0))
    calls.refused("layer 1 twice", lambda: in_order(0, 1, 1))
    calls.refused("layers of a step with other lengths", lambda: in_order(0, 1, lengths=(8, 4)))
    calls.refused("no new positions", lambda: codec.sequence().attend(0, q[:0], k[:0], v[:0]))
    calls.refused("more than max_positions", lambda: codec.encode(np.zeros((2, 600, 2, 32), np.float32), np.zeros((2, 600, 2, 32), np.float32)))
    for scale in ("x", float("nan"), float("inf"), [], 0.0):
        make = calls.survived if scale == 0.0 else calls.refused
        make(f"attend with scale {scale!r}", lambda scale=scale: codec.sequence().attend(0, q, k, v, scale=scale))
    for rotated in (None, 5, "no"):
        calls.refused(f"attend with rotated={rotated!r}", lambda rotated=rotated: codec.sequence().attend(0, q, k, v, rotated=rotated))
    for n_new in ([], [4], [4, 5], [-8, 16], [0, 8], 5, ["x"], [2**31, 1], None.__class__):
        calls.refused(f"attend with n_new {n_new!r}",
                      lambda n_new=n_new: codec.attend([codec.sequence(), codec.sequence()], 0, q, k, v, n_new=n_new))
    same = codec.sequence()
    for sequences in ([], [None], [5], None, [same, same], [same, codec], ["x"]):
        calls.refused(f"attend of {str(sequences)[:40]}", lambda sequences=sequences: codec.attend(sequences, 0, q, k, v))
    other = Codec(shape, SPEC, n_threads=1)
    calls.refused("attend of another codec's sequence", lambda: codec.attend([other.sequence()], 0, q, k, v))
    calls.refused("decode of another codec's sequence", lambda: codec.decode(filled(other)))
    calls.refused("decode(None)", lambda: codec.decode(None))  # type: ignore[arg-type]
    for value in (np.nan, np.inf, -np.inf):
        def poisoned(value: float = value) -> None:
            wrong = [array.repeat(16, 0) for array in (q, k, v)]
            wrong[1][5, 1, 3] = value
            sequence = codec.sequence()
            for _ in range(3):
                for layer in range(2):
                    sequence.attend(layer, *wrong)

        calls.refused(f"keys with {value}", poisoned)
        calls.survived(f"queries with {value}", lambda value=value: codec.sequence().attend(0, np.full_like(q, value), k, v))
    for n_tokens in (-1, 2**40, 1.5, None, "x"):
        calls.refused(f"bytes_at({n_tokens!r})", lambda n_tokens=n_tokens: codec.bytes_at(n_tokens))
    for n_prompt in (-1, 2**70, "x", 1.5):
        calls.refused(f"sequence(n_prompt={n_prompt!r})", lambda n_prompt=n_prompt: codec.sequence(n_prompt))
    # What is read only, strided or lies backwards is read as it is, and written nowhere.
    still = k.copy()
    still.setflags(write=False)
    twice = np.repeat(k, 2, axis=2)
    calls.survived("read-only keys", lambda: codec.sequence().attend(0, q, still, v))
    calls.survived("strided keys", lambda: codec.sequence().attend(0, q, twice[:, :, ::2], v))
    calls.survived("backward keys", lambda: codec.sequence().attend(0, q[::-1], k[::-1, ::-1, ::-1], v[::-1]))
    calls.survived("broadcast keys", lambda: codec.sequence().attend(0, q, np.broadcast_to(k[:1], k.shape), v))
    calls.refused("a read-only out", lambda: codec.sequence().attend(0, q, k, v, out=np.broadcast_to(np.float32(0), q.shape)))
    calls.refused("a strided out", lambda: codec.sequence().attend(0, q, k, v, out=np.zeros((16, 4, 32), np.float32)[::2]))
    calls.survived("out is q", lambda: codec.sequence().attend(0, q.copy(), k, v, out=q.copy()))
    if codec.encode(np.stack([k, k]), np.stack([v, v])).to_bytes() != expected:
        raise SystemExit("after hostile calls the codec encodes otherwise")


@batch
def codec_bytes(calls: Calls, model: pathlib.Path) -> None:
    shape = Shape(**NUMBERS)
    folder = pathlib.Path(tempfile.mkdtemp())
    for spec in (SPEC, "none", "int8", "snapkv(keep=0.5)"):
        codec = Codec(shape, spec, n_threads=1)
        data = filled(codec).to_bytes()
        for wrong in (None, 5, "text", b"", os.urandom(500), data[:-1], data + b"x", data[:20], bytes(len(data)), data[::-1],
                      memoryview(data)[::2]):
            calls.refused(f"{spec}: load({str(wrong)[:30]})", lambda wrong=wrong, codec=codec: codec.load(wrong))
        for at in range(0, len(data), max(1, len(data) // 60)):
            changed = bytearray(data)
            changed[at] ^= 0xFF

            def load(changed: bytes = bytes(changed), codec: Codec = codec) -> None:
                sequence = codec.load(changed)
                for layer in range(shape.n_layers):
                    sequence.attend(layer, *rows_of(shape, 1))

            calls.survived(f"{spec}: load with byte {at} changed", load)
        calls.refused(f"{spec}: load of another spec's", lambda data=data: Codec(shape, "kivi(bits=2,group=32)").load(data))
        calls.refused(f"{spec}: load of another shape's",
                      lambda data=data, spec=spec: Codec(Shape(**{**NUMBERS, "n_layers": 3}), spec).load(data))
    sequence = filled(Codec(shape, "snapkv(keep=0.5)"), 200)
    calls.refused("decode where entries were dropped", lambda: sequence.codec.decode(sequence))
    for layer, head in ((-1, 0), (2, 0), (0, -1), (0, 2), (2**31, 0), (None, 0), (0, "x")):
        calls.refused(f"positions({layer}, {head})", lambda layer=layer, head=head: sequence.positions(layer, head))
    for layer in (-1, 2, None, 2**40):
        calls.refused(f"keys({layer})", lambda layer=layer: sequence.keys(layer))
    calibrator = Calibrator(shape, n_threads=1)
    q, k, v = rows_of(shape, 64)
    calls.refused("finish without rows", calibrator.finish)
    for layer in (-1, 1, 5, None):
        calls.refused(f"add of layer {layer}", lambda layer=layer: Calibrator(shape, n_threads=1).add(layer, q, k, v))
    for first in (-1, 5, 2**40, "x"):
        calls.refused(f"add at {first}", lambda first=first: Calibrator(shape, n_threads=1).add(0, q, k, v, first_position=first))
    for wrong in (None, q[:, :2], k.astype(np.float64), np.full_like(q, np.nan)):
        calls.refused(f"add({str(wrong)[:20]!r})", lambda wrong=wrong: Calibrator(shape, n_threads=1).add(0, wrong, k, v))
    calls.refused("Calibrator(None)", lambda: Calibrator(None))  # type: ignore[arg-type]
    ready = Calibrator(shape, n_threads=1)
    for layer in range(2):
        ready.add(layer, q, k, v)
    statistics = ready.finish()
    calls.refused("add behind finish", lambda: ready.add(0, q, k, v))
    calls.refused("finish twice", ready.finish)
    for path in ("/nonexistent/x", folder, None, 5, "\ud800"):
        calls.refused(f"save({path!r})", lambda path=path: statistics.save(path))
    statistics.save(folder / "good")
    good = (folder / "good").read_bytes()
    calls.refused("statistics of another shape", lambda: Codec(Shape(**{**NUMBERS, "n_layers": 3}), "fdc(ratio=4)", basis=statistics))
    for name, wrong in {"empty": b"", "garbage": os.urandom(300), "half": good[:len(good) // 2], "zeros": bytes(len(good)),
                        "huge header": b"\xff" * 8 + good[8:]}.items():
        (folder / name).write_bytes(wrong)
        calls.refused(f"Statistics.load of {name}", lambda name=name: Statistics.load(folder / name))
    for at in range(0, len(good), max(1, len(good) // 30)):
        changed = bytearray(good)
        changed[at] ^= 0xFF
        (folder / "changed").write_bytes(changed)
        calls.survived(f"Statistics.load with byte {at} changed", lambda: Codec(shape, "fdc(ratio=4)", basis=folder / "changed"))


@batch
def codec_lives(calls: Calls, model: pathlib.Path) -> None:
    shape = Shape(**NUMBERS)
    codec = Codec(shape, SPEC, n_threads=2)
    q, k, v = rows_of(shape, 8)
    sequence = filled(codec)
    sequence.close()
    sequence.close()
    uses: dict[str, Callable[[], Any]] = {
        "attend": lambda: sequence.attend(0, q, k, v), "keys": lambda: sequence.keys(0), "positions": lambda: sequence.positions(0, 0),
        "to_bytes": sequence.to_bytes, "copy": sequence.copy, "reset": sequence.reset, "nbytes": lambda: sequence.nbytes,
        "fraction": lambda: sequence.fraction, "n_tokens": lambda: sequence.n_tokens, "decode": lambda: codec.decode(sequence),
    }
    for name, use in uses.items():
        calls.refused(f"{name} of a closed sequence", use)
    sequence = filled(codec)
    for name, use in {"attend": lambda: sequence.attend(0, q, k, v), "decode": lambda: codec.decode(sequence),
                      "to_bytes": sequence.to_bytes, "copy": sequence.copy, "reset": sequence.reset, "sequence": codec.sequence,
                      "encode": lambda: codec.encode(np.stack([k, k]), np.stack([v, v]))}.items():
        calls.refused(f"{name} in a child of fork", lambda use=use: in_child(use))
    calls.survived("close in a child of fork", lambda: in_child(sequence.close))
    if not IS_SANITIZED:
        calls.survived("another codec in a child of fork", lambda: in_child(lambda: filled(Codec(shape, SPEC, n_threads=2)).to_bytes()))

    def at_once(*functions: Callable[[], Any]) -> None:
        """Raises the first of what they raise."""
        raised: list[BaseException] = []

        def run(function: Callable[[], Any]) -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - it is raised below
                raised.append(error)

        workers = [threading.Thread(target=run, args=(function,)) for function in functions]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if raised:
            raise raised[0]

    def steps(own: Sequence) -> None:
        for _ in range(20):
            for layer in range(2):
                own.attend(layer, q[:1], k[:1], v[:1])

    for i in range(20):
        own = filled(codec, 300)
        calls.survived(f"a sequence closed while others read it, {i}", lambda own=own, i=i: at_once(
            lambda: steps(filled(codec)), lambda: steps(own), lambda: [own.to_bytes() for _ in range(20)],
            lambda: [codec.decode(own) for _ in range(20)], lambda: [own.copy() for _ in range(20)],
            lambda: (time.sleep(0.001 * i), own.close())))
    own = filled(codec)
    calls.survived("a sequence of four threads", lambda: at_once(*[lambda: steps(own)] * 4))
    calls.survived("sequences of four threads", lambda: at_once(*[lambda: steps(filled(codec))] * 4))
    calls.survived("a calibrator of four threads", lambda: at_once(*[
        lambda calibrator=Calibrator(shape, n_threads=1): [calibrator.add(i % 2, q, k, v) for i in range(20)]] * 4))
