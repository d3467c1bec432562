"""The rows of `bench model --json` by test, for the tables that scripts make of them."""
import json
import sys


def rows_by_test(usage):
    """The rows of each (n_prompt, n_gen, n_depth), in the order of the file that the only argument names."""
    if len(sys.argv) != 2:
        sys.exit(usage)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    tests = {}
    for row in rows:
        tests.setdefault((row["n_prompt"], row["n_gen"], row["n_depth"]), []).append(row)
    return tests


def microseconds_of(row):
    """A token's microseconds: all of them, those of attention, those of sealing."""
    total = 1e6 / row["avg_ts"]
    return total, total * row["time_share"]["attention"], total * row["time_share"]["seal"]
