"""Answers by schemas that are drawn at random, of a model whose tokens are almost drawn at random too: what is finished
parses, and the package jsonschema finds nothing wrong with it.

Usage: structured_answers_test.py KVLATHE MODEL_DIRECTORY [TEST...]

KVLATHE_PROPERTY_SEED and KVLATHE_PROPERTY_COUNT choose other schemas and how many. Skipped without jsonschema, and for
a build without grammars.
"""

import json
import os
import random
import unittest

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

try:
    import jsonschema
except ImportError:
    jsonschema = None

SEED = int(os.environ.get("KVLATHE_PROPERTY_SEED", "20261"))
COUNT = int(os.environ.get("KVLATHE_PROPERTY_COUNT", "40"))
ANSWERS = 3  # of each schema
WORDS = ["red", "a\"b", "back\\slash", "ü", "two words", "tab\there", "", "{}"]
ATOMS = ["[a-z]", "[A-Z0-9_]", "x", "é", "\\\\", "\"", "[^\"a-z]", ".", "\\d", "(?:ab|cd)", "[\\n\\\\]", "\\."]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]


class Drawing:
    """Schemas of the kinds that docs/server_api.md names."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pattern(self):
        parts = []
        for _ in range(self.random.randint(1, 4)):
            repeat = self.random.choice(["", "", "?", "*", "+", "{2}", "{1,3}"])
            parts.append(self.random.choice(ATOMS) + repeat)
        text = "".join(parts)
        return self.random.choice([f"^{text}$", text, f"^({text}|none)$"])

    def text(self):
        schema = {"type": "string"}
        kind = self.random.randrange(6)
        if kind == 0:
            schema["enum"] = self.random.sample(WORDS, 3)
        elif kind == 1:
            schema["format"] = self.random.choice(FORMATS)
        elif kind <= 3:
            schema["pattern"] = self.pattern()
        if kind in (3, 4, 5):
            low = self.random.choice([0, 0, 1, 5])
            schema["maxLength"] = low + self.random.choice([1, 7, 40, 65536])
            if low:
                schema["minLength"] = low
        return schema

    def number(self):
        schema = {"type": self.random.choice(["integer", "number"])}
        if self.random.random() < 0.6:
            schema["minimum"] = self.random.randint(-50, 50)
            schema["maximum"] = schema["minimum"] + self.random.choice([0, 9, 1000])
        return schema

    def list(self, depth):
        low = self.random.randint(0, 2)
        return {"type": "array", "items": self.schema(depth + 1), "minItems": low, "maxItems": low + 2}

    def object(self, depth):
        names = self.random.sample(["a", "name", "two words", "q\"", "ü", "n1"], self.random.randint(1, 4))
        required = [name for name in names if self.random.random() < 0.7]
        return {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}, "required": required,
                "additionalProperties": False}

    def alternatives(self, depth):
        if self.random.random() < 0.5:
            return {"anyOf": [self.schema(depth + 1), {"type": "null"}]}
        tagged = [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.schema(depth + 2)},
                   "required": ["kind", "value"], "additionalProperties": False} for kind in ("one", "two", "three")]
        return {"anyOf": tagged}

    def schema(self, depth=0):
        simple = [self.text, self.text, self.text, self.number, lambda: {"type": "boolean"},
                  lambda: {"const": self.random.choice([1, "a\"b", None, [1, "x"]])}]
        nested = [self.list, self.object, self.object, self.alternatives]
        if depth < 3 and (depth == 0 or self.random.random() < 0.5):
            return self.random.choice(nested)(depth)
        return self.random.choice(simple)()


@unittest.skipIf(jsonschema is None, "jsonschema is not installed")
@unittest.skipIf(os.environ.get("KVLATHE_GRAMMAR") == "OFF", "a build without grammars")
class StructuredAnswers(cli_support.CommandLineCase):
    def closing_tokens(self, server):
        """The ids with which texts and values end, which a model of random tokens would find too seldom."""
        text = "a\"b}c]d"
        _, answer, _ = server.post("/tokenize", {"content": text, "with_pieces": True})
        return [token["id"] for token in answer["tokens"]
                if isinstance(token["piece"], str) and set(token["piece"]) & set("\"}]")]

    def test_finished_answers_are_of_their_schemas(self):
        n_finished, refused = 0, {}
        with Server(KVLATHE, "-m", MODEL, "--chat-template", "chatml", environment=self.environment) as server:
            closing = {str(token): 9 for token in self.closing_tokens(server)}
            self.assertTrue(closing)
            for number in range(COUNT):
                seed = SEED + number
                schema = Drawing(seed).schema()
                for answer in range(ANSWERS):
                    request = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 300, "seed": answer,
                               "temperature": [1, 3, 100][answer], "logit_bias": closing,
                               "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
                    status, answered, _ = server.post("/v1/chat/completions", request)
                    if status == 400 and "no text is of the pattern" in answered["error"]["message"]:
                        refused[seed] = schema
                        break
                    with self.subTest(seed=seed, answer=answer, schema=json.dumps(schema)):
                        self.assertEqual(status, 200, answered)
                        choice = answered["choices"][0]
                        if choice["finish_reason"] != "stop":
                            continue
                        n_finished += 1
                        value = json.loads(choice["message"]["content"])
                        jsonschema.validate(value, schema)
        print(f"seeds {SEED} to {SEED + COUNT - 1}: {n_finished} of {COUNT * ANSWERS} answers were finished, "
              f"{len(refused)} schemas have no text", flush=True)
        self.assertGreater(n_finished, COUNT * ANSWERS // 2)
        self.assertLess(len(refused), COUNT // 4)


if __name__ == "__main__":
    cli_support.main()
