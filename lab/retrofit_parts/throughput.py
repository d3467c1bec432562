"""What merging is worth in tokens per second at equal KV memory: random weights in a given shape that decide at a compression ratio (CR)."""

import json

COMPRESSIONS = (2, 4, 8)
BUDGET = "512MiB"
DEPTH = 1536  # positions that every sequence has before it generates
DEPTHS = (512, 1024, DEPTH)  # at which one sequence is timed
N_GENERATED, REPETITIONS = 16, 2
CLOSE = 0.05  # of a CR that counts as the one that was asked for


class Bench:
    def __init__(self, call, config):
        self.call, self.config = call, config

    def rows(self, kv, asked, depths, parallel, n_generated=N_GENERATED, repetitions=REPETITIONS):
        deciding = () if asked is None else ("--compression", f"{asked:.4g}")
        return json.loads(self.call("bench", "model", "--random-model", self.config, *deciding, "--kv", kv, "-p", 0, "-n", n_generated,
                                    "-d", ",".join(map(str, depths)), "--parallel", parallel, "--kv-memory", BUDGET, "-r", repetitions,
                                    "--json"))["rows"]

    def asked_for(self, kv, compression):
        """What to ask for so that CR comes out: on other random tokens than those that the decisions are set on it may be lower."""
        asked = compression
        for _ in range(2):
            reached = self.rows(kv, asked, (DEPTH,), 1, n_generated=1, repetitions=1)[0]["positions_per_entry"]
            if abs(reached / compression - 1) <= CLOSE:
                break
            asked *= compression / reached
        return asked

    def measure(self, kv, compression):
        asked = None if compression is None else self.asked_for(kv, compression)
        one = self.rows(kv, asked, DEPTHS, 1)
        most = self.rows(kv, asked, (DEPTH,), one[-1]["n_fit"])[0]
        return {"kv": kv, "asked": asked, "compression": one[-1].get("positions_per_entry", 1),
                "one": [{"depth": row["n_depth"], "tokens_per_second": row["avg_ts"]} for row in one],
                "sequences": most["n_parallel"], "tokens_per_second": most["avg_ts"], "stddev": most["stddev_ts"]}


def measured(call, config, kv):
    """The uncompressed cache, and `kv` at each ratio."""
    bench = Bench(call, config)
    yield bench.measure("none", None)
    for compression in COMPRESSIONS:
        yield bench.measure(kv, compression)


def table(rows):
    """The block `throughput` of a document."""
    whole = rows[0]
    lines = ["| cache | positions per entry | sequences in " + BUDGET + " | tokens/s, all | times `none` | tokens/s, one alone | times `none` |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        one, whole_one = row["one"][-1]["tokens_per_second"], whole["one"][-1]["tokens_per_second"]
        lines.append(f"| `{row['kv']}` | {row['compression']:.2f} | {row['sequences']} | {row['tokens_per_second']:.1f} | "
                     f"{row['tokens_per_second'] / whole['tokens_per_second']:.2f} | {one:.2f} | {one / whole_one:.2f} |")
    return [*lines, ""]


def charts(rows):
    """By name, what `kvlathe chart` draws."""
    latency = [{"name": row["kv"] if row["asked"] is None else f"{row['kv']}, CR {row['compression']:.1f}",
                "points": [[point["depth"], 1000 / point["tokens_per_second"]] for point in row["one"]]} for row in rows]
    return {"latency": {"title": "Latency of a token by position, one sequence", "x": {"label": "position", "log": False},
                        "y": {"label": "ms per token", "log": False}, "series": latency},
            "throughput": {"title": f"Throughput at the largest batch in {BUDGET}", "x": {"label": "positions per entry", "log": False},
                           "y": {"label": "tokens/s", "log": False},
                           "series": [{"name": "all sequences", "points": [[row["compression"], row["tokens_per_second"]] for row in rows]}]}}
