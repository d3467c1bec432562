#!/usr/bin/env python3
"""lab/retrofit.py with a program that only pretends to train: what is trained and measured, how it goes on, what documents say.

Called as retrofit_study_test.py [TEST...].
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(REPOSITORY / "lab"), str(REPOSITORY / "scripts")]

from results_parts.retrofit_view import RetrofitView  # noqa: E402
from results_parts.store import ResultsError  # noqa: E402
from retrofit_parts import plan, smollm2  # noqa: E402

FAKE = r'''#!/usr/bin/env python3
import json, os, pathlib, sys
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps(arguments) + "\n")
if os.environ.get("FAKE_FAIL") and os.environ["FAKE_FAIL"] in arguments:
    sys.exit("kvlathe: the loss is not a number at step 3")
if os.environ.get("FAKE_STOP") and os.environ["FAKE_STOP"] in arguments:
    print("stopped at 60.0%; the same command goes on")
if arguments[0] == "retrofit":
    out = pathlib.Path(value("--out"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps({"num_key_value_heads": 4}))
elif arguments[0] == "chart":
    pass
elif arguments[0] == "bench":  # four fifths of the ratio that was asked for come out
    ratio = 1 if value("--kv") == "none" else max(1.0, float(value("--compression")) * 0.8)
    sequences = int(value("--parallel"))
    rows = [{"n_depth": int(d), "n_parallel": sequences, "avg_ts": 10.0 * sequences, "stddev_ts": 0.5, "n_fit": int(10 * ratio),
             **({} if value("--kv") == "none" else {"positions_per_entry": ratio})} for d in value("-d").split(",")]
    print(json.dumps({"rows": rows}))
elif "--kl" in arguments:
    heads = 1 if "gqa-4" in value("-m") else 4
    share = 0.25 if value("--kv").startswith("dmc") else 1
    print(json.dumps({"kv": value("--kv"), "kv_bytes_per_token": 100.0 * heads * share, "kl": 0.1, "bits_per_byte": 1.25}))
else:
    tasks = [arguments[i + 1] for i, a in enumerate(arguments) if a == "--task"]
    print(json.dumps({"rows": [{"task": t, "score": 0.5, "score_stderr": 0.1, "kv_fraction": 1, "prompt_tokens": 9.5} for t in tasks]}))
'''


class StudyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvlathe_retrofit_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "kvlathe"
        self.program.write_text(FAKE)
        self.program.chmod(0o755)
        self.log = self.folder / "log"
        (self.folder / "data/books-valid").mkdir(parents=True)
        (self.folder / "data/books-valid/novel.txt").write_text("It is a truth. " * 100)

    def study(self, verb, *arguments, **environment):
        return subprocess.run(
            [sys.executable, "-B", str(REPOSITORY / "lab/retrofit.py"), verb, "--data", str(self.folder / "data"), "--runs",
             str(self.folder / "runs"), "--kvlathe", str(self.program), *map(str, arguments)],
            env=dict(os.environ, FAKE_LOG=str(self.log), **environment), capture_output=True, text=True, timeout=120, check=False)

    def measure(self):
        out = self.folder / "out.json"
        done = self.study("measure", "--out", out, "--commit", "abc1234")
        self.assertEqual(done.returncode, 0, done.stderr)
        return out, json.loads(out.read_text())

    def calls(self):
        calls = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.log.unlink()
        return calls

    def test_trains_what_is_missing_and_goes_on_where_it_failed(self):
        failed = self.study("train", "--only", "dmc", "--only", "gqa-4", FAKE_FAIL="ramp")
        self.assertEqual(failed.returncode, 1)
        self.assertEqual(failed.stderr.splitlines()[-2:], ["kvlathe: the loss is not a number at step 3", "retrofit: exit status 1"])
        verbs = [call[1] for call in self.calls()]
        self.assertEqual(verbs, ["gqa", "corpus", "pretrain", "corpus", "dmc", "dmc"])  # the zero-out stage, and the ramp
        done = self.study("train", "--only", "dmc", "--only", "gqa-4")
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = self.calls()
        self.assertEqual([call[call.index("--stage") + 1] for call in calls[:6]], ["ramp"] + ["solidify"] * 5)
        self.assertEqual([call[-1] for call in calls[1:6]], ["2", "3", "4", "6", "8"])
        self.assertEqual([call[1] for call in calls[6:]], ["gqa", "pretrain"])
        again = self.study("train", "--only", "dmc", "--only", "gqa-4")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertFalse(self.log.exists())
        recipe = json.loads((self.folder / "runs/gqa-4.json").read_text())["training"]
        self.assertEqual(recipe["model"]["num_key_value_heads"], 1)
        self.assertNotIn("dmc", recipe)
        teachers = [call[call.index("--teacher") + 1] for call in calls if "--teacher" in call]
        self.assertEqual(teachers, [str((self.folder / "runs/base").resolve())])

    def test_a_training_that_was_stopped_is_not_done(self):
        stopped = self.study("train", "--only", "gqa-4", FAKE_STOP="pretrain")
        self.assertEqual((stopped.returncode, stopped.stderr.splitlines()[-1]), (130, "retrofit: interrupted; the same command goes on"))
        self.calls()
        self.assertEqual(self.study("train", "--only", "gqa-4").returncode, 0)
        self.assertEqual([call[1] for call in self.calls()], ["pretrain", "corpus", "gqa", "pretrain"])

    def test_a_name_that_is_no_run_is_refused(self):
        refused = self.study("train", "--only", "dmd")
        self.assertEqual((refused.returncode, refused.stderr), (1, "retrofit: no run dmd; lab/retrofit.py list names them\n"))

    def test_measures_what_is_trained_once_and_documents_say_it(self):
        self.assertEqual(self.study("train", "--only", "dmc", "--only", "gqa-4", "--only", "gqa-4-short").returncode, 0)
        self.calls()
        out, data = self.measure()
        trained = [s.label for s in plan.subjects() if s.run in ("", "dmc", "gqa-4", "gqa-4-short")]
        self.assertEqual(list(data["rows"]), trained)
        self.assertEqual(len(self.calls()), 2 * len(trained))
        self.assertEqual(self.measure()[1], data)
        self.assertFalse(self.log.exists())
        view = RetrofitView(out, "retrofit/out")
        table = view.block_lines("trained")
        self.assertEqual(table[2:5:2], [f"| base | 100.0 | 0.1000 | 1.2500 |{' 50.0 |' * len(plan.TASKS)}",
                                        f"| dmc 3 | 25.0 | 0.1000 | 1.2500 |{' 50.0 |' * len(plan.TASKS)}"])
        self.assertIn("| gqa 4 | 25.0 |", "\n".join(table))
        self.assertEqual(view.block_lines("seeds")[2], "| gqa 4 short | 1 | 0.1000 | 1.2500 | 50.0 |")
        self.assertEqual([line.split(" | ")[0] for line in view.block_lines("on-the-way")[2:-1]],
                         [f"| gqa 4 step {step}" for step in plan.GQA_ON_THE_WAY] + ["| gqa 4"])
        self.assertIn("| DMC alone | `dmc 2` | 4.0 | `dmc 2` | 4.0 |", view.block_lines("kept"))
        self.assertIn("| pooling, trained | none measured | - | none measured | - |", view.block_lines("kept"))
        self.assertEqual(view.figure("text", "dmc-4", "size"), "25.0")
        self.check_figure(out, data)
        self.assertEqual(view.figure("recall", "dmc-4", "score"), "50.0")
        with self.assertRaisesRegex(ResultsError, "no result of text with dmc-5"):
            view.figure("text", "dmc-5", "kl")

    def test_a_real_model_is_trained_and_measured_once(self):
        out = self.folder / "smollm2.json"
        for _ in range(2):
            done = self.study("smollm2", "--out", out, "--commit", "abc1234")
            self.assertEqual(done.returncode, 0, done.stderr)
        calls = self.calls()
        self.assertEqual([call[call.index("--stage") + 1] for call in calls if "--stage" in call], ["zero-out", "ramp", "solidify"])
        self.assertEqual([call[call.index("--kv") + 1] for call in calls if "--kl" in call], [kv for _, kv, _ in smollm2.ROWS])
        table = RetrofitView(out, "retrofit/smollm2").block_lines("all")
        self.assertEqual(table[0], "| model | size % | KL | bits/byte |")
        self.assertEqual(len(table), 3 + len(smollm2.ROWS))

    def test_throughput_is_measured_at_the_ratio_that_came_out(self):
        out = self.folder / "speed.json"
        done = subprocess.run([sys.executable, "-B", str(REPOSITORY / "lab/retrofit.py"), "throughput", "--kvlathe", str(self.program), "--out",
                               str(out), "--commit", "abc1234"], env=dict(os.environ, FAKE_LOG=str(self.log)), capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Each ratio is asked for, then what makes up for what was missing, at which one sequence and then all of them run.
        asked = [call[call.index("--compression") + 1] for call in self.calls() if "--compression" in call]
        self.assertEqual(asked, ["2", "2.5", "2.5", "2.5", "4", "5", "5", "5", "8", "10", "10", "10"])
        view = RetrofitView(out, "retrofit/speed")
        self.assertEqual(view.block_lines("throughput")[2:4], ["| `none` | 1.00 | 10 | 100.0 | 1.00 | 10.00 | 1.00 |",
                                                               "| `dmc(sink=0)` | 2.00 | 20 | 200.0 | 2.00 | 10.00 | 1.00 |"])
        self.assertIn("Commit abc1234", view.block_lines("provenance")[0])
        subprocess.run([sys.executable, "-B", str(REPOSITORY / "lab/retrofit.py"), "figure", "--results", str(out), "--folder",
                        str(self.folder / "figures"), "--kvlathe", str(self.program)],
                       env=dict(os.environ, FAKE_LOG=str(self.log)), check=True, timeout=60)
        latency = json.loads((self.folder / "figures/latency.json").read_text())["series"]
        self.assertEqual(latency[2]["points"][0], [512, 100.0])
        self.assertEqual(latency[2]["name"], "dmc(sink=0), CR 4.0")

    def check_figure(self, out, data):
        subprocess.run([sys.executable, "-B", str(REPOSITORY / "lab/retrofit.py"), "figure", "--results", str(out), "--folder",
                        str(self.folder / "figures"), "--kvlathe", str(self.program)],
                       env=dict(os.environ, FAKE_LOG=str(self.log)), check=True, timeout=60)
        for call in self.calls():
            self.assertEqual((call[0], call[1].removesuffix("json")), ("chart", call[3].removesuffix("svg")))
        for name, value in (("kl", 0.1), ("tasks", 100)):
            series = json.loads((self.folder / f"figures/{name}.json").read_text())["series"]
            self.assertEqual(next(line["points"] for line in series if line["name"] == "GQA"), [[25, value]])
            drawn = [label for label in data["rows"] if "base" not in label and "step" not in label and "short" not in label]
            self.assertEqual(sum(len(line["points"]) for line in series), len(drawn))

    def test_all_runs_of_one_compression_read_the_same_tokens(self):
        recipe = json.loads((REPOSITORY / "docs/results/retrofit/recipe.json").read_text())
        n_tokens = {}
        for run in plan.RUNS:
            if run.is_grouped:  # of another base, and compared with nothing
                continue
            training = plan.recipe_of(run, recipe)["training"]
            for compression in run.compressions or (run.like,):
                stages = training.get("dmc")
                steps = stages and stages["zero_out_steps"] + (compression - 1) * stages["ramp_steps"] + stages["solidify_steps"]
                tokens = steps * training["batch_tokens"] if stages else training["total_tokens"]
                n_tokens.setdefault((compression, run.is_short), set()).add(tokens)
        self.assertEqual({key: len(tokens) for key, tokens in n_tokens.items()}, dict.fromkeys(n_tokens, 1))
        self.assertLess(max(n_tokens[4, True]), min(n_tokens[4, False]))
        labels = [subject.label for subject in plan.subjects()]
        self.assertEqual(len(set(labels)), len(labels))
        self.assertLessEqual({s.run for s in plan.subjects()} - {""}, {run.name for run in plan.RUNS})


if __name__ == "__main__":
    unittest.main(verbosity=2)
