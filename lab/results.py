#!/usr/bin/env python3
"""Measures caches on a model into a JSON file, and writes pages and figures from it.

  lab/results.py run MODEL --data DIR          everything, into docs/results/NAME.json; goes on where it stopped
  lab/results.py run MODEL --data DIR --list   what that is
  lab/results.py page docs/results/NAME.json   docs/results/NAME.md; of docs/results/papers/claims.json those of the papers
  lab/results.py fill FILE...                  tables and figures of any Markdown file
  lab/results.py check                         whether all pages, tables and figures are what the JSON files say

DIR holds the data sets in the folders that results_parts/plan.py names; parts whose files are missing are left out. A model
that comes with kvlathe (models/lathe-nano) needs none. In Markdown, what stands between a line `<!-- results: NAME BLOCK -->`
and `<!-- end -->` is a table, and `<!--= NAME PART KV FIELD -->` ... `<!-- -->` a figure; results_parts/fill.py says which.
"""

import argparse
import pathlib
import shlex
import sys

sys.dont_write_bytecode = True  # nothing is left in the source tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))  # wrap_markdown

from results_parts import fill, measure, plan, provenance  # noqa: E402
from results_parts.program import CallFailed, Interrupted, Program, end_on_signals  # noqa: E402
from results_parts.store import ResultsError, Store  # noqa: E402

def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the tree that results are of (default: this one)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="measure what a results file lacks")
    run.add_argument("model")
    run.add_argument("--data", metavar="DIR")
    run.add_argument("--kvlathe", metavar="PROGRAM", help="default: build/release/bin/kvlathe")
    run.add_argument("--only", nargs="+", default=[], metavar="PART", help="a part, such as tasks/piqa, piqa or tasks")
    run.add_argument("-o", "--output", metavar="FILE", help="default: docs/results/NAME.json, NAME that of the model")
    run.add_argument("--commit", help="that the program was built from (default: this tree's)")
    run.add_argument("--allow-dirty", action="store_true", help="record results of sources that are in no commit; a run without it measures them again")
    run.add_argument("--list", action="store_true", help="print the cells and end")
    page_verb = verbs.add_parser("page", help="write the page beside a results file")
    page_verb.add_argument("json", nargs="+")
    fill_verb = verbs.add_parser("fill", help="write the tables and figures of Markdown files")
    fill_verb.add_argument("file", nargs="+")
    verbs.add_parser("check", help="compare all of them with the results")
    return parser.parse_args(arguments)


def model_path(root, model):
    """As the program gets it: relative to the tree where it lies in it, so that commands are the same elsewhere."""
    path = pathlib.Path(model)
    path = path if path.is_absolute() or path.exists() else root / path
    if not path.exists():
        raise ResultsError(f"{model}: no such model")
    absolute = path.absolute()
    return str(absolute.relative_to(root)) if absolute.is_relative_to(root) else str(absolute)


def setup_of(root, program, name, n_bytes):
    """What is measured depends on the model: its bytes, its context, and whether it comes with kvlathe and a text of its own."""
    sample = root / program.model / "sample.txt"
    embedded = not program.model.startswith("/") and sample.exists()
    shape = measure.json.loads(program.output(["inspect", "-m", program.model, "--kv", "none", "--json"]))["model"]
    return plan.Setup(model=program.model, context=shape["max_seq_len"], data=program.data, work=f"build/results/{name}",
                      embedded_text=f"{program.model}/sample.txt" if embedded else None, n_bytes=n_bytes)


def available(parts, setup, only, say):
    """The parts asked for whose data are there."""
    known = sorted({word for part in parts for word in (part.name, *part.name.split("/"))})
    for word in only:
        if word not in known:
            raise ResultsError(f"--only {word}: no such part of this model; it has {', '.join(known)}")
    chosen = []
    for part in parts:
        missing = plan.missing_data(part, setup)
        if not part.matches(only):
            continue
        if missing:
            say(f"{part.name} is left out: it needs {setup.data or '--data DIR with'}{'/' if setup.data else ' '}{missing}")
        else:
            chosen.append(part)
    return chosen


def run_verb(options, say):
    root = options.root.resolve()
    model = model_path(root, options.model)
    name = pathlib.Path(model).stem if model.endswith(".gguf") else pathlib.Path(model).name
    data = str(pathlib.Path(options.data).resolve()) if options.data else None
    if data and not pathlib.Path(data).is_dir():
        raise ResultsError(f"{options.data}: no such folder")
    program = Program(root, pathlib.Path(options.kvlathe or root / "build/release/bin/kvlathe").resolve(), model, data)
    store = Store(options.output or root / "docs/results" / f"{name}.json")
    facts = provenance.model_facts(root / model, name, program.shown_model())
    if store.model and store.model["sha256"] != facts["sha256"]:
        raise ResultsError(f"{store.path} has results of another model of this name; write elsewhere with -o")
    if not options.list:
        commit, is_dirty = provenance.commit_of(root, options.commit, options.allow_dirty)
        program.keep_copy(f"build/results/{name}")
    setup = setup_of(root, program, name, facts["bytes"])
    store.model = {**facts, "context": setup.context, "embedded": bool(setup.embedded_text)}
    parts = available(plan.parts_of(setup), setup, options.only, say)
    if options.list:
        measure.Measurement(parts, program, store, {"dirty": options.allow_dirty}, say).list_cells()
        return 0
    failed = measure.Measurement(parts, program, store, provenance.run_facts(commit, is_dirty), say).measure_all()
    n_failures = len(store.failures())
    shown = store.path.relative_to(root) if store.path.is_relative_to(root) else store.path
    say(f"{shown}: {len(store.records)} records" + (f", {n_failures} failed; the same command tries those again" if n_failures else ""))
    return 1 if failed else 0


def main(arguments):
    options = parse(arguments)
    def say(line):
        print(line, flush=True)
    try:
        if options.verb == "run":
            end_on_signals()
            return run_verb(options, say)
        if options.verb == "page":
            return fill.write_pages(options.root, options.json, say)
        if options.verb == "fill":
            return fill.fill_files(options.root, options.file, say)
        return fill.check(options.root, say)
    except (ResultsError, CallFailed, OSError) as error:
        print(f"lab/results.py: {error}", file=sys.stderr)
        return 2
    except Interrupted:
        print(f"stopped; what was measured is kept. To go on:\n  lab/results.py {shlex.join(arguments)}", file=sys.stderr, flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
