"""Statistics of a model of transformers, for methods that learn from its queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence as Series
from typing import Any

import torch
from transformers import PreTrainedModel

from kvlathe.codec import Calibrator, Shape, Statistics
from kvlathe.errors import InvalidArgumentError
from kvlathe.hf.cache import check_attention_of
from kvlathe.hf.capturing import Capture, capturing, run_sequence
from kvlathe.hf.switching import text_config_of

_SEQUENCE_TOKENS, _SEQUENCE_TOKENS_WITH_GRADIENTS = 2048, 1024
_SHORTEST_SEQUENCE = 5  # the first four positions are kept apart


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


def _usual_tokens(model: PreTrainedModel) -> int:
    """As many as `kvlathe calibrate` takes (docs/basis.md, Tokens)."""
    most, least, n_weights = 24576, 3072, 2**27
    n = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    return most if n <= n_weights else max(least, int(most * math.sqrt(n_weights / n)))


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


def _is_held_back(index: int, n_sequences: int) -> bool:
    """Every fifth sequence, or the last of two to four: losses are predicted on those."""
    if n_sequences < 5:
        return n_sequences > 1 and index == n_sequences - 1
    return index % 5 == 4


def calibrate(
    model: PreTrainedModel,
    tokenizer_or_ids: Any,
    text: str | None = None,
    *,
    gradients: bool = True,
    max_tokens: int | None = None,
    sequence_tokens: int | None = None,
    n_threads: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Statistics:
    """What `basis` of a LatheCache takes: statistics of the model's queries, keys and values on a text.

        statistics = kvlathe.hf.calibrate(model, tokenizer, open("share/calibration.txt").read())
        cache = kvlathe.hf.LatheCache(model, "lathe(ratio=8)", basis=statistics)

    tokenizer_or_ids: the tokenizer of `text`; or token ids without BOS, and then no text.
    gradients: what errors of rows cost, which lathe and kvquant need: a way back through the model for
        every sequence, with all that it computes in memory. fdc, zack, palu and eigen do without.
    max_tokens: as many are read, in sequences from all over the text; as `kvlathe calibrate` where it is None.
    sequence_tokens: of one sequence; 1024, without gradients 2048, or the model's context if that is shorter.
    n_threads: of the sums; all processors where it is None.
    on_progress: told after every sequence how many are done, and how many there are.
    """
    config = text_config_of(model)
    check_attention_of(config)
    ids = _ids_of(tokenizer_or_ids, text)
    usual = _SEQUENCE_TOKENS_WITH_GRADIENTS if gradients else _SEQUENCE_TOKENS
    length = min(usual, config.max_position_embeddings) if sequence_tokens is None else sequence_tokens
    n_tokens = _usual_tokens(model) if max_tokens is None else max_tokens
    for name, number in (("max_tokens", n_tokens), ("sequence_tokens", length)):
        if number < _SHORTEST_SEQUENCE:
            raise InvalidArgumentError(f"{name} is {number}, and {_SHORTEST_SEQUENCE} is the least")
    sequences = _sequences(ids, n_tokens, length, config.bos_token_id)
    capture = Capture(Calibrator(Shape.from_config(config), n_threads=n_threads), gradients)
    with capturing(model, capture):
        for index, sequence in enumerate(sequences):
            capture.held_back = _is_held_back(index, len(sequences))
            run_sequence(model, capture, sequence, seed=index)
            if on_progress is not None:
                on_progress(index + 1, len(sequences))
    return capture.calibrator.finish()
