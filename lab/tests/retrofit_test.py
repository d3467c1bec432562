#!/usr/bin/env python3
"""kvlathe retrofit as a user runs it: a tokenizer, a corpus, a training of about a minute that must
reach a stated loss, an interrupted run that goes on, and the engine on what was trained.

usage: retrofit_test.py KVLATHE DATA_DIRECTORY
"""
import csv
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

import model_files  # noqa: E402

KVLATHE, DATA = sys.argv[1], sys.argv[2]
del sys.argv[1:3]

# Nats per token, mean of the last tenth of the run.
STATED_LOSS = 1.2

RECIPE = {
    "corpus": {
        "prose": {"files": ["calibration.txt"]},
        "prose-valid": {"files": ["sample.txt"]},
        "tasks": {"context": 128, "n_tokens": 400000, "tasks": {"sort": 1, "arithmetic": 1}},
    },
    "training": {
        "model": {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 32, "intermediate_size": 160, "vocab_size": 512,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
        },
        "total_tokens": 1500000, "batch_tokens": 4096, "micro_batch_tokens": 4096, "seed": 3,
        "optimizer": {"method": "muon", "learning_rate": 0.01},
        "phases": [{"context": 128, "share": 1, "mixture": {"prose": 0.1, "tasks": 0.9}}],
        "validation_source": "prose-valid", "validation_tokens": 4096, "validation_interval": 100,
    },
}

# A short run: that the loss falls, not how far.
GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_inner": 160,
    "vocab_size": 512, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2,
}
GPT2_TOKENS = 250000


def full_disk():
    """For a child process: no file grows beyond 100 KB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


def kvlathe(*arguments, expect=0, before=None):
    result = subprocess.run([KVLATHE, *map(str, arguments)], capture_output=True, text=True,
                            timeout=900, preexec_fn=before)
    assert result.returncode == expect, (arguments, result.returncode, result.stderr)
    return result


class Retrofit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        cls.recipe = cls.root / "recipe.json"
        cls.recipe.write_text(json.dumps(RECIPE))
        kvlathe("retrofit", "tokenizer", "--recipe", cls.recipe, "--data", DATA, "--out",
                cls.root / "tok", "--vocab-size", 512)
        kvlathe("retrofit", "corpus", "--recipe", cls.recipe, "--data", DATA, "--tokenizer",
                cls.root / "tok", "--out", cls.root / "corpus")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def pretrain(self, out, *more):
        return ["retrofit", "pretrain", "--recipe", self.recipe, "--corpus", self.root / "corpus",
                "--out", self.root / out, *more]

    def curve(self, out):
        with open(self.root / out / "curve.csv", newline="") as lines:
            return list(csv.DictReader(lines))

    def last_loss(self, out):
        losses = [float(row["loss"]) for row in self.curve(out)]
        self.assertGreater(losses[0], 5.5)
        last = losses[-len(losses) // 10:]
        return sum(last) / len(last)

    def check_in_the_engine(self, out):
        result = kvlathe("eval", "-m", self.root / out, "--perplexity", f"{DATA}/sample.txt",
                         "--json")
        bits = json.loads(result.stdout)["bits_per_byte"]
        trained = [float(row["validation_bits_per_byte"]) for row in self.curve(out)
                   if row["validation_bits_per_byte"]]
        # Other windows and other tokens, the same text.
        self.assertAlmostEqual(bits, trained[-1], delta=0.25)

    def without_notes(self, error):
        return "".join(line for line in error.splitlines(keepends=True)
                       if not line.startswith("kvlathe: note: "))

    def check_fisher_ranks(self, directory, text):
        """Weights of a model in `directory`, and the ranks that Palu takes from them."""
        kvlathe("retrofit", "fisher", "-m", directory, "--text", text, "--tokens", 4096)
        weights = json.loads((Path(directory) / "fisher.json").read_text())
        self.assertTrue(all(w > 0 for w in weights["k"] + weights["v"]))
        spec = "palu(rate=0.4,round=16,ranks=fisher)"
        shown = json.loads(kvlathe("inspect", "-m", directory, "--kv", spec, "--json").stdout)
        ranks = {pair: [] for pair in "kv"}
        for head in shown["basis"]["heads"]:
            for pair in "kv":
                self.assertEqual(head["rank_" + pair] % 16, 0)
                ranks[pair].append((weights[pair][head["layer"]], head["rank_" + pair]))
        # More weight, no fewer ranks.
        ordered = [rank for _, rank in sorted(ranks["k"] + ranks["v"])]
        self.assertEqual(ordered, sorted(ordered))
        self.assertGreater(len(set(ordered)), 1)
        return weights

    def test_fisher_weights_share_out_palus_ranks(self):
        directory = self.root / "nano"
        directory.mkdir()
        for name in ("config.json", "model.safetensors", "tokenizer.model",
                     "tokenizer_config.json"):
            shutil.copy(Path(DATA) / name, directory)
        compare = ["compare", "-m", directory, "--kv", "palu(ranks=fisher)", "--text",
                   f"{DATA}/sample.txt"]
        missing = kvlathe(*compare, expect=1).stderr
        self.assertIn(f"make it: kvlathe retrofit fisher -m {directory}", missing)
        self.assertEqual(self.without_notes(missing).count("\n"), 1, missing)
        weights = self.check_fisher_ranks(directory, f"{DATA}/calibration.txt")
        self.assertEqual(weights["n_tokens"], 4096)
        # Those of another model are refused.
        weights["model_hash"] = "0" * 32
        del weights["crc32c"]  # as a person would write it
        (directory / "fisher.json").write_text(json.dumps(weights))
        self.assertIn("made for another model", kvlathe(*compare, expect=2).stderr)

    def test_reaches_the_stated_loss_and_runs_in_the_engine(self):
        kvlathe(*self.pretrain("run"))
        self.assertLess(self.last_loss("run"), STATED_LOSS)
        self.assertIn("<svg", (self.root / "run" / "curve.svg").read_text())
        self.check_in_the_engine("run")

    def test_trains_gpt2(self):
        recipe = json.loads(self.recipe.read_text())
        recipe["training"].update({"model": GPT2, "total_tokens": GPT2_TOKENS})
        path = self.root / "gpt2.json"
        path.write_text(json.dumps(recipe))
        kvlathe("retrofit", "pretrain", "--recipe", path, "--corpus", self.root / "corpus",
                "--out", self.root / "gpt2")
        self.assertLess(self.last_loss("gpt2"), 4)
        self.check_in_the_engine("gpt2")
        self.check_fisher_ranks(self.root / "gpt2", f"{DATA}/calibration.txt")

    def test_dmc_learns_to_merge_and_the_engine_merges(self):
        """A short base, then all three stages; what is kept in training and in the engine is about what was asked for."""
        recipe = json.loads(json.dumps(RECIPE))
        recipe["training"]["total_tokens"] = 400000
        base, path = self.root / "base", self.root / "base.json"
        path.write_text(json.dumps(recipe))
        kvlathe("retrofit", "pretrain", "--recipe", path, "--corpus", self.root / "corpus", "--out", base)
        kvlathe("retrofit", "gqa", "-m", base, "--kv-heads", 2, "--out", self.root / "wide")
        self.assertEqual(json.loads((self.root / "wide/config.json").read_text())["num_key_value_heads"], 2)
        recipe["training"].pop("model")
        recipe["training"]["optimizer"] = {"learning_rate": 0.003, "final_share": 0.1}
        recipe["training"]["save_at_steps"] = [5, 40]
        recipe["training"]["dmc"] = {"compression": 2, "save_at": [1.5], "zero_out_steps": 10, "ramp_steps": 80, "solidify_steps": 20,
                                     "deciding_rate": 2, "hinge_weight": 4}
        recipe["training"]["distillation"] = 0.5
        path = self.root / "dmc.json"
        path.write_text(json.dumps(recipe))
        command = ("retrofit", "dmc", "--recipe", path, "--corpus", self.root / "corpus", "--out", self.root / "dmc")
        kvlathe(*command, "-m", base)
        self.assertTrue((self.root / "dmc/ramp/cr-1.5.pt").exists())
        self.check_models_on_the_way("dmc")
        kept = float(self.curve("dmc/cr-2")[-1]["kept_share"])
        self.assertLess(kept, 0.6)
        config = json.loads((self.root / "dmc/cr-2/config.json").read_text())["dmc"]
        self.assertEqual((config["channel"], config["offset"]), ("last", 5))
        whole, merged = (json.loads(kvlathe("eval", "-m", self.root / "dmc/cr-2", "--perplexity", f"{DATA}/sample.txt", "--kv", kv,
                                            "--json").stdout) for kv in ("none", "dmc(sink=0)"))
        # Merging changes what a trained model says by little, though half of the entries are gone.
        self.assertNotEqual(merged["bits_per_byte"], whole["bits_per_byte"])
        self.assertLess(merged["bits_per_byte"], whole["bits_per_byte"] + 0.5)
        # The ramp's last checkpoint is that of its last step, also where its target is there from the first.
        ramp = self.root / "dmc/ramp"
        self.assertEqual((ramp / "cr-2.pt").read_bytes(), (ramp / "checkpoint.pt").read_bytes())
        recipe["training"]["dmc"].update({"immediate": True, "ramp_steps": 4})
        path.write_text(json.dumps(recipe))
        shutil.copytree(self.root / "dmc/zero-out", self.root / "dmc-at-once/zero-out")
        kvlathe(*command[:-1], self.root / "dmc-at-once", "-m", base, "--stage", "ramp")
        ramp = self.root / "dmc-at-once/ramp"
        self.assertEqual(sorted(file.name for file in ramp.glob("*.pt")), ["checkpoint.pt", "cr-2.pt"])
        self.assertEqual((ramp / "cr-2.pt").read_bytes(), (ramp / "checkpoint.pt").read_bytes())
        # A stage that ended before its model was written writes it.
        (ramp / "model.safetensors").unlink()
        kvlathe(*command[:-1], self.root / "dmc-at-once", "-m", base, "--stage", "ramp")
        self.assertTrue((ramp / "model.safetensors").exists())
        # A teacher and the weight of what it teaches belong together.
        distilled = ("retrofit", "pretrain", "--recipe", path, "--corpus", self.root / "corpus", "--init", base, "--out", self.root / "taught")
        self.assertIn('"distillation" needs a teacher; name it with --teacher', kvlathe(*distilled, expect=2).stderr)
        taught = kvlathe(*self.pretrain("taught"), "--teacher", base, expect=2).stderr
        self.assertIn('has no "distillation", the weight of what it teaches', taught)
        # Another CR needs its checkpoint, and another model its own shape.
        error = kvlathe(*command, "-m", base, "--stage", "solidify", "--compression", 3, expect=1).stderr
        self.assertIn("ramp/cr-3.pt: not there", error)
        error = kvlathe(*command, "-m", base, "--compression", 0.5, expect=2).stderr
        self.assertIn("--compression", error)
        recipe["training"]["dmc"]["compression"] = 0.5
        path.write_text(json.dumps(recipe))
        self.check_one_line(kvlathe(*command, "-m", base, expect=2).stderr, 'dmc.json, "dmc": "compression" must be a number from 1.01 to 1000')

    def check_models_on_the_way(self, out):
        """Steps and CRs that were asked for are whole models, each of its own step, and there are no others."""
        models = sorted(str(file.parent.relative_to(self.root / out)) for file in (self.root / out).rglob("model.safetensors"))
        self.assertEqual(models, ["cr-2", "cr-2/step-5", "ramp", "ramp/cr-1.5", "ramp/cr-2", "ramp/step-40", "ramp/step-5", "zero-out",
                                  "zero-out/step-5"])
        self.assertEqual(len(self.curve(f"{out}/ramp/step-40")), 40)
        ramp = self.root / out / "ramp"
        # The target rises to 1.5 with step 40 of 80 and to 2 with the last.
        for name, same, differs in (("cr-1.5", "step-40", "step-5"), ("cr-2", ".", "cr-1.5")):
            weights = (ramp / name / "model.safetensors").read_bytes()
            self.assertEqual(weights, (ramp / same / "model.safetensors").read_bytes())
            self.assertNotEqual(weights, (ramp / differs / "model.safetensors").read_bytes())
        result = kvlathe("eval", "-m", ramp / "step-40", "--perplexity", f"{DATA}/sample.txt", "--kv", "dmc(sink=0)", "--json")
        self.assertLess(json.loads(result.stdout)["bits_per_byte"], 5)

    def test_retrofits_a_gguf_file_in_its_attention(self):
        """From the file alone: its tokenizer goes through the corpus into the model, and the weights that are not trained stay."""
        source = model_files.gguf_of(Path(DATA)).write(self.root / "nano.gguf")
        recipe = {
            "corpus": {"prose": {"files": ["calibration.txt"]}},
            "training": {
                "batch_tokens": 256, "trained": "attention", "optimizer": {"learning_rate": 0.0001},
                "phases": [{"context": 128, "share": 1, "mixture": {"prose": 1}}],
                "dmc": {"compression": 2, "zero_out_steps": 2, "ramp_steps": 3, "solidify_steps": 2, "deciding_rate": 10}}}
        path, corpus, out = self.root / "gguf.json", self.root / "gguf-corpus", self.root / "gguf"
        path.write_text(json.dumps(recipe))
        kvlathe("retrofit", "corpus", "--recipe", path, "--data", DATA, "--tokenizer", source, "--out", corpus)
        kvlathe("retrofit", "dmc", "-m", source, "--recipe", path, "--corpus", corpus, "--out", out)
        base, trained = model_files.read_weights(DATA), model_files.read_weights(out / "cr-2")
        self.assertEqual(base.keys(), trained.keys())
        changed = {name for name in base if base[name] != trained[name]}
        attention = {name for name in base if ".self_attn." in name}
        self.assertEqual(changed, attention)
        text = f"{DATA}/sample.txt"
        bits = [json.loads(kvlathe("eval", "-m", model, "--perplexity", text, "--kv", kv, "--json").stdout)["bits_per_byte"]
                for model, kv in ((DATA, "none"), (out / "cr-2", "none"), (out / "cr-2", "dmc(sink=0)"))]
        # Seven short steps change little; heads in another order, or tokens of another tokenizer, would change all.
        self.assertLess(bits[1], bits[0] + 0.3)
        self.assertLess(bits[2], bits[0] + 0.3)

    def test_goes_on_after_an_interruption(self):
        process = subprocess.Popen([KVLATHE, *map(str, self.pretrain("cut", "--checkpoint-minutes", 0.001))],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while not (self.root / "cut" / "checkpoint.pt").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0)
        self.assertIn("goes on", output)
        n_steps = len(self.curve("cut"))
        self.assertGreater(n_steps, 0)
        kvlathe(*self.pretrain("cut"))
        curve = self.curve("cut")
        self.assertGreater(len(curve), n_steps)
        self.assertEqual([int(row["step"]) for row in curve], list(range(1, len(curve) + 1)))
        done = kvlathe(*self.pretrain("cut"), expect=2)
        self.assertIn("this run is done", done.stderr)

    def short_run(self, out, **training):
        """A run of few steps of the recipe with these keys in "training"."""
        recipe = json.loads(json.dumps(RECIPE))
        recipe["training"].update({"total_tokens": 3 * 4096, "validation_interval": 1000, **training})
        path = self.root / f"{out}.json"
        path.write_text(json.dumps(recipe))
        return ["retrofit", "pretrain", "--recipe", path, "--corpus", self.root / "corpus", "--out", self.root / out]

    def check_one_line(self, error, *parts):
        self.assertEqual(error.strip().count("\n"), 0, error)
        for part in parts:
            self.assertIn(part, error)

    def test_a_full_disk_leaves_the_last_good_checkpoint(self):
        kvlathe(*self.short_run("full"))
        files = {name: (self.root / "full" / name).read_bytes() for name in ("checkpoint.pt", "model.safetensors", "config.json")}
        longer = self.short_run("full", total_tokens=6 * 4096)
        error = kvlathe(*longer, expect=1, before=full_disk).stderr.splitlines()[-1]
        self.check_one_line(error, "full/checkpoint.pt: cannot write")
        for name, contents in files.items():
            self.assertEqual((self.root / "full" / name).read_bytes(), contents)
        self.assertEqual(list((self.root / "full").glob("*.tmp*")), [])
        kvlathe(*longer)
        self.assertEqual(len(self.curve("full")), 6)

    def test_a_loss_that_is_not_a_number_leaves_the_last_good_checkpoint(self):
        growing = {"learning_rate": 1, "weight_decay": 10, "warmup_share": 0, "final_share": 1}  # weights grow ninefold a step
        run = self.short_run("nan", total_tokens=200 * 4096, optimizer=growing)
        error = kvlathe(*run, "--checkpoint-minutes", 1e-6, expect=1).stderr.splitlines()[-1]
        self.check_one_line(error, "nan/checkpoint.pt: ", "step ", "lower the learning rate")
        self.assertFalse((self.root / "nan/model.safetensors").exists())
        # What is kept is finite: the run goes on from it, to the same end.
        before = (self.root / "nan/checkpoint.pt").read_bytes()
        again = kvlathe(*run, expect=1).stderr
        self.assertIn("going on from step", again)
        self.assertEqual((self.root / "nan/checkpoint.pt").read_bytes(), before)

    def test_a_foreign_checkpoint_is_refused_with_what_differs(self):
        kvlathe(*self.short_run("foreign"))
        before = (self.root / "foreign/checkpoint.pt").read_bytes()
        model = {**RECIPE["training"]["model"], "num_key_value_heads": 2}
        for changed, message in (({"seed": 4}, "of another recipe: seed is 3 there, 4 here"),
                                 ({"model": model}, "of another model: num_key_value_heads is 1 there, 2 here")):
            error = kvlathe(*self.short_run("foreign", **changed), expect=2).stderr
            self.check_one_line(error, "foreign/checkpoint.pt: the checkpoint is " + message)
        self.assertEqual((self.root / "foreign/checkpoint.pt").read_bytes(), before)

    def test_two_workers_train_what_one_trains(self):
        training = {"total_tokens": 10 * 4096, "micro_batch_tokens": 2048}
        kvlathe(*self.short_run("alone", **training), "-t", 1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{free.getsockname()[1]}"
        shared = [*self.short_run("shared", **training), "-t", 1, "--workers", 2, "--meet", place]
        processes = [subprocess.Popen([KVLATHE, *map(str, shared), "--worker", str(i)], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True) for i in (1, 0)]
        outputs = [process.communicate(timeout=300) for process in processes]
        if any("libgloo-dev" in error for _, error in outputs):
            self.skipTest("a build without gloo")
        self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        self.assertEqual(outputs[0][0], "")  # one of them speaks
        self.assertEqual(self.curve("shared"), self.curve("alone"))
        self.assertEqual(*((self.root / name / "model.safetensors").read_bytes() for name in ("shared", "alone")))

    def test_refuses_wrong_input_in_one_line(self):
        for arguments, status in (
            (["retrofit"], 2),
            (["retrofit", "pretrain"], 2),
            (["retrofit", "corpus", "--recipe", self.recipe, "--data", "/nonexistent",
              "--tokenizer", self.root / "tok", "--out", self.root / "x"], 1),
            (["retrofit", "pretrain", "--recipe", "/nonexistent", "--corpus", self.root / "corpus",
              "--out", self.root / "x"], 1),
            (["retrofit", "pretrain", "--recipe", self.recipe, "--corpus", self.root,
              "--out", self.root / "x"], 1),
            (self.pretrain("/dev/null/x"), 1),
            (["retrofit", "fisher", "-m", DATA], 2),
            (["retrofit", "fisher", "-m", DATA, "--text", "/nonexistent"], 1),
            (["retrofit", "fisher", "-m", DATA, "--text", f"{DATA}/sample.txt", "--tokens", 2], 2),
            (self.pretrain("x", "--minutes", "-1"), 2),
            (self.pretrain("x", "--workers", 2), 2),
            (self.pretrain("x", "--worker", 1), 2),
        ):
            result = kvlathe(*arguments, expect=status)
            self.assertEqual(result.stderr.strip().count("\n"), 0, result.stderr)
            self.assertTrue(result.stderr.startswith("kvlathe: "), result.stderr)


if __name__ == "__main__":
    unittest.main()
