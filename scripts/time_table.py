#!/usr/bin/env python3
"""TTFT, TBT and total time of requests, from `bench model --json` of prompts and of generated tokens.

  scripts/time_table.py PROMPTS.json TOKENS.json

A prompt is read in chunks, each of which costs a constant and a term that grows with the tokens before it. So the
first chunk and the last one of a context give the TTFT: their mean, times the number of chunks. What svd-online does
where the prompt ends (its part "seal") happens once. The total is for 256 generated tokens.
"""
import json
import sys

GENERATED = 256


def rows(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)["rows"]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    chunks, tbt = {}, {}
    for row in rows(sys.argv[1]):
        seconds = row["n_prompt"] / row["avg_ts"]
        chunks[row["kv"], row["n_depth"]] = (row["n_prompt"], seconds, seconds * row["time_share"]["seal"])
    for row in rows(sys.argv[2]):
        tbt[row["kv"], row["n_depth"]] = 1 / row["avg_ts"]
    print("| context | kv | TTFT s | TBT ms | total s | of `none`: TTFT | TBT | total |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    baseline = None
    for context in sorted({depth for _, depth in tbt}):
        for kv in dict.fromkeys(name for name, _ in tbt):
            _, first, first_seal = chunks[kv, 0]
            size, last, last_seal = chunks[kv, max(0, context - chunks[kv, 0][0])]
            n_chunks = context / size
            once = kv.startswith("svd-online")
            seals = last_seal if once else n_chunks * last_seal
            ttft = n_chunks * (first - first_seal + last - last_seal) / 2 + seals
            times = (ttft, 1000 * tbt[kv, context], ttft + GENERATED * tbt[kv, context])
            if kv == "none":
                baseline = times
            ratios = " | ".join(f"{time / reference:.2f}" for time, reference in zip(times, baseline))
            print(f"| {context} | `{kv}` | {times[0]:.2f} | {times[1]:.1f} | {times[2]:.1f} | {ratios} |")


if __name__ == "__main__":
    main()
