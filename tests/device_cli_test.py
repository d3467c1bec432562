"""--device: what a person sees who asks for a GPU. The GPU is emulated (src/cuda/emulated), in the program kvlathe_emulated;
the ordinary program, which has none, says what it lacks and what the answers are without one.

Usage: device_cli_test.py KVLATHE MODEL_DIRECTORY KVLATHE_EMULATED [TEST...]
"""

import json
import os
import re
import subprocess
import sys
import threading
import unittest

ON_PROCESSORS, EMULATED = sys.argv[1], sys.argv.pop(3)
sys.argv[1] = EMULATED

import cli_support  # noqa: E402
from cli_support import MODEL  # noqa: E402
from server_under_test import Server  # noqa: E402

MIB = 1 << 20
NAME = "emulated device"
PROMPT = "Once upon a time"
CUDA = ("--device", "cuda")
TEXT = (MODEL / "sample.txt").read_text(encoding="utf-8")


class DeviceCase(cli_support.CommandLineCase):
    def setUp(self):
        super().setUp()
        # Plans of steps take 32 MiB, and products as much.
        self.environment["KVLATHE_EMULATED_BYTES"] = str(200 * MIB)

    def text_of(self, n_bytes):
        path = self.folder / f"{n_bytes}.txt"
        path.write_text(TEXT[:n_bytes], encoding="utf-8")
        return path

    def on_processors(self, *arguments):
        done = subprocess.run([ON_PROCESSORS, *map(str, arguments), "--json"], capture_output=True, env=self.environment,
                              timeout=300, check=True)
        return json.loads(done.stdout)


class Answers(DeviceCase):
    def test_run_answers_as_on_processors_and_says_where_it_runs(self):
        for kv in ("none", "kivi(bits=4)"):
            arguments = ("run", "-m", MODEL, "--kv", kv, "-p", PROMPT, "-n", 16, "--temp", 0)
            done = self.run_verb(*arguments, *CUDA, "--json")
            notes = done.stderr.decode()
            self.assertEqual(done.returncode, 0, notes)
            self.assertEqual(json.loads(done.stdout)["text"], self.on_processors(*arguments)["text"])
            self.assertRegex(notes, rf"note: running on cuda:0, {NAME}: .* MiB, of which .* MiB hold weights\n")
            hosted = re.findall(r"cuda:0 has no kernel here for ([^;]*);", notes)
            self.assertEqual(len(hosted), len(set(hosted)), notes)
            self.assertEqual(notes.count("note: "), 1 + len(hosted), notes)

    def test_a_session_goes_on_from_one_machine_to_the_other(self):
        whole = self.on_processors("run", "-m", MODEL, "--kv", "kivi(bits=4)", "-p", TEXT[:700], "-n", 20, "--temp", 0)
        for first, second in ((CUDA, ()), ((), CUDA)):
            session = self.folder / f"{len(first)}.session"
            begun = self.json_of("run", "-m", MODEL, "--kv", "kivi(bits=4)", "-p", TEXT[:700], "-n", 12,
                                 "--save-session", session, *first)
            gone_on = self.json_of("run", "-m", MODEL, "--kv", "kivi(bits=4)", "-n", 8, "--load-session", session, *second)
            self.assertEqual(begun["text"] + gone_on["text"], whole["text"])

    def test_compare_has_the_bytes_of_processors_and_nearly_their_figures(self):
        arguments = ("compare", "-m", MODEL, "--text", self.text_of(900), "--kv", "none", "--kv", "kivi(bits=4)", "--no-latency")
        rows, expected = self.json_of(*arguments, *CUDA)["rows"], self.on_processors(*arguments)["rows"]
        self.assertEqual(len(rows), 2)
        for row, of_processors in zip(rows, expected):
            self.assertEqual(row["kv_parts"], of_processors["kv_parts"])
            self.assertAlmostEqual(row["perplexity"] / of_processors["perplexity"], 1, delta=0.01)
            self.assertAlmostEqual(row["kl"], of_processors["kl"], delta=0.001)

    def test_calibrate_and_eval_read_the_rows_of_the_device(self):
        basis, text = self.folder / "basis.safetensors", self.text_of(4000)
        on_device = self.json_of("calibrate", "-m", MODEL, "--text", text, "--tokens", 512, "-o", basis, *CUDA)
        self.assertGreater(on_device["gradient_tokens"], 0)
        arguments = ("eval", "-m", MODEL, "--basis", basis, "--kv", "lathe(ratio=6)", "--kl", self.text_of(900))
        row, of_processors = self.json_of(*arguments, *CUDA), self.on_processors(*arguments)
        self.assertGreater(of_processors["kl"], 0)
        beside = self.json_of(*arguments, "--reference", MODEL, *CUDA)  # which is on the processors
        self.assertAlmostEqual(beside["kl"] / row["kl"], 1, delta=0.2)
        self.assertAlmostEqual(row["kl"] / of_processors["kl"], 1, delta=0.2)

    def test_bench_model_holds_steps_against_copies_on_the_device(self):
        bench = self.json_of("bench", "model", "-m", MODEL, "-p", 16, "-n", 2, "-r", 1, *CUDA)
        self.assertEqual(bench["device"], NAME)
        self.assertEqual([bool(row["n_gen"]) for row in bench["rows"]], [False, True])
        for row in bench["rows"]:
            self.assertGreater(row["avg_ts"], 0)
        self.assertGreater(bench["rows"][1]["bandwidth_share"], 0)

    def test_inspect_says_what_fits(self):
        arguments = ("inspect", "-m", MODEL, "--kv", "kivi(bits=4)")
        found = self.json_of(*arguments, *CUDA)
        self.assertEqual(found["device"], NAME)
        room = found["device_room"]
        self.assertTrue(60 * MIB < room["kv_budget_bytes"] < 140 * MIB, room)
        self.assertAlmostEqual(room["sequences"], room["kv_budget_bytes"] / found["kv_bytes"]["total"], delta=2)
        self.assertNotIn("device_room", self.json_of(*arguments))


class Serving(DeviceCase):
    def serve(self, *arguments):
        return Server(EMULATED, "-m", MODEL, *CUDA, *arguments, environment=self.environment)

    def test_two_clients_stream_at_the_same_time(self):
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, "temperature": 0}
        with self.serve("--kv", "kivi(bits=4)", "--chat-template", "chatml") as server:
            def ask(answers):
                answers.append("".join(event["choices"][0]["delta"].get("content") or ""
                                       for event in server.stream("/v1/chat/completions", body) if event["choices"]))

            answers = []
            clients = [threading.Thread(target=ask, args=(answers,)) for _ in range(2)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            self.assertEqual(len(answers), 2)
            self.assertEqual(answers[0], answers[1])
            self.assertGreater(len(answers[0]), 10)
            self.assertLess(server.metric("kvlathe_kv_bytes_reserved"), 20 * MIB)
            self.assertEqual(server.ask("GET", "/health")[:2], (200, {"status": "ok"}))
            self.assertIn(f'kvlathe_device_info{{device="{NAME}",model_name="{MODEL.name}"}}', server.metrics())
            self.assertEqual(next(event["device"] for event in server.log if event["event"] == "listening"), NAME)

    def test_a_request_that_the_device_cannot_hold_is_refused_and_the_next_is_answered(self):
        self.environment["KVLATHE_EMULATED_BYTES"] = str(60 * MIB)
        with self.serve("--kv", "none", "--kv-memory", "1MiB") as server:
            status, answer, _ = server.post("/v1/completions", {"prompt": TEXT[:1800], "max_tokens": 200, "ignore_eos": True})
            self.assertEqual((status, answer["error"]["code"]), (400, "kv_memory_exceeded"), answer)
            status, answer, _ = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
            self.assertEqual(status, 200, answer)


class Refusals(DeviceCase):
    def refused(self, status, needle, *arguments, verb=("run", "-p", PROMPT, "-n", 2), **environment):
        self.environment.update(environment)
        return self.assert_refused(status, needle, *verb[:1], "-m", MODEL, *verb[1:], *arguments)

    @unittest.skipIf(os.environ.get("KVLATHE_CUDA") == "ON", "a build with CUDA")
    def test_a_build_without_cuda_says_so(self):
        for verb in (("run", "-p", PROMPT), ("serve",), ("inspect",), ("calibrate",), ("bench", "model")):
            done = subprocess.run([ON_PROCESSORS, *verb, "-m", MODEL, *CUDA], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertRegex(done.stderr, r"^kvlathe: device cuda:0: this build has no CUDA; [^\n]*cmake --preset cuda[^\n]*\n$")

    def test_what_is_no_device(self):
        for device in ("gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA"):
            self.refused(2, f"'{device}' is no device; give cpu, cuda, or cuda:N", "--device", device)

    def test_a_computer_without_that_gpu(self):
        self.refused(2, "there is no GPU 1: CUDA finds 1, numbered from 0", "--device", "cuda:1")
        self.refused(1, "--device cuda:0: this computer has no GPU", *CUDA, KVLATHE_EMULATED_DEVICES="0")

    def test_memory_that_is_not_there(self):
        self.refused(1, "CUDA: 32 MiB for plans: out of memory", *CUDA, KVLATHE_EMULATED_BYTES=str(20 * MIB))
        error = self.refused(1, "for a weight matrix", *CUDA, KVLATHE_EMULATED_BYTES=str(38 * MIB))
        self.assertRegex(error, rf"^kvlathe: {NAME}, of which the model may take .* MiB: no memory ")
        self.refused(1, "the GPU has 168 MiB free, of 200 MiB, and 4 GiB were asked for", *CUDA, "--device-memory", "4GiB",
                     KVLATHE_EMULATED_BYTES=str(200 * MIB))
        self.refused(1, f"--kv-memory 1 GiB: {NAME} has ", *CUDA, "--kv-memory", "1GiB")

    def test_options_that_do_not_go_together(self):
        self.refused(2, "--device-memory is of a GPU", "--device-memory", "1GiB")
        self.refused(2, "--device-memory: ", *CUDA, "--device-memory", "much")
        self.refused(2, "--device cuda: ranks share a model on processors alone", *CUDA, "--tp", 2)
        self.assert_refused(2, "--limits measures products of processors", "bench", "model", "-m", MODEL, "--limits", *CUDA)
        self.assert_refused(2, "bench attention calls the kernels of processors", "bench", "attention", *CUDA)


if __name__ == "__main__":
    cli_support.main()
