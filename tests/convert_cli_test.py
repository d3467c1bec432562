"""kvlathe convert: files of every type open and say what the model says, nearly; what cannot be converted is
refused in one line, and nothing is left behind.

Usage: convert_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import pathlib
import resource
import shutil
import struct
import tempfile

import cli_support
import model_files
from cli_support import MODEL
from model_files import ARRAY, TEXT, UINT32

SAMPLE = (MODEL / "sample.txt").read_text()
# The number of llama.cpp for a file that is mostly of the type, and how many bits a value of it has.
TYPES = {"q8_0": (7, 8.5), "q4_0": (2, 4.5), "q4_1": (3, 5.0), "q5_0": (8, 5.5), "q5_1": (9, 6.0), "q2_k": (10, 2.625),
         "q3_k": (11, 3.4375), "q4_k": (14, 4.5), "q5_k": (16, 5.5), "q6_k": (18, 6.5625), "iq4_nl": (25, 4.5),
         "iq4_xs": (30, 4.25), "mxfp4": (38, 4.25), "bf16": (32, 16), "f16": (1, 16), "f32": (0, 32)}
UNEVEN = {"q2_k": "Q4_0", "q3_k": "Q4_0", "q4_k": "Q5_0", "q5_k": "Q5_1", "q6_k": "Q8_0", "iq4_xs": "IQ4_NL"}
WIDTH_OF = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class ReadGguf:
    """The keys of a file with the bytes of their values, and its tensors: name to (type, shape)."""

    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 4
        _, n_tensors, n_keys = self.take("<IQQ")
        self.keys = {self.text(): self.value() for _ in range(n_keys)}
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.text()
            n_dims, = self.take("<I")
            shape = self.take(f"<{n_dims}Q")
            kind, _ = self.take("<IQ")
            self.tensors[name] = (kind, shape[::-1])

    def take(self, layout):
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def text(self):
        n_bytes, = self.take("<Q")
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at].decode()

    def skip(self, kind):
        if kind == TEXT:
            self.text()
        elif kind == ARRAY:
            of, n_values = self.take("<IQ")
            for _ in range(n_values):
                self.skip(of)
        else:
            self.at += WIDTH_OF[kind]

    def value(self):
        begin = self.at
        self.skip(*self.take("<I"))
        return self.data[begin : self.at]


class ConvertTest(cli_support.CommandLineCase):
    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_convert_"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        cls.file = model_files.gguf_of(MODEL).write(cls.place / "nano.gguf")

    def converted(self, weights, *options):
        path = self.folder / f"{weights}.gguf"
        summary = self.json_of("convert", self.file, path, "--weights", weights, *options)
        self.assertEqual(summary["input"], str(self.file))
        self.assertEqual(summary["output"], str(path))
        self.assertEqual(summary["weights"], weights)
        self.assertEqual(summary["bytes_before"], self.file.stat().st_size)
        self.assertEqual(summary["bytes_after"], path.stat().st_size)
        return path, summary

    def perplexity(self, model):
        text = self.folder / "short.txt"
        text.write_text(SAMPLE[:2500])
        return self.json_of("eval", "-m", model, "-c", 128, "--perplexity", text)["perplexity"]

    def test_every_type(self):
        before = ReadGguf(self.file)
        for weights, (file_type, bits) in TYPES.items():
            path, summary = self.converted(weights)
            after = ReadGguf(path)
            # The metadata are the same bytes, but for the two keys of the type.
            changed = {"general.file_type": struct.pack("<II", UINT32, file_type),
                       "general.quantization_version": struct.pack("<II", UINT32, 2)}
            self.assertEqual(after.keys, before.keys | changed, weights)
            self.assertEqual({name: shape for name, (_, shape) in after.tensors.items()},
                             {name: shape for name, (_, shape) in before.tensors.items()})
            self.assertEqual(list(after.tensors), list(before.tensors))  # in the order of the file
            self.assertEqual(summary["tensors"]["F32"]["count"], 56 if weights == "f32" else 13)
            self.assertEqual(sum(of["count"] for of in summary["tensors"].values()), 56)
            if weights in UNEVEN:
                self.assertEqual(summary["tensors"][UNEVEN[weights]]["count"], 6, weights)  # the rows of 704
            if bits < 6:
                self.assertEqual(summary["tensors"]["Q6_K"]["count"], 1, weights)  # the embedding
            self.assertEqual(self.json_of("run", "-m", path, "-p", "The horse", "-n", 4)["generated_tokens"], 4)

    def test_weights_lose_what_their_bits_say(self):
        loss = {}
        whole = self.perplexity(self.file)
        for weights in ("bf16", "f16", "q8_0", "q6_k", "q4_k", "q2_k"):
            loss[weights] = self.perplexity(self.converted(weights)[0]) / whole - 1
        self.assertEqual(loss["bf16"], 0)
        self.assertLess(abs(loss["f16"]), 0.001)
        self.assertLess(abs(loss["q8_0"]), 0.005)
        self.assertLess(abs(loss["q6_k"]), 0.01)
        self.assertLess(abs(loss["q4_k"]), 0.05)
        self.assertGreater(loss["q2_k"], loss["q4_k"])

    def test_the_same_type_keeps_the_bytes_and_any_threads_give_the_same(self):
        path, _ = self.converted("q4_k", "-t", 1)
        again = self.folder / "again.gguf"
        self.json_of("convert", path, again, "--weights", "q4_k")
        self.assertEqual(again.read_bytes(), path.read_bytes())
        first = path.read_bytes()
        self.assertEqual(self.converted("q4_k", "-t", 3)[0].read_bytes(), first)

    def test_says_what_it_did(self):
        path = self.folder / "out.gguf"
        done = self.run_verb("convert", self.file, path)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        notes = done.stderr.decode()
        self.assertIn("kvlathe: note: 6 tensors have rows that are no whole blocks of Q4_K and become Q5_0: ", notes)
        self.assertIn("kvlathe: note: embedding and head are Q6_K, not Q4_K: ", notes)
        self.assertRegex(done.stdout.decode(), rf"^{path}: [\d.]+ MiB, \d\d\.\d% of the [\d.]+ MiB of {self.file}\n")
        self.assertRegex(done.stdout.decode(), r"\n  Q4_K +36 tensors  ")
        self.assertIn("convert", self.run_verb("--help").stdout.decode())

    def test_refuses(self):
        out = self.folder / "out.gguf"
        before = self.file.read_bytes()
        link = self.folder / "link.gguf"
        link.symlink_to(self.file)
        for same in (self.file, link):
            self.assert_refused(2, "the file that is read", "convert", self.file, same)
        self.assertEqual(self.file.read_bytes(), before)
        self.assert_refused(2, "convert takes GGUF files", "convert", MODEL, out)
        self.assert_refused(1, "No such file", "convert", self.folder / "missing.gguf", out)
        self.assert_refused(2, "types are q8_0, q4_0", "convert", self.file, out, "--weights", "q4_k_m")
        self.assert_refused(2, "OUT", "convert", self.file)
        self.assert_refused(2, "not a regular file", "convert", self.file, self.folder)
        self.assert_refused(1, "cannot create", "convert", self.file, self.folder / "none" / "out.gguf")
        damaged = self.folder / "damaged.gguf"
        damaged.write_bytes(before[: len(before) // 2])
        self.assert_refused(1, "truncated", "convert", damaged, out)
        self.assertFalse(out.exists())

    def test_types_that_are_not_read_and_numbers_that_are_not_finite(self):
        out = self.folder / "out.gguf"
        model = model_files.gguf_of(model_files.copy_first_layers(MODEL, 1, self.folder / "one"))
        kind, shape, data = model.tensors["blk.0.attn_v.weight"]
        model.tensors["blk.0.attn_v.weight"] = (kind, shape, b"\x80\x7f" + data[2:])
        path = model.write(self.folder / "infinite.gguf")
        self.assert_refused(1, "'blk.0.attn_v.weight' has values that are not finite", "convert", path, out)
        model.tensors["blk.0.attn_v.weight"] = (17, shape, data)
        path = model.write(self.folder / "iq2.gguf")
        self.assert_refused(1, "'blk.0.attn_v.weight' is of type IQ2_XS", "convert", path, out)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["infinite.gguf", "iq2.gguf", "one"])

    def test_a_full_disk_leaves_no_file(self):
        out = self.folder / "out.gguf"
        out.write_bytes(b"before")
        # Python ignores the signal of a file that is too large, and so does what it starts.
        self.assert_refused(1, "out.gguf: cannot write", "convert", self.file, out, restore_signals=False,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        self.assertEqual(out.read_bytes(), b"before")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["out.gguf"])


if __name__ == "__main__":
    cli_support.main()
