"""`lab/serving.py simulate`: what rates a model's caches bear in simulated time, by how prompts and answers share it.

Step times come from `kvlathe bench model`, bytes from `kvlathe inspect`; the rest is simulator.py.
"""

from . import experiment, simulator

CACHES = ["none", "lathe(ratio=4)", "lathe(ratio=8)"]
WORKLOADS = ["humaneval:1024", "arxiv:4096"]  # of simulator.LENGTHS
SHARES = (1, 0.95, 0.85, 0.67, 0.5)
CHUNK = 512
DECODES = ("-p", "0", "-n", "16", "-d", "512,2048", "-np", "1,8")
READS = ("-p", str(CHUNK), "-n", "0", "-d", "0,2048")


def cache_of(call, model, kv, more, contexts=(1024, 4096)):
    """The simulator's Cache of a spec. `call` runs kvlathe and gives its JSON, `more` are arguments of both its verbs."""
    rows = []
    for lengths in (DECODES, READS):
        rows += call("bench", "model", "-m", model, "--kv", kv, "--no-bandwidth", *lengths, *more)["rows"]
    n_bytes = [[call("inspect", "-m", model, "--kv", spec, "-c", str(c), *more)["kv_bytes"]["total"] for c in contexts]
               for spec in ("none", kv)]
    per_token, kept = ((b - a) / (contexts[1] - contexts[0]) for a, b in n_bytes)
    fraction = min(1, kept / per_token)
    n_open = (n_bytes[1][0] / per_token - fraction * contexts[0]) / (1 - fraction) if fraction < 0.99 else 0
    return simulator.Cache(simulator.fit(rows), fraction, max(0, round(n_open)))


def load_of(workload, lengths, n_sequences, n_requests):
    return simulator.Load(workload.name, workload.context, experiment.kv_tokens(lengths, n_sequences), n_requests)


def table(load, caches, slo_factor):
    """Lines of Markdown: a row for each share of the time that prompts may take, the rate of each cache and its ratio to the first's."""
    first = next(iter(caches.values()))
    bound = load.bound(first, simulator.Policy(), slo_factor)
    closed = 1e3 / (bound / slo_factor * mean_answer(load))
    lines = [f"### {load.workload}:{load.context}: p90 at most {bound:.3g} ms a token, requests/s at the bound", "",
             "| prompts' share | " + " | ".join(f"`{kv}`" for kv in caches) + " |", "|---:|" + "---:|" * len(caches)]
    for share in SHARES:
        rates = [load.rate_at(bound, cache, simulator.Policy(CHUNK, load.n_clients, share), lowest=closed / 8) for cache in caches.values()]
        lines.append(f"| {share:g} | " + " | ".join(f"{rate:.3g} ({rate / rates[0]:.2f})" for rate in rates) + " |")
    return [*lines, ""]


def mean_answer(load):
    requests = simulator.draw_requests(load.workload, load.context, 1, load.n_requests, load.seeds[0])
    return sum(r.n_answer for r in requests) / len(requests)
