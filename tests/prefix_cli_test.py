"""What `--prefix-dir` keeps through restarts, kills and damage, and what `kvlathe prefix` says of it.

Usage: prefix_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import os
import random
import signal
import stat
import threading
import time

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

TEXT = " ".join(f"Sentence {i} of a text that is asked many questions." for i in range(60))
CACHES = ("none", "lathe(ratio=4)")


class Prefixes(cli_support.CommandLineCase):
    def setUp(self):
        super().setUp()
        self.prefixes = self.folder / "prefixes"

    def serve(self, *arguments, kv="none"):
        return Server(KVLATHE, "-m", MODEL, "--kv", kv, "--prefix-dir", self.prefixes, *arguments,
                      environment=self.environment)

    def complete(self, server, prompt, max_tokens=8, **fields):
        """(text, tokens that were not computed)"""
        status, answer, _ = server.post(
            "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def metric(self, server, name):
        _, text, _ = server.ask("GET", "/metrics")
        line = next(line for line in text.splitlines() if line.startswith(name + "{"))
        return float(line.split()[-1])

    def files(self):
        return sorted(path for path in self.prefixes.iterdir() if path.suffix == ".kvprefix")

    def end(self, server):
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(60), 0)

    def test_a_restart_finds_what_was_read_and_answered(self):
        for kv in CACHES:
            with self.subTest(kv), self.serve("--deterministic", kv=kv) as server:
                first, cached = self.complete(server, TEXT)
                self.assertEqual(cached, 0)
                self.end(server)
            for _ in range(2):
                with self.serve("--deterministic", kv=kv) as server:
                    again, cached = self.complete(server, TEXT)
                    self.assertEqual(again, first)
                    self.assertGreater(cached, 500)
                    self.assertEqual(self.metric(server, "kvlathe_prefix_disk_read_total"), 1)
                    self.end(server)
        for path in self.files():
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.prefixes.stat().st_mode), 0o700)

    def test_keys_share_nothing_and_are_not_in_the_files(self):
        def ask(server, key):
            _, answer, _ = server.post("/v1/completions", {"prompt": TEXT, "max_tokens": 2},
                                       Authorization=f"Bearer {key}")
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        with self.serve("--api-key", "key-of-one", "--api-key", "key-of-other") as server:
            ask(server, "key-of-one")
            self.end(server)
        with self.serve("--api-key", "key-of-one", "--api-key", "key-of-other") as server:
            self.assertEqual(ask(server, "key-of-other"), 0)
            self.assertGreater(ask(server, "key-of-one"), 500)
        self.assertNotIn(b"key-of-one", b"".join(path.read_bytes() for path in self.files()))

    def test_what_was_complete_outlives_a_kill_and_nothing_torn_is_served(self):
        n_kills = int(os.environ.get("KVLATHE_TEST_KILLS", "6"))
        draw = random.Random(7)
        with self.serve("--deterministic") as server:
            expected = [self.complete(server, f"{i}: {TEXT}")[0] for i in range(4)]
        for kill in range(n_kills):
            complete = {path.name: path.read_bytes() for path in self.files()}
            with self.serve("--deterministic") as server:
                for i in draw.sample(range(4), 4):
                    text, _ = self.complete(server, f"{i}: {TEXT}")
                    self.assertEqual(text, expected[i])
                threads = [threading.Thread(target=self.try_to_complete, args=(server, f"{kill} {i} {TEXT}"))
                           for i in range(3)]
                for thread in threads:
                    thread.start()
                # Entries are written two seconds after they were read.
                time.sleep(draw.uniform(0.1, 2.6))
                server.process.kill()
                for thread in threads:
                    thread.join()
            for name, content in complete.items():
                self.assertEqual((self.prefixes / name).read_bytes(), content)
            self.assertEqual(self.run_verb("prefix", "stat", self.prefixes).returncode, 0)
            self.assertNotIn("damaged", self.run_verb("prefix", "ls", self.prefixes).stdout.decode())

    def try_to_complete(self, server, prompt):
        try:
            server.post("/v1/completions", {"prompt": prompt, "max_tokens": 8})
        except (OSError, ValueError):  # it was killed
            pass

    def test_two_servers_share_a_folder(self):
        with self.serve() as one, self.serve() as other:
            self.complete(one, TEXT)
            deadline = time.monotonic() + 60
            while self.metric(other, "kvlathe_prefix_disk_files") < 1:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.1)
            self.assertGreater(self.complete(other, TEXT)[1], 500)

            def ask_many(server, seed):
                draw = random.Random(seed)
                for _ in range(10):
                    texts.append(self.complete(server, f"{draw.randrange(4)}: {TEXT}", 2)[0])

            texts = []
            threads = [threading.Thread(target=ask_many, args=(server, i)) for i, server in enumerate((one, other))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(texts), 20)
            self.end(one)
            self.end(other)
        self.assertNotIn("damaged", self.run_verb("prefix", "ls", self.prefixes).stdout.decode())

    def test_damaged_files_are_named_in_the_log_and_counted(self):
        with self.serve() as server:
            text, _ = self.complete(server, TEXT)
            self.end(server)
        path = self.files()[0]
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        (self.prefixes / "foreign.kvprefix").write_bytes(b"something else")
        with self.serve() as server:
            self.assertEqual(self.complete(server, TEXT), (text, 0))
            self.assertEqual(self.metric(server, "kvlathe_prefix_disk_ignored_total"), 2)
            told = [event["why"] for event in server.log if event["event"] == "prefix_trouble"]
            self.assertEqual(len(told), 2)
            self.assertIn("not a stored prefix", "".join(told))
            self.assertIn("checksum", "".join(told))

    def test_a_disk_without_room_stops_nothing(self):
        with self.serve("--prefix-disk", "10KB") as server:
            first, _ = self.complete(server, TEXT)
            again, cached = self.complete(server, TEXT)
            self.assertEqual(again, first)
            self.assertGreater(cached, 500)  # in memory
            self.end(server)
        self.assertEqual(self.files(), [])

    def test_what_cannot_be_is_refused_before_the_model_is_loaded(self):
        a_file = self.folder / "file"
        a_file.write_text("")
        serve = ("serve", "-m", MODEL, "--port", "0")
        self.assert_refused(1, str(a_file), *serve, "--prefix-dir", a_file)
        self.assert_refused(2, "--prefix-memory", *serve, "--prefix-dir", self.prefixes, "--prefix-memory", "0")
        self.assert_refused(2, "--prefix-disk", *serve, "--prefix-dir", self.prefixes, "--prefix-disk", "much")
        damaged = self.folder / "damaged"
        damaged.mkdir()
        (damaged / ".secret").write_text("short")
        self.assert_refused(1, "remove it", *serve, "--prefix-dir", damaged)

    def test_run_and_chat_use_the_folder_too(self):
        run = ("run", "-m", MODEL, "-p", TEXT, "-n", "8", "--prefix-dir", self.prefixes)
        first, again = self.json_of(*run), self.json_of(*run)
        self.assertEqual(first["cached_tokens"], 0)
        self.assertEqual(again["cached_tokens"], again["prompt_tokens"] - 1)
        with self.serve() as server:
            self.assertGreater(self.complete(server, TEXT)[1], 500)
        chat = ("chat", "-m", MODEL, "--chat-template", "chatml", "-n", "8", "--json", "--prefix-dir", self.prefixes)
        answers = []
        for _ in range(2):
            done = self.run_verb(*chat, stdin=f"{TEXT[:2000]}\nAnd then?\n".encode())
            answers.append([json.loads(line) for line in done.stdout.splitlines()])
        self.assertEqual(answers[0][0]["cached_tokens"], 0)
        n_read = answers[0][0]["prompt_tokens"]
        self.assertGreater(n_read, 500)
        self.assertGreaterEqual(answers[0][1]["cached_tokens"], n_read)
        self.assertEqual(answers[1][0]["cached_tokens"], n_read - 1)
        self.assertGreaterEqual(answers[1][1]["cached_tokens"], n_read)

    def test_the_verb_shows_and_removes(self):
        for kv in CACHES:
            self.json_of("run", "-m", MODEL, "--kv", kv, "-p", TEXT, "-n", "4", "--prefix-dir", self.prefixes)
        listed = [json.loads(line) for line in self.run_verb("prefix", "ls", self.prefixes, "--json").stdout.splitlines()]
        self.assertEqual({entry["name"] for entry in listed}, {path.name for path in self.files()})
        shares = {entry["kv"].split("(")[0]: entry["kv_fraction"] for entry in listed}
        self.assertLess(shares["lathe"], shares["none"])
        totals = json.loads(self.run_verb("prefix", "stat", self.prefixes, "--json").stdout)
        self.assertEqual(sum(of["bytes"] for of in totals["kv"].values()),
                         sum(path.stat().st_size for path in self.files()))
        text = self.run_verb("prefix", "ls", self.prefixes).stdout.decode()
        self.assertEqual(len(text.splitlines()), 3)
        self.assert_refused(1, "no such folder", "prefix", "ls", self.folder / "none")
        self.assert_refused(1, "no 'x'", "prefix", "rm", self.prefixes, "x")
        self.assert_refused(2, "--all", "prefix", "rm", self.prefixes)
        self.assertEqual(self.run_verb("prefix", "rm", self.prefixes, "--unused-for", "1").returncode, 0)
        self.assertEqual(len(self.files()), 2)
        self.assertEqual(self.run_verb("prefix", "rm", self.prefixes, listed[0]["name"]).returncode, 0)
        self.assertEqual([path.name for path in self.files()], [listed[1]["name"]])
        self.assertEqual(self.run_verb("prefix", "rm", self.prefixes, "--all").returncode, 0)
        self.assertEqual(self.files(), [])
        self.assertIn("nothing is stored", self.run_verb("prefix", "stat", self.prefixes).stdout.decode())


if __name__ == "__main__":
    cli_support.main()
