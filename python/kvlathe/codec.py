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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from kvlathe import _native

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

Path = Union[str, "os.PathLike[str]"]

__all__ = ["Calibrator", "Codec", "Sequence", "Shape", "Statistics"]


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
    ) -> None:
        """Without rope_theta, queries and keys do not turn by their positions.

        rotary_fraction is the share of head_dim that turns, and windows says of each layer how many of
        the newest positions it sees, 0 for all.
        """
        self._native = _native.CodecShape.of_numbers(
            n_layers, n_heads, n_kv_heads, head_dim, max_positions, rope_theta, rotary_fraction, list(windows or [])
        )

    @classmethod
    def from_config(cls, config: Path | Mapping[str, Any] | Any) -> Shape:
        """Reads a config.json, a folder that has one, a GGUF file, the dict of a config.json, or anything with to_dict().

        The last is what a configuration of Hugging Face transformers is.
        """
        shape = cls.__new__(cls)
        if isinstance(config, (str, os.PathLike)):
            shape._native = _native.CodecShape.of_path(os.fspath(config))
            return shape
        if not isinstance(config, Mapping):
            to_dict = getattr(config, "to_dict", None)
            if to_dict is None:
                raise TypeError(
                    f"config is {type(config).__name__}; give a path, a dict, or a configuration of transformers"
                )
            config = to_dict()
        shape._native = _native.CodecShape.of_json(json.dumps(dict(config), default=str))
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
        return cls(_native.CodecStatistics.read(os.fspath(path)))

    def save(self, path: Path) -> None:
        """Writes them as the engine reads them with --basis."""
        self._native.write(os.fspath(path))

    @property
    def n_tokens(self) -> int:
        """Positions behind them."""
        return int(self._native.n_tokens)


class Calibrator:
    """Makes statistics of queries, keys and values that were captured from a running model.

    They hold what fdc, zack and palu take their bases from, and kvquant its codebooks. What an error
    costs the model cannot be seen from rows alone, so lathe needs a file of `kvlathe calibrate`.
    """

    def __init__(self, shape: Shape, *, n_threads: int | None = None) -> None:
        """n_threads: all processors where it is None."""
        self._native = _native.CodecCalibrator(shape._native, n_threads or 0)

    def add(self, layer: int, q: Any, k: Any, v: Any, *, rotated: bool = True, first_position: int = 0) -> None:
        """Counts rows of a layer, q [n, n_heads, head_dim], k and v [n, n_kv_heads, head_dim].

        The layers of a piece of text come one after the other. first_position is that of the first row:
        0 begins a sequence, and another must be where the sequence ended. Sequences of 2048 positions
        and some 8192 in all are usual. rotated: as Codec.attend takes it.
        """
        self._native.add(layer, q, k, v, rotated, first_position)

    def finish(self) -> Statistics:
        """The statistics of all that was added; nothing can be added behind it."""
        return Statistics(self._native.finish())


class Sequence:
    """The compressed rows of one sequence. Codec.sequence makes one.

    One thread at a time computes with a codec and its sequences; others wait.
    """

    def __init__(self, codec: Codec, native: Any) -> None:
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
        out: Any | None = None,
    ) -> Floats:
        """Codec.attend of this sequence alone."""
        return self._codec.attend([self], layer, q, k, v, scale=scale, rotated=rotated, out=out)

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
        return self._native.failure  # type: ignore[no-any-return]

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
        return self._native.read_rows(layer, True)  # type: ignore[no-any-return]

    def values(self, layer: int) -> Floats:
        """The values of the same entries."""
        return self._native.read_rows(layer, False)  # type: ignore[no-any-return]

    def positions(self, layer: int, head: int) -> list[int]:
        """The positions of the entries that a KV head holds, in their order there."""
        return list(self._native.positions(layer, head))

    def to_bytes(self) -> bytes:
        """All that it holds, for Codec.load of a codec of the same shape, kv, dtype and statistics."""
        return self._native.to_bytes()  # type: ignore[no-any-return]

    def copy(self) -> Sequence:
        """Another sequence with the same rows; the two go on apart."""
        return Sequence(self._codec, self._native.copy())

    def reset(self, n_prompt: int | None = None) -> None:
        """Forgets all rows, and a failure. n_prompt: as Codec.sequence takes it."""
        self._native.reset(n_prompt=n_prompt or 0)

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
    ) -> None:
        """Decides what the cache is: kv is a spec as --kv takes it.

        basis: statistics, or their file, for methods that have a basis or codebooks. dtype: of rows on
        their way and of those that are not compressed yet, "float32" or "bfloat16". n_threads: all
        processors where it is None. max_positions: the context at which a ratio in kv is promised, the
        shape's own where it is None.
        """
        if not isinstance(shape, Shape):
            raise TypeError(f"shape is {type(shape).__name__}; give a kvlathe.codec.Shape")
        if isinstance(basis, (str, os.PathLike)):
            basis = Statistics.load(basis)
        statistics = None if basis is None else basis._native
        self.shape = shape
        self._native = _native.Codec(shape._native, kv, statistics, dtype, n_threads or 0, max_positions or 0)

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
        return int(self._native.bytes_at(n_tokens, n_tokens if n_prompt is None else n_prompt))

    def sequence(self, n_prompt: int | None = None) -> Sequence:
        """A sequence without rows.

        n_prompt: where its prompt ends, which methods that look at the prompt go by, and those that
        compress it together. None: with its first step.
        """
        return Sequence(self, self._native.sequence(n_prompt=n_prompt or 0))

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
        out: Any | None = None,
    ) -> Floats:
        """Appends rows of a layer to sequences and attends to all that each holds, causally.

        q is [n, n_heads, head_dim], k and v are [n, n_kv_heads, head_dim]: the new positions of the first
        sequence, then those of the next. n_new says how many each has; without it all have as many. The
        layers of a step come one after the other, and each sequence has as many new positions in all of
        them. rotated: q and k come after RoPE, as Hugging Face has them; False: before it. scale: what
        q k^T is multiplied by, 1 / sqrt(head_dim) where it is None. out: where the result goes.

        Returns [n, n_heads, head_dim]. DataLossError where rows that are to be compressed hold NaN or
        infinity: that sequence has failed, and the others have their outputs, in `out`, and go on.
        """
        natives = [s._native for s in sequences]
        lengths = None if n_new is None else [int(n) for n in n_new]
        return self._native.attend(natives, layer, q, k, v, lengths, scale, rotated, out)  # type: ignore[no-any-return]

    def encode(self, k: Any, v: Any, q: Any | None = None, *, rotated: bool = True) -> Sequence:
        """A sequence of these rows: k and v [n_layers, n, n_kv_heads, head_dim].

        q [n_layers, n, n_heads, head_dim] is needed by methods that look at queries alone; without it
        nothing attends, which is faster.
        """
        return Sequence(self, self._native.encode(k, v, q, rotated))

    def decode(self, sequence: Sequence) -> tuple[Floats, Floats]:
        """The rows of a sequence: keys after RoPE and values, [n_layers, n_tokens, n_kv_heads, head_dim].

        FailedPreconditionError where positions were dropped or left a window, UnsupportedError where
        several are one entry.
        """
        if sequence.codec is not self:
            raise ValueError("the sequence is of another codec; each codec reads its own")
        keys, values = sequence._native.decode()
        return keys, values

    def load(self, data: bytes | bytearray | memoryview) -> Sequence:
        """The sequence that to_bytes() gave; DataLossError where it is of another codec, or damaged."""
        return Sequence(self, self._native.load(data))
