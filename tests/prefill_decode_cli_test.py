"""Prompts that one `kvlathe serve` reads and another answers (docs/prefill_decode.md).

Usage: prefill_decode_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import shutil
import signal
import socket
import threading
import time

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

TEXT = " ".join(f"Sentence {i} of a text that is asked many questions." for i in range(60))
KEY = "key-of-both-roles"
ROUTE = "/internal/v1/prefix"
CACHES = ("none", "kivi", "lathe(ratio=4)", "zack(rate=0.5)")


class Relay:
    """Stands before a prefill replica and does to what it answers what networks do. Use as a context manager."""

    def __init__(self, port, answer):
        self.upstream, self.answer, self.n_bytes = port, answer, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.ends = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.socket.shutdown(socket.SHUT_RDWR)  # ends accept
        self.socket.close()

    def accept(self):
        try:
            while True:
                client, _ = self.socket.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()
        except OSError:  # closed
            pass

    def serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self.upstream)) as server:
            threading.Thread(target=self.forward, args=(client, server), daemon=True).start()
            try:
                while piece := server.recv(16384):
                    self.n_bytes += len(piece)
                    piece = self.answer(self, piece)
                    if piece is None:
                        break
                    client.sendall(piece)
                client.shutdown(socket.SHUT_RDWR)  # the other thread may be reading from it
            except OSError:
                pass

    @staticmethod
    def forward(client, server):
        try:
            while piece := client.recv(65536):
                server.sendall(piece)
        except OSError:
            pass
        try:
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    # What becomes of a piece of an answer; None: the connection ends.

    def cut(self, piece):
        return piece if self.n_bytes < 100_000 else None

    def damage(self, piece):
        return piece if self.n_bytes < 100_000 else bytes([piece[0] ^ 1]) + piece[1:]

    def hang(self, piece):
        if self.n_bytes > 100_000:
            self.ends.wait(120)
        return piece

    def other_protocol(self, _):
        return b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"


class PrefillDecode(cli_support.CommandLineCase):
    def serve(self, *arguments, kv="none", model=MODEL):
        levels = [part for level in ([kv] if isinstance(kv, str) else kv) for part in ("--kv", level)]
        return Server(KVLATHE, "-m", model, *levels, "--deterministic", *arguments, environment=self.environment)

    def prefill(self, *arguments, key=KEY, **of):
        return self.serve("--role", "prefill", "--prefill-key", key, *arguments, **of)

    def decode(self, *ports, more=(), **of):
        urls = [part for port in ports for part in ("--prefill", f"http://127.0.0.1:{port}")]
        return self.serve("--role", "decode", *urls, "--prefill-key", KEY, "--prefill-from", "100", *more, **of)

    def complete(self, server, prompt, max_tokens=12, **fields):
        """(text, tokens that were not computed here)"""
        status, answer, _ = server.post(
            "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def failed(self, server, reason):
        return sum(value for name, value in server.metrics().items()
                   if name.startswith("kvlathe_remote_prompts_failed_total") and f'reason="{reason}"' in name)

    def events(self, server, name):
        return [event for event in server.log if event["event"] == name]

    def assert_read_here(self, decode, expected, reason, prompt=TEXT):
        """The prompt does not come for this reason, and the answer is the same."""
        before, n_events = self.failed(decode, reason), len(self.events(decode, "prompt_did_not_come"))
        self.assertEqual(self.complete(decode, prompt), (expected, 0))
        self.assertEqual(self.failed(decode, reason), before + 1)
        told = self.events(decode, "prompt_did_not_come")[n_events:]
        self.assertEqual([event["reason"] for event in told], [reason], told)
        return told[0]["why"]

    def assert_nothing_leaks(self, server):
        server.wait_for_metric("vllm:num_requests_running", 0)
        server.wait_for_metric("vllm:num_requests_waiting", 0)
        server.wait_for_metric("kvlathe_kv_bytes_used", 0)

    def test_answers_are_those_of_one_machine(self):
        with self.prefill(kv=CACHES) as prefill, self.decode(prefill.port, kv=CACHES) as decode, \
                self.serve(kv=CACHES) as alone:
            for kv in CACHES:
                for i in range(2):
                    with self.subTest(kv, prompt=i):
                        prompt = f"{i} {TEXT}"
                        expected, _ = self.complete(alone, prompt, kv=kv)
                        text, n_cached = self.complete(decode, prompt, kv=kv)
                        self.assertEqual(text, expected)
                        self.assertGreater(n_cached, 500)
            self.assertEqual(decode.metric("kvlathe_remote_prompts_read_total"), 2 * len(CACHES))
            self.assertEqual(decode.metric("kvlathe_remote_prompts_failed_total"), 0)
            self.assertEqual(prefill.metric("kvlathe_sent_prompt_bytes_total"),
                             decode.metric("kvlathe_remote_prompt_bytes_total"))
            bytes_of = {event["request_id"]: event["bytes"] for event in self.events(decode, "prompt_came")}
            self.assertEqual(len(bytes_of), 2 * len(CACHES))
            # What is there already is asked of nobody, and what is short neither.
            self.assertGreater(self.complete(decode, f"0 {TEXT} And then?", kv="none")[1], 500)
            self.complete(decode, "A short prompt.")
            self.assertEqual(decode.metric("kvlathe_remote_prompts_read_total"), 2 * len(CACHES))
            self.assert_nothing_leaks(decode)
            self.assert_nothing_leaks(prefill)
            self.assertEqual(decode.end(), 0)
            self.assertEqual(prefill.end(), 0)

    def test_what_does_not_come_whole_is_read_here(self):
        cases = ((Relay.cut, "broken", "broke off"), (Relay.damage, "broken", "checksum"), (Relay.hang, "timeout", "1 s"),
                 (Relay.other_protocol, "broken", ""))
        with self.prefill() as prefill, self.serve() as alone:
            for i, (answer, reason, why) in enumerate(cases):
                prompt = f"{i} {TEXT}"
                with self.subTest(answer.__name__), Relay(prefill.port, answer) as relay, \
                        self.decode(relay.port, more=("--prefill-timeout", "1")) as decode:
                    expected, _ = self.complete(alone, prompt)
                    self.assertIn(why, self.assert_read_here(decode, expected, reason, prompt))
                    # It is left alone for a while, and the server serves on.
                    self.complete(decode, f"again {TEXT}")
                    self.assertEqual(self.failed(decode, "nobody"), 1)
                    self.assert_nothing_leaks(decode)
                    self.assertEqual(decode.end(), 0)
            self.assert_nothing_leaks(prefill)

    def test_a_replica_that_dies_stops_or_is_not_there(self):
        with self.serve() as alone:
            expected, _ = self.complete(alone, TEXT)
        def die(relay, piece):
            if relay.n_bytes < 100_000:
                return piece
            prefill.process.kill()
            return None

        with self.prefill() as prefill, Relay(prefill.port, die) as relay, self.decode(relay.port) as decode:
            self.assert_read_here(decode, expected, "broken")
            self.assert_nothing_leaks(decode)
        with self.decode(prefill.port) as decode:
            self.assertIn("cannot be reached", self.assert_read_here(decode, expected, "unreachable"))
        with self.prefill() as prefill, self.decode(prefill.port, more=("--prefill-timeout", "1")) as decode:
            prefill.process.send_signal(signal.SIGSTOP)
            self.assert_read_here(decode, expected, "timeout")
            prefill.process.send_signal(signal.SIGCONT)
            time.sleep(5.5)  # it is asked again
            self.assertGreater(self.complete(decode, f"then {TEXT}")[1], 500)
            self.assert_nothing_leaks(prefill)

    def test_another_replica_is_asked_where_one_fails(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            dead = closed.getsockname()[1]
        with self.prefill() as prefill, self.decode(dead, prefill.port) as decode:
            self.assertGreater(self.complete(decode, TEXT)[1], 500)
            self.assertEqual(self.failed(decode, "unreachable"), 1)
            self.assertEqual(decode.metric("kvlathe_remote_prompts_read_total"), 1)
            # The dead one rests.
            self.assertGreater(self.complete(decode, f"then {TEXT}")[1], 500)
            self.assertEqual(self.failed(decode, "unreachable"), 1)

    def test_what_does_not_fit_is_refused(self):
        other = self.folder / "other"
        shutil.copytree(MODEL, other)
        weights = other / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-2] ^= 1
        weights.write_bytes(content)
        with self.serve(kv="kivi") as alone:
            expected, _ = self.complete(alone, TEXT)
        cases = ((dict(key="another-key"), "401"), (dict(kv="none"), "without the --kv"),
                 (dict(model=other), "another model"))
        for of, why in cases:
            with self.subTest(why), self.prefill(**dict({"kv": "kivi"}, **of)) as prefill, \
                    self.decode(prefill.port, kv="kivi") as decode:
                self.assertIn(why, self.assert_read_here(decode, expected, "refused"))

    def test_a_prefill_replica_answers_decode_replicas_alone(self):
        key = {"Authorization": f"Bearer {KEY}"}
        question = {"kv": "none", "place": "0" * 64, "salt": "0" * 64, "tokens": list(range(100))}
        with self.prefill() as prefill:
            self.assertEqual(prefill.ask("GET", "/health")[0], 200)
            status, answer, _ = prefill.post("/v1/completions", {"prompt": "x"})
            self.assertEqual((status, answer["error"]["code"]), (403, "prefill_only"))
            self.assertEqual(prefill.post(ROUTE, question)[0], 401)
            self.assertEqual(prefill.post(ROUTE, question, Authorization="Bearer x")[0], 401)
            self.assertEqual(prefill.ask("GET", ROUTE, headers=key)[0], 405)
            for body, why in ((question, "another model"), ({}, "not the question"), (b"\xff" * 100, "not the question"),
                              (dict(question, tokens=[-1]), "not the question"), ([[[[]]]], "not the question")):
                status, answer, _ = prefill.post(ROUTE, body, **key)
                self.assertEqual(status, 400)
                self.assertIn(why, answer["error"]["message"])
            self.assert_nothing_leaks(prefill)
        with self.serve() as alone:
            self.assertEqual(alone.post(ROUTE, question, **key)[0], 404)

    def test_a_client_that_goes_ends_the_reading_too(self):
        with self.prefill() as prefill, Relay(prefill.port, Relay.hang) as relay, \
                self.decode(relay.port, more=("--prefill-timeout", "60")) as decode:
            connection = decode.connect()
            connection.request("POST", "/v1/completions", json.dumps({"prompt": TEXT, "stream": True}))
            decode.wait_for_metric("vllm:num_requests_running", 1)
            connection.sock.close()
            connection.close()
            self.assert_nothing_leaks(decode)
            self.assertEqual(self.events(decode, "prompt_did_not_come"), [])

    def test_what_cannot_be_is_refused_at_the_start(self):
        serve = ("serve", "-m", MODEL, "--port", "0")
        prefill, decode = (*serve, "--role", "prefill"), (*serve, "--role", "decode")
        key, url = ("--prefill-key", KEY), ("--prefill", "http://127.0.0.1:1")
        self.assert_refused(2, "KVLATHE_PREFILL_KEY", *prefill)
        self.assert_refused(2, "--prefill http://HOST:PORT", *decode, *key)
        self.assert_refused(2, "--role decode", *prefill, *key, *url)
        self.assert_refused(2, "not the address", *decode, *key, "--prefill", "ftp://host")
        self.assert_refused(2, "not the address", *decode, *key, "--prefill", "http://host/v1")
        self.assert_refused(2, "--prefix-memory", *decode, *key, *url, "--prefix-memory", "0")
        for kv, why in (("h2o(keep=0.5)", "depends on what follows"), ("kivi(run=prompt)", "compressed as a whole")):
            self.assert_refused(2, why, *prefill, *key, "--kv", kv)
            self.assert_refused(2, why, *decode, *key, *url, "--kv", kv)


if __name__ == "__main__":
    cli_support.main()
