#!/usr/bin/env python3
"""Measures the times of caches on this machine into docs/results/speed/NAME.json, from which `lab/results.py fill` writes the tables.

  lab/speed/time_tables.py NAME --basis smollm2=FILE --basis qwen2.5-coder-1.5b=FILE [--only PART[/SHAPE]]... [--isa avx2]...

PART: decode (attention of a token behind 8192 positions), prompt (attention of 512 tokens behind 4096), work (decode of short contexts
that stay in the processor's caches, by one thread: what the roofline is made of), model (whole models). SHAPE: smollm2,
qwen2.5-coder-1.5b, llama3-8b; the first two are models with their ranks and bits, the last a shape with drawn ones. Every cache
is measured beside `none` in one process that takes both in turn, and what else ran meanwhile is kept with the row.

Rows are kept as they come, and the next run goes on behind them; those of an older commit or another machine are measured again.
A whole run takes about 20 minutes for each instruction set on an idle machine.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "lab"), str(ROOT / "scripts")]

from results_parts import provenance  # noqa: E402
from results_parts.speed_view import SHAPES  # noqa: E402
from results_parts.store import ResultsError, one_line, rounded, write_whole  # noqa: E402

NONE = "none"
# In chunks that share a process with `none`.
ATTENTION = (("int8", "kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)"), ("lathe(ratio=4)", "lathe(ratio=8)"),
             ("lathe(ratio=8,keys=block)", "fdc(rate=0.5)", "zack(rate=0.25)"), ("gear(bits=4,newest=32)",), ("lathe(ratio=8,keys=before)",))
WORK = (("kivi(bits=2,group=64,newest=32)", "lathe(ratio=8)", "lathe(ratio=8,keys=block)"),)
WHOLE = (("kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)"), ("lathe(ratio=4)", "lathe(ratio=8)"),
         ("lathe(ratio=8,keys=block)",))
FILES = {"smollm2": "models/fetched/smollm2.gguf", "qwen2.5-coder-1.5b": "models/fetched/qwen2.5-coder-1.5b.gguf"}
DRAWN = {"llama3-8b": ["--n-heads", "32", "--n-kv-heads", "8", "--head-dim", "128"]}
PROMPT, GENERATED = 512, 16
# The last leaves room for the prompt in a context of 8192.
DEPTHS = (1024, 4096, 8192 - PROMPT)
DEEP = 16384
SETS = {"AVX2": "avx2", "AVX-512 BF16": "avx512", "AMX": "amx"}


class Job:
    """One process, and the rows that come of it."""

    def __init__(self, isa, part, shape, caches, arguments):
        self.isa, self.part, self.shape, self.caches, self.arguments = isa, part, shape, caches, arguments

    def title(self):
        return f"{self.isa} {self.part} {self.shape}: {', '.join(self.caches)}"

    def rows(self, output):
        return model_rows(output) if self.part == "model" else attention_rows(output)


def attention_rows(output):
    facts = {key: output[key] for key in ("threads", "read_gb_per_s", "gemm_tflop_per_s", "integer_tdot_per_s", "ranks")}
    return [{"kv": row["kv"], "context": row["context"], "time_us": row["time_us"], "bytes": row["bytes"], "times": row["speedup_vs_none"],
             "of_limit": row["fraction_of_limit"], **facts} for row in output["rows"]]


def model_rows(output):
    rows, of_none = [], {}
    for row in output["rows"]:
        test = "prompt" if row["n_prompt"] else "decode"
        key = (test, row["n_depth"])
        if row["kv"] == NONE:
            of_none[key] = row["avg_ts"]
        rows.append({"kv": row["kv"], "test": test, "depth": row["n_depth"], "tokens_per_s": row["avg_ts"],
                     "times": row["avg_ts"] / of_none[key], "kv_bytes": row["kv_bytes"], "attention": row["time_share"]["attention"]})
    return rows


def heads_of(shape, bases):
    if shape in DRAWN:
        return DRAWN[shape]
    return ["-m", FILES[shape], *(["--basis", bases[shape]] if shape in bases else [])]


def attention_job(isa, part, shape, caches, options):
    how = {"decode": ["-c", "8192", "--phases", "decode", "-r", str(options.rounds)],
           "prompt": ["-c", str(4096 + PROMPT), "--phases", "prefill", "--prefill-tokens", str(PROMPT), "-r", str(options.rounds)],
           "work": ["-c", "1024,2048", "--phases", "decode", "--layers", "2" if shape in DRAWN else "4", "-r", str(5 * options.rounds)]}
    threads = 1 if part == "work" else options.threads
    specs = [word for kv in (NONE, *caches) for word in ("--kv", kv)]
    return Job(isa, part, shape, caches, ["bench", "attention", *heads_of(shape, options.basis), "-t", str(threads), *how[part], "--json",
                                          *specs])


def model_job(isa, shape, caches, options):
    depths = (*DEPTHS, DEEP) if options.deep and shape != "smollm2" else DEPTHS
    specs = [word for kv in (NONE, *caches) for word in ("--kv", kv)]
    return Job(isa, "model", shape, caches,
               ["bench", "model", *heads_of(shape, options.basis), "-t", str(options.threads), "-p", str(PROMPT), "-n", str(GENERATED),
                "-d", ",".join(map(str, depths)), "-r", "1", "--no-bandwidth", "--json", *specs])


def chosen(part, shape, only):
    return not only or part in only or f"{part}/{shape}" in only


def jobs_of(isa, options):
    jobs = [attention_job(isa, part, shape, caches, options) for part, chunks in (("decode", ATTENTION), ("prompt", ATTENTION), ("work", WORK))
            for shape in SHAPES for caches in chunks]
    jobs += [model_job(isa, shape, caches, options) for shape in FILES for caches in WHOLE]
    return [job for job in jobs if chosen(job.part, job.shape, options.only)]


def identity(row):
    return tuple(row.get(key) for key in ("isa", "part", "shape", "kv", "context", "test", "depth"))


def is_done(data, job, facts):
    done = {row["kv"] for row in data["rows"] if (row["isa"], row["part"], row["shape"], row["commit"]) ==
            (job.isa, job.part, job.shape, facts["commit"])}
    return {NONE, *job.caches} <= done


def keep(data, rows):
    """New rows take the place of old ones; of `none`, which every process measures, the fastest of a commit stays."""
    by_name = {identity(row): row for row in data["rows"]}
    for row in rows:
        old = by_name.get(identity(row))
        speed = "tokens_per_s" if row["part"] == "model" else "time_us"
        if row["kv"] == NONE and old and old["commit"] == row["commit"] and \
                (old[speed] < row[speed] if speed == "time_us" else old[speed] > row[speed]):
            continue
        by_name[identity(row)] = row
    data["rows"] = sorted(by_name.values(), key=place)


def place(row):
    """Rows lie in the order of the jobs, whenever they were measured."""
    order = {kv: number for number, kv in enumerate([NONE, *(kv for chunk in ATTENTION for kv in chunk)])}
    parts = ("decode", "prompt", "work", "model")
    return (list(SETS.values()).index(row["isa"]), parts.index(row["part"]), list(SHAPES).index(row["shape"]), order[row["kv"]],
            row.get("context", 0), row.get("test", ""), row.get("depth", 0))


def text_of(data):
    rows = ",\n".join(one_line(rounded(row)) for row in data["rows"])
    return f'{{"machine":{json.dumps(data["machine"])},\n"rows":[\n{rows}{chr(10) if rows else ""}]}}\n'


def busy_seconds(stat):
    """Of all processors, from /proc/stat."""
    fields = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(program, job):
    """What the process says, and how many processors something else kept busy meanwhile."""
    stat = pathlib.Path("/proc/stat")
    busy, ours, begin = busy_seconds(stat.read_text(encoding="utf-8")), children_seconds(), time.monotonic()
    done = subprocess.run([str(program), *job.arguments], cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, "KVLATHE_ISA": job.isa})
    if done.returncode != 0:
        raise ResultsError(f"{job.title()}: {done.stderr.strip().splitlines()[-1:]}")
    passed = time.monotonic() - begin
    others = (busy_seconds(stat.read_text(encoding="utf-8")) - busy - (children_seconds() - ours)) / passed
    return json.loads(done.stdout), max(0.0, others), passed


def shown_command(job, bases):
    words = [word if re.fullmatch(r"[\w./,=:-]+", word) else f"'{word}'" for word in job.arguments]
    return " ".join(["kvlathe", *("BASIS" if word in bases.values() else word for word in words)])


def machine_name():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name, family, model = (re.search(rf"^{key}\s*: *(.*)$", text, re.M) for key in ("model name", "cpu family", "model"))
    return f"{name[1]} (family {family[1]}, model {model[1]})" if name and family and model else provenance.machine()["machine"]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the file is docs/results/speed/NAME.json")
    parser.add_argument("--kvlathe", default=ROOT / "build/release/bin/kvlathe", type=pathlib.Path)
    parser.add_argument("--basis", action="append", default=[], metavar="SHAPE=FILE", help="statistics of a model, from calibrate; else its own")
    parser.add_argument("--only", action="append", default=[], metavar="PART[/SHAPE]")
    parser.add_argument("--isa", action="append", choices=sorted(SETS.values()), help="default: each that the machine has")
    parser.add_argument("--deep", action="store_true", help=f"whole models also behind {DEEP} tokens, where their context allows it")
    parser.add_argument("--rounds", type=int, default=8, help="passes over every cache of a process, of which the fastest counts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--again", action="store_true", help="measure what is there already as well")
    parser.add_argument("--list", action="store_true", help="say what would be measured, and do nothing")
    parser.add_argument("--commit", help="the program's, where this is no git tree")
    parser.add_argument("--allow-dirty", action="store_true", help="measure although the sources differ from the commit; rows say so")
    options = parser.parse_args(arguments)
    options.basis = dict(entry.split("=", 1) for entry in options.basis)
    for shape in options.basis:
        if shape not in FILES:
            parser.error(f"--basis {shape}: give one of {', '.join(FILES)}")
    return options


def run(options):
    path = ROOT / "docs/results/speed" / f"{options.name}.json"
    commit, is_dirty = provenance.commit_of(ROOT, options.commit, options.allow_dirty)
    facts = provenance.run_facts(commit, is_dirty)
    facts = {key: facts[key] for key in ("commit", "date", "dirty") if key in facts}
    has = [name for name in provenance.machine()["instructions"].split(", ") if name in SETS]
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"machine": machine_name(), "rows": []}
    if data["machine"] != machine_name():
        raise ResultsError(f"{path} is of {data['machine']}; give this machine's file another name")
    jobs = [job for isa in options.isa or [SETS[name] for name in has] for job in jobs_of(isa, options)]
    waiting = [job for job in jobs if options.again or not is_done(data, job, facts)]
    print(f"{len(jobs) - len(waiting)} of {len(jobs)} are there", flush=True)
    for number, job in enumerate(waiting, start=1):
        print(f"{number}/{len(waiting)} {job.title()}", end=" " if not options.list else "\n", flush=True)
        if options.list:
            continue
        output, beside, seconds = measured(options.kvlathe, job)
        common = {"isa": job.isa, "part": job.part, "shape": job.shape}
        more = {"threads": options.threads, "beside": beside, **facts, "command": shown_command(job, options.basis)}
        keep(data, [{**common, **more, **row} for row in job.rows(output)])
        write_whole(path, text_of(data))
        print(f"{seconds:.0f} s" + (f", beside {beside:.2f} cores of others" if beside > 0.05 else ""), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run(parse(sys.argv[1:])))
    except ResultsError as error:
        sys.exit(f"time_tables.py: {error}")
