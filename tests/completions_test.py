"""What shells complete (docs/cli.md): the program's answers, and a real bash, zsh and fish in a terminal, in which keys are
typed and of which the words are read that the command was called with. Shells that are not installed are skipped. Called as
completions_test.py KVLATHE [TEST...]."""

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
import time
import unittest

KVLATHE = pathlib.Path(sys.argv[1]).resolve()


def answers(*words):
    """The candidates behind these words, with what they are; a line of ":files" or ":models" is a candidate too."""
    done = subprocess.run([KVLATHE, "completions", "--", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    return dict((line.split("\t") + [""])[:2] for line in done.stdout.splitlines())


def help_of(*verb):
    return subprocess.run([KVLATHE, *verb, "--help"], capture_output=True, text=True, check=True).stdout


class AnswersTest(unittest.TestCase):
    def test_verbs_are_those_of_the_help(self):
        listed = re.findall(r"^  (\w+) +\w", help_of().split("Subcommands:")[1], re.MULTILINE)
        self.assertGreater(len(listed), 15)
        self.assertEqual(list(answers("")), listed)
        self.assertEqual(list(answers("prefix", "")), ["ls", "stat", "rm"])
        self.assertEqual(list(answers("cha")), ["chat", "chart"])

    def test_options_are_those_of_the_help_and_are_offered_once(self):
        for verb in (["run"], ["serve"], ["bench", "model"], ["prefix", "rm"]):
            # A line of the help begins with all the names of its option.
            listed = {name for line in re.findall(r"^  (-\S+)", help_of(*verb), re.MULTILINE) for name in line.split(",")
                      if name.startswith("--")}
            self.assertGreater(len(listed), 3)
            self.assertEqual(set(answers(*verb, "--")), listed)
        self.assertNotIn("--dtype", answers("run", "--dtype", "f32", "--"))
        self.assertIn("--kv", answers("run", "--kv", "none", "--"))

    def test_values_follow_their_options(self):
        self.assertEqual(list(answers("run", "--dtype", "")), ["bf16", "f32"])
        self.assertEqual(list(answers("run", "--dtype=b")), ["--dtype=bf16"])
        self.assertEqual(list(answers("run", "--device", "cu")), ["cuda"])
        self.assertEqual(list(answers("run", "-m", "smol")), ["smollm2", ":models"])
        self.assertEqual(list(answers("run", "-f", "")), [":files"])
        self.assertEqual(list(answers("run", "-n", "")), [])
        self.assertEqual(list(answers("completions", "")), ["bash", "zsh", "fish"])
        self.assertEqual(list(answers("chart", "")), [":files"])
        self.assertEqual(list(answers("retrofit", "dms", "--")), [":files"])
        # Text behind -p may look like anything.
        self.assertEqual(list(answers("run", "-p", "serve", "--dty")), ["--dtype"])

    def test_every_key_of_every_stage_is_offered_and_its_values_are_taken(self):
        specs = json.loads(subprocess.run([KVLATHE, "specs", "--json"], capture_output=True, check=True).stdout)["stages"]
        names = [stage["name"] for stage in specs]
        self.assertEqual(list(answers("run", "--kv", "")), ["none", *names])
        for stage in specs:
            keys = answers("run", "--kv", stage["name"] + "(")
            self.assertEqual(list(keys), [f"{stage['name']}({key['name']}=" for key in stage["keys"]])
            for key, (begun, doc) in zip(stage["keys"], keys.items()):
                self.assertEqual(doc, f"{key['doc']} ({key['allowed']})")
                values = [word[len(begun):-1] for word in answers("run", "--kv", begun)]
                # What is allowed is words in a list, or numbers in words.
                if not re.search(r"integer|multiple|<", key["allowed"]):
                    self.assertEqual(sorted(values), sorted(re.split(", | or ", key["allowed"])), begun)
                for value in values:
                    self.assertIn(f"{begun}{value})", answers("run", "--kv", begun + value))

    def test_a_spec_goes_on_where_it_breaks_off(self):
        def spec(text):
            return list(answers("compare", "--kv", "none", "--kv", text))
        self.assertEqual(spec("lathe(rat"), ["lathe(rate=", "lathe(ratio="])
        self.assertIn("kivi(bits=", spec("ki"))
        self.assertEqual(spec("kivi(bits=4"), ["kivi(bits=4)", "kivi(bits=4,"])
        self.assertEqual([word for word in spec("lathe(ratio=4,") if word.startswith(("lathe(ratio=4,ratio", "lathe(ratio=4,rate"))], [])
        self.assertIn("lathe(ratio=4,ranks=", spec("lathe(ratio=4,"))
        behind = spec("snapkv(keep=0.5)+")
        self.assertIn("snapkv(keep=0.5)+kivi", behind)
        self.assertNotIn("snapkv(keep=0.5)+h2o", behind)
        self.assertNotIn("snapkv(keep=0.5)+none", behind)
        for hopeless in ("nonsense(", "lathe(nonsense=", "lathe(ratio=4)x", "kivi(bits=5"):
            self.assertEqual([word for word in spec(hopeless) if not word.startswith(hopeless)], [], hopeless)
        # A cache may be named behind another one.
        self.assertEqual(list(answers("compare", "--kv", "none", "kiv")), [word for word in spec("kiv")])

    def test_it_answers_whatever_is_typed(self):
        for words in ((), ("",), ("--",), ("=",), ("run", "="), ("run", "--kv="), ("run", "--=", "--"), ("run", "--kv", "+(,=)"), ("\xff",),
                      ("nonsense", "x", "y"), ("run", "--kv", "("), ("run", "--kv", "lathe(" + "(" * 5000)):
            answers(*words)


# A program that stands for kvlathe: the real one answers what is completed, and what else is called is written down.
STAND_IN = """#!/bin/sh
if [ "$1" = completions ]; then exec '{kvlathe}' "$@"; fi
{{ for word in "$@"; do printf '<%s>' "$word"; done; echo; }} >>'{log}'
"""
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set bell-style none'; source <(kvlathe completions bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source <(kvlathe completions zsh)"),
    "fish": (["fish", "--no-config", "-i"], "kvlathe completions fish | source"),
}
# What is typed, \t for the key, and the words that the command is then called with.
TYPED = [
    ("kvlathe compar\tx", ["compare", "x"]),
    ("kvlathe prefix st\tx", ["prefix", "stat", "x"]),
    ("kvlathe run --dty\tbf\t", ["run", "--dtype", "bf16"]),
    ("kvlathe run --dtype=bf\t", ["run", "--dtype=bf16"]),
    ("kvlathe run --kv 'kivi(bi\t4)' -n 3", ["run", "--kv", "kivi(bits=4)", "-n", "3"]),
    ("kvlathe run --kv \"lathe(rati\t4,rank\tunif\t-n 3", ["run", "--kv", "lathe(ratio=4,ranks=uniform)", "-n", "3"]),
    ("kvlathe run --kv 'snapkv(keep=0.5)+int\t' x", ["run", "--kv", "snapkv(keep=0.5)+int8", "x"]),
    ("kvlathe run -m smol\tx", ["run", "-m", "smollm2", "x"]),
    ("kvlathe run -m a_mod\tx", ["run", "-m", "a_model.gguf", "x"]),
    ("kvlathe run --model=a_mod\t", ["run", "--model=a_model.gguf"]),
    ("kvlathe run -f some\tx", ["run", "-f", "some_text.txt", "x"]),
    ("kvlathe run -f folder/in\tx", ["run", "-f", "folder/inside.txt", "x"]),
]


class ShellsTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_completions_"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        self.log = self.folder / "log"
        program = self.folder / "bin/kvlathe"
        program.write_text(STAND_IN.format(kvlathe=KVLATHE, log=self.log))
        program.chmod(0o755)
        (self.folder / "work/folder").mkdir(parents=True)
        for name in ("a_model.gguf", "a_model.txt", "some_text.txt", "folder/inside.txt"):
            (self.folder / "work" / name).touch()

    def start(self, shell):
        words, setup = SHELLS[shell]
        process, self.terminal = pty.fork()
        if process == 0:
            os.chdir(self.folder / "work")
            os.execvpe(words[0], words, {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder), "TERM": "vt100",
                                         "LANG": "C.UTF-8", "INPUTRC": "/dev/null"})
        self.addCleanup(self.end, process)
        self.seen = b""
        self.type_line(setup + "; kvlathe ready")
        self.wait_for(1)

    def end(self, process):
        os.close(self.terminal)
        os.kill(process, 9)
        os.waitpid(process, 0)

    def type_line(self, text):
        os.write(self.terminal, text.encode() + b"\r")

    def calls(self):
        """The lines that are written to their end."""
        return self.log.read_text().split("\n")[:-1] if self.log.exists() else []

    def wait_for(self, n_calls):
        end = time.monotonic() + 20
        while len(self.calls()) < n_calls:
            self.assertLess(time.monotonic(), end, f"the shell did not call the command; its terminal: {self.seen.decode(errors='replace')}")
            if select.select([self.terminal], [], [], 0.02)[0]:
                self.seen += os.read(self.terminal, 65536)

    def check(self, shell):
        self.start(shell)
        for place, (typed, called) in enumerate(TYPED):
            self.type_line(typed)
            self.wait_for(place + 2)
            self.assertEqual(self.calls()[-1], "".join(f"<{word}>" for word in called), typed)

    @unittest.skipUnless(shutil.which("bash"), "bash is not installed")
    def test_bash(self):
        self.check("bash")
        # Outside of quotes, what means something to the shell is written with a backslash.
        self.type_line("kvlathe run --kv kivi\\(bi\t4\\) x")
        self.wait_for(len(TYPED) + 2)
        self.assertEqual(self.calls()[-1], "<run><--kv><kivi(bits=4)><x>")

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed (scripts/bootstrap.sh --with-deploy)")
    def test_zsh(self):
        self.check("zsh")

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed (scripts/bootstrap.sh --with-deploy)")
    def test_fish(self):
        self.check("fish")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
