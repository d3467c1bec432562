#!/usr/bin/env python3
"""lab/accuracy_first.py with a program of a few lines, and the tables that come of what it says."""

import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

LAB = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(LAB), str(LAB.parent / "scripts")]

from accuracy_first_parts import plan  # noqa: E402
from accuracy_first_parts.book import Book  # noqa: E402
from accuracy_first_parts.caches import variation  # noqa: E402
from accuracy_first_parts.times import Times  # noqa: E402
from results_parts.accuracy_view import AccuracyView, Measured  # noqa: E402
from results_parts.store import ResultsError  # noqa: E402

# tune finds METHOD(rate=0.2) for every method but fdc, of which nothing keeps the accuracy, and fails at `broken`. In a bench `none` takes
# twice the time of every cache, online=on four times, and everything a half more with --schedule static.
PROGRAM = """#!/usr/bin/env python3
import itertools, json, os, sys
words = sys.argv[1:]
open(os.path.dirname(os.path.abspath(__file__)) + "/calls", "a").write(" ".join(words) + "\\n")
def of(name):
    return [word for before, word in zip(words, words[1:]) if before == name]
kvs = of("--kv")
def cache(method):
    return "" if method == "fdc" else method[:-1] + ",rate=0.2)" if "(" in method else method + "(rate=0.2)"
if words[0] == "tune":
    accuracy = float(of("--accuracy")[0])
    path = of("-o")[0]
    profile = json.load(open(path)) if os.path.exists(path) else {
        "goals": [{"name": "perplexity some", "metric": "perplexity"}], "targets": [],
        "points": [{"kv": "none", "kv_fraction": 1.0, "accuracy": 1.0, "scores": [{"value": 20.0, "standard_error": 0.0}]}]}
    target = {"accuracy": accuracy, "methods": []}
    for method in kvs:
        if method == "broken":
            break
        target["methods"].append({"name": method, "kv": cache(method) or None})
        if cache(method):
            profile["points"].append({"kv": cache(method), "kv_fraction": 0.8, "accuracy": 0.992, "scores": [{"value": 20.1}]})
    profile["targets"].append(target)
    json.dump(profile, open(path, "w"))
    sys.exit(1 if "broken" in kvs else 0)
if words[0] == "inspect":
    heads = [{"rank_k": 32, "rank_v": 64}, {"rank_k": 64, "rank_v": 64}]
    print(json.dumps({"basis": {"heads": heads, "cv_largest_qk": 0.5, "cv_largest_v": 0.25}}))
elif words[1] == "scheduler":
    print(json.dumps({"sequences": 16, "prompt_tokens": 256, "steps": 64, "step_ms": 10.0, "scheduler_us": 10.0, "scheduler_p99_us": 30.0}))
else:
    rows = []
    for kv, schedule, depth, test in itertools.product(kvs, of("--schedule")[0].split(","), (1024, 4096), ("n_prompt", "n_gen")):
        speed = 1000 if test == "n_prompt" else 100
        speed *= 1 if kv == "none" else 0.5 if "online" in kv else 2
        speed /= 1.5 if schedule == "static" else 1
        rows.append({"kv": kv, "schedule": schedule, "n_prompt": 0, "n_gen": 0, "n_depth": depth, "avg_ts": speed, "kv_bytes": 7,
                     "time_share": dict.fromkeys(("linear", "rotate", "append", "attention", "seal", "prune", "other"), 0.1),
                     "attention_share": {"plan": 0.001, "rebuild": 0.05 if "palu" in kv else 0}, test: 512 if test == "n_prompt" else 64})
        if test == "n_gen":
            rows[-1]["step_share"] = {part: {"p50": 0.01, "p99": 0.02} for part in ("rotate", "plan")}
    print(json.dumps({"rows": rows}))
"""


class AccuracyFirstTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "kvlathe"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        (self.folder / "tiny.gguf").write_bytes(b"weights")
        (self.folder / "data/wikitext2").mkdir(parents=True)
        (self.folder / "data" / plan.WIKI).write_text("some text\n")
        (self.folder / f"wiki-2x{plan.CONTEXT}.txt").write_text("some text\n")
        self.out = self.folder / "tiny.json"

    def call(self, verb, *arguments, code=0):
        done = subprocess.run([sys.executable, "-B", str(LAB / "accuracy_first.py"), verb, str(self.folder / "tiny.gguf"), "--kvlathe",
                               str(self.program), "--commit", "abc", "--work", str(self.folder), "-o", str(self.out), *arguments],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def caches(self, *methods, code=0):
        return self.call("caches", "--data", str(self.folder / "data"), "--set", "text", "--accuracy", "0.99", "--poll", "0.1",
                         *(word for method in methods for word in ("--kv", method)), code=code)

    def calls(self, verb):
        path = self.folder / "calls"
        return [line for line in path.read_text().splitlines() if line.startswith(verb)] if path.exists() else []

    def view(self):
        return AccuracyView(self.out, "accuracy/tiny")

    def test_what_is_found_is_kept_and_not_searched_again(self):
        self.caches("zack", "fdc", "zack(ranks=uniform)")
        self.caches("zack", "fdc", "zack(ranks=uniform)", "palu")
        tunes = self.calls("tune")
        self.assertEqual(len(tunes), 2)
        self.assertEqual(tunes[1].count("--kv"), 1)
        self.assertIn("--kv palu", tunes[1])
        text = "\n".join(self.view().block_lines("caches/text"))
        self.assertIn("| `zack` | `zack(rate=0.2)` | 80.0 | 99.2 |", text)
        self.assertIn("| `fdc` | none keeps it | - | - |", text)
        self.assertIn("`none` has: perplexity some 20.", text)
        ranks = "\n".join(self.view().block_lines("ranks/text/0.99"))
        self.assertIn("| `palu(rate=0.2)` | 80.0 | 48.0 | 64.0 | 33.3 | 0.0 | 50.0 | 25.0 |", ranks)

    def test_what_was_found_before_a_failure_is_kept(self):
        self.assertIn("the same command goes on", self.caches("zack", "broken", "palu", code=2))
        self.assertEqual([row["kv"] for row in self.view().book.rows("caches")], ["zack(rate=0.2)"])

    def test_times_stand_beside_none_and_ablations_beside_the_whole(self):
        self.caches("zack", "zack(ranks=uniform)", "palu")
        self.call("times", "--accuracy", "0.99", "--set", "text", "--rounds", "2", "--only-found")
        benches = self.calls("bench model")
        self.assertEqual(len(benches), 4)  # caches with two schedules and those with one, in two rounds
        self.assertIn("--schedule balanced,static", benches[0])
        self.assertIn("--kv none --kv zack(rate=0.2) --kv none", benches[0])
        self.call("times", "--accuracy", "0.99", "--set", "text", "--rounds", "2", "--only-found")
        self.assertEqual(self.calls("bench model"), benches)
        view = self.view()
        self.assertIn("| `zack(rate=0.2)` | 80.0 | 0.50 | 0.50 | 0.50 | 0.50 |", "\n".join(view.block_lines("times/text/0.99")))
        text = "\n".join(view.block_lines("ablations/text/0.99"))
        self.assertIn("| /OE | `zack(rate=0.2,online=on)` | +300% | +300% | +300% | +300% |", text)
        self.assertIn("| /AC | `zack(ranks=uniform,rate=0.2)` | +0% | +0% | +0% | +0% |", text)
        self.assertIn("| /KE | `zack(rate=0.2)` | +50% | +50% | +50% | +50% |", text)
        shares = "\n".join(view.block_lines("shares/text/0.99/decode"))
        self.assertIn("| `palu(rate=0.2)` | 10.0 | 10.0 | 10.0 | 10.0 | 10.0 | 10.0 | 10.0 | 5.0 | 0.10 |", shares)
        self.assertIn("| `zack(rate=0.2)` | 1.00 | 2.00 | 1.00 | 2.00 | 0.10 | 0.30 |", "\n".join(view.block_lines("steps")))
        self.assertEqual(view.figure("times", "palu(rate=0.2)", "job"), "0.50")
        self.assertEqual(view.figure("caches/text/0.99", "palu", "size"), "80.0")

    def test_caches_of_the_papers_sizes_need_no_search(self):
        self.call("times", "--rounds", "1")
        view = self.view()
        times = "\n".join(view.block_lines("times/papers"))
        self.assertIn("| `none` | 100.0 | 512.0 ms | 10.00 ms | 10.00 ms | 1152 ms |", times)
        self.assertIn("| `kvq-p(rate=0.5)` | 100.0 | 0.50 | 0.50 | 0.50 | 0.50 |", times)
        self.assertIn("| /PRC | `palu(rate=0.5,round=16)` | +0% | +0% | +0% | +0% |", "\n".join(view.block_lines("ablations/papers")))
        self.assertEqual(len(self.calls("bench scheduler")), 1 + len(plan.PAPERS))

    def test_what_is_not_there_is_said(self):
        self.caches("zack")
        view = self.view()
        self.assertEqual(view.block_lines("times/text/0.99"), ["Not measured yet.", ""])
        self.assertEqual(view.block_lines("ablations/papers"), ["Not measured yet.", ""])
        for block in ("caches/other", "nothing", "shares/text"):
            with self.assertRaises(ResultsError):
                view.block_lines(block)
        with self.assertRaises(ResultsError):
            view.figure("times", "zack(rate=0.2)", "job")
        self.assertIn("no such tasks", self.call("times", "--set", "other", code=2))
        self.assertIn("run caches first", self.call("rates", "--set", "needle", code=2))

    def test_a_cache_stands_between_two_measurements_of_none(self):
        times = Times(Book(self.out), None, {"commit": "abc"}, types.SimpleNamespace(minutes=None), print)
        rows = [{"kv": kv, "schedule": "balanced", "n_prompt": 0, "n_depth": 1024, "avg_ts": speed, "kv_bytes": 1, "time_share": {},
                 "attention_share": {}} for kv, speed in (("none", 100.0), ("kivi", 50.0), ("none", 300.0))]
        times.keep(rows, 1, 0, 0.0)
        self.assertEqual([(row["kv"], row["tokens_per_s"], row["none_tokens_per_s"]) for row in times.book.rows("times")],
                         [("none", 100.0, 100.0), ("kivi", 50.0, 150.0)])

    def test_rounds_that_others_disturbed_count_where_there_are_no_others(self):
        book = Book(self.out)
        for number, (speed, beside) in enumerate(((100.0, 0.0), (50.0, 0.9))):
            book.add("times", {"round": number, "schedule": "balanced", "kv": "kivi", "test": "decode@1024", "tokens_per_s": speed,
                               "none_tokens_per_s": 100.0, "beside": beside}, {})
        self.assertEqual(Measured(book, "kivi").times("decode@1024"), 1)
        book.lists["times"].pop((0, "balanced", "kivi", "decode@1024"))
        self.assertEqual(Measured(book, "kivi").times("decode@1024"), 2)

    def test_a_call_ends_when_its_time_is_over(self):
        self.caches("zack")
        self.assertIn("the time is over", self.call("times", "--set", "text", "--minutes", "0.000001"))


class PlanTest(unittest.TestCase):
    def test_variants_are_those_of_the_papers(self):
        self.assertEqual([of.name for of in plan.variants_of("kivi(bits=4)", None)], [""])
        self.assertEqual([(of.name, of.kv) for of in plan.variants_of("fdc(rate=0.1)", "fdc(rate=0.05,ranks=uniform)")],
                         [("", "fdc(rate=0.1)"), ("/PRC", "palu(rate=0.1,round=16)"), ("/AC", "fdc(rate=0.05,ranks=uniform)"),
                          ("/KE", "fdc(rate=0.1)")])
        self.assertEqual([of.name for of in plan.variants_of("zack(rate=0.1)", None)], ["", "/OE", "/KE"])

    def test_large_models_have_fewer_methods_and_other_tasks(self):
        self.assertEqual([of.name for of in plan.sets_of(1 << 30, "work", "DATA")], ["text", "gsm8k"])
        self.assertEqual(plan.methods_of(1 << 30), plan.LARGE_METHODS)

    def test_variation_is_the_deviation_in_means(self):
        self.assertAlmostEqual(variation([32, 64]), 1 / 3)
        self.assertEqual(variation([0, 0]), 0)


if __name__ == "__main__":
    unittest.main()
