#!/usr/bin/env python3
"""Accuracy first, then speed, as the papers have it: for each method the smallest cache that keeps 99% of the score on tasks, and the times
of those caches with their ablations. Everything is kept in docs/results/accuracy/NAME.json as it comes, and the same command goes on.

  lab/accuracy_first.py caches MODEL --data DIR [--set NAME]... [--accuracy A]... [--kv METHOD]...
  lab/accuracy_first.py ranks MODEL
  lab/accuracy_first.py times MODEL [--set NAME]... [--accuracy A]... [--rounds R] [--minutes M]
  lab/accuracy_first.py rates MODEL --set NAME [--accuracy A] [--requests N]
  lab/accuracy_first.py list MODEL

caches searches by `kvlathe tune`, a profile for each set of tasks. A small model has the sets text, choices and needle, one of 512 MiB and
more text and gsm8k. It and ranks tell how unlike the ranks of the heads are. times measures by `kvlathe bench model`, each cache between two
measurements of `none`: the first token of a prompt of 512 behind 1024 positions, and the time between tokens behind 1024 and 4096. With each
cache come the papers' ablations: rotations found in the prompt (/OE), ranks that are the same for all heads at the rate that keeps as much
(/AC), the ordinary schedule (/KE), and keys from before RoPE that are made again for every read (/PRC). Caches of the sizes that keep 99% in
the papers are measured as well, whatever they keep here: --only-found leaves them out. --minutes ends a call before its time. rates loads a
server with each cache of a set by lab/serving.py. `lab/results.py fill docs/results/accuracy-first.md` writes the tables. Two calls must not
write one file at the same time.
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "scripts")]

from accuracy_first_parts import plan  # noqa: E402
from accuracy_first_parts.book import Book  # noqa: E402
from accuracy_first_parts.caches import Search  # noqa: E402
from accuracy_first_parts.times import Times  # noqa: E402
from results_parts import provenance  # noqa: E402
from results_parts.program import CallFailed, Interrupted, Program, end_on_signals  # noqa: E402
from results_parts.store import ResultsError  # noqa: E402


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("caches", "ranks", "times", "rates", "list"))
    parser.add_argument("model", metavar="MODEL", help="a GGUF file or a model directory")
    parser.add_argument("--data", metavar="DIR", help="the data sets, as docs/results/README.md names them")
    parser.add_argument("--set", action="append", default=[], metavar="NAME", help="of tasks; default: all that the model has")
    parser.add_argument("--accuracy", action="append", default=[], type=float, metavar="A", help="default: 0.99 and 0.995")
    parser.add_argument("--kv", action="append", default=[], metavar="KV",
                        help="of caches: a method to search; of times: a cache, alone of all that would be measured")
    parser.add_argument("--basis", metavar="FILE", help="statistics of the model, from calibrate; default: the program's own")
    parser.add_argument("--questions", type=int, help="of caches: of choices and gsm8k; default: 50 and 10")
    parser.add_argument("--beside", metavar="NAME", help="of caches: a profile of its own, for a search beside another one of the same set")
    parser.add_argument("--rounds", type=int, default=3, help="of times: processes for each cache; tables have the median")
    parser.add_argument("--repetitions", type=int, default=3, help="of times: runs in each process")
    parser.add_argument("--minutes", type=float, help="of times: begin nothing behind them")
    parser.add_argument("--only-found", action="store_true", help="of times: without caches of the papers' sizes")
    parser.add_argument("--requests", type=int, default=100, help="of rates: requests of each rate")
    parser.add_argument("--workload", default="humaneval:1024", help="of rates")
    parser.add_argument("-t", "--threads", type=int, help="of caches: of the program")
    parser.add_argument("--context", type=int, default=plan.CONTEXT, help="in tokens, at which sizes count and that is calibrated for")
    parser.add_argument("--work", metavar="DIR", help="for profiles and texts, relative to the tree; default: build/results/NAME")
    parser.add_argument("--poll", type=float, default=5, help=argparse.SUPPRESS)
    parser.add_argument("--kvlathe", default=ROOT / "build/release/bin/kvlathe", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, help="default: docs/results/accuracy/NAME.json")
    parser.add_argument("--commit", help="the program's, where this is no git tree")
    parser.add_argument("--allow-dirty", action="store_true", help="measure although the sources differ from the commit; results say so")
    options = parser.parse_args(arguments)
    if options.accuracy == []:
        options.accuracy = list(plan.ACCURACIES)
    return options


def chosen_sets(options, book, data):
    sets = plan.sets_of(book.model["bytes"], options.work, data, options.questions)
    known = [of.name for of in sets]
    for name in options.set:
        if name not in known:
            raise ResultsError(f"--set {name}: no such tasks; there are {', '.join(known)}")
    return [of for of in sets if not options.set or of.name in options.set]


def search(options, book, program, facts, say):
    if not program.data:
        raise ResultsError("caches reads tasks; name the folder of the data sets with --data")
    methods = options.kv or list(plan.methods_of(book.model["bytes"]))
    finder = Search(book, program, facts, options, say)
    for task_set in chosen_sets(options, book, program.data):
        missing = [path for path in task_set.data if not (pathlib.Path(program.data) / path).exists()]
        if missing:
            say(f"{task_set.name} is left out: it needs {program.data}/{missing[0]}")
            continue
        for accuracy in options.accuracy:
            finder.run(task_set, accuracy, methods)
    return find_ranks(options, book, program, facts, say)


def find_ranks(options, book, program, facts, say):
    """How the ranks of heads vary, of what was found and of the papers' sizes."""
    found = [row["kv"] for row in book.rows("caches") if row["kv"]]
    Search(book, program, facts, options, say).inspect([*found, *plan.papers_of(book.model["bytes"])])
    return 0


def variants(options, book):
    """Of all chosen caches, and of what the papers have."""
    found = []
    for task_set in chosen_sets(options, book, "DATA"):
        for accuracy in options.accuracy:
            for row in book.rows("caches", set=task_set.name, accuracy=accuracy):
                if row["kv"] and "ranks=uniform" not in row["method"]:
                    uniform = book.found(task_set.name, accuracy, f"{plan.name_of(row['kv'])}(ranks=uniform)")
                    found += plan.variants_of(row["kv"], uniform)
    if not options.only_found:
        found += [of for variants in plan.papers_variants(book.model["bytes"]) for of in variants]
    return found


def measure_times(options, book, program, facts, say):
    chosen = [of for of in variants(options, book) if not options.kv or of.of in options.kv]
    schedules_of = {of.kv: tuple(sorted({other.schedule for other in chosen if other.kv == of.kv})) for of in chosen}
    times = Times(book, program, facts, options, say)
    is_done = times.run(schedules_of)
    is_done = is_done and times.run_steps([of.kv for of in chosen if not of.name])
    say("all times are there" if is_done else "the time is over; the same command goes on")
    return 0


def measure_rates(options, book, say):
    caches = [row["kv"] for row in book.rows("caches", accuracy=options.accuracy[0]) if row["kv"] and row["set"] in options.set
              and "ranks=uniform" not in row["method"]]
    if not caches:
        raise ResultsError("no caches are found yet for this --set; run caches first")
    out = ROOT / "docs/results/serving" / f"accuracy-first-{book.model['name']}.json"
    command = [str(ROOT / "lab/serving.py"), "run", options.model, "--out", str(out), "--kvlathe", str(options.kvlathe), "--workload",
               options.workload, "--requests", str(options.requests), "--kv", "none", *(word for kv in caches for word in ("--kv", kv))]
    say(" ".join(command))
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def show(options, book, say):
    for of in variants(options, book):
        say(f"{of.of}{of.name}: {of.kv}" + (f" --schedule {of.schedule}" if of.schedule != "balanced" else ""))
    return 0


def run(options, say):
    path = pathlib.Path(options.model).absolute()
    if not path.exists():
        raise ResultsError(f"{options.model}: no such model")
    path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    name = path.stem if path.suffix == ".gguf" else path.name
    data = str(pathlib.Path(options.data).resolve()) if options.data else None
    program = Program(ROOT, options.kvlathe.resolve(), str(path), data)
    options.work = options.work or f"build/results/{name}"
    book = Book(options.output or ROOT / "docs/results/accuracy" / f"{name}.json")
    facts = provenance.model_facts(ROOT / path, name, program.shown_model())
    if book.model and book.model["sha256"] != facts["sha256"]:
        raise ResultsError(f"{book.path} has results of another model of this name; write elsewhere with -o")
    book.model = {**facts, "context": options.context}
    if options.verb == "list":
        return show(options, book, say)
    if options.verb == "rates":
        return measure_rates(options, book, say)
    commit, is_dirty = provenance.commit_of(ROOT, options.commit, options.allow_dirty)
    program.keep_copy(options.work)
    options.model_arguments = ["-m", str(path), *(["--basis", options.basis] if options.basis else [])]
    verb = {"caches": search, "ranks": find_ranks, "times": measure_times}[options.verb]
    return verb(options, book, program, provenance.run_facts(commit, is_dirty), say)


def main(arguments):
    options = parse(arguments)
    end_on_signals()

    def say(line):
        print(line, flush=True)
    try:
        return run(options, say)
    except (ResultsError, CallFailed, OSError) as error:
        print(f"lab/accuracy_first.py: {error}", file=sys.stderr)
        return 2
    except Interrupted:
        print("stopped; what was measured is kept, and the same command goes on", file=sys.stderr, flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
