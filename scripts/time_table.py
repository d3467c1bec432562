#!/usr/bin/env python3
"""TTFT, TBT and total time of requests, and what they go to, from `bench model --json` files.

  scripts/time_table.py SCHEDULE...

SCHEDULE is the stem of two files, SCHEDULE-p.json of prompts and SCHEDULE-n.json of generated tokens.
A prompt is read in chunks, each of which costs a constant and a term that grows with the tokens before it. So the first
chunk and one far behind give the TTFT of every context. What svd-online and zack(online=on) do where the prompt ends
(their part "seal") happens once, at a cost of the same form. The total is for 256 generated tokens. All are compared with the first
schedule's `none`.
"""
import json
import os
import sys

GENERATED = 256
PARTS = ("linear", "rotate", "append", "attention", "seal", "other")


class Spec:
    def __init__(self):
        self.chunks = {}  # by depth: tokens, seconds, and seconds of each part
        self.steps = {}  # by depth: seconds, and of each part


def read(stem):
    specs, rows = {}, []
    for kind in "pn":
        with open(f"{stem}-{kind}.json", encoding="utf-8") as file:
            rows += json.load(file)["rows"]
    for row in rows:
        spec = specs.setdefault(row["kv"], Spec())
        n = row["n_prompt"] or row["n_gen"]
        seconds = n / row["avg_ts"]
        parts = {part: seconds * row["time_share"][part] for part in PARTS}
        if row["n_prompt"]:
            spec.chunks[row["n_depth"]] = (n, seconds, parts)
        else:
            spec.steps[row["n_depth"]] = (seconds / n, {part: parts[part] / n for part in PARTS})
    return specs


def prompt(spec, kv, context):
    """Seconds of each part, and of what is in none, of a prompt of `context` tokens."""
    (_, first), (far, last) = sorted(spec.chunks.items())
    size = first[0]
    n_chunks = context / size
    seconds = {}
    for part in (*PARTS, "rest"):
        of = [c[1] - sum(c[2].values()) if part == "rest" else c[2][part] for c in (first, last)]
        per_token = (of[1] - of[0]) / far
        at_end = of[0] + per_token * (context - size)
        once = part == "seal" and (kv.startswith("svd-online") or "online=on" in kv)
        seconds[part] = at_end if once else n_chunks * (of[0] + at_end) / 2
    return seconds


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("| context | kv | TTFT s | TBT ms | total s | of `none`: TTFT | TBT | total "
          "| share of TTFT: linear, rotate, attention, seal | of TBT |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---|---|")
    schedules = [(stem, read(stem)) for stem in sys.argv[1:]]
    for context in sorted(schedules[0][1]["none"].steps):
        baseline = None
        for stem, specs in schedules:
            schedule = "" if stem == sys.argv[1] else f", {os.path.basename(stem)}"
            for kv, spec in specs.items():
                prefill, (tbt, step) = prompt(spec, kv, context), spec.steps[context]
                ttft = sum(prefill.values())
                times = (ttft, tbt, ttft + GENERATED * tbt)
                if baseline is None:
                    baseline = times
                ratios = " | ".join(f"{time / of:.2f}" for time, of in zip(times, baseline))
                shares = " | ".join(", ".join(f"{100 * parts[part] / whole:.0f}%"
                                              for part in ("linear", "rotate", "attention", "seal"))
                                    for parts, whole in ((prefill, ttft), (step, tbt)))
                print(f"| {context} | `{kv}`{schedule} | {ttft:.2f} | {1000 * tbt:.1f} | {times[2]:.1f} "
                      f"| {ratios} | {shares} |")


if __name__ == "__main__":
    main()
