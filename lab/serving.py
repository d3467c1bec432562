#!/usr/bin/env python3
"""The papers' serving experiment: which request rate each cache bears at the same latency and the same KV memory.

  lab/serving.py run MODEL [--out FILE] [--hours H] [--requests N] [--rounds R] [--workload NAME:CONTEXT]... [--kv SPEC]... [--peer NAME=COMMAND]...
  lab/serving.py table FILE [--results docs/results/smollm2.json]
  lab/serving.py plot FILE --folder DIR
  lab/serving.py simulate MODEL [--kv SPEC]... [--workload NAME:CONTEXT]...

MODEL is what `kvlathe serve -m` takes, or a config.json for random weights in its shape. For each workload (scaled so that its longest
request has CONTEXT tokens) the first cache, `none`, is measured with one client, which gives the bound (--slo-factor times its median
normalised latency), and with all clients, one request after another each, which gives the range of rates. Then each cache gets
a server of its own with KV memory for --sequences requests of mean length in the uncompressed cache, and the same rates, up to
the first above the bound. Poisson arrivals, at most --clients at the same time. A peer is any server with OpenAI's API, as

  --peer 'llama.cpp=llama-server -m {model} --host 127.0.0.1 --port {port} -c {kv_tokens} -np {clients} -kvu -t 2 --no-webui'

{kv_tokens} is the KV memory in tokens of the uncompressed cache and {kv_bytes} in bytes. Whatever was measured is in FILE at once; Ctrl-C ends it, and the same
command goes on. The whole is planned to last --hours, and no sweep begins when they are over. --requests says how many requests a rate
gets, however long that takes. With --rounds each server has that many sweeps of other requests, the servers in turn, and the tables have
the median.

simulate answers in simulated time, with step times that `kvlathe bench model` measures in a few minutes: which rate each cache bears by
the share of the time that prompts get (--prompt-share of kvlathe serve).
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

from results_parts import program, provenance, store
from serving_parts import experiment, report, simulation
from serving_parts.servers import Server, ServerFailed, free_port

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Experiment:
    def __init__(self, options):
        self.options = options
        self.out = pathlib.Path(options.out)
        self.workloads = [experiment.Workload.parse(text) for text in options.workload or experiment.WORKLOADS]
        model_arguments = ("--random-model", "{model}") if options.model.endswith(".json") else ("-m", "{model}")
        caches = options.kv if options.kv is not None else experiment.CACHES
        self.subjects = [experiment.kvlathe_subject(kv, options.kvlathe, model_arguments, shlex.split(options.serve_arguments))
                         for kv in caches if kv]
        for peer in options.peer or ():
            name, _, command = peer.partition("=")
            self.subjects.append(experiment.Subject(name, tuple(shlex.split(command))))
        self.data = self.read()
        n_sweeps = len(self.workloads) * len(self.subjects) * options.rounds
        self.seconds = options.seconds or experiment.seconds_by_run(3600 * options.hours, n_sweeps)
        self.begin = time.monotonic()

    def read(self):
        settings = {"model": pathlib.Path(self.options.model).name, "clients": self.options.clients,
                    "sequences": self.options.sequences, "slo_factor": self.options.slo_factor, "seed": self.options.seed}
        if self.options.requests:
            settings["requests"] = self.options.requests
        if not self.out.exists():
            return {"settings": settings, "spent_seconds": 0, "workloads": {}, "cells": {}}
        data = json.loads(self.out.read_text(encoding="utf-8"))
        if data.get("settings") != settings:
            raise store.ResultsError(f"{self.out} has results of other settings ({data.get('settings')}); move it away or name another --out")
        return data

    def save(self):
        store.write_whole(self.out, json.dumps(self.data, indent=1) + "\n")

    def spent(self):
        return self.data["spent_seconds"] + time.monotonic() - self.begin

    def call(self, *arguments):
        return call(self.options.kvlathe, *arguments)

    def bench(self, server, workload, round_number, *arguments):
        return self.call("bench", "serve", "--base-url", server.url, *workload.arguments(), "--seed", str(self.options.seed + round_number),
                         "--temperature", "0", "--text", self.options.text, *map(str, arguments))

    def server(self, subject, workload, base):
        port = free_port()
        values = {"model": self.options.model, "port": port, "kv_bytes": base["kv_bytes"], "kv_tokens": base["kv_tokens"],
                  "clients": self.options.clients, "context": workload.context}
        log = self.out.with_name(f"{self.out.stem}.log")
        return Server(subject.filled(values), port, log, self.options.patience)

    def bytes_per_token(self):
        """Of the uncompressed cache."""
        if self.options.kv_bytes_per_token:
            return self.options.kv_bytes_per_token
        if self.options.model.endswith(".json"):
            config = json.loads(pathlib.Path(self.options.model).read_text(encoding="utf-8"))
            n_heads = config["num_attention_heads"]
            head_dim = config.get("head_dim") or config["hidden_size"] // n_heads
            return 2 * 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", n_heads) * head_dim
        kv = self.call("inspect", "-m", self.options.model, "--kv", "none")["kv_bytes"]
        return kv["total"] / kv["context"]

    def measure_base(self, workload):
        """Latency alone and throughput with all clients of the first server: the bound and the rates of the workload."""
        lengths = self.call("bench", "serve", "--dry-run", *workload.arguments())
        tokens = experiment.kv_tokens(lengths, self.options.sequences)
        base = {"kv_tokens": tokens, "kv_bytes": round(tokens * self.bytes_per_token()), "lengths": lengths}
        with self.server(self.subjects[0], workload, base) as server:
            alone = self.bench(server, workload, 0, "--max-concurrency", 1, "--num-prompts", self.n_alone(), "--num-warmups", 1)
            full = self.bench(server, workload, 0, "--max-concurrency", self.options.clients, *self.run_length(self.seconds))
        base["slo_ms"] = self.options.slo_factor * alone["median_normalized_latency_ms"]
        base["throughput"] = full["request_throughput"]
        base["rates"] = experiment.rates(base["throughput"])
        if self.options.requests:
            base["seconds_of_a_run"] = self.options.requests / base["throughput"]
        else:
            base["seconds_of_a_run"] = experiment.seconds_of_a_run(self.seconds, base["throughput"], self.options.clients)
        self.data["workloads"][workload.key] = base
        self.save()
        return base

    def prepare(self, subject):
        """Calibrates for the cache where nobody has, with all memory: the little of the experiment would not do. It is kept in the user's
        cache directory."""
        if subject.kv and not self.options.model.endswith(".json"):
            self.call("inspect", "-m", self.options.model, "--kv", subject.kv)

    def n_alone(self):
        """Requests of the client that is alone, whose median makes the bound."""
        return max(5, (self.options.requests or 0) // 5)

    def run_length(self, seconds):
        return ("--num-prompts", self.options.requests) if self.options.requests else ("--duration", seconds)

    def measure(self, subject, workload, base, round_number):
        self.prepare(subject)
        with self.server(subject, workload, base) as server:
            return self.bench(server, workload, round_number, "--label", subject.name, "--num-warmups", 2, "--request-rates",
                              ",".join(map(str, base["rates"])), *self.run_length(base["seconds_of_a_run"]), "--max-concurrency",
                              self.options.clients, "--slo-normalized-latency", base["slo_ms"])

    def run(self):
        commit, is_dirty = provenance.commit_of(ROOT, self.options.commit, self.options.allow_dirty)
        self.data["run"] = provenance.run_facts(commit, is_dirty)
        if not self.options.requests:
            n_sweeps = len(self.workloads) * len(self.subjects) * self.options.rounds
            say(f"{n_sweeps} sweeps with runs of at least {self.seconds:.0f} s: planned for "
                f"{n_sweeps * self.seconds * experiment.RUNS_OF_A_SWEEP / 3600:.1f} of {self.options.hours:g} hours, of which "
                f"{self.spent() / 3600:.1f} are spent")
        try:
            for workload in self.workloads:
                self.run_workload(workload)
        finally:
            self.data["spent_seconds"] = round(self.spent(), 1)
            self.save()

    def run_workload(self, workload):
        base = self.data["workloads"].get(workload.key) or self.measure_base(workload)
        cells = self.data["cells"].setdefault(workload.key, {})
        left = [(number, subject) for number in range(self.options.rounds) for subject in self.subjects
                if experiment.lacks(cells.get(subject.name, {}), number)]
        say(f"{workload.key}: {base['kv_bytes'] / 2**20:.1f} MiB of KV, lengths times {base['lengths']['scale']:.4g}, bound "
            f"{base['slo_ms']:.4g} ms a token, closed loop {base['throughput']:.3g} requests/s; {len(left)} sweeps take about "
            f"{len(left) * base['seconds_of_a_run'] * experiment.RUNS_OF_A_SWEEP / 60:.0f} minutes")
        begin = time.monotonic()
        for n_done, (number, subject) in enumerate(left):
            if self.spent() > 3600 * self.options.hours:
                raise store.ResultsError(f"the {self.options.hours:g} hours are over; --hours more goes on")
            if not experiment.is_next(cells.get(subject.name, {}), number):
                continue  # the round before failed
            say(f"{workload.key}, round {number + 1} of {self.options.rounds}, {subject.name}")
            if n_done:
                minutes = (time.monotonic() - begin) / 60 / n_done * (len(left) - n_done)
                say(f"  {len(left) - n_done} sweeps, about {minutes:.0f} minutes left")
            self.run_sweep(workload, base, cells, subject, number)

    def run_sweep(self, workload, base, cells, subject, number):
        begin = time.monotonic()
        try:
            sweep = self.measure(subject, workload, base, number)
            seconds = time.monotonic() - begin
            experiment.add_sweep(cells.setdefault(subject.name, {}), sweep, seconds)
            say(f"  {report.rate_text([sweep])} requests/s, in {seconds:.0f} s")
        except (ServerFailed, program.CallFailed) as error:
            if subject.name not in cells or "failed" in cells[subject.name]:
                cells[subject.name] = {"failed": str(error)}
            say(f"  failed: {error}")
        self.data["spent_seconds"] = round(self.spent(), 1)
        self.begin = time.monotonic()
        self.save()


def call(program_path, *arguments):
    """The JSON of a call of kvlathe, whose progress is seen meanwhile."""
    command = [program_path, *arguments, "--json"]
    errors = []
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            for line in child.stderr:
                errors.append(line)
                if line.endswith(" left\n"):
                    print(line, end="", file=sys.stderr, flush=True)
            child.wait()
        except BaseException:
            program.end(child)
            raise
        if child.returncode != 0:
            raise program.CallFailed(program.reason(child.returncode, "".join(errors)))
        out.seek(0)
        return json.load(out)


def say(text):
    print(f"serving: {text}", file=sys.stderr, flush=True)


def read_data(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise store.ResultsError(f"{path}: {error}") from None


def print_tables(options):
    data = read_data(options.file)
    results = read_data(options.results) if options.results else {}
    for workload in data["workloads"]:
        print("\n".join(report.table(data, workload, results)))


def plot(options):
    data = read_data(options.file)
    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for workload, cells in data["cells"].items():
        name = workload.replace(":", "-")
        files = []
        for number, cell in enumerate(cells.values()):
            if "sweep" in cell:
                files.append(folder / f"{name}.{number:02}.json")
                store.write_whole(files[-1], json.dumps(cell["sweep"]))
        if files:
            subprocess.run([options.kvlathe, "bench", "serve", "--plot", *map(str, files), "--svg", str(folder / f"{name}.svg")],
                           check=True)
            for file in files:
                file.unlink()


def simulate(options):
    """Prints tables of what caches would bear."""
    def kvlathe(*arguments):
        return call(options.kvlathe, *arguments)

    caches, more = {}, shlex.split(options.model_arguments)
    for kv in options.kv or simulation.CACHES:
        caches[kv] = simulation.cache_of(kvlathe, options.model, kv, more)
        say(f"{kv}: {caches[kv]}")
    for text in options.workload or simulation.WORKLOADS:
        workload = experiment.Workload.parse(text)
        lengths = kvlathe("bench", "serve", "--dry-run", *workload.arguments())
        print("\n".join(simulation.table(simulation.load_of(workload, lengths, options.sequences, options.requests), caches,
                                         options.slo_factor)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="measure what is not in FILE yet")
    run.add_argument("model")
    run.add_argument("--out", default="build/serving/serving.json")
    run.add_argument("--hours", type=float, default=2, help="of measuring in all, those of earlier calls included")
    run.add_argument("--seconds", type=float, help="of a run, in place of what follows from --hours")
    run.add_argument("--requests", type=int, help="of a run, in place of a time")
    run.add_argument("--rounds", type=int, default=1, help="sweeps of each server, with other requests")
    run.add_argument("--workload", action="append", help=f"NAME:CONTEXT (default: {' '.join(experiment.WORKLOADS)})")
    run.add_argument("--kv", action="append", help="a cache (default: those of the papers); '' and no other: none")
    run.add_argument("--peer", action="append", help="NAME=COMMAND")
    run.add_argument("--clients", type=int, default=16)
    run.add_argument("--sequences", type=float, default=4, help="requests of mean length that the KV memory holds uncompressed")
    run.add_argument("--slo-factor", type=float, default=10, help="the bound, over the latency of one client alone")
    run.add_argument("--kv-bytes-per-token", type=float, help="of the uncompressed cache (default: by kvlathe inspect, or the shape)")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--text", default=str(ROOT / "share/calibration.txt"), help="prompts are cut from it")
    run.add_argument("--serve-arguments", default="", help="more of kvlathe serve, such as '-t 2'")
    run.add_argument("--patience", type=float, default=600, help="seconds that a server may take to start")
    run.add_argument("--commit", help="that the program was built from")
    run.add_argument("--allow-dirty", action="store_true")
    table = verbs.add_parser("table", help="Markdown tables of FILE")
    table.add_argument("file")
    table.add_argument("--results", help="a file of docs/results, whose KL stands beside the rates")
    drawn = verbs.add_parser("plot", help="an SVG for each workload of FILE")
    drawn.add_argument("file")
    drawn.add_argument("--folder", default="build/serving")
    simulated = verbs.add_parser("simulate", help="what rates caches would bear, by the share of the time that prompts get")
    simulated.add_argument("model")
    simulated.add_argument("--model-arguments", default="", help="more of kvlathe bench model and inspect, such as '-t 2'")
    simulated.add_argument("--kv", action="append", help=f"a cache, the first to compare with (default: {' '.join(simulation.CACHES)})")
    simulated.add_argument("--workload", action="append", help=f"NAME:CONTEXT (default: {' '.join(simulation.WORKLOADS)})")
    simulated.add_argument("--requests", type=int, default=100, help="of a rate, three times")
    simulated.add_argument("--sequences", type=float, default=4, help="as of run")
    simulated.add_argument("--slo-factor", type=float, default=10, help="as of run")
    for verb in (run, drawn, simulated):
        verb.add_argument("--kvlathe", default=str(ROOT / "build/release/bin/kvlathe"))
    return parser.parse_args()


def main():
    options = parse_arguments()
    try:
        if options.verb == "run":
            program.end_on_signals()
            Experiment(options).run()
        elif options.verb == "table":
            print_tables(options)
        elif options.verb == "simulate":
            simulate(options)
        else:
            plot(options)
    except program.Interrupted:
        say("interrupted; the same command goes on")
        return 130
    except (store.ResultsError, ServerFailed, program.CallFailed) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
