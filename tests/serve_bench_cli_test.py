#!/usr/bin/env python3
"""kvlathe bench serve against a server that is a few lines of Python: what is sent, when, and what is made of what comes back."""

import json
import pathlib
import re
import time
import unittest

import cli_support
from mock_openai_server import MockServer

SAMPLE = pathlib.Path(__file__).resolve().parent.parent / "share/sample.txt"


class ServeBenchCase(cli_support.CommandLineCase):
    def bench(self, server, *arguments, **options):
        return self.run_verb("bench", "serve", "--base-url", server.url, *arguments, timeout=60, **options)

    def result(self, server, *arguments):
        done = self.bench(server, *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def test_clients_send_one_request_after_another_on_kept_connections(self):
        with MockServer() as server:
            result = self.result(server, "--num-prompts", 18, "--max-concurrency", 3, "--random-input-len", 12,
                                 "--random-output-len", 6, "--random-range-ratio", 0.5, "--kv", "lathe(ratio=4)", "--save-detailed",
                                 "--result-dir", self.folder, "--result-filename", "r.json")
        self.assertEqual((result["completed"], result["failed"], result["num_prompts"]), (18, 0, 18))
        self.assertEqual(server.most_active, 3)
        self.assertLessEqual(result["max_concurrent_requests"], 3)
        # One for each client, one for each question before.
        self.assertLessEqual(server.n_connections, 3 + 4)
        self.assertEqual(result["model_id"], "mock")
        self.assertEqual(result["request_rate"], "inf")
        prompts = [request["prompt"] for request in server.requests]
        self.assertEqual(len({prompt[0] for prompt in prompts}), 18)
        for request in server.requests:
            self.assertTrue(6 <= len(request["prompt"]) <= 18 and 3 <= request["max_tokens"] <= 9)
            self.assertTrue(all(0 <= token < 500 for token in request["prompt"]))
            self.assertEqual(request["kv"], "lathe(ratio=4)")
            self.assertIs(request["ignore_eos"], True)
            self.assertIs(request["stream"], True)
        self.assertEqual(result["total_input_tokens"], sum(map(len, prompts)))
        self.assertEqual(result["total_output_tokens"], sum(request["max_tokens"] for request in server.requests))
        self.assertEqual(result["server"], {"mean_queue_time_ms": 250.0, "preemptions": 0.0, "prefix_cache_hit_tokens": None})
        for key in ("mean_ttft_ms", "p99_tpot_ms", "median_itl_ms", "p90_normalized_latency_ms"):
            self.assertGreater(result[key], 0, key)
        saved = json.loads((self.folder / "r.json").read_text())
        self.assertEqual(saved, result)
        self.assertEqual(len(saved["itls"]), 18)
        self.assertTrue(all(text.startswith(" t0 t1") for text in saved["generated_texts"]))

    def test_requests_arrive_at_the_rate_and_the_seed_decides_when(self):
        def gaps(seed):
            with MockServer(seconds_per_token=0) as server:
                begin = time.monotonic()
                result = self.result(server, "--num-prompts", 40, "--request-rate", 80, "--random-input-len", 4,
                                     "--random-output-len", 2, "--seed", seed, "--save-detailed", "--result-dir", self.folder)
            self.assertGreater(time.monotonic() - begin, 0.5)
            self.assertAlmostEqual(result["start_times"][-1], 0.5, delta=0.1)
            return result["start_times"], sorted(request["prompt"] for request in server.requests)
        (first, prompts), (second, same_prompts), (third, other_prompts) = gaps(1), gaps(1), gaps(2)
        self.assertEqual(prompts, same_prompts)
        self.assertNotEqual(prompts, other_prompts)
        between = [b - a for a, b in zip(first, first[1:])]
        # Exponential gaps: many are less than half the mean, some are more than twice it.
        self.assertGreater(sum(gap < 0.5 / 80 for gap in between), 5)
        self.assertGreater(sum(gap > 2 / 80 for gap in between), 0)
        self.assertLess(max(abs(a - b) for a, b in zip(first, second)), 0.1)
        self.assertGreater(max(abs(a - b) for a, b in zip(first, third)), 0.01)

    def test_what_waits_in_the_client_counts_from_its_arrival(self):
        with MockServer(seconds_per_token=0.02) as server:
            result = self.result(server, "--num-prompts", 6, "--request-rate", 1000, "--max-concurrency", 1, "--random-input-len",
                                 4, "--random-output-len", 2, "--percentile-metrics", "client_queue_time,e2el")
        # Six answers of 40 ms, one behind the other: the last waits 200 ms.
        self.assertGreater(result["mean_client_queue_time_ms"], 80)
        self.assertLess(result["mean_e2el_ms"], 90)
        self.assertGreater(result["mean_normalized_latency_ms"], (80 + 40) / 2)

    def test_failures_are_counted_by_kind(self):
        faults = {1: 429, 2: "cut", 3: "error", 4: "short", 5: 429}
        with MockServer(misbehave=lambda number, _: faults.get(number)) as server:
            done = self.bench(server, "--num-prompts", 8, "--max-concurrency", 1, "--random-input-len", 4, "--random-output-len", 4,
                              "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["errors_by_kind"], {"http 429": 2, "disconnected": 1, "stream error": 1})
        self.assertEqual((result["completed"], result["failed"], result["short_outputs"]), (4, 4, 1))
        self.assertIsNone(result["p90_normalized_latency_of_all_ms"])
        self.assertIn("2 of 8 requests failed (http 429): mock refuses", done.stderr.decode())
        self.assertIn("the engine gave up", done.stderr.decode())

    def test_a_silent_server_is_left_after_the_timeout(self):
        with MockServer(misbehave=lambda *_: "silent") as server:
            done = self.bench(server, "--num-prompts", 1, "--request-timeout", 0.2, "--random-input-len", 2, "--random-output-len", 2)
        self.assertEqual(done.returncode, 1)
        self.assertIn("(timeout)", done.stderr.decode())
        self.assertIn("no request succeeded", done.stderr.decode())

    def test_connections_that_the_server_drops_are_made_again(self):
        with MockServer(drops_idle=True) as server:
            result = self.result(server, "--num-prompts", 5, "--max-concurrency", 1, "--random-input-len", 4,
                                 "--random-output-len", 2)
        self.assertEqual((result["completed"], result["failed"]), (5, 0))
        self.assertEqual(result["reconnected"], 4)

    def test_tables_of_papers_scaled_to_a_context(self):
        with MockServer(seconds_per_token=0) as server:
            done = self.bench(server, "--num-prompts", 30, "--max-concurrency", 4, "--dataset-name", "arxiv", "--fit-context",
                              1000, "--json")
        result = json.loads(done.stdout)
        self.assertIn("every length is times 0.0686", done.stderr.decode())
        self.assertAlmostEqual(result["scale"], 1000 / 14564)
        for request in server.requests:
            self.assertTrue(109 <= len(request["prompt"]) <= 968)
            self.assertTrue(1 <= request["max_tokens"] <= 31)
        # Windows of the text that comes with kvlathe, which this server tokenizes by the lengths of words.
        self.assertEqual(result["prompts"], "token ids of a text")
        words = SAMPLE.read_text(encoding="utf-8").split()
        text = " ".join(str(len(word)) for word in [*words, *words])
        for request in server.requests[:5]:
            self.assertIn(" ".join(map(str, request["prompt"])), text)

        said = self.json_of("bench", "serve", "--dry-run", "--dataset-name", "arxiv", "--fit-context", 1000)
        for key in said:
            self.assertEqual(said[key], result[key], key)
        self.assertIn("prompt: 432.573 tokens on average, 109 to 968",
                      self.run_verb("bench", "serve", "--dry-run", "--dataset-name", "arxiv", "--fit-context", 1000).stdout.decode())

    def test_chat_and_servers_without_tokenizer_get_text(self):
        with MockServer(has_tokenizer=False, has_usage=False) as server:
            done = self.bench(server, "--num-prompts", 4, "--dataset-name", "humaneval", "--scale", 0.1, "--backend", "openai-chat",
                              "--temperature", 0, "--extra-body", '{"top_k": 1}')
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cut at 4 bytes a token", done.stderr.decode())
        self.assertIn("Output tokens are pieces of text", done.stdout.decode())
        for request in server.requests:
            self.assertGreater(len(request["messages"][0]["content"]), 20)
            self.assertEqual((request["temperature"], request["top_k"]), (0, 1))
        self.assertNotIn("prompt", server.requests[0])

    def test_requests_of_a_file_and_a_key_of_the_environment(self):
        (self.folder / "f.jsonl").write_text('{"prompt": "one", "output_len": 3}\n{"prompt": [4, 5]}\n')
        self.environment["OPENAI_API_KEY"] = "secret"
        with MockServer() as server:
            self.result(server, "--dataset-name", "file", "--dataset-path", self.folder / "f.jsonl", "--output-len", 2,
                        "--num-prompts", 3, "--max-concurrency", 1)
        self.assertEqual([(request["prompt"], request["max_tokens"]) for request in server.requests],
                         [("one", 3), ([4, 5], 2), ("one", 3)])
        self.assertEqual(set(server.keys), {"Bearer secret"})

    def test_a_duration_in_place_of_a_number(self):
        with MockServer(seconds_per_token=0.005) as server:
            begin = time.monotonic()
            closed = self.result(server, "--duration", 0.3, "--max-concurrency", 2, "--random-input-len", 4, "--random-output-len", 2)
            self.assertLess(time.monotonic() - begin, 5)
            self.assertGreater(closed["completed"], 10)
            self.assertGreater(closed["duration"], 0.29)
            n_before = len(server.requests)
            self.assertEqual(n_before, closed["completed"])
            opened = self.result(server, "--num-warmups", 2, "--duration", 0.2, "--request-rate", 50, "--random-input-len", 4, "--random-output-len", 2)
            self.assertEqual(opened["completed"], 10)
            self.assertEqual(len(server.requests), n_before + 2 + 10)  # warm-ups are a number, not a duration

    def test_a_sweep_ends_above_the_bound_and_is_drawn(self):
        def queue(number, _):  # the third rate is more than it serves
            time.sleep(0.25 if number >= 24 else 0)
        with MockServer(seconds_per_token=0.001, misbehave=queue) as server:
            done = self.bench(server, "--request-rates", "20,40,80,160", "--slo-normalized-latency", 40, "--num-prompts", 12,
                              "--max-concurrency", 6, "--random-input-len", 4, "--random-output-len", 4, "--label", "mock <1>",
                              "--save-result", "--result-dir", self.folder, "--result-filename", "sweep.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        sweep = json.loads((self.folder / "sweep.json").read_text())
        self.assertEqual([run["request_rate"] for run in sweep["runs"]], [20, 40, 80])
        self.assertEqual(sweep["request_rate_at_slo_is"], "between")
        self.assertTrue(40 < sweep["request_rate_at_slo"] < 80)
        self.assertRegex(done.stdout.decode(), r"Request rate at p90 normalized latency 40 ms: [4-7]\d")
        prompts = [tuple(request["prompt"]) for request in server.requests]
        self.assertEqual(len(set(prompts)), len(prompts))
        drawn = self.run_verb("bench", "serve", "--plot", self.folder / "sweep.json", "--svg", self.folder / "out.svg")
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        svg = (self.folder / "out.svg").read_text()
        self.assertIn("mock &lt;1&gt;", svg)
        self.assertEqual(len(re.findall("<circle", svg)), 3 + 1)  # the points and the one beside the name

    def test_the_block_of_vllm_is_printed(self):
        with MockServer() as server:
            done = self.bench(server, "--num-prompts", 2, "--random-input-len", 4, "--random-output-len", 3, "--goodput", "ttft:10000",
                              "tpot:10000", "--num-warmups", 2)
        self.assertEqual(len(server.requests), 4)
        lines = [line.split(":")[0].strip("=- ") for line in done.stdout.decode().splitlines()]
        expected = ["Serving Benchmark Result", "Successful requests", "Failed requests", "Benchmark duration (s)", "Total input tokens",
                    "Total generated tokens", "Request throughput (req/s)", "Request goodput (req/s)", "Output token throughput (tok/s)",
                    "Peak output token throughput (tok/s)", "Peak concurrent requests", "Total token throughput (tok/s)",
                    "Time to First Token", "Mean TTFT (ms)", "Median TTFT (ms)", "P99 TTFT (ms)",
                    "Time per Output Token (excl. 1st token)", "Mean TPOT (ms)", "Median TPOT (ms)", "P99 TPOT (ms)",
                    "Inter-token Latency", "Mean ITL (ms)", "Median ITL (ms)", "P99 ITL (ms)"]
        self.assertEqual(lines[: len(expected)], expected)

    def test_wrong_requests_are_refused_in_one_line(self):
        serve = ("bench", "serve")
        self.assert_refused(2, "only http is spoken", *serve, "--base-url", "https://127.0.0.1:1")
        self.assert_refused(2, "--goodput itl:3", *serve, "--goodput", "itl:3")
        self.assert_refused(2, "no 'latency'", *serve, "--percentile-metrics", "latency")
        self.assert_refused(2, "must ascend", *serve, "--request-rates", "2,1")
        self.assert_refused(2, "--duration needs", *serve, "--duration", 3)
        self.assert_refused(2, "--plot needs --svg", *serve, "--plot", "x.json")
        self.assert_refused(2, "not KEY=VALUE", *serve, "--metadata", "x")
        self.assert_refused(2, "--extra-body", *serve, "--extra-body", "[1]")
        with MockServer() as server:
            url = server.url
            self.assert_refused(2, "--dataset-path", *serve, "--base-url", url, "--dataset-name", "file")
            self.assert_refused(2, "one of --scale and", *serve, "--base-url", url, "--scale", 2, "--fit-context", 100)
        self.assert_refused(1, "is the server there?", *serve, "--base-url", url)


if __name__ == "__main__":
    cli_support.main()
