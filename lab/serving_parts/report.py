"""Tables of what was measured: the rate each server bears, beside what its cache costs in accuracy."""

from . import experiment


def kl_of(results, kv):
    """KL and size of a cache in a file of docs/results and the part that they are from, or three times None."""
    for part in experiment.KL_PARTS:
        for record in results.get("records", ()):
            if record["part"] == part and record["kv"] == kv and "result" in record:
                return record["result"]["kl"], record["result"]["kv_fraction"], part
    return None, None, None


def rate_text(sweep):
    mark = {"between": "", "at least": ">= ", "below": "< "}[sweep["request_rate_at_slo_is"]]
    return f"{mark}{sweep['request_rate_at_slo']:.3g}"


def relative_text(sweep, first):
    """The rate over that of the first server, as far as what was measured says it."""
    ratio = f"{sweep['request_rate_at_slo'] / first['request_rate_at_slo']:.2f}"
    kinds = (sweep["request_rate_at_slo_is"], first["request_rate_at_slo_is"])
    return {("between", "between"): ratio, ("at least", "between"): f">= {ratio}", ("below", "between"): f"< {ratio}",
            ("between", "below"): f"> {ratio}", ("at least", "below"): f"> {ratio}"}.get(kinds, "-")


def table(data, workload, results):
    """Lines of Markdown for the servers of a workload, in the order in which they were measured."""
    base, cells = data["workloads"][workload], data["cells"].get(workload, {})
    first = next((cell["sweep"] for cell in cells.values() if "sweep" in cell), None)
    lines = [f"### {workload}: {base['kv_bytes'] / 2**20:.1f} MiB of KV, p90 at most {base['slo_ms']:.3g} ms a token", "",
             "| server | KV size % | KL | requests/s at the bound | relative |", "|---|---:|---:|---:|---:|"]
    is_marked = False
    for name, cell in cells.items():
        kl, size, part = kl_of(results, name)
        is_second = part is not None and part != experiment.KL_PARTS[0]
        is_marked |= is_second
        accuracy = f"{100 * size:.1f} | {kl:.4f}{' *' if is_second else ''}" if part else "- | -"
        if "sweep" in cell:
            lines.append(f"| `{name}` | {accuracy} | {rate_text(cell['sweep'])} | {relative_text(cell['sweep'], first)} |")
        else:
            lines.append(f"| `{name}` | {accuracy} | failed: {cell['failed']} | |")
    return lines + (["", f"\\* of the part `{experiment.KL_PARTS[1]}`, on fewer windows of the same text"] if is_marked else []) + [""]
