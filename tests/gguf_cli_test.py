"""A GGUF file through the command line: it gives what the model's directory gives, keeps what belongs to it
beside itself, and a file that is no model of ours is refused in one line.

Usage: gguf_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import pathlib
import shutil
import tempfile

import cli_support
import model_files
from cli_support import MODEL
from model_files import ARRAY, INT32, TEXT, UINT32

SAMPLE = (MODEL / "sample.txt").read_text()


class WholeModel(cli_support.CommandLineCase):
    """MODEL as one file, beside which the tests leave nothing."""

    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_gguf_"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.file = model_files.gguf_of(MODEL).write(cls.place / "nano.gguf")

    def assert_same(self, *arguments, but=()):
        """Of the file and of the directory."""
        own, other = ({key: value for key, value in self.json_of(*arguments, "-m", model).items() if key not in but}
                      for model in (self.file, MODEL))
        self.assertEqual(own, other)
        return own

    def short_text(self, n_characters):
        path = self.folder / "short.txt"
        path.write_text(SAMPLE[:n_characters])
        return path

    def test_tokenizes_alike(self):
        text = SAMPLE + "Der K\u00f6nig, 4821 \U0001f600  <s> \t\n"
        own, other = (self.json_of("tokenize", "-m", model, stdin=text.encode())["ids"] for model in (self.file, MODEL))
        self.assertEqual(own, other)
        self.assertGreater(len(own), 9000)
        back = [self.run_verb("tokenize", "-m", model, "--decode", stdin=json.dumps(own).encode()).stdout.decode()
                for model in (self.file, MODEL)]
        self.assertEqual(*back)
        self.assertTrue(back[0].startswith(SAMPLE))

    def test_says_the_same(self):
        # Long enough that most of it is compressed.
        run = ["run", "-f", self.short_text(900), "-n", 24, "--deterministic"]
        times = ("ttft_ms", "decode_tok_per_s")
        said = [self.assert_same(*run, "--kv", kv, but=times) for kv in ("none", "kivi(bits=4)")]
        self.assertEqual(len(said[0]["ids"]), 24)
        self.assertGreater(len(set(said[0]["ids"])), 8)  # no loop, in which an error could hide
        # A basis belongs to the form of the model that it was measured on.
        ids = []
        for model in (self.file, MODEL):
            basis = self.folder / f"{model.name}.basis.safetensors"
            self.json_of("calibrate", "-m", model, "--random-tokens", 256, "-o", basis)
            row = self.json_of(*run, "-m", model, "--kv", "lathe(ratio=4)", "--basis", basis)
            ids.append(row["ids"])
        self.assertEqual(*ids)
        self.assertLess(row["kv_fraction"], 0.7)
        self.assert_refused(2, "calibrate", *run, "-m", self.file, "--kv", "fdc(rate=0.5)", "--basis", basis)

    def test_measures_the_same(self):
        text = self.short_text(2500)
        self.assert_same("eval", "-c", 128, "--kl", text, "--kv", "kivi(bits=2)")
        self.assert_same("eval", "--task", "passkey", "--task-length", 200, "--task-count", 2)
        rows = []
        for model in (self.file, MODEL):
            compared = self.json_of("compare", "-m", model, "-c", 128, "--text", text, "--kv", "none", "--kv", "int8")
            self.assertEqual(compared["model"], str(model))
            rows.append([{key: value for key, value in row.items() if key not in ("ttft_ms", "tbt_ms")}
                         for row in compared["rows"]])
        self.assertEqual(*rows)
        inspected = self.run_verb("inspect", "-m", self.file, "--kv", "none")
        self.assertEqual(inspected.returncode, 0, inspected.stderr.decode())
        self.assertIn("nano.gguf: llama, 6 layers, hidden 256, 4 heads over 2 KV heads of 64, context 1024",
                      inspected.stdout.decode())

    def test_chats_alike(self):
        answers = []
        for model in (self.file, MODEL):
            done = self.run_verb("chat", "-m", model, "-n", 8, "--json", "--chat-template", "chatml",
                                 stdin=b"Who are you?\nAnd where?\n")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            answers.append([json.loads(line)["ids"] for line in done.stdout.splitlines()])
        self.assertEqual(len(answers[0]), 2)
        self.assertEqual(*answers)
        self.assert_refused(1, "--chat-template", "chat", "-m", self.file)

    def test_session_of_the_directory_is_another_models(self):
        session = self.folder / "session"
        self.json_of("run", "-m", MODEL, "-p", "The carriage", "-n", 4, "--save-session", session)
        self.assert_refused(1, "another model", "run", "-m", self.file, "-n", 4, "--load-session", session)


class SmallModel(cli_support.CommandLineCase):
    """Two layers, with what a file has beside it, and changed files."""

    def setUp(self):
        super().setUp()
        self.directory = model_files.copy_first_layers(MODEL, 2, self.folder / "directory")
        self.model = model_files.gguf_of(self.directory)
        self.file = self.model.write(self.folder / "two.gguf")
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")

    def test_calibration_stands_beside_the_file(self):
        inspect = ["inspect", "-m", self.file, "--kv", "fdc(rate=0.5)"]
        done = self.json_of("calibrate", "-m", self.file, "--random-tokens", 256)
        self.assertEqual(done["basis"], str(self.folder / "two.basis.safetensors"))
        found = self.run_verb(*inspect)
        self.assertEqual((found.returncode, cli_support.without_notes(found.stderr)), (0, ""))
        self.assertEqual(list(self.folder.glob("cache/*/basis*")), [])  # nothing was measured anew
        # It is what is read: a damaged one is not passed over.
        (self.folder / "two.basis.safetensors").write_bytes(b"damaged")
        self.assert_refused(1, "two.basis.safetensors", *inspect)

    def test_profile_stands_beside_the_file(self):
        text = self.folder / "short.txt"
        text.write_text(SAMPLE[:1500])
        profile = self.folder / "two.profile.json"
        asked = ["inspect", "-m", self.file, "--kv", "kcvt(accuracy=0.5)"]
        self.assert_refused(1, "kvlathe tune -m", *asked)
        self.json_of("tune", "-m", self.file, "-c", 128, "--perplexity", text, "--accuracy", 0.5, "--kv", "kcvt",
                     "--out", profile)
        self.assertRegex(self.json_of(*asked)["kv_resolved"], r"^kcvt\(bits=\d,")

    def test_texts_stand_beside_the_file(self):
        compare = ["compare", "-m", self.file, "-c", 256, "--kv", "none"]
        self.assertRegex(self.json_of(*compare)["text"], "share/(kvlathe/)?sample.txt$")
        own = self.folder / "two.sample.txt"
        own.write_text(SAMPLE[:2000])
        self.assertEqual(self.json_of(*compare)["text"], str(own))

    def test_directory_with_a_file_names_it(self):
        place = self.folder / "place"
        place.mkdir()
        shutil.copy(self.file, place)
        self.assert_refused(1, "it holds two.gguf: give that file", "run", "-m", place, "-p", "x")

    def refuse_changed(self, needle, change):
        model = model_files.gguf_of(self.directory)
        change(model)
        path = model.write(self.folder / "changed.gguf")
        self.assertIn(str(path), self.assert_refused(1, needle, "run", "-m", path, "-p", "x"))

    def test_foreign_files(self):
        def set_key(name, kind, value):
            return lambda model: model.keys.update({name: (kind, value)})
        self.refuse_changed("'mamba' is not supported; supported: llama",
                            set_key("general.architecture", TEXT, "mamba"))
        self.refuse_changed('"rwkv" (RWKV\'s list of words) is not supported; supported are gpt2, gemma4 and llama',
                            set_key("tokenizer.ggml.model", TEXT, "rwkv"))
        self.refuse_changed("'llama.expert_used_count' is missing", set_key("llama.expert_count", UINT32, 8))
        self.refuse_changed("llama.attention.head_count' differs from layer to layer",
                            set_key("llama.attention.head_count", ARRAY, (INT32, [4, 2])))
        self.refuse_changed("'llama.block_count' is missing", lambda model: model.keys.pop("llama.block_count"))
        self.refuse_changed("the file has no tokenizer", lambda model: model.keys.pop("tokenizer.ggml.model"))
        self.refuse_changed("'blk.1.ffn_up.weight'", lambda model: model.tensors.pop("blk.1.ffn_up.weight"))

        def give_type(number):
            def change(model):
                _, shape, data = model.tensors["blk.0.attn_v.weight"]
                model.tensors["blk.0.attn_v.weight"] = (number, shape, data)
            return change
        for number in (17, 40, 1000):  # IQ2_XS, NVFP4, and none
            self.refuse_changed("blk.0.attn_v.weight", give_type(number))

    def test_damaged_files(self):
        data = self.model.bytes()
        path = self.folder / "changed.gguf"
        run = ["run", "-m", path, "-p", "x"]
        for n_bytes in (0, 3, 20, 5000, len(data) // 2, len(data) - 64):
            path.write_bytes(data[:n_bytes])
            self.assert_refused(1, f"{path}: ", *run)
        path.write_bytes(data[: len(data) // 2])
        self.assert_refused(1, "truncated", *run)
        path.write_bytes(b"GGUF\0\0\0\3" + data[8:])
        self.assert_refused(1, "big-endian", *run)
        path.write_bytes(b"GGUF\1\0\0\0" + data[8:])
        self.assert_refused(1, "version 1", *run)
        path.write_text("It was a bright cold morning.\n")
        for verb in (run, ["inspect", "-m", path], ["chat", "-m", path, "--chat-template", "chatml"]):
            self.assert_refused(1, "not a GGUF file", *verb)
        self.assert_refused(1, "no such file", "run", "-m", self.folder / "missing.gguf", "-p", "x")


if __name__ == "__main__":
    cli_support.main()
