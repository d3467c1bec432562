#!/usr/bin/env python3
"""How far logits drift from the uncompressed model's while tokens follow the prompt, from `compare --json`.

  scripts/deviation_table.py FIELD COMPARISON.json     FIELD: logit_deviation, kl or top1_agreement
"""
import json
import sys


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    n = len(rows[0]["over_steps"])
    print("| kv | " + " | ".join(f"{i + 1}/{n}" for i in range(n)) + " | last over first |")
    print("|---|" + "---:|" * (n + 1))
    for row in rows:
        values = [stretch[sys.argv[1]] for stretch in row["over_steps"]]
        ratio = values[-1] / values[0] if values[0] > 0 else float("nan")
        print(f"| `{row['kv']}` | " + " | ".join(f"{value:.4f}" for value in values) + f" | {ratio:.2f} |")


if __name__ == "__main__":
    main()
