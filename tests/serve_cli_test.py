"""`kvlathe serve` as an operator and a client see it.

Usage: serve_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import os
import signal
import socket
import threading
import time
import unittest

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

KIVI = "kivi(bits=4)"
PROMPT = "It was a dark and stormy night; the rain fell in torrents"
LONG = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}


class ServeCase(cli_support.CommandLineCase):
    def serve(self, *arguments, environment=None):
        return Server(KVLATHE, "-m", MODEL, *arguments, environment=dict(self.environment, **(environment or {})))


class Serving(ServeCase):
    def test_answers_as_run_does(self):
        for kv in ("none", KIVI):
            run = self.json_of("run", "-m", MODEL, "--kv", kv, "-p", PROMPT, "-n", 24)
            with self.serve("--kv", "none", "--kv", KIVI) as server:
                status, answer, headers = server.post(
                    "/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "kv": kv})
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["choices"][0]["text"], run["text"])
                self.assertTrue(headers["X-Request-Id"])
                body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "kv": kv}
                pieces = [event["choices"][0]["text"] for event in server.stream("/v1/completions", body)
                          if event["choices"]]
                self.assertGreater(len(pieces), 3)
                self.assertEqual("".join(pieces), run["text"])

    def test_levels_that_are_not_there_are_refused(self):
        with self.serve("--kv", KIVI) as server:
            status, answer, _ = server.post("/v1/completions", {"prompt": PROMPT, "kv": "none"})
            self.assertEqual((status, answer["error"]["param"]), (400, "kv"))
            self.assertIn(KIVI, answer["error"]["message"])

    @unittest.skipIf(os.environ.get("KVLATHE_GRAMMAR") == "OFF", "a build without grammars")
    def test_an_answer_is_of_the_schema_that_is_asked_for(self):
        schema = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
                  "required": ["colour"], "additionalProperties": False}
        request = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 100, "temperature": 0,
                   "response_format": {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}}
        with self.serve("--chat-template", "chatml") as server:
            status, answer, _ = server.post("/v1/chat/completions", request)
            self.assertEqual(status, 200, answer)
            self.assertIn(json.loads(answer["choices"][0]["message"]["content"]), ({"colour": "red"}, {"colour": "green"}))

    def test_health_is_a_step_and_metrics_have_names_that_routers_read(self):
        with self.serve() as server:
            before = server.metric("kvlathe_step_seconds_count")
            self.assertEqual(server.ask("GET", "/health")[:2], (200, {"status": "ok"}))
            server.wait_for_metric("kvlathe_step_seconds_count", before + 1)
            server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 7, "ignore_eos": True})
            server.wait_for_metric("kvlathe_kv_bytes_used", 0)
            metrics = server.metrics()
            labels = f'{{model_name="{MODEL.name}"}}'
            self.assertEqual(metrics[f"vllm:num_requests_running{labels}"], 0)
            self.assertEqual(metrics[f"vllm:num_requests_waiting{labels}"], 0)
            self.assertEqual(metrics[f"vllm:kv_cache_usage_perc{labels}"], 0)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 7 + 1)
            self.assertEqual(server.metric("vllm:time_to_first_token_seconds_count"), 2)
            self.assertEqual(server.metric("vllm:inter_token_latency_seconds_count"), 6)
            self.assertEqual(server.metric("vllm:e2e_request_latency_seconds_count"), 1)
            self.assertTrue(any(key.startswith("vllm:cache_config_info{") and 'block_size="64"' in key
                                for key in metrics))

    def test_what_was_read_is_not_read_again_for_the_same_key(self):
        def cached(answer):
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        text = PROMPT * 4
        for kv in ("none", KIVI):
            with self.serve("--kv", kv, "--api-key", "one", "--api-key", "two") as server:
                def ask(prompt, key="one"):
                    status, answer, _ = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 9, "temperature": 0},
                                                    Authorization=f"Bearer {key}")
                    self.assertEqual(status, 200, answer)
                    return answer

                first = ask(text)
                n_prompt = first["usage"]["prompt_tokens"]
                self.assertEqual(cached(first), 0)
                again = ask(text)
                self.assertEqual(cached(again), n_prompt - 1)
                self.assertEqual(again["choices"], first["choices"])
                self.assertEqual(cached(ask(text, key="two")), 0)
                grown = ask(text + first["choices"][0]["text"] + " and so on")
                self.assertGreaterEqual(cached(grown), n_prompt)
                status, metrics, _ = server.ask("GET", "/metrics", headers={"Authorization": "Bearer one"})
                self.assertEqual(status, 200)
                values = {line.split("{")[0]: float(line.split()[-1]) for line in metrics.splitlines() if line[0] != "#"}
                self.assertEqual(values["vllm:prefix_cache_queries_total"],
                                 3 * n_prompt + grown["usage"]["prompt_tokens"])
                self.assertEqual(values["vllm:prefix_cache_hits_total"], cached(again) + cached(grown))
                self.assertGreater(values["kvlathe_kv_bytes_stored"], 0)

    def test_nothing_is_stored_where_that_is_switched_off_or_would_depend_on_what_follows(self):
        for arguments in (("--prefix-memory", "0"), ("--kv", "h2o(keep=0.5)")):
            with self.serve(*arguments) as server:
                for _ in range(2):
                    _, answer, _ = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5})
                    self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                server.wait_for_metric("kvlathe_kv_bytes_used", 0)
                self.assertEqual(server.metric("kvlathe_kv_bytes_stored"), 0)
                told = [event for event in server.log if event["event"] == "prefixes_not_stored"]
                self.assertEqual([event["kv"] for event in told], [a for a in arguments[1:] if a != "0"])

    def test_every_route_but_health_needs_a_key(self):
        with self.serve(environment={"KVLATHE_API_KEY": "secret"}) as server:
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", "/v1/completions"),
                                 ("POST", "/tokenize"), ("GET", "/version"), ("GET", "/nowhere")):
                status, answer, _ = server.ask(method, path)
                self.assertEqual((status, answer["error"]["code"]), (401, "invalid_api_key"), path)
            for headers in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "secret"}):
                status, answer, _ = server.ask("GET", "/v1/models", headers=headers)
                self.assertEqual((status, answer["data"][0]["id"]), (200, MODEL.name))

    def test_pages_of_other_origins_do_not_reach_a_server_on_loopback(self):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 1})
        ours = {"Origin": "https://chat.example"}
        with self.serve("--cors-origin", ours["Origin"]) as server:
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
                headers["Content-Type"] = "text/plain"
                status, answer, _ = server.ask("POST", "/v1/completions", body, headers)
                self.assertEqual((status, answer["error"]["code"]), (403, "origin_not_allowed"), headers)
                self.assertEqual(server.ask("GET", "/metrics", headers=headers)[0], 403)
            for host in ("localhost", f"localhost:{server.port}", "127.0.0.1:1", "[::1]"):
                status, _, headers = server.ask("POST", "/v1/completions", body, {"Host": host})
                self.assertEqual(status, 200, host)
                self.assertNotIn("Access-Control-Allow-Origin", headers)
            status, _, headers = server.ask("OPTIONS", "/v1/completions", headers=dict(
                ours, **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}))
            self.assertEqual((status, headers["Access-Control-Allow-Headers"]), (204, "content-type"))
            for more in ({}, {"stream": True}):
                status, _, headers = server.ask("POST", "/v1/completions", json.dumps(dict(json.loads(body), **more)), ours)
                self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, ours["Origin"]))

    def test_a_gone_client_frees_its_blocks(self):
        with self.serve() as server:
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=True)))
            response = connection.getresponse()
            for _ in range(8):  # of several steps
                response.readline()
            self.assertGreater(server.metric("kvlathe_kv_bytes_used"), 0)
            self.assertGreater(server.metric("kvlathe_kv_bytes_uncompressed"), 0)
            response.close()
            connection.close()
            server.wait_for_metric("kvlathe_kv_bytes_used", 0)
            # One that waits for a whole answer.
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(LONG))
            server.wait_for_metric("vllm:num_requests_running", 1)
            connection.sock.close()
            connection.close()
            server.wait_for_metric("vllm:num_requests_running", 0)
            server.wait_for_metric("kvlathe_kv_bytes_used", 0)

    def test_the_queue_is_bounded(self):
        with self.serve("--max-num-seqs", 1, "--max-waiting", 2) as server:
            answers, threads = [], []
            for _ in range(8):
                threads.append(threading.Thread(
                    target=lambda: answers.append(server.post("/v1/completions", dict(LONG, max_tokens=200)))))
                threads[-1].start()
            for thread in threads:
                thread.join()
            statuses = sorted(status for status, _, _ in answers)
            self.assertEqual(set(statuses), {200, 429})
            # One that runs and two that wait; the first waits as well until it is admitted.
            self.assertGreaterEqual(statuses.count(200), 2)
            ended = {key: value for key, value in server.metrics().items() if key.startswith("vllm:request_success_total")}
            self.assertEqual(sum(ended.values()), statuses.count(200))
            self.assertFalse([key for key in ended if 'finished_reason=""' in key])
            for status, answer, headers in answers:
                if status == 429:
                    self.assertGreaterEqual(int(headers["Retry-After"]), 1)
                    self.assertIn("message", answer["error"])

    def test_the_log_has_requests_and_no_text(self):
        with self.serve() as server:
            server.ask("POST", "/v1/completions", json.dumps({"prompt": "Xanadu", "max_tokens": 3, "temprature": 0}),
                       {"X-Request-Id": "my-request-7"})
            server.post("/v1/completions", {"prompt": "Xanadu", "max_tokens": -3})
            self.assertEqual(server.end(), 0)
            requests = [event for event in server.whole_log() if event["event"] == "request"]
            self.assertEqual([event["status"] for event in requests], [200, 400])
            self.assertEqual(requests[0]["request_id"], "my-request-7")
            self.assertEqual(requests[0]["output_tokens"], 3)
            self.assertEqual(requests[0]["unknown_fields"], ["temprature"])
            self.assertNotIn("unknown_fields", requests[1])
            self.assertNotIn("Xanadu", json.dumps(server.log))


class Ending(ServeCase):
    def test_sigterm_drains(self):
        with self.serve("--agent-port", 0, "--drain-delay", 1) as server:
            def agent():
                with socket.create_connection(("127.0.0.1", server.agent_port), timeout=10) as asked:
                    return asked.makefile().read()

            self.assertRegex(agent(), r"^ready up \d+%\n$")
            events = server.stream("/v1/completions", dict(LONG, max_tokens=300))
            next(events)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            self.assertEqual(server.ask("GET", "/health")[0], 503)
            self.assertEqual(agent(), "drain\n")
            # Still within the delay: who does not know yet is served.
            self.assertEqual(server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[0], 200)
            rest = list(events)
            self.assertEqual(rest[-1]["choices"][0]["finish_reason"], "length")
            self.assertEqual(server.process.wait(30), 0)

    def test_what_does_not_end_in_time_ends_with_an_error(self):
        with self.serve("--shutdown-timeout", 0) as server:
            events = server.stream("/v1/completions", LONG)
            next(events)
            server.process.send_signal(signal.SIGTERM)
            last = list(events)[-1]
            self.assertIn("message", last["error"])
            self.assertEqual(server.process.wait(30), 0)
            ended, = [event for event in server.whole_log() if event["event"] == "request"]
            self.assertGreater(ended["output_tokens"], 0)


class Refusals(ServeCase):
    def test_what_cannot_be_served(self):
        for arguments, word in ((["-m", MODEL, "--kv", "none", "--kv", "none"], "twice"),
                                (["-m", MODEL, "--kv", "nonsense"], "nonsense"),
                                (["--random-model", MODEL / "config.json"], "--tokenizer"),
                                ([], "-m MODEL"),
                                (["-m", MODEL, "--api-key", "a b"], "--api-key"),
                                (["-m", MODEL, "--prefix-memory", "much"], "--prefix-memory"),
                                (["-m", "./nowhere", "--host", "host.invalid"], "host.invalid")):
            self.assert_refused(2, word, "serve", *arguments)

    def test_a_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            for option in ("--port", "--agent-port"):
                # Before the model is opened, which takes long: this one is not there.
                self.assert_refused(1, "in use", "serve", "-m", self.folder / "nowhere", option, port)


if __name__ == "__main__":
    cli_support.main()
