#!/usr/bin/env python3
"""Measures a model that two ranks share on links of several rates, into docs/results/speed/ranks.json, from which `lab/results.py fill`
writes tables.

  lab/speed/ranks_table.py [--kvlathe PROGRAM] [--comm-bench PROGRAM] [--only MODEL]...

Links: `memory` (two processes, as mpirun starts them), `loopback` (the same over TCP), 1gbit and 100mbit. For the last two, two network namespaces
stand for two machines; a veth pair between them is slowed on both sides (tbf), mpirun starts the second rank there by `ip netns exec` where it
would use ssh, and all is taken down in the end. That needs root and iproute2. `alone` is one process of one thread, `threads` one of two. Each
rank has one thread. On every link kvlathe's `bench model` runs with and without --tell-waiting, which costs a message a sum: speeds are of runs without, shares of runs
with it. comm_bench, where it is there, measures the link itself. What else ran meanwhile is kept with each row (but not
for namespaces, where nobody waits for the second rank and knows what it took); where that was more than a tenth of a core, it is measured
again, three times at most, and the least disturbed counts.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "scripts")]

import time_tables  # noqa: E402
from results_parts import provenance  # noqa: E402
from results_parts.ranks_view import MEASURED, RATES  # noqa: E402
from results_parts.store import ResultsError, write_whole  # noqa: E402

MODELS = {"smollm2": ["-p", "256", "-n", "64"], "qwen2.5-coder-1.5b": ["-p", "64", "-n", "24"]}
PLACES = {f"kvlathe-{os.getpid()}-rank-{i}": f"10.78.0.{i + 1}" for i in range(2)}  # namespaces and their addresses
NETWORK = "10.78.0.0/24"
QUIET = 0.1  # processors
SUM_BYTES = (4096, 65536)  # the second where nobody says what the rate of the link is
# Ranks of this measurement may be root's, and have no more processors than there are.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=dict(os.environ, **ENVIRONMENT))
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().split("\n")
        raise ResultsError(f"{' '.join(map(str, words))}: {lines[0]}")
    return done.stdout


@contextlib.contextmanager
def two_machines(rate):
    """The words that start two ranks, one in each of two namespaces with a link of that rate between them."""
    here, there = PLACES
    with tempfile.TemporaryDirectory(prefix="kvlathe_ranks_") as folder:
        agent = pathlib.Path(folder) / "agent.sh"  # what mpirun takes for ssh: HOST WORDS...
        agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {there} unshare -u sh -c \'hostname {there}; exec sh -c "$*"\' sh "$@"\n')
        agent.chmod(0o755)
        try:
            for place in PLACES:
                run(["ip", "netns", "add", place])
                run(["ip", "netns", "exec", place, "ip", "link", "set", "lo", "up"])
            run(["ip", "link", "add", "link0", "netns", here, "type", "veth", "peer", "name", "link0", "netns", there])
            for place, address in PLACES.items():
                within = ("ip", "netns", "exec", place)
                run([*within, "ip", "address", "add", f"{address}/24", "dev", "link0"])
                run([*within, "ip", "link", "set", "link0", "up"])
                run([*within, "tc", "qdisc", "add", "dev", "link0", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "50ms"])
            yield ["ip", "netns", "exec", here, "mpirun", "-q", "--bind-to", "none", "-n", "2",
                   "--host", ",".join(f"{address}:1" for address in PLACES.values()), "--mca", "plm_rsh_agent", agent,
                   "--mca", "oob_tcp_if_include", NETWORK, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", NETWORK]
        finally:
            for place in PLACES:
                subprocess.run(["ip", "netns", "delete", place], capture_output=True)


@contextlib.contextmanager
def started(link):
    """The words that start two ranks on that link."""
    if link in ("memory", "loopback"):
        how = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"] if link == "loopback" else []
        yield ["mpirun", "-q", "--bind-to", "none", "-n", "2", *how]
    else:
        with two_machines(link) as words:
            yield words


def disturbed(words):
    """What the command says, and how many processors something else kept busy meanwhile."""
    stat = pathlib.Path("/proc/stat")
    busy, ours, begin = time_tables.busy_seconds(stat.read_text()), time_tables.children_seconds(), time.monotonic()
    output = run(words)
    passed = time.monotonic() - begin
    others = time_tables.busy_seconds(stat.read_text()) - busy - (time_tables.children_seconds() - ours)
    return output, max(0.0, others / passed)


def bench(words, options, model, more, n_threads=1):
    """(rows, what else ran; None where that is not known)"""
    command = [*words, options.kvlathe, "bench", "model", "-m", ROOT / f"models/fetched/{model}.gguf", "-t", n_threads, *MODELS[model], "-r",
               str(options.repetitions), "--no-bandwidth", "--json", *more]
    if "netns" in words:
        return json.loads(run(command))["rows"], None
    tries = []
    while len(tries) < 3 and (not tries or tries[-1][1] > QUIET):
        tries.append(disturbed(command))
    output, beside = min(tries, key=lambda each: each[1])
    return json.loads(output)["rows"], beside


def rows_of(model, link, tells_waiting, benched):
    rows, (found, beside) = [], benched
    for row in found:
        shares = row.get("rank_share", {})
        rows.append({"model": model, "link": link, "test": "pp" if row["n_prompt"] else "tg", "tells_waiting": tells_waiting,
                     "tokens_per_s": round(row["avg_ts"], 2), **({} if beside is None else {"beside": round(beside, 2)}),
                     **{name: round(share, 4) for name, share in shares.items()}})
    return rows


def link_rows(link, text):
    """The medians of comm_bench, in the JSON of google-benchmark."""
    rows = []
    for row in json.loads(text)["benchmarks"]:
        if row.get("aggregate_name") == "median":
            what, n_bytes = row["run_name"].split("/")[:2]
            rows.append({"link": link, "what": "sum" if what == "BM_AllReduce" else "there and back", "bytes": int(n_bytes),
                         "us": round(row["real_time"], 2)})
    return rows


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvlathe", type=pathlib.Path, default=ROOT / "build/release/bin/kvlathe")
    parser.add_argument("--comm-bench", type=pathlib.Path, default=ROOT / "build/release/bin/comm_bench")
    parser.add_argument("--only", action="append", choices=sorted(MEASURED), default=[])
    parser.add_argument("--link", action="append", choices=["alone", "threads", *RATES], default=[])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--commit")
    parser.add_argument("--allow-dirty", action="store_true")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "docs/results/speed/ranks.json")
    return parser.parse_args(arguments)


def measured_on(link, options, models):
    """(rows of the link itself, rows of models)"""
    if link in ("alone", "threads"):
        n_threads = 1 if link == "alone" else 2
        return [], [row for model in models for row in rows_of(model, link, False, bench([], options, model, [], n_threads))]
    rows, of_link = [], []
    with started(link) as words:
        if options.comm_bench.exists():
            sizes = "|".join(map(str, SUM_BYTES[:1] if RATES[link] else SUM_BYTES))
            of_link = link_rows(link, run([*words, options.comm_bench, f"--benchmark_filter=AllReduce/({sizes})/|There",
                                          "--benchmark_format=json"]))
        for model in models:
            for more in ([], ["--tell-waiting"]):
                rows += rows_of(model, link, bool(more), bench(words, options, model, ["--tp", "2", *more]))
    return of_link, rows


def text_of(data):
    """A line for each row."""
    parts = [f'"run": {json.dumps(data["run"])}']
    parts += [f'"{name}": [\n  ' + ",\n  ".join(json.dumps(row) for row in data[name]) + "\n ]" for name in ("links", "rows")]
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main(arguments):
    options = parse(arguments)
    commit, is_dirty = provenance.commit_of(ROOT, options.commit, options.allow_dirty)
    data = {"run": provenance.run_facts(commit, is_dirty), "links": [], "rows": []}
    if options.output.exists():
        data = {**json.loads(options.output.read_text(encoding="utf-8")), "run": data["run"]}
    models = options.only or list(MODELS)
    for link in options.link or ["alone", "threads", *RATES]:
        of_link, rows = measured_on(link, options, models)
        data["links"] = [row for row in data["links"] if row["link"] != link or not of_link] + of_link
        data["rows"] = [row for row in data["rows"] if row["link"] != link or row["model"] not in models] + rows
        write_whole(options.output, text_of(data))
        print(f"{link}: {len(rows)} rows", flush=True)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ranks_table.py: ended"))  # namespaces are taken down
    try:
        sys.exit(main(sys.argv[1:]))
    except ResultsError as error:
        sys.exit(f"ranks_table.py: {error}")
