"""kvlathe as a model of lm-evaluation-harness: the harness' tasks, asked in process, on a compressed cache.

    python -m kvlathe.lm_eval --model kvlathe --model_args pretrained=model.gguf,kv='lathe(ratio=8)' --tasks piqa

The harness (lm_eval 0.4.13) has no entry points for models of other packages: a model is known once the module that
registers it has been imported. `python -m kvlathe.lm_eval` does that and hands over to the harness' own command, with
the same arguments; a program imports this module before it calls `lm_eval.simple_evaluate(model="kvlathe", ...)`.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import kvlathe

try:
    from lm_eval._cli.utils import key_val_to_dict
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry, register_model
    from lm_eval.models.utils import maybe_truncate, normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise ImportError(
        "kvlathe.lm_eval is a guest of lm-evaluation-harness, which is not there "
        f"({error}): pip install lm_eval==0.4.13"
    ) from error

__all__ = ["KvlatheLM"]

_log = logging.getLogger(__name__)

# What one call of the engine is given where --batch_size is auto: enough for its batches, few enough that the progress
# bar moves.
_AUTO_BATCH = 64

# Names of generation settings that mean the same here.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")

_Pair = tuple[Any, list[int], list[int]]


class KvlatheLM(TemplateLM):
    """A model with a cache of kvlathe.

    `pretrained` is what `kvlathe -m` takes, `kv` a spec as of `--kv`, `device` cpu or cuda; the other arguments of `kvlathe.LLM` may be
    given too (`dtype`, `basis`, `n_threads`, `draft`, `exact`, `deterministic` and so on). `max_length` bounds the
    context, `batch_size` how many requests one call of the engine is given (auto: 64; the engine makes its own batches
    of them). Texts are encoded with BOS in front where the model has one (`add_bos_token` says otherwise) and with
    control tokens that they spell out, such as <|im_start|>, read as such.
    """

    def __init__(
        self,
        pretrained: str,
        kv: str | None = None,
        *,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str = "cpu",
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        # The harness reads None and none alike.
        self._kv = "none" if kv is None else str(kv)
        self._batch_size = _AUTO_BATCH if batch_size in (None, "auto") else int(str(batch_size).removeprefix("auto:"))
        if self._batch_size < 1:
            raise ValueError(f"batch_size is {self._batch_size}, but has to be at least 1, or auto")
        self._llm = kvlathe.LLM(
            str(pretrained),
            kv=self._kv,
            max_model_len=None if max_length is None else int(max_length),
            device=str(device),
            **settings,
        )
        self._max_gen_toks = int(max_gen_toks)
        self._add_bos = add_bos_token
        self._prefix_token_id = prefix_token_id
        self._chat_ends: kvlathe.ChatPrompt | None = None

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> KvlatheLM:
        """Of 'pretrained=FILE,kv=lathe(ratio=8,sink=0)': commas inside brackets part no arguments."""
        return cls.create_from_arg_obj(key_val_to_dict(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> KvlatheLM:
        """The harness says `cuda:0` where nobody has said a device, so what it says is passed over; `device` among the
        arguments counts."""
        extra = {key: value for key, value in (additional_config or {}).items() if value is not None and key != "device"}
        return cls(**{**extra, **arg_dict})

    # What the harness asks about the model.

    @property
    def llm(self) -> kvlathe.LLM:
        """The engine behind it."""
        return self._llm

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        token = self._llm.eos_token_id
        if token is None:
            raise kvlathe.errors.UnsupportedError(f"{self._llm.model_path} names no token that ends a text")
        return token

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context: BOS, or the end of text where the model has none."""
        if self._prefix_token_id is not None:
            return int(self._prefix_token_id)
        bos = self._llm.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self._llm.max_model_len

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def tokenizer_name(self) -> str:
        """The model's path: what cached requests are told apart by."""
        return os.path.abspath(self._llm.model_path).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What stands in the harness' results beside its own settings."""
        cost = self._llm.cost(self._kv)
        return {
            "kvlathe_version": kvlathe.__version__,
            "kv": self._kv,
            "kv_resolved": cost.resolved,
            "kv_fraction": cost.fraction,
        }

    # Texts.

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        add_bos = self._add_bos if add_special_tokens is None else add_special_tokens
        return self._llm.encode(string, add_bos=add_bos)

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as the model's template writes it. Without `add_generation_prompt` the last message is the
        beginning of an answer, which is gone on with."""
        messages = [dict(message) for message in chat_history]
        goes_on = not add_generation_prompt and bool(messages) and messages[-1]["role"] == "assistant"
        chat = self._llm.render(messages, add_generation_prompt=add_generation_prompt, continue_final_message=goes_on)
        # From now on answers end where those of the conversation do.
        self._chat_ends = chat
        return chat.text

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if chat_template is False or chat_template is None:
            return None
        if isinstance(chat_template, str):
            _log.warning("kvlathe has one chat template for a model; the name %r is passed over", chat_template)
        return self._llm.chat_template

    # Requests.

    def _loglikelihood_tokens(
        self, requests: Sequence[_Pair], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        # Choices behind one context stand side by side, so that the engine reads it once; the longest come first.
        fitting = [self._fit(context, continuation) for _, context, continuation in requests]
        order = sorted(range(len(fitting)), key=lambda i: (-len(fitting[i][0]), fitting[i][0], i))
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(fitting)
        for batch in self._batches(order, "Running loglikelihood requests", disable_tqdm):
            asked = [i for i in batch if fitting[i][1]]
            scores = self._llm.score([fitting[i][0] for i in asked], [fitting[i][1] for i in asked])
            for i, score in zip(asked, scores, strict=True):
                answers[i] = (score.logprob, score.is_greedy)
            for i in batch:
                key = requests[i][0]
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, answers[i])
        return answers

    def _fit(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Cuts the context at its left where both together are longer than the model's."""
        too_many = len(context) + len(continuation) - self.max_length
        if too_many <= 0:
            return context, continuation
        if too_many >= len(context):
            raise ValueError(
                f"a continuation has {len(continuation)} tokens and leaves no room for its context in the "
                f"{self.max_length} of the model; take another model or a larger max_length"
            )
        _log.warning("a context of %d tokens loses its first %d, for %d fit", len(context), too_many, self.max_length)
        return context[too_many:], continuation

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[_Pair] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(
                tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length - 1, context_len=1
            ):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(owner)
        sums = [0.0] * len(requests)
        for owner, (log_likelihood, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            sums[owner] += log_likelihood
        for request, log_likelihood in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, log_likelihood)
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        prompts: list[list[int]] = []
        settings: list[kvlathe.SamplingParams] = []
        stops: list[list[str]] = []
        for request in requests:
            text, arguments = request.args
            sampling, stop, max_tokens = self._read_settings(arguments)
            if self._chat_ends is not None:
                sampling["stop_token_ids"] = self._chat_ends.stop_token_ids
                stop += self._chat_ends.stop
            tokens, max_tokens = maybe_truncate(self.tok_encode(text), max_tokens, self.max_length, verbose=True)
            prompts.append(tokens)
            stops.append(stop)
            settings.append(kvlathe.SamplingParams(max_tokens=max_tokens, stop=stop, **sampling))
        order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
        answers = [""] * len(prompts)
        for batch in self._batches(order, "Running generate_until requests", disable_tqdm):
            outputs = self._llm.generate([prompts[i] for i in batch], [settings[i] for i in batch])
            for i, output in zip(batch, outputs, strict=True):
                answers[i] = postprocess_generated_text(output.outputs[0].text, stops[i], None)
                self.cache_hook.add_partial("generate_until", requests[i].args, answers[i])
        return answers

    def _read_settings(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], int]:
        """What a task asks of generation: settings of SamplingParams, texts that end it, tokens at most."""
        given = dict(normalize_gen_kwargs(dict(arguments), default_max_gen_toks=self._max_gen_toks))
        stop = [text for text in given.pop("until") if text]
        max_tokens = int(given.pop("max_gen_toks"))
        sampled = given.pop("do_sample")
        sampling = {name: given.pop(name) for name in _SAMPLING if given.get(name) is not None}
        sampling.setdefault("temperature", 1.0 if sampled else 0.0)
        if not sampled:
            sampling["temperature"] = 0.0
        unknown = sorted(name for name, value in given.items() if value is not None and name not in _SAMPLING)
        if unknown:
            raise ValueError(
                f"kvlathe does not know the generation setting{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}; "
                f"there are until, max_gen_toks, do_sample, {', '.join(_SAMPLING)}"
            )
        return sampling, stop, max_tokens

    def _batches(self, order: list[int], what: str, disable_tqdm: bool) -> Iterator[list[int]]:
        from tqdm import tqdm

        with tqdm(total=len(order), desc=what, disable=disable_tqdm or self.rank != 0) as bar:
            for begin in range(0, len(order), self._batch_size):
                batch = order[begin : begin + self._batch_size]
                yield batch
                bar.update(len(batch))


def _register() -> None:
    # `python -m kvlathe.lm_eval` runs this file as __main__: the class that tasks are given is the package's.
    if "kvlathe" not in model_registry:
        register_model("kvlathe")(KvlatheLM)


def _main() -> None:
    from lm_eval.__main__ import cli_evaluate

    import kvlathe.lm_eval  # registers the model

    del kvlathe.lm_eval
    cli_evaluate()


if __name__ == "__main__":
    _main()
else:
    _register()
