"""Statistics of a model of transformers, for methods that learn from its queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence as Series
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvlathe.codec import Calibrator, Shape, Statistics
from kvlathe.errors import FailedPreconditionError, InvalidArgumentError
from kvlathe.hf.cache import check_attention_of
from kvlathe.hf.switching import attention_configs, attention_set, text_config_of

_ATTENTION = "kvlathe_calibration"
_SEQUENCE_TOKENS = 2048
_SHORTEST_SEQUENCE = 5  # the first four positions are kept apart

# The calibrations that run, the innermost last.
_running: list[Calibrator] = []


def _captured_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if not _running:
        raise FailedPreconditionError(f"attn_implementation='{_ATTENTION}' is for kvlathe.hf.calibrate alone")
    rows = (
        states.detach()[0].transpose(0, 1).to("cpu", torch.float32).contiguous().numpy()
        for states in (query, key, value)
    )
    _running[-1].add(module.layer_idx, *rows, rotated=True, first_position=0)
    output: torch.Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)[0]
    return output, None


AttentionInterface.register(_ATTENTION, _captured_attention)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


def _ids_of(tokenizer_or_ids: Any, text: str | None) -> list[int]:
    if text is not None:
        if not callable(tokenizer_or_ids):
            raise TypeError("a text needs a tokenizer; for token ids leave the text away")
        return [int(i) for i in tokenizer_or_ids(text, add_special_tokens=False)["input_ids"]]
    if callable(tokenizer_or_ids):
        raise TypeError("a tokenizer needs a text")
    ids = torch.as_tensor(tokenizer_or_ids)
    if ids.is_floating_point() or ids.ndim == 0 or ids.numel() != ids.shape[-1]:
        raise InvalidArgumentError("token ids are one list of integers")
    return [int(i) for i in ids.flatten()]


def _sequences(ids: Series[int], n_tokens: int, length: int, bos: int | None) -> list[list[int]]:
    """Sequences of `length` tokens that start with `bos`, as many as n_tokens ask for, from all over the text."""
    start = [] if bos is None else [bos]
    body = length - len(start)
    cut = [start + list(ids[i : i + body]) for i in range(0, len(ids), body)]
    cut = [sequence for sequence in cut if len(sequence) >= _SHORTEST_SEQUENCE]
    if not cut:
        raise InvalidArgumentError(f"{len(ids)} tokens are too few to calibrate on; {_SHORTEST_SEQUENCE} make a sequence")
    wanted = min(len(cut), max(1, -(-n_tokens // length)))
    return [cut[i * len(cut) // wanted] for i in range(wanted)]


def calibrate(
    model: PreTrainedModel,
    tokenizer_or_ids: Any,
    text: str | None = None,
    *,
    max_tokens: int = 24576,
    sequence_tokens: int | None = None,
) -> Statistics:
    """What `basis` of a LatheCache takes: statistics of the model's queries, keys and values on a text.

        statistics = kvlathe.hf.calibrate(model, tokenizer, open("share/calibration.txt").read())
        cache = kvlathe.hf.LatheCache(model, "zack(rate=0.3)", basis=statistics)

    tokenizer_or_ids: the tokenizer of `text`; or token ids without BOS, and then no text.
    max_tokens: as many are read, in sequences from all over the text.
    sequence_tokens: of one sequence; the model's context where it has fewer than 2048 positions, else 2048.
    """
    config = text_config_of(model)
    check_attention_of(config)
    ids = _ids_of(tokenizer_or_ids, text)
    if max_tokens < 1:
        raise InvalidArgumentError(f"max_tokens is {max_tokens}, and 1 is the least")
    length = sequence_tokens or min(_SEQUENCE_TOKENS, config.max_position_embeddings)
    if length < _SHORTEST_SEQUENCE:
        raise InvalidArgumentError(f"sequence_tokens is {length}, and {_SHORTEST_SEQUENCE} is the least")
    bos = config.bos_token_id
    calibrator = Calibrator(Shape.from_config(config))
    _running.append(calibrator)
    try:
        with torch.no_grad(), attention_set(attention_configs(model), _ATTENTION):
            for sequence in _sequences(ids, max_tokens, length, bos):
                model(torch.tensor([sequence], device=model.device), use_cache=False)
    finally:
        _running.remove(calibrator)
    return calibrator.finish()
