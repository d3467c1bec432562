"""Which methods are searched on which tasks, and which variants of a cache the papers compare it with."""

import re
from dataclasses import dataclass

from results_parts import prepare
from results_parts.plan import GSM8K_SHOTS, LARGE_BYTES, WIKI

ACCURACIES = (0.99, 0.995)
# The methods of the papers, what they are compared with, what they are combined with, and ranks that are the same for all heads (/AC).
METHODS = ("zack", "fdc", "palu", "lathe", "kivi", "kvquant", "keyformer", "h2o", "tova", "gear", "eigen", "kvquant-z", "keyformer-z",
           "kvq-f", "kvq-p", "kf-f", "zack(ranks=uniform)", "fdc(ranks=uniform)", "palu(ranks=uniform)")
LARGE_METHODS = ("lathe", "kivi", "zack", "palu")
CONTEXT = 2048
ROUNDED = "--weights-exact=false"  # products as `run` and `serve` have them, in half of the time
# About what the papers' caches keep 99% at on the models of the papers: for times of what they would be here, whatever they keep. Half of the
# dimensions, half of the entries, 4 bits, and these together; and lathe beside them.
PAPERS = ("zack(rate=0.5)", "fdc(rate=0.5)", "palu(rate=0.5)", "keyformer(keep=0.5)", "h2o(keep=0.5)", "kivi(bits=4)", "kvquant(bits=4)",
          "gear(bits=4)", "keyformer-z(rate=0.75)", "kf-f(rate=0.75)", "kvquant-z(rate=0.5)", "kvq-f(rate=0.5)", "kvq-p(rate=0.5)",
          "svd-online(rate=0.5)", "lathe(ratio=4)", "lathe(ratio=8)")
LARGE_PAPERS = ("zack(rate=0.5)", "fdc(rate=0.5)", "palu(rate=0.5)", "kivi(bits=4)", "lathe(ratio=4)", "lathe(ratio=8)")


@dataclass(frozen=True)
class TaskSet:
    """`arguments` are those of `kvlathe tune` that say by what caches are judged; `text` has to be made before (prepare.Prepared)."""
    name: str
    title: str
    arguments: tuple
    data: tuple = ()  # files of the data that it reads
    text: object = None


def text_set(work, data, n_windows):
    path = f"{work}/wiki-{n_windows}x{CONTEXT}.txt"
    head = prepare.Prepared(path, prepare.head_by_tokens(f"{data}/{WIKI}", n_windows, CONTEXT))
    windows = "a window" if n_windows == 1 else f"{n_windows} windows"
    return TaskSet("text", f"perplexity of WikiText-2 in {windows} of {CONTEXT} tokens, which may grow by 1 / accuracy",
                   ("--perplexity", path, ROUNDED), (WIKI,), head)


def small_sets(work, data, n_questions):
    choices = ("--task", f"arc:{data}/arc/arc-easy/test.json", "--shot-tokens", "300", "--task-count", str(n_questions), ROUNDED)
    needle = ("--task", "needle", "--task", "json", "--task-length", "1000", "--task-count", "25", ROUNDED)
    return [text_set(work, data, 2),
            TaskSet("choices", f"ARC easy, {n_questions} questions behind 300 tokens of solved ones", choices, ("arc/arc-easy/test.json",)),
            TaskSet("needle", "a number and a JSON object out of texts of 1000 tokens, 25 each", needle)]


def large_sets(work, data, n_questions):
    gsm8k = ("--task", f"gsm8k:{data}/gsm8k/test.jsonl", "--shots", f"{data}/{GSM8K_SHOTS}", "--task-count", str(n_questions),
             ROUNDED)
    return [text_set(work, data, 1),
            TaskSet("gsm8k", f"GSM8K, {n_questions} questions behind 8 solved ones", gsm8k, ("gsm8k/test.jsonl", GSM8K_SHOTS))]


def sets_of(n_bytes, work, data, n_questions=None):
    """`n_questions` are those of a data set, in place of as few as a machine of two cores answers in minutes."""
    if n_bytes >= LARGE_BYTES:
        return large_sets(work, data, n_questions or 10)
    return small_sets(work, data, n_questions or 50)


def methods_of(n_bytes):
    return LARGE_METHODS if n_bytes >= LARGE_BYTES else METHODS


def papers_of(n_bytes):
    return LARGE_PAPERS if n_bytes >= LARGE_BYTES else PAPERS


def name_of(kv):
    return re.match(r"[\w-]*", kv)[0]


def with_key(kv, key):
    """The spec with one more key in its first stage."""
    return kv.replace(")", f",{key})", 1) if "(" in kv else f"{kv}({key})"


@dataclass(frozen=True)
class Variant:
    """What a paper leaves out of its method, as a cache and a schedule of ours."""
    of: str  # the cache that it is a variant of
    name: str  # "" for the cache as it is
    kv: str
    schedule: str = "balanced"


def papers_variants(n_bytes):
    """The papers' caches, each with its variants."""
    return [variants_of(kv, with_key(kv, "ranks=uniform")) for kv in papers_of(n_bytes)]


def variants_of(kv, uniform):
    """The ablations of the papers of one cache; `uniform` is the smallest cache of the method with the same ranks for all heads, or None where
    there is none or it was not searched for."""
    method = name_of(kv)
    variants = [Variant(kv, "", kv)]
    if method == "zack":
        variants.append(Variant(kv, "/OE", with_key(kv, "online=on")))
    if method == "fdc":
        rate = re.search(r"rate=([\d.]+)", kv)
        if rate:
            variants.append(Variant(kv, "/PRC", f"palu(rate={rate[1]},round=16)"))
    if method in ("zack", "fdc"):
        if uniform:
            variants.append(Variant(kv, "/AC", uniform))
        variants.append(Variant(kv, "/KE", kv, "static"))
    return variants
