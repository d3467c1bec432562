#!/usr/bin/env python3
"""The model of a step on several machines, lab/speed/ranks_table.py with programs of a few lines, and the tables that come of its rows."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LAB = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(LAB), str(LAB.parent / "scripts")]

from results_parts import ranks_view  # noqa: E402
from results_parts.ranks_model import Link, Machine, Shape, messages_us, reading_us, tokens_per_s  # noqa: E402
from results_parts.speed_view import SpeedView  # noqa: E402
from results_parts.store import ResultsError  # noqa: E402

SHAPE = Shape(n_layers=10, hidden=1000, n_heads=8, n_kv_heads=2, head_dim=125, ffn=2000, n_words=10000)
LINK = Link(gbit=8, latency_us=10)  # a byte in a nanosecond

# One process takes 10 ms a token; two take 6, of which a third is messages.
BENCH = """#!/usr/bin/env python3
import json, sys
rows = []
for n_prompt, n_gen in ((256, 0), (0, 64)):
    row = {"n_prompt": n_prompt, "n_gen": n_gen, "avg_ts": 1000 / 6 if "--tp" in sys.argv else 100.0}
    if "--tp" in sys.argv:
        row["rank_share"] = {"compute": 0.6, "waiting": 0.1, "messages": 0.3} if "--tell-waiting" in sys.argv else {"compute": 0.67, "messages": 0.33}
    rows.append(row)
print(json.dumps({"rows": rows}))
"""
COMM = """#!/usr/bin/env python3
import json
print(json.dumps({"benchmarks": [{"aggregate_name": "median", "run_name": f"BM_AllReduce/{n}/iterations:5", "real_time": 10 + n / 1000}
                                 for n in (4096, 16384, 65536)]}))
"""
MPIRUN = """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in */kvlathe | */comm_bench) exec "$@" ;; esac; shift; done
"""


class ModelTest(unittest.TestCase):
    def test_weights_and_cache_are_counted(self):
        self.assertEqual(SHAPE.n_weights, 1000 * (10 * (2 * 10 * 125 + 3 * 2000) + 10000))
        self.assertEqual(SHAPE.kv_numbers, 2 * 10 * 250)

    def test_a_short_sum_is_one_round_and_a_long_one_two(self):
        self.assertEqual(LINK.sum_us(1, 4000), 0)
        self.assertAlmostEqual(LINK.sum_us(2, 4000), 10 + 4)
        self.assertAlmostEqual(LINK.sum_us(4, 4000), 10 + 3 * 4)
        self.assertAlmostEqual(LINK.sum_us(4, 400_000), 2 * (10 + 300))

    def test_messages_of_a_grid(self):
        self.assertEqual(messages_us(SHAPE, 1, 1, LINK), (0.0, 0.0))
        sums, others = messages_us(SHAPE, 2, 1, LINK)
        self.assertAlmostEqual(sums, 20 * 14)
        self.assertAlmostEqual(others, 20 + 10 + 20)  # order and answer; the logits of half of the words
        sums, others = messages_us(SHAPE, 1, 2, LINK)
        self.assertEqual(sums, 0)
        self.assertAlmostEqual(others, 20 + (10 + 4) + (10 + 40))

    def test_reading_is_divided_and_products_may_take_longer(self):
        machine = Machine(gb_per_s=100, tflops=1000)
        weights, cache = SHAPE.n_weights * 2 / 1e5, SHAPE.kv_numbers * 2 * 100 / 1e5
        self.assertAlmostEqual(reading_us(SHAPE, 16, 1, 100, 1, machine), weights + cache)
        self.assertAlmostEqual(reading_us(SHAPE, 16, 8, 100, 2, machine), (weights + cache / 8) / 2)
        self.assertAlmostEqual(reading_us(SHAPE, 16, 1, 0, 1, Machine(100, 1e-3)), 2 * SHAPE.n_weights / 1e3)

    def test_ranks_pay_where_the_link_is_fast(self):
        machine = Machine(gb_per_s=100, tflops=1000)
        speeds = [tokens_per_s(SHAPE, 16, 1, 100, 2, 1, machine, Link(gbit, 10)) for gbit in (0.1, 100)]
        alone = tokens_per_s(SHAPE, 16, 1, 100, 1, 1, machine, LINK)
        self.assertLess(speeds[0], alone)
        self.assertGreater(speeds[1], alone)


class TableTest(unittest.TestCase):
    def measured(self, folder):
        for name, text in (("kvlathe", BENCH), ("comm_bench", COMM), ("mpirun", MPIRUN)):
            program = pathlib.Path(folder) / name
            program.write_text(text)
            program.chmod(0o755)
        path = pathlib.Path(folder) / "ranks.json"
        command = [sys.executable, "-B", LAB / "speed/ranks_table.py", "--kvlathe", f"{folder}/kvlathe", "--comm-bench", f"{folder}/comm_bench",
                   "--only", "smollm2", "--link", "alone", "--link", "memory", "--commit", "abc", "-o", path]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return path

    def test_measured_rows_become_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.measured(folder)
            data = json.loads(path.read_text())
            self.assertEqual({(row["link"], row["test"], row["tells_waiting"]) for row in data["rows"]},
                             {("alone", "pp", False), ("alone", "tg", False), *(("memory", test, tells) for test in ("pp", "tg")
                                                                                for tells in (False, True))})
            link = ranks_view.link_of(data, "memory")
            self.assertAlmostEqual(link.gbit, 8)
            self.assertAlmostEqual(link.latency_us, 10, places=2)
            view = SpeedView(path, "speed/ranks")
            self.assertIn("| SmolLM2 | generating | shared memory | 166.7 | 1.67 | 60% | 10% | 30% |", view.block_lines("shares"))
            [row] = [line for line in view.block_lines("check") if "SmolLM2" in line]
            # 5 ms of computing, 60 sums of 2304 bytes, the logits of half of the words, and two messages more.
            said = 1e6 / (5000 + 60 * (10 + 2.304) + (10 + 49152 * 2 / 1000) + 20)
            self.assertIn(f"| {said:.1f} | 166.7 | {1000 / 6 / said:.2f} |", row)
            self.assertIn("Commit abc", view.block_lines("provenance")[0])
            for name in ranks_view.LINKS:
                self.assertEqual(len([line for line in view.block_lines(f"paper/{name}") if "Llama 3" in line]), 8)
            with self.assertRaises(ResultsError):
                view.block_lines("paper/carrier-pigeon")


if __name__ == "__main__":
    unittest.main(verbosity=2)
