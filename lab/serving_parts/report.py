"""Tables of what was measured: the rate each server bears, beside what its cache costs in accuracy."""

from . import experiment

LEAST_REQUESTS = 50  # of a run, below which a 90th percentile hangs on five requests or fewer
TOO_FEW = "too few requests"


def kl_of(results, kv):
    """KL and size of a cache in a file of docs/results and the part that they are from, or three times None."""
    for part in experiment.KL_PARTS:
        for record in results.get("records", ()):
            if record["part"] == part and record["kv"] == kv and "result" in record:
                return record["result"]["kl"], record["result"]["kv_fraction"], part
    return None, None, None


def requests_behind(sweep):
    """The fewest requests of the runs that a rate lies between: the last one within the bound and the first beyond it."""
    runs = sorted(sweep["runs"], key=lambda run: run["request_rate"])
    below = [run for run in runs if run["request_rate"] <= sweep["request_rate_at_slo"]][-1:]
    above = [run for run in runs if run["request_rate"] > sweep["request_rate_at_slo"]][:1]
    return min((run["completed"] for run in below + above), default=0)


def has_too_few(sweeps):
    return min(map(requests_behind, sweeps)) < LEAST_REQUESTS


def rate_text(sweeps):
    """The median of rounds; of an even number, the lower of the two in the middle. No rate where few requests stand behind one."""
    if has_too_few(sweeps):
        return TOO_FEW
    sweep = sorted(sweeps, key=lambda s: s["request_rate_at_slo"])[(len(sweeps) - 1) // 2]
    mark = {"between": "", "at least": ">= ", "below": "< "}[sweep["request_rate_at_slo_is"]]
    return f"{mark}{sweep['request_rate_at_slo']:.3g}"


def relative_text(sweeps, firsts):
    """The median of each round's rate over that of the first server in it, as far as what was measured says it; with the range where
    all rounds say it."""
    if has_too_few(sweeps) or has_too_few(firsts):
        return "-"
    pairs = sorted(zip(sweeps, firsts), key=lambda pair: ratio_of(*pair))
    kinds = {"between": {"between": "", "below": "> "}, "at least": {"between": ">= ", "below": "> "}, "below": {"between": "< "}}
    marks = [kinds[sweep["request_rate_at_slo_is"]].get(first["request_rate_at_slo_is"]) for sweep, first in pairs]
    middle = (len(pairs) - 1) // 2
    if marks[middle] is None:
        return "-"
    text = f"{marks[middle]}{ratio_of(*pairs[middle]):.2f}"
    low, high = (f"{ratio_of(*pairs[end]):.2f}" for end in (0, -1))
    return text if low == high or any(mark != "" for mark in marks) else f"{text} ({low} to {high})"


def ratio_of(sweep, first):
    return sweep["request_rate_at_slo"] / first["request_rate_at_slo"]


def table(data, workload, results):
    """Lines of Markdown for the servers of a workload, in the order in which they were measured."""
    base, cells = data["workloads"][workload], data["cells"].get(workload, {})
    first = next((found for cell in cells.values() if (found := experiment.sweeps(cell))), None)
    lines = [f"### {workload}: {base['kv_bytes'] / 2**20:.1f} MiB of KV, p90 at most {base['slo_ms']:.3g} ms a token", "",
             "| server | KV size % | KL | requests/s at the bound | relative |", "|---|---:|---:|---:|---:|"]
    is_marked = is_short = False
    for name, cell in cells.items():
        kl, size, part = kl_of(results, name)
        is_second = part is not None and part != experiment.KL_PARTS[0]
        is_marked |= is_second
        accuracy = f"{100 * size:.1f} | {kl:.4f}{' *' if is_second else ''}" if part else "- | -"
        if found := experiment.sweeps(cell):
            is_short |= has_too_few(found)
            lines.append(f"| `{name}` | {accuracy} | {rate_text(found)} | {relative_text(found, first)} |")
        else:
            lines.append(f"| `{name}` | {accuracy} | failed: {cell['failed']} | |")
    notes = [f"\\* of the part `{experiment.KL_PARTS[1]}`, on fewer windows of the same text"] if is_marked else []
    if is_short:
        notes.append(f"Rates behind which a run of fewer than {LEAST_REQUESTS} requests stands are not printed; `lab/serving.py run --requests` measures them.")
    return lines + [line for note in notes for line in ("", note)] + [""]
