"""A model that fails on one token, and interrupts: what fails says so in one line and harms nobody else,
and nothing hangs.

Usage: failure_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import cli_support
import model_files
from cli_support import KVLATHE, MODEL, ChatTerminal

WORD = "carriage"  # whose token overflows
NOT_FINITE = "the model computed logits that are not finite"
SECONDS = 60  # in which each of these ends by far, even beside other tests


class FailingModel(cli_support.CommandLineCase):
    @classmethod
    def setUpClass(cls):
        place = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_failing_"))
        cls.addClassCleanup(shutil.rmtree, place)
        cls.model = model_files.copy_first_layers(MODEL, 2, place / "model")
        texts = [text for text, _, _ in model_files.read_pieces(cls.model)]
        model_files.overflow_on(cls.model, texts.index("\u2581" + WORD))

    def assert_fails(self, needle, *arguments, **options):
        return self.assert_refused(1, needle, *arguments, timeout=SECONDS, **options)

    def test_run_invents_nothing(self):
        long = f"The {WORD} stood" + 50 * " and then there"  # sealed, where the cache is compressed
        for kv, needle in (("none", NOT_FINITE), ("kivi(bits=2)", "holds NaN or infinity"),
                           ("int8", "holds NaN or infinity"), ("gear", "holds NaN or infinity")):
            run = ["run", "-m", self.model, "--kv", kv, "-n", 8, "-p"]
            self.assertEqual(self.json_of(*run, long.replace(WORD, "horse"))["generated_tokens"], 8)
            for prompt, says in ((f"The {WORD} stood", NOT_FINITE), (long, needle)):
                self.assert_fails(says, *run, prompt, "--json")
                done = self.run_verb(*run, prompt, timeout=SECONDS)
                self.assertEqual((done.returncode, done.stdout.decode()), (1, prompt + "\n"), kv)
                self.assertRegex(cli_support.without_notes(done.stderr), f"^kvlathe: [^\n]*{says}[^\n]*\n$")

    def test_failure_while_generating_keeps_what_was_said(self):
        texts = [text for text, _, _ in model_files.read_pieces(self.model)]
        # A first token that the model can read, then the one that it cannot.
        run = ["run", "-m", self.model, "-p", "The horse", "-n", 8]
        first = self.json_of(*run)["ids"][0]
        bias = ["--logit-bias", f"{first}=100", "--logit-bias", f"{texts.index(chr(0x2581) + WORD)}=60",
                "--repeat-penalty", 100, "--repeat-last-n", -1]
        done = self.run_verb(*run, *bias, timeout=SECONDS)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout.decode(), f"^The horse[^\n]+ {WORD}\n$")
        self.assertRegex(cli_support.without_notes(done.stderr), f"^kvlathe: {NOT_FINITE}[^\n]*\n$")
        # A session that would go on from there is not written.
        session = self.folder / "session"
        self.assert_fails(NOT_FINITE, *run, *bias, "--json", "--save-session", session)
        self.assertFalse(session.exists())

    def test_piped_chat_ends(self):
        chat = ["chat", "-m", self.model, "--chat-template", "chatml", "-n", 8]
        self.assert_fails(NOT_FINITE, *chat, stdin=f"A {WORD}\nAnd where?\n".encode())
        long = f"A {WORD}" + 50 * " and then there" + "\nAnd where?\n"
        self.assert_fails("holds NaN or infinity", *chat, "--kv", "int8", stdin=long.encode())
        # What was answered before stays.
        done = self.run_verb(*chat, "--json", stdin=f"And where?\nA {WORD}\nWho?\n".encode(), timeout=SECONDS)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([json.loads(line)["generated_tokens"] for line in done.stdout.splitlines()], [8])
        self.assertRegex(cli_support.without_notes(done.stderr), f"^kvlathe: {NOT_FINITE}[^\n]*\n$")

    def test_chat_on_a_terminal_goes_on(self):
        for options, needle in ((["--kv", "none"], NOT_FINITE), (["--kv", "int8"], "holds NaN or infinity")):
            message = f"A {WORD}" + (50 * " and then there" if needle != NOT_FINITE else "") + "\r"
            with ChatTerminal(self.model, self.environment, "-n", "8", *options) as terminal:
                for _ in range(2):
                    terminal.expect_prompt()
                    terminal.send(message)
                    terminal.expect("kvlathe: ")
                    self.assertIn(needle, terminal.expect("\r\n"))
                terminal.expect_prompt()
                # It forgot what failed, or this would fail as well.
                terminal.send("A horse\r")
                self.assertNotIn("kvlathe: ", terminal.expect_prompt())
                terminal.send("/exit\r")
                terminal.expect("1 answers, 8 tokens generated")
                self.assertEqual(terminal.exit_status(), 0)

    def test_task_names_its_example(self):
        def questions(bad, **more):
            path = self.folder / "questions.jsonl"
            lines = [{"prompt": f"Number {i} is the {WORD if i == bad else 'horse'}", "reference": " x", "stop": "\n",
                      **more} for i in range(16)]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            return path
        for kv in ("none", "kivi(bits=2)"):
            task = ["eval", "-m", self.model, "--kv", kv, "--task"]
            for bad in (0, 9, 15):
                self.assert_fails(f"example {bad + 1}: {NOT_FINITE}", *task, questions(bad))
            self.assert_fails(f"example 10: {NOT_FINITE}", *task, questions(9, choices=[" x", " y z"]))
            self.assertEqual(self.json_of(*task, questions(None))["count"], 16)
        predictions = self.folder / "predictions.jsonl"
        self.assert_fails("example 10: ", *task, questions(9), "--predictions", predictions)
        self.assertFalse(predictions.exists())

    def test_texts_that_fail_are_not_measured(self):
        text = self.folder / "text.txt"
        text.write_text(20 * f"The horse stood before the {WORD}. ")
        for verb in (["eval", "--kl", text, "--kv", "int8"], ["eval", "--perplexity", text],
                     ["compare", "--text", text, "--kv", "none", "--kv", "kivi(bits=2)"]):
            self.assert_fails("not finite", *verb, "-m", self.model, "-c", 128)
        basis = self.folder / "basis.safetensors"
        self.assert_fails("layer 0: ", "calibrate", "-m", self.model, "--text",
                          text, "-o", basis)
        self.assertFalse(basis.exists())
        # Nor is a basis kept that would be wrong ever after.
        (self.model / "calibration.txt").write_text(text.read_text())
        self.addCleanup((self.model / "calibration.txt").unlink)
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")
        for _ in range(2):
            done = self.run_verb("run", "-m", self.model, "-p", "x", "--kv", "lathe(ratio=4)", timeout=SECONDS)
            self.assertEqual((done.returncode, done.stdout), (1, b""))
            self.assertIn("layer 0: ", done.stderr.decode().splitlines()[-1])
        self.assertEqual(list(self.folder.glob("cache/*/*.safetensors")), [])


class Interrupts(cli_support.CommandLineCase):
    def interrupt(self, *arguments):
        """What a command ends with that is interrupted once it has begun to print, and the seconds of that."""
        process = subprocess.Popen([KVLATHE, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=self.environment)
        self.assertNotEqual(process.stdout.read(1), b"")
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        _, error = process.communicate(timeout=SECONDS)
        return process.returncode, error.decode(), time.monotonic() - begin

    def test_interrupted_run_ends_soon(self):
        status, error, seconds = self.interrupt("run", "-m", MODEL, "-p", "The horse", "-n", -1, "--ignore-eos",
                                                "-t", 1)
        self.assertEqual(status, 0, error)
        self.assertRegex(error, r"prompt tokens, \d{1,3} generated")  # of more than a thousand
        self.assertLess(seconds, 3)  # a token takes milliseconds


if __name__ == "__main__":
    cli_support.main()
