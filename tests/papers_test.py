"""Whether the commands on the pages of the papers are ones that the program takes: their options, and their caches on a small model.

Usage: papers_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import pathlib
import re
import shlex

import cli_support
from cli_support import MODEL

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLAIMS = ROOT / "docs/results/papers/claims.json"


def commands():
    """The words of every call of kvlathe that a claim prints, each with its claim."""
    for paper in json.loads(CLAIMS.read_text(encoding="utf-8"))["papers"]:
        for claim in paper["claims"]:
            for command in claim.get("command", "").split("&&"):
                words = shlex.split(command)
                if words and words[0] == "kvlathe":
                    yield f"{paper['name']}, {claim['where']}", words[1:]


class Commands(cli_support.CommandLineCase):
    def said(self, *arguments):
        done = self.run_verb(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def test_options_exist(self):
        helps = {}
        for claim, words in commands():
            verbs = tuple(words[:2] if words[0] == "bench" else words[:1])
            if verbs not in helps:
                helps[verbs] = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", self.said(*verbs, "--help")))
            for word in words:
                if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word):
                    self.assertIn(word.split("=")[0], helps[verbs], f"{claim}: {' '.join(words)}")
        self.assertGreater(len(helps), 3)

    def test_caches_exist(self):
        caches = {word: claim for claim, words in commands() for option, word in zip(words, words[1:]) if option == "--kv"}
        self.assertGreater(len(caches), 10)
        for kv, claim in caches.items():
            with self.subTest(kv=kv, claim=claim):
                self.assertGreater(self.json_of("inspect", "-m", MODEL, "--kv", kv)["kv_bytes"]["total"], 0)


if __name__ == "__main__":
    cli_support.main()
