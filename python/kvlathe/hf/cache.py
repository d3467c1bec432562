"""A cache of transformers that keeps the bytes of a kvlathe codec."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from transformers import Cache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from kvlathe.codec import Codec, Sequence, Shape
from kvlathe.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from kvlathe.hf.attention import ATTENTION, mark_rows
from kvlathe.hf.padding import Step, step_of
from kvlathe.hf.switching import ModelSwitch, switch_of, text_config_of
from kvlathe.hf.weights import key_biases_of, weight_grams_of

_KNOWN_LAYERS = ("full_attention", "sliding_attention")


def check_attention_of(config: PreTrainedConfig) -> None:
    """Throws where a model attends in a way that kvlathe does not."""
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"'{kind}' has an encoder; a LatheCache is for models that only decode")
    if getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedError(f"'{kind}' shares keys between layers (num_kv_shared_layers), which a LatheCache does not")
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedError(f"'{kind}' attends in both directions; a LatheCache attends causally only")
    for layer_type in getattr(config, "layer_types", None) or ():
        if layer_type not in _KNOWN_LAYERS:
            raise UnsupportedError(
                f"'{kind}' has layers of type '{layer_type}'; a LatheCache has {' and '.join(_KNOWN_LAYERS)} only"
            )


def codec_for(model_or_config: PreTrainedModel | PreTrainedConfig, kv: str | Codec, **options: Any) -> Codec:
    """The codec of a spec for the attention of a model; `kv` where it is one already."""
    if isinstance(kv, Codec):
        if options:
            raise TypeError(f"a codec is made already, and {', '.join(sorted(options))} would change it")
        return kv
    config = text_config_of(model_or_config)
    check_attention_of(config)
    shape = Shape.from_config(config)
    if options.get("weights") is None and isinstance(model_or_config, PreTrainedModel):
        learns = options.get("basis") is not None or "online" in str(kv)
        grams = weight_grams_of(model_or_config, shape) if learns else None
        options["weights"] = key_biases_of(model_or_config, shape) if grams is None else grams
    if options.get("dtype") is None:
        has_16_bits = getattr(model_or_config, "dtype", None) in (torch.bfloat16, torch.float16)
        options["dtype"] = "bfloat16" if has_16_bits else "float32"
    return Codec(shape, kv, **options)


class LatheLayer(CacheLayerMixin):  # type: ignore[misc, unused-ignore]
    """One layer of a LatheCache. It holds no rows: `update` hands them over to the attention function."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False
    is_sliding = False

    def __init__(self, cache: LatheCache, index: int):
        super().__init__()
        self._owner = weakref.ref(cache)  # no cycle: the bytes go when the last name of the cache does
        self._index = index

    @property
    def _cache(self) -> LatheCache:
        cache = self._owner()
        if cache is None:
            raise FailedPreconditionError("the LatheCache of this layer is gone")
        return cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._cache.check_attention()
        return mark_rows(key_states, self), value_states

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
        positions: torch.Tensor | None,
        softcap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> torch.Tensor:
        return self._cache.attend(
            self._index, query, key, value, mask, scale, positions, softcap=softcap, sink_logits=sink_logits
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache.get_seq_length()

    def get_max_length(self) -> int:
        return self._cache.get_max_length()

    def reset(self) -> None:
        raise UnsupportedError("a layer of a LatheCache is not reset alone; reset the cache")

    def offload(self) -> None:
        pass

    def prefetch(self) -> None:
        pass


def _rows(states: torch.Tensor, step: Step) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[batch, heads, tokens, dim] as float32 [tokens that are not padding, heads, dim] on the CPU."""
    by_token = states.detach().transpose(1, 2)
    picked = by_token.reshape(-1, *by_token.shape[2:]) if step.real is None else by_token[step.real.to(states.device)]
    rows: np.ndarray[Any, np.dtype[np.float32]] = picked.to("cpu", torch.float32).contiguous().numpy()
    return rows


class LatheCache(Cache):  # type: ignore[misc, unused-ignore]
    """A compressed cache for `generate` and `forward` of a model of transformers.

        model.generate(**inputs, past_key_values=LatheCache(model, "lathe(ratio=8)", basis=path))

    model_or_config: the model. Its attention is `kvlathe` in every forward that gets this cache, and
        what it was in every other. A config does where the model was loaded with
        `attn_implementation="kvlathe"`; it must be the model's own.
    kv: a spec as `--kv` takes it, or a `kvlathe.codec.Codec`, which several caches may share.
    options: those of `kvlathe.codec.Codec`, such as `basis`, `n_threads`, `max_positions`; `dtype` is
        "bfloat16" for a model in 16 bits, and "float32" for others, unless it is given.

    Every row of a batch has a sequence of its own, without the positions that the attention mask
    says are padding. Rows are copied to float32 on the CPU, where attention is computed, and what
    it gives goes back in the type and to the device of the queries. No gradients pass.
    """

    def __init__(self, model_or_config: PreTrainedModel | PreTrainedConfig, kv: str | Codec, **options: Any):
        config = text_config_of(model_or_config)
        codec = codec_for(model_or_config, kv, **options)
        if codec.shape.n_layers != config.num_hidden_layers:
            raise InvalidArgumentError(
                f"the codec is for {codec.shape.n_layers} layers, and the model has {config.num_hidden_layers}"
            )
        switch = switch_of(model_or_config) if isinstance(model_or_config, PreTrainedModel) else None
        self._begin(config, codec, switch)

    def _begin(self, config: PreTrainedConfig, codec: Codec, switch: ModelSwitch | None) -> None:
        super().__init__(layers=[LatheLayer(self, index) for index in range(codec.shape.n_layers)])
        self._config = config
        self.codec = codec
        self.switch = switch
        self._sequences: list[Sequence] = []
        self._n_positions = 0  # of the batch, padding included
        self._step: Step | None = None
        self._next_layer = 0
        if switch is not None:
            switch.hold(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> LatheCache:
        """A cache that goes on from here by itself, such as after a prompt that many requests share."""
        other = LatheCache.__new__(LatheCache)
        other._begin(self._config, self.codec, self.switch)
        other._sequences = [sequence.copy() for sequence in self._sequences]
        other._n_positions = self._n_positions
        return other

    def __repr__(self) -> str:
        return f"LatheCache('{self.codec.spec}', {len(self._sequences)} sequences, {self.nbytes} bytes)"

    @property
    def sequences(self) -> list[Sequence]:
        """The sequence of each row of the batch; the cache goes on with them."""
        return list(self._sequences)

    @property
    def nbytes(self) -> int:
        """Bytes that the sequences hold of the allocator."""
        return sum(sequence.nbytes for sequence in self._sequences)

    @property
    def fraction(self) -> float:
        """`nbytes` over what 16-bit rows of the same tokens would take; 0 for an empty cache."""
        full = sum(sequence.nbytes / sequence.fraction for sequence in self._sequences if sequence.fraction > 0)
        return self.nbytes / full if full > 0 else 0.0

    @property
    def batch_size(self) -> int:
        return len(self._sequences) or -1

    @property
    def is_initialized(self) -> bool:
        return bool(self._sequences)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._n_positions

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.codec.shape.max_positions

    def reset(self) -> None:
        """Drops all sequences; the next forward may have a batch of another size."""
        for sequence in self._sequences:
            sequence.close()
        self._sequences = []
        self._n_positions = 0
        self._step = None
        self._next_layer = 0

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove != 0:
            raise UnsupportedError(
                "a LatheCache cannot take tokens back, for compressed rows cannot be cut at any token; go on from a "
                "copy that was made earlier (copy.deepcopy)"
            )

    def activate_past_recording(self) -> None:
        raise UnsupportedError(
            "a LatheCache cannot take tokens back; generate without an assistant model and without prompt lookup"
        )

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self._sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if indices.dtype == torch.bool:
            indices = indices.nonzero().flatten()
        self._select(indices.tolist())

    def _select(self, rows: list[int]) -> None:
        """Row i of the batch becomes what row rows[i] was. Sequences that are named again are copied."""
        if not self._sequences:
            return
        before = self._sequences
        taken: set[int] = set()
        after: list[Sequence] = []
        for row in rows:
            after.append(before[row].copy() if row in taken else before[row])
            taken.add(row)
        for row, sequence in enumerate(before):
            if row not in taken:
                sequence.close()
        self._sequences = after

    def check_attention(self) -> None:
        """Throws unless the model that updates the cache has the attention that reads it."""
        if self._config._attn_implementation != ATTENTION:
            raise InvalidArgumentError(
                "the rows would be read by another attention than kvlathe's: this LatheCache was made for another "
                f"model, or for a config whose model was not loaded with attn_implementation='{ATTENTION}'"
            )

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float | None,
        positions: torch.Tensor | None,
        *,
        softcap: float | None = None,
        sink_logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Appends the rows of a layer and attends to all that it holds: what `attention` calls.

        query [batch, heads, tokens, dim], key and value with KV heads; returns [batch, tokens, heads, dim],
        zeros where tokens are padding. softcap: of scores, which must be that of the model's config.
        """
        self._check_scores(softcap, sink_logits)
        if layer != self._next_layer:
            raise FailedPreconditionError(
                f"layer {layer} comes where layer {self._next_layer} is due: a forward of the model was left unfinished, "
                "so call reset() and begin anew"
            )
        batch, n_heads, n_tokens, dim = query.shape
        if layer == 0:
            self._begin_step(batch, n_tokens, mask, positions)
        step = self._step
        assert step is not None
        sequences = [sequence for sequence, n in zip(self._sequences, step.n_new) if n > 0]
        rows = self.codec.attend(
            sequences,
            layer,
            *(_rows(states, step) for states in (query, key, value)),
            n_new=[n for n in step.n_new if n > 0],
            scale=scale,
            rotated=True,
            sink_logits=None if sink_logits is None else sink_logits.detach().to("cpu", torch.float32).numpy(),
        )
        output = torch.from_numpy(rows).to(query.device, query.dtype)
        self._end_layer(layer, n_tokens)
        if step.real is None:
            return output.view(batch, n_tokens, n_heads, dim)
        padded = output.new_zeros(batch, n_tokens, n_heads, dim)
        padded[step.real.to(query.device)] = output
        return padded

    def _check_scores(self, softcap: float | None, sink_logits: torch.Tensor | None) -> None:
        """Throws where the model asks for other scores than its config says."""
        shape = self.codec.shape
        if (softcap or 0.0) != shape.score_cap:
            raise UnsupportedError(
                f"the model asks for a softcap of {softcap} for scores, and its config says {shape.score_cap or None}"
            )
        if (sink_logits is not None) != shape.sink_logits:
            has = "has no" if sink_logits is not None else "has"
            raise UnsupportedError(f"the model's config {has} sinks beside the keys, and its attention differs")

    def _begin_step(
        self, batch: int, n_tokens: int, mask: torch.Tensor | None, positions: torch.Tensor | None
    ) -> None:
        if self._sequences and len(self._sequences) != batch:
            raise InvalidArgumentError(
                f"the cache holds {len(self._sequences)} sequences, and the batch has {batch}; reset() the cache first"
            )
        lengths = [sequence.n_tokens for sequence in self._sequences] or [0] * batch
        self._step = step_of(lengths, self._n_positions, n_tokens, mask, positions)
        if not self._sequences:
            self._sequences = [self.codec.sequence() for _ in range(batch)]

    def _end_layer(self, layer: int, n_tokens: int) -> None:
        self._next_layer = layer + 1
        if self._next_layer == len(self.layers):
            self._next_layer = 0
            self._step = None
            self._n_positions += n_tokens
