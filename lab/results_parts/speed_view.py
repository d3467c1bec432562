"""Measured times as the documents want them: docs/results/speed/*.json, which lab/speed/time_tables.py writes on one machine each.

In a document `speed/NAME` stands for such a file. Its blocks are PART/ISA, with ISA an instruction set as KVLATHE_ISA names it: decode,
prompt, model, roofline and check (of the roofline); and provenance/ISA. Of a file of lab/speed/throughput_table.py they are throughput and
provenance; those of lab/speed/ranks_table.py ranks_view.py has. A figure is `speed/NAME PART/ISA KV FIELD` with FIELD SHAPE:times or SHAPE:us of attention. What is not measured yet is a dash, and a block of which nothing is measured says so.
"""

import json

from . import ranks_view
from .roofline import BANDWIDTHS, CORES, cost, ratio
from .store import ResultsError
from .view import code, markdown_table

SHAPES = {"smollm2": "SmolLM2", "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B", "llama3-8b": "Llama 3 8B"}
ROOFLINE_CACHES = ("kivi(bits=2,group=64,newest=32)", "lathe(ratio=8)", "lathe(ratio=8,keys=block)")
TESTS = {"decode": "decode", "prompt": "prompt of 512"}


def rows_of(data, isa, part, **wanted):
    return [row for row in data["rows"]
            if row["isa"] == isa and row["part"] == part and all(row[key] == value for key, value in wanted.items())]


def in_order(values):
    return list(dict.fromkeys(values))


def attention_cell(row):
    if row["kv"] == "none":
        return f"1 ({row['of_limit']:.2f}), {row['time_us']:.0f} us"
    return f"{row['times']:.2f} ({row['of_limit']:.2f})"


def attention_table(data, isa, part):
    rows = rows_of(data, isa, part)
    shapes = [shape for shape in SHAPES if any(row["shape"] == shape for row in rows)]
    by_cell = {(row["kv"], row["shape"]): row for row in rows}

    def cell(kv, shape):
        return attention_cell(by_cell[kv, shape]) if (kv, shape) in by_cell else "-"
    return markdown_table(["kv", *(SHAPES[shape] for shape in shapes)],
                          [[code(kv), *(cell(kv, shape) for shape in shapes)] for kv in in_order(row["kv"] for row in rows)])


def model_table(data, isa):
    """A table for each model: tokens/s, and beside them how many times as fast as `none` of the same run."""
    lines = []
    for shape in SHAPES:
        rows = rows_of(data, isa, "model", shape=shape)
        if not rows:
            continue
        columns = sorted({(row["test"], row["depth"]) for row in rows})
        by_cell = {(row["kv"], row["test"], row["depth"]): row for row in rows}

        def cell(key, by_cell=by_cell):
            if key not in by_cell:
                return "-"
            row = by_cell[key]
            return f"{row['tokens_per_s']:.1f}" + ("" if row["kv"] == "none" else f" ({row['times']:.2f})")
        titles = [f"{TESTS[test]} behind {depth}" for test, depth in columns]
        lines += [f"{SHAPES[shape]}:", ""]
        lines += markdown_table(["kv", *titles], [[code(kv), *(cell((kv, *column)) for column in columns)]
                                                  for kv in in_order(row["kv"] for row in rows)])
    return lines


def costs(data, isa):
    """{shape: {kv: (Cost, its row of decode)}} of what was measured in memory and in the caches of the processor."""
    found = {}
    for row in rows_of(data, isa, "decode"):
        times = {work["context"]: work["time_us"] for work in rows_of(data, isa, "work", shape=row["shape"], kv=row["kv"])}
        if len(times) > 1:
            found.setdefault(row["shape"], {})[row["kv"]] = (cost(row["bytes"], row["context"], times), row)
    return {shape: caches for shape, caches in found.items() if "none" in caches}


def roofline_table(data, isa):
    machines = [(cores, bandwidth) for cores in CORES for bandwidth in BANDWIDTHS]
    rows, found = [], costs(data, isa)
    for shape in SHAPES:
        caches = found.get(shape, {})
        rows += [[SHAPES[shape], code(kv), *(f"{ratio(caches[kv][0], caches['none'][0], *machine):.2f}" for machine in machines)]
                 for kv in ROOFLINE_CACHES if kv in caches]
    return markdown_table(["shape", "kv", *(f"{cores} cores, {bandwidth} GB/s" for cores, bandwidth in machines)], rows)


def check_table(data, isa):
    """What the model says of the machine that was measured, beside what was measured there."""
    rows, found = [], costs(data, isa)
    for shape in SHAPES:
        caches = found.get(shape, {})
        for kv, (of_kv, row) in caches.items():
            if kv != "none" and kv not in ROOFLINE_CACHES:
                continue
            machine = (row["threads"], row["read_gb_per_s"])
            said = of_kv.time_us(*machine)
            rows.append([SHAPES[shape], code(kv), f"{said:.0f}", f"{row['time_us']:.0f}", f"{row['time_us'] / said:.2f}",
                         of_kv.bound(*machine), f"{ratio(of_kv, caches['none'][0], *machine):.2f}", f"{row['times']:.2f}"])
    return markdown_table(["shape", "kv", "model, us", "measured, us", "measured / model", "bound by", "model, times as fast as `none`",
                           "measured, times"], rows)


def provenance_lines(data, isa):
    rows = [row for row in data["rows"] if row["isa"] == isa]
    read = [row["read_gb_per_s"] for row in rows if "read_gb_per_s" in row]
    beside = max(row["beside"] for row in rows)
    commits = ", ".join(in_order(row["commit"] + (" with changes" if row.get("dirty") else "") for row in rows))
    days = in_order(row["date"] for row in rows)
    days = days[0] if len(days) == 1 else f"{min(days)} to {max(days)}"
    memory = f", memory of {min(read):.0f} to {max(read):.0f} GB/s" if read else ""
    return [f"{data['machine']}, {rows[0]['threads']} threads, KVLATHE_ISA={isa}{memory}; commit {commits}, {days}. "
            f"What else ran took {'less than 0.05' if beside < 0.05 else f'up to {beside:.2f}'} cores.", ""]


def throughput_table(data):
    """What lab/speed/throughput_table.py measured: tokens/s of all sequences together, with the peak of the process at equal numbers of them and
    at as many as fit."""
    settings, rows = data["settings"], data["throughput"]
    by_n = {row["kv"]: {batch["n"]: batch for batch in row["batches"]} for row in rows}
    common = [n for n in (1, *settings["batches"]) if any(n in batches for batches in by_n.values())]
    of_none = by_n[rows[0]["kv"]]

    def speed(batch, beside):
        return f"{batch['tokens_per_s']:.1f}" + (f" ({batch['tokens_per_s'] / beside['tokens_per_s']:.2f})" if beside and batch is not beside else "")

    def peak(batch):
        return f"{batch['peak_bytes'] / 2**20:.0f}" if "peak_bytes" in batch else "-"
    cells = []
    for row in rows:
        batches, most = by_n[row["kv"]], row["n_fit"]
        at_once = [speed(batches[n], of_none.get(n)) if n in batches else "-" for n in common]
        peaks = [peak(batches[n]) if n in batches else "-" for n in common if n > 1]
        cells.append([code(row["kv"]), *at_once, *peaks, str(most), speed(batches[most], of_none[rows[0]["n_fit"]]), peak(batches[most]),
                      f"{row['kv_bytes'] / 2**20:.1f}", str(row["longest_prompt"])])
    header = ["kv", *(f"tokens/s of {n}" for n in common), *(f"peak MiB of {n}" for n in common if n > 1), "fit", "tokens/s of those", "peak MiB",
              "KV MiB of one", "longest prompt"]
    return [f"{settings['budget']} of KV memory, {settings['context']} positions of prompt in every sequence, {settings['generated']} tokens generated "
            "by each; tokens/s of all sequences together, and in brackets over those of the first row.", "", *markdown_table(header, cells)]


TABLES = {"decode": lambda data, isa: attention_table(data, isa, "decode"), "prompt": lambda data, isa: attention_table(data, isa, "prompt"),
          "model": model_table, "roofline": roofline_table, "check": check_table, "provenance": provenance_lines}


class SpeedView:
    def __init__(self, path, name):
        self.name = name
        self.data = json.loads(path.read_text(encoding="utf-8"))

    def block_lines(self, block):
        if "throughput" in self.data:
            return self.throughput_lines(block)
        if "links" in self.data:
            return ranks_view.block_lines(self.data, block)
        part, _, isa = block.partition("/")
        if part not in TABLES or not isa:
            raise ResultsError(f"{self.name} has no block {block}; there are {', '.join(TABLES)}, each with /ISA")
        is_empty = not any(row["isa"] == isa for row in self.data["rows"])
        return ([] if is_empty else TABLES[part](self.data, isa)) or ["Not measured yet.", ""]

    def throughput_lines(self, block):
        if block == "throughput":
            return throughput_table(self.data)
        if block == "provenance":
            run = self.data["run"]
            return [f"{self.data['settings']['model']}, commit {run['commit']}, {run['date']}: {run['cores']} cores of {run['machine']} "
                    f"({run['instructions']}).", ""]
        raise ResultsError(f"{self.name} has no block {block}; there are throughput and provenance")

    def figure(self, part, kv, field):
        part, _, isa = part.partition("/")
        shape, _, what = field.partition(":")
        key = {"times": "times", "us": "time_us"}.get(what)
        rows = rows_of(self.data, isa, part, shape=shape, kv=kv) if key and part in ("decode", "prompt") else []
        if not rows:
            raise ResultsError(f"{self.name} has no {field} of {kv} in {part}/{isa}")
        return f"{rows[0][key]:.2f}" if what == "times" else f"{rows[0][key]:.0f}"
