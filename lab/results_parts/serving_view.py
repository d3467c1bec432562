"""Serving experiments as the documents want them: docs/results/serving/*.json, written by lab/serving.py and lab/balance_bench.py.

In a document `serving/NAME` stands for such a file. Its blocks are the workloads (`humaneval:1024`), `provenance` and, of replicas, `balance`;
a figure is `serving/NAME WORKLOAD SERVER FIELD` with FIELD rate, relative or bound.
"""

import json
import pathlib
import statistics

from serving_parts import experiment, report

from .store import ResultsError

BALANCED = (("mean_normalized_latency_ms", "mean ms a token"), ("p90_normalized_latency_ms", "p90"), ("p99_normalized_latency_ms", "p99"),
            ("p99_ttft_ms", "p99 first token, ms"))


class ServingView:
    def __init__(self, path, name):
        self.name = name
        self.data = json.loads(path.read_text(encoding="utf-8"))
        # What each cache costs is known where the same model has a page of results.
        known = path.parent.parent / f"{pathlib.Path(self.data.get('settings', {}).get('model', '-')).stem}.json"
        self.results = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}

    def block_lines(self, block):
        if block == "balance" and "rows" in self.data:
            return self.balance_lines()
        if block == "provenance":
            run = self.data["run"]
            return [f"Commit {run['commit']}, {run['date']}: {run['cores']} cores of {run['machine']} ({run['instructions']}).", ""]
        if block not in self.data.get("workloads", {}):
            raise ResultsError(f"{self.name} has no block {block}; there are {', '.join(self.data.get('workloads', ['balance']))}")
        return report.table(self.data, block, self.results)

    def balance_lines(self):
        """The median of the rounds of each way to balance at each rate."""
        lines = ["| requests/s | balance | " + " | ".join(title for _, title in BALANCED) + " |", "|---:|---|" + "---:|" * len(BALANCED)]
        cells = {}
        for row in self.data["rows"]:
            cells.setdefault((row["rate"], row["balance"]), []).append(row)
        for (rate, way), rows in sorted(cells.items(), key=lambda item: item[0][0]):
            figures = [f"{statistics.median([row[key] for row in rows]):.4g}" for key, _ in BALANCED]
            lines.append(f"| {rate:g} | {way} | " + " | ".join(figures) + " |")
        return [*lines, ""]

    def figure(self, workload, server, field):
        cells = self.data.get("cells", {}).get(workload, {})
        sweeps = experiment.sweeps(cells.get(server, {}))
        if not sweeps:
            raise ResultsError(f"{self.name} has no result of {workload} with {server}")
        first = next(found for cell in cells.values() if (found := experiment.sweeps(cell)))
        texts = {"rate": lambda: report.rate_text(sweeps), "relative": lambda: report.relative_text(sweeps, first),
                 "bound": lambda: f"{self.data['workloads'][workload]['slo_ms']:.3g}"}
        if field not in texts:
            raise ResultsError(f"no field {field}; there are {', '.join(texts)}")
        return texts[field]()
