"""What the tests of the command line share: a command is run as a user runs it, with a user cache of the
tests' own, and a person's conversation is held on a pseudo-terminal.

The tests are called as TEST.py KVLATHE MODEL_DIRECTORY [TEST...]. With KVLATHE_TEST_SHARD=2/3 in the environment
a process runs the second, fifth, ... of every three tests.
"""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import termios
import time
import unittest

KVLATHE, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
# Lines that may stand before an error: notes, and on a slow machine how far something is.
BESIDE = re.compile(r"kvlathe: note: |kvlathe: .* \d+%, about \d.* left$")
CACHE = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_cache_"))


def without_notes(stderr):
    """What a command wrote to standard error besides notes, such as that this CPU has no BF16 instructions."""
    return "".join(line for line in stderr.decode().splitlines(True) if not line.startswith("kvlathe: note: "))


class ShardLoader(unittest.TestLoader):
    def getTestCaseNames(self, case):
        shard, n_shards = map(int, os.environ.get("KVLATHE_TEST_SHARD", "1/1").split("/"))
        return super().getTestCaseNames(case)[shard - 1 :: n_shards]


def main():
    try:
        unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2, testLoader=ShardLoader())
    finally:
        shutil.rmtree(CACHE)


class ChatTerminal:
    """kvlathe chat for a person."""

    def __init__(self, model, environment, *options):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(KVLATHE, [KVLATHE, "chat", "-m", str(model), "--chat-template", "chatml", "--temp", "0",
                                 *options],
                       dict(environment, TERM="xterm"))
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.terminal)  # which hangs up, if it is still running

    def send(self, keys):
        for begin in range(0, len(keys), 256):
            os.write(self.terminal, keys[begin : begin + 256].encode())
            # What is echoed meanwhile must not fill the terminal, or neither side goes on.
            while select.select([self.terminal], [], [], 0)[0] and self.read():
                pass

    def read(self):
        if not select.select([self.terminal], [], [], 120)[0]:
            raise AssertionError(f"nothing more comes behind {self.text!r}")
        try:
            piece = os.read(self.terminal, 65536)
        except OSError:  # how Linux reports the end
            piece = b""
        self.text += piece.decode(errors="replace")
        return piece

    def expect(self, needle):
        """Reads until `needle` has been written, takes it and all before, and returns what was before."""
        while needle not in self.text:
            if not self.read():
                raise AssertionError(f"no {needle!r} in {self.text!r}")
        before, self.text = self.text.split(needle, 1)
        return before

    def expect_prompt(self, before=""):
        """Until keys are taken as keys, a moment behind the prompt. Returns what was written before."""
        text = self.expect(before + "> ")
        deadline = time.monotonic() + 60
        while termios.tcgetattr(self.terminal)[3] & termios.ICANON:
            if time.monotonic() > deadline:
                raise AssertionError("lines are not edited")
            time.sleep(0.01)
        return text

    def exit_status(self):
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class CommandLineCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_cli_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(CACHE))

    def run_verb(self, *arguments, stdin=b"", timeout=900, **options):
        """Texts are greedy unless the arguments say how they are drawn."""
        if arguments[:1] in (("run",), ("chat",)) and not {"--temp", "--load-session", "--help"} & set(map(str, arguments)):
            arguments = (arguments[0], "--temp", "0", *arguments[1:])
        return subprocess.run([KVLATHE, *map(str, arguments)], input=stdin, capture_output=True,
                              env=self.environment, timeout=timeout, **options)

    def json_of(self, *arguments, **options):
        done = self.run_verb(*arguments, "--json", **options)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def assert_refused(self, status, needle, *arguments, **options):
        done = self.run_verb(*arguments, **options)
        error = "".join(line for line in done.stderr.decode().splitlines(keepends=True) if not BESIDE.match(line))
        self.assertEqual(done.returncode, status, f"{arguments}: {error}")
        self.assertEqual(error.count("\n"), 1, f"not one line: {error!r}")
        self.assertIn(needle, error)
        self.assertEqual(done.stdout, b"")
        return error

    def copy_of_model(self):
        copy = self.folder / "model"
        shutil.copytree(MODEL, copy)
        return copy
