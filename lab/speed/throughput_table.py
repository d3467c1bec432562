#!/usr/bin/env python3
"""Throughput and peak memory against the number of sequences under one KV budget, and the longest prompt that it holds.

  lab/speed/throughput_table.py KVLATHE CONFIG.json BUDGET CONTEXT KV...

Weights are random. Sequences hold CONTEXT positions of prompt and decode 64 more, which seal one buffer of every cache
of codes: each token pays its share of sealing. Every cache is measured at 1, 4, 16 and as many sequences as the budget is sure to hold, the last in a process
that does nothing larger, whose peak resident memory is that of the row. Longest prompts follow from bytes alone.
"""
import json
import os
import subprocess
import sys

GENERATED = 64
COMMON_BATCHES = (4, 16)


def bench(kvlathe, config, budget, context, specs, batches):
    """The rows of one process, and its peak resident bytes."""
    command = [kvlathe, "bench", "model", "--random-model", config, "--kv-memory", budget, "-p", "0", "-n",
               str(GENERATED), "-d", str(context), "-r", "1", "--parallel", ",".join(map(str, batches)), "--json"]
    for kv in specs:
        command += ["--kv", kv]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    if status != 0:
        sys.exit(f"{' '.join(command)} failed")
    return json.loads(output)["rows"], usage.ru_maxrss * 1024


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    kvlathe, config, budget, context = sys.argv[1:5]
    alone, _ = bench(kvlathe, config, budget, context, sys.argv[5:], [1])
    tables = {row["kv"]: {1: row["avg_ts"]} for row in alone}
    peaks = {}
    for row in alone:
        kv, most = row["kv"], row["n_fit"]
        if most < 1:
            sys.exit(f"{budget} does not hold {context} positions of {kv}")
        batches = [n for n in COMMON_BATCHES if n < most] + [most]
        measured, peaks[kv] = bench(kvlathe, config, budget, context, [kv], batches)
        tables[kv].update({batch["n_parallel"]: batch["avg_ts"] for batch in measured})
    columns = (1, *COMMON_BATCHES)
    print(f"{budget} of KV memory, {context} positions of prompt in every sequence; tokens/s of all sequences together.\n")
    print("| kv | " + " | ".join(f"{n} at once" for n in columns) +
          " | as many as fit | tokens/s | of `none` | KV MiB of one | peak resident MiB | longest prompt |")
    print("|---|" + "---:|" * (len(columns) + 6))
    baseline = None
    for row in alone:
        speeds, most = tables[row["kv"]], row["n_fit"]
        baseline = baseline or speeds[most]
        cells = [f"{speeds[n]:.1f}" if n in speeds else "" for n in columns]
        cells += [str(most), f"{speeds[most]:.1f}", f"{speeds[most] / baseline:.2f}", f"{row['kv_bytes'] / 2**20:.1f}",
                  f"{peaks[row['kv']] / 2**20:.0f}", str(row["longest_prompt"])]
        print(f"| `{row['kv']}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
