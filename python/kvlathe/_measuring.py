"""What LLM measures of caches."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from kvlathe import _native, _requests
from kvlathe._checks import Path, count_of, maybe_text_of, text_of
from kvlathe._progress import progress_bar, told_of
from kvlathe.comparison import Comparison, Profile
from kvlathe.errors import InvalidArgumentError
from kvlathe.outputs import Cost, Score


class Measuring:
    """The part of LLM that measures."""

    _native: _native.Model

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        continuations: Sequence[Sequence[int]],
        *,
        kv: str | None = None,
        use_tqdm: bool = False,
    ) -> list[Score]:
        """How likely continuations are behind prompts, both as token ids, as kvlathe eval weighs
        choices: the prompt is read into the cache as a prompt, the continuation is not, and rows
        are not rounded. Equal prompts in a row are read once."""
        if len(prompts) != len(continuations):
            raise InvalidArgumentError(f"{len(prompts)} prompts and {len(continuations)} continuations; give as many")
        ids = [_requests.token_ids_of(prompt, f"prompts[{i}]") for i, prompt in enumerate(prompts)]
        behind = [_requests.token_ids_of(one, f"continuations[{i}]") for i, one in enumerate(continuations)]
        with progress_bar(len(ids), "Scored continuations", use_tqdm) as show:
            scores = _native.score(self._native, ids, behind, maybe_text_of("kv", kv), show)
        return [Score(*score) for score in scores]

    def cost(self, kv: str) -> Cost:
        """What a cache takes and what is predicted of its loss, without a run; one that needs a
        calibration is calibrated."""
        return Cost(*self._native.cost(text_of("kv", kv)))

    def compare(
        self,
        kvs: Sequence[str],
        text: Path | None = None,
        *,
        n_windows: int | None = None,
        window_tokens: int | None = None,
        rates: Sequence[float] = (),
        latency: bool = False,
        use_tqdm: bool = False,
    ) -> Comparison:
        """Size and quality of caches on a text, as kvlathe compare measures them: rows are not
        rounded, whatever the model was opened with.

        text: a file, or the text itself; None: the model's sample.txt, or a mixed text of 10,000
            tokens. A str is a text unless it is the path of a file.
        n_windows: the first of the text; None: all.
        window_tokens: of each window, the second half of which is scored; None: 2048, or the
            context that the model was opened with.
        rates: of a cache with resident=full, which has a row for each.
        latency: also times to the first and between tokens.
        """
        options = _native.ComparisonOptions()
        options.specs = _texts("kvs", kvs)
        if text is not None:
            options.text, options.text_path = _text_or_file(text)
        options.n_windows = count_of("n_windows", n_windows)
        options.window_tokens = count_of("window_tokens", window_tokens)
        options.rates = list(rates)
        options.measures_latency = latency
        with told_of(self._native, use_tqdm):
            return Comparison.from_json(json.loads(_native.compare(self._native, options)))

    def inspect(self, kv: str) -> dict[str, Any]:
        """What kvlathe inspect --json says of a cache: bytes by part and by layer, and with a basis
        the ranks, bits and singular values of each head."""
        result: dict[str, Any] = json.loads(_native.inspect(self._native, kv))
        return result

    def calibrate(self, text: Path, output: Path, *, use_tqdm: bool = False) -> None:
        """Statistics of queries, keys and values on the text of a file, for basis. Interrupted it
        leaves a checkpoint beside output, from which it goes on."""
        with told_of(self._native, use_tqdm):
            _native.calibrate(self._native, os.fspath(text), os.fspath(output))

    def tune(
        self,
        methods: Sequence[str] = (),
        *,
        accuracy: float = 0.99,
        tasks: Sequence[str] = (),
        text: Path | None = None,
        output: Path | None = None,
        task_count: int = 100,
        task_length: int | None = None,
        seed: int = 1,
        use_tqdm: bool = False,
    ) -> Profile:
        """The smallest caches that keep a share of the accuracy, as kvlathe tune searches them.

        methods: specs without rate, keep or bits where these are searched for, as "fdc+kivi";
            none: all, then compositions.
        tasks: names and files as kvlathe eval --task takes them.
        text: a file whose perplexity may grow by 1 / accuracy; without tasks, the model's
            sample.txt.
        output: the profile, or one to go on with; None: where kv finds it.
        """
        options = _native.TuningOptions()
        options.methods = [] if not methods else _texts("methods", methods)
        options.accuracy = accuracy
        if isinstance(accuracy, bool) or not isinstance(accuracy, (int, float)) or not 0.01 <= accuracy <= 1:
            raise InvalidArgumentError(f"accuracy is {accuracy!r}; give a number from 0.01 to 1")
        choice = _native.TaskChoice()
        choice.tasks = list(tasks)
        choice.count = count_of("task_count", task_count)
        choice.length = count_of("task_length", task_length)
        choice.seed = seed
        options.task = choice
        options.perplexity_text = "" if text is None else os.fspath(text)
        options.output = "" if output is None else os.fspath(output)
        with told_of(self._native, use_tqdm):
            found = json.loads(_native.tune(self._native, options))
        return Profile(found.pop("path"), found)


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    """At least one text."""
    if isinstance(texts, str):
        texts = [texts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{name} is {texts!r}; give at least one text")
    return list(texts)


def _text_or_file(text: Path) -> tuple[str, str]:
    """A text with the name "text", or no text and the path of a file."""
    if not isinstance(text, str):
        return "", os.fspath(text)
    if "\n" not in text and len(text) < 4096 and os.path.isfile(text):
        return "", text
    if len(text.split()) < 4:
        raise InvalidArgumentError(f"text is {text!r}, which is no file and too short to measure on")
    return text, "text"
