#!/usr/bin/env python3
"""Round robin, leastconn and the shortest queue of tokens, under requests of very different lengths:

    lab/balance_bench.py -m models/lathe-nano --rates 20,40 --json balance.json -- -t 1

For each way to balance it starts replicas and HAProxy (deploy/replicas.sh, with the words behind -- for every replica) and sends them the same
requests at the same times (`kvlathe bench serve`, open loop, Poisson). Of the requests, --long-share have prompts and answers that are
--long-factor times as long. It prints latencies of all requests; each of --rounds has requests and times of its own, since one draw of them may
suit a way by chance, and the order in which ways are measured goes round.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from results_parts import provenance, store

ROOT = pathlib.Path(__file__).resolve().parent.parent
WAYS = ["roundrobin", "leastconn", "shortest-queue"]
FIGURES = ["mean_normalized_latency_ms", "p90_normalized_latency_ms", "p99_normalized_latency_ms", "median_ttft_ms", "p99_ttft_ms",
           "request_throughput", "failed"]
SETTINGS = ["replicas", "rounds", "requests", "prompt_tokens", "answer_tokens", "long_share", "long_factor", "seed", "words"]


def write_requests(path, options, seed):
    rng = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(options.requests):
            factor = options.long_factor if rng.random() < options.long_share else 1
            # Ids differ, so that no prompt begins as another does.
            prompt = [rng.randrange(5, options.vocab) for _ in range(factor * options.prompt_tokens)]
            file.write(json.dumps({"prompt": prompt, "output_len": factor * options.answer_tokens}) + "\n")


class Replicas:
    def __init__(self, options, way, state):
        self.stop = [ROOT / "deploy/replicas.sh", "--state", state, "--stop"]
        start = [ROOT / "deploy/replicas.sh", "--port", str(options.port), "--balance", way, "--state", state, str(options.replicas),
                 "-m", options.model, *options.words]
        self.process = subprocess.Popen(start, stdout=subprocess.PIPE, text=True, env=dict(os.environ, KVLATHE=str(options.kvlathe)))
        text = ""
        while not re.search(r"^all +(\S+)$", text, re.MULTILINE):
            line = self.process.stdout.readline()
            if not line:
                sys.exit("lab/balance_bench.py: the replicas did not start")
            text += line
        self.url = re.search(r"^all +(\S+)$", text, re.MULTILINE).group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(self.stop, check=True)
        self.process.wait()


def measure(options, way, rate, requests, seed):
    with tempfile.TemporaryDirectory(prefix="kvlathe_balance_") as state, Replicas(options, way, state) as replicas:
        done = subprocess.run(
            [options.kvlathe, "bench", "serve", "--base-url", replicas.url, "--dataset-name", "file", "--dataset-path", requests,
             "--request-rate", str(rate), "--num-prompts", str(options.requests), "--num-warmups", "4", "--seed", str(seed),
             "--percentile-metrics", "ttft", "--metric-percentiles", "99", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    return {"balance": way, "rate": rate, "seed": seed, **{figure: result[figure] for figure in FIGURES}}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvlathe", default=ROOT / "build/release/bin/kvlathe")
    parser.add_argument("-m", "--model", default=ROOT / "models/lathe-nano")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--rates", default="20", help="requests a second, a list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--long-share", type=float, default=0.1)
    parser.add_argument("--long-factor", type=int, default=14)
    parser.add_argument("--vocab", type=int, default=4000, help="token ids of prompts are below it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="file for the rows, written behind each rate")
    parser.add_argument("--commit", help="that the program was built from")
    parser.add_argument("--allow-dirty", action="store_true")
    parser.add_argument("words", nargs="*", help="for kvlathe serve, behind --")
    return parser.parse_args()


def save(options, rows):
    settings = {"model": pathlib.Path(options.model).name, **{name: getattr(options, name) for name in SETTINGS}}
    run = provenance.run_facts(*provenance.commit_of(ROOT, options.commit, options.allow_dirty))
    store.write_whole(pathlib.Path(options.json), json.dumps({"settings": settings, "run": run, "rows": rows}, indent=1) + "\n")


def main():
    options = parse_options()
    rows = []
    with tempfile.TemporaryDirectory(prefix="kvlathe_requests_") as folder:
        requests = pathlib.Path(folder) / "requests.jsonl"
        print("  ".join(["balance       ", "  rate", *FIGURES]), flush=True)
        for rate in map(float, options.rates.split(",")):
            for number in range(options.rounds):
                seed = options.seed + number
                write_requests(requests, options, seed)
                for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                    row = measure(options, way, rate, requests, seed)
                    rows.append(row)
                    print("  ".join([f"{way:14}", f"{rate:6g}", *(f"{row[figure]:{len(figure)}.4g}" for figure in FIGURES)]), flush=True)
            if options.json:
                save(options, rows)


if __name__ == "__main__":
    main()
