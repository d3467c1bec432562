"""pass@1: the share of problems whose one program passes, and how far a cache moves it."""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from .sandbox import Verdict


def judge(problems, answers, sandbox, n_workers, baseline="none"):
    """Of the answers by cache a row for each, and the outcomes by cache. Caches are compared with the baseline where it answered."""
    outcomes = {kv: outcomes_of(problems, of_cache, sandbox, n_workers) for kv, of_cache in answers.items()}
    rows = []
    for kv, of_cache in answers.items():
        row = {"kv": kv, **score_of(outcomes[kv])}
        if baseline in outcomes:
            row |= change_from(outcomes[baseline], outcomes[kv], answers[baseline], of_cache)
        rows.append(row)
    return rows, outcomes


def outcomes_of(problems, answers, sandbox, n_workers):
    """What became of the program of each answer, in their order."""
    with ThreadPoolExecutor(n_workers) as workers:
        return list(workers.map(sandbox.run, [problem.program(answer) for problem, answer in zip(problems, answers)]))


def mean_and_error(values):
    """The mean and its standard error, sample standard deviation / sqrt(n); 0 for one value."""
    n = len(values)
    mean = sum(values) / n
    squares = sum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (n - 1) / n) if n > 1 else 0.0


def passes(outcomes):
    return [float(outcome.verdict is Verdict.PASSED) for outcome in outcomes]


def score_of(outcomes):
    """The fields of one cache, named as those of `kvlathe eval`."""
    score, error = mean_and_error(passes(outcomes))
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {"metric": "pass_at_1", "count": len(outcomes), "score": score, "score_stderr": error, "chance": 0.0,
            **{verdict.value.replace(" ", "_"): counts[verdict] for verdict in Verdict}}


def change_from(baseline, outcomes, baseline_answers, answers):
    """The paired difference: of each problem whether it passes, less whether it did with the baseline. `flips` are the
    programs that are other ones, passing or not."""
    change, error = mean_and_error([ours - theirs for ours, theirs in zip(passes(outcomes), passes(baseline))])
    flips = sum(ours != theirs for ours, theirs in zip(answers, baseline_answers)) / len(answers)
    return {"flips": flips, "score_change": change, "score_change_stderr": error}
