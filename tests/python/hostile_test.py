#!/usr/bin/env python3
"""Hostile calls of the Python module: what a caller can do wrong ends in an exception with one clear line, never in a
crash and never in a hang.

usage: hostile_test.py KVLATHE MODEL_DIRECTORY [TEST...]

The calls are those of hostile_model.py and hostile_codec.py, in batches. Each batch is a child process with a time limit,
which writes down what became of each call, so that a crash names the call that it came of.
"""
import importlib
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from hostile_calls import BATCHES, IS_SANITIZED, Calls

KVLATHE, MODEL = (pathlib.Path(argument) for argument in sys.argv[1:3])
# Under the sanitizers a batch takes ten times as long.
BATCH_SECONDS = 600 if IS_SANITIZED else 120
LEAST_REFUSED = 200
MODULES = ("hostile_model", "hostile_codec")
for module in MODULES:
    importlib.import_module(module)


def run_batch(name: str) -> tuple[list[dict[str, str]], str]:
    """What became of the calls of a batch, and what is wrong with the batch as a whole, or an empty text."""
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "record"
        command = [sys.executable, "-X", "faulthandler", "-B", __file__, str(KVLATHE), str(MODEL), "--batch", name, str(record)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BATCH_SECONDS)
            wrong = f"exit status {done.returncode}: {done.stderr[-4000:]}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            wrong = f"no end within {BATCH_SECONDS} s"
        lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    if wrong and lines:
        wrong = f"at {lines[-1]['call']!r}: {wrong}"
    return lines, wrong


def complaint(line: dict[str, str]) -> str:
    """What is wrong with what became of a call, or an empty text."""
    if "error" not in line:
        return "nothing was raised" if line.get("is_refused") else ""
    message = line["message"]
    if line["error"] in ("SystemError", "AssertionError", "AttributeError", "RecursionError", "UnboundLocalError"):
        return f"{line['error']}: {message}"
    if not message.strip() or "\n" in message or len(message) > 1000:
        return f"{line['error']} without one clear line: {message!r}"
    return ""


class HostileTest(unittest.TestCase):
    maxDiff = None
    n_refused = 0

    @classmethod
    def tearDownClass(cls) -> None:
        print(f"{cls.n_refused} hostile calls were refused", file=sys.stderr)

    def check(self, name: str) -> None:
        lines, wrong = run_batch(name)
        self.assertEqual(wrong, "")
        ended = [line for line in lines if "has_ended" in line]
        self.assertGreater(len(ended), 0, "the batch has no calls")
        complaints = [f"{line['call']}: {complaint(line)}" for line in ended if complaint(line)]
        self.assertEqual(complaints, [], "\n" + "\n".join(complaints))
        HostileTest.n_refused += sum("error" in line for line in ended)

    def test_zz_there_are_enough(self) -> None:
        if len(sys.argv) > 3:
            self.skipTest("not all batches have run")
        self.assertGreaterEqual(HostileTest.n_refused, LEAST_REFUSED)


for batch in BATCHES:
    setattr(HostileTest, f"test_{batch}", lambda self, batch=batch: self.check(batch))


if __name__ == "__main__":
    if sys.argv[3:4] == ["--batch"]:
        with open(sys.argv[5], "w", encoding="utf-8") as record:
            BATCHES[sys.argv[4]](Calls(record), MODEL)
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
