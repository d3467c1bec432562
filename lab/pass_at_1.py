#!/usr/bin/env python3
"""Runs the programs that a model wrote for HumanEval, and says how many pass their tests: pass@1, greedy.

  kvlathe eval -m MODEL --kv none --kv SPEC --task humaneval:HumanEval.jsonl --task-count 164 --predictions ANSWERS
  lab/pass_at_1.py HumanEval.jsonl ANSWERS... [--verdicts FILE]

An answer counts up to where its function ends. Each program runs as a process of its own in a sandbox: no network, no files of
this machine but Python's own to read, an empty folder in memory to write, and limits on processor time, memory, processes and
files. Where the machine has no such sandbox nothing is run. Every cache of ANSWERS has a row; where `none` is among them, the
others have the difference from it too, problem by problem. --verdicts writes one JSON object for each program: kv, problem,
verdict (passed, failed or timed out), reason.
"""

import argparse
import json
import os
import pathlib
import sys

sys.dont_write_bytecode = True  # nothing is left in the source tree

from pass_at_1_parts import programs, sandbox, scores  # noqa: E402


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", help="HumanEval.jsonl, or HumanEval.jsonl.gz")
    parser.add_argument("answers", nargs="+", help="what kvlathe eval --predictions wrote")
    parser.add_argument("--baseline", default="none", metavar="SPEC", help="the cache that others are compared with (default: none)")
    parser.add_argument("--verdicts", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--cpu-seconds", type=int, default=sandbox.Limits.cpu_seconds, help="of a program (default: %(default)s)")
    parser.add_argument("--wall-seconds", type=float, default=sandbox.Limits.wall_seconds, help="of a program (default: %(default)g)")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="programs at the same time (default: processors)")
    parser.add_argument("--json", action="store_true", help="one JSON object for each cache")
    return parser.parse_args(arguments)


def table(rows):
    width = max(len("kv"), *(len(row["kv"]) for row in rows))
    lines = [f"{'kv':{width}}  {'pass@1':>16}  {'change':>16}  {'flips':>6}  passed  failed  timed out"]
    for row in rows:
        change = f"{row['score_change']:+.4f} +- {row['score_change_stderr']:.4f}" if "score_change" in row else "-"
        flips = f"{100 * row['flips']:.1f}%" if "flips" in row else "-"
        lines.append(f"{row['kv']:{width}}  {row['score']:.4f} +- {row['score_stderr']:.4f}  {change:>16}  {flips:>6}  {row['passed']:>6}  "
                     f"{row['failed']:>6}  {row['timed_out']:>9}")
    return "\n".join(lines)


def verdict_lines(problems, outcomes):
    for kv, of_cache in outcomes.items():
        for problem, outcome in zip(problems, of_cache):
            yield json.dumps({"kv": kv, "problem": problem.name, "verdict": outcome.verdict.value, "reason": outcome.reason}) + "\n"


def main(arguments):
    options = parse(arguments)
    try:
        problems = programs.read_problems(options.problems)
        answers = programs.read_answers(options.answers, problems)
        box = sandbox.Sandbox(sandbox.Limits(cpu_seconds=options.cpu_seconds, wall_seconds=options.wall_seconds))
        rows, outcomes = scores.judge(problems, answers, box, options.jobs, options.baseline)
        if options.verdicts:
            options.verdicts.write_text("".join(verdict_lines(problems, outcomes)), encoding="utf-8")
    except (programs.ProgramsError, sandbox.SandboxError, OSError, UnicodeDecodeError) as error:
        print(f"lab/pass_at_1.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(json.dumps, rows)) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
