#!/usr/bin/env python3
"""Thousands of requests of every kind, good, bad and broken off, to one `kvlathe serve` that this starts:

    scripts/serve_soak.py                                 10,000 requests from 16 clients
    scripts/serve_soak.py --minutes 30                    as long as that, with memory every 10 seconds
    scripts/serve_soak.py --kvlathe build/asan/bin/kvlathe --requests 1000 --no-memory

Checked are the status of every answer, that only one answer comes where two could be read out of the bytes, and behind all of it that
the server lives, has no request and no block left, as many open files as before, and no more memory. Then it is left
without file descriptors, and must go on. What is drawn follows from --seed, which is printed; `--only N` sends the request
of number N alone. Everything is on 127.0.0.1.
"""

import argparse
import asyncio
import collections
import os
import pathlib
import random
import resource
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
from serve_soak_requests import ANSWER_SECONDS, BUSY, KINDS, MODEL, Connection, Target, Wrong, a_completion, exchange, statuses_of  # noqa: E402
from server_under_test import Server  # noqa: E402

KEY = "sk-soak-1234567890"
LEVELS = ["none", "kivi(bits=4)"]
MAX_BODY_BYTES = 1 << 20
# What memory may grow by behind the warm-up: pages that were not touched before, and what the allocator keeps.
GROWTH_SHARE, GROWTH_BYTES = 0.05, 24 << 20
MOST_PROBLEMS = 20


class Watched:
    """The server under load, as /proc and its own metrics see it."""

    def __init__(self, server):
        self.server = server
        self.pid = server.process.pid

    def is_alive(self):
        return self.server.process.poll() is None

    def resident_bytes(self):
        pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def n_files(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def left_over(self):
        """{series: value} of what must be zero when nobody asks for anything."""
        status, text, _ = self.server.ask("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})
        if status != 200:
            raise Wrong(f"/metrics answers {status}")
        wanted = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "kvlathe_kv_bytes_used"}
        found = collections.Counter()
        for line in text.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in wanted:
                found[name] += float(line.rpartition(" ")[2])
        if wanted - set(found):
            raise Wrong(f"/metrics lacks {sorted(wanted - set(found))}")
        return {name: value for name, value in found.items() if value}


class Soak:
    def __init__(self, options, target, watched):
        self.options, self.target, self.watched = options, target, watched
        self.seed = options.seed
        self.begin = time.monotonic()
        self.counts, self.problems = collections.Counter(), []
        self.n_sent = 0
        self.memory = []  # (seconds, bytes)

    def is_over(self):
        if len(self.problems) >= MOST_PROBLEMS or not self.watched.is_alive():
            return True
        if self.options.minutes:
            return time.monotonic() - self.begin >= 60 * self.options.minutes
        return self.n_sent >= self.options.requests

    async def send(self, number):
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        self.counts[kind.__name__] += 1
        try:
            async with asyncio.timeout(2 * ANSWER_SECONDS):
                await kind(self.target, rng)
        except (Wrong, ConnectionError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            self.problems.append(f"request {number}, {kind.__name__}: {type(error).__name__}: {error}")

    async def client(self):
        while not self.is_over():
            number = self.n_sent
            self.n_sent += 1
            await self.send(number)

    async def sample_memory(self):
        while not self.is_over():
            self.memory.append((time.monotonic() - self.begin, self.watched.resident_bytes()))
            if self.options.minutes:
                seconds, n_bytes = self.memory[-1]
                print(f"{seconds:7.0f} s  {self.n_sent:8} requests  {n_bytes / 2**20:8.1f} MiB", flush=True)
            await asyncio.sleep(10 if self.options.minutes else 0.5)

    async def run(self):
        sampler = asyncio.create_task(self.sample_memory())
        await asyncio.gather(*(self.client() for _ in range(self.options.clients)))
        sampler.cancel()

    def check_memory(self):
        """The last third of the samples against the second: the first is the warm-up."""
        third = len(self.memory) // 3
        if third < 2:
            self.problems.append("too short a run to judge memory; --no-memory leaves that out")
            return
        before = max(n_bytes for _, n_bytes in self.memory[third : 2 * third])
        behind = max(n_bytes for _, n_bytes in self.memory[2 * third :])
        print(f"resident memory: {before / 2**20:.1f} MiB in the second third of the run, {behind / 2**20:.1f} MiB in the last")
        if behind > before * (1 + GROWTH_SHARE) + GROWTH_BYTES:
            self.problems.append(f"resident memory grows: {before} bytes, then {behind}")

    def check_rest(self, n_files_before):
        """Everything is given back, a while after the last client went."""
        deadline = time.monotonic() + 30
        while True:
            left, n_files = self.watched.left_over(), self.watched.n_files()
            if not left and n_files <= n_files_before:
                return
            if time.monotonic() > deadline:
                self.problems.append(f"left over: {left}, {n_files} open files ({n_files_before} before)")
                return
            time.sleep(0.2)


async def check_descriptors(soak):
    """Without file descriptors nothing new can come in; who is connected is served, and later everybody again."""
    target, pid = soak.target, soak.watched.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    async with Connection(target) as connected:
        await asyncio.sleep(0.2)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soak.watched.n_files() + 10, usual[1]))
        try:
            crowd = [Connection(target) for _ in range(60)]
            for one in crowd:
                await one.__aenter__()
            await asyncio.sleep(1)
            await connected.send(target.head("GET", "/v1/models", None, "Connection: close"))
            if statuses_of(await connected.read_all()) != [200]:
                raise Wrong("without file descriptors a connection that is open is not served")
            for one in crowd:
                await one.__aexit__()
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    for _ in range(3):
        body = a_completion(target, random.Random(1), max_tokens=2)
        await exchange(target, target.post("/v1/completions", body, "Connection: close"), {200, BUSY})


def judge(soak, n_files_before):
    if not soak.watched.is_alive():
        soak.problems.append(f"the server ended with status {soak.watched.server.process.poll()}: {soak.watched.server.log[-5:]}")
        return
    soak.check_rest(n_files_before)
    if not soak.options.no_memory and soak.options.only is None:
        soak.check_memory()
    try:
        asyncio.run(check_descriptors(soak))
        soak.check_rest(n_files_before)
    except (Wrong, OSError) as error:
        soak.problems.append(f"without file descriptors: {error}")
    status = soak.watched.server.end()
    if status != 0:
        soak.problems.append(f"behind SIGTERM the status is {status}: {soak.watched.server.log[-5:]}")
    reports = [line["text"] for line in soak.watched.server.log if "Sanitizer" in line.get("text", "") or "runtime error" in line.get("text", "")]
    soak.problems += reports[:5]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvlathe", default=ROOT / "build/release/bin/kvlathe", type=pathlib.Path)
    parser.add_argument("-m", "--model", default=ROOT / "models/lathe-nano", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, help="in place of a number of requests")
    parser.add_argument("--clients", type=int, default=16, help="requests at the same time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", type=int, help="the request of this number alone")
    parser.add_argument("--no-memory", action="store_true", help="do not judge resident memory: sanitizers keep what was freed")
    return parser.parse_args()


def main():
    options = parse_options()
    print(f"seed {options.seed}", flush=True)
    with tempfile.NamedTemporaryFile("w", prefix="kvlathe_soak_key_") as key_file:
        key_file.write(KEY + "\n")
        key_file.flush()
        words = [word for kv in LEVELS for word in ("--kv", kv)]
        server = Server(options.kvlathe, "-m", options.model, "-a", MODEL, "--api-key-file", key_file.name, "--max-body-bytes", MAX_BODY_BYTES,
                        "--chat-template", "hermes", "--max-waiting", 64, "--max-num-seqs", 8, "--kv-memory", "24MiB",
                        "--shutdown-timeout", 10, *words)
    with server:
        status, models, _ = server.ask("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        if status != 200:
            sys.exit(f"scripts/serve_soak.py: /v1/models answers {status}: {models}")
        _, tokens, _ = server.ask("POST", "/tokenize", {"prompt": "a"}, {"Authorization": f"Bearer {KEY}"})
        soak = Soak(options, Target(server.port, KEY, LEVELS, MAX_BODY_BYTES, tokens["max_model_len"]), Watched(server))
        n_files_before = soak.watched.n_files()
        if options.only is None:
            asyncio.run(soak.run())
        else:
            asyncio.run(soak.send(options.only))
        judge(soak, n_files_before)
    seconds = time.monotonic() - soak.begin
    print(", ".join(f"{count} {name}" for name, count in sorted(soak.counts.items())))
    print(f"{sum(soak.counts.values())} requests in {seconds:.0f} s, seed {soak.seed}: {len(soak.problems) or 'no'} problems")
    for problem in soak.problems:
        print(f"  {problem}")
    sys.exit(1 if soak.problems else 0)


if __name__ == "__main__":
    main()
