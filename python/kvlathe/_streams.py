"""Answers as they come: iterators that compute when they are asked for more."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from kvlathe import _native
from kvlathe._requests import Reader, Request
from kvlathe.outputs import CompletionOutput, Piece, RequestOutput


class _Stream:
    """Of requests that the engine has. Closing it ends them."""

    def __init__(self, native: _native.Model, reader: Reader, requests: list[Request]) -> None:
        self._native = native
        self._reader = reader
        self._requests = requests
        self._answers = [answer for request in requests for answer in request.answers]
        self._is_closed = False

    def close(self) -> None:
        """Ends what has not ended yet."""
        if not self._is_closed:
            self._is_closed = True
            _native.cancel(self._native, self._answers)

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # noqa: BLE001 - the process was forked, or the interpreter ends
            pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AnswerStream(_Stream, Iterator[Piece]):
    """The pieces of one answer (LLM.stream)."""

    def __init__(self, native: _native.Model, reader: Reader, request: Request) -> None:
        super().__init__(native, reader, [request])
        self._output: RequestOutput | None = None

    @property
    def output(self) -> RequestOutput | None:
        """What came of the request, once it has ended."""
        return self._output

    def __enter__(self) -> AnswerStream:
        return self

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Piece:
        if self._is_closed or self._output is not None:
            raise StopIteration
        ids: list[int] = []
        while True:
            _native.wait_for_news(self._native, self._answers)
            text, new_ids, has_ended = _native.take_news(self._native, self._answers[0])
            ids += new_ids  # a token may be a part of a character, and have no text yet
            if has_ended:
                self._is_closed = True
                _native.check_ends(self._answers)
                self._output = self._reader.output_of(self._requests[0])
                return Piece(text, ids, self._output.outputs[0].finish_reason)
            if text:
                return Piece(text, ids)


class OutputStream(_Stream, Iterator[RequestOutput]):
    """Outputs of prompts as they grow (LLM.generate with stream=True)."""

    def __init__(self, native: _native.Model, reader: Reader, requests: list[Request]) -> None:
        super().__init__(native, reader, requests)
        self._growing = {
            request.request_id: [CompletionOutput(i, "", []) for i in range(len(request.answers))]
            for request in requests
        }
        self._news: list[RequestOutput] = []

    def __enter__(self) -> OutputStream:
        return self

    def __iter__(self) -> OutputStream:
        return self

    def __next__(self) -> RequestOutput:
        while not self._news:
            if self._is_closed or not self._growing:
                raise StopIteration
            waiting = [a for r in self._requests if r.request_id in self._growing for a in r.answers]
            _native.wait_for_news(self._native, waiting)
            self._take()
        return self._news.pop(0)

    def _take(self) -> None:
        for request in self._requests:
            outputs = self._growing.get(request.request_id)
            if outputs is None:
                continue
            has_news = False
            for output, answer in zip(outputs, request.answers, strict=True):
                if output.finished:
                    continue
                text, ids, has_ended = _native.take_news(self._native, answer)
                output.text += text
                output.token_ids = output.token_ids + ids
                if has_ended:
                    output.finish_reason = answer.finish_reason
                has_news = has_news or bool(text) or has_ended
            if all(output.finished for output in outputs):
                del self._growing[request.request_id]
                _native.check_ends(request.answers)
                self._news.append(self._reader.output_of(request))
            elif has_news:
                self._news.append(self._snapshot(request, outputs))

    @staticmethod
    def _snapshot(request: Request, outputs: list[CompletionOutput]) -> RequestOutput:
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[CompletionOutput(o.index, o.text, o.token_ids, finish_reason=o.finish_reason) for o in outputs],
            finished=False,
        )
