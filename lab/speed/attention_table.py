#!/usr/bin/env python3
"""Time of attention and of sealing by cache, from `bench model --json` whose first spec is `none`.

  lab/speed/attention_table.py BENCH.json

Sealing is part of what a cache of codes costs: every position is encoded once, GEAR's also decomposed. Both are
microseconds a token, so that with as many generated tokens as a buffer holds each of them pays its share.
"""
from bench_rows import microseconds_of, rows_by_test


def main():
    for (n_prompt, n_gen, depth), caches in rows_by_test(__doc__).items():
        name = f"Prompt of {n_prompt} tokens" if n_prompt > 0 else f"{n_gen} generated tokens"
        print(f"{name} behind {depth}:\n\n| kv | attention, us a token | sealing | both, of `none` |")
        print("|---|---:|---:|---:|")
        whole = None
        for row in caches:
            _, attention, seal = microseconds_of(row)
            whole = whole or attention + seal
            print(f"| `{row['kv']}` | {attention:.1f} | {seal:.1f} | {(attention + seal) / whole:.2f} |")
        print()


if __name__ == "__main__":
    main()
