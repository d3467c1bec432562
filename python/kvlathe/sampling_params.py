"""How tokens are drawn, with the names of vLLM's SamplingParams where they mean the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvlathe._checks import integer_of, maybe_text_of
from kvlathe.errors import InvalidArgumentError

_MOST_LOGPROBS = 20


@dataclass(kw_only=True)
class SamplingParams:
    """How one request is answered.

    Defaults are vLLM's: temperature 1, nothing cut off, 16 tokens. Top-p and min-p look at the
    probabilities of temperature 1, as llama.cpp has it, and repetition_penalty at all of the
    prompt and the answer unless repeat_last_n says how many tokens back.
    """

    n: int = 1
    """Answers to each prompt; the seeds of all but the first follow its own."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that the answer has."""
    frequency_penalty: float = 0.0
    """The same, times how often the answer has it."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens that prompt or answer have; 1 is off."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    """The smallest set of tokens with at least this probability."""
    top_k: int = 0
    """The k likeliest tokens; 0 and -1 are all."""
    min_p: float = 0.0
    """Tokens at least this likely in relation to the likeliest."""
    seed: int | None = None
    """None: the next one of the model's (LLM's seed)."""
    stop: str | Sequence[str] | None = None
    """Texts that end the answer; it has none of them."""
    stop_token_ids: Sequence[int] | None = None
    """Tokens that end the answer, beside the model's own; it has none of them."""
    ignore_eos: bool = False
    """Goes on behind the model's own end."""
    max_tokens: int | None = 16
    """None: until the context ends."""
    logprobs: int | None = None
    """How many of the likeliest tokens come with each token of the answer, 0 to 20."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt."""
    skip_special_tokens: bool = True
    """Special tokens are left out of the text."""
    include_stop_str_in_output: bool = False
    """The text ends with the stop string that ended it."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these tokens."""
    repeat_last_n: int = -1
    """How many tokens repetition_penalty looks back; -1 is all."""
    draft: str | None = None
    """Guessed tokens, such as "ngram"; None: as the model was opened."""
    rate: float | None = None
    """Share of K and V elements removed for this request, of a cache with resident=full."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise InvalidArgumentError(f"{name} is {value!r}; give a finite number")
        if self.rate is not None and (isinstance(self.rate, bool) or not isinstance(self.rate, (int, float))):
            raise InvalidArgumentError(f"rate is {self.rate!r}; give a number or None")
        maybe_text_of("draft", self.draft)
        self._check_logit_bias()
        for name in ("n", "top_k", "repeat_last_n"):
            self._check_integer(name)
        for name in ("max_tokens", "logprobs", "prompt_logprobs", "seed"):
            if getattr(self, name) is not None:
                self._check_integer(name)
        self._check_range("n", self.n, 1, 1024)
        self._check_range("temperature", self.temperature, 0, 1e6)
        self._check_range("top_p", self.top_p, 1e-9, 1)
        self._check_range("min_p", self.min_p, 0, 1)
        self._check_range("top_k", self.top_k, -1, 2**31 - 1)
        self._check_range("repeat_last_n", self.repeat_last_n, -1, 2**31 - 1)
        self._check_range("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        self._check_range("presence_penalty", self.presence_penalty, -2, 2)
        self._check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        if self.max_tokens is not None:
            self._check_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.seed is not None:
            self._check_range("seed", self.seed, 0, 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                self._check_range(name, value, 0, _MOST_LOGPROBS)
        if any(not isinstance(text, str) or not text for text in self.stops):
            raise InvalidArgumentError(f"stop is {self.stop!r}; give texts that are not empty")

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def _check_logit_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias is {type(self.logit_bias).__name__}; give a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            self._check_range("a token id of logit_bias", integer_of("a token id of logit_bias", token), 0, 2**31 - 1)
            if isinstance(bias, bool) or not isinstance(bias, (int, float)):
                raise TypeError(f"logit_bias of token {token} is {type(bias).__name__}; give a number")

    def _check_integer(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{name} is {value!r}; give an integer")

    @staticmethod
    def _check_range(name: str, value: float, least: float, most: float) -> None:
        if not least <= value <= most:
            raise InvalidArgumentError(f"{name} is {value!r}; give a number from {least:g} to {most:g}")
