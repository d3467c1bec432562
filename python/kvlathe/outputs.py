"""What a model gives for a request, in the shape of vLLM's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Logprob:
    """A token that might have come, and how likely it was."""

    logprob: float
    """Natural logarithm."""
    rank: int
    """1 is the likeliest of all tokens."""
    decoded_token: str
    """The token as it stands in a text."""


@dataclass
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    """Among the answers to the prompt, from 0."""
    text: str
    token_ids: list[int]
    """Without the token that ended it, and with those of a stop string."""
    cumulative_logprob: float | None = None
    """The sum over token_ids, where log-probabilities were asked for."""
    logprobs: list[dict[int, Logprob]] | None = None
    """For each of token_ids: itself and the likeliest, where they were asked for."""
    finish_reason: str | None = None
    """stop, length or abort; None while the answer goes on."""
    stop_reason: int | str | None = None
    """The stop string or the token of stop_token_ids that ended it."""

    @property
    def finished(self) -> bool:
        """Whether no more tokens follow."""
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """What a request took."""

    first_token_seconds: float = 0.0
    """From the request to its first token."""
    decode_seconds: float = 0.0
    """From the first token to the last, of the answer that took longest."""
    n_generated: int = 0
    """Tokens of all answers."""
    n_cached_tokens: int = 0
    """Tokens of prompt and session that were not read again."""
    n_preemptions: int = 0
    """How often a cache was given up for want of memory, and computed again."""
    n_drafted: int = 0
    """Guessed tokens that the model checked."""
    n_accepted: int = 0
    """Those of them that the answers have."""


@dataclass
class RequestOutput:
    """What came of one prompt."""

    request_id: str
    prompt: str | None
    """None where it was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """For each token of the prompt, the first of which nothing predicts."""
    kv_bytes: int = 0
    """Bytes of the first answer's cache at its end."""
    kv_fraction: float = 0.0
    """These bytes over those that the same positions take in 16 bits."""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.outputs[0].text


@dataclass
class Piece:
    """Some of an answer, as it comes; printed it is its text."""

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    """Set on the last piece."""

    def __str__(self) -> str:
        return self.text


@dataclass
class Score:
    """How likely a continuation is behind a prompt."""

    logprob: float
    """Natural logarithm, summed over the tokens of the continuation."""
    is_greedy: bool
    """Whether each of its tokens is the likeliest there."""
    logprobs: list[float]
    """Of each token."""


@dataclass
class Cost:
    """What a cache takes, before anything runs with it."""

    resolved: str
    """The spec with all of its defaults."""
    fraction: float
    """Its bytes at the full context over those of 16-bit rows."""
    predicted_kl: float | None
    """Nats per token from the uncompressed model, on text like that of the calibration."""


@dataclass
class ChatPrompt:
    """A conversation as the model reads it."""

    text: str
    token_ids: list[int]
    stop_token_ids: list[int]
    """At which an answer ends, beside the tokens that end any text."""
    stop: list[str]
    """Texts at which an answer ends."""
