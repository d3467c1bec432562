#!/usr/bin/env python3
"""Where the time of GEAR goes, from `bench model --json` of its quantizer, of that with factors, and of all of it.

  lab/speed/gear_shares.py ROWS.json

The rows of a test are those three caches in this order. What a part costs is what the cache that has it takes longer
than the one without; so the parts of a row add up to the time of GEAR. Differences of times are as noisy as times are.
"""
from bench_rows import microseconds_of, rows_by_test


def parts(row):
    """Microseconds a token: sealing, attention, and everything else."""
    total, attention, seal = microseconds_of(row)
    return seal, attention, total - seal - attention


def main():
    print("| test | us a token | sealing: codes | low-rank | exact | attention: codes | low-rank | exact | other |")
    print("|---|" + "---:|" * 8)
    for (n_prompt, n_gen, depth), caches in rows_by_test(__doc__).items():
        codes, factors, everything = (parts(row) for row in caches)
        total = sum(everything)
        shares = []
        for part in (0, 1):
            shares += [codes[part], factors[part] - codes[part], everything[part] - factors[part]]
        shares.append(everything[2])
        name = f"prompt of {n_prompt}" if n_prompt > 0 else f"{n_gen} tokens"
        cells = " | ".join(f"{100 * share / total:.1f}%" for share in shares)
        print(f"| {name} behind {depth} | {total:.0f} | {cells} |")


if __name__ == "__main__":
    main()
