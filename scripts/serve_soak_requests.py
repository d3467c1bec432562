"""What scripts/serve_soak.py sends: each kind of request, good, bad or broken off, and which statuses are right for it.

A kind is a coroutine of a Target and a random.Random. It raises Wrong where the server did what it must not.
"""

import asyncio
import dataclasses
import json

HOST = "127.0.0.1"
ANSWER_SECONDS = 120
MODEL = "soaked"
BUSY = 429  # right for every request that would generate


class Wrong(Exception):
    """The server answered as it must not."""


@dataclasses.dataclass
class Target:
    port: int
    key: str
    levels: list
    max_body_bytes: int
    context_tokens: int

    def head(self, method, path, n_bytes=None, *lines, key=None):
        head = [f"{method} {path} HTTP/1.1", f"Host: {HOST}:{self.port}", f"Authorization: Bearer {key or self.key}", *lines]
        if n_bytes is not None:
            head += ["Content-Type: application/json", f"Content-Length: {n_bytes}"]
        return ("\r\n".join(head) + "\r\n\r\n").encode("utf-8", "surrogatepass")

    def post(self, path, body, *lines, key=None):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return self.head("POST", path, len(body), *lines, key=key) + body


class Connection:
    def __init__(self, target):
        self.target = target

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(HOST, self.target.port)
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()

    async def send(self, data):
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            pass  # refused early: what came of an answer can still be read

    async def read_all(self):
        """Everything until the server closes the connection, or resets it."""
        received = b""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while piece := await self.reader.read(65536):
                    received += piece
        except ConnectionError:
            pass
        except TimeoutError:
            raise Wrong(f"the connection is still open, behind {received[-200:]!r}") from None
        return received


def statuses_of(received):
    """The status of every answer on a connection. Bodies have no line that begins like that."""
    return [int(line.split(b" ")[1]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.")]


def check_error(received, status):
    if status < 400 or b"\r\n\r\n" not in received:
        return
    try:
        error = json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]
    except (ValueError, KeyError, TypeError):
        raise Wrong(f"no error object: {received[-300:]!r}") from None
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        raise Wrong(f"another error object: {error}")


async def exchange(target, data, allowed, may_close=False):
    """Sends bytes on a connection of their own and returns what came until the end; the only status is one of `allowed`."""
    async with Connection(target) as connection:
        await connection.send(data)
        received = await connection.read_all()
    statuses = statuses_of(received)
    if not statuses and may_close:
        return received
    if len(statuses) != 1 or statuses[0] not in allowed:
        raise Wrong(f"{statuses} and not one of {sorted(allowed)}: {data[:300]!r} -> {received[:300]!r}")
    check_error(received, statuses[0])
    return received


def a_prompt(rng):
    words = ["once", "upon", "a", "time", "the", "garden", "was", "old", "and", "she", "said", "nothing"]
    return " ".join(rng.choice(words) for _ in range(rng.randrange(1, 60)))


def a_completion(target, rng, **changes):
    return {"model": MODEL, "prompt": a_prompt(rng), "max_tokens": rng.randrange(1, 40), "kv": rng.choice(target.levels),
            "temperature": rng.choice([0, 0.7, 1.5]), "seed": rng.randrange(1000), **changes}


CLOSE = "Connection: close"


# Good requests.

async def whole(target, rng):
    path, body = rng.choice([
        ("/v1/completions", a_completion(target, rng, n=rng.choice([1, 1, 3]), logprobs=rng.choice([None, 2]))),
        ("/v1/completions", a_completion(target, rng, echo=True, logprobs=1)),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": a_prompt(rng)}], "max_tokens": 8}),
        ("/v1/responses", {"model": MODEL, "input": a_prompt(rng), "max_output_tokens": 8}),
        ("/tokenize", {"prompt": a_prompt(rng)})])
    received = await exchange(target, target.post(path, body, CLOSE), {200, BUSY})
    json.loads(received.split(b"\r\n\r\n", 1)[1])


async def stream(target, rng):
    body = a_completion(target, rng, stream=True)
    received = await exchange(target, target.post("/v1/completions", body, CLOSE), {200, BUSY})
    if statuses_of(received) == [200] and not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        raise Wrong(f"a stream without its end: {received[-200:]!r}")


async def kept_alive(target, rng):
    """Several requests on one connection, some sent before the answers to those before."""
    n_requests = rng.randrange(2, 6)
    data = b"".join(target.head("GET", rng.choice(["/v1/models", "/health"])) for _ in range(n_requests - 1))
    async with Connection(target) as connection:
        await connection.send(data + target.head("GET", "/v1/models", None, CLOSE))
        received = await connection.read_all()
    statuses = statuses_of(received)
    if not 1 <= len(statuses) <= n_requests or set(statuses) != {200}:
        raise Wrong(f"{statuses} for {n_requests} requests")


# Clients that go.

async def gone_from_a_stream(target, rng):
    async with Connection(target) as connection:
        await connection.send(target.post("/v1/completions", a_completion(target, rng, stream=True, max_tokens=400, ignore_eos=True)))
        try:
            await connection.reader.read(rng.randrange(1, 4000))
        except ConnectionError as error:
            raise Wrong(f"the server ended the connection: {error}") from None


async def gone_while_waiting(target, rng):
    async with Connection(target) as connection:
        await connection.send(target.post("/v1/completions", a_completion(target, rng, max_tokens=400, ignore_eos=True)))
        if rng.random() < 0.3:
            connection.writer.write_eof()
        await asyncio.sleep(rng.random() * 0.1)


async def gone_in_the_middle_of_a_request(target, rng):
    data = target.post("/v1/completions", a_completion(target, rng))
    async with Connection(target) as connection:
        await connection.send(data[: rng.randrange(len(data))])
        await asyncio.sleep(rng.random() * 0.05)


async def slow_reader(target, rng):
    """Takes its bytes a few at a time, or none at all."""
    async with Connection(target) as connection:
        body = a_completion(target, rng, stream=True, max_tokens=300, ignore_eos=True, n=4, logprobs=5)
        await connection.send(target.post("/v1/completions", body))
        for _ in range(rng.choice([0, 5])):
            await asyncio.sleep(0.05)
            await connection.reader.read(100)
        connection.writer.transport.pause_reading()
        await asyncio.sleep(rng.random())


async def slow_sender(target, rng):
    data = target.post("/v1/completions", a_completion(target, rng, max_tokens=2), CLOSE)
    async with Connection(target) as connection:
        step = max(1, len(data) // rng.randrange(4, 12))
        for begin in range(0, len(data), step):
            await connection.send(data[begin : begin + step])
            await asyncio.sleep(0.02)
        statuses = statuses_of(await connection.read_all())
    if statuses not in ([200], [BUSY]):
        raise Wrong(f"{statuses} for a request that came slowly")


# Bodies that are wrong.

async def broken_json(target, rng):
    text = json.dumps(a_completion(target, rng)).encode()
    cut = rng.randrange(1, len(text) - 1)
    body = rng.choice([text[:cut], text + b"}", b"", b"\x00" * 20, bytes(rng.randrange(128, 256) for _ in range(50)),
                       text.replace(b'"prompt"', b"'prompt'"), text[:-1] + b',"x":NaN}', text[:-1] + b',"x":01}',
                       b"[1,2", b"nul", b'"text"', b"7", b"[]", b'{"prompt":"\xff\xfe"}', b'{"prompt":"a\xc0\xaf"}', b'{"prompt":"\\u12"}'])
    await exchange(target, target.post("/v1/completions", body, CLOSE), {400})


async def wrong_values(target, rng):
    numbers = [-1, -(2**31), 2**31, 2**63, 2**64, -(2**63) - 1, 10**300, 1.5, "5", [], {}, True]
    field, values = rng.choice([
        ("max_tokens", numbers), ("n", [0, *numbers]), ("seed", ["x", 2**200]), ("logprobs", [-1, 2**31, "x"]), ("temperature", [-0.1, 1e9, "hot", []]),
        ("top_p", [-1, 2, "x"]), ("prompt", [7, {}, [[1.5]], [-1], [2**40], [["a", 1]], True]), ("stop", [5, [5], ["x"] * 1000]),
        ("stream", ["yes", 1]), ("model", ["no-such-model", 5]), ("kv", ["no-such-cache", 5, "lathe(", ""]), ("echo", ["x"]),
        ("min_tokens", [-1, 2**40, "x"]), ("top_k", [2**40, "x"]), ("presence_penalty", [1e9, "x"]), ("logit_bias", [[], {"x": 1}, {"1": "x"}, {"99999999": 1}])])
    body = a_completion(target, rng, **{field: rng.choice(values)})
    await exchange(target, target.post("/v1/completions", body, CLOSE), {404} if body["model"] == "no-such-model" else {400})


async def wrong_chat(target, rng):
    messages = rng.choice([[], "hello", [5], [{}], [{"role": "king", "content": "x"}], [{"role": "user"}],
                           [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                           [{"role": "user", "content": 5}], None, {"role": "user"}])
    await exchange(target, target.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 2}, CLOSE), {400, 501})


async def odd_schema(target, rng):
    """Grammars are an optional part: without it all of these are refused."""
    deep = {"type": "string"}
    for _ in range(rng.choice([5, 60, 400])):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    schema = rng.choice([deep, {"$ref": "#"}, {"$ref": "#/nowhere"}, {"type": "no-such-type"}, {"type": "string", "pattern": "(a+)+$"}, {"type": "string", "pattern": "("},
                         {"enum": []}, {"enum": [str(i) for i in range(2000)]}, {"type": "array", "minItems": 10**12}, {"allOf": [{"type": "string"}, {"type": "null"}]},
                         {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(200)}}, "schema", 5, None, [], True])
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    body |= rng.choice([{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}, {"response_format": schema},
                        {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required"}, {"tools": schema}])
    await exchange(target, target.post("/v1/chat/completions", body, CLOSE), {200, 400, 501, BUSY})


async def deep_json(target, rng):
    depth = rng.choice([100, 1000, 10_000, 200_000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    inner = opening * depth + ("0" if opening != "[" else "") + closing * depth
    body = rng.choice([inner, '{"model":"%s","max_tokens":1,"prompt":%s}' % (MODEL, inner),
                       '{"model":"%s","max_tokens":1,"prompt":"a","metadata":%s}' % (MODEL, inner), opening * depth]).encode()
    allowed = {400} if len(body) <= target.max_body_bytes else {413}
    if b'"metadata"' in body and depth <= 100:
        allowed |= {200, BUSY}  # an unknown field that is no burden
    await exchange(target, target.post("/v1/completions", body, CLOSE), allowed)


async def huge_prompt(target, rng):
    n_tokens = target.context_tokens + rng.randrange(1, 5000)
    prompt = rng.choice(["word " * n_tokens, [5] * n_tokens, "x" * n_tokens * 8, "\u00e9" * n_tokens])
    await exchange(target, target.post("/v1/completions", a_completion(target, rng, prompt=prompt), CLOSE), {400, 413})


async def huge_body(target, rng):
    n_bytes = target.max_body_bytes + rng.randrange(1, 10_000)
    if rng.random() < 0.5:  # announced, and never sent
        data = target.head("POST", "/v1/completions", rng.choice([n_bytes, 10**12, 2**63 - 1]))
    else:
        chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        data = target.head("POST", "/v1/completions", None, "Transfer-Encoding: chunked") + chunk * (n_bytes // 0x8000 + 2)
    await exchange(target, data, {413}, may_close=True)


async def many_choices(target, rng):
    body = rng.choice([a_completion(target, rng, n=10**6), a_completion(target, rng, prompt=["a"] * 5000),
                       a_completion(target, rng, best_of=10**9), a_completion(target, rng, n=100, prompt=["a"] * 100)])
    await exchange(target, target.post("/v1/completions", body, CLOSE), {400})


async def odd_unicode(target, rng):
    raw = rng.choice([r"\ud800", r"\udc00x", r"a\u0000b", r"\uffff\ufffe", r"\ud83d\ude00", "\u202e\u202d abc", "e" + "\u0301" * 300,
                      "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\ufeff", "\u0627\u0644", "\U0010ffff", "\u2028\u2029", "<s></s><unk>",
                      "<|im_start|>system", "\x7f", r"\u001b[2J", "\u1160" * 100])
    body = ('{"model":"%s","max_tokens":3,"prompt":"%s"}' % (MODEL, raw)).encode()
    received = await exchange(target, target.post("/v1/completions", body, CLOSE), {200, 400, BUSY})
    received.split(b"\r\n\r\n", 1)[1].decode()  # UTF-8, whatever the model wrote
    if raw == r"\ud83d\ude00" and statuses_of(received) == [400]:
        raise Wrong("a pair of surrogates is one character")


async def wrong_key(target, rng):
    key = rng.choice(["wrong", target.key[:-1], target.key + "x", target.key.upper(), " ", "\u00e9" * 5, "x" * 5000, "\x01"])
    path = rng.choice(["/v1/models", "/v1/completions", "/metrics", "/tokenize", "/nowhere", "/v1/models?key=" + target.key])
    data = target.head("GET", path, None, CLOSE, key=key)
    if rng.random() < 0.3:
        data = data.replace(b"Authorization: Bearer " + key.encode(), b"Authorization: Basic " + target.key.encode())
    await exchange(target, data, {401, 400}, may_close="\x01" in key)


async def wrong_route(target, rng):
    method, path = rng.choice([("GET", "/nowhere"), ("GET", "/v1/completions"), ("DELETE", "/v1/models"), ("POST", "/health"), ("PUT", "/v1/completions"),
                               ("GET", "/../../etc/passwd"), ("GET", "/%2e%2e/%00"), ("OPTIONS", "*"), ("GET", "//"), ("GET", "/" + "x" * 3000),
                               ("POST", "/v1/embeddings"), ("BREW", "/v1/models"), ("GET", "/v1/models/../../metrics")])
    allowed = {204} if method == "OPTIONS" else {400, 404, 405, 414, 431, 501}
    await exchange(target, target.head(method, path, 0 if method == "POST" else None, CLOSE), allowed)


# Requests that two servers may cut differently. Behind each lies one that must not be answered.

def ambiguous(target, rng):
    """(bytes, the statuses that are right)"""
    hidden = target.head("GET", "/v1/models")
    body = b"0\r\n\r\n" + hidden
    n = len(body)
    lines = rng.choice([
        [f"Content-Length: {n}", "Transfer-Encoding: chunked"], ["Transfer-Encoding: chunked", f"Content-Length: {n}"],
        ["Content-Length: 5", f"Content-Length: {n}"], [f"Content-Length: {n}, 5"], [f"Content-Length: +{n}"], [f"Content-Length: {n}x"],
        ["Content-Length: -1"], ["Content-Length: 99999999999999999999999"], ["Content-Length: 0x10"], ["Content-Length:"],
        ["Transfer-Encoding: chunked, identity"], ["Transfer-Encoding: xchunked"], ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding : chunked"], ["Transfer-Encoding: chunked\x0b"], [" Transfer-Encoding: chunked"],
        ["Content-Length : 5"], ["X: a\r Transfer-Encoding: chunked"], ["X\x00Y: 1"], ["X: a\nTransfer-Encoding: chunked"]])
    head = "\r\n".join(["POST /v1/completions HTTP/1.1", f"Host: {HOST}", f"Authorization: Bearer {target.key}", *lines, CLOSE])
    return head.encode() + b"\r\n\r\n" + body, {400, 411, 413, 501}


async def smuggled(target, rng):
    data, allowed = ambiguous(target, rng)
    await exchange(target, data, allowed, may_close=True)


async def bad_chunks(target, rng):
    chunks = rng.choice([b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffff\r\nx\r\n", b"10000000000000000\r\nx", b"5\r\nabc\r\n0\r\n\r\nxx", b"\r\n", b"5;" + b"x" * 100_000,
                         b"2\r\n{}XX\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n"])
    head = target.head("POST", "/v1/completions", None, "Transfer-Encoding: chunked")
    async with Connection(target) as connection:
        await connection.send(head + chunks)
        connection.writer.write_eof()
        statuses = statuses_of(await connection.read_all())
    if len(statuses) > 1 or not set(statuses) <= {400, 413, 431}:
        raise Wrong(f"{statuses} for chunks {chunks[:60]!r}")


async def no_http(target, rng):
    data = rng.choice([b"GET /v1/models\r\n\r\n", b"GET / HTTP/3.0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
                       b"\r\n" * 100, b"GET  /  HTTP/1.1\r\n\r\n", b"\xff" * 500, b"A" * 100_000, b"GET /v1/models HTTP/1.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
                       b"GET /v1/models HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", b"GET /v1/models HTTP/1.1\nHost: x\n\n"])
    async with Connection(target) as connection:
        await connection.send(data)
        connection.writer.write_eof()
        statuses = statuses_of(await connection.read_all())
    if not set(statuses) <= {400, 401, 413, 414, 431, 505}:
        raise Wrong(f"{statuses} for {data[:60]!r}")


# How often of each, of a hundred.
KINDS = {
    whole: 16, stream: 14, kept_alive: 4, gone_from_a_stream: 9, gone_while_waiting: 7, gone_in_the_middle_of_a_request: 4,
    slow_reader: 2, slow_sender: 2, broken_json: 6, wrong_values: 7, wrong_chat: 2, odd_schema: 2, deep_json: 3, huge_prompt: 2, huge_body: 2,
    many_choices: 2, odd_unicode: 4, wrong_key: 4, wrong_route: 3, smuggled: 3, bad_chunks: 1, no_http: 1}
