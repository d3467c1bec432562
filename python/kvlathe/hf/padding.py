"""Which tokens of a padded batch go into the cache, and at which positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvlathe.errors import InvalidArgumentError, UnsupportedError


@dataclass(frozen=True)
class Step:
    """The tokens of one forward. real [batch, tokens] on the CPU says which are no padding; None: all."""

    n_new: list[int]
    real: torch.Tensor | None


def step_of(
    lengths: list[int], n_past: int, n_tokens: int, mask: torch.Tensor | None, positions: torch.Tensor | None
) -> Step:
    """The step of a batch whose sequences hold `lengths` tokens, behind n_past positions with padding.

    mask [batch, n_past + n_tokens] is 0 at padding. positions [batch or 1, n_tokens] are those that
    rows were rotated by; they must count the tokens of each sequence, as generate has them.
    """
    if mask is None:
        if any(length != n_past for length in lengths):
            raise InvalidArgumentError(
                "the batch was padded so far and comes without an attention mask now; pass the mask of all its tokens"
            )
        step = Step([n_tokens] * len(lengths), None)
    else:
        step = _masked_step(lengths, n_past, n_tokens, mask)
    if positions is not None:
        _check_positions(lengths, step, positions)
    return step


def _masked_step(lengths: list[int], n_past: int, n_tokens: int, mask: torch.Tensor) -> Step:
    if mask.ndim != 2:
        raise UnsupportedError(
            f"a mask of {mask.ndim} dimensions; a LatheCache attends causally and takes masks [batch, tokens] of padding"
        )
    if mask.shape != (len(lengths), n_past + n_tokens):
        raise InvalidArgumentError(
            f"the attention mask has shape {list(mask.shape)}, and {n_past} positions in the cache with {n_tokens} new "
            f"ones need [{len(lengths)}, {n_past + n_tokens}]"
        )
    kept = mask.to("cpu", torch.bool)
    if kept[:, :n_past].sum(-1).tolist() != lengths:
        raise InvalidArgumentError(
            "the attention mask leaves out other positions than when they were appended; a LatheCache holds those that "
            "were no padding then"
        )
    real = kept[:, n_past:]
    return Step(real.sum(-1).tolist(), None if bool(real.all()) else real)


def _check_positions(lengths: list[int], step: Step, positions: torch.Tensor) -> None:
    if positions.ndim != 2:
        raise UnsupportedError(f"position_ids of {positions.ndim} dimensions; a LatheCache takes [batch, tokens]")
    given = positions.to("cpu").expand(len(lengths), -1)
    first = torch.tensor(lengths).unsqueeze(-1)
    if step.real is None:
        right = bool((given == first + torch.arange(given.shape[1])).all())
    else:
        due = first + step.real.long().cumsum(-1) - 1
        right = bool((given == due)[step.real].all())
    if not right:
        raise InvalidArgumentError(
            "position_ids do not count the tokens of each sequence from 0 on, which are the positions of a LatheCache; "
            "leave position_ids away"
        )
