"""How far free generation under a cache departs from the uncompressed model's, through the command line.

Usage: drift_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import cli_support
from cli_support import MODEL

SAMPLE = (MODEL / "sample.txt").read_text()
FIELDS = ["kv", "kv_resolved", "kv_fraction", "prompts", "prompt_tokens", "tokens", "parted_at", "parted_at_median",
          "never_parted", "kl", "kl_stderr", "kl_over_steps", "top1_agreement", "text_nll", "own_nll", "repeats",
          "none_repeats"]


class Drift(cli_support.CommandLineCase):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"
        self.text.write_text(SAMPLE[:6000])

    def drift(self, *options, tokens=96, prompts=2):
        return ["eval", "-m", MODEL, "--drift", self.text, "--drift-tokens", tokens, "--drift-prompts", prompts,
                "--drift-prompt-tokens", 160, *options]

    def test_rows_of_several_caches(self):
        kvs = ["none", "kivi(bits=4,run=64)", "kivi(bits=2,run=64)"]
        result = self.json_of(*self.drift(*(option for kv in kvs for option in ("--kv", kv))))
        self.assertEqual(result["model"], str(MODEL))
        none, mild, strong = result["rows"]
        for kv, row in zip(kvs, result["rows"]):
            self.assertEqual(list(row), FIELDS)
            self.assertEqual((row["kv"], row["prompts"], row["prompt_tokens"], row["tokens"]), (kv, 2, 160, 96))
            self.assertEqual(len(row["kl_over_steps"]), 8)
            self.assertAlmostEqual(sum(row["kl_over_steps"]) / 8, row["kl"], places=9)
            self.assertEqual(row["none_repeats"], none["repeats"])
        self.assertEqual((none["parted_at"], none["parted_at_median"], none["never_parted"], none["top1_agreement"],
                          none["text_nll"], none["own_nll"]), (96, 96, 2, 1, None, None))
        self.assertLess(none["kl"], 1e-9)
        self.assertGreater(none["kv_fraction"], 1)
        self.assertLess(none["kl"], mild["kl"])
        self.assertLess(mild["kl"], strong["kl"])
        self.assertLess(strong["kv_fraction"], mild["kv_fraction"])
        self.assertLess(strong["parted_at"], 96)
        self.assertLess(strong["top1_agreement"], 1)
        # Which of the two texts is likelier depends on where they part; they are not the same.
        self.assertGreater(min(strong["text_nll"], strong["own_nll"]), 0)
        self.assertNotEqual(strong["text_nll"], strong["own_nll"])
        self.assertGreater(strong["kl_stderr"], 0)

    def test_parts_where_run_parts(self):
        # What `run` generates from the same prompt, with and without the cache.
        kv = "kivi(bits=2,run=64)"
        ids = self.json_of("tokenize", "-m", MODEL, stdin=self.text.read_bytes())["ids"][:160]
        decoded = self.run_verb("tokenize", "-m", MODEL, "--decode", stdin=" ".join(map(str, ids[1:])).encode())
        prompt = decoded.stdout.decode()
        self.assertEqual(self.json_of("tokenize", "-m", MODEL, stdin=prompt.encode())["ids"], ids)
        run = ["run", "-m", MODEL, "-p", prompt, "-n", 96, "--ignore-eos", "--deterministic", "--kv"]
        own, free = (self.json_of(*run, spec)["ids"] for spec in ("none", kv))
        differ = [a != b for a, b in zip(own, free)]
        row = self.json_of(*self.drift("--deterministic", "--kv", kv, prompts=1))
        self.assertEqual(row["parted_at"], differ.index(True) if any(differ) else 96)
        self.assertIsNone(row["kl_stderr"])

    def test_table(self):
        done = self.run_verb(*self.drift("--kv", "kivi(bits=2,run=64)"))
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        lines = done.stdout.decode().splitlines()
        self.assertEqual(lines[0], "2 prompts of 160 tokens, 96 tokens generated behind each")
        self.assertEqual([line.startswith("kivi(bits=2,run=64) ") for line in lines].count(True), 2)

    def test_refusals(self):
        self.assert_refused(2, "prompts of 160, but 900 are asked for", *self.drift(prompts=900))
        self.assert_refused(2, "need a context of 1060, but it is 1024", *self.drift(tokens=900))
        self.assert_refused(2, "but it is 200", *self.drift("-c", 200))
        self.assert_refused(2, "--drift-tokens", *self.drift(tokens=7))
        self.assert_refused(1, "give fewer --drift-prompts", *self.drift("--kv-memory", "100KiB"))
        self.assert_refused(1, "no.txt", "eval", "-m", MODEL, "--drift", self.folder / "no.txt")
        self.assert_refused(2, "give one of --perplexity FILE, --kl FILE, --drift FILE and --task NAME",
                            *self.drift("--kl", self.text))
        self.assert_refused(2, "--drift", "eval", "-m", MODEL, "--kl", self.text, "--drift-tokens", 64)


if __name__ == "__main__":
    cli_support.main()
