#!/usr/bin/env python3
"""lab/speed/time_tables.py with a program of a few lines, and the tables and the roofline that come of its rows."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

LAB = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(LAB), str(LAB / "speed"), str(LAB.parent / "scripts")]

import time_tables  # noqa: E402
from results_parts import roofline  # noqa: E402
from results_parts.speed_view import SpeedView  # noqa: E402
from results_parts.store import ResultsError  # noqa: E402

# Answers a bench of attention: `none` takes 100 us and every other cache 50, at each context in proportion, and 20 besides.
BENCH = """#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
open(os.path.dirname(os.path.abspath(__file__)) + "/calls", "a").write(" ".join(words) + "\\n")
kvs = [word for before, word in zip(words, words[1:]) if before == "--kv"]
contexts = [int(word) for word in words[words.index("-c") + 1].split(",")]
rows = []
for context in contexts:
    for kv in kvs:
        us = (100 if kv == "none" else 50) * context / 8192 + 20
        rows.append({"kv": kv, "context": context, "time_us": us, "bytes": context * (400 if kv == "none" else 100),
                     "speedup_vs_none": (100 * context / 8192 + 20) / us, "fraction_of_limit": 0.5})
print(json.dumps({"threads": 2, "read_gb_per_s": 40.0, "gemm_tflop_per_s": 0.2, "integer_tdot_per_s": 1.0, "ranks": "drawn", "rows": rows}))
"""


class RooflineTest(unittest.TestCase):
    def test_work_grows_with_the_context_and_the_rest_does_not(self):
        of = roofline.cost(8_000_000, 8192, {1024: 30.0, 2048: 50.0})
        self.assertAlmostEqual(of.work_us, 160.0)
        self.assertAlmostEqual(of.rest_us, 10.0)

    def test_the_longer_of_reading_and_work_counts(self):
        of = roofline.Cost(8_000_000, 160.0, 10.0)
        self.assertAlmostEqual(of.time_us(2, 40), 200 + 10)  # 8 MB at 40 GB/s
        self.assertAlmostEqual(of.time_us(2, 200), 80 + 10)  # half of the work on each core
        self.assertEqual((of.bound(2, 40), of.bound(2, 200)), ("memory", "work"))

    def test_codes_gain_by_cores(self):
        none, codes = roofline.Cost(8_000_000, 200.0, 0.0), roofline.Cost(1_000_000, 400.0, 0.0)
        self.assertAlmostEqual(roofline.ratio(codes, none, 2, 40), 1.0)
        self.assertAlmostEqual(roofline.ratio(codes, none, 16, 40), 8.0)

    def test_one_context_says_nothing_of_work(self):
        with self.assertRaises(ValueError):
            roofline.cost(1, 8192, {1024: 30.0})

    def test_noise_makes_no_negative_times(self):
        of = roofline.cost(1, 8192, {1024: 30.0, 2048: 29.0})
        self.assertEqual(of.work_us, 0)


class RowsTest(unittest.TestCase):
    @staticmethod
    def row(**of):
        return {"isa": "avx2", "part": "decode", "shape": "smollm2", "kv": "none", "context": 8192, "commit": "a", "time_us": 10.0, **of}

    def test_the_fastest_none_of_a_commit_stays(self):
        data = {"rows": [self.row()]}
        time_tables.keep(data, [self.row(time_us=12.0)])
        self.assertEqual([row["time_us"] for row in data["rows"]], [10.0])
        time_tables.keep(data, [self.row(time_us=9.0)])
        self.assertEqual([row["time_us"] for row in data["rows"]], [9.0])
        time_tables.keep(data, [self.row(time_us=12.0, commit="b")])
        self.assertEqual([row["time_us"] for row in data["rows"]], [12.0])

    def test_others_are_replaced_and_lie_in_the_order_of_the_jobs(self):
        data = {"rows": []}
        time_tables.keep(data, [self.row(kv="lathe(ratio=8)", time_us=3.0), self.row(kv="int8", time_us=5.0)])
        time_tables.keep(data, [self.row(kv="lathe(ratio=8)", time_us=4.0), self.row()])
        self.assertEqual([(row["kv"], row["time_us"]) for row in data["rows"]], [("none", 10.0), ("int8", 5.0), ("lathe(ratio=8)", 4.0)])

    def test_models_are_held_against_none_of_their_test(self):
        share = {"time_share": {"attention": 0.5}, "kv_bytes": 1}
        rows = [{"kv": kv, "n_prompt": prompt, "n_depth": 1024, "avg_ts": speed, **share}
                for kv, prompt, speed in (("none", 512, 100.0), ("none", 0, 10.0), ("int8", 512, 50.0), ("int8", 0, 20.0))]
        self.assertEqual([row["times"] for row in time_tables.model_rows({"rows": rows})], [1, 1, 0.5, 2])

    def test_what_others_do_is_what_is_busy_and_not_ours(self):
        ticks = time_tables.os.sysconf("SC_CLK_TCK")
        self.assertEqual(time_tables.busy_seconds(f"cpu  {2 * ticks} 0 {ticks} 900 50 0 0 {ticks} 0 0\ncpu0 1 2"), 4)

    def test_bases_are_of_models(self):
        options = time_tables.parse(["x", "--basis", "smollm2=a.safetensors"])
        self.assertIn("a.safetensors", time_tables.heads_of("smollm2", options.basis))
        self.assertNotIn("--basis", time_tables.heads_of("llama3-8b", options.basis))
        for shape, words in (("smollm2", "-m"), ("llama3-8b", "--n-heads")):
            self.assertEqual(time_tables.heads_of(shape, options.basis)[0], words)


# Answers a bench of whole models: a cache of a quarter of the bytes fits four times as often, and sequences share their work.
WHOLE_BENCH = """#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
kvs = [word for before, word in zip(words, words[1:]) if before == "--kv"]
n = int(words[words.index("--parallel") + 1])
fit = {"none": 2, "codes": 8}
print(json.dumps({"rows": [{"kv": kv, "n_parallel": n, "avg_ts": 10.0 * n ** 0.5, "n_fit": fit[kv], "kv_bytes": 8 << 20,
                            "longest_prompt": 100 * fit[kv]} for kv in kvs]}))
"""


class ThroughputTest(unittest.TestCase):
    def test_equal_numbers_of_sequences_stand_beside_as_many_as_fit(self):
        with tempfile.TemporaryDirectory() as folder:
            program, path = pathlib.Path(folder) / "kvlathe", pathlib.Path(folder) / "throughput.json"
            program.write_text(WHOLE_BENCH)
            program.chmod(0o755)
            done = subprocess.run([sys.executable, "-B", str(LAB / "speed/throughput_table.py"), str(program), "shape.json", "16MiB", "128", "none",
                                   "codes", "--batches", "2,4", "--json", str(path), "--commit", "abc"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            view = SpeedView(path, "speed/throughput")
            table = "\n".join(view.block_lines("throughput"))
            self.assertIn("commit abc", view.block_lines("provenance")[0])
            with self.assertRaises(ResultsError):
                view.block_lines("decode/avx2")
        self.assertIn(table.strip(), done.stdout)
        # 10, 14.1, 20 and 28.3 tokens/s at 1, 2, 4 and 8.
        self.assertRegex(table, r"\| `none` \| 10.0 \| 14.1 \| - \| \d+ \| - \| 2 \| 14.1 \| \d+ \| 8.0 \| 200 \|")
        self.assertRegex(table, r"\| `codes` \| 10.0 \(1.00\) \| 14.1 \(1.00\) \| 20.0 \| \d+ \| \d+ \| 8 \| 28.3 \(2.00\) \| \d+ \| 8.0 \| 800 \|")


class RunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "kvlathe"
        self.program.write_text(BENCH)
        self.program.chmod(0o755)
        self.root, time_tables.ROOT = time_tables.ROOT, self.folder
        self.addCleanup(setattr, time_tables, "ROOT", self.root)

    def run_parts(self, *more, commit="abc"):
        options = time_tables.parse(["here", "--kvlathe", str(self.program), "--isa", "avx2", "--commit", commit, "--threads", "2",
                                     "--only", "decode/llama3-8b", "--only", "work/llama3-8b", *more])
        with contextlib.redirect_stdout(io.StringIO()):
            time_tables.run(options)
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def view(self):
        return SpeedView(self.folder / "docs/results/speed/here.json", "speed/here")

    def test_rows_are_measured_once_for_each_commit(self):
        n_jobs = len(time_tables.ATTENTION) + len(time_tables.WORK)
        self.assertEqual(len(self.run_parts()), n_jobs)
        self.assertEqual(len(self.run_parts()), n_jobs)
        path = self.folder / "docs/results/speed/here.json"
        data = json.loads(path.read_text())
        data["rows"] = [row for row in data["rows"] if row["kv"] != "int8"]
        path.write_text(json.dumps(data))
        self.assertEqual(len(self.run_parts()), n_jobs + 1)  # what an interrupted run left out
        self.assertEqual(len(self.run_parts("--again")), 2 * n_jobs + 1)
        self.assertEqual(len(self.run_parts(commit="def")), 3 * n_jobs + 1)

    def test_listing_measures_nothing(self):
        self.assertEqual(self.run_parts("--list"), [])

    def test_tables_and_figures(self):
        self.run_parts()
        view = self.view()
        lines = view.block_lines("decode/avx2")
        self.assertEqual(lines[0], "| kv | Llama 3 8B |")
        self.assertIn("| `none` | 1 (0.50), 120 us |", lines)
        self.assertIn("| `lathe(ratio=8)` | 1.71 (0.50) |", lines)
        self.assertEqual(view.figure("decode/avx2", "lathe(ratio=8)", "llama3-8b:times"), "1.71")
        self.assertEqual(view.figure("decode/avx2", "none", "llama3-8b:us"), "120")
        # none reads 3.3 MB in 82 us at 40 GB/s and has 100 us of work, the code 0.8 MB and 50 us; 20 us are the rest.
        roof = view.block_lines("roofline/avx2")
        self.assertEqual(roof[0].count("cores"), 9)
        self.assertTrue(roof[3].startswith("| Llama 3 8B | `lathe(ratio=8)` | 2.26 |"), roof[3])
        check = view.block_lines("check/avx2")
        self.assertIn("| Llama 3 8B | `none` | 102 | 120 | 1.18 | memory | 1.00 | 1.00 |", check)
        self.assertIn("commit abc", view.block_lines("provenance/avx2")[0])

    def test_what_is_not_measured_says_so(self):
        self.run_parts()
        view = self.view()
        self.assertEqual(view.block_lines("model/avx2"), ["Not measured yet.", ""])
        self.assertEqual(view.block_lines("decode/amx"), ["Not measured yet.", ""])
        for bad in ("decode", "pictures/avx2"):
            with self.assertRaises(ResultsError):
                view.block_lines(bad)
        with self.assertRaises(ResultsError):
            view.figure("decode/avx2", "int8", "smollm2:times")

    def test_a_failure_names_the_job_and_keeps_what_was_there(self):
        self.program.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
        with self.assertRaisesRegex(ResultsError, "decode llama3-8b.*no room"):
            self.run_parts()

    def test_the_file_of_another_machine_is_not_written(self):
        self.run_parts("--list")
        path = self.folder / "docs/results/speed/here.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"machine": "another", "rows": []}')
        with self.assertRaisesRegex(ResultsError, "another"):
            self.run_parts()

    def test_the_command_ends_with_an_error_of_one_line(self):
        done = subprocess.run([sys.executable, "-B", str(LAB / "speed/time_tables.py"), "x", "--basis", "llama3-8b=F"], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--basis llama3-8b", done.stderr)


if __name__ == "__main__":
    unittest.main()
