"""What is measured: caches and peers on workloads, each with a KV memory that makes memory the limit."""

import math
from dataclasses import dataclass

CACHES = ["none", "palu(rate=0.25,round=16)", "fdc(rate=0.25)", "zack(rate=0.25)", "keyformer(keep=0.5)", "kvquant(bits=3,newest=32)",
          "kvq-f(rate=0.25,newest=32)", "gear(bits=2,newest=32)", "kivi(bits=4,group=64,newest=32)", "lathe(ratio=4)", "lathe(ratio=8)"]
# Name and the context that the longest request is scaled to: short prompts, long prompts, long answers.
WORKLOADS = ["imdb:1024", "humaneval:1024", "arxiv:4096"]
# Parts of docs/results whose KL stands beside a rate, the better known first.
KL_PARTS = ("quality", "methods")
RATE_STEP = math.sqrt(2)
LOWEST_RATE, MOST_RATES = 0.5, 9  # of the closed-loop throughput of the first server; 0.5 to 8 times
# A sweep that ends at twice that throughput has five rates, whose runs drain for a while behind their last arrival.
RUNS_OF_A_SWEEP = 6.5


@dataclass(frozen=True)
class Workload:
    name: str
    context: int

    @staticmethod
    def parse(text):
        name, _, context = text.partition(":")
        return Workload(name, int(context or 8192))

    @property
    def key(self):
        return f"{self.name}:{self.context}"

    def arguments(self):
        return ["--dataset-name", self.name, "--fit-context", str(self.context)]


@dataclass(frozen=True)
class Subject:
    """A server that is measured: kvlathe with one cache, or a peer with a command of its own."""
    name: str
    command: tuple  # with {model}, {port}, {kv_bytes}, {kv_tokens}, {clients}, {context}; a spec has no such braces
    kv: str = ""  # of kvlathe

    def filled(self, values):
        words = []
        for word in self.command:
            for name, value in values.items():
                word = word.replace("{" + name + "}", str(value))
            words.append(word)
        return words


def kvlathe_subject(kv, program, model_arguments, more):
    command = (program, "serve", *model_arguments, "--host", "127.0.0.1", "--port", "{port}", "--kv", kv,
               "--kv-memory", "{kv_bytes}", "--max-num-seqs", "{clients}", *more)
    return Subject(kv, command, kv)


def kv_tokens(lengths, n_sequences):
    """How many tokens of the uncompressed cache the memory holds: n_sequences requests of mean length when they end, and always one
    of the longest with room to spare."""
    mean = lengths["input_tokens"]["mean"] + lengths["output_tokens"]["mean"]
    longest = lengths["input_tokens"]["max"] + lengths["output_tokens"]["max"]
    return math.ceil(max(n_sequences * mean, 1.25 * longest + 64))


def rates(throughput):
    """Request rates of a sweep, from half of a closed loop's throughput on."""
    return [float(f"{throughput * LOWEST_RATE * RATE_STEP**k:.3g}") for k in range(MOST_RATES)]


def seconds_of_a_run(seconds, throughput, clients):
    """As long as asked for, and long enough that a request for each client arrives at the closed loop's rate."""
    return max(seconds, clients / throughput)


def seconds_by_run(budget_seconds, n_cells):
    return budget_seconds / (max(1, n_cells) * RUNS_OF_A_SWEEP)


def sweeps(cell):
    """Those of all rounds of a server: `sweep` is the first, `repeats` are the others."""
    return [cell["sweep"], *cell.get("repeats", ())] if "sweep" in cell else []


def lacks(cell, round_number):
    return len(sweeps(cell)) <= round_number


def is_next(cell, round_number):
    return len(sweeps(cell)) == round_number


def add_sweep(cell, sweep, seconds):
    cell.pop("failed", None)
    cell["seconds"] = round(cell.get("seconds", 0) + seconds, 1)
    if "sweep" in cell:
        cell.setdefault("repeats", []).append(sweep)
    else:
        cell["sweep"] = sweep
