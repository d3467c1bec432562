#!/usr/bin/env python3
"""Trains and measures what docs/results/retrofit says: models that merge their cache beside baselines of the same base and tokens.

  lab/retrofit.py train   --data TEXTS --runs DIR [--only RUN]...      what is missing of the trainings, one after the other
  lab/retrofit.py measure --data TEXTS --runs DIR [--only ROW]...      what is missing of the measurements of trained models
  lab/retrofit.py smollm2 --data TEXTS --runs DIR                      the same of a real model: what is missing of either
  lab/retrofit.py throughput                                           tokens per second at equal KV memory, random weights of 1B
  lab/retrofit.py figure --folder DIR                                  what was measured, as SVG
  lab/retrofit.py list                                                 the runs and rows in their order

TEXTS is the folder that the recipes name their files in. DIR holds the runs (each about 250 MB, with checkpoints); both verbs go on where
they were ended, and what is trained stays as it is. lab/retrofit_parts/plan.py says what there is and why.
"""

import argparse
import json
import os
import pathlib
import sys
import time

from results_parts import program, provenance, retrofit_view, store
from retrofit_parts import pareto, plan, smollm2, throughput

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/results/retrofit"
MODEL = "models/lathe-small"
SHAPE = "docs/results/serving/1b-config.json"  # of the model whose throughput is measured
N_TEXT_BYTES = 120_000
CONTEXT = 2048  # of windows, half of each a prompt
TASK_TOKENS = 1024


class Study:
    def __init__(self, options):
        self.options = options
        self.runs, self.data = pathlib.Path(options.runs).resolve(), pathlib.Path(options.data).resolve()
        self.program = program.Program(ROOT, pathlib.Path(options.kvlathe).resolve(), MODEL, str(self.data))
        self.recipe = json.loads((FOLDER / "recipe.json").read_text(encoding="utf-8"))
        self.base = self.runs / "base"

    def call(self, *arguments):
        return self.program.output([str(a) for a in arguments])

    def once(self, mark, *arguments):
        """A call that has not ended yet: `mark` is made when it has."""
        mark = self.runs / f"{mark}.done"
        if mark.exists():
            return False
        say(self.program.shown([str(a).replace(str(self.runs), "RUNS") for a in arguments]))
        begin = time.monotonic()
        self.program.run([str(a) for a in arguments])
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        say(f"  {time.monotonic() - begin:.0f} s")
        return True

    def corpus(self, name, recipe):
        folder = self.runs / f"corpus-{name}"
        self.once(f"corpus-{name}", "retrofit", "corpus", "--recipe", recipe, "--data", self.data, "--tokenizer", MODEL, "--out", folder)
        return folder

    def threads(self):
        return ("-t", self.options.threads) if self.options.threads else ()

    def train_base(self):
        """lathe-small with a KV head for each query head."""
        recipe = FOLDER / "base-recipe.json"
        copied = self.runs / "base-copied"
        self.once("base-copied", "retrofit", "gqa", "-m", MODEL, "--kv-heads", 4, "--out", copied)
        corpus = self.corpus("base", recipe)
        self.once("base", "retrofit", "pretrain", "--recipe", recipe, "--corpus", corpus, "--init", copied, "--out", self.base,
                  *self.threads())

    def train(self):
        wanted = self.options.only or [run.name for run in plan.RUNS]
        unknown = set(wanted) - {run.name for run in plan.RUNS}
        if unknown:
            raise store.ResultsError(f"no run {', '.join(sorted(unknown))}; lab/retrofit.py list names them")
        if any(not run.is_grouped for run in plan.RUNS if run.name in wanted):
            self.train_base()
        corpus = self.corpus("all", FOLDER / "recipe.json")
        for run in plan.RUNS:
            if run.name in wanted:
                self.train_run(run, corpus)

    def train_run(self, run, corpus):
        out = self.runs / run.name
        out.mkdir(parents=True, exist_ok=True)
        recipe = self.runs / f"{run.name}.json"
        described = plan.recipe_of(run, self.recipe)
        if not run.is_dmc():
            described["training"]["model"] = json.loads((self.base / "config.json").read_text(encoding="utf-8"))
            if run.kv_heads:
                described["training"]["model"]["num_key_value_heads"] = run.kv_heads
        store.write_whole(recipe, json.dumps(described, indent=1) + "\n")
        common = ("--recipe", recipe, "--corpus", corpus, *self.threads())
        if run.is_dmc():
            dmc = ("retrofit", "dmc", "-m", MODEL if run.is_grouped else self.base, *common, "--out", out, "--stage")
            for stage in ("zero-out", "ramp"):
                self.once(f"{run.name}/{stage}", *dmc, stage)
            for compression in run.compressions:
                self.once(f"{run.name}/cr-{compression:g}", *dmc, "solidify", "--compression", compression)
            return
        start = self.base
        if run.kv_heads:
            start = self.runs / f"{run.name}-start"
            self.once(f"{run.name}-start", "retrofit", "gqa", "-m", self.base, "--kv-heads", run.kv_heads, "--out", start)
        teacher = ("--teacher", self.base) if described["training"].get("distillation") else ()
        self.once(run.name, "retrofit", "pretrain", *common, *teacher, "--init", start, "--out", out)

    # Measuring.

    def text(self, name="text.txt", n_bytes=N_TEXT_BYTES):
        path = self.runs / name
        novel = sorted((self.data / "books-valid").glob("*.txt"))[0]
        path.write_bytes(novel.read_bytes()[:n_bytes])
        return path

    def facts(self):
        commit, is_dirty = provenance.commit_of(ROOT, self.options.commit, self.options.allow_dirty)
        return provenance.run_facts(commit, is_dirty)

    def is_trained(self, subject):
        return (self.runs / f"{subject.mark()}.done").exists()

    def measure(self):
        out = pathlib.Path(self.options.out)
        data = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": {}}
        facts = self.facts()
        data["settings"] = {"text_bytes": N_TEXT_BYTES, "context": CONTEXT, "task_tokens": TASK_TOKENS}
        text = self.text()
        unknown = set(self.options.only or ()) - {subject.label for subject in plan.subjects()}
        if unknown:
            raise store.ResultsError(f"no row {', '.join(sorted(unknown))}; lab/retrofit.py list names them")
        for subject in plan.subjects():
            row = data["rows"].get(subject.label, {"kv": subject.kv, "tasks": {}})
            missing = [task for task in plan.TASKS if task not in row["tasks"]]
            is_wanted = not self.options.only or subject.label in self.options.only
            if not is_wanted or not self.is_trained(subject) or ("text" in row and not missing):
                continue
            say(subject.label)
            row["run"] = facts
            base = MODEL if subject.is_grouped else self.base
            model = ("-m", self.runs / subject.folder() if subject.run else base, "--kv", subject.kv, "--json", *self.threads())
            if "text" not in row:
                row["text"] = self.result("eval", *model, "-c", CONTEXT, "--kl", text, "--reference", base)
            if missing:
                tasks = [word for task in missing for word in ("--task", task)]
                rows = self.result("eval", *model, *tasks, "--task-length", TASK_TOKENS, "--task-count", subject.n_examples)["rows"]
                row["n_examples"] = subject.n_examples
                row["tasks"].update({r["task"]: {k: r[k] for k in ("score", "score_stderr", "kv_fraction", "prompt_tokens")} for r in rows})
            data["rows"][subject.label] = row
            store.write_whole(out, json.dumps(store.rounded(data), indent=1) + "\n")

    def result(self, *arguments):
        return json.loads(self.call(*arguments))

    def retrofit_smollm2(self):
        facts = self.facts()
        smollm2.measure(self, smollm2.train(self), pathlib.Path(self.options.out), facts, say)


def measure_throughput(options):
    kvlathe = program.Program(ROOT, pathlib.Path(options.kvlathe).resolve(), MODEL, "")
    commit, is_dirty = provenance.commit_of(ROOT, options.commit, options.allow_dirty)
    data = {"settings": {"model": SHAPE, "kv_memory": throughput.BUDGET, "depth": throughput.DEPTH, "generated": throughput.N_GENERATED,
                         "repetitions": throughput.REPETITIONS}, "throughput": []}
    call = lambda *arguments: kvlathe.output([str(a) for a in arguments])  # noqa: E731
    for row in throughput.measured(call, SHAPE, plan.DMC):
        data["throughput"].append({**row, "run": provenance.run_facts(commit, is_dirty)})
        say(f"{row['kv']} {row['compression']:.2f}: {row['sequences']} sequences, {row['tokens_per_second']:.1f} tokens/s")
        store.write_whole(pathlib.Path(options.out), json.dumps(store.rounded(data), indent=1) + "\n")


def draw(options):
    folder = pathlib.Path(options.folder)
    view = retrofit_view.RetrofitView(pathlib.Path(options.results), "retrofit")
    kvlathe = program.Program(ROOT, pathlib.Path(options.kvlathe).resolve(), MODEL, "")
    for name, chart in (throughput.charts(view.throughput) if view.throughput else pareto.charts(view, plan.DROPPING)).items():
        points = folder / f"{name}.json"
        store.write_whole(points, json.dumps(chart))
        kvlathe.output(["chart", str(points.resolve()), "-o", str((folder / f"{name}.svg").resolve())])


def say(text):
    print(f"retrofit: {text}", file=sys.stderr, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="the runs and rows in their order")
    train = verbs.add_parser("train", help="what is missing of the trainings")
    train.add_argument("--only", action="append", metavar="RUN", help="this run alone; may repeat")
    measure = verbs.add_parser("measure", help="what is missing of the measurements")
    measure.add_argument("--only", action="append", metavar="ROW", help="this row alone, as `list` names it; may repeat")
    real = verbs.add_parser("smollm2", help="what is missing of a real model's training and measurements")
    speed = verbs.add_parser("throughput", help="tokens per second at equal KV memory")
    for verb, name in ((measure, "lathe-small"), (real, "smollm2"), (speed, "1b")):
        verb.add_argument("--out", default=str(FOLDER / f"{name}.json"))
        verb.add_argument("--commit", help="that the program was built from")
        verb.add_argument("--allow-dirty", action="store_true")
    figure = verbs.add_parser("figure", help="what was measured, as SVG")
    figure.add_argument("--results", default=str(FOLDER / "lathe-small.json"))
    figure.add_argument("--folder", required=True)
    for verb in (train, measure, real, speed, figure):
        verb.add_argument("--kvlathe", default=str(ROOT / "build/release/bin/kvlathe"))
    for verb in (train, measure, real):
        verb.add_argument("--data", required=True)
        verb.add_argument("--runs", required=True)
        verb.add_argument("-t", "--threads", type=int)
    return parser.parse_args()


def main():
    options = parse_arguments()
    if options.verb == "list":
        for run in plan.RUNS:
            print(f"run {run.name}")
        for subject in plan.subjects():
            print(f"row {subject.label}")
        return 0
    try:
        if options.verb == "figure":
            draw(options)
            return 0
        program.end_on_signals()
        if options.verb == "throughput":
            measure_throughput(options)
            return 0
        study = Study(options)
        {"train": study.train, "measure": study.measure, "smollm2": study.retrofit_smollm2}[options.verb]()
    except program.Interrupted:
        say("interrupted; the same command goes on")
        return 130
    except (store.ResultsError, program.CallFailed) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
