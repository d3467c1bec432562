"""Greedy answers of `kvlathe serve` are the same alone and under load, through preemption and beside clients that go away.

Usage: serve_load_test.py KVLATHE MODEL [TEST...]
MODEL is a directory or a GGUF file.
"""

import concurrent.futures
import json
import random

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

LEVELS = ("none", "lathe(ratio=4)", "kivi(bits=4)")
WORDS = "the old house by the river had been empty since winter and nobody in the village knew who kept its lamp alight".split()
N_REQUESTS, N_GONE = 12, 6
LONGEST_ANSWER, LONGEST_PROMPT = 240, 40  # in tokens and in words


def requests(seed):
    """Of every level, with prompts and answers of many lengths, some as streams."""
    draw = random.Random(seed)
    for i in range(N_REQUESTS):
        prompt = " ".join(draw.choice(WORDS) for _ in range(draw.randint(5, LONGEST_PROMPT)))
        yield {"prompt": prompt, "max_tokens": draw.randint(LONGEST_ANSWER // 4, LONGEST_ANSWER), "temperature": 0, "ignore_eos": True,
               "kv": LEVELS[i % len(LEVELS)], "stream": i % 2 == 1}


class LoadTest(cli_support.CommandLineCase):
    def serve(self, *arguments):
        kv = [word for level in LEVELS for word in ("--kv", level)]
        return Server(KVLATHE, "-m", MODEL, *kv, "--deterministic", "-np", 16, *arguments, environment=self.environment, patience=900)

    def text(self, server, request):
        body = {key: value for key, value in request.items() if key != "stream"}
        if request["stream"]:
            return "".join(event["choices"][0]["text"] for event in server.stream("/v1/completions", body) if event["choices"])
        status, answer, _ = server.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["text"]

    def leave(self, server, request):
        """Asks for a stream and goes away behind its first event."""
        events = server.stream("/v1/completions", request)
        next(events)
        events.close()

    def bytes_of_the_longest(self, server):
        """What the longest request alone holds at its end, uncompressed."""
        tokens = server.post("/tokenize", {"prompt": " ".join(WORDS)})[1]["count"] * LONGEST_PROMPT // len(WORDS) + LONGEST_ANSWER
        kv = self.json_of("inspect", "-m", MODEL, "--kv", "none", "-c", tokens)["kv_bytes"]
        return kv["total"]

    def test_the_same_text_alone_and_under_load(self):
        wanted = list(requests(seed=1))
        with self.serve() as server:
            alone = [self.text(server, request) for request in wanted]
            n_bytes = self.bytes_of_the_longest(server)
            self.assertEqual(server.metric("vllm:num_preemptions_total"), 0)
        self.assertGreater(len(set(alone)), N_REQUESTS // 2)
        with self.serve("--kv-memory", 5 * n_bytes // 4) as server:
            with concurrent.futures.ThreadPoolExecutor(N_REQUESTS + N_GONE) as clients:
                gone = [clients.submit(self.leave, server, request) for request in list(requests(seed=2))[:N_GONE]]
                together = list(clients.map(lambda request: self.text(server, request), wanted))
                for client in gone:
                    client.result()
            for request, text, other in zip(wanted, alone, together):
                self.assertEqual(text, other, json.dumps(request))
            self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
            server.wait_for_metric("vllm:num_requests_running", 0)
            server.wait_for_metric("kvlathe_kv_bytes_used", 0)

    def test_caches_give_up_bits_before_they_go(self):
        kv = "lathe(ratio=4,under_pressure=8,run=64)"
        draw = random.Random(3)
        wanted = [{"prompt": " ".join(draw.choice(WORDS) for _ in range(60)), "max_tokens": 500, "temperature": 0, "ignore_eos": True,
                   "under_pressure": i % 2 == 0} for i in range(8)]
        arguments = ("-m", MODEL, "--kv", kv, "--deterministic", "-np", 16, "-c", 1024)

        def ask(server, request):
            status, answer, _ = server.post("/v1/completions", request)
            self.assertEqual(status, 200, answer)
            return answer["choices"][0]["text"], answer["usage"].get("pressed_tokens", 0)

        with Server(KVLATHE, *arguments, environment=self.environment, patience=900) as server:
            alone = [ask(server, request) for request in wanted]
        n_bytes = self.json_of("inspect", "-m", MODEL, "--kv", kv, "-c", 1024)["kv_bytes"]["total"]
        with Server(KVLATHE, *arguments, "--kv-memory", 3 * n_bytes // 2, environment=self.environment, patience=900) as server:
            with concurrent.futures.ThreadPoolExecutor(len(wanted)) as clients:
                together = list(clients.map(lambda request: ask(server, request), wanted))
            n_pressed = server.metric("kvlathe_kv_pressed_tokens_total")
        self.assertGreater(n_pressed, 0)
        self.assertEqual(sum(pressed for _, pressed in together), n_pressed)
        for request, (text, pressed), (other, _) in zip(wanted, together, alone):
            if not request["under_pressure"]:
                self.assertEqual(pressed, 0)
            if pressed == 0:
                self.assertEqual(text, other, json.dumps(request))


if __name__ == "__main__":
    cli_support.main()
