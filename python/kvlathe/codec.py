"""The cache of a model without the model: queries, keys and values in, attention's outputs back.

    from kvlathe.codec import Codec, Shape

    codec = Codec(Shape.from_config("path/of/a/model"), kv="kivi(bits=4)")
    sequence = codec.sequence()
    for layer in range(codec.shape.n_layers):
        out = sequence.attend(layer, q, k, v)  # [n, n_heads, head_dim], [n, n_kv_heads, head_dim] twice

Arrays are float32, float16 or bfloat16: of NumPy, or anything with DLPack, on the CPU. What comes back
is float32 of NumPy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence as SequenceOf
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union, cast

from kvlathe import _native
from kvlathe._checks import array_of, flag_of, int32_of, integer_of, number_of, text_of
from kvlathe.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

Path = Union[str, "os.PathLike[str]"]

__all__ = ["Calibrator", "Codec", "Sequence", "Shape", "Statistics", "WeightGrams"]


class Shape:
    """What a cache needs to know of a model's attention."""

    def __init__(
        self,
        *,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        max_positions: int,
        rope_theta: float | None = None,
        rotary_fraction: float = 1.0,
        windows: SequenceOf[int] | None = None,
        score_cap: float = 0.0,
        sink_logits: bool = False,
    ) -> None:
        """Without rope_theta, queries and keys do not turn by their positions.

        rotary_fraction is the share of head_dim that turns, and windows says of each layer how many of
        the newest positions it sees, 0 for all. With a score_cap above 0 scores become
        score_cap * tanh(score / score_cap). sink_logits: attention has them, and calls give them.
        """
        self._native = _native.CodecShape.of_numbers(
            int32_of("n_layers", n_layers),
            int32_of("n_heads", n_heads),
            int32_of("n_kv_heads", n_kv_heads),
            int32_of("head_dim", head_dim),
            int32_of("max_positions", max_positions),
            None if rope_theta is None else number_of("rope_theta", rope_theta),
            number_of("rotary_fraction", rotary_fraction),
            [int32_of("a window", window) for window in (windows or [])],
            number_of("score_cap", score_cap),
            flag_of("sink_logits", sink_logits),
        )

    @classmethod
    def from_config(cls, config: Path | Mapping[str, Any] | Any) -> Shape:
        """Reads a config.json, a folder that has one, a GGUF file, the dict of a config.json, or anything with to_dict().

        The last is what a configuration of Hugging Face transformers is.
        """
        shape = cls.__new__(cls)
        if isinstance(config, (str, os.PathLike)):
            shape._native = _native.CodecShape.of_path(text_of("config", os.fspath(config)))
            return shape
        if not isinstance(config, Mapping):
            to_dict = getattr(config, "to_dict", None)
            if to_dict is None:
                raise TypeError(
                    f"config is {type(config).__name__}; give a path, a dict, or a configuration of transformers"
                )
            config = to_dict()
        try:
            text = json.dumps(dict(config), default=str)
        except (RecursionError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"config cannot be written as JSON: {error}") from None
        shape._native = _native.CodecShape.of_json(text)
        return shape

    @property
    def model_type(self) -> str:
        """The family, as config.json names it; "rows" where the shape was said by hand."""
        return str(self._native.model_type)

    @property
    def n_layers(self) -> int:
        """Layers."""
        return int(self._native.n_layers)

    @property
    def n_heads(self) -> int:
        """Query heads of a layer."""
        return int(self._native.n_heads)

    @property
    def n_kv_heads(self) -> int:
        """Heads of keys and values of a layer."""
        return int(self._native.n_kv_heads)

    @property
    def head_dim(self) -> int:
        """Numbers of a row of one head."""
        return int(self._native.head_dim)

    @property
    def rope_dim(self) -> int:
        """How many of these turn by the position."""
        return int(self._native.rope_dim)

    @property
    def max_positions(self) -> int:
        """The longest context."""
        return int(self._native.max_positions)

    @property
    def windows(self) -> list[int]:
        """How many of the newest positions each layer sees; 0: all."""
        return list(self._native.windows)

    @property
    def score_cap(self) -> float:
        """What scores are capped by, as Gemma 2 does; 0: they stay as they are."""
        return float(self._native.score_cap)

    @property
    def sink_logits(self) -> bool:
        """Whether heads have sink logits, as those of gpt-oss have, which calls give."""
        return bool(self._native.sink_logits)

    def __repr__(self) -> str:
        return (
            f"Shape(n_layers={self.n_layers}, n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, "
            f"head_dim={self.head_dim}, max_positions={self.max_positions})"
        )


class Statistics:
    """What bases, bits and codebooks are made from: the moments of a model's rows."""

    def __init__(self, native: Any) -> None:
        self._native = native

    @classmethod
    def load(cls, path: Path) -> Statistics:
        """Reads a file that save() or `kvlathe calibrate` has written."""
        return cls(_native.CodecStatistics.read(text_of("path", os.fspath(path))))

    def save(self, path: Path) -> None:
        """Writes them as the engine reads them with --basis."""
        self._native.write(text_of("path", os.fspath(path)))

    @property
    def n_tokens(self) -> int:
        """Positions behind them."""
        return int(self._native.n_tokens)


@dataclass(frozen=True)
class WeightGrams:
    """What methods ask of the weights of attention, where a caller has them.

    Methods with a basis ask for all of it; where keys are rounded without one, the mean of key_biases
    is taken off them first. For y = x W + b, with W_K, W_V and W_O [input, output] of one head: arrays of
    NumPy, dense, by layer and KV head. Where keys are normalised, W_K is multiplied by the norm's
    weights, and there are no key_biases. What is None is taken from the rows, and biases are none.
    """

    key_grams: npt.NDArray[np.float64] | None = None
    """W_K^T W_K, [n_layers, n_kv_heads, head_dim, head_dim]."""
    value_grams: npt.NDArray[np.float64] | None = None
    """W_V^T W_V, likewise."""
    output_grams: npt.NDArray[np.float64] | None = None
    """The sum of W_O W_O^T over the query heads that read a KV head, likewise."""
    key_biases: npt.NDArray[np.float32] | None = None
    """[n_layers, n_kv_heads, head_dim]."""
    value_biases: npt.NDArray[np.float32] | None = None
    """Likewise."""


class Calibrator:
    """Makes statistics of queries, keys and values that were captured from a running model.

    They hold what fdc, zack and palu take their bases from, and kvquant its codebooks. What an error
    costs the model cannot be seen from rows alone: lathe needs add_gradients, or a file of `kvlathe
    calibrate`.
    """

    def __init__(self, shape: Shape, *, n_threads: int | None = None) -> None:
        """n_threads: all processors where it is None."""
        if not isinstance(shape, Shape):
            raise TypeError(f"shape is {type(shape).__name__}; give a kvlathe.codec.Shape")
        self._native = _native.CodecCalibrator(shape._native, _maybe_int32("n_threads", n_threads))

    def add(
        self,
        layer: int,
        q: Any,
        k: Any,
        v: Any,
        *,
        rotated: bool = True,
        first_position: int = 0,
        held_back: bool = False,
    ) -> None:
        """Counts rows of a layer, q [n, n_heads, head_dim], k and v [n, n_kv_heads, head_dim].

        The layers of a piece of text come one after the other. first_position is that of the first row:
        0 begins a sequence, and another must be where the sequence ended. Sequences of 2048 positions
        and some 8192 in all are usual. rotated: as Codec.attend takes it. held_back: the sequence that
        begins has no part in maps and bits, and losses are predicted on it; usual is every fifth.
        """
        self._native.add(
            int32_of("layer", layer),
            array_of("q", q),
            array_of("k", k),
            array_of("v", v),
            flag_of("rotated", rotated),
            int32_of("first_position", first_position),
            flag_of("held_back", held_back),
        )

    def add_gradients(
        self,
        layer: int,
        rows: tuple[Any, Any],
        gradients: tuple[Any, Any],
        through_all: tuple[Any, Any],
        *,
        rotated: bool = True,
    ) -> None:
        """Shows what errors of a layer's keys and values cost, for lathe and kvquant.

        Each is of keys and of values, [n, n_kv_heads, head_dim]: the rows of a sequence again, all of
        which add() has had; the gradients, with respect to them, of the log-likelihood of tokens that
        were drawn at every position from what the model predicts, through the queries that are 64
        positions or more behind a row; and those through all queries. rotated: keys, and gradients to
        them, are those after RoPE. Every layer comes once, in any order.
        """
        self._native.add_gradients(
            int32_of("layer", layer),
            _pair_of("rows", rows),
            _pair_of("gradients", gradients),
            _pair_of("through_all", through_all),
            flag_of("rotated", rotated),
        )

    def finish(self) -> Statistics:
        """The statistics of all that was added; nothing can be added behind it."""
        return Statistics(self._native.finish())


class Sequence:
    """The compressed rows of one sequence. Codec.sequence makes one.

    One thread at a time computes with a codec and its sequences; others wait.
    """

    def __init__(self, codec: Codec, native: _native.CodecSequence) -> None:
        if not isinstance(native, _native.CodecSequence):
            raise TypeError("Codec.sequence, encode and load make sequences")
        self._codec = codec
        self._native = native

    @property
    def codec(self) -> Codec:
        """The codec that made it."""
        return self._codec

    def attend(
        self,
        layer: int,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        rotated: bool = True,
        sink_logits: Any | None = None,
        out: Any | None = None,
    ) -> Floats:
        """Codec.attend of this sequence alone."""
        return self._codec.attend(
            [self], layer, q, k, v, scale=scale, rotated=rotated, sink_logits=sink_logits, out=out
        )

    @property
    def n_tokens(self) -> int:
        """Positions that all layers have."""
        return int(self._native.n_tokens)

    @property
    def n_prompt(self) -> int:
        """Where the prompt ends; 0 before the first step of a sequence that was not told."""
        return int(self._native.n_prompt)

    @property
    def next_layer(self) -> int:
        """The layer whose rows come next: 0 between steps."""
        return int(self._native.next_layer)

    @property
    def failure(self) -> str | None:
        """Why it cannot go on until reset(); None where it can."""
        return self._native.failure

    @property
    def nbytes(self) -> int:
        """Bytes that it holds, as the allocator counts them."""
        return sum(self.bytes_by_kind.values())

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """The same by what they are spent on."""
        return dict(self._native.bytes_by_kind())

    @property
    def fraction(self) -> float:
        """nbytes over what rows of 16 bits would take; 0 where there are no rows."""
        return float(self._native.fraction())

    def keys(self, layer: int) -> Floats:
        """Keys that are held, after RoPE, as attention reads them: [n_entries, n_kv_heads, head_dim].

        They are in the order of positions(layer, head). UnsupportedError where several positions are one
        entry.
        """
        return cast("Floats", self._native.read_rows(int32_of("layer", layer), True))

    def values(self, layer: int) -> Floats:
        """The values of the same entries."""
        return cast("Floats", self._native.read_rows(int32_of("layer", layer), False))

    def positions(self, layer: int, head: int) -> list[int]:
        """The positions of the entries that a KV head holds, in their order there.

        FailedPreconditionError where the cache does not keep them: snapkv forgets them with the prompt's end.
        """
        return list(self._native.positions(int32_of("layer", layer), int32_of("head", head)))

    def to_bytes(self) -> bytes:
        """All that it holds, for Codec.load of a codec of the same shape, kv, dtype and statistics."""
        return self._native.to_bytes()

    def copy(self) -> Sequence:
        """Another sequence with the same rows; the two go on apart."""
        return Sequence(self._codec, self._native.copy())

    def reset(self, n_prompt: int | None = None) -> None:
        """Forgets all rows, and a failure. n_prompt: as Codec.sequence takes it."""
        self._native.reset(n_prompt=_maybe_int32("n_prompt", n_prompt))

    def close(self) -> None:
        """Gives the memory back. Everything but close() then raises FailedPreconditionError."""
        self._native.close()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Codec:
    """A compressed cache, as a spec says it, of a model that runs elsewhere."""

    def __init__(
        self,
        shape: Shape,
        kv: str = "none",
        *,
        basis: Path | Statistics | None = None,
        dtype: str = "float32",
        n_threads: int | None = None,
        max_positions: int | None = None,
        weights: WeightGrams | None = None,
    ) -> None:
        """Decides what the cache is: kv is a spec as --kv takes it.

        basis: statistics, or their file, for methods that have a basis or codebooks. dtype: of rows on
        their way and of those that are not compressed yet, "float32" or "bfloat16". n_threads: all
        processors where it is None. max_positions: the context at which a ratio in kv is promised, the
        shape's own where it is None. weights: what bases ask of the weights, and biases of keys, whose
        mean is taken off keys before they are rounded; without it the rows of the statistics stand for
        W_K and W_V, every direction of a value counts alike, and there are no biases.
        """
        if not isinstance(shape, Shape):
            raise TypeError(f"shape is {type(shape).__name__}; give a kvlathe.codec.Shape")
        if isinstance(basis, (str, os.PathLike)):
            basis = Statistics.load(basis)
        if basis is not None and not isinstance(basis, Statistics):
            raise TypeError(f"basis is {type(basis).__name__}; give a file or kvlathe.codec.Statistics")
        statistics = None if basis is None else basis._native
        self.shape = shape
        self._native = _native.Codec(
            shape._native,
            text_of("kv", kv),
            statistics,
            text_of("dtype", dtype),
            _maybe_int32("n_threads", n_threads),
            _maybe_int32("max_positions", max_positions),
            weights,
        )

    @property
    def spec(self) -> str:
        """kv with all defaults filled in."""
        return str(self._native.spec)

    @property
    def fraction(self) -> float:
        """Bytes at the full context over those of rows in 16 bits."""
        return float(self._native.fraction())

    def bytes_at(self, n_tokens: int, n_prompt: int | None = None) -> int:
        """Bytes of a sequence of so many positions, of which n_prompt were the prompt (all where it is None).

        They are what Sequence.nbytes is, where the method does not decide by the rows what it keeps.
        """
        n_tokens = integer_of("n_tokens", n_tokens, 0, 2**31)
        of_prompt = n_tokens if n_prompt is None else integer_of("n_prompt", n_prompt, 0, 2**31)
        return int(self._native.bytes_at(n_tokens, of_prompt))

    def sequence(self, n_prompt: int | None = None) -> Sequence:
        """A sequence without rows.

        n_prompt: where its prompt ends, which methods that look at the prompt go by, and those that
        compress it together. None: with its first step.
        """
        return Sequence(self, self._native.sequence(n_prompt=_maybe_int32("n_prompt", n_prompt)))

    def attend(
        self,
        sequences: SequenceOf[Sequence],
        layer: int,
        q: Any,
        k: Any,
        v: Any,
        *,
        n_new: SequenceOf[int] | None = None,
        scale: float | None = None,
        rotated: bool = True,
        sink_logits: Any | None = None,
        out: Any | None = None,
    ) -> Floats:
        """Appends rows of a layer to sequences and attends to all that each holds, causally.

        q is [n, n_heads, head_dim], k and v are [n, n_kv_heads, head_dim]: the new positions of the first
        sequence, then those of the next. n_new says how many each has; without it all have as many. The
        layers of a step come one after the other, and each sequence has as many new positions in all of
        them. rotated: q and k come after RoPE, as Hugging Face has them; False: before it. scale: what
        q k^T is multiplied by, that of the model where it is None, 1 / sqrt(head_dim) in most. sink_logits
        [n_heads], where the shape has them: each counts in the sum that the probabilities of its head are
        divided by as a score without a value does. out: where the result goes.

        Returns [n, n_heads, head_dim]. DataLossError where rows that are to be compressed hold NaN or
        infinity: that sequence has failed, and the others have their outputs, in `out`, and go on.
        """
        outputs = self._native.attend(
            [_native_of(sequence) for sequence in sequences],
            int32_of("layer", layer),
            array_of("q", q),
            array_of("k", k),
            array_of("v", v),
            None if n_new is None else [int32_of("n_new", n) for n in n_new],
            None if scale is None else number_of("scale", scale),
            flag_of("rotated", rotated),
            sink_logits,
            out,
        )
        return cast("Floats", outputs)

    def encode(
        self, k: Any, v: Any, q: Any | None = None, *, rotated: bool = True, sink_logits: Any | None = None
    ) -> Sequence:
        """A sequence of these rows: k and v [n_layers, n, n_kv_heads, head_dim].

        q [n_layers, n, n_heads, head_dim] is needed by methods that look at queries alone, and beside it
        sink_logits [n_layers, n_heads] where the shape has them; without it nothing attends, which is
        faster.
        """
        return Sequence(
            self,
            self._native.encode(array_of("k", k), array_of("v", v), q, flag_of("rotated", rotated), sink_logits),
        )

    def decode(self, sequence: Sequence) -> tuple[Floats, Floats]:
        """The rows of a sequence: keys after RoPE and values, [n_layers, n_tokens, n_kv_heads, head_dim].

        FailedPreconditionError where positions were dropped or left a window, UnsupportedError where
        several are one entry.
        """
        native = _native_of(sequence)
        if sequence.codec is not self:
            raise ValueError("the sequence is of another codec; each codec reads its own")
        keys, values = native.decode()
        return keys, values

    def load(self, data: bytes | bytearray | memoryview) -> Sequence:
        """The sequence that to_bytes() gave; DataLossError where it is of another codec, or damaged."""
        return Sequence(self, self._native.load(array_of("data", data)))


def _maybe_int32(name: str, value: int | None) -> int:
    """0 for None, which the compiled part takes for what is usual."""
    return 0 if value is None else int32_of(name, value)


def _native_of(sequence: Any) -> Any:
    """What the compiled part has of a sequence."""
    if not isinstance(sequence, Sequence):
        raise TypeError(f"a sequence is {type(sequence).__name__}; give a kvlathe.codec.Sequence")
    return sequence._native


def _pair_of(name: str, value: Any) -> tuple[Any, Any]:
    """Two arrays, of keys and of values."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is {type(value).__name__}; give two arrays, of keys and of values")
    return array_of(name, value[0]), array_of(name, value[1])
