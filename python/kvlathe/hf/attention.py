"""The attention function `kvlathe` of transformers: queries meet the bytes of a LatheCache.

A cache's `update` returns the new rows as they came, marked with where they belong (`mark_rows`).
The model hands them to its attention function, which finds the mark and has the cache append them
and attend to all that it holds. Of masks it needs one thing: which of a step's tokens are padding.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from kvlathe.errors import InvalidArgumentError, UnsupportedError

# What `attn_implementation` is while a LatheCache is read.
ATTENTION = "kvlathe"

_MARK = "_kvlathe_layer"

# What an attention function may be given that changes scores in ways that the codec does not have.
_CHANGES_OF_SCORES = {
    "position_bias": "biases by position",
    "head_mask": "a mask of heads",
}


class LayerOfCache(Protocol):
    """Where marked rows belong."""

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
    ) -> torch.Tensor: ...


def mark_rows(key: torch.Tensor, layer: LayerOfCache) -> torch.Tensor:
    """Has the attention function find `layer` at the rows that are handed to it."""
    key = key.view_as(key)  # a mark of its own, whatever else looks at the model's tensor
    setattr(key, _MARK, layer)
    return key


def step_mask(
    *,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    **_: Any,
) -> torch.Tensor | None:
    """The mask [batch, tokens so far] that says what is padding, or None where nothing is.

    The codec attends causally, within the windows of layers. Whatever else a model asks for comes
    with switches that forbid to leave the mask away, and is refused.
    """
    if use_vmap or allow_is_bidirectional_skip or not allow_is_causal_skip:
        raise UnsupportedError(
            "the model asks for a mask that is not causal, such as images and packed sequences have; "
            "a LatheCache attends causally only"
        )
    if attention_mask is None or (attention_mask.shape[-1] == kv_length and bool(attention_mask.all())):
        return None
    return attention_mask


def sink_logits_of(kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What a model gives its attention function as learned logits beside the keys, [heads]."""
    given = kwargs.get("s_aux")
    return kwargs.get("sinks") if given is None else given


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of transformers' interface. query [batch, heads, tokens, dim]; key and value, with
    KV heads, are the step's new rows alone. Returns [batch, tokens, heads, dim] of the query's type."""
    layer: LayerOfCache | None = getattr(key, _MARK, None)
    if layer is None:
        raise InvalidArgumentError(
            f"attn_implementation='{ATTENTION}' reads a LatheCache, and the rows do not come from one; pass "
            "past_key_values=kvlathe.hf.LatheCache(model, spec)"
        )
    for name, what in _CHANGES_OF_SCORES.items():
        if kwargs.get(name) is not None:
            raise UnsupportedError(f"{type(module).__name__} asks for {what}, which kvlathe's attention does not have")
    if kwargs.get("output_attentions"):
        raise UnsupportedError("kvlathe's attention does not return weights; leave output_attentions off")
    if dropout:
        raise UnsupportedError("kvlathe's attention has no dropout; call model.eval() before it generates")
    if not getattr(module, "is_causal", True) or kwargs.get("is_causal") is False:
        raise UnsupportedError(f"{type(module).__name__} is not causal; a LatheCache attends causally only")
    softcap, sink_logits = kwargs.get("softcap"), sink_logits_of(kwargs)
    positions = kwargs.get("position_ids")
    output = layer.attend(query, key, value, attention_mask, scaling, positions, softcap, sink_logits)
    return output, None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, step_mask)
