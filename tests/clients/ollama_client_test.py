"""What the Ollama Python package makes of `kvlathe serve`: scripts/real_clients.sh installs it and calls
ollama_client_test.py KVLATHE MODEL_DIRECTORY [TEST...]."""

import pathlib
import sys
import unittest

import ollama

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server_under_test import Server  # noqa: E402

KVLATHE, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
MESSAGES = [{"role": "user", "content": "What is in the garden?"}]
FEW = {"num_predict": 12, "temperature": 0}


class OllamaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(KVLATHE, "-m", MODEL, "-a", "nano", "--chat-template", "hermes", "--deterministic")
        cls.client = ollama.Client(host=f"http://127.0.0.1:{cls.server.port}")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_models(self):
        self.assertEqual([model.model for model in self.client.list().models], ["nano"])
        self.assertEqual([model.model for model in self.client.ps().models], ["nano"])
        self.assertIn("completion", self.client.show("nano:latest").capabilities)

    def test_a_whole_answer_and_its_stream_are_the_same(self):
        whole = self.client.chat("nano", messages=MESSAGES, options=FEW)
        self.assertEqual((whole.done_reason, whole.eval_count), ("length", 12))
        pieces = list(self.client.chat("nano", messages=MESSAGES, options=FEW, stream=True))
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(piece.message.content for piece in pieces), whole.message.content)
        self.assertTrue(pieces[-1].done)

    def test_generate(self):
        text = self.client.generate("nano", prompt="Once upon", raw=True, options=FEW).response
        pieces = self.client.generate("nano", prompt="Once upon", raw=True, options=FEW, stream=True)
        self.assertEqual("".join(piece.response for piece in pieces), text)

    def test_an_answer_by_a_schema(self):
        schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"],
                  "additionalProperties": False}
        answer = self.client.chat("nano", messages=MESSAGES, format=schema, options={"num_predict": 60})
        self.assertIn('"colour"', answer.message.content)

    def test_embeddings(self):
        one = self.client.embed("nano", input="rain").embeddings[0]
        self.assertAlmostEqual(sum(number * number for number in one), 1, places=4)
        self.assertEqual(list(self.client.embeddings("nano", prompt="rain").embedding), list(one))

    def test_errors_have_their_text(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat("other", messages=MESSAGES)
        self.assertEqual(caught.exception.status_code, 404)
        self.assertIn("does not exist", caught.exception.error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
