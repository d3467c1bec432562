"""Times of caches by `kvlathe bench model`, each between two measurements of `none` in the same process, for machines drift; and of planning by
`kvlathe bench scheduler`."""

import json
import os
import pathlib
import resource
import statistics
import time

from results_parts.program import CallFailed

NONE = "none"
PROMPT, GENERATED, DEPTHS = 512, 64, (1024, 4096)
FIRST_DEPTH = DEPTHS[0]  # of the first token and of a job
A_PROCESS = 5  # caches


def test_of(row):
    return f"{'prompt' if row['n_prompt'] else 'decode'}@{row['n_depth']}"


def tests(depths=DEPTHS):
    return [f"{kind}@{depth}" for depth in depths for kind in ("prompt", "decode")]


def busy_seconds():
    """Of all processors."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def chunks(caches):
    caches = list(dict.fromkeys(caches))
    return [caches[begin:begin + A_PROCESS] for begin in range(0, len(caches), A_PROCESS)]


class Times:
    def __init__(self, book, program, facts, options, say):
        self.book, self.program, self.facts, self.options, self.say = book, program, facts, options, say
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else None

    def command(self, caches, schedules):
        return ["bench", "model", *self.options.model_arguments, "-c", str(self.options.context), "-p", str(PROMPT), "-n", str(GENERATED),
                "-d", ",".join(map(str, DEPTHS)), "-r", str(self.options.repetitions), "--no-bandwidth", "--schedule", ",".join(schedules), "--json",
                "--kv", NONE, *(word for kv in caches for word in ("--kv", kv, "--kv", NONE))]

    def is_over(self):
        return self.end is not None and time.monotonic() > self.end

    def is_lacking(self, kv, schedules, round_number):
        return any(not self.book.rows("times", round=round_number, schedule=schedule, kv=kv, test=test) for schedule in schedules
                   for test in tests())

    def run(self, schedules_of):
        """Rounds of all caches, {kv: schedules}, so that each has its repetitions spread over the whole time. Whether nothing is left to do."""
        for round_number in range(self.options.rounds):
            for schedules in dict.fromkeys(schedules_of.values()):
                caches = [kv for kv, wanted in schedules_of.items() if wanted == schedules and self.is_lacking(kv, wanted, round_number)]
                for chunk in chunks(caches):
                    if self.is_over():
                        return False
                    self.measure(chunk, schedules, round_number)
        return True

    def measure(self, caches, schedules, round_number):
        begin, busy, ours = time.monotonic(), busy_seconds(), children_seconds()
        try:
            output = json.loads(self.program.output(self.command(caches, schedules)))
        except CallFailed as failed:
            if len(caches) == 1:
                raise
            self.say(f"{failed}; one by one")
            for kv in caches:
                self.measure([kv], schedules, round_number)
            return
        passed = time.monotonic() - begin
        others = max(0.0, (busy_seconds() - busy - (children_seconds() - ours)) / passed)
        self.keep(output["rows"], len(schedules) * len(tests()), round_number, others)
        self.say(f"round {round_number + 1}: {', '.join(caches)}: {passed:.0f} s" + (f", beside {others:.2f} cores of others" if others > 0.05
                                                                                   else ""))

    def keep(self, rows, n_of_a_cache, round_number, others):
        """Every second cache is `none`; of these the first of a round is kept as such."""
        groups = [rows[begin:begin + n_of_a_cache] for begin in range(0, len(rows), n_of_a_cache)]
        for number, group in enumerate(groups):
            beside = [group] if number % 2 == 0 else [groups[number - 1], groups[number + 1]]
            for place, row in enumerate(group):
                key = {"round": round_number, "schedule": row["schedule"], "kv": row["kv"], "test": test_of(row)}
                if row["kv"] == NONE and self.book.rows("times", **key):
                    continue
                of_none = [nones[place]["avg_ts"] for nones in beside]
                self.book.add("times", {
                    **key, "tokens_per_s": row["avg_ts"], "none_tokens_per_s": statistics.harmonic_mean(of_none), "kv_bytes": row["kv_bytes"],
                    "share": row["time_share"], "attention_share": row["attention_share"],
                    **({"step_share": row["step_share"]} if "step_share" in row else {}), "beside": others}, self.facts)
        self.book.save()

    def run_steps(self, caches):
        """What planning takes of a step of several sequences."""
        for kv in dict.fromkeys((NONE, *caches)):
            if self.book.rows("steps", kv=kv):
                continue
            if self.is_over():
                return False
            report = json.loads(self.program.output(["bench", "scheduler", *self.options.model_arguments, "-c", str(self.options.context), "--kv", kv,
                                                     "--json"]))
            self.book.add("steps", {"kv": kv, **{key: report[key] for key in (
                "sequences", "prompt_tokens", "steps", "step_ms", "scheduler_us", "scheduler_p99_us")}}, self.facts)
            self.book.save()
            self.say(f"steps of {kv}: {report['step_ms']:.2f} ms, planning {report['scheduler_us']:.0f} us, P99 {report['scheduler_p99_us']:.0f} us")
        return True
