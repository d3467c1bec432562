"""A client of HTTP/1.1 for the tests of the server, on asyncio alone. It tells a whole answer from one that
broke off, which clients for users hide behind exceptions of their own."""

import asyncio
import dataclasses
import json

HOST = "127.0.0.1"


@dataclasses.dataclass
class Answer:
    status: int = 0  # 0: the connection ended before a status line
    headers: dict = dataclasses.field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False  # the body is as long as was announced, or has its last chunk

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of the server-sent events, parsed, without the [DONE] behind them."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def is_done(self):
        return self.is_whole and self.body.endswith(b"data: [DONE]\n\n")


async def read_chunks(reader, answer, on_bytes):
    while True:
        n_bytes = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        chunk = (await reader.readexactly(n_bytes + 2))[:-2]
        if n_bytes == 0:
            return
        answer.body += chunk
        if on_bytes:
            on_bytes(answer)


async def read_answer(reader, on_bytes=None):
    """Reads one answer, or as much of it as comes. `on_bytes(answer)` is called behind every chunk."""
    answer = Answer()
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        answer.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        answer.status = int(lines[0].split(" ")[1])
        if answer.headers.get("transfer-encoding") == "chunked":
            await read_chunks(reader, answer, on_bytes)
        else:
            n_bytes = int(answer.headers["content-length"])
            answer.body = await reader.readexactly(n_bytes)
        answer.is_whole = True
    except asyncio.IncompleteReadError as error:
        if answer.status and "content-length" in answer.headers:
            answer.body = error.partial
    except ConnectionError:
        pass
    return answer


async def ask(port, method, path, content=None, headers=None, on_bytes=None):
    """One request on a connection of its own. `content` is what becomes JSON, or bytes as they are."""
    body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}:{port}", "Connection: close"]
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except ConnectionError:
        return Answer()
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return await read_answer(reader, on_bytes)
    finally:
        writer.close()
