"""What `kvlathe serve` does with requests that are larger than anything it could answer.

Usage: serve_limits_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import threading
import time

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

MEBIBYTE = 1 << 20


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


class GiantRequests(cli_support.CommandLineCase):
    def serve(self, *arguments):
        return Server(KVLATHE, "-m", MODEL, *arguments, environment=self.environment)

    def test_a_prompt_that_cannot_fit_is_refused_by_its_length(self):
        with self.serve() as server:
            server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
            before = resident_bytes(server)
            begin = time.monotonic()
            status, answer, _ = server.post("/v1/completions", {"prompt": "a" * 15_000_000})
            seconds = time.monotonic() - begin
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
            self.assertIn("at least", answer["error"]["message"])
            self.assertLess(len(answer["error"]["message"]), 300)
            # To tokenise it takes ten seconds on an idle machine.
            self.assertLess(seconds, 5)
            self.assertLess(resident_bytes(server) - before, 100 * MEBIBYTE)

    def test_health_answers_while_long_texts_are_tokenised_and_their_memory_goes_back(self):
        with self.serve() as server:
            server.ask("GET", "/health")
            before = resident_bytes(server)
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(
                server.post("/tokenize", {"content": "a" * 4_000_000}))) for _ in range(3)]
            for thread in threads:
                thread.start()
            slowest = 0
            while any(thread.is_alive() for thread in threads):
                begin = time.monotonic()
                self.assertEqual(server.ask("GET", "/version")[0], 200)
                self.assertEqual(server.ask("GET", "/health")[0], 200)
                slowest = max(slowest, time.monotonic() - begin)
                time.sleep(0.02)
            self.assertEqual([status for status, _, _ in answers], [200] * 3)
            self.assertLess(slowest, 1.5)
            deadline = time.monotonic() + 10
            while resident_bytes(server) - before > 100 * MEBIBYTE and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertLess(resident_bytes(server) - before, 100 * MEBIBYTE)


if __name__ == "__main__":
    cli_support.main()
