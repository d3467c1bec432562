"""Prompts that one `kvlathe serve` reads and another answers (docs/prefill_decode.md).

Usage: prefill_decode_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import http.server
import json
import pathlib
import shutil
import signal
import socket
import struct
import threading
import time

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

TEXT = " ".join(f"Sentence {i} of a text that is asked many questions." for i in range(60))
KEY = "key-of-both-roles"
ROUTE = "/internal/v1/prefix"
CACHES = ("none", "kivi", "lathe(ratio=4)", "zack(rate=0.5)")


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


if __name__ == "__main__":
    cli_support.main()
