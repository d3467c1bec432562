"""Measures what a results file lacks, one program call for each part and spec, and can be stopped at any time."""

import json
import os
import pathlib
import shlex
import time
from dataclasses import dataclass

from pass_at_1_parts import programs, scores
from pass_at_1_parts.sandbox import Sandbox, SandboxError

from . import inspected, plan, prepare
from .program import CallFailed
from .store import ResultsError

SIGNIFICANT = 3  # standard errors above chance from which a task tells caches apart
# Latencies were measured beside other work; the rest is detail that no table has.
NOT_KEPT = ("ttft_ms", "tbt_ms", "over_steps", "kv_reencoded", "kv_parts", "kv_reserved_bytes")
# What the row of `none` says for all caches of a task.
OF_TASK = ("task", "metric", "chance", "count", "length", "prompt_tokens", "decides")


def decides(row):
    """Whether the uncompressed model is so far above chance that a cache could lose something."""
    if "score" in row and row["score"] <= (row.get("chance") or 0):
        return False  # nothing could be lost, whatever the row says (a score of 0 against a chance of 0)
    if row.get("decides") is not None:
        return row["decides"]
    if "score" not in row:
        return True  # no task
    above = row["score"] - (row.get("chance") or 0)
    return above > 0 and above >= SIGNIFICANT * row["score_stderr"]


@dataclass(frozen=True)
class Cell:
    part: plan.Part
    kv: str

    @property
    def key(self):
        return self.part.name, self.kv

    def template(self, program):
        """The command as it is recorded, {kv} for the spec: `none` has one of its own, as a baseline."""
        kv = "none" if self.kv == "none" else "{kv}"
        judging = program.hide_paths(shlex.join(self.part.judging(kv)))
        return program.shown(self.part.command(kv)) + (f" && {judging}" if judging else "")


def find_row(output, kv, is_inspected=False):
    """The row of `kv` in what --json printed: an object of rows, or objects, one to a line; of `inspect` what stands in tables."""
    found = []
    for line in output.decode().splitlines():
        if line.startswith("{"):
            value = json.loads(line)
            found += value.get("rows", [value])
    rows = [row for row in found if row.get("kv") == kv]
    if not rows:
        raise CallFailed("the program printed no row for the spec")
    return kept_of(inspected.figures(rows[-1]) if is_inspected else rows[-1], kv)


def kept_of(row, kv):
    """The fields that are recorded."""
    dropped = NOT_KEPT if kv == "none" else NOT_KEPT + OF_TASK
    return {key: value for key, value in row.items() if key not in dropped}


class Measurement:
    """All cells of the parts; `say` takes a line for the user."""

    def __init__(self, parts, program, store, run, say):
        self.program, self.store, self.run, self.say = program, store, run, say
        self.cells = [Cell(part, kv) for part in parts for kv in part.specs]
        self.templates = {cell.key: cell.template(program) for cell in self.cells}

    def is_done(self, cell):
        return self.store.is_done(*cell.key, self.templates[cell.key], bool(self.run.get("dirty")))

    def baseline_path(self, part):
        return pathlib.Path(self.program.root) / part.baseline

    def is_undecided(self, cell):
        """Whether `none` showed that the task tells nothing."""
        none = Cell(cell.part, "none")
        return bool(cell.part.baseline) and cell.kv != "none" and self.is_done(none) and not decides(
            self.store.result(cell.part.name, "none"))

    def pending(self):
        """What is to be done, in order: `none` again where its answers are needed and gone."""
        wanted = {cell.key for cell in self.cells if not self.is_done(cell) and not self.is_undecided(cell)}
        needed = {part for part, _ in wanted}
        return [cell for cell in self.cells if cell.key in wanted or (
            cell.kv == "none" and cell.part.baseline and cell.part.name in needed and not self.baseline_path(cell.part).exists())]

    def seconds_left(self, cells):
        """By the mean of the same part's measured cells, or of all."""
        by_part = {}
        for record in self.store.records.values():
            by_part.setdefault(record["part"], []).append(record["seconds"])
        every = [seconds for some in by_part.values() for seconds in some]
        if not every:
            return None
        return sum(mean(by_part.get(cell.part.name, every)) for cell in cells)

    def list_cells(self):
        pending = self.pending()
        keys = {cell.key for cell in pending}
        for cell in self.cells:
            state = "to do" if cell.key in keys else "done" if self.is_done(cell) else "decides nothing"
            self.say(f"{state:15} {cell.part.name:20} {cell.kv}")
        self.say(f"{len(self.cells)} cells, {len(pending)} to do{left(self.seconds_left(pending))}")

    def measure_all(self):
        """Measures all that is to be done; returns how many failed."""
        tried, failed, pending = set(), 0, self.pending()
        while pending:
            part = pending[0].part
            cells = [cell for cell in pending if cell.part is part][:part.n_together]
            tried |= {cell.key for cell in cells}
            outcomes = self.measure(cells)
            failed += sum(what.startswith("failed") for _, what in outcomes.values())
            pending = [other for other in self.pending() if other.key not in tried and not self.lacks_baseline(other, tried)]
            for kv, (seconds, what) in outcomes.items():
                self.say(f"{len(tried)}/{len(tried) + len(pending)} {part.name} {kv}: {seconds:.1f} s, {what}{left(self.seconds_left(pending))}")
        return failed

    def lacks_baseline(self, cell, tried):
        """`none` has failed in this run, so its caches cannot be compared."""
        return (bool(cell.part.baseline) and cell.kv != "none" and (cell.part.name, "none") in tried
                and not self.baseline_path(cell.part).exists())

    def rows_of(self, part, kvs):
        """What the program says of the specs, and the seconds that each took."""
        for file in part.prepared:
            prepare.make_ready(file, self.program, self.store)
        begin = time.monotonic()
        output = self.program.output(part.command(*kvs))
        seconds = (time.monotonic() - begin) / len(kvs)
        return {kv: self.judged(part, find_row(output, kv, part.is_inspected), kv) for kv in kvs}, seconds

    def judged(self, part, row, kv):
        """The row, with pass@1 for a score where the answers are programs."""
        if not part.problems:
            return row
        files = [pathlib.Path(self.program.root) / path for path in (part.baseline, part.answers_file(kv))]
        try:
            problems = programs.read_problems(part.problems)
            answers = programs.read_answers(dict.fromkeys(files), problems)
            rows, _ = scores.judge(problems, answers, Sandbox(), len(os.sched_getaffinity(0)))
        except (programs.ProgramsError, SandboxError) as error:
            raise CallFailed(str(error)) from None
        return row | kept_of(next(judged for judged in rows if judged["kv"] == kv), kv)

    def measure(self, cells):
        """Records of cells of one part, saved. Returns seconds and what became of it for each spec."""
        if len(cells) == 1:
            return {cells[0].kv: self.measure_one(cells[0])}
        try:
            rows, seconds = self.rows_of(cells[0].part, [cell.kv for cell in cells])
        except (CallFailed, ResultsError, OSError, ValueError):
            return {cell.kv: self.measure_one(cell) for cell in cells}  # those that fail say why
        for cell in cells:
            self.store.add(*cell.key, self.templates[cell.key], self.run, seconds, rows[cell.kv])
        self.store.save()
        return {kv: (seconds, summary(row)) for kv, row in rows.items()}

    def measure_one(self, cell):
        part, kv = cell.part, cell.kv
        writes_baseline = bool(part.baseline) and kv == "none"
        if writes_baseline:
            # Answers are there only beside the record that they belong to.
            self.store.drop(part.name, kv)
            self.store.save()
            self.baseline_path(part).parent.mkdir(parents=True, exist_ok=True)
            self.baseline_path(part).unlink(missing_ok=True)
        try:
            rows, seconds = self.rows_of(part, [kv])
            row, error = rows[kv], None
        except (CallFailed, ResultsError, OSError, ValueError) as failure:
            row, error, seconds = None, str(failure).splitlines()[0][:300], 0.0
        except BaseException:
            if writes_baseline:
                self.baseline_path(part).unlink(missing_ok=True)
            raise
        if error and writes_baseline:
            self.baseline_path(part).unlink(missing_ok=True)
        self.store.add(part.name, kv, self.templates[cell.key], self.run, seconds, row, error)
        self.store.save()
        return seconds, f"failed: {error}" if error else summary(row)


def summary(row):
    if "kl" in row:
        return f"KL {row['kl']:.4f}"
    return f"score {100 * row['score']:.1f}%" if "score" in row else "done"


def mean(numbers):
    return sum(numbers) / len(numbers)


def left(seconds):
    if seconds is None:
        return ""
    return f"; about {seconds / 60:.0f} min left" if seconds >= 60 else f"; about {seconds:.0f} s left"
