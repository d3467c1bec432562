"""A server in simulated time: the engine's way of sharing steps among requests, with step times that follow from what a step carries.

It answers which request rate a way of sharing bears, in seconds and the same every time, before anything is built or measured. A step
takes as long as StepCost says; memory is counted as the engine forecasts it, a block ahead; requests arrive, wait and count as in
`kvlathe bench serve`.
"""

import math
import random
from dataclasses import dataclass, field

BLOCK = 64  # positions
RATE_STEP = math.sqrt(2)
# Tokens of prompts and answers, mean and range, as in src/load_generation/lengths.h.
LENGTHS = {"humaneval": ((204, 75, 697), (139, 11, 552)), "arxiv": ((6300, 1600, 14100), (243, 29, 464))}


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of a step: what each has, what each token of a prompt, each sequence that decodes, each cached position that one of
    those reads, and each pair of a token of a prompt and a position before it add."""
    step: float
    prompt_token: float
    decode: float
    cached: float
    pair: float

    def milliseconds(self, chunks, depths):
        """`chunks` are (tokens, cached before) of prompts, `depths` what the sequences that decode have cached."""
        n_tokens = sum(n for n, _ in chunks)
        n_pairs = sum(n * (cached + n / 2) for n, cached in chunks)
        return (self.step + self.prompt_token * n_tokens + self.decode * len(depths) + self.cached * sum(depths) + self.pair * n_pairs)


def fit(rows):
    """The StepCost of rows of `kvlathe bench model --json` with one cache: --n-gen at two depths and two --parallel, and --n-prompt,
    of one chunk, at two depths. Least squares of what the rows took, relative, and nothing below zero."""
    terms, times = [], []
    for row in rows:
        n_tokens, n_parallel = row["n_prompt"] + row["n_gen"], row["n_parallel"]
        n_steps = row["n_gen"] or n_parallel
        positions = n_tokens * n_parallel * (row["n_depth"] + n_tokens / 2)
        times.append(1e3 * n_tokens * n_parallel / row["avg_ts"])
        reads = row["n_prompt"] > 0
        terms.append([n_steps, reads * n_tokens * n_parallel, (not reads) * n_tokens * n_parallel, (not reads) * positions,
                      reads * positions])
    kept = list(range(5))
    while True:
        rows = [[line[i] / time for i in kept] for line, time in zip(terms, times)]
        found = least_squares(rows)
        if min(found) >= 0:
            break
        del kept[found.index(min(found))]
    values = dict(zip(kept, found))
    return StepCost(*(values.get(i, 0.0) for i in range(5)))


def least_squares(rows):
    """The factors of the columns with which every row adds up to one, as nearly as can be: the normal equations, by elimination."""
    n = len(rows[0])
    system = [[sum(row[i] * row[j] for row in rows) for j in range(n)] + [sum(row[i] for row in rows)] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(system[k][i]))
        system[i], system[pivot] = system[pivot], system[i]
        for k in range(n):
            if k != i:
                factor = system[k][i] / system[i][i]
                system[k] = [a - factor * b for a, b in zip(system[k], system[i])]
    return [system[i][n] / system[i][i] for i in range(n)]


@dataclass(frozen=True)
class Cache:
    """What a cache costs: time, and memory in tokens of the uncompressed one. The newest n_open positions are not compressed."""
    cost: StepCost
    fraction: float = 1
    n_open: int = 0

    def tokens(self, n_positions):
        n_open = min(n_positions, self.n_open)
        return n_open + self.fraction * (n_positions - n_open)


@dataclass(frozen=True)
class Policy:
    """How the engine shares steps. The defaults are those of the engine before it paced prompts."""
    max_batch_tokens: int = 512
    max_sequences: int = 16
    # Of the time while others decode, what prompts may take (src/engine/prompt_pacing.h); 1: all.
    prompt_share: float = 1
    # No prompt begins while more sequences than that decode.
    max_decoding: int = 10**9


@dataclass
class Request:
    due: float  # milliseconds
    n_prompt: int
    n_answer: int
    n_cached: int = 0
    n_known: int = field(init=False)
    end: float = math.inf

    def __post_init__(self):
        self.n_known = self.n_prompt

    @property
    def decodes(self):
        return self.n_known > self.n_prompt and self.n_cached + 1 == self.n_known

    @property
    def latency(self):
        return (self.end - self.due) / self.n_answer


def draw_length(length_range, factor, generator):
    mean, low, high = length_range
    low, high = max(1, int(low * factor)), max(1, int(high * factor))
    mean = min(max(mean * factor, low), high)
    share = (mean - low) / (high - low)
    return min(high, int(low + (high - low) * generator.betavariate(6 * share, 6 * (1 - share)) + generator.random()))


def draw_requests(workload, context, rate, n_requests, seed):
    """Poisson arrivals, scaled so that the last is due at n_requests / rate seconds."""
    prompt, answer = LENGTHS[workload]
    factor = min(1, context / (prompt[2] + answer[2]))
    generator = random.Random(seed)
    due, requests = 0.0, []
    for _ in range(n_requests):
        due += generator.expovariate(1)
        requests.append(Request(due, draw_length(prompt, factor, generator), draw_length(answer, factor, generator)))
    for request in requests:
        request.due *= 1e3 * n_requests / rate / due
    return requests


class Server:
    """Steps in simulated time. `kv_tokens` is its memory, in tokens of the uncompressed cache."""

    def __init__(self, cache, policy, kv_tokens):
        self.cache, self.policy, self.kv_tokens = cache, policy, kv_tokens
        self.waiting, self.running = [], []
        self.now = 0.0
        self.owed = 0.0  # milliseconds that those that decode are to have before a prompt goes on
        self.n_steps_at_most = 0  # until then
        self.n_preemptions = 0

    def wanted(self, request):
        n_until = min(-(-(request.n_known + 1) // BLOCK) * BLOCK + BLOCK, request.n_prompt + request.n_answer)
        n_open = 0 if request.decodes else min(self.policy.max_batch_tokens, n_until)
        return max(self.cache.tokens(n_until), min(n_until, self.cache.tokens(n_until - n_open) + n_open))

    def admit(self):
        wanted = sum(map(self.wanted, self.running))
        n_decoding = sum(r.decodes for r in self.running)
        while self.waiting and len(self.running) < min(self.policy.max_sequences, self.policy.max_batch_tokens):
            wanted += self.wanted(self.waiting[0])
            if self.running and (wanted > self.kv_tokens or n_decoding > self.policy.max_decoding):
                return
            self.running.append(self.waiting.pop(0))

    def share(self):
        """(request, tokens) of a step: who decodes, and what prompts get of the rest."""
        decoding = [(r, 1) for r in self.running if r.decodes]
        n_left = self.policy.max_batch_tokens - len(decoding)
        chunks = []
        if not decoding or self.owed <= 0 or self.n_steps_at_most <= 0:
            for request in self.running:
                if not request.decodes and n_left > 0:
                    end = request.n_prompt if request.n_cached < request.n_prompt else request.n_known
                    chunks.append((request, min(n_left, end - request.n_cached)))
                    n_left -= chunks[-1][1]
        return decoding, chunks

    def make_room(self, work):
        """Preempts the newest until what the step adds fits."""
        while len(self.running) > 1:
            grown = {id(r): n for r, n in work}
            if sum(self.cache.tokens(r.n_cached + grown.get(id(r), 0)) for r in self.running) <= self.kv_tokens:
                break
            newest = self.running.pop()
            newest.n_cached = 0
            self.n_preemptions += 1
            self.waiting.insert(0, newest)
            work = [(r, n) for r, n in work if r is not newest]
        return work

    def note(self, chunks, depths, took):
        if not depths:
            self.owed = 0
        elif chunks:
            of_prompts = took - self.cache.cost.milliseconds([], depths)
            self.owed = of_prompts * (1 - self.policy.prompt_share) / self.policy.prompt_share
            self.n_steps_at_most = sum(n for n, _ in chunks)
        else:
            self.owed -= took
            self.n_steps_at_most -= 1

    def step(self):
        self.admit()
        decoding, chunks = self.share()
        work = self.make_room(decoding + chunks)
        chunks = [(n, r.n_cached) for r, n in work if not r.decodes]
        depths = [r.n_cached for r, _ in work if r.decodes]
        took = self.cache.cost.milliseconds(chunks, depths)
        self.now += took
        self.note(chunks, depths, took)
        for request, n_tokens in work:
            request.n_cached += n_tokens
            if request.n_cached == request.n_known:
                request.n_known += 1
                if request.n_known == request.n_prompt + request.n_answer:
                    request.end = self.now
        self.running = [r for r in self.running if r.end == math.inf]

    def run(self, requests, n_clients):
        """At most n_clients requests are under way; who is due beyond waits, and counts from then."""
        coming = list(requests)
        while coming or self.waiting or self.running:
            if coming and not self.waiting and not self.running:
                self.now = max(self.now, coming[0].due)
            while coming and coming[0].due <= self.now and len(self.waiting) + len(self.running) < n_clients:
                self.waiting.append(coming.pop(0))
            self.step()


def percentile(values, percent):
    """Linear between the two nearest."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


@dataclass(frozen=True)
class Load:
    workload: str
    context: int
    kv_tokens: float
    n_requests: int = 100
    n_clients: int = 16
    seeds: tuple = (1, 2, 3)

    def latencies(self, cache, policy, rate):
        """Normalised, of the requests of all seeds, in milliseconds."""
        latencies = []
        for seed in self.seeds:
            requests = draw_requests(self.workload, self.context, rate, self.n_requests, seed)
            Server(cache, policy, self.kv_tokens).run(requests, self.n_clients)
            latencies += [r.latency for r in requests]
        return latencies

    def bound(self, cache, policy, factor=10):
        """That many times the median of one client alone."""
        return factor * percentile(self.latencies(cache, policy, 1e-6), 50)

    def rate_at(self, bound, cache, policy, lowest=0.1, n_rates=16):
        """The rate at which p90 reaches the bound: linear in the rate and in the logarithm of latency."""
        before = None
        for k in range(n_rates):
            rate = lowest * RATE_STEP**k
            p90 = percentile(self.latencies(cache, policy, rate), 90)
            if p90 > bound:
                if before is None:
                    return rate
                return before[0] + (rate - before[0]) * math.log(bound / before[1]) / math.log(p90 / before[1])
            before = (rate, p90)
        return before[0]
