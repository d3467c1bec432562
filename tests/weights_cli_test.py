"""Weights in blocks through the command line: --weights and --weights-exact.

Usage: weights_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import pathlib
import shutil
import tempfile

import cli_support
import model_files
from cli_support import MODEL

SAMPLE = (MODEL / "sample.txt").read_text()


class WeightsInBlocks(cli_support.CommandLineCase):
    """MODEL as files of several types."""

    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_weights_"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.plain = model_files.gguf_of(MODEL).write(cls.place / "nano.gguf")

    def file_of(self, weights):
        path = self.place / f"{weights}.gguf"
        if not path.exists():
            done = self.run_verb("convert", self.plain, path, "--weights", weights)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
        return path

    def ids(self, model, *arguments):
        prompt = self.folder / "prompt.txt"
        prompt.write_text(SAMPLE[:600])
        return self.json_of("run", "-m", model, "-f", prompt, "-n", 24, "--deterministic", "--kv", "none",
                            *arguments)["ids"]

    def test_exact_rows_meet_the_numbers_that_blocks_stand_for(self):
        for weights in ("q4_0", "q4_k", "q6_k", "q8_0", "iq4_xs"):
            with self.subTest(weights):
                file = self.file_of(weights)
                ids = self.ids(file, "--weights-exact")
                self.assertEqual(ids, self.ids(file, "--weights", "bf16"))
                self.assertGreater(len(set(ids)), 8)

    def test_weights_become_another_type_while_they_are_loaded(self):
        # As converting does, but for the embedding, which convert keeps in more bits.
        self.assertEqual(self.ids(self.plain, "--weights", "q8_0"), self.ids(self.file_of("q8_0")))
        self.assertEqual(self.ids(MODEL, "--weights", "q8_0"), self.ids(self.plain, "--weights", "q8_0"))
        self.assertRegex(self.assert_refused(2, "--weights", "run", "-m", MODEL, "--weights", "q9", "-p", "x"), "q4_k")

    def test_weights_take_the_bytes_of_the_file(self):
        for weights, bits in (("q4_0", 4.5), ("q8_0", 8.5), ("q4_k", 4.625), ("q6_k", 6.5625)):
            row, plain = (self.json_of("bench", "model", "-m", model, "-p", "0", "-n", 1, "-r", 1, "--kv", "none",
                                       "--no-bandwidth")["rows"][0]["weight_bytes"]
                          for model in (self.file_of(weights), self.plain))
            # The output head, in six or eight bits, is the rest.
            self.assertGreaterEqual(row, plain * bits / 16)
            self.assertLess(row, plain * max(bits + 1, 7) / 16)

    def test_caches_are_compared_with_exact_rows(self):
        # The option changes nothing: rows are exact by default. With rows of 8 bits the figure would differ.
        text = self.folder / "text.txt"
        text.write_text(SAMPLE[:2500])
        kl = []
        for arguments in ((), ("--weights-exact",)):
            compared = self.json_of("compare", "-m", self.file_of("q4_0"), "-c", 128, "--text", text, "--deterministic",
                                    "--kv", "none", "--kv", "kivi(bits=2)", *arguments)
            kl.append(compared["rows"][1]["kl"])
        self.assertEqual(*kl)
        self.assertGreater(kl[0], 0)


if __name__ == "__main__":
    cli_support.main()
