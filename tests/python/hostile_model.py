"""Hostile calls of kvlathe.LLM, its sessions and its streams (hostile_test.py)."""

import os
import pathlib
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvlathe
from hostile_calls import IS_SANITIZED, Calls, batch

GREEDY = kvlathe.SamplingParams(temperature=0, max_tokens=4)


def opened(model: pathlib.Path, **options: Any) -> Any:
    return kvlathe.LLM(model, **{"n_threads": 2, "quiet": True, "max_model_len": 256, **options})


def check_alive(llm: Any, expected: list[int]) -> None:
    """What was refused has changed nothing."""
    tokens = llm.generate("Once upon a time", GREEDY)[0].outputs[0].token_ids
    if tokens != expected:
        raise SystemExit(f"after hostile calls the model generates {tokens}, and {expected} before them")


def greedy(llm: Any) -> list[int]:
    return llm.generate("Once upon a time", GREEDY)[0].outputs[0].token_ids


@batch
def opening(calls: Calls, model: pathlib.Path) -> None:
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "garbage.gguf").write_bytes(os.urandom(4096))
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "huge.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63))
    (folder / "many.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**60) + b"x" * 64)
    (folder / "no_config").mkdir()
    (folder / "bad_config").mkdir()
    (folder / "bad_config/config.json").write_text('{"model_type": "llama", "hidden_size": -1e400}')
    (folder / "text.safetensors").write_text("no statistics")
    for path in (None, 5, [], b"\xff\x00", "", "nothing-of-this-name", "/", "a\0b", "hf:", "hf:x", folder / "garbage.gguf",
                 folder / "empty.gguf", folder / "huge.gguf", folder / "many.gguf", folder / "no_config", folder / "bad_config"):
        calls.refused(f"LLM({path!r})", lambda path=path: kvlathe.LLM(path))
    options: dict[str, tuple[Any, ...]] = {
        "kv": (None, 5, [], [1], [None], "", "(", "lathe(", "lathe(ratio=)", "lathe(ratio=-1)", "lathe(ratio=nan)",
               "lathe(ratio=inf)", "lathe(ratio=1e308)", "lathe(ratio=4,ratio=5)", "none(x=1)", "nonesuch", "kivi(bits=99)",
               "kivi(bits=-1,group=0)", "\0", "x" * 100000, "lathe(" * 10000, "snapkv(keep=2)", "lathe(ratio=4)\n", ["none", ""]),
        "max_model_len": (0, -1, 2**31, 2**70, 1.5, "7", float("nan"), [], True),
        "n_threads": (0, -3, 1.5, "two", 2**40, []),
        "device": ("tpu", "cuda:99", "cuda", None, 0, "cpu:1"),
        "dtype": ("int8", None, 5, np.float32),
        "basis": (folder / "text.safetensors", folder / "missing", folder, 5, ""),
        "kv_budget_bytes": (-1, 1, 2**63, 1.5, "1G"),
        "max_num_seqs": (0, -1, 2**31, "all"),
        "max_num_batched_tokens": (0, -1, 2**31, None.__class__),
        "prefix_bytes": (-5, 1.5, "x", 2**63),
        "deterministic": ("yes", None, 5),
        "exact": ("maybe", 2, []),
        "chat_template": ("nonesuch-template", 5, folder / "text.safetensors"),
        "seed": ("x", 1.5, None, [], -1),
        "draft": ("nonsense", 5, [1]),
    }
    may_work = {("basis", ""), ("seed", -1), ("kv", "lathe(ratio=4)\n"), ("exact", 2)}
    for name, values in options.items():
        for value in values:
            is_free = any(name == of and isinstance(value, type(free)) and value == free for of, free in may_work)
            make = calls.survived if is_free else calls.refused
            kv = {"kv": "lathe(ratio=4)"} if name == "basis" else {}

            def call(name: str = name, value: Any = value, kv: dict[str, Any] = kv) -> None:
                with opened(model, **{**kv, name: value}) as llm:
                    llm.generate("Once", GREEDY)

            make(f"LLM({name}={str(value)[:60]!r})", call)
    calls.refused("LLM() without a model", lambda: kvlathe.LLM())  # type: ignore[call-arg]
    calls.refused("LLM(nonesuch=1)", lambda: kvlathe.LLM(model, nonesuch=1))  # type: ignore[call-arg]


@batch
def sampling(calls: Calls, model: pathlib.Path) -> None:
    nan, inf = float("nan"), float("inf")
    values: dict[str, tuple[Any, ...]] = {
        "temperature": (-1, nan, inf, "hot", None, [], True, 1e300),
        "top_p": (0, -0.5, 1.5, nan, "all", None),
        "top_k": (-2, 1.5, 2**31, "x", None),
        "min_p": (-0.1, 1.1, nan, None),
        "repetition_penalty": (0, -1, nan, inf, None),
        "presence_penalty": (-3, 3, nan, "x"),
        "frequency_penalty": (-3, 3, inf, None),
        "n": (0, -1, 1.5, 2**40, None, True),
        "max_tokens": (0, -1, 1.5, 2**40, "many"),
        "seed": (-1, 2**64, 1.5, "x"),
        "logprobs": (-1, 21, 1.5, True, "all"),
        "prompt_logprobs": (-1, 21, "x"),
        "stop": (5, [""], "", [5], [None]),
        "repeat_last_n": (-2, 2**31, 0.5),
        "rate": (-1, 2, nan, "x"),
        "draft": ("nonsense", 5),
        "stop_token_ids": (5, [-1], [2**31], ["x"], [1.5]),
        "logit_bias": (5, {"x": 1}, {-1: 1.0}, {2**31: 1.0}, {5: "x"}, {5: nan}, [1]),
    }
    with opened(model) as llm:
        expected = greedy(llm)
        for name, each in values.items():
            for value in each:
                calls.refused(f"SamplingParams({name}={value!r})",
                              lambda name=name, value=value: llm.generate(
                                  "Once", kvlathe.SamplingParams(**{"max_tokens": 2, **{name: value}})))
        calls.refused("SamplingParams(nonesuch=1)", lambda: kvlathe.SamplingParams(nonesuch=1))  # type: ignore[call-arg]
        calls.refused("SamplingParams(1)", lambda: kvlathe.SamplingParams(1))  # type: ignore[misc]
        check_alive(llm, expected)


@batch
def prompts(calls: Calls, model: pathlib.Path) -> None:
    with opened(model) as llm:
        expected = greedy(llm)
        bad: tuple[Any, ...] = (
            None, 5, 1.5, object(), [None], ["a", 3], [1.5], [-1], [2**31], [2**70], [llm.vocab_size], [True, "x"], b"bytes", {"foo": 1},
            {"prompt": None}, {"prompt_token_ids": "x"}, {"prompt_token_ids": None}, [[]], [[1], []], [["x"]], [[[1]]],
            np.array([1.5, 2.5]), np.array(3), np.zeros((0,), np.int64), np.array([-1]), np.array([None]),
            np.array([1 + 2j]), np.array([2**40]), [1] * 100000, ["word " * 100000], "\ud800", ["ok", "\udfff"], {1, 2},
        )
        for prompt in bad:
            calls.refused(f"generate({repr(prompt)[:60]})", lambda prompt=prompt: llm.generate(prompt, GREEDY))
        for prompt in ("", [], np.array([[1, 2], [3, 4]])[:, ::-1], np.arange(1, 9)[::2], "\0", "a\0b", " " * 50):
            calls.survived(f"generate({prompt!r})", lambda prompt=prompt: llm.generate(prompt, GREEDY))
        arguments: dict[str, tuple[Any, ...]] = {
            "sampling_params": ("x", 5, [GREEDY, GREEDY], [None], {"n": 1}),
            "kv": ("nonsense(", 5, "", ["none"], "lathe(ratio=-1)"),
            "session": (5, "x", object()),
        }
        for name, each in arguments.items():
            for value in each:
                calls.refused(f"generate({name}={value!r})",
                              lambda name=name, value=value: llm.generate("Once", **{"sampling_params": GREEDY, name: value}))
        calls.refused("stream of n=2", lambda: llm.stream("Once", kvlathe.SamplingParams(n=2)))
        calls.refused("stream([])", lambda: next(llm.stream([], GREEDY)))
        calls.refused("stream(None)", lambda: next(llm.stream(None, GREEDY)))  # type: ignore[arg-type]
        calls.refused("generate(stream=True) of nothing good", lambda: list(llm.generate([None], GREEDY, stream=True)))  # type: ignore[list-item]
        check_alive(llm, expected)


@batch
def tokens_and_scores(calls: Calls, model: pathlib.Path) -> None:
    with opened(model) as llm:
        expected = greedy(llm)
        for text in (None, 5, b"x", ["x"], "\ud800"):
            calls.refused(f"encode({text!r})", lambda text=text: llm.encode(text))
        for ids in (None, 5, "abc", [-1], [llm.vocab_size], [2**40], [1.5], [None], [[1]], np.array([1.5]), np.array([[1]])):
            calls.refused(f"decode({ids!r})", lambda ids=ids: llm.decode(ids))
        pairs: tuple[tuple[Any, Any], ...] = (
            (None, None), (5, 5), ([], [[1]]), ([[1]], []), ([[]], [[1]]), ([[1]], [[]]), ([[1]], [[-1]]), ([[1]], [[llm.vocab_size]]),
            ([[2**31]], [[1]]), ([["x"]], [[1]]), (["x"], [[1]]), ([[1.5]], [[1]]), ([[1]], [None]), ([[1] * 300], [[1]]),
            ([[1]], [[1] * 300]),
        )
        for prompt, continuation in pairs:
            calls.refused(f"score({repr(prompt)[:40]}, {repr(continuation)[:40]})",
                          lambda prompt=prompt, continuation=continuation: llm.score(prompt, continuation))
        calls.refused("score(kv=)", lambda: llm.score([[1]], [[2]], kv="("))
        for kv in (None, 5, "", "(", "nonesuch", "lathe(ratio=-1)", "x" * 10000, "\ud800"):
            calls.refused(f"cost({str(kv)[:30]!r})", lambda kv=kv: llm.cost(kv))
        for prompt in (None, [], [[]], [None], [[llm.vocab_size]], ["x" * 100000]):
            calls.refused(f"embed_tokens({repr(prompt)[:40]})", lambda prompt=prompt: _embedded(llm, prompt))
        calls.refused("embed_tokens(pooling=x)", lambda: llm.embed_tokens("x", pooling="x"))
        messages: tuple[Any, ...] = (
            None, [], "x", [5], [{}], [{"role": 5}], [{"role": "user", "content": 5}], [{"role": "user", "content": float("nan")}],
            [{"content": "x"}], [[]], [None], {"role": "user"}, [{"role": "user", "content": "x" * 200000}],
            [{"role": "user", "content": "\ud800"}], [{"role": "user", "content": [{"type": "image"}]}], [{"role": "user", "content": [5]}],
        )
        for one in messages:
            calls.refused(f"chat({repr(one)[:50]})", lambda one=one: llm.chat(one, GREEDY))
        user = [{"role": "user", "content": "Hello"}]
        for tools in (5, [5], ["x"], [{"a": float("nan")}], [object()], {"a": 1}):
            calls.survived(f"chat(tools={tools!r})", lambda tools=tools: llm.chat(user, GREEDY, tools=tools))
        for arguments in (5, {"messages": None}, {"a": object()}, {"a": float("inf")}):
            calls.survived(f"chat(chat_template_kwargs={arguments!r})",
                           lambda arguments=arguments: llm.chat(user, GREEDY, chat_template_kwargs=arguments))
        check_alive(llm, expected)


def _embedded(llm: Any, prompt: Any) -> None:
    if not llm.embed_tokens(prompt):
        raise ValueError("nothing was asked for")


@batch
def closed(calls: Calls, model: pathlib.Path) -> None:
    folder = pathlib.Path(tempfile.mkdtemp())
    llm = opened(model)
    session = llm.session()
    llm.generate("Once", GREEDY, session=session)
    unread = llm.stream("Once", GREEDY)
    growing = llm.generate("Once", GREEDY, stream=True)
    llm.close()
    llm.close()
    uses: dict[str, Callable[[], Any]] = {
        "generate": lambda: llm.generate("Once", GREEDY),
        "generate([])": lambda: llm.generate([[1]], GREEDY),
        "generate(kv=)": lambda: llm.generate([1], GREEDY, kv="lathe(ratio=4)"),
        "stream": lambda: next(llm.stream("Once", GREEDY)),
        "next of a stream": lambda: next(unread),
        "next of outputs": lambda: next(growing),
        "chat": lambda: llm.chat([{"role": "user", "content": "x"}], GREEDY),
        "embed_tokens": lambda: llm.embed_tokens("Once"),
        "score": lambda: llm.score([[1]], [[2]]),
        "cost": lambda: llm.cost("none"),
        "encode": lambda: llm.encode("Once"),
        "decode": lambda: llm.decode([1]),
        "session": lambda: llm.session(),
        "generate with its session": lambda: llm.generate("x", GREEDY, session=session),
        "save its session": lambda: session.save(folder / "x"),
        "load_session": lambda: llm.load_session(folder / "x"),
        "max_model_len": lambda: llm.max_model_len,
        "vocab_size": lambda: llm.vocab_size,
        "eos_token_id": lambda: llm.eos_token_id,
        "bos_token_id": lambda: llm.bos_token_id,
        "kvs": lambda: llm.kvs,
        "get_default_sampling_params": lambda: llm.get_default_sampling_params(),
        "with": lambda: llm.__enter__().encode("x"),
        "compare": lambda: llm.compare(["none"]),
        "inspect": lambda: llm.inspect("none"),
        "calibrate": lambda: llm.calibrate("x", folder / "y"),
        "tune": lambda: llm.tune(),
    }
    for name, use in uses.items():
        if hasattr(kvlathe.LLM, name.split("(")[0]) or " " in name or name == "with":
            calls.refused(f"{name} of a closed model", use)
    for name, use in {"reset": session.reset, "close": session.close, "token_ids": lambda: session.token_ids,
                      "close of a stream": unread.close, "del": lambda: growing.__del__()}.items():
        calls.survived(f"{name} behind the close of the model", use)


@batch
def sessions(calls: Calls, model: pathlib.Path) -> None:
    folder = pathlib.Path(tempfile.mkdtemp())
    with opened(model, kv=["none", "lathe(ratio=4)"]) as llm, opened(model) as other:
        expected = greedy(llm)
        session = llm.session()
        calls.refused("save of an empty session", lambda: session.save(folder / "empty"))
        llm.generate("Once upon a time", GREEDY, session=session)
        calls.refused("session of another model", lambda: other.generate("x", GREEDY, session=session))
        calls.refused("session of another cache", lambda: llm.generate("x", GREEDY, session=session, kv="lathe(ratio=4)"))
        calls.refused("two prompts with one session", lambda: llm.generate(["x", "y"], GREEDY, session=session))
        calls.refused("two answers with one session", lambda: llm.generate("x", kvlathe.SamplingParams(n=2), session=session))
        calls.refused("save to nowhere", lambda: session.save("/nonexistent/folder/x"))
        calls.refused("save to a folder", lambda: session.save(folder))
        calls.refused("save(None)", lambda: session.save(None))  # type: ignore[arg-type]
        running = llm.stream("and then", GREEDY, session=session)
        calls.refused("a session that is in use", lambda: llm.generate("x", GREEDY, session=session))
        calls.refused("save of a session that is in use", lambda: session.save(folder / "used"))
        running.close()
        session = llm.session()
        llm.generate("Once upon a time", GREEDY, session=session)
        session.save(folder / "good")
        data = (folder / "good").read_bytes()
        for name, damaged in {"empty": b"", "garbage": os.urandom(2000), "half": data[:len(data) // 2], "short": data[:-1],
                              "start": data[:16], "zeros": bytes(len(data)), "nan": data[:100] + b"\xff" * (len(data) - 100)}.items():
            (folder / name).write_bytes(damaged)
            calls.refused(f"load_session of {name}", lambda name=name: llm.load_session(folder / name))
        for at in range(0, len(data), max(1, len(data) // 40)):
            changed = bytearray(data)
            changed[at] ^= 0xFF
            (folder / "changed").write_bytes(changed)

            def load() -> None:
                with llm.load_session(folder / "changed") as loaded:
                    llm.generate("x", GREEDY, session=loaded)

            calls.survived(f"load_session with byte {at} changed", load)
        calls.refused("load_session of another cache", lambda: llm.load_session(folder / "good", kv="lathe(ratio=4)"))
        calls.refused("load_session(None)", lambda: llm.load_session(None))  # type: ignore[arg-type]
        calls.refused("load_session of a folder", lambda: llm.load_session(folder))
        session.close()
        session.close()
        calls.refused("a closed session", lambda: llm.generate("x", GREEDY, session=session))
        calls.refused("save of a closed session", lambda: session.save(folder / "x"))
        check_alive(llm, expected)


def in_child(function: Callable[[], Any]) -> None:
    """Raises what a child of fork raised, or that it ended otherwise."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            function()
            said = b"nothing"
        except Exception as error:  # noqa: BLE001 - it is told to the parent
            said = f"{type(error).__name__}: {error}".encode()
        os.write(write, said[:4000])
        os._exit(0)
    os.close(write)
    said = b"".join(iter(lambda: os.read(read, 4096), b""))
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"the child of fork ended with {status}")
    if said != b"nothing":
        raise RuntimeError(said.decode())


@batch
def forks(calls: Calls, model: pathlib.Path) -> None:
    llm = opened(model)
    expected = greedy(llm)
    session = llm.session()
    llm.generate("Once", GREEDY, session=session)
    stream = llm.stream("Once", GREEDY)
    next(stream)
    calls.refused("generate in a child", lambda: in_child(lambda: llm.generate("x", GREEDY)))
    calls.refused("a stream in a child", lambda: in_child(lambda: next(stream)))
    calls.refused("a session in a child", lambda: in_child(lambda: llm.generate("x", GREEDY, session=session)))
    calls.refused("close in a child", lambda: in_child(llm.close))
    calls.refused("score in a child", lambda: in_child(lambda: llm.score([[1]], [[2]])))
    calls.refused("cost in a child", lambda: in_child(lambda: llm.cost("lathe(ratio=4)")))
    calls.refused("save in a child", lambda: in_child(lambda: session.save("/tmp/hostile-session")))
    calls.survived("encode in a child", lambda: in_child(lambda: llm.encode("x")))
    if not IS_SANITIZED:
        calls.survived("another model in a child", lambda: in_child(lambda: opened(model).generate("x", GREEDY)))
    stream.close()
    check_alive(llm, expected)


@batch
def threads(calls: Calls, model: pathlib.Path) -> None:
    long = kvlathe.SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)

    def at_once(*functions: Callable[[], Any]) -> list[BaseException | None]:
        raised: list[BaseException | None] = [None] * len(functions)

        def run(i: int) -> None:
            try:
                functions[i]()
            except BaseException as error:  # noqa: BLE001 - it is looked at
                raised[i] = error

        workers = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return raised

    def first_of(raised: list[BaseException | None]) -> None:
        for error in raised:
            if error is not None:
                raise error

    with opened(model, kv=["none", "lathe(ratio=4)"]) as llm:
        expected = greedy(llm)
        for i in range(4):
            session = llm.session()
            calls.survived(f"a session in four threads, {i}", lambda session=session: first_of(
                at_once(*[lambda: llm.generate("x", GREEDY, session=session)] * 4)))
        stream = llm.stream("Once", long)
        calls.survived("a stream in four threads", lambda: first_of(at_once(*[lambda: [next(stream) for _ in range(20)]] * 4)))
        calls.survived("a stream closed in another thread", lambda: first_of(at_once(lambda: list(stream), stream.close)))
        calls.survived("scores, texts and costs at once", lambda: first_of(at_once(
            lambda: llm.generate("x", GREEDY), lambda: llm.score([[1]], [[2]]), lambda: llm.cost("lathe(ratio=6)"),
            lambda: llm.generate("y", GREEDY, kv="kivi(bits=4,group=32)"), lambda: llm.encode("x"), lambda: llm.kvs)))
        check_alive(llm, expected)
    for i in range(4):
        llm = opened(model)
        # Which of them are done before the model is closed is a race; none is done behind it.
        calls.survived(f"close while threads generate, {i}", lambda llm=llm: first_of(at_once(
            lambda: llm.generate("Once", long), lambda: llm.generate("Twice", long),
            lambda i=i: (time.sleep(0.02 * i), llm.close()), lambda: [llm.generate("x", GREEDY) for _ in range(50)])))
        calls.refused(f"generate once they are done, {i}", lambda llm=llm: llm.generate("x", GREEDY))


@batch
def signals(calls: Calls, model: pathlib.Path) -> None:
    long = kvlathe.SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    with opened(model) as llm:
        expected = greedy(llm)

        def interrupted(function: Callable[[], Any]) -> None:
            ended = threading.Event()

            def interrupt() -> None:
                time.sleep(0.05)
                while not ended.is_set():
                    os.kill(os.getpid(), signal.SIGINT)
                    ended.wait(0.5)

            helper = threading.Thread(target=interrupt)
            helper.start()
            try:
                while True:
                    function()
            finally:
                ended.set()
                helper.join()

        calls.refused("Ctrl-C in generate", lambda: interrupted(lambda: llm.generate(["Once"] * 8, long)))
        calls.refused("Ctrl-C in score", lambda: interrupted(lambda: llm.score([[1] * 200] * 50, [[2]] * 50)))
        calls.refused("Ctrl-C in a stream", lambda: interrupted(lambda: list(llm.stream("Once", long))))

        def failing(*_: Any) -> None:
            raise ValueError("a handler of the caller")

        before = signal.signal(signal.SIGALRM, failing)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        calls.refused("a handler that raises", lambda: [llm.generate(["Once"] * 8, long) for _ in range(200)])
        signal.signal(signal.SIGALRM, before)
        check_alive(llm, expected)
