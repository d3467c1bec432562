#!/usr/bin/env python3
"""The Python module in short: it is there, its version is the program's, importing it takes nothing else along, and a
model generates, streams, scores and is closed.

usage: smoke_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""
import json
import pathlib
import subprocess
import sys
import unittest
import warnings

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

    def test_a_model_generates_what_the_program_does(self):
        warnings.simplefilter("ignore", kvlathe.KvlatheWarning)
        kv, greedy = "kivi(bits=4)", kvlathe.SamplingParams(temperature=0, max_tokens=16)
        said = subprocess.run(
            [KVLATHE, "run", "-m", MODEL, "--kv", kv, "-p", "It was a dark", "-n", "16", "--temp", "0", "--json"],
            capture_output=True, text=True, check=True,
        ).stdout
        with kvlathe.LLM(MODEL, kv=["none", kv]) as llm:
            output = llm.generate(["It was a dark", "Once"], greedy, kv=kv)[0]
            self.assertEqual(output.outputs[0].token_ids, json.loads(said)["ids"])
            self.assertEqual(output.text, json.loads(said)["text"])
            self.assertEqual("".join(map(str, llm.stream("It was a dark", greedy, kv=kv))), output.text)
            scored = llm.score([output.prompt_token_ids], [output.outputs[0].token_ids[:2]], kv=kv)
            self.assertTrue(scored[0].is_greedy)
            with self.assertRaisesRegex(kvlathe.errors.InvalidArgumentError, "token id 1000000"):
                llm.generate([[10**6]], greedy)
        with self.assertRaises(kvlathe.errors.FailedPreconditionError):
            llm.generate("It was a dark", greedy)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
