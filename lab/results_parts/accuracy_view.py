"""The smallest caches that keep an accuracy, and their times, as the documents want them: docs/results/accuracy/NAME.json, written by
lab/accuracy_first.py. In a document `accuracy/NAME` stands for such a file. Its blocks are
    caches/SET              the smallest cache of each method at each accuracy
    ranks/SET/A             their size, and how ranks vary among heads; ranks/papers of those of the papers' sizes
    times/SET/A             times of the caches of a set, in those of `none`; times/papers of those that have the papers' sizes
    ablations/SET/A         times of zack and fdc without parts of them, in those of the whole; ablations/papers
    shares/SET/A/TEST       shares of the time by part, of prompts (`prompt`) or tokens (`decode`, `deep`); shares/papers/TEST
    steps                   planning and rotating, of single steps
    provenance
and a figure is `accuracy/NAME PART KV FIELD` with PART caches/SET/A and FIELD size, or PART times and FIELD first, between, between_deep
or job, the time in that of `none`; KV is a cache, for caches/SET/A a method.
"""

import json
import statistics

from accuracy_first_parts import plan
from accuracy_first_parts.book import Book
from accuracy_first_parts.times import DEPTHS, FIRST_DEPTH, GENERATED, NONE, PROMPT

from .store import ResultsError
from .view import code, markdown_table

FIRST, BETWEEN, DEEP = f"prompt@{FIRST_DEPTH}", f"decode@{FIRST_DEPTH}", f"decode@{DEPTHS[-1]}"
TESTS = {"first": FIRST, "between": BETWEEN, "between_deep": DEEP}
QUIET = 0.2
PARTS = ("linear", "rotate", "append", "attention", "seal", "prune", "other")


def percent(value, digits=1):
    return f"{100 * value:.{digits}f}"


def shown(accuracy):
    return f"{100 * accuracy:g}%"


class Measured:
    """The rounds of one cache with one schedule. Those beside which others kept more than QUIET of a core busy count only where there are no
    others."""

    def __init__(self, book, kv, schedule="balanced"):
        self.rows = {}
        for row in book.rows("times", kv=kv, schedule=schedule):
            self.rows.setdefault(row["test"], []).append(row)
        for test, rows in self.rows.items():
            self.rows[test] = [row for row in rows if row["beside"] <= QUIET] or rows

    def is_there(self):
        return all(test in self.rows for test in TESTS.values())

    def seconds(self, test, of="tokens_per_s"):
        """Of a token, or of a prompt as a whole: the median of the rounds."""
        n = PROMPT if test.startswith("prompt") else 1
        return statistics.median(n / row[of] for row in self.rows[test])

    def times(self, test):
        """In those of `none` of the same process."""
        return statistics.median(row["none_tokens_per_s"] / row["tokens_per_s"] for row in self.rows[test])

    def job(self, of="tokens_per_s"):
        return self.seconds(FIRST, of) + GENERATED * self.seconds(BETWEEN, of)

    def job_times(self):
        return self.job() / self.job("none_tokens_per_s")

    def bytes(self, test):
        return self.rows[test][0]["kv_bytes"]

    def share(self, test, part):
        return statistics.median(row["share"][part] for row in self.rows[test])

    def of_attention(self, test, part):
        return statistics.median(row["attention_share"][part] for row in self.rows[test])

    def of_steps(self, part, quantile):
        return statistics.median(row["step_share"][part][quantile] for row in self.rows[BETWEEN])


class AccuracyView:
    def __init__(self, path, name):
        self.name, self.book = name, Book(path)

    def accuracies(self, task_set):
        return sorted({row["accuracy"] for row in self.book.rows("caches", set=task_set)})

    def methods(self, task_set):
        known = list(dict.fromkeys(row["method"] for row in self.book.rows("caches", set=task_set)))
        return [method for method in plan.METHODS if method in known] + [method for method in known if method not in plan.METHODS]

    def found(self, task_set, accuracy):
        """The rows of caches with one, in the order of the plan."""
        rows = {row["method"]: row for row in self.book.rows("caches", set=task_set, accuracy=accuracy)}
        return [rows[method] for method in self.methods(task_set) if method in rows and rows[method]["kv"]]

    def caches_lines(self, task_set):
        accuracies = self.accuracies(task_set)
        header = ["method", *(title for accuracy in accuracies for title in (f"at {shown(accuracy)}", "KV size %", "kept %"))]
        rows = []
        for method in self.methods(task_set):
            cells = [code(method)]
            for accuracy in accuracies:
                row = self.book.lists["caches"].get((task_set, accuracy, method))
                if row is None:
                    cells += ["not searched", "-", "-"]
                elif not row["kv"]:
                    cells += ["none keeps it", "-", "-"]
                else:
                    cells += [code(row["kv"]), percent(row["kv_fraction"]), percent(row["kept"])]
            rows.append(cells)
        of_set = self.book.sets[task_set]
        goals = ", ".join(f"{goal['name']} {goal['baseline']:.4g}" + (f" ± {goal['standard_error']:.2g}" if goal["standard_error"] else "")
                          for goal in of_set["goals"])
        return [f"{of_set['title'][0].upper()}{of_set['title'][1:]}. `none` has: {goals}.", "", *markdown_table(header, rows)]

    def ranks_lines(self, task_set, accuracy=None):
        rows = []
        for kv, size in self.sizes(task_set, accuracy).items():
            facts = self.book.ranks.get(kv)
            if facts:
                rows.append([code(kv), percent(size), f"{facts['mean_k']:.1f}", f"{facts['mean_v']:.1f}",
                             percent(facts["cv_k"]), percent(facts["cv_v"]), percent(facts["cv_largest_qk"]), percent(facts["cv_largest_v"])])
        return markdown_table(["cache", "KV size %", "mean rank of K", "of V", "CV of ranks of K, %", "of V, %", "CV of the largest singular "
                               "value of QK, %", "of V, %"], rows) if rows else []

    def times_cells(self, kv):
        of = Measured(self.book, kv)
        if not of.is_there():
            return None
        return [f"{of.times(FIRST):.2f}", f"{of.times(BETWEEN):.2f}", f"{of.times(DEEP):.2f}", f"{of.job_times():.2f}"]

    def sizes(self, task_set, accuracy):
        """Of the caches in the order of the plan; of the papers' those at the end of a job, in bytes of `none`."""
        if task_set != "papers":
            return {row["kv"]: row["kv_fraction"] for row in self.found(task_set, accuracy)}
        none = Measured(self.book, NONE)
        measured = [(kv, Measured(self.book, kv)) for kv in plan.papers_of(self.book.model["bytes"])]
        return {kv: of.bytes(BETWEEN) / none.bytes(BETWEEN) for kv, of in measured if of.is_there()}

    def times_lines(self, task_set, accuracy=None):
        none = Measured(self.book, NONE)
        if not none.is_there():
            return []
        rows = [[code(NONE), "100.0", f"{1e3 * none.seconds(FIRST):.1f} ms", f"{1e3 * none.seconds(BETWEEN):.2f} ms",
                 f"{1e3 * none.seconds(DEEP):.2f} ms", f"{1e3 * none.job():.0f} ms"]]
        for kv, size in self.sizes(task_set, accuracy).items():
            cells = self.times_cells(kv)
            if cells:
                rows.append([code(kv), percent(size), *cells])
        return markdown_table(["cache", "KV size %", f"first token behind {FIRST_DEPTH}", f"between tokens behind {FIRST_DEPTH}",
                               f"behind {DEPTHS[-1]}", f"job of {PROMPT} + {GENERATED}"], rows)

    def variants(self, task_set, accuracy):
        """Of all caches that were found, or of those of the papers' sizes where task_set is `papers`."""
        if task_set == "papers":
            return plan.papers_variants(self.book.model["bytes"])
        wholes = {row["kv"]: self.book.found(task_set, accuracy, f"{plan.name_of(row['kv'])}(ranks=uniform)")
                  for row in self.found(task_set, accuracy) if "ranks=uniform" not in row["method"]}
        return [plan.variants_of(kv, uniform) for kv, uniform in wholes.items()]

    def ablation_lines(self, task_set, accuracy=None):
        rows = []
        for whole, *others in self.variants(task_set, accuracy):
            of_whole = Measured(self.book, whole.kv)
            if not others or not of_whole.is_there():
                continue
            rows.append([code(whole.kv), "", *self.times_cells(whole.kv)])
            for other in others:
                of = Measured(self.book, other.kv, other.schedule)
                if not of.is_there():
                    continue
                # `none` of another schedule had that schedule too, beside it in the same process: what counts is the time itself.
                is_scheduled = other.schedule != whole.schedule
                times = [of.seconds(test) / of_whole.seconds(test) if is_scheduled else of.times(test) / of_whole.times(test)
                         for test in TESTS.values()]
                times.append(of.job() / of_whole.job() if is_scheduled else of.job_times() / of_whole.job_times())
                rows.append([other.name, code(other.kv), *(f"{100 * (value - 1):+.0f}%" for value in times)])
        return markdown_table(["cache, and without", "that is", "first token", "between tokens", f"behind {DEPTHS[-1]}", "job"], rows) if rows else []

    def shares_lines(self, test, task_set, accuracy=None):
        test = {"prompt": FIRST, "decode": BETWEEN, "deep": DEEP}[test]
        rows = []
        caches = [NONE, *(of.kv for variants in self.variants(task_set, accuracy) for of in variants if of.schedule == "balanced")]
        for kv in dict.fromkeys(caches):
            of = Measured(self.book, kv)
            if of.is_there():
                rows.append([code(kv), *(percent(of.share(test, part)) for part in PARTS), percent(of.of_attention(test, "rebuild")),
                             percent(of.of_attention(test, "plan"), 2)])
        return markdown_table(["cache", *(f"{part} %" for part in PARTS), "of attention: making keys and values again %", "planning %"], rows)

    def steps_lines(self):
        rows, seen = [], dict.fromkeys(row["kv"] for row in self.book.rows("steps"))
        for kv in seen:
            of, step = Measured(self.book, kv), self.book.lists["steps"][(kv,)]
            if of.is_there():
                planning = [step[key] / (1e3 * step["step_ms"]) for key in ("scheduler_us", "scheduler_p99_us")]
                shares = [of.of_steps(part, quantile) for part in ("rotate", "plan") for quantile in ("p50", "p99")]
                rows.append([code(kv), *(percent(share, 2) for share in (*shares, *planning))])
        return markdown_table(["cache", "rotating: P50 %", "P99 %", "sharing attention out: P50 %", "P99 %", "planning a step of 16: P50 %", "P99 %"],
                              rows) if rows else []

    def provenance_lines(self):
        runs = list(self.book.runs.values())
        commits = ", ".join(dict.fromkeys(run["commit"] + (" with changes" if run.get("dirty") else "") for run in runs))
        shown_rows = [row for kv in {row["kv"] for row in self.book.rows("times")} for rows in Measured(self.book, kv).rows.values() for row in rows]
        beside = max((row["beside"] for row in shown_rows), default=None)
        n_rounds = len({row["round"] for row in shown_rows})
        busy = "" if beside is None else (f" Times are medians of up to {n_rounds} rounds; what else ran took "
                                          f"{'less than 0.05' if beside < 0.05 else f'up to {beside:.2f}'} cores.")
        return [f"{runs[0]['cores']} cores of {runs[0]['machine']} ({runs[0]['instructions']}); commit {commits}, {runs[-1]['date']}.{busy}", ""]

    def block_lines(self, block):
        kind, *words = block.split("/")
        makers = {"caches": self.caches_lines, "ranks": self.ranks_lines, "times": self.times_lines, "ablations": self.ablation_lines,
                  "shares": self.shares_lines, "steps": self.steps_lines, "provenance": self.provenance_lines}
        if kind == "shares":  # the test is the last word
            words = [words[-1], *words[:-1]]
        if kind not in makers or (words and words[-1 if kind == "caches" else 0] in ("",)):
            raise ResultsError(f"{self.name} has no block {block}; there are {', '.join(makers)}")
        arguments = [float(word) if word[:1].isdigit() else word for word in words]
        try:
            return makers[kind](*arguments) or ["Not measured yet.", ""]
        except (KeyError, TypeError):
            raise ResultsError(f"{self.name} has no block {block}") from None

    def figure(self, part, kv, field):
        kind, *words = part.split("/")
        if kind == "caches" and field == "size" and len(words) == 2:
            row = self.book.lists["caches"].get((words[0], float(words[1]), kv))
            if row and row["kv"]:
                return percent(row["kv_fraction"])
        if kind == "times" and field in (*TESTS, "job"):
            of = Measured(self.book, kv)
            if of.is_there():
                return f"{of.job_times() if field == 'job' else of.times(TESTS[field]):.2f}"
        raise ResultsError(f"{self.name} has no {field} of {part} with {kv}")
