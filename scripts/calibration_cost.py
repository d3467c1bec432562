#!/usr/bin/env python3
"""What calibrating a deep model costs, from `calibrate --random-model --json` of its first 1, 2 and 3 layers.

  scripts/calibration_cost.py LAYERS ONE.json TWO.json THREE.json

Memory is a constant and a part per layer: two measurements give both, the third says how well that holds. Time is
gathering statistics, which goes with the layers, and lathe's probes: each is a forward pass with a part per layer and
one for the vocabulary. The number of probes is that of src/calibration/sensitivity.cc, for 8 KV heads. Loading is apart.
"""
import json
import sys


def probes(n_layers, n_kv_heads=8, kinds=8, most=96):
    parts = min(max(most // (kinds * n_layers), 1), n_kv_heads)
    return kinds * n_layers * parts + 2  # and the model as it is, and with 8 bits everywhere


def solve(rows, values):
    """Gauss without pivoting; the three equations are independent."""
    rows = [row + [value] for row, value in zip(rows, values)]
    for i, pivot in enumerate(rows):
        for j, row in enumerate(rows):
            if i != j:
                factor = row[i] / pivot[i]
                rows[j] = [x - factor * y for x, y in zip(row, pivot)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def terms(n_layers):
    n = probes(n_layers)
    return [n_layers, n, n * n_layers]


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    n_layers = int(sys.argv[1])
    done = []
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            done.append(json.load(file))
    memory = [run["peak_resident_bytes"] / 2**30 for run in done]
    seconds = [run["seconds"] - run["loading_seconds"] for run in done]
    print("| layers | peak resident GiB | seconds after loading | probes |")
    print("|---:|---:|---:|---:|")
    for i in range(3):
        print(f"| {i + 1} | {memory[i]:.2f} | {seconds[i]:.1f} | {probes(i + 1)} |")
    per_layer = memory[1] - memory[0]
    parts = solve([terms(i) for i in (1, 2, 3)], seconds)
    time = sum(part * term for part, term in zip(parts, terms(n_layers)))
    print(f"| {n_layers} (extrapolated) | {memory[0] + (n_layers - 1) * per_layer:.2f} | {time:.0f} | {probes(n_layers)} |")
    print(f"\nThree layers by the same line: {memory[0] + 2 * per_layer:.2f} GiB. Statistics {parts[0]:.2f} s a layer; "
          f"a probe {parts[1]:.3f} s and {parts[2]:.3f} s a layer.")


if __name__ == "__main__":
    main()
