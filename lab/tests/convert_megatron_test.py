#!/usr/bin/env python3
"""lab/convert_megatron.py: checkpoints of Megatron that are made from a model become that model again.

Called as convert_megatron_test.py PROGRAM MODEL [TEST...].
"""

import array
import json
import pathlib
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))  # model_files

import megatron_checkpoint as megatron  # noqa: E402
from model_files import read_weights  # noqa: E402

PROGRAM, NANO = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
SMALL = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "intermediate_size": 48, "vocab_size": 100, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
DMC = {"channel": "last", "offset": 5, "weight_offset": 5, "epsilon": 2**-7, "zero_after_rope": True}


def random_tensors(config, seed=1):
    """BF16 weights of a Llama model by the names of Hugging Face."""
    draw = random.Random(seed)
    c, d = config, config["head_dim"]
    shapes = {"model.embed_tokens.weight": [c["vocab_size"], c["hidden_size"]], "model.norm.weight": [c["hidden_size"]]}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for i in range(c["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": [c["hidden_size"]], "post_attention_layernorm": [c["hidden_size"]],
            "self_attn.q_proj": [c["num_attention_heads"] * d, c["hidden_size"]],
            "self_attn.k_proj": [c["num_key_value_heads"] * d, c["hidden_size"]],
            "self_attn.v_proj": [c["num_key_value_heads"] * d, c["hidden_size"]],
            "self_attn.o_proj": [c["hidden_size"], c["num_attention_heads"] * d],
            "mlp.gate_proj": [c["intermediate_size"], c["hidden_size"]], "mlp.up_proj": [c["intermediate_size"], c["hidden_size"]],
            "mlp.down_proj": [c["hidden_size"], c["intermediate_size"]],
        }.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    tensors = {}
    for name, shape in shapes.items():
        n = shape[0] * (shape[1] if len(shape) == 2 else 1)
        # Exponents of numbers between 2^-7 and 2, any sign and any fraction.
        numbers = [draw.randrange(0x3C00, 0x4000) | draw.choice((0, 0x8000)) for _ in range(n)]
        tensors[name] = (shape, array.array("H", numbers).tobytes())
    return tensors


class ConvertTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tensors = random_tensors(SMALL)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvlathe_megatron_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.checkpoint = self.folder / "checkpoint"
        self.out = self.folder / "model"
        self.tokenizer = self.folder / "tokenizer.json"
        self.write_tokenizer(SMALL["vocab_size"])

    def write_tokenizer(self, n_tokens):
        texts = ["<unk>", "<s>", "</s>", *map(str, range(n_tokens - 4))]
        self.tokenizer.write_text(json.dumps({"model": {"vocab": {text: i for i, text in enumerate(texts)}},
                                              "added_tokens": [{"id": n_tokens - 1, "content": "<added>"}]}))

    def small(self):
        return megatron.CoreModel(SMALL, self.tensors)

    def convert(self, *arguments, tokenizer=None):
        return subprocess.run(
            [sys.executable, "-B", str(REPOSITORY / "lab/convert_megatron.py"), "--checkpoint", str(self.checkpoint), "--tokenizer",
             str(tokenizer or self.tokenizer), "--out", str(self.out), *arguments], capture_output=True, text=True, timeout=120, check=False)

    def converted(self, *arguments, **named):
        done = self.convert(*arguments, **named)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read_weights(self.out), json.loads((self.out / "config.json").read_text()), done.stdout

    def refused(self, *arguments, **named):
        done = self.convert(*arguments, **named)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("convert_megatron: "), done.stderr)
        self.assertFalse((self.out / "config.json").exists())
        return done.stderr

    def same_tensors(self, tensors, expected):
        self.assertEqual(sorted(tensors), sorted(expected))
        for name, (shape, data) in expected.items():
            self.assertEqual((name, tensors[name][0]), (name, shape))
            self.assertTrue(tensors[name][1] == data, name)


class LayoutTest(ConvertTest):
    def test_shards_become_the_model_that_they_were_cut_from(self):
        for n_tensor, n_pipeline, is_local in ((1, 1, False), (2, 1, True), (1, 2, False), (2, 4, False)):
            with self.subTest(tensor=n_tensor, pipeline=n_pipeline, local=is_local):
                shutil.rmtree(self.checkpoint, ignore_errors=True)
                shutil.rmtree(self.out, ignore_errors=True)
                megatron.write_torch(self.checkpoint, self.small(), n_tensor, n_pipeline, is_local=is_local)
                tensors, config, said = self.converted()
                self.same_tensors(tensors, self.tensors)
                self.assertEqual({key: config[key] for key in SMALL}, SMALL)
                self.assertEqual(config["dmc"], DMC)
                self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (1, 2))
                self.assertIn("--kv 'dmc(window=12,sink=0)'", said)

    def test_distributed_checkpoints_are_read_too(self):
        megatron.write_torch_dist(self.checkpoint, self.small(), 2, dmc_init_val=4.5, dmc_window_size=8)
        tensors, config, said = self.converted()
        self.same_tensors(tensors, self.tensors)
        self.assertEqual(config["dmc"], DMC | {"offset": 4.5, "weight_offset": 4.5})
        self.assertIn("--kv 'dmc(window=8,sink=0)'", said)

    def test_f32_is_rounded_to_the_nearest_and_ties_to_even(self):
        model = self.small()
        halves = [0x3F800000, 0x3F808000, 0x3F808001, 0x3F818000, 0xBF807FFF, 0xBF818000, 0x00000001, 0x80018000]
        rounded = [0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF80, 0xBF82, 0x0000, 0x8002]

        def change(matrix):
            wide = megatron.as_f32(matrix)
            if matrix.shape == (SMALL["hidden_size"],):
                wide.rows = [struct.pack("<I", value) for value in halves * (SMALL["hidden_size"] // 8)]
            return wide

        model.convert_to(change)
        megatron.write_torch(self.checkpoint, model, 2, 2)
        tensors, _, _ = self.converted()
        norm = struct.pack("<8H", *rounded) * (SMALL["hidden_size"] // 8)
        self.same_tensors(tensors, {name: (shape, norm if len(shape) == 1 else data) for name, (shape, data) in self.tensors.items()})

    def test_f16_becomes_bf16(self):
        model = self.small()
        model.convert_to(lambda m: megatron.Matrix("F16", m.shape, struct.pack("<e", -1.5) * (len(m.data()) // 2)))
        megatron.write_torch(self.checkpoint, model, 1, 1)
        tensors, _, _ = self.converted()
        minus_one_and_a_half = struct.pack("<H", 0xBFC0)
        self.same_tensors(tensors, {name: (shape, minus_one_and_a_half * (len(data) // 2)) for name, (shape, data) in self.tensors.items()})

    def test_takes_the_iteration_that_is_asked_for(self):
        megatron.write_torch(self.checkpoint, self.small(), 1, 1, iteration=100)
        other = megatron.CoreModel(SMALL, random_tensors(SMALL, seed=2))
        megatron.write_torch(self.checkpoint, other, 1, 1, iteration=200)
        self.same_tensors(self.converted("--iteration", "100")[0], self.tensors)
        self.assertIn("has no iter_0000300", self.refused_elsewhere("--iteration", "300"))

    def refused_elsewhere(self, *arguments):
        self.out = self.folder / "elsewhere"
        return self.refused(*arguments)

    def test_reads_what_torch_itself_writes(self):
        """lab/tests/megatron was written by torch 1.13.0 and by torch.distributed.checkpoint of torch 2.6.0 (the scripts there)."""
        golden = REPOSITORY / "lab/tests/megatron"
        expected = json.loads((golden / "expected.json").read_text())
        for layout in ("checkpoint", "distributed"):
            with self.subTest(layout):
                self.checkpoint, self.out = golden / layout, self.folder / layout
                tensors, config, _ = self.converted(tokenizer=golden / "tokenizer.json")
                self.assertEqual({name: [shape, data.hex()] for name, (shape, data) in tensors.items()}, expected)
                self.assertEqual(config["dmc"], DMC)


class EngineTest(ConvertTest):
    def test_the_engine_computes_what_it_computed_before(self):
        """lathe-nano, split into 2 tensor-parallel times 2 pipeline ranks."""
        config = json.loads((NANO / "config.json").read_text())
        megatron.write_torch(self.checkpoint, megatron.CoreModel(config, read_weights(NANO)), 2, 2)
        self.same_tensors(self.converted(tokenizer=NANO)[0], read_weights(NANO))
        original = self.folder / "original"
        shutil.copytree(NANO, original)
        (original / "config.json").write_text(json.dumps(config | {"dmc": DMC}))
        text = self.folder / "text.txt"
        text.write_bytes((NANO / "sample.txt").read_bytes()[:800])
        answers = [subprocess.run([PROGRAM, "eval", "-m", model, "--perplexity", text, "--kv", "dmc(sink=0)", "-c", "256", "--json"],
                                  capture_output=True, text=True, timeout=120, check=True).stdout for model in (original, self.out)]
        values = [json.loads(answer) for answer in answers]
        self.assertGreater(values[0]["perplexity"], 1)
        self.assertEqual(values[0]["perplexity"], values[1]["perplexity"])


class RefusalTest(ConvertTest):
    """What is wrong is said in one sentence, and no model is left that looks whole."""

    def write(self, n_tensor=2, n_pipeline=2, **changes):
        return megatron.write_torch(self.checkpoint, self.small(), n_tensor, n_pipeline, **changes)

    def test_a_missing_shard(self):
        place = self.write()
        (place / "mp_rank_01_001/model_optim_rng.pt").unlink()
        self.assertIn("lacks mp_rank_01_001/model_optim_rng.pt", self.refused())

    def test_a_missing_file_of_parts(self):
        place = megatron.write_torch_dist(self.checkpoint, self.small(), 2)
        (place / "__1_0.distcp").unlink()
        self.assertIn("__1_0.distcp is missing", self.refused())
        self.assertEqual(list(self.out.iterdir()), [])

    def test_what_is_no_checkpoint(self):
        self.assertIn("is not a directory", self.refused())
        self.checkpoint.mkdir()
        self.assertIn("is no checkpoint of Megatron", self.refused())
        (self.checkpoint / "latest_checkpointed_iteration.txt").write_text("soon")
        self.assertIn("holds 'soon'", self.refused())

    def test_files_that_are_damaged(self):
        path = self.write(1, 1) / "mp_rank_00/model_optim_rng.pt"
        whole = path.read_bytes()
        at = len(whole) // 2
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        for name, data, said in (
            ("cut", whole[: len(whole) // 2], "is not a whole file of torch.save"), ("text", b"weights" * 9, "is not a whole file"),
            ("empty", b"", "is empty"), ("a bit", flipped, "checksum of data/"),
        ):
            with self.subTest(name):
                path.write_bytes(data)
                self.assertIn(said, self.refused())

    def test_a_pickle_that_would_run_code(self):
        trap = self.folder / "trap"

        class Trap:
            def __reduce__(self):
                return pathlib.Path.touch, (trap,)

        path = self.write(1, 1) / "mp_rank_00/model_optim_rng.pt"
        for module, name in (("os", "system"), ("builtins", "eval"), ("subprocess", "Popen")):
            with self.subTest(f"{module}.{name}"):
                with zipfile.ZipFile(path, "w") as archive:
                    archive.writestr("archive/data.pkl", f"c{module}\n{name}\n(S'touch {trap}'\ntR.".encode())
                self.assertIn(f"names {module}.{name}, which no checkpoint of Megatron needs", self.refused())
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"cbuiltins\ngetattr\n(ccollections\nOrderedDict\nS'fromkeys'\ntR.")
        self.assertIn("getattr called on something else than a class of Megatron", self.refused())
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"args": Trap(), "model": {}}, protocol=2))
        self.assertIn("nothing of it was run", self.refused())
        place = megatron.write_torch_dist(self.folder / "other", self.small(), 1)
        (place / ".metadata").write_bytes(f"cos\nsystem\n(S'touch {trap}'\ntR.".encode())
        self.checkpoint = place
        self.assertIn("names os.system", self.refused())
        self.assertFalse(trap.exists())

    def test_objects_of_megatron_are_not_run_either(self):
        """A name below megatron or torch gives an object that holds nothing, whatever it is called with."""
        trap = self.folder / "trap"
        path = self.write(1, 1) / "mp_rank_00/model_optim_rng.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", f"ctorch.serialization\nos.system\n(S'touch {trap}'\ntR.".encode())
        self.assertIn("does not hold 'args' and 'model'", self.refused())
        self.assertFalse(trap.exists())

    def test_arguments_that_ask_for_another_model(self):
        for change, said in (
            ({"normalization": "LayerNorm"}, "normalization='LayerNorm'; only 'RMSNorm' is converted"),
            ({"rotary_percent": 0.5}, "rotary_percent=0.5"), ({"num_experts": 8}, "num_experts=8"),
            ({"rotary_interleaved": True}, "rotary_interleaved=True"), ({"num_layers": None}, "num_layers as None"),
            ({"hidden_size": 64}, "has shape"), ({"num_layers": 3}, "such as decoder.layers.3."),
            ({"num_layers": 5}, "the checkpoint lacks decoder.layers.4."), ({"num_query_groups": 3}, "4 heads in 3 groups"),
        ):
            with self.subTest(change):
                shutil.rmtree(self.checkpoint, ignore_errors=True)
                self.write(**change)
                self.assertIn(said, self.refused())

    def test_a_model_without_dmc(self):
        self.write(1, 1)
        path = self.checkpoint / "iter_0000250/mp_rank_00/model_optim_rng.pt"
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        members["archive/data.pkl"] = members["archive/data.pkl"].replace(b"dmc_init_val", b"abc_init_val")
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        self.assertIn("was not trained with DMC", self.refused())

    def test_shards_that_do_not_fit(self):
        place = self.write(2, 1)
        other = dict(SMALL, hidden_size=64)
        megatron.write_torch(self.folder / "other", megatron.CoreModel(other, random_tensors(other)), 2, 1)
        shutil.copy(self.folder / "other/iter_0000250/mp_rank_01/model_optim_rng.pt", place / "mp_rank_01/model_optim_rng.pt")
        self.assertIn("in tensor-parallel rank 1 and BF16", self.refused())

    def test_norms_that_differ_between_ranks(self):
        place = self.write(2, 1)
        megatron.write_torch(self.folder / "other", megatron.CoreModel(SMALL, random_tensors(SMALL, seed=2)), 2, 1)
        shutil.copy(self.folder / "other/iter_0000250/mp_rank_01/model_optim_rng.pt", place / "mp_rank_01/model_optim_rng.pt")
        self.assertIn("differs between tensor-parallel ranks 0 and 1", self.refused())

    def test_numbers_that_bf16_does_not_have(self):
        for value, said in ((float("nan"), "not finite"), (float("-inf"), "not finite"), (3.4028e38, "too large for BF16")):
            with self.subTest(value):
                shutil.rmtree(self.checkpoint, ignore_errors=True)
                shutil.rmtree(self.out, ignore_errors=True)
                model = self.small()

                def change(matrix):
                    wide = megatron.as_f32(matrix)
                    if len(matrix.shape) == 1:
                        wide.rows[5] = struct.pack("<f", value)
                    return wide

                model.convert_to(change)
                megatron.write_torch(self.checkpoint, model, 1, 1)
                self.assertIn(said, self.refused())

    def test_tokenizers_that_do_not_fit(self):
        self.write(1, 1)
        self.assertIn("is no tokenizer", self.refused(tokenizer=self.folder / "nothing"))
        bad = self.folder / "tokenizer.model"
        bad.write_bytes(b"\x0f\xff")
        self.assertIn("is no tokenizer that is understood", self.refused(tokenizer=bad))
        self.write_tokenizer(5000)
        self.assertIn("5000 tokens of the tokenizer", self.refused())

    def test_a_place_that_holds_something(self):
        self.write(1, 1)
        self.out.mkdir()
        (self.out / "notes.txt").write_text("mine")
        self.assertIn("is there already and not an empty directory", self.refused())
        self.assertEqual([p.name for p in self.out.iterdir()], ["notes.txt"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
