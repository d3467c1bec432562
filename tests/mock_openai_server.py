"""A small server with OpenAI's API that invents its tokens, for tests of clients: it streams what it is asked for, at a pace, and
misbehaves where a test tells it to.

  mock_openai_server.py PORT SECONDS_PER_TOKEN SLOTS      as a program; SLOTS requests get tokens at the same time
"""

import contextlib
import http.server
import json
import sys
import threading
import time


class MockServer:
    """Counts what it sees. `misbehave(number, body)` may answer, for the request of that number, a status to refuse it with, "cut"
    (the connection ends in the middle), "short" (one token less), "error" (an error inside the stream), "silent" (nothing comes)
    or None."""

    def __init__(self, seconds_per_token=0.001, misbehave=lambda number, body: None, has_usage=True, has_tokenizer=True,
                 drops_idle=False, port=0, n_slots=None):
        self.seconds_per_token, self.misbehave, self.has_usage = seconds_per_token, misbehave, has_usage
        self.has_tokenizer, self.drops_idle = has_tokenizer, drops_idle
        self.requests, self.arrived_at, self.keys, self.n_connections = [], [], [], 0
        self.n_active = self.most_active = 0
        self.lock = threading.Lock()
        self.slots = threading.Semaphore(n_slots) if n_slots else contextlib.nullcontext()
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), self.handler_class())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def begin(self, body, key):
        with self.lock:
            self.requests.append(body)
            self.arrived_at.append(time.monotonic())
            self.keys.append(key)
            self.n_active += 1
            self.most_active = max(self.most_active, self.n_active)
            return len(self.requests) - 1

    def end(self):
        with self.lock:
            self.n_active -= 1

    def handler_class(mock):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                with mock.lock:
                    mock.n_connections += 1

            def log_message(self, *_):
                pass

            def send(self, status, body, kind="application/json"):
                data = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                answers = {"/v1/models": {"object": "list", "data": [{"id": "mock", "object": "model"}]},
                           "/tokenizer_info": {"vocab_size": 500}}
                if self.path == "/metrics":
                    n = len(mock.requests)
                    self.send(200, f"vllm:request_queue_time_seconds_sum {0.25 * n}\n"
                                   f"vllm:request_queue_time_seconds_count {n}\nvllm:num_preemptions_total 3\n", "text/plain")
                elif self.path in answers and (mock.has_tokenizer or self.path == "/v1/models"):
                    self.send(200, json.dumps(answers[self.path]))
                elif self.path == "/health":
                    self.send(200, "{}")
                else:
                    self.send(404, '{"error": {"message": "no such route"}}')

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize" and mock.has_tokenizer:
                    self.send(200, json.dumps({"tokens": [len(word) for word in body["prompt"].split()]}))
                elif self.path in ("/v1/completions", "/v1/chat/completions"):
                    number = mock.begin(body, self.headers.get("Authorization"))
                    try:
                        with mock.slots:
                            self.answer(body, mock.misbehave(number, body))
                    finally:
                        mock.end()
                    self.close_connection = self.close_connection or mock.drops_idle
                else:
                    self.send(404, '{"error": {"message": "no such route"}}')

            def answer(self, body, fault):
                if isinstance(fault, int):
                    self.send(fault, '{"error": {"message": "mock refuses"}}')
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                if fault == "silent":
                    time.sleep(1)
                    self.close_connection = True
                    return
                n_tokens = body.get("max_tokens", body.get("max_completion_tokens")) - (fault == "short")
                for token in range(n_tokens):
                    if fault in ("cut", "error") and token == 1:
                        if fault == "error":
                            self.event({"error": {"message": "the engine gave up"}})
                        self.close_connection = True
                        return
                    time.sleep(mock.seconds_per_token)
                    piece = {"delta": {"content": f" t{token}"}} if "messages" in body else {"text": f" t{token}"}
                    self.event({"choices": [{"index": 0, "finish_reason": None, **piece}]})
                if mock.has_usage:
                    prompt = body.get("prompt", "")
                    self.event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": n_tokens}})
                self.chunk(b"data: [DONE]\n\n")
                self.wfile.write(b"0\r\n\r\n")

            def event(self, body):
                self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

            def chunk(self, data):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                self.wfile.flush()

        return Handler


if __name__ == "__main__":
    with MockServer(port=int(sys.argv[1]), seconds_per_token=float(sys.argv[2]), n_slots=int(sys.argv[3])):
        threading.Event().wait()
