"""The command line as a user meets it: what goes right prints what the contract says, and what goes
wrong gives exit status 2 (usage) or 1 (runtime) and one line on standard error.

Usage: cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess

import cli_support
import model_files
from cli_support import CACHE, KVLATHE, MODEL, ChatTerminal

TEXT = MODEL / "calibration.txt"
FEW_TOKENS = 256  # for a calibration whose result is not looked at closely


class CommandLine(cli_support.CommandLineCase):
    def calibrated(self, *options):
        """A basis of a few random tokens, made once for all tests that ask for the same."""
        path = CACHE / f"basis{'_'.join(options)}.safetensors"
        if not path.exists():
            self.json_of("calibrate", "-m", MODEL, "--random-tokens", FEW_TOKENS, *options, "-o", path)
        return path

    # What goes right.

    def test_compare_prints_the_contract(self):
        result = self.json_of("compare", "-m", MODEL, "-c", 256, "--text", TEXT, "--kv", "none",
                              "--kv", "fdc(rate=0)", "--kv", "fdc(rate=0.25)", "--kv", "fdc(rate=0.5)",
                              "--kv", "fdc(rate=0.5,ranks=uniform)")
        self.assertLessEqual({"model", "text", "tokens", "rows"}, result.keys())
        rows = result["rows"]
        fields = {"kv", "kv_resolved", "kv_fraction", "kv_bytes_per_token", "perplexity",
                  "bits_per_byte", "kl", "kl_stderr", "top1_agreement", "ttft_ms", "tbt_ms"}
        for row in rows:
            self.assertLessEqual(fields, row.keys())
        none, full, quarter, half, uniform = rows
        self.assertEqual(none["kl"], 0)
        self.assertLess(full["kl"], 1e-3)  # full rank is none, in BF16
        self.assertLess(full["kl"], quarter["kl"])
        self.assertLess(quarter["kl"], half["kl"])
        self.assertLess(half["kv_fraction"], quarter["kv_fraction"])
        self.assertLess(abs(uniform["kv_fraction"] - half["kv_fraction"]), 0.03)

    def test_quantised_caches_lose_what_their_bits_say(self):
        kvs = ["none", "int8", "kivi(bits=4,group=64)", "gear(bits=2)", "kivi(bits=2,group=64)"]
        arguments = sum((["--kv", kv] for kv in kvs), [])
        rows = {row["kv"]: row for row in self.json_of("compare", "-m", MODEL, *arguments)["rows"]}
        kl = [rows[kv]["kl"] for kv in kvs]
        self.assertEqual(kl, sorted(kl))
        self.assertLess(rows["kivi(bits=2,group=64)"]["kl"], 0.02)
        for kv, most in (("int8", 0.6), ("kivi(bits=4,group=64)", 0.36), ("gear(bits=2)", 0.33),
                         ("kivi(bits=2,group=64)", 0.23)):
            self.assertLess(rows[kv]["kv_fraction"], most)
        arguments = ["--kv", "kvquant", "--kv", "kvquant(bits=2)"]
        four, two = self.json_of("compare", "-m", MODEL, *arguments)["rows"]
        self.assertLess(four["kl"], 1e-3)
        self.assertLess(two["kl"], 0.01)
        self.assertLess(four["kv_fraction"], 0.34)
        self.assertLess(two["kv_fraction"], 0.22)
        said = self.json_of("run", "-m", MODEL, "--kv", "gear(bits=2)", "-p", "The carriage", "-n", 150,
                            "--ignore-eos")
        self.assertGreater(said["kv_parts"]["run_records"], 0)

    def test_ratio_holds_behind_any_retention(self):
        kvs = {"palu(ratio=3,round=16)+snapkv(keep=0.5)": 3, "lathe(ratio=6,keys=before)+snapkv(keep=0.5)": 6,
               "palu(ratio=3,round=16)+h2o(keep=0.5)+kivi(bits=4)": 3, "lathe(ratio=4)+h2o(keep=0.5)": 4}
        arguments = sum((["--kv", kv] for kv in kvs), [])
        rows = self.json_of("compare", "-m", MODEL, "--no-latency", *arguments)["rows"]
        for row in rows:  # windows of the full context, half of it prompt
            self.assertLessEqual(row["kv_fraction"] * kvs[row["kv"]], 1, row["kv"])
        for kv, ratio in kvs.items():  # all of it prompt
            self.assertLessEqual(self.json_of("inspect", "-m", MODEL, "--kv", kv)["kv_bytes"]["kv_fraction"] * ratio, 1, kv)

    def test_full_rank_is_none_in_f32(self):
        basis = self.calibrated("--dtype", "f32", "--across-heads", "--outputs")
        for kv in ("fdc(rate=0)", "spectral", "spectral(heads=own,centre=on)", "lathe(rate=0)", "lathe(rate=0,keys=before)", "palu(rate=0,group=2)",
                   "palu(rate=0,group=2,whiten=off)"):
            result = self.json_of("eval", "-m", MODEL, "-c", 128, "--dtype", "f32", "--kl",
                                  self.short_text(), "--basis", basis, "--kv", kv)
            self.assertLess(result["kl"], 1e-6, kv)
        self.assertLessEqual({"kv", "kv_fraction", "perplexity", "bits_per_byte", "kl", "tokens"},
                             result.keys())

    def test_kl_to_another_model(self):
        text = self.short_text()
        evaluate = ["eval", "-m", MODEL, "-c", 128, "--deterministic", "--kv", "int8", "--kl", text]
        itself = self.json_of(*evaluate)
        self.assertEqual(self.json_of(*evaluate, "--reference", MODEL), itself)
        shallow = model_files.copy_first_layers(MODEL, 2, self.folder / "shallow")
        other = self.json_of(*evaluate, "--reference", shallow)
        self.assertGreater(other["kl"], itself["kl"] + 0.1)
        self.assertEqual(other["perplexity"], itself["perplexity"])
        self.assertEqual(other["kv_fraction"], itself["kv_fraction"])
        config = json.loads((shallow / "config.json").read_text())
        (shallow / "config.json").write_text(json.dumps(config | {"bos_token_id": None}))
        (shallow / "generation_config.json").unlink(missing_ok=True)
        (shallow / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
        self.assert_refused(2, "different tokenizers", *evaluate, "--reference", shallow)
        self.assert_refused(2, "--reference requires --kl", "eval", "-m", MODEL, "--perplexity", text,
                            "--reference", MODEL)

    def short_text(self):
        path = self.folder / "short.txt"
        path.write_text(TEXT.read_text()[:2500])
        return path

    def test_whole_keys_are_gone_behind_the_prompt(self):
        kvs = ["fdc(rate=0.5)+h2o(keep=0.5)", "fdc(rate=0.5)+h2o(keep=0.5,score=exact)"]
        arguments = [argument for kv in kvs for argument in ("--kv", kv)]
        stored, exact = self.json_of("compare", "-m", MODEL, "-c", 256, "--text", self.short_text(), *arguments)["rows"]
        self.assertEqual(exact["kv_parts"], stored["kv_parts"])
        self.assertGreater(exact["kv_peak_fraction"], stored["kv_peak_fraction"])
        self.assertNotEqual(exact["kl"], stored["kl"])

    def test_caches_of_any_depth_are_timed(self):
        kvs = ["h2o(keep=0.5)", "fdc+snapkv(keep=0.5,score=exact)", "fdc+h2o(keep=0.5,score=exact)+kivi"]
        for kv in kvs:
            self.json_of("bench", "model", "-m", MODEL, "--kv", kv, "-p", 0, "-n", 2, "-d", 600, "-r", 1, "--no-bandwidth")

    def test_generation_is_held_against_the_read_bandwidth(self):
        bench = ["bench", "model", "-m", MODEL, "-p", 16, "-n", 2, "-r", 1]
        prompt, generation = self.json_of(*bench)["rows"]
        self.assertNotIn("bandwidth_share", prompt)
        # The model lies in the cache of the processor.
        self.assertGreater(generation["bandwidth_share"], 0)
        self.assertNotIn("limit_ts", generation)
        header, _, _, row = self.run_verb(*bench).stdout.decode().splitlines()
        place = [cell.strip() for cell in header.split("|")].index("of bandwidth")
        self.assertRegex(row.split("|")[place], r"^ \d+\.\d\d $")
        _, generation = self.json_of(*bench, "--no-bandwidth")["rows"]
        self.assertNotIn("bandwidth_share", generation)
        self.assert_refused(2, "--no-bandwidth", *bench, "--no-bandwidth", "--limits")

    def test_more_threads_than_processors_are_said(self):
        n = len(os.sched_getaffinity(0))
        run = ["run", "-m", MODEL, "-p", "The carriage", "-n", 2, "-t"]
        said = self.run_verb(*run, n + 1).stderr.decode()
        self.assertEqual(said.count(f"kvlathe: note: -t {n + 1}: this process may use {n} processors"), 1)
        self.assertNotIn("processors", self.run_verb(*run, n).stderr.decode())

    def test_random_weights_take_uniform_ranks_and_no_fisher_ranks(self):
        bench = ["bench", "model", "--random-model", MODEL / "config.json", "-p", 0, "-n", 1, "-d", 640, "-r", 1, "--no-bandwidth"]
        uniform = [f"{kv}(rate=0.4,ranks=uniform)" for kv in ("fdc", "zack")]
        rows = self.json_of(*bench, "--kv", "fdc(rate=0.4)", *(a for kv in uniform for a in ("--kv", kv)))["rows"]
        self.assertEqual(rows[1]["kv_bytes"], rows[2]["kv_bytes"])
        self.assertNotEqual(rows[0]["kv_bytes"], rows[1]["kv_bytes"])
        for verb in (bench, ["bench", "attention"]):
            self.assert_refused(2, "gradients", *verb, "--kv", "palu(ranks=fisher)")

    def test_run_is_repeatable(self):
        arguments = ["run", "-m", MODEL, "-p", "The carriage stood", "-n", 12, "--temp", 0.8, "--seed", 5]
        first, second = self.json_of(*arguments), self.json_of(*arguments)
        self.assertEqual(first["ids"], second["ids"])
        self.assertEqual(len(first["ids"]), first["generated_tokens"])
        done = self.run_verb("run", "-m", MODEL, "-p", "The carriage stood", "-n", 4)
        self.assertTrue(done.stdout.decode().startswith("The carriage stood"))
        # The space between prompt and continuation is there, once.
        self.assertRegex(done.stdout.decode(), "^The carriage stood( [^ ]|[^ \\w])")

    def test_run_says_once_that_it_has_no_bf16_instructions(self):
        arguments = ["run", "-m", MODEL, "-p", "The carriage stood", "-n", 4, "--json"]
        for isa, said in (("scalar", "portable"), ("avx2", "AVX2")):
            self.environment["KVLATHE_ISA"] = isa
            done = self.run_verb(*arguments)
            if b"does not have it" in done.stderr:
                continue
            self.assertEqual(len(json.loads(done.stdout)["ids"]), 4)
            self.assertRegex(done.stderr.decode(), f"^kvlathe: note: .* BF16 .* {said}")
            self.assertEqual(done.stderr.count(b"BF16"), 1)

    def test_run_stops_before_a_stop_string(self):
        arguments = ["run", "-m", MODEL, "-p", "The carriage stood", "-n", 24]
        said = self.json_of(*arguments)
        self.assertEqual(said["finish_reason"], "length")
        begin = len(said["text"]) // 2
        stop = said["text"][begin:begin + 5]
        stopped = self.json_of(*arguments, "--stop", "never said", "--stop", stop)
        self.assertEqual(stopped["text"], said["text"][:said["text"].index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["ids"], said["ids"][:len(stopped["ids"])])
        printed = self.run_verb(*arguments, "--stop", stop).stdout.decode()
        self.assertEqual(printed, "The carriage stood" + stopped["text"] + "\n")

    def test_run_follows_bias_and_penalties(self):
        arguments = ["run", "-m", MODEL, "-p", "The carriage stood", "-n", 16]
        ids = self.json_of(*arguments)["ids"]
        banned = self.json_of(*arguments, "--logit-bias", f"{ids[0]}=-100", "--logit-bias", f"{ids[1]}=-100")
        self.assertFalse({ids[0], ids[1]} & set(banned["ids"]))
        forced = self.json_of(*arguments, "--logit-bias", f"{ids[0]}=100", "--ignore-eos")
        self.assertEqual(forced["ids"], 16 * [ids[0]])
        # A hundredth of what is left of the bias is no longer the largest logit.
        unlike = self.json_of(*arguments, "--logit-bias", f"{ids[0]}=100", "--repeat-penalty", 100,
                              "--repeat-last-n", -1, "--presence-penalty", -1.5, "--frequency-penalty", 2)
        self.assertEqual(unlike["ids"][0], ids[0])
        self.assertNotEqual(unlike["ids"][1], ids[0])
        drawn = ["--temp", 1.5, "--min-p", 1]
        self.assertEqual(self.json_of(*arguments, *drawn)["ids"], ids)  # only the likeliest is left

    def test_drafts_leave_the_text_as_it_is(self):
        text = self.short_text().read_text()[:200]
        for options in (["--temp", 0], ["--temp", 0.7, "--seed", 5, "--kv", "kivi(bits=4,run=64)"]):
            run = ["run", "-m", MODEL, "-p", text + text, "-n", 90, "--deterministic", "--ignore-eos", *options]
            alone = self.json_of(*run)
            drafted = self.json_of(*run, "--draft", "ngram:tokens=6,min=1")
            self.assertEqual(drafted["ids"], alone["ids"])
            self.assertEqual(drafted["kv_bytes"], alone["kv_bytes"])
            self.assertGreater(drafted["accepted_tokens"], 0)
            self.assertGreaterEqual(drafted["drafted_tokens"], drafted["accepted_tokens"])
            self.assertNotIn("drafted_tokens", alone)

    def test_caches_that_cannot_take_back_have_no_drafts(self):
        for kv in ("h2o(keep=0.5)", "pool(n=2)"):
            self.assert_refused(2, f"--kv '{kv}'", "run", "-m", MODEL, "-p", "x", "--kv", kv, "--draft", "ngram")
        for draft in ("ngrams", "ngram:tokens=0", "ngram:tokens=8,", "", "ngram:max=1"):
            self.assert_refused(2, "tokens=8,min=2,max=4", "run", "-m", MODEL, "-p", "x", "--draft", draft)

    def test_saved_session_goes_on_as_if_it_had_never_ended(self):
        for options in ([], ["--temp", 0.8, "--seed", 7], ["--kv", "fdc(rate=0.5)", "--repeat-penalty", 1.2],
                        ["--kv", "fdc(rate=0.5)", "--temp", 0.8, "--seed", 7, "--presence-penalty", 0.5],
                        ["--kv", "fdc(rate=0.3)+gear(bits=4,run=64)", "--temp", 0.8, "--seed", 7]):
            session = self.folder / "session"
            run = ["run", "-m", MODEL, "--ignore-eos", *options]
            whole = self.json_of(*run, "-f", self.short_text(), "-n", 20)
            first = self.json_of(*run, "-f", self.short_text(), "-n", 10, "--save-session", session)
            second = self.json_of(*run, "-n", 10, "--load-session", session)
            self.assertEqual(first["ids"] + second["ids"], whole["ids"])
            self.assertEqual(first["text"] + second["text"], whole["text"])
            self.assertEqual(second["restored_tokens"], first["prompt_tokens"] + 10)
            self.assertEqual((first["restored_tokens"], second["prompt_tokens"]), (0, 0))
            self.assertEqual(second["kv_parts"], whole["kv_parts"])
            # The file brings the sampling with it; another seed draws other tokens.
            cache = options[:2] if "--kv" in options else []
            bare = ["run", "-m", MODEL, "--ignore-eos", *cache, "-n", 10, "--load-session", session]
            self.assertEqual(self.json_of(*bare)["ids"], second["ids"])
            if "--seed" in options:
                self.assertNotEqual(self.json_of(*bare, "--seed", 8)["ids"], second["ids"])
            # The file may be replaced by what comes of it.
            self.json_of(*run, "-n", 4, "--load-session", session, "--save-session", session)
            third = self.json_of(*run, "-n", 6, "--load-session", session)
            self.assertEqual(first["ids"] + third["ids"], whole["ids"][:10] + whole["ids"][14:])

    def test_prompt_follows_a_saved_session(self):
        session, again = self.folder / "session", self.folder / "again"
        run = ["run", "-m", MODEL, "--ignore-eos", "-n", 8]
        first = self.json_of(*run, "-p", "The carriage stood", "--save-session", session)
        text = " Then he said, softly:"
        prompt = "The carriage stood" + first["text"] + text
        # Read as one text or in two parts: the tokens are the same, so the prompt was joined seamlessly.
        n_more = len(self.json_of("tokenize", "-m", MODEL, stdin=prompt.encode())["ids"])
        second = self.json_of(*run, "--load-session", session, "-p", text, "--save-session", again)
        self.assertEqual(second["restored_tokens"] + second["prompt_tokens"], n_more)
        self.assertEqual(second["ids"], self.json_of(*run, "-p", prompt)["ids"])
        third = self.json_of(*run, "--load-session", again)
        self.assertEqual(third["restored_tokens"], n_more + 8)
        printed = self.run_verb(*run, "--load-session", session, "-p", text)
        self.assertEqual(printed.stdout.decode(), text + second["text"] + "\n")
        self.assertIn(f"{second['restored_tokens']} tokens restored", printed.stderr.decode())

    def test_interrupted_run_saves_its_session(self):
        session = self.folder / "session"
        run = [KVLATHE, "run", "-m", MODEL, "--temp", "0", "--ignore-eos", "-n"]
        process = subprocess.Popen([*run, "900", "-p", "Who", "--save-session", session], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=self.environment)
        process.stdout.read(4)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, error.decode())
        n_prompt, n_generated = map(int, re.search(r"(\d+) prompt tokens, (\d+) generated", error.decode()).groups())
        self.assertLess(n_generated, 900)
        further = self.json_of("run", "-m", MODEL, "--ignore-eos", "-n", 5, "--load-session", session)
        self.assertEqual(further["restored_tokens"], n_prompt + n_generated)
        whole = self.json_of("run", "-m", MODEL, "--ignore-eos", "-n", n_generated + 5, "-p", "Who")
        self.assertEqual(further["ids"], whole["ids"][-5:])

    def test_session_after_the_end_of_sequence_wants_a_prompt(self):
        session = self.folder / "session"
        run = ["run", "-m", MODEL, "-n", 5]
        ended = self.json_of(*run, "-p", "The carriage stood", "--logit-bias", "2=100", "--save-session", session)
        self.assertEqual((ended["finish_reason"], ended["ids"]), ("stop", []))
        self.assert_refused(2, "prompt", *run, "--load-session", session)
        self.assertEqual(self.json_of(*run, "--load-session", session, "-p", " there", "--logit-bias",
                                      "2=-100")["generated_tokens"], 5)

    def test_damaged_and_foreign_sessions(self):
        session, broken = self.folder / "session", self.folder / "broken"
        half = ["--kv", "fdc(rate=0.5)"]
        self.json_of("run", "-m", MODEL, *half, "-p", "The carriage stood", "-n", 3, "--save-session", session)
        data = session.read_bytes()
        load = ["run", "-m", MODEL, *half, "--load-session"]
        for place, what in ((0, "not a saved sequence"), (9, "format"), (15, "bytes long"), (30, "checksum"),
                            (200, "checksum"), (len(data) // 2, "checksum"), (len(data) - 1, "checksum")):
            broken.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1:])
            self.assert_refused(1, f"{broken}: ", *load, broken)
            self.assert_refused(1, what, *load, broken)
        for n_bytes in (0, 7, 100, len(data) - 1):
            broken.write_bytes(data[:n_bytes])
            self.assert_refused(1, "bytes long" if n_bytes > 7 else "not a saved", *load, broken)
        self.assert_refused(1, "not a saved sequence", *load, MODEL / "config.json")
        self.assert_refused(1, "no.session", *load, self.folder / "no.session")
        other_spec = ["run", "-m", MODEL, "-n", 3, "--load-session", session, "--kv"]
        self.assert_refused(1, "fdc(rate=0.5", *other_spec, "none")
        self.assert_refused(1, "fdc(rate=0.5", *other_spec, "fdc(rate=0.25)")
        self.assert_refused(1, "another model or basis", *load, session, "--basis", self.calibrated())
        copy = self.copy_of_model()
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(dict(config, rope_theta=20000.0)))
        self.json_of("calibrate", "-m", copy, "--random-tokens", FEW_TOKENS, "-o", copy / "basis.safetensors")
        self.assert_refused(1, "another model", "run", "-m", copy, "-n", 3, *half, "--load-session", session)
        self.assert_refused(2, "context", *load, session, "-n", 5000)
        self.assert_refused(1, "--kv-memory", *load, session, "--kv-memory", "10KiB")
        # What cannot be written is found before anything is generated, and the old file stays.
        self.assert_refused(1, "missing", "run", "-m", MODEL, "-p", "x", "--save-session",
                            self.folder / "missing" / "session")
        self.assert_refused(1, "bytes long", *load, broken, "--save-session", session)
        self.assertEqual(session.read_bytes(), data)

    def test_bytes_by_part(self):
        parts = ["blocks", "sinks", "run_records", "layer_records", "tables", "entries"]
        run = self.json_of("run", "-m", MODEL, "-p", "The carriage stood", "-n", 4, "--kv", "fdc(rate=0.5)")
        self.assertEqual(list(run["kv_parts"]), parts)
        self.assertEqual(sum(run["kv_parts"].values()), run["kv_bytes"])
        self.assertGreater(run["kv_parts"]["sinks"], 0)
        arguments = ["compare", "-m", MODEL, "-c", 128, "--text", self.short_text(), "--kv", "none", "--kv",
                     "fdc(rate=0.5)"]
        none, half = self.json_of(*arguments)["rows"]
        for row in (none, half):
            self.assertEqual(list(row["kv_parts"]), parts)
            self.assertAlmostEqual(sum(row["kv_parts"].values()), row["kv_bytes_per_token"] * 128)
        self.assertEqual(none["kv_parts"]["sinks"], 0)
        self.assertLess(half["kv_parts"]["blocks"], none["kv_parts"]["blocks"])
        table = self.run_verb(*arguments).stdout.decode()
        self.assertRegex(table, rf"fdc\(rate=0\.5\) +{half['kv_parts']['blocks']} +{half['kv_parts']['sinks']} ")

    def run_on_terminal(self, *arguments, **environment):
        main, output = pty.openpty()
        process = subprocess.Popen([KVLATHE, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.DEVNULL,
                                   env=dict(self.environment, TERM="xterm", **environment))
        os.close(output)
        text = b""
        try:
            while piece := os.read(main, 65536):
                text += piece
        except OSError:  # how Linux reports the end
            pass
        os.close(main)
        self.assertEqual(process.wait(timeout=300), 0)
        return text.decode()

    def test_inspect_draws_heat_maps(self):
        inspect = ["inspect", "-m", MODEL, "--kv", "fdc(rate=0.4)"]
        heads = self.json_of(*inspect)["basis"]["heads"]
        plain = self.run_verb(*inspect).stdout.decode()
        self.assertNotIn("\033", plain)
        ranks = [head["rank_v"] for head in heads]
        self.assertIn(f"rank_v {min(ranks)}..{max(ranks)}", plain)
        self.assertIn("every eighth singular value", plain)
        for environment in ({"COLORTERM": "truecolor"}, {"COLORTERM": ""}):
            escape = "\033[48;2;" if environment["COLORTERM"] else "\033[48;5;"
            coloured = self.run_on_terminal(*inspect, **environment)
            self.assertEqual(coloured.count(escape), 10 + 4 * len(heads))
            self.assertNotIn("\033", self.run_on_terminal(*inspect, NO_COLOR="1", **environment))
        self.assertNotIn("row per layer", self.run_verb("inspect", "-m", MODEL, "--kv", "none").stdout.decode())

    def test_inspect_divides_a_cache_among_ranks_and_stages(self):
        inspect = ["inspect", "-m", MODEL, "--tp", 2, "--pp", 3, "--kv"]
        for kv in ("none", "kivi(bits=4)", "fdc(rate=0.4)"):
            report = self.json_of(*inspect, kv)
            ranks = report["divided"]["ranks"]
            self.assertEqual([rank["layers"] for rank in ranks], [[0, 2], [0, 2], [2, 4], [2, 4], [4, 6], [4, 6]])
            self.assertEqual([rank["kv_heads"] for rank in ranks], [[0, 1], [1, 2]] * 3)
            self.assertEqual(sum(rank["kv_bytes"] for rank in ranks), report["kv_bytes"]["total"], kv)
        divided = self.json_of(*inspect, "lathe(ratio=4)")
        own = self.json_of("inspect", "-m", MODEL, "--kv", "lathe(ratio=4,heads=own)")
        self.assertEqual(divided["divided"]["heads_per_map"], 1)
        self.assertEqual(divided["divided"]["predicted_kl"], own["predicted_kl"])
        self.assertEqual(sum(rank["kv_bytes"] for rank in divided["divided"]["ranks"]), own["kv_bytes"]["total"])
        said = self.run_verb(*inspect, "lathe(ratio=4)").stdout.decode()
        self.assertIn("maps join 1 of a rank's KV heads here, and 2 on one machine: predicted KL", said)
        self.assert_refused(2, "kcvt gives a token of V one scale in all heads of a layer", *inspect, "gear")
        self.assert_refused(2, "--tp 3: the model has 2 KV heads", "inspect", "-m", MODEL, "--tp", 3, "--kv", "none")

    def test_deterministic_run_gives_the_same_for_any_thread_count(self):
        text = self.short_text()
        arguments = ["run", "-m", MODEL, "-f", text, "-n", 8, "--deterministic", "--kv", "fdc(rate=0.5)"]
        self.assertEqual(*(self.json_of(*arguments, "-t", n)["ids"] for n in (1, 3)))
        evaluate = ["eval", "-m", MODEL, "-c", 128, "--deterministic", "--perplexity", text]
        self.assertEqual(*(self.json_of(*evaluate, "-t", n)["perplexity"] for n in (1, 3)))

    def test_tokenize_goes_both_ways(self):
        text = "It was a bright cold morning, 4821 \u00e9 \U0001f600.\n"
        ids = self.json_of("tokenize", "-m", MODEL, "--no-bos", stdin=text.encode())["ids"]
        back = self.run_verb("tokenize", "-m", MODEL, "--decode", stdin=json.dumps(ids).encode())
        self.assertEqual(back.stdout.decode(), text)

    def test_calibrate_writes_what_the_others_read(self):
        basis = self.folder / "basis.safetensors"
        done = self.json_of("calibrate", "-m", MODEL, "--random-tokens", 2048, "-o", basis)
        self.assertEqual(done["tokens"], 2048)
        report = self.json_of("inspect", "-m", MODEL, "--basis", basis, "--kv", "fdc(rate=0.5)")
        self.assertEqual(len(report["basis"]["heads"]), 12)
        self.assertLessEqual(report["basis"]["removal_rate"], 0.5)
        self.assertEqual(report["kv_bytes"]["total"],
                         sum(report["kv_bytes"][part] for part in
                             ("blocks", "sinks", "run_records", "layer_records", "tables", "entries")))

    def test_rotations_of_two_calibrations_stand_beside_one_another(self):
        basis, other = self.folder / "rotations.safetensors", self.folder / "others.safetensors"
        for path, tokens in ((basis, ["--random-tokens", FEW_TOKENS]), (other, ["--text", TEXT, "--tokens", 2048])):
            done = self.json_of("calibrate", "-m", MODEL, "--gradients=false", *tokens, "-o", path)
            self.assertEqual((done["gradient_tokens"], done["held_back_tokens"]), (0, 0))
        inspect = ["inspect", "-m", MODEL, "--basis", basis, "--against", other, "--kv"]
        for side in self.json_of(*inspect, "zack(rate=0.25)")["similarity"].values():
            self.assertTrue(0.5 < side["kept"] < 1 < side["lost"], side)
            self.assertTrue(0 < side["element_difference"] and 0.5 < side["overlap"] < 1, side)
        same = self.json_of("inspect", "-m", MODEL, "--basis", basis, "--against", basis, "--kv", "zack(rate=0.25)")["similarity"]["v"]
        self.assertAlmostEqual(same["kept"], 1, 5)
        self.assertAlmostEqual(same["element_difference"], 0, 6)
        self.assert_refused(2, "no rotations", *inspect, "palu(rate=0.25)")
        self.assert_refused(2, "give --kv zack or fdc", *inspect, "kivi")
        self.assert_refused(1, "holds no gradients", "inspect", "-m", MODEL, "--basis", basis, "--kv", "lathe(ratio=4)")
        self.assert_refused(2, "made of gradients", "calibrate", "-m", MODEL, "--gradients=false", "--maps", "after", "-o", basis)

    def test_calibrates_on_the_rows_that_a_cache_merges(self):
        basis = self.folder / "basis-merged.safetensors"
        done = self.json_of("calibrate", "-m", MODEL, "--random-tokens", FEW_TOKENS, "--kv", "pool(n=2)", "-o", basis)
        self.assertEqual(done["merging"], "pool-2")
        inspect = ["inspect", "-m", MODEL, "--basis", basis, "--kv"]
        self.assertEqual(len(self.json_of(*inspect, "fdc(rate=0.5)+pool(n=2)")["basis"]["heads"]), 12)
        self.assert_refused(2, "merges by pool-2, and this one does not merge", *inspect, "fdc(rate=0.5)")
        self.assert_refused(2, "merges by pool-2, and this one merges by pool-3", *inspect, "fdc(rate=0.5)+pool(n=3)")
        self.assert_refused(2, "entries of their own", "calibrate", "-m", MODEL, "--kv", "pool", "--across-heads")

    def test_maps_stand_for_a_calibration(self):
        basis, maps = self.folder / "basis.safetensors", self.folder / "maps.safetensors"
        self.json_of("calibrate", "-m", MODEL, "--text", TEXT, "--tokens", 4096, "-o", basis)
        done = self.run_verb("calibrate", "--basis", basis, "--maps", "block", "-o", maps)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertLess(10 * maps.stat().st_size, basis.stat().st_size)
        ranks = [[head["rank_k"] for head in self.json_of(
            "inspect", "-m", MODEL, "--basis", path, "--kv", "lathe(ratio=8,keys=block)")["basis"]["heads"]]
                 for path in (basis, maps)]
        self.assertEqual(ranks[0], ranks[1])
        inspect = ["inspect", "-m", MODEL, "--basis", maps, "--kv"]
        self.json_of(*inspect, "lathe(ratio=8,keys=block)")
        self.assert_refused(2, "maps for lathe(keys=block) alone", *inspect, "lathe(ratio=8,keys=before)")
        self.assert_refused(2, "maps for lathe(keys=block) alone", *inspect, "fdc(rate=0.5)")
        # Ranks are chosen by gradients through all queries, which maps are not of.
        self.assert_refused(2, "maps for lathe(keys=block) alone", *inspect, "lathe(rate=0.5,keys=block)")
        self.assert_refused(2, "-o FILE", "calibrate", "--basis", basis, "--maps", "block")
        self.assert_refused(2, "only the maps of keys=block", "calibrate", "--basis", maps, "--maps", "after", "-o",
                            self.folder / "after.safetensors")

    def test_models_whose_maps_come_along_need_no_calibration(self):
        model, program = self.folder / "model", self.folder / "kvlathe"
        shutil.copytree(MODEL, model)
        (model / "calibration.txt").unlink()
        shutil.copy(KVLATHE, program)
        shared = self.folder / "share/kvlathe"
        (shared / "maps").mkdir(parents=True)
        shutil.copy(TEXT, shared / "calibration.txt")
        maps = self.folder / "maps.safetensors"
        self.run_verb("calibrate", "-m", model, "--text", TEXT, "--tokens", 2048, "--maps", "block", "-o", maps)
        header = maps.read_bytes()
        metadata = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])["__metadata__"]
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")
        inspect = [str(program), "inspect", "-m", str(model), "-c", "64", "--kv", "lathe(ratio=8,keys=block)"]
        for with_maps in (True, False):
            if with_maps:
                shutil.copy(maps, shared / "maps" / f"{metadata['model_hash']}-block.safetensors")
            else:
                shutil.rmtree(shared / "maps")
            done = subprocess.run(inspect, env=self.environment, capture_output=True)
            self.assertEqual((done.returncode, b"calibrated on" in done.stderr), (0, not with_maps), done.stderr)

    def test_spectral_needs_statistics_of_outputs(self):
        inspect = ["inspect", "-m", MODEL, "--basis", self.calibrated(), "--kv", "oscar"]
        self.assert_refused(2, "calibrate --outputs", *inspect)
        inspect[4] = self.calibrated("--outputs")
        self.json_of(*inspect)

    def test_shared_latents_need_statistics_across_heads(self):
        inspect = ["inspect", "-m", MODEL, "--basis", self.calibrated(), "--kv"]
        self.assert_refused(2, "calibrate --across-heads", *inspect, "palu(rate=0.5,group=2)")
        self.json_of(*inspect, "palu(rate=0.5,group=2,whiten=off)")
        inspect[4] = self.calibrated("--across-heads")
        one, two = (self.json_of(*inspect, f"palu(rate=0.5,group={n},ranks=uniform)") for n in (1, 2))
        self.assertEqual(two["kv_bytes"], one["kv_bytes"])  # a slice takes what a latent of its own does
        self.assertEqual([len(head["singular_values_qk"]) for head in two["basis"]["heads"]], 12 * [128])
        # Made where a spec needs them, and kept.
        self.environment["XDG_CACHE_HOME"] = str(self.folder)
        for is_first in (True, False):
            done = self.run_verb("inspect", "-m", MODEL, "--kv", "palu(rate=0.5,group=2)")
            self.assertEqual((done.returncode, b"calibrated on" in done.stderr), (0, is_first))

    def test_joined_heads_of_cut_ranks_read_prompts(self):
        """Blocks of prompts are not rebuilt there, for they lack columns of the joint map."""
        rows = self.json_of("compare", "-m", MODEL, "-c", 512, "--basis", self.calibrated(), "--text", TEXT, "--no-latency",
                            "--kv", "lathe(rate=0.25,keys=centred,heads=own)", "--kv", "lathe(rate=0.25,keys=centred,heads=joint)")["rows"]
        self.assertLess(rows[1]["kl"], 2 * rows[0]["kl"])

    def test_only_lathe_waits_for_gradients(self):
        """They serve ranks and bits alike."""
        self.environment["XDG_CACHE_HOME"] = str(self.folder)
        calibrated = []
        for kv in ("zack(rate=0.5)", "lathe(rate=0.5)", "lathe(ratio=8)", "zack(rate=0.5)"):
            done = self.run_verb("inspect", "-m", MODEL, "-c", 64, "--kv", kv)
            self.assertEqual(done.returncode, 0, done.stderr)
            calibrated.append(b"calibrated on" in done.stderr)
        self.assertEqual(calibrated, [True, True, False, False])

    def test_calibrating_random_weights_says_what_it_costs(self):
        config = self.folder / "config.json"
        config.write_text(json.dumps(dict(json.loads((MODEL / "config.json").read_text()), num_hidden_layers=2)))
        cost = ["calibrate", "--random-model", config, "--random-tokens", 512]
        done = self.json_of(*cost)
        self.assertEqual((done["tokens"], done["basis"]), (512, ""))
        self.assertGreater(done["seconds"], done["loading_seconds"])
        self.assertGreater(done["peak_resident_bytes"], 10 << 20)
        self.assertEqual((done["gradient_tokens"], done["held_back_tokens"]), (512, 0))  # one sequence
        self.assertGreater(done["gradient_seconds"], 0)
        self.assert_refused(2, "--text", "calibrate", "--random-model", config, "--text", TEXT)
        self.assert_refused(2, "give one of", *cost, "-m", MODEL)
        self.assert_refused(2, "give one of", "calibrate", "--random-tokens", 512)

    def test_inspect_measures_what_a_quantizer_loses(self):
        def errors(kv):
            return self.json_of("inspect", "-m", MODEL, "--kv", kv, "--errors", TEXT)["stored_errors"]
        layers = errors("kivi(bits=2,group=64)")
        self.assertEqual(len(layers), 6)
        for layer, finer in zip(layers, errors("kivi(bits=8,group=64)")):
            for side in ("k", "v"):
                self.assertLess(finer[side]["relative"], 0.01 * layer[side]["relative"])
                shares = layer[side]["shares"]
                self.assertEqual((len(shares), shares), (64, sorted(shares)))
                self.assertAlmostEqual(shares[-1], 1)
        table = self.run_verb("inspect", "-m", MODEL, "--kv", "kivi(bits=2,group=64)", "--errors", TEXT)
        mean = sum(layer["v"]["shares"][3] for layer in layers) / len(layers)
        *_, means, white = table.stdout.decode().splitlines()
        self.assertRegex(means, rf"^ mean .* {mean:.3f} [0-9.]+ [0-9.]+$")
        self.assertRegex(white, r"^white( +0\.\d{3}){10}$")
        self.assert_refused(2, "of a quantizer", "inspect", "-m", MODEL, "--kv", "none", "--errors", TEXT)

    def tune(self, *options):
        return ["tune", "-m", MODEL, "-c", 128, "--perplexity", self.short_text(), "--kv", "kivi(group=64)",
                "--kv", "fdc+kivi(bits=4)", *options]

    def test_tuned_profile_answers_accuracy(self):
        profile = self.folder / "p.json"
        result = self.json_of(*self.tune("--accuracy", 0.95, "--out", profile))
        written = json.loads(profile.read_text())
        self.assertRegex(written.pop("crc32c"), "^[0-9a-f]{8}$")
        self.assertEqual(result, written)
        points = {point["kv"]: point for point in result["points"]}
        methods = {method["name"]: method for method in result["targets"][0]["methods"]}
        self.assertEqual(list(methods), ["kivi(group=64)", "fdc+kivi(bits=4)"])
        for method in methods.values():
            self.assertGreaterEqual(method["accuracy"], 0.95)
            self.assertLess(method["kv_fraction"], 0.5)
        found = points[methods["fdc+kivi(bits=4)"]["kv"]]
        # A stronger cache was measured and failed, unless nothing is stronger.
        rivals = [point for point in points.values() if point["kv"].startswith("fdc") and
                  point["kv_fraction"] < found["kv_fraction"]]
        self.assertTrue(rivals)
        for rival in rivals:
            self.assertLess(rival["accuracy"], 0.95)

        asked = "fdc(accuracy=0.95)+kivi(bits=4)"
        evaluated = self.json_of("eval", "-m", MODEL, "-c", 128, "--perplexity", self.short_text(), "--kv", asked,
                                 "--profile", profile)
        self.assertEqual((evaluated["kv"], evaluated["kv_resolved"]), (asked, found["kv_resolved"]))
        self.assertAlmostEqual(evaluated["perplexity"], found["scores"][0]["value"])
        self.assertAlmostEqual(evaluated["kv_fraction"], found["scores"][0]["kv_fraction"])

        run = ["run", "-m", MODEL, "-p", "x", "-n", 1, "--profile", profile, "--kv"]
        self.assert_refused(2, "--accuracy 0.9 --kv 'kivi(group=64)'", *run, "kivi(accuracy=0.9,group=64)")
        self.assert_refused(2, "--kv 'h2o'", *run, "h2o(accuracy=0.95)")
        other = json.loads(profile.read_text())
        other.pop("crc32c")
        profile.write_text(json.dumps(dict(other, model_hash="0" * 32)))
        self.assert_refused(2, "another model", *run, "kivi(accuracy=0.95,group=64)")
        done = self.run_verb(*self.tune("--out", profile))
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"another model", done.stderr)
        profile.write_text("{}")
        self.assert_refused(1, f"{profile}: not a profile", *run, "kivi(accuracy=0.95,group=64)")
        self.assert_refused(1, "missing.json", *run[:-2], self.folder / "missing.json", "--kv", "fdc(accuracy=0.9)")

    def test_killed_tune_goes_on(self):
        def outcome(path):
            profile = json.loads(path.read_text())
            return [point["kv"] for point in profile["points"]], [
                [method["kv"] for method in target["methods"]] for target in profile["targets"]]
        whole, killed = self.folder / "whole.json", self.folder / "killed.json"
        self.json_of(*self.tune("--out", whole))
        command = [KVLATHE, *map(str, self.tune("--out", killed))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment)
        for line in process.stderr:
            if re.match(rb" *4  ", line):
                break
        process.send_signal(signal.SIGSTOP)
        self.assert_refused(2, f"{killed}: another process is writing it", *command[1:])
        process.kill()
        process.communicate()
        self.assertGreaterEqual(len(outcome(killed)[0]), 4)
        self.assertLess(len(outcome(killed)[0]), len(outcome(whole)[0]))
        done = self.run_verb(*command[1:])
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"going on from", done.stderr)
        self.assertEqual(outcome(killed), outcome(whole))

    def test_tune_keeps_its_profile_where_specs_find_it(self):
        copy = self.copy_of_model()
        with open(copy / "config.json", "a") as config:
            config.write("\n")  # another model hash, so that no other test meets this profile
        tune = ["tune", "-m", copy, "-c", 128, "--perplexity", self.short_text(), "--accuracy", 0.9, "--kv", "kcvt"]
        printed = self.run_verb(*tune)
        self.assertEqual(printed.returncode, 0, printed.stderr.decode())
        self.assertRegex(printed.stdout.decode(), r"kcvt +kcvt\(bits=\d\) ")
        inspect = ["inspect", "-m", copy, "--kv", "kcvt(accuracy=0.9)"]
        inspected = self.json_of(*inspect)
        self.assertRegex(inspected["kv_resolved"], r"^kcvt\(bits=\d,")
        # A profile beside the model comes first.
        kept_path = printed.stdout.decode().splitlines()[-1].rsplit(":", 1)[0]
        shutil.copy(kept_path, copy / "profile.json")
        profile = json.loads((copy / "profile.json").read_text())
        self.assertIn(inspected["kv_resolved"], [point["kv_resolved"] for point in profile["points"]])
        for method in profile["targets"][0]["methods"]:
            method["kv"] = "kcvt(bits=8)"
        (copy / "profile.json").write_text(json.dumps(profile))
        self.assert_refused(1, "its checksum does not fit", *inspect)
        profile.pop("crc32c")
        (copy / "profile.json").write_text(json.dumps(profile))
        self.assertRegex(self.json_of(*inspect)["kv_resolved"], r"^kcvt\(bits=8,")

    def test_tune_refuses_what_it_cannot_do(self):
        tune = ["tune", "-m", MODEL]
        for status, needle, *arguments in ((2, "fcd", "--kv", "fcd"), (2, "--accuracy", "--accuracy", 1.5),
                                           (2, "no-task", "--task", "no-task"),
                                           (1, "missing", "--perplexity", self.folder / "missing.txt"),
                                           (2, "--accuracy", "--kv", "fdc(accuracy=0.5)"),
                                           (2, "kvquant", "--kv", "h2o+kvquant")):
            self.assert_refused(status, needle, *tune, *arguments)

    def test_every_verb_has_help_with_an_example(self):
        for verb in (["run"], ["chat"], ["compare"], ["calibrate"], ["tune"], ["report"], ["chart"], ["eval"], ["inspect"],
                     ["specs"], ["tokenize"], ["bench", "attention"], ["bench", "model"], ["bench", "plan"],
                     ["bench", "scheduler"], ["bench", "serve"], ["serve"]):
            done = self.run_verb(*verb, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stdout.decode(), "Example: .*kvlathe " + " ".join(verb))

    def test_bench_scheduler_has_the_parts_of_a_step(self):
        report = self.json_of("bench", "scheduler", "-m", MODEL, "--kv", "kivi(bits=4)", "--parallel", 4, "-p", 16, "-n", 8)
        self.assertEqual((report["sequences"], report["prompt_tokens"], report["steps"]), (4, 16, 8))
        self.assertGreater(report["scheduler_us"], 0)
        self.assertGreaterEqual(report["scheduler_p99_us"], report["scheduler_us"])
        self.assertGreater(report["sampling_us"], 0)
        self.assertLess(report["scheduler_us"] + report["sampling_us"], 1e3 * report["step_ms"])
        self.assertAlmostEqual(report["scheduler_share"], report["scheduler_us"] / (1e3 * report["step_ms"]))
        self.assertLessEqual(report["first_step_us"], report["longest_first_step_us"])

    def test_specs_lists_every_axis(self):
        names = {stage["name"] for stage in self.json_of("specs")["stages"]}
        self.assertLessEqual({"fdc", "zack", "h2o", "kivi", "lowrank", "gear"}, names)

    def test_tasks_are_listed_without_a_model(self):
        tasks = self.json_of("eval", "--task", "list")["tasks"]
        self.assertLessEqual({"passkey", "recall", "classify"}, {task["name"] for task in tasks})
        for task in tasks:
            self.assertLessEqual({"description", "metric", "chance", "default_length"}, task.keys())
        done = self.run_verb("eval", "--task", "list")
        self.assertEqual(done.stdout.count(b"\n"), len(tasks))

    def test_eval_runs_built_in_tasks(self):
        arguments = ["eval", "-m", MODEL, "--task", "passkey", "--task-length", 200, "--task-count", 3]
        row = self.json_of(*arguments)
        self.assertEqual((row["kv"], row["task"], row["metric"], row["count"], row["length"]),
                         ("none", "passkey", "exact_match", 3, 200))
        self.assertLessEqual({"kv_resolved", "kv_fraction", "score", "score_stderr", "chance"}, row.keys())
        self.assertLess(row["prompt_tokens"], 200)
        self.assertEqual(self.json_of(*arguments), row)
        several = self.json_of(*arguments, "--kv", "none", "--kv", "fdc(rate=0.5)")
        self.assertEqual(several["model"], str(MODEL))
        none, half = several["rows"]
        self.assertEqual(none, row)
        self.assertLess(half["kv_fraction"], none["kv_fraction"])
        # One row of the table for every task, one for the heading.
        table = self.run_verb("eval", "-m", MODEL, "--task", "all", "--task-count", 1).stdout.decode()
        tasks = self.json_of("eval", "--task", "list")["tasks"]
        self.assertEqual(table.count("\n"), 1 + sum(task["parameters"] == "" for task in tasks))

    def test_eval_runs_tasks_with_parameters(self):
        text = self.folder / "novel.txt"
        text.write_text("The old ferry left at noon. Nobody saw it again.")
        predictions = self.folder / "needles.jsonl"
        arguments = ("eval", "-m", MODEL, "--task", "needle(keys=2, values=2)", "--task-length", 800,
                     "--task-count", 2)
        row = self.json_of(*arguments, "--task-text", text, "--predictions", predictions)
        self.assertEqual((row["task"], row["metric"]), ("needle(keys=2,values=2)", "found"))
        for line in map(json.loads, predictions.read_text().splitlines()):
            self.assertGreater(line["prompt"].count("Nobody saw it again."), 5)
            self.assertRegex(line["reference"], r"^ \d{7}\. One secret number of the \w+ \w+ is \d{7}$")
        self.assert_refused(2, "keys=1..100", "eval", "-m", MODEL, "--task", "needle(keys=0)")
        self.assert_refused(2, "hides nothing", "eval", "-m", MODEL, "--task", "json", "--task-text", text)
        text.write_text(" \n")
        self.assert_refused(2, "no words", *arguments, "--task-text", text)

    def write_task(self, *lines):
        path = self.folder / "questions.jsonl"
        path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        return path

    def test_eval_runs_tasks_of_a_file(self):
        # What the model says itself, up to the stop text, is a right answer; anything else is not.
        prompt = "The carriage stood"
        said = self.json_of("run", "-m", MODEL, "-p", prompt, "-n", 8)["text"]
        path = self.write_task({"prompt": prompt, "reference": said[:-2], "stop": said[-2:]},
                               {"prompt": prompt, "reference": " \u00e9"})
        predictions = self.folder / "predictions.jsonl"
        row = self.json_of("eval", "-m", MODEL, "--task", path, "--predictions", predictions)
        self.assertEqual((row["task"], row["score"], row["score_stderr"]), ("questions", 0.5, 0.5))
        self.assertIsNone(row["chance"])
        self.assertIsNone(row["length"])
        right, wrong = map(json.loads, predictions.read_text().splitlines())
        self.assertEqual((right["prompt"], right["output"], right["score"]), (prompt, said[:-2], 1))
        self.assertEqual((wrong["reference"], wrong["score"]), (" \u00e9", 0))

    def test_eval_weighs_choices(self):
        question = {"prompt": "He opened the", "reference": " door", "choices": [" door", " xq7 zzk"]}
        row = self.json_of("eval", "-m", MODEL, "--task", self.write_task(question))
        self.assertEqual((row["metric"], row["score"], row["chance"]), ("choice", 1, 0.5))

    def chat(self, *messages, options=(), model=MODEL):
        """The answers, one for each message that is no command."""
        done = self.run_verb("chat", "-m", model, "-n", 8, "--json", *options,
                             stdin="".join(m + "\n" for m in messages).encode())
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_chat_answers_and_remembers(self):
        options = ["--chat-template", "chatml"]
        first, second, again = self.chat("Who are you?", "", "Who are you?", "/clear", "Who are you?", "/exit",
                                         "Not read", options=options)
        self.assertEqual(first["ids"], again["ids"])
        self.assertEqual(first["prompt_tokens"], again["prompt_tokens"])
        self.assertGreater(second["prompt_tokens"], first["prompt_tokens"] + first["generated_tokens"])
        self.assertLessEqual({"text", "finish_reason", "ttft_ms", "kv_bytes", "kv_fraction"}, first.keys())
        told, = self.chat("Who are you?", options=[*options, "--system", "You are a coachman."])
        self.assertGreater(told["prompt_tokens"], first["prompt_tokens"])
        half, = self.chat("Who are you?", options=[*options, "--kv", "fdc(rate=0.5)"])
        self.assertLess(half["kv_fraction"], first["kv_fraction"])
        # A stop string ends the answer and is no part of it.
        stop = first["text"][2:5]
        stopped, = self.chat("Who are you?", options=[*options, "--stop", stop])
        self.assertEqual(stopped["text"], first["text"][: first["text"].index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_chat_reads_only_what_is_new(self):
        options = ["--chat-template", "chatml", "--deterministic"]
        first, second, third = self.chat("Who are you?", "And where?", "Why?", options=options)
        self.assertEqual(first["cached_tokens"], 0)
        for before, after in ((first, second), (second, third)):
            # Not the last token that was generated: it is never fed back.
            self.assertEqual(after["cached_tokens"], before["prompt_tokens"] + before["generated_tokens"] - 1)
            self.assertLess(after["cached_tokens"], after["prompt_tokens"])
        # Read in one go, the conversation is answered alike. The space that may stand in front of an
        # answer is not shown.
        wholes = []
        for space in ("", " "):
            path = self.folder / "conversation.txt"
            path.write_text("<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n" + space +
                            first["text"] + "<|im_end|>\n<|im_start|>user\nAnd where?<|im_end|>\n"
                            "<|im_start|>assistant\n")
            wholes.append(self.json_of("run", "-m", MODEL, "-f", path, "-n", 8, "--deterministic"))
        self.assertIn((second["prompt_tokens"], second["ids"]),
                      [(whole["prompt_tokens"], whole["ids"]) for whole in wholes])
        # A cache has one rate, and /rate with the same one finds it again. Drawn tokens are the same.
        options += ["--kv", "fdc(rate=0.5,resident=full)", "--rate", 0, "--temp", 0.8, "--seed", 3,
                    "--presence-penalty", 0.5]
        messages = ["Who are you?", "And where?", "Why?"]
        kept = self.chat(*messages, options=options)
        again = self.chat(*(line for m in messages for line in ("/rate 0", m)), options=options)
        self.assertEqual([a["cached_tokens"] > 0 for a in kept], [False, True, True])
        self.assertEqual([a["cached_tokens"] for a in again], [a["cached_tokens"] for a in kept])
        self.assertEqual([a["ids"] for a in kept], [a["ids"] for a in again])
        # Where reading a message token by token takes longer than reading all, all is read.
        options = ["--chat-template", "chatml", "--kv", "h2o(keep=0.5)"]
        self.assertEqual([a["cached_tokens"] for a in self.chat(*messages, options=options)], [0, 0, 0])

    def test_full_chat_drops_its_oldest_turns(self):
        chat = ["chat", "-m", MODEL, "-n", 8, "--json", "-c", 110, "--chat-template", "chatml"]
        messages = ["Who are you?", "And where?", "Why?", "Indeed?", "x" * 60, "Who are you?"]
        done = self.run_verb(*chat, stdin="".join(m + "\n" for m in messages).encode())
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(answers), 6)
        self.assertTrue(all(a["prompt_tokens"] + 8 <= 110 for a in answers))
        notes = [line for line in done.stderr.decode().splitlines() if "dropped" in line]
        self.assertIn("kvlathe: note: the conversation no longer fits the context of 110 tokens; "
                      "the oldest turn was dropped", notes)
        # What is left of it is a conversation like any other.
        alone, = self.chat("x" * 60, options=chat[6:])
        self.assertEqual(answers[4]["ids"], alone["ids"])
        self.assertEqual(answers[4]["cached_tokens"], 0)
        # The system message stays: with it, the last message is all that there is room for.
        system = ["--system", "You are a coachman who seldom answers."]
        fresh, = self.chat("Why not?", options=[*chat[6:], *system])
        options = [*chat[8:], *system, "-c", fresh["prompt_tokens"] + 20]
        self.assertEqual(self.chat("Who are you?", "Why not?", options=options)[1]["ids"], fresh["ids"])

    def test_chat_commands(self):
        chat = ["chat", "-m", MODEL, "--chat-template", "chatml"]
        done = self.run_verb(*chat, "--json", "-n", 4, stdin=b"/help\n//exit\nback\\\nslash\n")
        self.assertEqual(done.returncode, 0)
        for what in ("/help", "/clear", "/rate P", "/exit", "Ctrl-C", "Ctrl-D"):
            self.assertIn(what, done.stderr.decode())
        # Elsewhere than on a terminal a backslash does not continue a line.
        self.assertEqual(len(done.stdout.splitlines()), 3)
        slash, spaced = self.chat("//exit", "/clear", " /exit", "/exit", options=chat[3:])
        self.assertGreater(spaced["prompt_tokens"], 0)
        self.assertEqual(spaced["cached_tokens"], 0)
        rendered = "<|im_start|>user\n/exit<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(slash["prompt_tokens"],
                         len(self.json_of("tokenize", "-m", MODEL, stdin=rendered.encode())["ids"]))
        self.assert_refused(2, "/help", *chat, stdin=b"/clera\n")
        self.assert_refused(2, "/help", *chat, stdin=b"/clear all\n")

    def test_chat_on_a_terminal(self):
        said, = self.chat("Who are you?", options=["--chat-template", "chatml"])
        answer = "\r\n" + said["text"].replace("\n", "\r\n") + "\r\n"
        with ChatTerminal(MODEL, self.environment, "-n", "8") as terminal:
            terminal.expect_prompt()
            terminal.send("Whoo are you?\x01" + 3 * "\x06" + "\x04\r")  # to the begin, right, delete
            terminal.expect_prompt(answer)
            terminal.send("/clear\r")
            terminal.expect_prompt()
            terminal.send("\x1b[A\x1b[A\r")  # the line before the last
            terminal.expect_prompt(answer)
            terminal.send("/clera\r")
            terminal.expect("/help lists them")
            terminal.expect_prompt()
            terminal.send("word " * 1200 + "\r")
            terminal.expect("this message alone makes a prompt of")
            terminal.expect_prompt()
            terminal.send("Who are you?\\\r")
            terminal.expect("... ")
            terminal.send("And where?\r")
            terminal.expect_prompt("\r\n")
            terminal.send("\x04")
            terminal.expect("3 answers, ")
            self.assertEqual(terminal.exit_status(), 0)

    def test_failed_answers(self):
        copy = self.copy_of_model()
        weights = copy / "model.safetensors"
        data = bytearray(weights.read_bytes())
        header_bytes = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + header_bytes])
        begin, end = header["model.norm.weight"]["data_offsets"]
        data[8 + header_bytes + begin : 8 + header_bytes + end] = b"\x7f\x7f" * ((end - begin) // 2)  # 3.4e38
        weights.write_bytes(data)
        chat = ["chat", "-m", copy, "--chat-template", "chatml"]
        self.assert_refused(1, "not finite", *chat, stdin=b"Who are you?\nAnd where?\n")
        with ChatTerminal(copy, self.environment) as terminal:
            for _ in range(2):
                terminal.expect_prompt()
                terminal.send("Who are you?\r")
                terminal.expect("kvlathe: the model computed logits that are not finite")
            terminal.send("/exit\r")
            self.assertEqual(terminal.exit_status(), 0)

    def test_requests_choose_their_rate(self):
        run = ["run", "-m", MODEL, "-p", "It was a dark", "--deterministic"]
        resident = [*run, "--kv", "zack(rate=0.5,resident=full)"]
        for rate, options in ((0.25, ["--rate", 0.25]), (0.5, [])):
            own = self.json_of(*resident, "-n", 12, *options)
            fixed = self.json_of(*run, "-n", 12, "--kv", f"zack(rate={rate})")
            self.assertEqual((own["ids"], own["kv_bytes"]), (fixed["ids"], fixed["kv_bytes"]))
        # A session goes on at the rate that it was saved with.
        session = self.folder / "rate.session"
        first = self.json_of(*resident, "-n", 12, "--rate", 0.25, "--save-session", session)
        further = ["run", "-m", MODEL, "-n", 4, "--deterministic", "--kv", "zack(rate=0.5,resident=full)",
                   "--load-session", session]
        whole = self.json_of(*resident, "-n", 16, "--rate", 0.25)
        self.assertEqual(first["ids"] + self.json_of(*further, "--rate", 0.25)["ids"], whole["ids"])
        self.assert_refused(1, "--rate that it was saved with", *further)
        self.assert_refused(2, "[0, 1)", *resident, "--rate", 1)
        self.assert_refused(2, "add resident=full", *run, "--kv", "zack(rate=0.5)", "--rate", 0.3)
        kv = ["--kv", "zack(resident=full)", "--kv", "zack(rate=0.25)"]
        rows = self.json_of("compare", "-m", MODEL, "--text", TEXT, "-c", 256, *kv, "--rate", 0.25,
                            "--rate", 0.6)["rows"]
        self.assertEqual([row.get("rate") for row in rows], [0.25, 0.6, None])
        self.assertEqual(rows[0]["kv_bytes_per_token"], rows[2]["kv_bytes_per_token"])
        self.assertAlmostEqual(rows[0]["kl"], rows[2]["kl"], delta=0.01 * rows[2]["kl"])
        self.assertGreater(rows[1]["kl"], 2 * rows[0]["kl"])
        self.assert_refused(2, "no --kv has resident=full", "compare", "-m", MODEL, "--kv", "zack", "--rate", 0.3)
        kv = ["--chat-template", "chatml", "--kv", "fdc(rate=0.5,resident=full)"]
        half, quarter = self.chat("Who are you?", "/clear", "/rate 0.25", "Who are you?", options=kv)
        given, = self.chat("Who are you?", options=[*kv, "--rate", 0.25])
        self.assertGreater(quarter["kv_fraction"], half["kv_fraction"])
        self.assertEqual(quarter["kv_bytes"], given["kv_bytes"])
        chat = ["chat", "-m", MODEL, *kv]
        self.assert_refused(2, "as /rate 0.5", *chat, stdin=b"/rate half\n")
        self.assert_refused(2, "[0, 1)", *chat, stdin=b"/rate 1\n")

    def test_chat_streams_text(self):
        done = self.run_verb("chat", "-m", MODEL, "-n", 4, "--chat-template", "llama2",
                             stdin=b"Who are you?\nAnd where?\n")
        self.assertEqual(done.returncode, 0)
        self.assertNotIn(b"> ", done.stdout)  # asked for on a terminal only
        self.assertRegex(done.stderr.decode(), r"2 answers, \d+ tokens generated, .* tokens/s; .* KV \d+ bytes")
        self.assertIn("share of the 16-bit cache (blocks are filled by 64 tokens)", done.stderr.decode())

    def test_interrupt_stops_the_answer_only(self):
        # Without the end of sequence, so that the answer is still going on.
        process = subprocess.Popen(
            [KVLATHE, "chat", "-m", MODEL, "-n", "900", "--chat-template", "zephyr", "--logit-bias", "2=-100"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment)
        process.stdin.write(b"Who are you?\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, error.decode())
        n_generated = int(re.search(r"1 answers, (\d+) tokens", error.decode())[1])
        self.assertLess(n_generated, 900)

    def test_chat_templates_of_models(self):
        copy = self.copy_of_model()
        config = json.loads((copy / "tokenizer_config.json").read_text())
        turn = "{{ '<|%s|>\n' + message['content'] + eos_token + '\n' }}"
        config["chat_template"] = (
            "{% for message in messages %}" +
            "".join("{% if message['role'] == '" + role + "' %}" + turn % role + "{% endif %}"
                    for role in ("user", "system", "assistant")) +
            "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}")
        (copy / "tokenizer_config.json").write_text(json.dumps(config))
        own, = self.chat("Who are you?", model=copy)
        forced, = self.chat("Who are you?", options=["--chat-template", "zephyr"])
        self.assertGreater(own["generated_tokens"], 0)
        self.assertLessEqual(abs(own["prompt_tokens"] - forced["prompt_tokens"]), 1)  # BOS of the model
        chat = ["chat", "-m", copy]
        (copy / "chat_template.jinja").write_text("{{ raise_exception('Think first!') }}")
        self.assert_refused(2, "refuses: Think first!", *chat, stdin=b"Who are you?\n")
        (copy / "chat_template.jinja").write_text("{{ messages")
        self.assert_refused(2, "cannot be read", *chat)
        other = copy / "other.jinja"
        other.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
        done = self.run_verb("chat", "-m", MODEL, "-n", 2, "--chat-template", other, "--show-prompt", stdin=b"Who are you?\n")
        self.assertIn(b"[Who are you?]\n", done.stderr)

    def test_wrong_chats(self):
        self.assert_refused(1, "--chat-template", "chat", "-m", MODEL)
        self.assert_refused(1, "no such file, and none of chatml", "chat", "-m", MODEL, "--chat-template", "alpaca")
        chatml = ["chat", "-m", MODEL, "--chat-template", "chatml"]
        self.assert_refused(2, "--top-p", *chatml, "--top-p", 2)
        self.assert_refused(2, "this message alone", *chatml, stdin=b"word " * 3000 + b"\n")

    # What goes wrong.

    def test_wrong_specs(self):
        run = ["run", "-m", MODEL, "-p", "x", "--kv"]
        self.assert_refused(2, "position 1", *run, "fcd(rate=0.5)")
        self.assert_refused(2, "axis", *run, "fdc(rate=0.5)+zack(rate=0.5)")
        self.assert_refused(2, "rat", *run, "fdc(rat=0.5)")
        self.assert_refused(2, "rate", *run, "fdc(rate=1.5)")
        self.assert_refused(2, "2 KV heads", *run, "palu(rate=0.5,group=3)")
        self.assert_refused(2, "entries of each head", *run, "palu(rate=0.5,group=2)+h2o")
        self.assert_refused(2, "leave score out", *run, "h2o(score=exact)")
        self.assert_refused(2, "keys from before RoPE", *run, "palu+snapkv(score=exact)")
        self.assert_refused(1, "--accuracy 0.99 --kv 'fdc'", *run, "fdc(accuracy=0.99)")
        self.assert_refused(2, "either", *run, "kivi(bits=2,accuracy=0.99)")
        self.assert_refused(2, "profile", "bench", "attention", "--kv", "kivi(accuracy=0.99)")

    def test_wrong_usage(self):
        self.assert_refused(2, "subcommand")
        self.assert_refused(2, "--model", "run", "-p", "x")
        for option, value in (("--top-p", 2), ("--min-p", 1.5), ("--repeat-penalty", 0),
                              ("--repeat-last-n", -2), ("--presence-penalty", 3),
                              ("--frequency-penalty", -3), ("--logit-bias", "7"),
                              ("--logit-bias", "seven=1"), ("--logit-bias", "7=1x"),
                              ("--logit-bias", "7=1000"), ("--logit-bias", "999999=1")):
            self.assert_refused(2, option, "run", "-m", MODEL, "-p", "x", option, value)
        self.assert_refused(2, "stop string", "run", "-m", MODEL, "-p", "x", "--stop", "")
        self.assert_refused(2, "prompt", "run", "-m", MODEL)
        self.assert_refused(2, "size", "run", "-m", MODEL, "-p", "x", "--kv-memory", "lots")
        self.assert_refused(2, "one thread per processor", "run", "-m", MODEL, "-p", "x", "--pin",
                            "-t", str(len(os.sched_getaffinity(0)) + 1))
        self.environment["KVLATHE_ISA"] = "mmx"
        self.assert_refused(2, "KVLATHE_ISA", "run", "-m", MODEL, "-p", "x")

    def test_wrong_tasks(self):
        run = ["eval", "-m", MODEL, "--task"]
        self.assert_refused(2, "passkey", *run, "nothing")
        self.assert_refused(1, "no.jsonl", *run, self.folder / "no.jsonl")
        self.assert_refused(2, "questions.jsonl:2: ", *run,
                            self.write_task({"prompt": "a", "reference": "b"}, '{"prompt": \n'))
        self.assert_refused(2, "canonical_solution", *run, f"humaneval:{self.write_task({'prompt': 'a'})}")
        self.assert_refused(2, "####", *run,
                            f"gsm8k:{self.write_task({'question': 'a', 'answer': 'b'})}")
        packed = self.folder / "packed.jsonl"
        packed.write_bytes(b"\x1f\x8b\x08")
        self.assert_refused(2, "gunzip", *run, packed)
        long = self.write_task({"prompt": "word " * 2000, "reference": "b"})
        self.assert_refused(2, "example 1", *run, long)
        self.assert_refused(2, "--task-length", *run, long, "--task-length", 200)
        self.assert_refused(2, "1024", *run, "passkey", "--task-length", 4000)
        self.assert_refused(2, "--shots", *run, "passkey", "--shots", TEXT)
        self.assert_refused(2, "--shots", *run, "passkey", "--shots", 2)
        few = self.write_task({"goal": "a", "sol1": "b", "sol2": "c", "label": 0})
        self.assert_refused(2, "gsm8k", *run, f"piqa:{few}", "--shots", TEXT)
        self.assert_refused(2, "0 shots at most", *run, f"piqa:{few}", "--shots", 1)
        self.assert_refused(2, "--shot-tokens", *run, f"piqa:{few}", "--shots", 1, "--shot-tokens", 9)
        self.assert_refused(2, "the others", *run, f"piqa:{few}", "--shot-tokens", 9)
        self.assert_refused(2, "position 1", *run, "passkey", "--kv", "fcd(rate=0.5)")
        self.assert_refused(2, "--task", "eval", "-m", MODEL, "--task-count", 3, "--kl", TEXT)
        self.assert_refused(2, "one of", *run, "passkey", "--kl", TEXT)
        self.assert_refused(2, "--model", "eval", "--task", "passkey")
        self.assert_refused(1, "missing", *run, "passkey", "--predictions",
                            self.folder / "missing" / "predictions.jsonl")

    def test_missing_and_foreign_files(self):
        self.assert_refused(1, "nowhere", "run", "-m", self.folder / "nowhere", "-p", "x")
        self.assert_refused(1, "config.json", "run", "-m", self.folder, "-p", "x")
        self.assert_refused(1, "no.txt", "compare", "-m", MODEL, "--text", self.folder / "no.txt")
        self.assert_refused(1, "no.safetensors", "run", "-m", MODEL, "-p", "x", "--kv", "fdc(rate=0.5)",
                            "--basis", self.folder / "no.safetensors")

    def test_damaged_weights(self):
        copy = self.copy_of_model()
        weights = copy / "model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[: len(data) // 2])
        self.assert_refused(1, "model.safetensors", "run", "-m", copy, "-p", "x")
        header_bytes = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + header_bytes])
        begin = header["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0]
        place = 8 + header_bytes + begin + 100
        weights.write_bytes(data[:place] + b"\xc0\x7f" + data[place + 2 :])
        self.assert_refused(1, "up_proj", "run", "-m", copy, "-p", "x")
        weights.unlink()
        self.assert_refused(1, "safetensors", "run", "-m", copy, "-p", "x")

    def test_statistics_of_another_model(self):
        copy = self.copy_of_model()
        config = json.loads((copy / "config.json").read_text())
        config["rope_theta"] = 20000.0
        (copy / "config.json").write_text(json.dumps(config))
        self.assert_refused(2, "calibrate", "run", "-m", copy, "-p", "x", "--kv", "fdc(rate=0.5)",
                            "--basis", self.calibrated())

    def test_too_much_asked(self):
        self.assert_refused(2, "context", "run", "-m", MODEL, "-p", "x", "-n", 5000)
        self.assert_refused(2, "context", "run", "-m", MODEL, "-p", "x", "-c", 100000)
        self.assert_refused(1, "--kv-memory", "run", "-m", MODEL, "-p", "x", "--kv-memory", "10KiB")
        self.assert_refused(1, "memory", "compare", "-m", MODEL, "--text", TEXT, "--kv", "none",
                            "--kv-memory", "10KiB")

    def test_unwritable_output(self):
        # Before the work: so many tokens would take hours.
        self.assert_refused(1, "missing", "calibrate", "-m", MODEL, "--random-tokens", 1 << 28, "-o",
                            self.folder / "missing" / "basis.safetensors")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([KVLATHE, "specs"], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count(b"\n"), 1)


if __name__ == "__main__":
    cli_support.main()
