#!/usr/bin/env python3
"""Throughput and peak memory against the number of sequences under one KV budget, and the longest prompt that it holds.

  lab/speed/throughput_table.py KVLATHE (CONFIG.json | MODEL) BUDGET CONTEXT KV... [--batches 4,16] [--json FILE [--commit ID]]

Of a CONFIG.json weights are random. Sequences hold CONTEXT positions of prompt and decode 64 more, which seal one buffer of every cache
of codes: each token pays its share of sealing. Every cache is measured at 1 sequence, at each of the batches that the budget holds, and
at as many as it is sure to hold, each of the latter in a process of its own, whose peak resident memory stands beside. Longest prompts
follow from bytes alone.
With --json the rows go to a file from which lab/results.py fill makes the table.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "scripts")]

from results_parts import provenance  # noqa: E402
from results_parts.speed_view import throughput_table  # noqa: E402
from results_parts.store import rounded, write_whole  # noqa: E402

GENERATED = 64


def bench(options, specs, n_sequences):
    """The rows of one process, and its peak resident bytes."""
    source = ["--random-model", options.model] if options.model.endswith(".json") else ["-m", options.model]
    command = [options.kvlathe, "bench", "model", *source, "--kv-memory", options.budget, "-p", "0", "-n", str(GENERATED), "-d",
               str(options.context), "-r", "1", "--parallel", str(n_sequences), "--no-bandwidth", "--json"]
    for kv in specs:
        command += ["--kv", kv]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status != 0:
        sys.exit(f"{' '.join(command)} failed")
    return json.loads(output)["rows"], usage.ru_maxrss * 1024


def measured(options):
    alone, _ = bench(options, options.kv, 1)
    rows = []
    for row in alone:
        kv, most = row["kv"], row["n_fit"]
        if most < 1:
            sys.exit(f"{options.budget} does not hold {options.context} positions of {kv}")
        batches = [{"n": 1, "tokens_per_s": row["avg_ts"]}]
        for n in sorted({n for n in options.batches if n < most} | {most}):
            (at_once,), peak = bench(options, [kv], n)
            batches.append({"n": n, "tokens_per_s": at_once["avg_ts"], "peak_bytes": peak})
        rows.append({"kv": kv, "n_fit": most, "kv_bytes": row["kv_bytes"], "longest_prompt": row["longest_prompt"], "batches": batches})
        print(f"{kv}: {most} fit, {batches[-1]['tokens_per_s']:.1f} tokens/s", file=sys.stderr, flush=True)
    return rows


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvlathe")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("budget")
    parser.add_argument("context", type=int)
    parser.add_argument("kv", nargs="+")
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], default=[4, 16])
    parser.add_argument("--json", type=pathlib.Path, help="docs/results/speed/NAME.json")
    parser.add_argument("--commit", help="that the program was built from")
    parser.add_argument("--allow-dirty", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    run = provenance.run_facts(*provenance.commit_of(ROOT, options.commit, options.allow_dirty)) if options.json else {}
    data = {"settings": {"model": pathlib.Path(options.model).name, "budget": options.budget, "context": options.context, "batches": options.batches,
                         "generated": GENERATED},
            "run": run, "throughput": measured(options)}
    if options.json:
        write_whole(options.json, json.dumps(rounded(data), indent=1) + "\n")
    print("\n".join(throughput_table(data)))


if __name__ == "__main__":
    main()
