"""Between the arguments of LLM and the requests of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvlathe import _native
from kvlathe.errors import InvalidArgumentError
from kvlathe.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from kvlathe.sampling_params import SamplingParams
from kvlathe.session import Session

Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"
"""A text, its token ids, or vLLM's {"prompt": text} and {"prompt_token_ids": ids}."""


@dataclass
class Request:
    """One prompt on its way."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    asks: list[_native.Ask]
    answers: list[_native.Answer]


def token_ids_of(ids: Any, name: str = "prompt") -> list[int]:
    """Token ids as a list, of a list or an array."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if not isinstance(ids, (list, tuple)):
        raise TypeError(f"{name} is {type(ids).__name__}; give a text or token ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(f"{name} has {token!r} among its token ids; give integers")
        if not 0 <= token < 2**31:
            raise InvalidArgumentError(f"{name}: token id {token} is outside any vocabulary")
    return list(ids)


def check_session(session: Any) -> None:
    """None or a session, and nothing else."""
    if session is not None and not isinstance(session, Session):
        raise TypeError(f"session is {type(session).__name__}; give a Session (LLM.session) or None")


def prompts_of(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list."""
    if hasattr(prompts, "tolist"):
        prompts = prompts.tolist()
        if prompts == []:
            raise InvalidArgumentError("prompts is an array of nothing; give at least one token")
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise TypeError(f"prompts is {type(prompts).__name__}; give a text, token ids, or a list of them")
    if prompts and all(isinstance(token, int) for token in prompts):
        return [list(prompts)]
    return list(prompts)


def conversations_of(messages: Any) -> list[list[Mapping[str, Any]]]:
    """One conversation or several, as a list."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise TypeError("messages is no list of messages; give at least one")
    conversations = [list(messages)] if isinstance(messages[0], Mapping) else [list(one) for one in messages]
    for conversation in conversations:
        for message in conversation:
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise InvalidArgumentError(f"a message is {message!r}; give a role and a content")
            content = message.get("content")
            if content is not None and not isinstance(content, (str, list)):
                raise InvalidArgumentError(f"content is {type(content).__name__}; give a text or a list of parts")
    return conversations


def json_of(value: Any, name: str) -> str:
    """JSON of what a caller gave."""
    try:
        return json.dumps(value, default=dict, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} cannot be written as JSON: {error}") from error


def params_of(params: SamplingParams | Sequence[SamplingParams], n_prompts: int) -> list[SamplingParams]:
    """Sampling parameters for each prompt."""
    each = [params] * n_prompts if isinstance(params, SamplingParams) else list(params)
    for given in each:
        if not isinstance(given, SamplingParams):
            raise TypeError(f"sampling_params has {type(given).__name__}; give SamplingParams")
    if len(each) != n_prompts:
        raise InvalidArgumentError(f"{len(each)} sampling_params for {n_prompts} prompts; give one, or one each")
    return each


def make_ask(ids: list[int], params: SamplingParams, seed: int, draft: str | None) -> _native.Ask:
    """What the engine is asked for one answer."""
    ask = _native.Ask()
    ask.prompt = ids
    ask.max_tokens = params.max_tokens
    ask.stop = params.stops
    ask.stop_token_ids = [] if params.stop_token_ids is None else token_ids_of(params.stop_token_ids, "stop_token_ids")
    ask.ignore_eos = params.ignore_eos
    ask.include_stop_str_in_output = params.include_stop_str_in_output
    ask.keeps_special = not params.skip_special_tokens
    ask.logprobs = params.logprobs
    ask.prompt_logprobs = params.prompt_logprobs
    ask.temperature = params.temperature
    ask.top_k = max(params.top_k, 0)
    ask.top_p = params.top_p
    ask.min_p = params.min_p
    ask.repetition_penalty = params.repetition_penalty
    ask.repeat_last_n = params.repeat_last_n
    ask.presence_penalty = params.presence_penalty
    ask.frequency_penalty = params.frequency_penalty
    if params.logit_bias is not None:
        ask.logit_bias = dict(params.logit_bias)
    ask.seed = seed % 2**64
    ask.draft = params.draft or draft or "none"
    ask.rate = params.rate
    return ask


class Reader:
    """Makes outputs of answers that have ended."""

    def __init__(self, token_text: Callable[[int], str]) -> None:
        self._token_text = token_text

    def output_of(self, request: Request) -> RequestOutput:
        """What came of a prompt, all of whose answers have ended."""
        first = request.answers[0]
        prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if request.params.prompt_logprobs is not None:
            known = first.prompt_logprobs
            prompt_logprobs = [None, *(self._logprobs_of(of, request.params.prompt_logprobs) for of in known[1:])]
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[self._completion_of(i, answer, request.params) for i, answer in enumerate(request.answers)],
            finished=True,
            prompt_logprobs=prompt_logprobs,
            kv_bytes=first.kv_bytes,
            kv_fraction=first.kv_fraction,
            metrics=metrics_of(request),
        )

    def _completion_of(self, index: int, answer: _native.Answer, params: SamplingParams) -> CompletionOutput:
        reason = answer.stop_reason  # of a conversation's ends, too, which nobody asked for
        asked = reason in params.stops if isinstance(reason, str) else reason in (params.stop_token_ids or ())
        output = CompletionOutput(
            index=index,
            text=answer.text,
            token_ids=answer.token_ids,
            finish_reason=answer.finish_reason,
            stop_reason=reason if asked else None,
        )
        if params.logprobs is not None:
            known = answer.logprobs
            output.logprobs = [self._logprobs_of(of, params.logprobs) for of in known]
            output.cumulative_logprob = sum(of[1] for of in known)
        return output

    def _logprobs_of(
        self, of: tuple[int, float, int, list[tuple[int, float]]], n_top: int
    ) -> dict[int, Logprob]:
        token, logprob, rank, top = of
        result = {token: Logprob(logprob, rank, self._token_text(token))}
        for i, (other, other_logprob) in enumerate(top[:n_top]):
            if other != token:
                result[other] = Logprob(other_logprob, i + 1, self._token_text(other))
        return result


def metrics_of(request: Request) -> RequestMetrics:
    """What the answers to a prompt took."""
    answers = request.answers
    return RequestMetrics(
        first_token_seconds=min(answer.first_token_seconds for answer in answers),
        decode_seconds=max(answer.decode_seconds for answer in answers),
        n_generated=sum(len(answer.token_ids) for answer in answers),
        n_cached_tokens=answers[0].n_context + answers[0].n_shared,
        n_preemptions=sum(answer.n_preemptions for answer in answers),
        n_drafted=sum(answer.n_drafted for answer in answers),
        n_accepted=sum(answer.n_accepted for answer in answers),
    )
