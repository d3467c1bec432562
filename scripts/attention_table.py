#!/usr/bin/env python3
"""Time of attention and of sealing by cache, from `bench model --json` whose first spec is `none`.

  scripts/attention_table.py BENCH.json

Sealing is part of what a cache of codes costs: every position is encoded once, GEAR's also decomposed. Both are
microseconds a token, so that with as many generated tokens as a buffer holds each of them pays its share.
"""
import json
import sys


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    tests = {}
    for row in rows:
        tests.setdefault((row["n_prompt"], row["n_gen"], row["n_depth"]), []).append(row)
    for (n_prompt, n_gen, depth), caches in tests.items():
        name = f"Prompt of {n_prompt} tokens" if n_prompt > 0 else f"{n_gen} generated tokens"
        print(f"{name} behind {depth}:\n\n| kv | attention, us a token | sealing | both, of `none` |")
        print("|---|---:|---:|---:|")
        whole = None
        for row in caches:
            attention, seal = (1e6 / row["avg_ts"] * row["time_share"][part] for part in ("attention", "seal"))
            whole = whole or attention + seal
            print(f"| `{row['kv']}` | {attention:.1f} | {seal:.1f} | {(attention + seal) / whole:.2f} |")
        print()


if __name__ == "__main__":
    main()
