#!/usr/bin/env python3
"""One Markdown table of several profiles of `kvlathe tune`: how far each method compresses on each goal.

  scripts/tuned_table.py ACCURACY PROFILE...

A cell is 1 / kv_fraction at the model's full context, and in brackets on the goal itself, whose examples may be
shorter; "-": nothing smaller than the uncompressed cache keeps the accuracy. The last row is the baseline's score.
"""
import json
import sys


def cell(profile, goal_idx, kv):
    if kv is None:
        return "-"
    point = next(p for p in profile["points"] if p["kv"] == kv)
    return f"{1 / point['kv_fraction']:.2f} ({1 / point['scores'][goal_idx]['kv_fraction']:.2f})"


def columns(accuracy, profile):
    target = next(t for t in profile["targets"] if t["accuracy"] == accuracy)
    for i, goal in enumerate(profile["goals"]):
        cells = {m["name"]: cell(profile, i, m["kv"]) for m in target["methods"]}
        score = profile["points"][0]["scores"][i]
        error = f" ± {score['standard_error']:.2f}" if score["standard_error"] else ""
        yield goal["name"].split()[0], cells, f"{score['value']:.2f}{error}"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    accuracy = float(sys.argv[1])
    table = []
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            table += columns(accuracy, json.load(file))
    print("| method | " + " | ".join(name for name, _, _ in table) + " |")
    print("|---" * (len(table) + 1) + "|")
    for method in table[0][1]:
        print(f"| `{method}` | " + " | ".join(cells.get(method, "") for _, cells, _ in table) + " |")
    print("| score of `none` | " + " | ".join(score for _, _, score in table) + " |")


if __name__ == "__main__":
    main()
