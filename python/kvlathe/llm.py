"""LLM: a model with compressed caches that generates, scores and is measured."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from kvlathe import _native, _requests
from kvlathe._checks import Path, count_of, flag_of, integer_of, maybe_text_of, text_of
from kvlathe._measuring import Measuring
from kvlathe._notes import log_note
from kvlathe._progress import progress_bar
from kvlathe._streams import AnswerStream, OutputStream
from kvlathe._requests import Prompt, Request
from kvlathe.errors import InvalidArgumentError
from kvlathe.outputs import ChatPrompt, RequestOutput
from kvlathe.sampling_params import SamplingParams
from kvlathe.session import Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Message = Mapping[str, Any]


class LLM(Measuring):
    """A model by its path or name, with one compressed cache or several.

    Threads may share one: requests of several threads are computed together. A child of fork may
    not use it.
    """

    def __init__(
        self,
        model: Path,
        *,
        kv: str | Sequence[str] = "none",
        max_model_len: int | None = None,
        n_threads: int | None = None,
        device: str = "cpu",
        dtype: str = "bfloat16",
        basis: Path | None = None,
        kv_budget_bytes: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        prefix_bytes: int = 0,
        deterministic: bool = False,
        exact: bool | Literal["weights"] = False,
        chat_template: str | None = None,
        seed: int = 0,
        quiet: bool = False,
        draft: str | None = None,
    ) -> None:
        """Opens a model.

        model: a Hugging Face directory, a .gguf file, a name such as smollm2, or hf:OWNER/NAME.
        kv: the cache, as --kv, or several, of which a request may name any.
        max_model_len: the context in tokens; None: the model's.
        n_threads: workers; None: as many as processors.
        device: cpu, cuda or cuda:N.
        dtype: bfloat16, or float32, which is exact and slower.
        basis: a calibration; None: the model's, one that was kept, or it is calibrated now.
        kv_budget_bytes: of all caches; None: half of the free memory.
        max_num_seqs, max_num_batched_tokens: sequences at a time, and tokens of a step.
        prefix_bytes: of them, that keep what was read for prompts that begin alike.
        deterministic: the same bits whatever else runs; slower prompts.
        exact: products do not round rows and queries; "weights": rows alone, as kvlathe eval has it.
        chat_template: a name or file in place of the model's own.
        seed: of requests that name none: the first gets it, each further one the next.
        quiet: what the library has to say is dropped.
        draft: guessed tokens for all requests, such as "ngram".
        """
        settings = _native.ModelSettings()
        settings.model = text_of("model", os.fspath(model))
        settings.kv = [text_of("kv", one) for one in ([kv] if isinstance(kv, str) else list(kv))]
        if not settings.kv:
            raise InvalidArgumentError('kv is empty; name at least one cache, such as "none"')
        settings.max_model_len = count_of("max_model_len", max_model_len)
        settings.n_threads = count_of("n_threads", n_threads)
        settings.device = text_of("device", device)
        if dtype not in ("bfloat16", "float32"):
            raise InvalidArgumentError(f"dtype is {dtype!r}; give bfloat16 or float32")
        settings.computes_in_f32 = dtype == "float32"
        settings.basis = "" if basis is None else text_of("basis", os.fspath(basis))
        settings.kv_budget_bytes = count_of("kv_budget_bytes", kv_budget_bytes, most=2**62)
        settings.max_num_seqs = count_of("max_num_seqs", max_num_seqs)
        settings.max_num_batched_tokens = count_of("max_num_batched_tokens", max_num_batched_tokens)
        settings.prefix_bytes = count_of("prefix_bytes", prefix_bytes or None, most=2**62)
        settings.deterministic = flag_of("deterministic", deterministic)
        if exact not in (True, False, "weights"):
            raise InvalidArgumentError(f'exact is {exact!r}; give True, False or "weights"')
        settings.exact_rows = bool(exact)
        settings.exact_attention = exact is True
        settings.chat_template = maybe_text_of("chat_template", chat_template) or ""
        self._seed = integer_of("seed", seed)
        self._draft = maybe_text_of("draft", draft)
        self._n_requests = 0
        self._lock = threading.Lock()
        self._native = _native.Model.open(settings, None if quiet else log_note)
        self._reader = _requests.Reader(self._token_text)

    # What it is.

    @property
    def model_path(self) -> str:
        """Where the model lies."""
        return self._native.path

    @property
    def max_model_len(self) -> int:
        """The context in tokens."""
        return self._native.max_model_len

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._native.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The token at the beginning of a text, where the tokenizer has one."""
        return self._native.bos_token_id

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end a text."""
        return self._native.eos_token_ids

    @property
    def eos_token_id(self) -> int | None:
        """The first of them."""
        ids = self.eos_token_ids
        return ids[0] if ids else None

    @property
    def chat_template(self) -> str | None:
        """The source of the template that chat writes conversations by, where there is one."""
        return self._native.chat_template

    @property
    def kvs(self) -> list[str]:
        """Its caches so far, as they were named."""
        return [text for text, _ in self._native.levels]

    def close(self) -> None:
        """Frees the model; using it is an error from then on."""
        self._native.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Tokens.

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Token ids of a text. add_bos: None puts BOS in front where the model asks for one; False
        never does; True always does where there is one."""
        ids = self._native.encode(text_of("text", text), add_bos is not False)
        bos = self.bos_token_id
        if add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return self._native.decode(_requests.token_ids_of(ids, "ids"), not skip_special_tokens).decode(errors="replace")

    def _token_text(self, token: int) -> str:
        return self._native.token_bytes(token).decode(errors="replace")

    # Generation.

    def get_default_sampling_params(self) -> SamplingParams:
        """How the model's own files say that it is sampled (temperature 0.8 where they say
        nothing), with the defaults of SamplingParams for the rest."""
        # The library's floats have 24 bits: 0.8 is meant by what is next to it.
        given = {name: float(f"{value:.7g}") for name, value in self._native.default_sampling.items()}
        return SamplingParams(
            temperature=given["temperature"],
            top_k=int(given["top_k"]),
            top_p=given["top_p"],
            min_p=given["min_p"],
            repetition_penalty=given["repetition_penalty"],
            repeat_last_n=int(given["repeat_last_n"]),
        )

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        kv: str | None = None,
        stream: Literal[False] = False,
        use_tqdm: bool = False,
        session: Session | None = None,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        kv: str | None = None,
        stream: Literal[True],
        use_tqdm: bool = False,
        session: Session | None = None,
    ) -> OutputStream: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        kv: str | None = None,
        stream: bool = False,
        use_tqdm: bool = False,
        session: Session | None = None,
    ) -> list[RequestOutput] | OutputStream:
        """Answers prompts, all of them in one batch.

        prompts: a text, token ids, or a list of either.
        sampling_params: for all, or one each; None: get_default_sampling_params().
        kv: one of the caches; None: the first, or the session's. One that was not named before is
        made now.
        stream: an iterator of outputs as they grow; finished says which is the last of a prompt.
        use_tqdm: a bar of the prompts that are done.
        session: one prompt goes on behind it.
        """
        requests = self._requests(prompts, sampling_params, session)
        if stream:
            self._submit(requests, kv, session)
            return OutputStream(self._native, self._reader, requests)
        self._run(requests, kv, session, use_tqdm)
        return [self._reader.output_of(request) for request in requests]

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        kv: str | None = None,
        session: Session | None = None,
    ) -> AnswerStream:
        """An iterator of the pieces of one answer, which computes when it is asked for the next;
        closing it ends the request. Its output is there when it has ended."""
        requests = self._requests([prompt], sampling_params, session)
        if requests[0].params.n != 1:
            raise InvalidArgumentError("a stream is of one answer; n is more")
        self._submit(requests, kv, session)
        return AnswerStream(self._native, self._reader, requests[0])

    def session(self, kv: str | None = None) -> Session:
        """A sequence that several requests go on with."""
        return Session(_native.new_session(self._native), maybe_text_of("kv", kv))

    def load_session(self, path: Path, kv: str | None = None) -> Session:
        """Such a sequence out of a file (Session.save), which is of the same model and cache."""
        return Session(_native.load_session(self._native, text_of("path", os.fspath(path)), maybe_text_of("kv", kv)), kv)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kv: str | None = None,
        use_tqdm: bool = False,
        session: Session | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or several, by the model's chat template.

        messages: {"role": ..., "content": ...} each, in the form of OpenAI's API.
        tools: functions that the template tells the model of, in that form; calls stand in the
            text as the model writes them.
        session: keeps the conversation's cache: what the next conversation has in common with it
            is not read again.
        chat_template_kwargs: further variables of the template, such as enable_thinking.
        """
        _requests.check_session(session)
        conversations = _requests.conversations_of(messages)
        params = _requests.params_of(sampling_params or self.get_default_sampling_params(), len(conversations))
        _check_session(session, params)
        requests = []
        for i, (conversation, of_conversation) in enumerate(zip(conversations, params, strict=True)):
            chat = self.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            request = self._request(chat.text, chat.token_ids, of_conversation)
            for ask in request.asks:
                ask.name = f"messages[{i}]" if len(conversations) > 1 else ""
                ask.stop_token_ids = ask.stop_token_ids + chat.stop_token_ids
                ask.stop = ask.stop + chat.stop
                ask.drops_added_space = True
                if session is not None:
                    ask.prompt = self._behind(session, chat.token_ids)
            requests.append(request)
        self._run(requests, kv, session, use_tqdm)
        return [self._reader.output_of(request) for request in requests]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """What chat reads of one conversation, and where the answer to it ends."""
        chat = self._native.render_chat(
            _requests.json_of(messages, "messages"),
            None if tools is None else _requests.json_of(list(tools), "tools"),
            None if chat_template_kwargs is None else _requests.json_of(chat_template_kwargs, "chat_template_kwargs"),
            add_generation_prompt and not continue_final_message,
            continue_final_message,
        )
        return ChatPrompt(chat.text, chat.token_ids, chat.stop_token_ids, chat.stop)

    @staticmethod
    def _behind(session: Session, ids: list[int]) -> list[int]:
        """What of a conversation a session has not read; it forgets what is none of it."""
        known = session.token_ids
        if known and len(known) < len(ids) and ids[: len(known)] == known:
            return ids[len(known) :]
        session.reset()
        return ids

    def embed_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Literal["none", "mean", "last"] = "none",
        kv: str | None = None,
    ) -> list[NDArray[np.float32]]:
        """Hidden states of prompts behind the last norm: [n_tokens, hidden_dim] each, or with mean
        and last [hidden_dim]."""
        kinds = {"none": _native.Pooling.ALL, "mean": _native.Pooling.MEAN, "last": _native.Pooling.LAST}
        if pooling not in kinds:
            raise InvalidArgumentError(f"pooling is {pooling!r}; give none, mean or last")
        requests = self._requests(prompts, SamplingParams(temperature=0), None)
        for request in requests:
            for ask in request.asks:
                ask.pooling = kinds[pooling]
                ask.draft = "none"
        self._run(requests, kv, None, use_tqdm=False)
        embeddings: list[Any] = [request.answers[0].embedding for request in requests]
        return embeddings

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        session: Session | None,
    ) -> list[Request]:
        _requests.check_session(session)
        given = _requests.prompts_of(prompts)
        params = _requests.params_of(sampling_params or self.get_default_sampling_params(), len(given))
        _check_session(session, params)
        goes_on = session is not None and bool(session.token_ids)
        requests = []
        for i, (prompt, of_prompt) in enumerate(zip(given, params, strict=True)):
            text, ids = self._tokens_of(prompt, i, goes_on)
            request = self._request(text, ids, of_prompt)
            for ask in request.asks:
                ask.name = f"prompts[{i}]" if len(given) > 1 else ""
            requests.append(request)
        return requests

    def _request(self, text: str | None, ids: list[int], params: SamplingParams) -> Request:
        with self._lock:
            seed = self._seed + self._n_requests if params.seed is None else params.seed
            request_id = str(self._n_requests)
            self._n_requests += params.n if params.seed is None else 1
        asks = [_requests.make_ask(ids, params, seed + k, self._draft) for k in range(params.n)]
        return Request(request_id, text, ids, params, asks, [])

    def _tokens_of(self, prompt: Prompt, index: int, goes_on: bool) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return None, _requests.token_ids_of(prompt["prompt_token_ids"], f"prompts[{index}]")
            prompt = prompt.get("prompt", prompt)
        if not isinstance(prompt, str):
            return None, _requests.token_ids_of(prompt, f"prompts[{index}]")
        return prompt, self._native.encode_further(text_of("prompt", prompt)) if goes_on else self.encode(prompt)

    def _submit(self, requests: list[Request], kv: str | None, session: Session | None) -> None:
        kv = maybe_text_of("kv", kv)
        asks = [ask for request in requests for ask in request.asks]
        if session is not None:
            kv = kv or session.kv
            for ask in asks:
                ask.session = session._native
        answers = iter(_native.submit(self._native, asks, kv))
        for request in requests:
            request.answers = [next(answers) for _ in request.asks]

    def _run(self, requests: list[Request], kv: str | None, session: Session | None, use_tqdm: bool) -> None:
        self._submit(requests, kv, session)
        answers = [answer for request in requests for answer in request.answers]
        with progress_bar(len(answers), "Processed prompts", use_tqdm) as show:
            _native.wait_for_ends(self._native, answers, show)


def _check_session(session: Session | None, params: Sequence[SamplingParams]) -> None:
    """A session goes on with one prompt at a time."""
    if session is None:
        return
    if not isinstance(session, Session):
        raise TypeError(f"session is {type(session).__name__}; give a Session")
    if len(params) != 1 or params[0].n != 1:
        raise InvalidArgumentError("a session goes on with one prompt and one answer")
