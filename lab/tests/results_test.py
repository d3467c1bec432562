#!/usr/bin/env python3
"""lab/results.py with a program that only pretends to measure: what is measured, kept and written, and how it stops.

Called as results_test.py [TEST...]. The last case checks the pages and figures of this repository.
"""

import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(REPOSITORY / "lab"), str(REPOSITORY / "scripts")]

from results_parts import fill, page, papers, plan, view  # noqa: E402
from results_parts.prepare import shared_line  # noqa: E402
from results_parts.store import ResultsError, Store, rounded, write_whole  # noqa: E402

# Logs its arguments, and answers as kvlathe would. What it is to do wrong stands in its environment.
FAKE = r'''#!/usr/bin/env python3
import json, os, sys, time
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
if arguments[0] == "inspect":
    printed = {"model": {"max_seq_len": 8192}, "kv": value("--kv"), "kv_resolved": value("--kv"), "kv_bytes": {"kv_fraction": 0.25}}
    if "--errors" in arguments:
        side = lambda share: {"relative": 0.25, "shares": [share + (1 - share) * r / 31 for r in range(32)], "white_shares": [(r + 1) / 32 for r in range(32)]}
        printed["stored_errors"] = [{"k": side(0.5), "v": side(0.1)}, {"k": side(0.4), "v": side(0.1)}]
    side = {"kept": 0.99, "lost": 1.25, "overlap": 0.875, "element_difference": 0.05}
    printed["similarity" if "--against" in arguments else "basis"] = {"qk": side, "v": side} if "--against" in arguments else {
        "removal_rate": 0.25, "cv_largest_qk": 0.5, "cv_largest_v": 0.25,
        "variation_by_layer": [{"largest_qk": x, "largest_v": 0.1, "rank_k": 0, "rank_v": x} for x in (0.2, 0.4)]}
    print(json.dumps(printed)); sys.exit()
if arguments[0] == "tokenize":
    print(json.dumps({"ids": [0] * (len(sys.stdin.buffer.read()) // 4)})); sys.exit()
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(" ".join(arguments) + "\n")
if arguments[0] == "calibrate":
    open(value("-o"), "w").close(); sys.exit()
kvs = [arguments[i + 1] for i, a in enumerate(arguments) if a == "--kv"]
kv = kvs[-1]
what = (value("--task") if "--task" in arguments else arguments[0]) + " " + kv
if what in os.environ.get("FAKE_SLEEP", "").split(";"):
    if "--predictions" in arguments: open(value("--predictions"), "w").write("half")
    time.sleep(60)
if what in os.environ.get("FAKE_FAIL", "").split(";"):
    print("kvlathe: note: beside\nkvlathe: --kv: refused by", os.path.abspath(value("-m")), file=sys.stderr); sys.exit(2)
size = {"none": 1.0, "int8": 0.5}.get(kv, 0.25)
row = {"kv": kv, "kv_resolved": kv.replace(")", ",newest=32,sink=4)"), "kv_fraction": size}
if arguments[0] == "compare":
    kl = {"none": 0.0, "int8": 0.001}.get(kv, 0.02)
    row.update(kv_bytes_per_token=100.0, perplexity=20.123456789, perplexity_change=kl, perplexity_change_stderr=0.001, kl=kl,
               kl_stderr=0.0001, top1_agreement=0.9, ttft_ms=1.5, over_steps=[{"kl": 1}])
    print(json.dumps({"rows": [dict(row, kv=of) for of in dict.fromkeys(["none", *kvs])]}))
else:
    if "--predictions" in arguments:
        answers = "whole"
        if "humaneval:" in what:
            answer = lambda i: f"    return x + {i + (i > 2 and kv != 'none')}\n"
            answers = "".join(json.dumps({"kv": kv, "task": "humaneval", "index": i, "prompt": f"def f(x):  # {i}\n", "output": answer(i)}) + "\n"
                              for i in range(4))
        open(value("--predictions"), "w").write(answers)
    if "--baseline" in arguments: assert open(value("--baseline")).read() == "whole"
    task = arguments[arguments.index("--task") + 1] if "--task" in arguments else "drift"
    row.update(task=task, metric="choice", chance=0.5, score=0.51 if "passkey" in task else 0.9, score_stderr=0.05,
               score_change=0.0 if kv == "none" else -0.02, score_change_stderr=0.01, flips=0.1)
    print(json.dumps(row))
'''


class TreeCase(unittest.TestCase):
    """A tree with a model that comes with kvlathe, one that does not, data and the pretending program."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvlathe_results_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.log = self.root / "log"
        self.environment = dict(os.environ, FAKE_LOG=str(self.log))
        self.write("build/release/bin/kvlathe", FAKE).chmod(0o755)
        self.write("models/tiny/sample.txt", "text")
        self.write("models/tiny/model.safetensors", "weights")
        self.write("models/fetched/big.gguf", "weights")
        for path in (plan.WIKI, plan.NOVEL, *(f"books/{book}" for book in plan.BOOKS)):
            self.write(f"data/{path}", f"A line of {path}, which is long enough to be looked for in other texts.\n" * 8000)
        self.write("share/calibration.txt", "short\n")
        self.write("share/sample.txt", "A line of a text that comes with the program, and is long.\n" * 8000)
        self.results = self.root / "docs/results/tiny.json"

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def command(self, *arguments):
        return [sys.executable, "-B", str(REPOSITORY / "lab/results.py"), "--root", str(self.root), *map(str, arguments)]

    def results_py(self, *arguments, **environment):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=120, check=False,
                              env={**self.environment, **environment})

    def run_tiny(self, *arguments, **environment):
        return self.results_py("run", "models/tiny", "--commit", "abc1234", *arguments, **environment)

    def calls(self):
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []

    def store(self, name="tiny"):
        return Store(self.root / f"docs/results/{name}.json")


class RunTest(TreeCase):
    def test_measures_every_cell_once_and_records_where_it_is_from(self):
        done = self.run_tiny("--only", "quality")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.calls()), len(plan.SMALL))
        store = self.store()
        record = store.records["quality", "int8"]
        self.assertEqual(store.command_of(record), "kvlathe compare -m models/tiny -c 8192 --text models/tiny/sample.txt "
                                                   "--kv int8 --no-latency --json")
        self.assertEqual(store.run_of(record)["commit"], "abc1234")
        self.assertRegex(store.run_of(record)["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertEqual(record["result"]["perplexity"], 20.1235)
        self.assertNotIn("over_steps", record["result"])
        self.assertEqual(store.resolved_of("quality", "lathe(ratio=4)"), "lathe(ratio=4,newest=32,sink=4)")
        again = self.run_tiny("--only", "quality")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(len(self.calls()), len(plan.SMALL))

    def test_each_record_is_a_line_without_paths_of_the_machine(self):
        done = self.results_py("run", "models/fetched/big.gguf", "--commit", "abc", "--data", self.root / "data", "--only", "calibration")
        self.assertEqual(done.returncode, 0, done.stderr)
        text = (self.root / "docs/results/big.json").read_text(encoding="utf-8")
        self.assertNotIn(str(self.root), text)
        self.assertEqual(sum(line.startswith('{"part"') for line in text.splitlines()), 3 * len(plan.CALIBRATED))
        store = self.store("big")
        self.assertIn("head -c ", store.files["build/results/big/novel-4x2048.txt"])
        self.assertIn("DATA/books/", store.files["build/results/big/calibration-books.txt"])
        self.assertEqual(store.files["build/results/big/random.safetensors"],
                         "kvlathe calibrate -m models/fetched/big.gguf --random-tokens 40000 -o build/results/big/random.safetensors")
        n_tokens = (self.root / "build/results/big/novel-4x2048.txt").stat().st_size // 4
        self.assertTrue(4 * 2048 <= n_tokens < 5 * 2048, n_tokens)
        self.assertEqual(sum(call.startswith("calibrate") for call in self.calls()), 3)

    def test_a_text_is_not_calibrated_for_itself(self):
        self.write("share/calibration.txt", f"A line of {plan.NOVEL}, which is long enough to be looked for in other texts.\n")
        done = self.results_py("run", "models/fetched/big.gguf", "--commit", "abc", "--data", self.root / "data", "--only", "calibration")
        self.assertEqual(done.returncode, 1)
        failed = self.store("big").failures()
        self.assertEqual({record["part"] for record in failed}, {"calibration/text"})
        self.assertIn("a line in common", failed[0]["failed"])

    def test_a_failing_cell_is_recorded_the_others_go_on_and_it_is_tried_again(self):
        done = self.run_tiny("--only", "quality", FAKE_FAIL="compare int8")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(self.calls()), len(plan.SMALL))
        failed = self.store().failures()
        self.assertEqual([record["failed"] for record in failed], ["--kv: refused by models/tiny"])
        self.assertEqual(self.run_tiny("--only", "quality").returncode, 0)
        self.assertEqual(len(self.calls()), len(plan.SMALL) + 1)
        self.assertEqual(self.store().failures(), [])

    def test_a_task_near_chance_is_measured_with_none_only(self):
        done = self.run_tiny("--only", "passkey", "recall")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.store().measured("tasks/passkey"), ["none"])
        self.assertEqual(len(self.store().measured("tasks/recall")), len(plan.SMALL))
        self.assertEqual(self.run_tiny("--only", "passkey", "recall").returncode, 0)
        self.assertEqual(len(self.calls()), 1 + len(plan.SMALL))
        self.assertNotIn("metric", self.store().result("tasks/recall", "int8"))
        self.assertEqual(self.store().result("tasks/recall", "none")["metric"], "choice")

    def test_the_baseline_is_measured_again_only_where_it_is_needed_and_gone(self):
        self.assertEqual(self.run_tiny("--only", "recall", FAKE_FAIL="recall int8").returncode, 1)
        baseline = self.root / "build/results/tiny/tasks-recall.none.jsonl"
        baseline.unlink()
        self.assertEqual(self.run_tiny("--only", "recall").returncode, 0)
        self.assertEqual(len(self.calls()), len(plan.SMALL) + 2)
        self.assertTrue(baseline.exists())
        baseline.unlink()
        self.assertEqual(self.run_tiny("--only", "recall").returncode, 0)
        self.assertFalse(baseline.exists())

    def test_caches_wait_for_a_baseline_that_failed(self):
        self.assertEqual(self.run_tiny("--only", "recall", FAKE_FAIL="recall none").returncode, 1)
        self.assertEqual(len(self.calls()), 1)

    def test_parts_without_their_data_are_left_out_by_a_line(self):
        done = self.results_py("run", "models/fetched/big.gguf", "--list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"quality is left out: it needs --data DIR with {plan.WIKI}", done.stdout)
        to_do = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("to do")}
        self.assertEqual(to_do, {"heads", "needle/frequent", "needle/json", "prediction/sample"})  # whose texts are made, or are in the tree
        done = self.results_py("run", "models/fetched/big.gguf", "--data", self.root / "data", "--list")
        self.assertIn("to do           quality", done.stdout)
        self.assertIn("tasks/piqa is left out", done.stdout)
        self.assertEqual(self.calls(), [])

    def test_refuses_what_cannot_be_traced_to_a_commit(self):
        git = ["git", "-C", str(self.root), "-c", "user.name=n", "-c", "user.email=e@e"]
        self.write("src/a.cc", "int a;\n")
        for arguments in (["init", "-q"], ["add", "src"], ["commit", "-q", "-m", "a"]):
            subprocess.run([*git, *arguments], check=True, capture_output=True)
        only = ("--only", "quality")
        self.assertEqual(self.results_py("run", "models/tiny", *only).returncode, 0)
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        self.assertEqual([run["commit"] for run in self.store().runs.values()], [head])
        self.write("src/a.cc", "int b;\n")
        done = self.results_py("run", "models/tiny", *only)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--allow-dirty", done.stderr)
        self.results.unlink()
        self.assertEqual(self.results_py("run", "models/tiny", *only, "--allow-dirty").returncode, 0)
        self.assertEqual([run["dirty"] for run in self.store().runs.values()], [True])
        self.write("src/a.cc", "int a;\n")
        self.assertEqual(self.results_py("run", "models/tiny", *only).returncode, 0)
        self.assertEqual([run.get("dirty") for run in self.store().runs.values()], [None])

    def test_refuses_results_of_another_model_and_unknown_parts(self):
        self.assertEqual(self.run_tiny("--only", "quality").returncode, 0)
        self.assertIn("no such part", self.run_tiny("--only", "qualty").stderr)
        self.write("models/tiny/model.safetensors", "other weights")
        done = self.run_tiny("--only", "quality")
        self.assertEqual(done.returncode, 2)
        self.assertIn("another model", done.stderr)


class LargeModelTest(TreeCase):
    """A model of which a smaller plan is measured."""

    def setUp(self):
        super().setUp()
        with open(self.root / "models/fetched/big.gguf", "wb") as weights:
            weights.truncate(plan.LARGE_BYTES)  # takes no room on the disk
        problem = {"canonical_solution": "", "entry_point": "f"}
        lines = [json.dumps({**problem, "task_id": str(i), "prompt": f"def f(x):  # {i}\n", "test": f"def check(f):\n    assert f(1) == 1 + {i}\n"})
                 for i in range(4)]
        packed = self.root / "data" / plan.PROGRAMS
        packed.parent.mkdir(parents=True)
        packed.write_bytes(gzip.compress("\n".join(lines).encode()))

    def run_big(self, *arguments, **environment):
        return self.results_py("run", "models/fetched/big.gguf", "--commit", "abc", "--data", self.root / "data", *arguments, **environment)

    def test_caches_of_a_text_are_measured_together_and_recorded_alone(self):
        done = self.run_big("--only", "quality")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call.count("--kv") for call in self.calls()], [5, 5, 3])
        self.assertEqual(self.store("big").measured("quality"), sorted(plan.LARGE))
        record = self.store("big").records["quality", "q8_0(newest=32)"]
        self.assertEqual(self.store("big").command_of(record), "kvlathe compare -m models/fetched/big.gguf -c 2048 --text "
                         "build/results/big/wiki-2x2048.txt --kv 'q8_0(newest=32)' --no-latency --json")
        self.assertEqual(self.results_py("page", self.root / "docs/results/big.json").returncode, 0)
        text = (self.root / "docs/results/big.md").read_text(encoding="utf-8")
        self.assertIn("| `q8_0(newest=32)` | 25.0 | no (0.0200) |", text)
        self.assertIn("fewer caches are measured", text)

    def test_one_that_fails_does_not_take_the_others_with_it(self):
        done = self.run_big("--only", "quality", FAKE_FAIL=f"compare {plan.LARGE[4]}")
        self.assertEqual(done.returncode, 1)
        self.assertEqual([record["kv"] for record in self.store("big").failures()], [plan.LARGE[4]])
        self.assertEqual(len(self.store("big").measured("quality")), len(plan.LARGE) - 1)

    def test_programs_are_run_and_compared(self):
        done = self.run_big("--only", "humaneval")
        if "no sandbox" in done.stdout:
            self.skipTest(done.stdout)
        self.assertEqual(done.returncode, 0, done.stderr)
        store = self.store("big")
        none, other = (store.result("tasks/humaneval", kv) for kv in plan.LARGE_TASKS[:2])
        self.assertEqual((none["metric"], none["score"], none["chance"], none["passed"]), ("pass_at_1", 1, 0, 4))
        self.assertEqual((other["score"], other["score_change"], other["flips"], other["failed"]), (0.75, -0.25, 0.25, 1))
        command = store.command_of(store.records["tasks/humaneval", plan.LARGE_TASKS[1]])
        self.assertIn("--task humaneval:build/results/humaneval.jsonl", command)
        self.assertTrue(command.endswith("--predictions build/results/big/tasks-humaneval.other.jsonl --json && lab/pass_at_1.py "
                                         "DATA/humaneval/HumanEval.jsonl.gz build/results/big/tasks-humaneval.none.jsonl "
                                         "build/results/big/tasks-humaneval.other.jsonl"), command)


class PapersTest(TreeCase):
    """Pages of the claims of papers."""

    CLAIM = {"where": "Table 1", "claim": "It is smaller.", "answer": "in part", "why": "Not by as much.",
             "measured": [{"of": "tiny", "part": "quality", "caches": ["none", "int8"]}]}

    def pages(self, *claims):
        paper = {"name": "p", "title": "P", "source": "A, 2024", "setting": "large models", "method": "p.md", "claims": list(claims)}
        path = self.write(papers.CLAIMS, json.dumps({"papers": [paper]}))
        return self.results_py("page", path)

    def test_claims_stand_beside_what_was_measured(self):
        self.assertEqual(self.run_tiny("--only", "quality").returncode, 0)
        done = self.pages(self.CLAIM, {"where": "all", "claim": "Large.", "answer": "cannot run here", "why": "Small.", "takes": "A GPU."})
        self.assertEqual(done.returncode, 0, done.stderr)
        text = (self.root / "docs/results/papers/p.md").read_text(encoding="utf-8")
        self.assertIn("## Table 1: in part", text)
        self.assertIn("| `int8` | 50.0 | 0.0010 |", text)
        self.assertIn("    kvlathe compare -m models/tiny", text)
        self.assertIn("**What it would take:** A GPU.", text)
        self.assertIn("| [P](papers/p.md) | 2 | 0 | 1 | 0 | 0 | 1 |", (self.root / papers.PAGE).read_text(encoding="utf-8"))
        self.write("docs/results/papers/p.md", text.replace("50.0", "49.0"))
        self.assertIn("docs/results/papers/p.md:", self.results_py("check").stdout)

    def test_a_claim_without_an_answer_is_refused(self):
        for change, said in (({"answer": ""}, "no answer"), ({"answer": "perhaps"}, "the answer perhaps is none of"),
                             ({"measured": []}, "in part needs one of measured, see"), ({"answer": "not measured"}, "needs one of command")):
            done = self.pages({**self.CLAIM, **change})
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"p, Table 1: {'' if 'needs' in said or 'none of' in said else said}", done.stderr)
            self.assertIn(said, done.stderr)
        self.assertIn("two claims of Table 1", self.pages(self.CLAIM, self.CLAIM).stderr)


class InterruptTest(TreeCase):
    def interrupt(self, number, what, *only):
        child = subprocess.Popen(self.command("run", "models/tiny", "--commit", "abc", "--only", *only), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, env=dict(self.environment, FAKE_SLEEP=what))
        kv = what.split()[1]
        deadline = time.monotonic() + 60
        while not any(f"--kv {kv} " in call for call in self.calls()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        time.sleep(0.3)
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
        return child.returncode, errors

    def test_ends_on_a_signal_with_what_goes_on_and_goes_on(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                self.log.unlink(missing_ok=True)
                self.results.unlink(missing_ok=True)
                status, errors = self.interrupt(number, "compare lathe(ratio=6)", "quality")
                self.assertEqual(status, 130, errors)
                self.assertIn("To go on:", errors)
                self.assertIn("run models/tiny --commit abc --only quality", errors)
                n_before = plan.SMALL.index("lathe(ratio=6)")
                self.assertEqual(self.store().measured("quality"), sorted(plan.SMALL[:n_before], key=str))
                self.assertEqual([path.name for path in self.results.parent.iterdir()], ["tiny.json"])
                self.assertEqual(self.run_tiny("--only", "quality").returncode, 0)
                self.assertEqual(len(self.calls()), len(plan.SMALL) + 1)

    def test_a_baseline_that_was_interrupted_is_not_taken_for_a_whole_one(self):
        status, errors = self.interrupt(signal.SIGINT, "recall none", "recall")
        self.assertEqual(status, 130, errors)
        self.assertFalse((self.root / "build/results/tiny/tasks-recall.none.jsonl").exists())
        self.assertEqual(self.run_tiny("--only", "recall").returncode, 0)


class StoreTest(unittest.TestCase):
    def test_numbers_have_six_digits(self):
        self.assertEqual(rounded({"a": [1.23456789e-7, True, None, 12345678], "b": 0.5}),
                         {"a": [1.23457e-7, True, None, 12345678], "b": 0.5})

    def test_a_write_that_fails_leaves_the_old_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            write_whole(path, "old")
            with self.assertRaises(UnicodeEncodeError):
                write_whole(path, "new \ud800")
            self.assertEqual(path.read_text(encoding="utf-8"), "old")
            self.assertEqual(os.listdir(folder), ["a.json"])

    def test_refuses_a_file_of_something_else(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            path.write_text('{"rows": []}', encoding="utf-8")
            with self.assertRaisesRegex(ResultsError, "not results"):
                Store(path)

    def test_finds_a_line_that_two_texts_share(self):
        with tempfile.TemporaryDirectory() as folder:
            a, b = (pathlib.Path(folder) / name for name in "ab")
            line = "It is a truth universally acknowledged, that a line is long enough."
            a.write_text(f"one\n{line}\n", encoding="utf-8")
            b.write_text(f"one\ntwo {line}\n", encoding="utf-8")
            self.assertIsNone(shared_line(a, b))
            b.write_text(f"  {line}\n", encoding="utf-8")
            self.assertEqual(shared_line(a, b), line)


class PageTest(TreeCase):
    def setUp(self):
        super().setUp()
        self.assertEqual(self.run_tiny("--only", "quality", "recall", "passkey").returncode, 0)
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        self.page = self.results.with_suffix(".md")

    def change(self, **fields):
        """Results as another day would have found them."""
        store = self.store()
        store.records["quality", "kivi(bits=4,group=64,newest=32)"]["result"].update(fields)
        store.save()

    def test_shows_commands_sizes_and_what_is_kept_unsealed(self):
        text = self.page.read_text(encoding="utf-8")
        self.assertIn("    kvlathe compare -m models/tiny -c 8192 --text models/tiny/sample.txt --kv KV --no-latency --json\n", text)
        self.assertIn("| `lathe(ratio=4)` | 25.0 | 100 | 4 + 32 | 20.12 | +2.00 ± 0.10 | 0.0200 ± 0.00010 | 90.0 |", text)
        self.assertIn("by the program of commit abc1234", text)
        self.assertLess(text.index("| `int8` |"), text.index("by the program of commit"))  # what was found comes first

    def test_has_tasks_on_a_page_of_their_own_and_those_by_themselves_that_decide(self):
        text = self.page.with_name("tiny-tasks.md").read_text(encoding="utf-8")
        self.assertIn("| `int8` | -2.0 ± 1.0 |", text)
        self.assertIn("| passkey | 51.0 ± 5.0 | 50.0 |", text)
        self.assertIn("## tasks/recall: recall\n", text)
        self.assertNotIn("## tasks/passkey", text)
        page = self.page.read_text(encoding="utf-8")
        self.assertIn("[tiny-tasks.md](tiny-tasks.md)", page)
        self.assertNotIn("tasks/recall:", page)
        self.page.with_name("tiny-tasks.md").write_text("", encoding="utf-8")
        self.assertIn("docs/results/tiny-tasks.md:1: not what tiny.json says", self.results_py("check").stdout)

    def test_where_texts_part_stands_beside_flips_of_rows_that_have_it(self):
        tasks = self.page.with_name("tiny-tasks.md")
        self.assertNotIn("arted at", tasks.read_text(encoding="utf-8"))
        store = self.store()
        store.records["tasks/recall", "int8"]["result"].update(parted_at=8.25, parted_at_median=7.5, never_parted_share=0.25)
        store.save()
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        text = tasks.read_text(encoding="utf-8")
        self.assertIn("| cache | KV size % | score % | change | flips % | parted at | never % |", text)
        self.assertRegex(text, r"\| `int8` \|.*\| 10\.0 \| 8 \| 25\.0 \|")
        self.assertRegex(text, r"\| `none` \|.*\| - \| - \|")
        self.assertIn('"Parted at" is the median', text)

    def test_a_task_that_none_never_solves_decides_nothing(self):
        store = self.store()
        store.records["tasks/recall", "none"]["result"].update(score=0.0, score_stderr=0.0, chance=0.0, decides=True)
        store.save()
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        self.assertNotIn("tasks with 99% of the score", self.page.read_text(encoding="utf-8"))
        self.assertIn("| recall | 0.0 ± 0.0 | 0.0 |", self.page.with_name("tiny-tasks.md").read_text(encoding="utf-8"))

    def test_a_task_that_none_solves_as_often_as_chance_decides_nothing(self):
        store = self.store()
        store.records["tasks/recall", "none"]["result"].update(score=0.25, score_stderr=0.0, chance=0.25, decides=True)
        store.save()
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        self.assertNotIn("tasks with 99% of the score", self.page.read_text(encoding="utf-8"))

    def test_tails_stand_beside_the_mean_of_rows_that_have_them(self):
        self.assertNotIn("KL, median", self.page.read_text(encoding="utf-8"))
        store = self.store()
        result = store.records["quality", "int8"]["result"]
        result.update(kl_median=0.0004, kl_p99=0.0123, kl_p999=0.25, kl_worst_window=0.0021, top1_worst_window=0.875)
        store.save()
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        page = self.page.read_text(encoding="utf-8")
        self.assertIn("| KL | KL, median | 99% | 99.9% | worst window | worst top-1 % | top-1 % |", page)
        self.assertRegex(page, r"\| `int8` \|.*\| 0\.00040 \| 0\.0123 \| 0\.2500 \| 0\.0021 \| 87\.5 \|")
        self.assertRegex(page, r"\| `none` \|.*\| - \| - \| - \| - \| - \|")

    def test_a_page_that_no_results_file_has_is_named(self):
        self.write("docs/results/gone.md", self.page.read_text(encoding="utf-8"))
        self.write("docs/results/by-hand.md", "A page that somebody wrote.\n")
        self.assertEqual(self.results_py("check").stdout.splitlines(),
                         ["docs/results/gone.md:1: a page that no results file has any more; delete it"])

    def test_calibrations_and_predictions_stand_side_by_side(self):
        done = self.results_py("run", "models/fetched/big.gguf", "--commit", "abc", "--data", self.root / "data", "--only", "calibration", "prediction")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        path = self.root / "docs/results/big.json"
        store = self.store("big")
        store.records["calibration/books", "lathe(ratio=4)"]["result"].update(kl=0.004, kl_stderr=0.0002)
        store.records["prediction/novel", "lathe(ratio=6)"]["result"].update(kl=0.01, predicted_kl=0.008)
        store.save()
        self.assertEqual(self.results_py("page", path).returncode, 0)
        text = path.with_name("big-texts.md").read_text(encoding="utf-8")
        self.assertIn("| `lathe(ratio=4)` | 25.0 | 0.0200 ± 0.00010 | 0.0200 ± 0.00010 | 0.0040 ± 0.00020 |", text)
        self.assertIn("| `prediction/novel` | `lathe(ratio=6)` | 25.0 | 0.0080 | 0.0100 | 0.80 |", text)

    def test_what_inspect_says_stands_in_tables(self):
        with gzip.open(self.write(f"data/{plan.PROGRAMS}", ""), "wt", encoding="utf-8") as file:
            file.write(json.dumps({"prompt": "def f(x):\n", "canonical_solution": "    return x\n" * 8000}) + "\n")
        done = self.results_py("run", "models/fetched/big.gguf", "--commit", "abc", "--data", self.root / "data", "--only", "residuals", "heads",
                               "rotations", "tokens")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        path = self.root / "docs/results/big.json"
        result = self.store("big").result("residuals", "kcvt(bits=2,newest=32)")
        self.assertEqual(result["layers"]["k_rank1"], [0.5, 0.4])
        self.assertAlmostEqual(result["k_rank1"], 0.45)
        self.assertEqual(self.results_py("page", path).returncode, 0)
        text = path.with_name("big-papers.md").read_text(encoding="utf-8")
        self.assertRegex(text, r"K:\n\n(?:\|.*\n)+?\| `kcvt\(bits=2,newest=32\)` \| 25.00 \| 45.0 \(3.1\) \|.*\| 45.8 to 54.8 \|")
        self.assertIn("| `zack(rate=0.25)` | 25.0 | 30 (20 to 40) | 10 (10 to 10) | 0 (0 to 0) | 30 (20 to 40) | 50, 25 |", text)
        self.assertIn("| wiki | novel | 99.00 | 1.25 | 0.875 | 5.00 | 99.00 | 1.25 | 0.875 | 5.00 |", text)
        self.assertRegex(text, r"## tokens: .*(?:\n.*)+?\| `lathe\(ratio=8,context=2048\)` \| 25.0 \|(?: 0.0200 ± 0.00010 \|){3}(?: - \|){2}")
        self.assertEqual(self.results_py("check").stdout, "")

    def test_says_what_keeps_99_percent_by_each_measure(self):
        text = self.page.read_text(encoding="utf-8")
        self.assertIn("| `int8` | 50.0 | yes (0.0010) | 1 of 1 | 0 of 1 | recall |", text)
        self.assertIn("| `lathe(ratio=4)` | 25.0 | no (0.0200) | 1 of 1 | 0 of 1 | recall |", text)

    def test_lists_where_lathe_is_beaten_and_says_where_it_is_not(self):
        self.assertIn("Nowhere: in ", self.page.read_text(encoding="utf-8"))
        self.change(kl=0.0199, kv_fraction=0.2524)
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        text = self.page.read_text(encoding="utf-8")
        self.assertIn("| quality | `lathe(ratio=4)` | 25.0 | 0.0200 | `kivi(bits=4,group=64,newest=32)` | 25.2 | 0.0199 | 0 |", text)
        self.change(kv_fraction=0.2526)
        self.assertEqual(self.results_py("page", self.results).returncode, 0)
        self.assertIn("Nowhere: in ", self.page.read_text(encoding="utf-8"))

    def test_check_names_the_page_and_the_line_that_differ(self):
        self.assertEqual(self.results_py("check").stdout, "")
        lines = self.page.read_text(encoding="utf-8").split("\n")
        lines[4] += " "
        self.page.write_text("\n".join(lines), encoding="utf-8")
        done = self.results_py("check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/results/tiny.md:5: not what tiny.json says", done.stdout)

    def test_fills_tables_and_figures_and_checks_them(self):
        document = self.write("README.md", "| <!--= tiny quality lathe(ratio=4) kl -->9<!-- --> | <!--= tiny quality lathe(ratio=4) size -->"
                                           "<!-- --> |\n<!-- results: tiny tasks/recall -->\nold\n<!-- end -->\n"
                                           "<!-- results: tiny quality,tasks/recall size,score lathe(ratio=4) int8 -->\n<!-- end -->\nbehind\n")
        done = self.results_py("check")
        self.assertIn("README.md:1: not what the results say", done.stdout)
        self.assertEqual(self.results_py("fill", document).returncode, 0)
        text = document.read_text(encoding="utf-8")
        self.assertIn("| <!--= tiny quality lathe(ratio=4) kl -->0.0200<!-- --> | <!--= tiny quality lathe(ratio=4) size -->25.0<!-- --> |", text)
        self.assertIn("| `int8` | 50.0 | 90.0 ± 5.0 | -2.0 ± 1.0 | 10.0 |", text)
        self.assertIn("| cache | `quality`: KV size % | `tasks/recall`: KV size % | `tasks/recall`: score % |", text)
        self.assertTrue(text.endswith("<!-- end -->\nbehind\n"))
        self.assertEqual(self.results_py("check").stdout, "")
        self.assertIn("as it was", self.results_py("fill", document).stdout)

    def test_what_cannot_be_filled_is_named_with_its_line(self):
        for text, needle in (("| <!--= tiny quality q8_0 kl -->1<!-- --> |", "README.md:2: tiny has no result of quality with q8_0"),
                             ("| <!--= tiny quality int8 kll -->1<!-- --> |", "no field kll"),
                             ("KL <!--= tiny quality int8 kl -->1<!-- -->", "README.md:2: a figure stands in a sentence"),
                             ("<!-- results: tiny quality size q8_0 int8 -->\n<!-- end -->", "there are no results of q8_0 in this table"),
                             ("<!-- results: tiny quality,long size int8 -->\n<!-- end -->", "there are no results of long in this table"),
                             ("<!-- results: tiny quality -->", "no line <!-- end --> behind it"),
                             ("<!-- results: tiny nothing -->\n<!-- end -->", "tiny has no block nothing"),
                             ("<!-- results: other main -->\n<!-- end -->", "there is no docs/results/other.json")):
            document = self.write("README.md", f"\n{text}\n")
            done = self.results_py("fill", document)
            self.assertEqual(done.returncode, 2)
            self.assertIn(needle, done.stderr)
            self.assertIn(needle, self.results_py("check").stdout)


class TableTest(unittest.TestCase):
    def test_long_tables_are_cut_and_found(self):
        rows = [[str(i)] for i in range(25)]
        lines = view.markdown_table(["a"], rows)
        self.assertEqual(sum(line == "| a |" for line in lines), 2)
        self.assertIsNone(fill.long_table(lines))
        self.assertEqual(fill.long_table(["x", "| a |", "|---|", *(f"| {i} |" for i in range(21)), "y"]), 2)

    def test_short_lists_are_one_table_and_long_ones_a_table_for_each_axis(self):
        class Few:
            def specs(self, part):
                return part.specs
            def row(self, _name, kv):
                return {"kv": kv}
        part = plan.Part("quality", "", ("h2o", "none", "fdc"), ("compare",))
        lines = page.by_axis(Few(), part, ["name"], lambda kv, _row: [kv])
        self.assertEqual(lines, ["| cache | name |", "|---|---|", "| `none` | none |", "| `fdc` | fdc |", "| `h2o` | h2o |", ""])
        part = plan.Part("quality", "", (*(f"kivi(bits={i})" for i in range(20)), "fdc"), ("compare",))
        lines = page.by_axis(Few(), part, ["name"], lambda kv, _row: [kv])
        self.assertEqual([line for line in lines if line.endswith(":")], ["Codes:", "Fewer dimensions:"])

    def test_specs_are_told_by_what_they_compress(self):
        for axis, specs in {"codes": ("none", "int8", "lathe(ratio=4)", "kivi(bits=2)+lowrank+sparse", "gear"),
                            "bases": ("fdc", "eigen", "lathe(rate=0.25,keys=before)", "svd-online"), "retention": ("snapkv(keep=0.5)", "mas", "pool(n=2)"),
                            "compositions": ("kvq-f", "fdc(rate=0.25)+gear(bits=4)", "snapkv(keep=0.5)+kivi(bits=4)")}.items():
            for kv in specs:
                self.assertEqual(view.axis_of(kv), axis, kv)

    def test_no_axis_of_a_plan_needs_a_long_table(self):
        for specs in (plan.QUALITY, plan.METHODS, plan.SMALL):
            by_axis = {axis: [kv for kv in specs if view.axis_of(kv) == axis] for axis in view.AXES}
            self.assertEqual(len(set(specs)), len(specs))
            self.assertLessEqual(max(map(len, by_axis.values())), 20)
            self.assertTrue(all(by_axis[axis] for axis in ("codes", "bases", "retention")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
