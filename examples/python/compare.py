#!/usr/bin/env python3
"""Compares caches of a model on a text of your own.

usage: compare.py MODEL [TEXT]
    compare.py models/lathe-nano novel.txt
"""

import sys

import kvlathe

CACHES = ["none", "kivi(bits=4,group=64)", "lathe(ratio=4)", "snapkv(keep=0.5)"]


def main(model: str, text: str | None = None) -> None:
    with kvlathe.LLM(model, max_model_len=256) as llm:
        # What they take, and what is predicted of their loss, before anything runs.
        for kv in CACHES:
            cost = llm.cost(kv)
            predicted = "" if cost.predicted_kl is None else f", predicted KL {cost.predicted_kl:.4f}"
            print(f"{kv}: {cost.fraction:.1%} of 16 bits{predicted}")

        # What they lose on the text: its first 4 windows of 256 tokens.
        comparison = llm.compare(CACHES, text, n_windows=4)
        print(comparison)
        best = min((row for row in comparison if row.kl < 0.1), key=lambda row: row.kv_fraction)
        print(f"the smallest with a KL below 0.1 is {best.kv}")

        # Where its bits lie.
        heads = llm.inspect("lathe(ratio=4)")["basis"]["heads"]
        for head in heads[:4]:
            print(f"layer {head['layer']}, KV head {head['kv_head']}: ranks {head['rank_k']} and {head['rank_v']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
