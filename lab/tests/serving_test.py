#!/usr/bin/env python3
"""lab/serving.py with servers that are a few lines of Python: one that serves four requests at the same time bears more than one
that serves them one by one.

usage: serving_test.py KVLATHE MODEL_DIRECTORY
"""

import json
import pathlib
import subprocess
import sys
import unittest
import xml.etree.ElementTree

LAB = pathlib.Path(__file__).resolve().parent.parent
TESTS = LAB.parent / "tests"
sys.path.insert(0, str(TESTS))

sys.path.insert(0, str(LAB))

import cli_support  # noqa: E402
from serving_parts import report  # noqa: E402

SCRIPT = LAB / "serving.py"
FIGURES = ("mean_normalized_latency_ms", "p90_normalized_latency_ms", "p99_normalized_latency_ms", "p99_ttft_ms")


class ServingCase(cli_support.CommandLineCase):
    def serving(self, *arguments):
        done = subprocess.run([sys.executable, "-B", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env=self.environment)
        return done.returncode, done.stdout, done.stderr

    def arguments(self, *more):
        peers = [f"--peer={name}={sys.executable} -B {TESTS / 'mock_openai_server.py'} {{port}} 0.005 {slots}"
                 for name, slots in (("one", 1), ("four", 4))]
        peers.append(f"--peer=dead={sys.executable} -c 'import sys; sys.exit(\"no such model\")'")
        return ["run", "none.gguf", "--out", self.folder / "out.json", "--kvlathe", cli_support.KVLATHE, "--kv", "",
                "--workload", "imdb:128", "--clients", 4, "--sequences", 6, "--seconds", 0.3, "--slo-factor", 8, "--kv-bytes-per-token", 1000,
                "--commit", "abc", *peers, *more]

    def check_documents(self, data):
        """A document gets its table and its figures from the file, and the balancer's rows from theirs."""
        results = self.folder / "tree/docs/results"
        (results / "serving").mkdir(parents=True)
        (results / "serving/out.json").write_text(json.dumps(data))
        rows = [{"balance": way, "rate": 2.0, **dict.fromkeys(FIGURES, figure)}
                for way, figures in (("roundrobin", (9, 3, 4)), ("shortest-queue", (1, 2, 2.5))) for figure in figures]
        (results / "serving/replicas.json").write_text(json.dumps({"rows": rows}))
        page = results / "serving.md"
        page.write_text("<!-- results: serving/out imdb:128 -->\n<!-- end -->\n<!-- results: serving/replicas balance -->\n<!-- end -->\n"
                        "| <!--= serving/out imdb:128 four relative --><!-- --> |\n")
        command = [sys.executable, "-B", str(SCRIPT.with_name("results.py")), "--root", str(results.parent.parent), "fill", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        text = page.read_text()
        self.assertIn("| `dead` | - | - | failed: no such model | |", text)
        self.assertIn("| 2 | roundrobin | 4 | 4 | 4 | 4 |", text)
        self.assertIn("| 2 | shortest-queue | 2 | 2 | 2 | 2 |", text)
        self.assertRegex(text, r"relative -->(>=? )?[1-9]\d?\.\d\d( \([\d.]+ to [\d.]+\))?<!-- -->")
        page.write_text("| <!--= serving/out imdb:128 dead rate --><!-- --> |")
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("serving/out has no result of imdb:128 with dead", done.stderr)

    def test_what_serves_more_at_once_bears_a_higher_rate(self):
        status, _, said = self.serving(*self.arguments())
        self.assertEqual(status, 0, said)
        data = json.loads((self.folder / "out.json").read_text())
        cells = data["cells"]["imdb:128"]
        self.assertEqual(list(cells), ["one", "four", "dead"])
        self.assertEqual(cells["dead"], {"failed": "no such model"})
        one, four = (cells[name]["sweep"]["request_rate_at_slo"] for name in ("one", "four"))
        self.assertGreater(four, 1.5 * one)
        base = data["workloads"]["imdb:128"]
        # Six requests of mean length, of the table's 315 and 37 tokens, in 128 of 908 positions.
        self.assertAlmostEqual(base["kv_tokens"], 6 * 352 * 128 / 908, delta=1)
        self.assertEqual(base["kv_bytes"], 1000 * base["kv_tokens"])
        self.assertEqual([run["request_rate"] for run in cells["one"]["sweep"]["runs"]],
                         base["rates"][: len(cells["one"]["sweep"]["runs"])])
        self.assertTrue(all(run["failed"] == 0 for cell in cells.values() for run in cell.get("sweep", {"runs": ()})["runs"]))

        before = (self.folder / "out.json").read_text()
        status, _, said = self.serving(*self.arguments())
        self.assertEqual(status, 0, said)
        self.assertEqual(json.loads((self.folder / "out.json").read_text())["cells"], json.loads(before)["cells"])
        status, _, said = self.serving(*self.arguments("--clients", 5))
        self.assertEqual(status, 1)
        self.assertIn("results of other settings", said)

        status, _, said = self.serving(*self.arguments("--rounds", 2))
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"imdb:128, round 2 of 2, four\n.*sweeps, about \d+ minutes left")
        rounds = json.loads((self.folder / "out.json").read_text())["cells"]["imdb:128"]
        for name in ("one", "four"):
            self.assertEqual(rounds[name]["sweep"], cells[name]["sweep"])
            self.assertEqual([run["seed"] for sweep in rounds[name]["repeats"] for run in sweep["runs"]][:1], [2])
        self.assertEqual(rounds["dead"], {"failed": "no such model"})

        (self.folder / "kl.json").write_text(json.dumps({"records": [
            {"part": "methods", "kv": "four", "result": {"kl": 0.25, "kv_fraction": 0.5}}]}))
        # Short runs have few requests, and no rate is printed of them.
        status, table, said = self.serving("table", self.folder / "out.json", "--results", self.folder / "kl.json")
        self.assertEqual(status, 0, said)
        self.assertRegex(table, r"\| `one` \| - \| - \| too few requests \| - \|")
        self.assertIn("fewer than 50 requests", table)
        # A test cannot wait for as many as a rate takes.
        of_many = json.loads((self.folder / "out.json").read_text())
        for cell in of_many["cells"]["imdb:128"].values():
            for run in [run for sweep in [cell.get("sweep", {"runs": ()}), *cell.get("repeats", ())] for run in sweep["runs"]]:
                run["completed"] = 50
        (self.folder / "out.json").write_text(json.dumps(of_many))
        data = of_many
        status, table, said = self.serving("table", self.folder / "out.json", "--results", self.folder / "kl.json")
        self.assertEqual(status, 0, said)
        self.assertRegex(table, r"\| `one` \| - \| - \| (< )?[\d.]+ \| (1\.00|-) \|")
        self.assertIn("| `dead` | - | - | failed: no such model | |", table)
        self.assertRegex(table, r"\| `four` \| 50\.0 \| 0\.2500 \* \| (>= )?[\d.]+ \| (>=? )?[1-9]\d?\.\d\d( \([\d.]+ to [\d.]+\))? \|")
        self.check_documents(data)
        status, _, said = self.serving("plot", self.folder / "out.json", "--folder", self.folder, "--kvlathe", cli_support.KVLATHE)
        self.assertEqual(status, 0, said)
        drawn = xml.etree.ElementTree.parse(self.folder / "imdb-128.svg").getroot()
        self.assertEqual(len(drawn.findall(".//{http://www.w3.org/2000/svg}polyline")), 2)

    def test_runs_of_a_number_of_requests(self):
        status, _, said = self.serving(*self.arguments("--requests", 6))
        self.assertEqual(status, 0, said)
        cells = json.loads((self.folder / "out.json").read_text())["cells"]["imdb:128"]
        self.assertEqual({run["num_prompts"] for name in ("one", "four") for run in cells[name]["sweep"]["runs"]}, {6})
        status, _, said = self.serving(*self.arguments("--requests", 7))
        self.assertEqual(status, 1)
        self.assertIn("results of other settings", said)

    def test_a_table_has_the_median_of_rounds(self):
        def sweeps(*rates, kind="between"):
            return [{"request_rate_at_slo": rate, "request_rate_at_slo_is": kind,
                     "runs": [{"request_rate": run, "completed": n} for run, n in ((0.1, 4), (0.9 * rate, 50), (1.1 * rate, 60))]}
                    for rate in rates]

        self.assertEqual(report.rate_text(sweeps(3, 1, 2)), "2")
        self.assertEqual(report.relative_text(sweeps(3, 1, 2), sweeps(2, 1, 1)), "1.50 (1.00 to 2.00)")
        self.assertEqual(report.relative_text(sweeps(3, 1), sweeps(2, 1, 1)), "1.00 (1.00 to 1.50)")
        self.assertEqual(report.relative_text(sweeps(2, 2, kind="at least"), sweeps(1, 1)), ">= 2.00")
        self.assertEqual(report.relative_text(sweeps(1, kind="below"), sweeps(1, kind="below")), "-")

    def test_no_rate_is_printed_that_hangs_on_few_requests(self):
        def sweep(n_below, n_above):
            return [{"request_rate_at_slo": 2, "request_rate_at_slo_is": "between",
                     "runs": [{"request_rate": rate, "completed": n} for rate, n in ((1, 9), (1.5, n_below), (2.5, n_above), (4, 9))]}]

        self.assertEqual(report.rate_text(sweep(50, 80)), "2")
        for few in (sweep(49, 80), sweep(50, 49)):
            self.assertEqual(report.rate_text(few), report.TOO_FEW)
            self.assertEqual(report.relative_text(few, sweep(50, 80)), "-")
            self.assertEqual(report.relative_text(sweep(50, 80), few), "-")


if __name__ == "__main__":
    cli_support.main()
