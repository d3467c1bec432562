"""Attention that shows its rows, and the gradients to them, to a calibrator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvlathe.codec import Calibrator
from kvlathe.errors import FailedPreconditionError
from kvlathe.hf.attention import sink_logits_of
from kvlathe.hf.switching import attention_configs, attention_set

_ATTENTION = "kvlathe_calibration"

# Nearer queries read a row before it is compressed (docs/basis.md, Gradients).
_NEWEST = 64


class Capture:
    """One calibration of one model."""

    def __init__(self, calibrator: Calibrator, gradients: bool):
        self.calibrator = calibrator
        self.gradients = gradients
        self.held_back = False  # of the sequence that runs


class _Running(threading.local):
    """Those that run in this thread, the innermost last."""

    def __init__(self) -> None:
        self.captures: list[Capture] = []


_running = _Running()


def _rows(states: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[1, heads, tokens, dim] as float32 [tokens, heads, dim] on the CPU."""
    rows: np.ndarray[Any, np.dtype[np.float32]]
    rows = states.detach()[0].transpose(0, 1).to("cpu", torch.float32).contiguous().numpy()
    return rows


def _attention_in_float(
    module: torch.nn.Module,
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sink_logits: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of one sequence in float32, whose way back shows gradients to keys and values if they are wanted."""
    capture = _running.captures[-1]
    query, key, value = states
    n_kv_heads, n_tokens = key.shape[1], key.shape[2]
    group = query.shape[1] // n_kv_heads
    q, k, v = (rows.float() for rows in states)
    places = torch.arange(n_tokens, device=key.device)
    behind = places[:, None] - places[None, :]
    allowed = behind >= 0 if mask is None else mask
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
    capped = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    logits = capped.masked_fill(~allowed, -torch.inf)
    if sink_logits is not None:
        of_sinks = sink_logits.float().view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, of_sinks], -1)
    weights = logits.softmax(-1)[..., :n_tokens]
    output = weights @ v.repeat_interleave(group, 1)

    def to_rows(of_pairs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        of_heads = of_pairs.transpose(-1, -2) @ others
        return of_heads.reshape(1, n_kv_heads, group, n_tokens, -1).sum(2)

    far = behind >= _NEWEST
    to_values: list[torch.Tensor] = []

    def on_output(gradient: torch.Tensor) -> None:
        known = weights.detach()
        to_values.extend(to_rows(known * pairs, gradient) for pairs in (far, torch.ones_like(far)))

    def on_scores(gradient: torch.Tensor) -> None:
        to_keys = [to_rows(gradient * pairs, q.detach()) * scale for pairs in (far, torch.ones_like(far))]
        (far_k, far_v), (all_k, all_v) = (tuple(map(_rows, pair)) for pair in zip(to_keys, to_values))
        capture.calibrator.add_gradients(module.layer_idx, (_rows(key), _rows(value)), (far_k, far_v), (all_k, all_v))

    if capture.gradients:
        output.register_hook(on_output)
        scores.register_hook(on_scores)
    return output.transpose(1, 2).to(query.dtype)


def _captured_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    if not _running.captures:
        raise FailedPreconditionError(f"attn_implementation='{_ATTENTION}' is for kvlathe.hf.calibrate alone")
    capture = _running.captures[-1]
    capture.calibrator.add(
        module.layer_idx, *map(_rows, (query, key, value)), rotated=True, first_position=0, held_back=capture.held_back
    )
    softcap, sink_logits = kwargs.get("softcap"), sink_logits_of(kwargs)
    # PyTorch's own attention has neither.
    if capture.gradients or softcap is not None or sink_logits is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        states = (query, key, value)
        return _attention_in_float(module, states, attention_mask, scale, softcap, sink_logits), None
    output: torch.Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)[0]
    return output, None


AttentionInterface.register(_ATTENTION, _captured_attention)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


@contextlib.contextmanager
def _without_gradients_of_weights(model: PreTrainedModel) -> Iterator[None]:
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in learned:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def capturing(model: PreTrainedModel, capture: Capture) -> Iterator[None]:
    """Forwards of `model` within it show their rows to `capture`."""
    _running.captures.append(capture)
    try:
        with attention_set(attention_configs(model), _ATTENTION), _without_gradients_of_weights(model):
            yield
    finally:
        _running.captures.remove(capture)


def run_sequence(model: PreTrainedModel, capture: Capture, ids: list[int], seed: int) -> None:
    """Runs ids within `capturing`, and back where gradients are asked for: those of the log-likelihood of
    a token at every position, which is drawn from what the model predicts there."""
    inputs = torch.tensor([ids], device=model.device)
    if not capture.gradients:
        with torch.no_grad():
            model(inputs, use_cache=False)
        return
    with torch.enable_grad():
        embedded = model.get_input_embeddings()(inputs).detach().requires_grad_()
        logits = model(inputs_embeds=embedded, use_cache=False).logits[0].float()
        random = torch.Generator(device=logits.device).manual_seed(seed)
        drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=random)
        logits.log_softmax(-1).gather(-1, drawn).sum().backward()
