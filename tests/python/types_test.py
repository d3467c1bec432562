#!/usr/bin/env python3
"""The package and its examples are typed: mypy --strict finds nothing.

usage: types_test.py KVLATHE MODEL_DIRECTORY [TEST...]

Packages that are not here, such as torch, are of any type. Without mypy (scripts/python_env.sh --tests) it is skipped.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import kvlathe

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
# The built package, which has the types of the compiled part too.
PACKAGE = pathlib.Path(kvlathe.__file__).parent


def mypy(*arguments: str | pathlib.Path) -> str:
    """What it says; empty where it finds nothing."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", cache, "--config-file",
                   TREE / "pyproject.toml", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=cache,
                              env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
    if done.returncode > 1:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


class TypesTest(unittest.TestCase):
    maxDiff = None

    def test_package(self) -> None:
        self.assertTrue((PACKAGE / "py.typed").exists())
        self.assertEqual(mypy("-p", "kvlathe"), "")

    def test_examples(self) -> None:
        examples = sorted((TREE / "examples/python").glob("*.py"))
        for example in examples:
            with self.subTest(example=example.name):
                self.assertEqual(mypy(example), "")

    def test_it_finds_what_is_wrong(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            wrong = pathlib.Path(folder) / "wrong.py"
            wrong.write_text("import kvlathe\nkvlathe.LLM(5, kv=7).generate(1.5)\n", encoding="utf-8")
            self.assertEqual(mypy(wrong).count("error:"), 3)


if __name__ == "__main__":
    if importlib.util.find_spec("mypy") is None:
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
