#!/usr/bin/env python3
"""The Python module in short: it is there, its version is the program's, importing it takes nothing else along.

usage: smoke_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""
import pathlib
import subprocess
import sys
import unittest

import kvlathe

KVLATHE, MODEL = (pathlib.Path(argument) for argument in sys.argv[1:3])


class SmokeTest(unittest.TestCase):
    def test_version_is_that_of_the_program(self):
        said = subprocess.run([KVLATHE, "--version"], capture_output=True, text=True, check=True).stdout
        self.assertIn(kvlathe.__version__, said)

    def test_import_takes_no_large_package_along(self):
        program = "import sys, kvlathe; print([name for name in ('numpy', 'torch', 'pandas', 'transformers') if name in sys.modules])"
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        self.assertEqual(said.strip(), "[]")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
