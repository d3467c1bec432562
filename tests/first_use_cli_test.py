"""What somebody meets who uses the command for the first time, or comes to it from llama.cpp: wrong words
are answered with the right ones, what cannot be is refused before anything takes long, and what is
surprising is said.

Usage: first_use_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import re
import resource
import shutil
import subprocess

import cli_support
import model_files
from cli_support import KVLATHE, MODEL

SAMPLE = (MODEL / "sample.txt").read_text()


class Words(cli_support.CommandLineCase):
    """Of the command line."""

    def test_unknown_words_name_the_nearest(self):
        self.assert_refused(2, "unknown verb 'rnu'; did you mean run?", "rnu", "-m", MODEL)
        self.assert_refused(2, "unknown verb 'atention'; did you mean attention?; kvlathe bench --help", "bench",
                            "atention")
        error = self.assert_refused(2, "unknown verb 'frobnicate'; kvlathe --help", "frobnicate")
        self.assertNotIn("did you mean", error)
        run = ["run", "-m", MODEL, "-p", "x"]
        self.assert_refused(2, "unknown option --max-token; did you mean --max-tokens?; see kvlathe run --help", *run,
                            "--max-token", 3)
        self.assert_refused(2, "unknown option --max-token; did you mean --max-tokens?", *run, "--max-token=3")
        self.assert_refused(2, "--modl; did you mean --model?; see kvlathe bench model --help", "bench", "model",
                            "--modl", MODEL)
        self.assertNotIn("did you mean", self.assert_refused(2, "unknown option --frobnicate", *run, "--frobnicate"))
        self.assert_refused(2, "did you mean --help?; see kvlathe --help", "--hlep")
        self.assert_refused(2, "-m comes behind a verb, as in kvlathe run -m", "-m", MODEL, "-p", "x")
        self.assert_refused(2, "see kvlathe run --help", *run, "-n", "few")
        self.assertLess(len(self.assert_refused(2, "--ctx-size", *run, "-c", 0)), 100)

    def test_options_of_llama_cpp_say_what_ours_is(self):
        run = ["run", "-m", MODEL, "-p", "x"]
        for option, meaning in (("--n-predict", "is called -n or --max-tokens here"), ("-ngl", "computes on the CPU"),
                                ("-ctk", "is part of --kv here"), ("--cache-type-v", "is part of --kv here"),
                                ("-fa", "leave it out"), ("-cnv", "kvlathe chat"),
                                ("--temperature", "is called --temp here")):
            error = self.assert_refused(2, meaning, *run, option, 8)
            self.assertTrue(error.startswith(f"kvlathe: {option} "), error)
        self.assert_refused(2, "is called -n or --max-tokens here", *run, "--n-predict=8")
        # What they call the options that are common to both, is understood.
        for options in (["-n", 1], ["-t", 1, "-n", 1], ["--ctx-size", 64, "-n", 1]):
            self.assertEqual(self.json_of(*run, *options)["generated_tokens"], 1)

    def test_value_that_looks_like_an_option_is_text(self):
        for text in ("--frobnicate", "--n-predict", "-ngl", "--help", "--", "-1", "--model"):
            done = self.run_verb("run", "-m", MODEL, "-n", 1, "-p", text)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            self.assertTrue(done.stdout.decode().startswith(text))
        self.assert_refused(2, "--prompt", "run", "-m", MODEL, "-p")

    def test_lengths(self):
        run = ["run", "-m", MODEL, "-p", "The carriage", "-c", 40]
        error = self.assert_refused(2, "give at least 1, or -1", *run, "-n", 0)
        self.assertLess(len(error), 160)
        self.assert_refused(2, "give at least 1, or -1", *run, "-n", -2)
        self.assert_refused(2, "'1.5' is not a whole number", *run, "-n", 1.5)
        whole = self.json_of(*run, "-n", -1, "--ignore-eos")
        self.assertEqual(whole["prompt_tokens"] + whole["generated_tokens"], 40)
        self.assertEqual(whole["finish_reason"], "length")
        ended = self.json_of(*run, "-n", -1, "--logit-bias", "2=100")
        self.assertEqual((ended["finish_reason"], ended["generated_tokens"]), ("stop", 0))
        self.assert_refused(2, "the context is 40", *run, "-n", 40)

    def test_prompt_from_standard_input(self):
        text = "The carriage stood"
        given = self.json_of("run", "-m", MODEL, "-n", 4, "-p", text)
        for options in ([], ["-f", "-"]):
            piped = self.json_of("run", "-m", MODEL, "-n", 4, *options, stdin=text.encode())
            self.assertEqual((piped["ids"], piped["prompt_tokens"]), (given["ids"], given["prompt_tokens"]))
            self.assert_refused(2, "standard input: the prompt is empty; give", "run", "-m", MODEL, *options)
        # A given prompt leaves standard input alone.
        beside = self.json_of("run", "-m", MODEL, "-n", 4, "-p", text, stdin=b"Other text")
        self.assertEqual(beside["ids"], given["ids"])
        self.assert_refused(2, "-p: the prompt is empty; give", "run", "-m", MODEL, "-p", "", stdin=b"Other text")
        empty = self.folder / "empty.txt"
        empty.write_text("")
        self.assert_refused(2, f"{empty}: the prompt is empty; give", "run", "-m", MODEL, "-f", empty)
        self.assert_refused(2, "--prompt excludes --file", "run", "-m", MODEL, "-p", text, "-f", "-")

    def test_ids_of_all_forms_are_decoded(self):
        decode = ["tokenize", "-m", MODEL, "--decode"]
        ids = self.json_of("tokenize", "-m", MODEL, "--no-bos", stdin=b"The carriage stood")["ids"]
        plain = " ".join(map(str, ids))
        for text in (json.dumps({"ids": ids}), json.dumps(ids), json.dumps(ids, indent=1), plain, plain + "\n",
                     plain.replace(" ", ","), plain.replace(" ", "\n")):
            done = self.run_verb(*decode, stdin=text.encode())
            self.assertEqual((done.returncode, done.stdout), (0, b"The carriage stood"), text)
        self.assertEqual(self.run_verb(*decode).stdout, b"")
        for text, needle in (("300 x", "'x' at byte 4"), ("4096", "from 0 to 4095"), ("-1", "'-1'"), ("1.5", "'1.5'"),
                             ("99999999999999999999", "is not a token id"), ("[[300]]", "'[300]'"),
                             ("[300, 301", "no closing bracket"), ('{"ids":[300', "a list"), ('{"id":[300]}', '"ids"'),
                             ('{"ids":300}', '"ids"'), ('{"ids":["300"]}', "is not a token id")):
            self.assert_refused(2, needle, *decode, stdin=text.encode())


class Places(cli_support.CommandLineCase):
    """Where no model is."""

    def test_paths_that_are_no_model(self):
        text = self.folder / "novel.txt"
        text.write_text(SAMPLE[:1000])
        verbs = [["run", "-p", "x"], ["chat", "--chat-template", "chatml"], ["compare", "--text", text],
                 ["eval", "--perplexity", text], ["inspect"], ["calibrate", "-o", self.folder / "basis.safetensors"],
                 ["tune", "--out", self.folder / "profile.json"]]
        for verb in verbs:
            self.assert_refused(1, "not a GGUF file", *verb, "-m", text)
            self.assert_refused(1, "nowhere: no such file or directory", *verb, "-m", self.folder / "nowhere")
            self.assert_refused(1, "not a model directory (it has no config.json)", *verb, "-m", self.folder)
        self.assertEqual(list(self.folder.iterdir()), [text])
        self.assertIn("not a GGUF file", self.run_verb("tokenize", "-m", text).stderr.decode())

    def test_weights_of_pytorch(self):
        place = model_files.copy_first_layers(MODEL, 1, self.folder / "model")
        (place / "model.safetensors").rename(place / "pytorch_model.bin")
        self.assert_refused(1, "convert them to safetensors", "run", "-m", place, "-p", "x")

    def test_directory_of_gguf_files(self):
        (self.folder / "model.Q4_K_M.gguf").write_bytes(b"GGUF")
        self.assert_refused(1, "it holds model.Q4_K_M.gguf: give that file", "run", "-m", self.folder, "-p", "x")


class OneLayer(cli_support.CommandLineCase):
    """A model without texts that is soon calibrated, and a user cache of its own."""

    def setUp(self):
        super().setUp()
        self.model = model_files.copy_first_layers(MODEL, 1, self.folder / "model")
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")

    def kept(self, pattern="*"):
        return list(self.folder.glob("cache/*/" + pattern))

    def test_specs_are_refused_before_the_model_is_opened(self):
        for kv, needle in (("fcd", "unknown stage 'fcd'"), ("fdc(rate=2)", "rate"), ("h2o+kvquant", "add a basis"),
                           ("fdc(rate=0.5,round=8)", "round is 16 or 32"), ("h2o(score=exact)", "leave score out"),
                           ("palu(rate=0.5,group=2)+h2o", "entries of each head"), ("", "--kv")):
            for verb in (["run", "-p", "x"], ["compare"], ["eval", "--task", "passkey"], ["inspect"]):
                self.assert_refused(2, needle, *verb, "-m", self.folder / "nowhere", "--kv", kv)

    def test_nothing_is_calibrated_for_what_is_refused(self):
        good = ["--kv", "fdc(rate=0.5)", "--kv", "lathe(ratio=4)"]
        compare = ["compare", "-m", self.model, *good]
        self.assert_refused(2, "unknown stage 'fcd'", *compare, "--kv", "fcd")
        self.assert_refused(2, "--kv 'palu(rate=0.5,group=3)': palu(group=3): the model has 2 KV heads", *compare,
                            "--kv", "palu(rate=0.5,group=3)")
        self.assert_refused(2, "add a basis", *compare, "--kv", "h2o+kvquant")
        self.assert_refused(1, "accuracy needs a tuned profile", *compare, "--kv", "kivi(accuracy=0.9)")
        self.assert_refused(1, "no.txt", *compare, "--text", self.folder / "no.txt")
        self.assert_refused(2, "context", *compare, "-c", 5000)
        long = self.folder / "long.txt"
        long.write_text(SAMPLE)
        run = ["run", "-m", self.model, "--kv", "lathe(ratio=4)"]
        self.assert_refused(2, "but the context is 1024; shorten", *run, "-f", long)
        self.assert_refused(2, "but the context is 1024; shorten", *run, "-f", long, "-n", -1)
        self.assert_refused(2, "but the context is 1024; shorten", *run, "-p", "x", "-n", 1024)
        self.assert_refused(2, "run takes one --kv", *run[:3], "-p", "x", *good)
        self.assertEqual(self.kept(), [])

    def test_calibrates_on_the_shared_text_once(self):
        run = ["run", "-m", self.model, "-p", "The carriage", "-n", 2, "--kv", "lathe(ratio=4)"]
        first = self.run_verb(*run)
        self.assertEqual(first.returncode, 0, first.stderr.decode())
        self.assertRegex(first.stderr.decode(), rf"kvlathe: calibrating {self.model} on [^\n]*share/(kvlathe/)?"
                         rf"calibration.txt, once; .*: kvlathe calibrate -m {self.model} --text FILE\n")
        kept, = self.kept("basis-*")
        self.assertIn(f"calibration.txt; kept in {kept}\n", first.stderr.decode())
        second = self.run_verb(*run)
        self.assertEqual(second.stdout, first.stdout)
        self.assertNotIn(b"calibrat", second.stderr)
        # A text of its own comes first.
        (self.model / "calibration.txt").write_text(SAMPLE[:20000])
        own = self.run_verb(*run)
        self.assertIn(f"calibrating {self.model} on {self.model / 'calibration.txt'}, once", own.stderr.decode())
        # The context that ratio is about is the model's, not that of -c.
        self.assertNotIn(b"ratio holds", own.stderr)
        note = self.run_verb(*run, "-c", 256)
        self.assertRegex(note.stderr.decode(), r"kvlathe: note: --kv 'lathe\(ratio=4\)': ratio holds at a "
                         r"context of 1024; at -c 256 the cache is \d\.\d\d times smaller than 16 bits\n")
        self.assertEqual(note.stderr.count(b"ratio holds"), 1)

    def calibrations_of(self, *arguments):
        done = self.run_verb(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return [line for line in done.stderr.decode().splitlines() if line.startswith("kvlathe: calibrating ") and ", once" in line]

    def test_one_calibration_serves_all_that_is_asked_for(self):
        text = self.folder / "text.txt"
        text.write_text(SAMPLE[:2500])
        compare = ["compare", "-m", self.model, "-c", 256, "--no-latency", "--text", text]
        caches = ("kvquant(bits=4)", "lathe(ratio=4)", "lathe(ratio=4,keys=before)", "palu(rate=0.5)", "zack(rate=0.5)+kvquant(bits=4)")
        said = self.calibrations_of(*compare, *(part for kv in caches for part in ("--kv", kv)))
        self.assertEqual(len(said), 1, said)
        # Another context and another verb take what is kept, at any of the caches.
        for kv in caches:
            self.assertEqual(self.calibrations_of("run", "-m", self.model, "-p", "x", "-n", 1, "--kv", kv), [])
        self.assertEqual(len(self.kept("basis-*")), 1)

    def test_what_cannot_be_kept_is_said_before_the_work(self):
        (self.folder / "cache").write_text("no directory")
        done = self.run_verb("inspect", "-m", self.model, "--kv", "kvquant(bits=4)")
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        said = done.stderr.decode()
        self.assertIn("to do without: --basis FILE", said)
        before, behind = said.index("the calibration that begins cannot be kept: "), said.index("the calibration is not kept: ")
        self.assertLess(before, behind)

    def test_what_is_cheap_takes_no_gradients(self):
        inspect = ["inspect", "-m", self.model, "--kv"]
        self.assertEqual(len(self.calibrations_of(*inspect, "zack(rate=0.5)")), 1)
        cheap, = self.kept("basis-*")
        said, = self.calibrations_of(*inspect, "lathe(ratio=4)")
        self.assertIn("once (what is kept has no gradients); ", said)
        whole, = self.kept("basis-*")  # in place of the other
        self.assertNotEqual(whole, cheap)
        self.assertEqual(self.calibrations_of(*inspect, "zack(rate=0.5)"), [])

    def test_rows_before_rope_serve_every_context(self):
        config = self.model / "config.json"
        config.write_text(config.read_text().replace('"max_position_embeddings": 1024', '"max_position_embeddings": 4096'))
        before, after = "lathe(ratio=4,keys=before)", "lathe(ratio=4)"
        inspect = ["inspect", "-m", self.model, "--kv"]
        self.assertEqual(len(self.calibrations_of(*inspect, before, "-c", 2048)), 1)
        self.assertEqual(self.calibrations_of(*inspect, after, "-c", 300), [])
        self.assertEqual(self.calibrations_of(*inspect, before), [])
        said, = self.calibrations_of(*inspect, after)
        self.assertIn("once (what is kept is for contexts of 2048 tokens); ", said)
        self.assertEqual(len(self.kept("basis-*")), 2)

    def test_accuracy_of_lathe_is_predicted_until_tune_has_measured(self):
        asked = "lathe(accuracy=0.99,scales=static)"
        run = ["run", "-m", self.model, "-p", "The carriage", "-n", 2, "--json", "--kv", asked]
        first = self.run_verb(*run)
        self.assertEqual(first.returncode, 0, first.stderr.decode())
        answer = json.loads(first.stdout)
        self.assertEqual(answer["kv"], asked)
        self.assertRegex(answer["kv_resolved"], r"^lathe\(ratio=\d+(\.\d)?,.*scales=static")
        self.assertLessEqual(answer["predicted_kl"], 0.01006)
        ratio = re.search(r"ratio=([0-9.]+)", answer["kv_resolved"])[1]
        self.assertRegex(first.stderr.decode(), rf"kvlathe: note: --kv '{re.escape(asked)}': lathe\(ratio={ratio},scales=static\) "
                         rf"has a predicted KL of 0\.\d+ nats per token; to confirm it by measuring: kvlathe tune -m {self.model} "
                         r"--accuracy 0.99 --kv 'lathe\(scales=static\)'\n")
        # The ratio alone is the same cache, and every verb gives the same answer.
        given = self.json_of("inspect", "-m", self.model, "--kv", f"lathe(ratio={ratio},scales=static)")
        self.assertEqual([given[key] for key in ("kv_resolved", "predicted_kl")],
                         [answer[key] for key in ("kv_resolved", "predicted_kl")])
        text = self.folder / "text.txt"
        text.write_text(SAMPLE[:2500])
        compared = self.json_of("compare", "-m", self.model, "-c", 256, "--text", text, "--kv", "none", "--kv", asked)["rows"]
        self.assertNotIn("predicted_kl", compared[0])
        self.assertEqual(compared[1]["kv_resolved"], answer["kv_resolved"])
        self.assertEqual(compared[1]["kv"], asked)
        self.assert_refused(1, "even ratio=1 has a predicted KL", *run[:-1], "lathe(accuracy=1,scales=static)")
        # What tune found comes before what is predicted, for what it has searched.
        self.json_of("tune", "-m", self.model, "-c", 256, "--perplexity", text, "--accuracy", 0.99, "--kv", "lathe(scales=static)")
        self.assertNotIn("predicted_kl", self.json_of(*run))
        self.assertIn("predicted_kl", self.json_of(*run[:-1], "lathe(accuracy=0.98)"))
        profile, = self.kept("profile-*")
        self.assert_refused(2, "lathe(scales=static) at 0.99; run kvlathe tune", *run[:-1], "lathe(accuracy=0.98)", "--profile", profile)

    def test_accuracy_that_cannot_be_predicted_says_why(self):
        run = ["run", "-m", self.model, "-p", "x", "-n", 2, "--kv"]
        for kv, why in (("lathe(accuracy=0.9)+snapkv(keep=0.5)", "for a KL is predicted of lathe alone"),
                        ("lathe(accuracy=0.9,bits=16)", "for a KL is predicted of lathe where it splits bits"),
                        ("fdc(accuracy=0.9)", "for a KL is predicted of lathe alone")):
            error = self.assert_refused(1, f"--kv '{kv}': accuracy needs a tuned profile, {why}", *run, kv)
            self.assertIn("--accuracy 0.9 --kv", error)
        self.assertEqual(self.kept(), [])
        short = self.folder / "short.txt"
        short.write_text(SAMPLE[:2000])  # one sequence, of which nothing can be held back
        basis = self.folder / "basis.safetensors"
        self.json_of("calibrate", "-m", self.model, "--text", short, "-o", basis)
        self.assert_refused(1, "the calibration text is too short to hold back a part of it", *run, "lathe(accuracy=0.9)", "--basis", basis)

    def test_compares_on_the_models_text_or_the_shared_one(self):
        compare = ["compare", "-m", self.model, "-c", 256, "--kv", "none"]
        shared = self.json_of(*compare)
        self.assertRegex(shared["text"], "share/(kvlathe/)?sample.txt$")
        self.assertGreater(shared["tokens"], 5000)
        own = self.model / "sample.txt"
        own.write_text(SAMPLE[:3000])
        self.assertEqual(self.json_of(*compare)["text"], str(own))
        self.assertEqual(self.json_of("compare", "-m", MODEL, "-c", 256, "--kv", "none")["text"],
                         str(MODEL / "sample.txt"))

    def test_texts_that_are_cut_say_so(self):
        run = ["run", "-m", MODEL, "-p", "The carriage", "-n", 3]
        self.assertIn("3 generated (the text is cut there; -n says how many);", self.run_verb(*run).stderr.decode())
        ended = self.run_verb(*run, "--logit-bias", "2=100").stderr.decode()
        self.assertIn("0 generated; ", ended)
        chat = ["chat", "-m", MODEL, "--chat-template", "chatml"]
        said = self.run_verb(*chat, "-n", 3, stdin=b"Who are you?\n").stderr.decode()
        self.assertIn("; -n has cut 1 of the answers\n", said)
        self.assertNotIn("has cut", self.run_verb(*chat, "--logit-bias", "2=100", stdin=b"Who?\n").stderr.decode())

    def test_models_that_are_no_files_are_told_from_those_that_are_not_there(self):
        self.assert_refused(2, "/dev/null: neither a regular file nor a directory", "run", "-m", "/dev/null", "-p", "x")

    def test_a_file_that_may_not_grow_is_an_error(self):
        session = self.folder / "session"
        done = subprocess.run([KVLATHE, "run", "-m", MODEL, "-p", "The carriage", "-n", "200", "--ignore-eos",
                               "--save-session", session], stdin=subprocess.DEVNULL, capture_output=True,
                              env=self.environment, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (51200, 51200)))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("File too large", done.stderr.decode())
        self.assertEqual(list(self.folder.glob("session*")), [])

    def test_ratios_out_of_reach_are_told_with_what_the_spec_has(self):
        for kv, advice in (("lathe(ratio=10,scales=token)+int8", "take a quantizer of fewer bits"),
                           ("eigen(ratio=100)", "add a quantizer")):
            run = ["run", "-m", MODEL, "--kv", kv, "-p", "x"]
            self.run_verb(*run)  # calibrates, and says so
            self.assert_refused(2, advice, *run)

    def test_small_caches_say_that_blocks_are_filled(self):
        said = self.run_verb("run", "-m", self.model, "-p", "x", "-n", 2).stderr.decode()
        self.assertIn(", too short to tell its share of the 16-bit cache (blocks are filled by 64 tokens)\n", said)
        full = self.run_verb("run", "-m", self.model, "-p", "x", "-n", 511, "--kv", "int8", "--ignore-eos")
        self.assertRegex(full.stderr.decode(), r", \d\d\.\d\d% of the 16-bit cache\n$")


class Loss(cli_support.CommandLineCase):
    """A cache far from the uncompressed one."""

    def setUp(self):
        super().setUp()
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")
        self.basis = self.folder / "basis.safetensors"
        self.json_of("calibrate", "-m", MODEL, "--random-tokens", 256, "-o", self.basis)
        self.run_with = ["run", "-m", MODEL, "-p", "The carriage", "-n", 2, "--basis", self.basis, "--kv"]

    # A processor without BF16 instructions has a note in front of them.
    def warnings_of(self, kv):
        run = self.run_verb(*self.run_with, kv)
        self.assertEqual(run.returncode, 0, run.stderr.decode())
        # Standard output is what was generated and nothing else.
        self.assertTrue(run.stdout.startswith(b"The carriage"))
        return [line for line in run.stderr.decode().splitlines() if "warning" in line]

    def kept(self):
        return sorted(self.folder.glob("cache/*/loss-*"))

    def test_large_loss_is_said_and_measured_once(self):
        said, = self.warnings_of("fdc(rate=0.9)")
        self.assertRegex(said, r"^kvlathe: warning: --kv 'fdc\(rate=0\.9\)' changes what this model says: on a short text it is "
                         r"\d\.\d\d nats per token away from the uncompressed cache .*, and \d\d% of its likeliest tokens are others; "
                         r"take a smaller rate or ratio, or kivi\(bits=4\), or see kvlathe compare$")
        path, = self.kept()
        measured = json.loads(path.read_text())
        self.assertAlmostEqual(measured["kl"], 0.8, delta=0.6)
        # What is said again was read, not measured.
        path.write_text(json.dumps(dict(measured, kl=7.25)))
        self.assertIn("it is 7.25 nats per token away", self.warnings_of("fdc(rate=0.9)")[0])
        # Another type of rows, and another spec, are measured on their own.
        self.json_of(*self.run_with, "fdc(rate=0.9)", "--dtype", "f32")
        self.assertEqual(len(self.kept()), 2)
        self.assertEqual(len(self.json_of(*self.run_with, "fdc(rate=0.8)")["ids"]), 2)
        self.assertEqual(len(self.kept()), 3)

    def test_any_method_is_measured(self):
        for kv in ("h2o(keep=0.02)", "window(size=4)", "pool(n=16)"):
            said, = self.warnings_of(kv)
            self.assertIn("; take kivi(bits=4), or lathe(ratio=4), which is calibrated first, or see kvlathe compare", said)
        n_kept = len(self.kept())
        for kv in ("fdc(rate=0.1)", "kivi(bits=4)", "q8_0", "snapkv(keep=0.9)", "none"):
            self.assertEqual(self.warnings_of(kv), [], kv)
        self.assertEqual(len(self.kept()), n_kept + 4)  # nothing is lost with none
        for path in self.kept():
            self.assertLess(json.loads(path.read_text())["tokens"], 160)

    def test_damaged_and_unwritable_files_are_no_error(self):
        said = self.warnings_of("fdc(rate=0.9)")
        path, = self.kept()
        good = path.read_text()
        for rubbish in ("rubbish", "[1]", '{"kl": "much", "top1_agreement": 1}', '{"kl": -1, "top1_agreement": 1}'):
            path.write_text(rubbish)
            damaged, again = self.warnings_of("fdc(rate=0.9)")
            self.assertIn(f"{path}", damaged)
            self.assertIn("; measured again", damaged)
            self.assertEqual([again], said)
            self.assertEqual(path.read_text(), good)
        shutil.rmtree(self.folder / "cache")
        (self.folder / "cache").write_text("no directory")
        unkept, again = self.warnings_of("fdc(rate=0.9)")
        self.assertIn("what --kv 'fdc(rate=0.9)' loses is not kept and will be measured again: ", unkept)
        self.assertEqual([again], said)
        del self.environment["XDG_CACHE_HOME"]
        self.environment["HOME"] = ""
        self.assertEqual(self.warnings_of("fdc(rate=0.9)"), said)

    def test_what_measures_or_refuses_measures_nothing_before(self):
        text = self.folder / "text.txt"
        text.write_text(SAMPLE[:3000])
        for verb in (["compare", "-c", 256, "--text", text], ["eval", "-c", 256, "--perplexity", text],
                     ["bench", "model", "-p", 16, "-n", 0, "-r", 1]):
            done = self.run_verb(*verb, "-m", MODEL, "--basis", self.basis, "--kv", "fdc(rate=0.9)")
            self.assertNotIn(b"changes what this model says", done.stderr)
        self.assert_refused(1, "no.session", "run", "-m", MODEL, "--basis", self.basis, "--kv", "fdc(rate=0.9)",
                            "--load-session", self.folder / "no.session")
        self.assertEqual(self.kept(), [])


if __name__ == "__main__":
    cli_support.main()
