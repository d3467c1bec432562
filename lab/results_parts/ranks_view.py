"""Models that several ranks share, as the documents want them: docs/results/speed/ranks.json of lab/speed/ranks_table.py. Its blocks are
shares, check, paper/LINK with LINK one of LINKS, and provenance."""

from .ranks_model import Link, Machine, Shape, messages_us, tokens_per_s
from .store import ResultsError
from .view import code, markdown_table

SHAPES = {"Llama 3 8B": Shape(32, 4096, 32, 8, 128, 14336, 128256), "Llama 3 70B": Shape(80, 8192, 64, 8, 128, 28672, 128256)}
MEASURED = {"smollm2": Shape(30, 576, 9, 3, 64, 1536, 49152), "qwen2.5-coder-1.5b": Shape(28, 1536, 12, 2, 128, 8960, 151936)}
NAMES = {"smollm2": "SmolLM2", "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B"}
WEIGHTS = {"4 bits": 4.5, "16 bits": 16}  # with the scales of a block
CACHES = {"none": 1, "lathe(ratio=8)": 8}
GRIDS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (4, 2))
CONTEXT = 8192
MACHINE = Machine(gb_per_s=200, tflops=4)
LINKS = {"1gbit": Link(1, 60), "10gbit": Link(10, 30), "100gbit": Link(100, 30), "100gbit-rdma": Link(100, 5)}
RATES = {"memory": None, "loopback": None, "1gbit": 1, "100mbit": 0.1}
TESTS = {"pp": "prompt", "tg": "generating"}
LINK_NAMES = {"threads": "one process, two threads", "memory": "shared memory", "loopback": "TCP, loopback",
              "1gbit": "TCP, 1 Gbit/s", "100mbit": "TCP, 100 Mbit/s"}


def percent(share):
    return f"{100 * share:.0f}%"


def rows_of(data, **wanted):
    return [row for row in data["rows"] if all(row[key] == value for key, value in wanted.items())]


def shares_table(data):
    rows, links = [], ["alone", *LINK_NAMES]
    for row in sorted(rows_of(data, tells_waiting=False),
                      key=lambda row: (list(MEASURED).index(row["model"]), row["test"], links.index(row["link"]))):
        where = {"model": row["model"], "test": row["test"]}
        if row["link"] == "alone":
            continue
        [alone] = rows_of(data, link="alone", **where)
        shares = rows_of(data, link=row["link"], tells_waiting=True, **where)
        parts = [percent(shares[0][part]) if shares else "" for part in ("compute", "waiting", "messages")]
        rows.append([NAMES[row["model"]], TESTS[row["test"]], LINK_NAMES[row["link"]], f"{row['tokens_per_s']:.1f}",
                     f"{row['tokens_per_s'] / alone['tokens_per_s']:.2f}", *parts])
    return markdown_table(["model", "test", "link", "tokens/s", "times one thread", "compute", "waiting", "messages"], rows)


def link_of(data, name):
    """A measured link: what a sum of 4 KiB takes is latency but for its bytes, whose rate is that of the link, or what larger sums show."""
    sums = {row["bytes"]: row["us"] for row in data["links"] if row["link"] == name and row["what"] == "sum"}
    small, large = min(sums), max(sums)
    gbit = RATES[name] or (large - small) * 8 / max(1e-3, sums[large] - sums[small]) / 1e3
    return Link(gbit, max(0.0, sums[small] - small * 8 / gbit / 1e3))


def check_table(data):
    """Half of what one process takes for a step, and the messages of the model, beside what was measured."""
    rows = []
    for row in rows_of(data, tells_waiting=False, test="tg"):
        if row["link"] not in RATES:
            continue
        [alone] = rows_of(data, model=row["model"], test="tg", link="alone")
        link = link_of(data, row["link"])
        sums, rest = messages_us(MEASURED[row["model"]], 2, 1, link)
        half = 1e6 / alone["tokens_per_s"] / 2
        said, measured = 1e6 / (half + sums + rest), row["tokens_per_s"]
        rows.append([NAMES[row["model"]], LINK_NAMES[row["link"]], f"{link.latency_us:.0f} us, {link.gbit:.3g} Gbit/s", f"{half / 1e3:.2f}",
                     f"{sums / 1e3:.2f}", f"{rest / 1e3:.2f}", f"{said:.1f}", f"{measured:.1f}", f"{measured / said:.2f}"])
    return markdown_table(["model", "link", "latency and rate", "compute, ms", "sums, ms", "other messages, ms", "model, tokens/s",
                           "measured, tokens/s", "measured / model"], rows)


def paper_table(link):
    rows = []
    for name, shape in SHAPES.items():
        for weights, bits in WEIGHTS.items():
            for kv, ratio in CACHES.items():
                speeds = [tokens_per_s(shape, bits, ratio, CONTEXT, tp, pp, MACHINE, link) for tp, pp in GRIDS]
                rows.append([name, weights, code(kv), *(f"{speed:.1f}" for speed in speeds)])
    return markdown_table(["shape", "weights", "kv", *(f"tp {tp}" + (f", pp {pp}" if pp > 1 else "") for tp, pp in GRIDS)], rows)


def block_lines(data, block):
    part, _, link = block.partition("/")
    if part == "paper" and link in LINKS:
        return paper_table(LINKS[link])
    if block == "provenance":
        run, beside = data["run"], max(row.get("beside", 0) for row in data["rows"])
        return [f"Commit {run['commit']}{' with changes' if run.get('dirty') else ''}, {run['date']}: {run['cores']} cores of {run['machine']} "
                f"({run['instructions']}), one thread a rank. What else ran took up to {beside:.2f} cores, "
                "where that is known.", ""]
    tables = {"shares": shares_table, "check": check_table}
    if block not in tables:
        raise ResultsError(f"speed/ranks has no block {block}; there are {', '.join([*tables, *('paper/' + name for name in LINKS), 'provenance'])}")
    return tables[block](data)
