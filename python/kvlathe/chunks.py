"""Chunks of keys and values as servers keep them at rest: an array becomes bytes, and comes back.

    codec = kvlathe.chunks.ChunkCodec("kivi(bits=4,group=64)", "models/llama/config.json")
    data = codec.pack(chunk)        # chunk [2, n_layers, n_tokens, n_kv_heads * head_dim]: keys, then values
    again = codec.unpack(data)

A server of models cuts a prompt into chunks of tokens and keeps each by itself, for whoever begins alike. It says
neither at which position a chunk stands nor which queries will read it. So the methods that fit keep all entries, and
keep keys as they come, behind RoPE; any other is refused when the codec is made, with a line that says why.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvlathe.errors import DataLossError, InvalidArgumentError, KvlatheError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvlathe.codec import Codec, Shape

__all__ = ["ChunkCodec"]

# What stands before the bytes of a sequence, which name their cache: the mark, the CRC-32 of all that comes behind it; the
# layers and channels of the chunk, its tokens that are kept whole, and the bytes of the sequence; then these tokens,
# BF16 [2, layers, tokens, channels]. What a buffer has behind the sequence is not read.
_MARK = b"KVC1"
_HEADER = struct.Struct("<4sI")
_SIZES = struct.Struct("<IIIQ")
_N_HEAD = _HEADER.size + _SIZES.size

# Stages that store keys as they are before RoPE, whatever their options.
_TURN_KEYS_BACK = ("palu", "eigen", "kvquant")


def _check_keys(spec: str) -> None:
    """Refuses a resolved spec that has to know at which position a chunk stands."""
    for name, options in re.findall(r"([\w-]+)(?:\(([^)]*)\))?", spec):
        values = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
        if name in _TURN_KEYS_BACK:
            raise UnsupportedError(
                f"{name} stores keys as they are before RoPE, so it has to know where a chunk stands, and nobody says "
                "that of a chunk at rest; take a method that stores them as they come, such as kivi, token, turboquant "
                "or lathe with keys=after"
            )
        if name == "lathe" and values.get("keys") != "after":
            raise UnsupportedError(
                f"lathe with keys={values.get('keys')} has to know where a chunk stands, and nobody says that of a chunk "
                "at rest; write keys=after"
            )


def _bf16_of(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest numbers of BF16; of two that are as near, the even one."""
    import numpy as np

    if not np.isfinite(rows).all():
        raise DataLossError("a chunk holds NaN or infinity")
    bits = np.ascontiguousarray(rows).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


class ChunkCodec:
    """Packs chunks of one model's cache by the method `kv`. Several threads may use it at a time.

    `model` is the model's config.json, its folder, its dict, its `transformers` configuration, or a `Shape`; `basis`
    the statistics that `kvlathe calibrate` writes, for methods that take them. `chunk_tokens` is how many tokens a
    chunk has at most: what a spec such as `lathe(ratio=6)` promises, it promises for a chunk of so many. The first `whole`
    tokens of a chunk are kept in 16 bits beside the codes, for the first chunk of a prompt has the positions that all
    attention looks at. (The `sink` of a spec does so too, but seals the rest in blocks of 64 behind them, so that up to 63
    tokens are left over in 16 bits: a chunk is best kept with sink=0, and newest=0 where there is such a key.)

    Chunks may have fewer layers and fewer heads than the model, as those of one worker of several have, for methods
    that take no statistics.
    """

    def __init__(
        self,
        kv: str,
        model: str | os.PathLike[str] | Mapping[str, Any] | Any,
        *,
        basis: str | os.PathLike[str] | None = None,
        chunk_tokens: int = 256,
        whole: int = 4,
        n_threads: int | None = None,
    ) -> None:
        from kvlathe.codec import Shape

        if chunk_tokens < 1:
            raise InvalidArgumentError(f"a chunk has {chunk_tokens} tokens, but it has to have at least one")
        if whole < 0:
            raise InvalidArgumentError(f"whole is {whole}, but has to be 0 or more")
        self._whole = whole
        self._kv = kv
        self._basis = None if basis is None else os.fspath(basis)
        self._n_threads = n_threads
        self._chunk_tokens = chunk_tokens
        self._shape = model if isinstance(model, Shape) else Shape.from_config(model)
        self._lock = threading.Lock()
        self._codecs: dict[tuple[int, int], Codec] = {}
        self._sizes: dict[tuple[int, int, int], int] = {}
        self._spec: str = self._codec(self._shape.n_layers, self._shape.n_kv_heads * self._shape.head_dim).spec
        _check_keys(self._spec)
        self._check_entries()

    @property
    def spec(self) -> str:
        """The method with every default written out."""
        return self._spec

    @property
    def shape(self) -> Shape:
        """The model's."""
        return self._shape

    @property
    def chunk_tokens(self) -> int:
        """The most tokens that a chunk may have."""
        return self._chunk_tokens

    def packed_size(self, n_layers: int, n_tokens: int, n_channels: int | None = None) -> int:
        """The bytes that `pack` makes of a chunk of so many layers, tokens and channels (the model's where nothing is
        said), known before there is any. One is packed to find it out, and the answer kept."""
        import numpy as np

        channels = self._shape.n_kv_heads * self._shape.head_dim if n_channels is None else n_channels
        key = (n_layers, n_tokens, channels)
        if key not in self._sizes:
            rows = np.random.default_rng(0).standard_normal((2, n_layers, n_tokens, channels), dtype=np.float32)
            self._sizes[key] = len(self.pack(rows))
        return self._sizes[key]

    def pack(self, chunk: NDArray[np.float32]) -> bytes:
        """The bytes of a chunk [2, n_layers, n_tokens, n_kv_heads * head_dim] of float32: keys as they are behind
        RoPE, then values."""
        import numpy as np

        rows = np.asarray(chunk)
        if rows.ndim != 4 or rows.shape[0] != 2:
            raise InvalidArgumentError(
                f"a chunk has the shape {list(rows.shape)}, but has to have [2, layers, tokens, heads * head_dim]"
            )
        if rows.dtype != np.float32:
            raise InvalidArgumentError(f"a chunk has numbers of {rows.dtype}, but has to have float32")
        _, n_layers, n_tokens, n_channels = rows.shape
        if not 1 <= n_tokens <= self._chunk_tokens:
            raise InvalidArgumentError(
                f"a chunk has {n_tokens} tokens, but this codec was made for chunks of 1 to {self._chunk_tokens} "
                "(chunk_tokens)"
            )
        codec = self._codec(n_layers, n_channels)
        n_whole = min(self._whole, n_tokens)
        whole = _bf16_of(rows[:, :, :n_whole])
        if 0 < n_whole < n_tokens:
            # Their numbers are large, and would make the codes beside them coarse.
            rows = rows.copy()
            rows[:, :, :n_whole] = rows[:, :, n_whole : n_whole + 1]
        by_heads = rows.reshape(2, n_layers, n_tokens, codec.shape.n_kv_heads, codec.shape.head_dim)
        sequence = codec.encode(by_heads[0], by_heads[1])
        try:
            data: bytes = sequence.to_bytes()
        finally:
            sequence.close()
        behind = _SIZES.pack(n_layers, n_channels, n_whole, len(data)) + whole.tobytes() + data
        return _HEADER.pack(_MARK, zlib.crc32(behind)) + behind

    def unpack(self, data: bytes | bytearray | memoryview) -> NDArray[np.float32]:
        """The chunk that `pack` was given, less what the method loses. Bytes that are damaged, cut off, or of another
        model, method or basis are refused."""
        import numpy as np

        view = memoryview(data).cast("B")
        if len(view) < _N_HEAD:
            raise DataLossError(f"a chunk has {len(view)} bytes, which is less than its head")
        mark, checksum = _HEADER.unpack_from(view)
        n_layers, n_channels, n_whole, n_bytes = _SIZES.unpack_from(view, _HEADER.size)
        if mark != _MARK:
            raise DataLossError("the bytes are not a chunk of kvlathe: they do not begin with its mark")
        begin = _N_HEAD + 4 * n_layers * n_whole * n_channels
        if begin + n_bytes > len(view):
            raise DataLossError(f"a chunk is cut off: {len(view)} of {begin + n_bytes} bytes are there")
        if zlib.crc32(view[_HEADER.size : begin + n_bytes]) != checksum:
            raise DataLossError("a chunk is damaged: its checksum is another")
        try:
            codec = self._codec(n_layers, n_channels)
        except InvalidArgumentError as error:
            raise DataLossError(f"a chunk of another model, or damaged: {error}") from error
        sequence = codec.load(view[begin : begin + n_bytes])
        try:
            keys, values = codec.decode(sequence)
        finally:
            sequence.close()
        rows = np.stack([keys, values]).reshape(2, n_layers, keys.shape[1], n_channels)
        whole = np.frombuffer(view[_N_HEAD:begin], np.uint16).astype(np.uint32) << 16
        rows[:, :, :n_whole] = whole.view(np.float32).reshape(2, n_layers, n_whole, n_channels)
        return rows

    def _check_entries(self) -> None:
        """That all entries of a chunk come back, by a chunk of noise."""
        import numpy as np

        rows = np.random.default_rng(0).standard_normal(
            (2, self._shape.n_layers, self._chunk_tokens, self._shape.n_kv_heads * self._shape.head_dim), dtype=np.float32
        )
        try:
            self.unpack(self.pack(rows))
        except KvlatheError as error:
            raise UnsupportedError(f"{self._spec} keeps no chunks at rest: {error}") from error

    def _codec(self, n_layers: int, n_channels: int) -> Codec:
        """Of chunks of so many layers and channels."""
        from kvlathe.codec import Codec

        with self._lock:
            key = (n_layers, n_channels)
            if key not in self._codecs:
                self._codecs[key] = Codec(
                    self._part_of_model(n_layers, n_channels),
                    self._kv,
                    basis=self._basis,
                    dtype="bfloat16",
                    n_threads=self._n_threads,
                    max_positions=self._chunk_tokens,
                )
            return self._codecs[key]

    def _part_of_model(self, n_layers: int, n_channels: int) -> Shape:
        from kvlathe.codec import Shape

        whole = self._shape
        if (n_layers, n_channels) == (whole.n_layers, whole.n_kv_heads * whole.head_dim):
            return whole
        given = f"a chunk has {n_layers} layers and {n_channels} channels"
        expected = (
            f"this model's have {whole.n_layers} and {whole.n_kv_heads * whole.head_dim} "
            f"({whole.n_kv_heads} heads of {whole.head_dim})"
        )
        if self._basis is not None:
            raise InvalidArgumentError(
                f"{given}, but {expected}; a method with a basis takes chunks of the whole model only, so not those of "
                "one worker of several, and not layer by layer"
            )
        n_heads, rest = divmod(n_channels, whole.head_dim)
        if not 1 <= n_layers <= whole.n_layers or rest != 0 or not 1 <= n_heads <= whole.n_kv_heads:
            raise InvalidArgumentError(f"{given}, but {expected}")
        return Shape(
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=whole.head_dim,
            max_positions=self._chunk_tokens,
        )
