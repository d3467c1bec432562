"""Whether the commands on the pages of the papers are ones that the program takes: their options, and their caches on a small model.

Usage: papers_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys

import cli_support
from cli_support import MODEL

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLAIMS = ROOT / "docs/results/papers/claims.json"
OPTION = r"(?<![\w-])--?[a-zA-Z][\w-]*"


def printed_commands():
    """The words of every command that a page of a paper prints, each with the page."""
    for page in sorted(CLAIMS.parent.glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            for command in line.split("&&") if line.startswith("    ") else ():
                words = shlex.split(command)
                if words and (words[0] == "kvlathe" or words[0].startswith("lab/")):
                    yield page.name, words


def caches():
    """Every cache of a command or a table, with the claim."""
    for paper in json.loads(CLAIMS.read_text(encoding="utf-8"))["papers"]:
        for claim in paper["claims"]:
            words = shlex.split(claim.get("command", ""))
            of_commands = [word for option, word in zip(words, words[1:]) if option == "--kv"]
            of_tables = [kv for table in claim.get("measured", ()) if "/" not in table["of"] for kv in table["caches"]]
            for kv in (*of_commands, *of_tables):
                yield kv, f"{paper['name']}, {claim['where']}"


class Commands(cli_support.CommandLineCase):
    def help_of(self, words):
        """What the program or script of a command says of itself, its verb included."""
        if words[0] == "kvlathe":
            done = self.run_verb(*(words[1:3] if words[1] == "bench" else words[1:2]), "--help")
        elif words[0].endswith(".py"):
            done = subprocess.run([sys.executable, "-B", ROOT / words[0], words[1], "--help"], capture_output=True)
        else:
            return (ROOT / words[0]).read_text(encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def test_options_exist(self):
        helps = {}
        for page, words in printed_commands():
            verb = tuple(words[:3])
            if verb not in helps:
                helps[verb] = set(re.findall(OPTION, self.help_of(words)))
            for word in words:
                if re.fullmatch(OPTION + "(=.*)?", word):
                    self.assertIn(word.split("=")[0], helps[verb], f"{page}: {' '.join(words)}")
        self.assertGreater(len(helps), 5)

    def test_caches_exist(self):
        of_claims = dict(caches())
        self.assertGreater(len(of_claims), 20)
        for kv, claim in of_claims.items():
            with self.subTest(kv=kv, claim=claim):
                fitting = kv.replace("context=2048", "context=1024")  # which is all that the small model has
                self.assertGreater(self.json_of("inspect", "-m", MODEL, "--kv", fitting)["kv_bytes"]["total"], 0)


if __name__ == "__main__":
    cli_support.main()
