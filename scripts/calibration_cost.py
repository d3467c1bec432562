#!/usr/bin/env python3
"""What calibrating a deep model costs, from `calibrate --random-model --json` of its first layers.

  scripts/calibration_cost.py MEASURED LAYERS COST.json

Memory and the time of the statistics go with the layers. Lathe's probes (src/calibration/sensitivity.cc) are four a
layer and one, and on the average each runs half of the layers: they go with the square. The vocabulary is taken to grow
with the layers too, so both are a little too high. Loading is apart.
"""
import json
import sys


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    measured, layers = int(sys.argv[1]), int(sys.argv[2])
    with open(sys.argv[3], encoding="utf-8") as file:
        cost = json.load(file)
    gib = cost["peak_resident_bytes"] / 2**30
    probes = cost["probe_seconds"]
    statistics = cost["seconds"] - cost["loading_seconds"] - probes
    factor = layers / measured
    probe_factor = (4 * layers + 1) / (4 * measured + 1) * factor
    print(f"| layers | peak resident GiB | statistics of {cost['tokens']} tokens, s | probes, s | together, min |")
    print("|---:|---:|---:|---:|---:|")
    for name, times, probe_times in ((f"{measured}", 1, 1), (f"{layers}, extrapolated", factor, probe_factor)):
        seconds = times * statistics, probe_times * probes
        print(f"| {name} | {times * gib:.2f} | {seconds[0]:.0f} | {seconds[1]:.0f} | {sum(seconds) / 60:.1f} |")


if __name__ == "__main__":
    main()
