#!/usr/bin/env python3
"""Seconds of attention over a prompt by retention method, from `bench model --json` whose first spec is `none`.

  scripts/votes_table.py BENCH.json
"""
import json
import sys


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    seconds = [row["n_prompt"] / row["avg_ts"] * row["time_share"]["attention"] for row in rows]
    print("| kv | attention, s | more than `none` |")
    print("|---|---:|---:|")
    for row, time in zip(rows, seconds):
        print(f"| `{row['kv']}` | {time:.2f} | {100 * (time / seconds[0] - 1):.0f}% |")


if __name__ == "__main__":
    main()
