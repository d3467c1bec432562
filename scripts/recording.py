#!/usr/bin/env python3
"""Records what a program answers for the specs of tests/recording/specs.txt, and compares two such recordings.

  scripts/recording.py record DIR --kvlathe PROGRAM [--model FILE]... [--isa NAME]... [--calibration DIR]
  scripts/recording.py compare DIR_A DIR_B
  scripts/recording.py golden [--kvlathe PROGRAM]

A recording shows that a change of the code changed no answer. Of every spec, on the models that come with kvlathe and on those of
--model, with --deterministic and under every instruction set of the machine, it keeps: KL and perplexity on a short text, the
tokens of a prompt and of a saved session that goes on, and the bytes of the cache by part. `compare` names each cell that differs,
by a single bit too, and then exits with 1. Two recordings can be compared that were made on one machine, the second with
--calibration and the folder of the first, so that both programs see the same statistics. `record` goes on where it stopped.

`golden` writes tests/recording/golden.json: what no machine changes, which a test compares. It holds the bytes by part of the specs
for which neither calibration nor the rounding of a machine decides them, and the messages with which the specs of
tests/recording/refused.txt are refused. A change that means to alter it writes it anew, and its commit says why.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct
import sys
import tempfile
import threading
from dataclasses import dataclass

sys.dont_write_bytecode = True  # nothing is left in the source tree
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / folder) for folder in ("lab", "tests")]

from model_files import write_random_gpt2  # noqa: E402
from results_parts.program import CallFailed, Interrupted, Program, end_on_signals  # noqa: E402
from results_parts.store import ResultsError, write_whole  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPECS = ROOT / "tests/recording/specs.txt"
REFUSED = ROOT / "tests/recording/refused.txt"
GOLDEN = ROOT / "tests/recording/golden.json"
TEXT = ROOT / "models/lathe-nano/sample.txt"
ISAS = ("scalar", "avx2", "avx512", "amx")
TIMES = {"ttft_ms", "tbt_ms", "decode_tok_per_s"}
GROUP = 4  # specs of one `compare`, which share its baseline
# What dmc asks of a model: which channel decides. No weights were trained for it, so what merges means nothing; it is the same.
DMC = {"channel": "last", "offset": 0}
# The same of dms, with weights that are made up: about half of the positions may leave.
DMS = {"dms_window_size": "96", "dms_alpha_scale": "1", "dms_initial_alpha_offset": "0", "dms_alpha_per": "head", "dms_separate_alpha": "true"}


@dataclass(frozen=True)
class Lengths:
    """Bytes of text, and generated tokens, that make a recording of this model cheap."""
    calibration: int
    scored: int
    prompt: int
    first_tokens: int = 24
    further_tokens: int = 100


# "random-gpt2" is made by the recording: keys that no position turns, so that their maps fold into W_Q.
EMBEDDED = {name: Lengths(calibration=8000, scored=3000, prompt=2200) for name in ("lathe-nano", "random-gpt2", "lathe-small")}
OTHER = Lengths(calibration=4000, scored=1000, prompt=800, first_tokens=16, further_tokens=72)


def read_specs(path):
    lines = (line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def sha256_of(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def is_merged_by_model(kv):
    return kv.startswith(("dmc", "dms"))


def write_dms(path, config):
    """The file of a retrofit, of numbers in [-1, 1) that follow from their places."""
    hidden, n_heads = config["hidden_size"], config["num_key_value_heads"]
    header, data = {"__metadata__": DMS}, b""
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}.self_attn.dms_proj_alpha"
        learned = [((i + 1) * (layer + 7) * 2654435761 % 65536) / 32768 - 1 for i in range(n_heads * hidden)]
        for suffix, shape, values in (("_norm.weight", [hidden], [1.0] * hidden), (".weight", [n_heads, hidden], learned)):
            piece = struct.pack(f"<{len(values)}f", *values)
            header[name + suffix] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
            data += piece
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def pooled_by(kv):
    """How many positions an entry of a composition has that pools; a basis of another cache does not fit it."""
    found = re.search(r"\bpool\(n=(\d+)", kv)
    return int(found[1]) if found and "+" in kv else 1


def write_fisher(path, statistics_path):
    """A fisher.json for the model of the statistics: of made-up weights, since a gradient would need the trainer."""
    with open(statistics_path, "rb") as file:
        n_header = struct.unpack("<Q", file.read(8))[0]
        about = json.loads(file.read(n_header))["__metadata__"]
    n_layers = int(about["n_layers"])
    weights = {"k": [1 + layer % 3 for layer in range(n_layers)], "v": [2 + layer % 2 for layer in range(n_layers)]}
    write_whole(path, json.dumps({"format": "kvlathe fisher weights", "format_version": 1, "model_hash": about["model_hash"],
                                  "token_source": "none", "n_tokens": 1, **weights}))


class RecordedModel:
    """A model in a recording: the files that are made for it, and the arguments of the program that name them."""

    def __init__(self, folder, name, path, lengths):
        self.name, self.path, self.lengths = name, pathlib.Path(path), lengths
        self.files = folder / "calibration" / name  # fisher.json is looked for beside the statistics
        self.statistics = self.statistics_of(1)

    def statistics_of(self, n_pooled):
        return self.files / ("basis.safetensors" if n_pooled == 1 else f"basis-pool-{n_pooled}.safetensors")

    def calibrate(self, program, *options):
        """Statistics of rows and of the entries of every pooled cache, where they are not there."""
        for n_pooled in sorted({1, *map(pooled_by, read_specs(SPECS))}):
            path = self.statistics_of(n_pooled)
            if not path.is_file():
                print(f"calibrating {self.name} for {path.name}", flush=True)
                # Heads that merge share no latents.
                kind = ("--kv", f"pool(n={n_pooled})") if n_pooled > 1 else ("--across-heads", "--outputs")
                program.output(["calibrate", "-m", str(self.path), *options, *kind, "-o", str(path)])

    def write_texts(self):
        text = TEXT.read_bytes()
        n = self.lengths
        for file, begin, n_bytes in (("calibration.txt", 12000, n.calibration), ("scored.txt", 0, n.scored), ("prompt.txt", 6000, n.prompt)):
            piece = text[begin : begin + n_bytes].decode(errors="ignore")
            write_whole(self.files / file, piece)

    def prepare(self, program, calibration):
        self.write_texts()
        if calibration is not None:
            for name in ("basis.safetensors", "fisher.json"):
                given = calibration / "calibration" / self.name / name
                if not given.is_file():
                    raise ResultsError(f"{given}: not there; make the recording in {calibration} first")
                shutil.copyfile(given, self.files / name)
        self.calibrate(program, "--text", str(self.files / "calibration.txt"))
        write_fisher(self.files / "fisher.json", self.statistics)
        self.prepare_merging_model()

    def prepare_merging_model(self):
        """The same weights in a directory whose config.json says that the model decides what merges, and with a file that says what leaves."""
        if self.path.is_file():
            return
        copy = self.files / "merging"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(parents=True)
        for file in self.path.iterdir():
            if file.name not in ("config.json", "basis.safetensors"):
                (copy / file.name).symlink_to(file.resolve())
        config = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        write_whole(copy / "config.json", json.dumps(dict(config, dmc=DMC)))
        if "num_key_value_heads" in config:
            write_dms(copy / "dms.safetensors", config)

    def arguments(self, kv):
        if is_merged_by_model(kv) and not self.path.is_file():
            return ["-m", str(self.files / "merging")]
        return ["-m", str(self.path), "--basis", str(self.statistics_of(pooled_by(kv)))]


class Recorder:
    """Fills DIR/MODEL/ISA.json, which holds the cells of a model under an instruction set by spec."""

    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.lock = threading.Lock()

    def call(self, verb, model, kvs, *options):
        arguments = [verb, *model.arguments(kvs[0]), *(part for kv in kvs for part in ("--kv", kv)), *options]
        return json.loads(self.program.output([*arguments, "-t", "1", "--deterministic", "--json"]))

    def rows(self, model, kvs):
        """Rows of `compare` by spec, or why there is none."""
        try:
            result = self.call("compare", model, kvs, "-c", "1024", "--text", str(model.files / "scored.txt"), "--no-latency")
            return {row["kv"]: without_times(row) for row in result["rows"]}
        except CallFailed as error:
            if len(kvs) == 1:
                return {kvs[0]: self.failed(error)}
            return {kv: row for one in kvs for kv, row in self.rows(model, [one]).items()}

    def runs(self, model, kv):
        """A prompt, and the session of it that goes on."""
        n, runs = model.lengths, {}
        with tempfile.TemporaryDirectory(prefix="session_", dir=self.folder) as folder:
            session = f"{folder}/session"
            calls = {"run": ("-f", str(model.files / "prompt.txt"), "-n", str(n.first_tokens), "--save-session", session),
                     "continued": ("--load-session", session, "-p", "It was", "-n", str(n.further_tokens))}
            for name, options in calls.items():
                try:
                    runs[name] = without_times(self.call("run", model, [kv], *options, "--ignore-eos"))
                except CallFailed as error:
                    runs[name] = self.failed(error, folder)
                    break
        return runs

    def failed(self, error, folder=""):
        return {"failed": str(error).replace(folder or "DIR/", "DIR").replace(str(self.folder), "DIR")}

    def record(self, model, isa, jobs):
        os.environ["KVLATHE_ISA"] = isa
        path = self.folder / model.name / f"{isa}.json"
        cells = read_cells(path)
        pending = [kv for kv in read_specs(SPECS) if kv not in cells]

        def fill(kvs):
            for kv, row in self.rows(model, kvs).items():
                cell = {"compare": row, **self.runs(model, kv)}
                with self.lock:
                    cells[kv] = cell
                    write_whole(path, json.dumps(cells, indent=1))
            print(f"{model.name} {isa}: {len(cells)} cells", flush=True)

        merged = [kv for kv in pending if is_merged_by_model(kv)]  # on another model
        others = [kv for kv in pending if not is_merged_by_model(kv)]
        groups = [kvs[i : i + GROUP] for kvs in (others, merged) for i in range(0, len(kvs), GROUP)]
        with concurrent.futures.ThreadPoolExecutor(jobs) as workers:
            try:
                for done in concurrent.futures.as_completed([workers.submit(fill, kvs) for kvs in groups]):
                    done.result()
            except BaseException:
                workers.shutdown(cancel_futures=True)  # what runs ends its cells
                raise


def without_times(row):
    return {key: value for key, value in row.items() if key not in TIMES}


def read_cells(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def has_isa(program, isa):
    os.environ["KVLATHE_ISA"] = isa
    try:
        program.output(["run", "-m", str(ROOT / "models/lathe-nano"), "-p", "It", "-n", "1"])
        return True
    except CallFailed as error:
        if isa in str(error):
            return False
        raise
    finally:
        del os.environ["KVLATHE_ISA"]


def check_is_same_recording(folder, about):
    """A recording is of one program and one list of lengths and texts; specs may be added."""
    path = folder / "recording.json"
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known != about:
            raise ResultsError(f"{folder}: holds a recording of another program; give an empty folder")
    write_whole(path, json.dumps(about, indent=1))


def embedded_model(folder, name):
    if name != "random-gpt2":
        return ROOT / "models" / name
    made = folder / "models" / name
    return made if made.is_dir() else write_random_gpt2(made, ROOT / "models/lathe-nano")


def record(options):
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = Program(ROOT, options.kvlathe.resolve(), "models", None)
    program.keep_copy(folder)
    check_is_same_recording(folder, {"program_sha256": sha256_of(program.path), "text_sha256": sha256_of(TEXT)})
    os.environ["XDG_CACHE_HOME"] = str(folder / "user_cache")  # no statistics but those of the recording
    isas = options.isa or [isa for isa in ISAS if has_isa(program, isa)]
    models = [RecordedModel(folder, name, embedded_model(folder, name), lengths) for name, lengths in EMBEDDED.items()
              if not options.only or name in options.only]
    models += [RecordedModel(folder, path.stem, path.resolve(), OTHER) for path in options.model]
    recorder = Recorder(folder, program)
    for model in models:
        model.prepare(program, options.calibration)
    for isa in reversed(isas):  # the fastest first
        for model in models:
            recorder.record(model, isa, options.jobs)


class GoldenAnswers:
    """What lathe-nano answers on any machine. `folder` is empty."""

    def __init__(self, folder, program, jobs):
        self.program, self.jobs = program, jobs
        self.model = RecordedModel(folder, "lathe-nano", ROOT / "models/lathe-nano", EMBEDDED["lathe-nano"])
        os.environ["XDG_CACHE_HOME"] = str(folder / "user_cache")

    def all(self):
        self.model.write_texts()
        # Any statistics will do for ranks that are uniform or follow Fisher weights.
        self.model.calibrate(self.program, "--random-tokens", "128")
        write_fisher(self.model.files / "fisher.json", self.model.statistics)
        self.model.prepare_merging_model()
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as workers:
            specs, refused = read_specs(SPECS), read_specs(REFUSED)
            bytes_of = dict(zip(specs, workers.map(self.bytes_of, specs)))
            refusals = dict(zip(refused, workers.map(self.refusal, refused)))
        return {"bytes": {kv: answer for kv, answer in bytes_of.items() if answer}, "refusals": refusals}

    def call(self, *arguments):
        return json.loads(self.program.output([*arguments, "-t", "1", "--json"]))

    def bytes_of(self, kv):
        """At the full context as planned, and of a run as allocated; nothing where statistics decide."""
        joins_heads = "kvzip" in kv and "heads=own" not in kv  # a head keeps a number of entries that votes decide
        if is_merged_by_model(kv) or joins_heads:  # how many entries merge, or stay in a head, depends on rounding
            return {"planned": self.planned(kv)}
        if "ratio=" in kv or ("rate=" in kv and "ranks=" not in kv) or "ranks=adaptive" in kv:
            return self.bytes_of_drawn_ranks(kv)
        run = self.call("run", *self.model.arguments(kv), "--kv", kv, "-f", str(self.model.files / "prompt.txt"), "-n", "80", "--ignore-eos")
        return {"planned": self.planned(kv), "allocated": run["kv_parts"]}

    def planned(self, kv):
        answer = self.call("inspect", *self.model.arguments(kv), "--kv", kv)
        return {"parts": answer["kv_bytes"], "layers": answer["kv_bytes_by_layer"]}

    def bytes_of_drawn_ranks(self, kv):
        """Of random weights, whose ranks are drawn from a seed; nothing where they have none."""
        try:
            answer = self.call("bench", "model", "--random-model", str(self.model.path / "config.json"), "--kv", kv, "-p", "600", "-n", "0", "-r", "1")
        except CallFailed:
            return {}
        return {"drawn": [row["kv_bytes"] for row in answer["rows"]]}

    def refusal(self, kv):
        try:
            self.program.output(["inspect", "-m", "models/lathe-nano", "--kv", kv, "--json"])
        except CallFailed as error:
            return str(error)
        return None


def golden(options):
    program = Program(ROOT, options.kvlathe.resolve(), "models/lathe-nano", None)
    with tempfile.TemporaryDirectory(prefix="kvlathe_golden_") as folder:
        answers = GoldenAnswers(pathlib.Path(folder), program, options.jobs).all()
    write_whole(GOLDEN, golden_text(answers))


def golden_text(answers):
    """A line for each spec."""
    tables = [f'"{name}": {{\n' + ",\n".join(f"{json.dumps(kv)}: {json.dumps(answer)}" for kv, answer in table.items()) + "\n}"
              for name, table in answers.items()]
    return "{\n" + ",\n".join(tables) + "\n}\n"


def leaves(value, path=""):
    """(path, number or text) of everything in a JSON value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def differences(cell_a, cell_b):
    """Lines, one for each field that only one cell has or that differs."""
    a, b = dict(leaves(cell_a)), dict(leaves(cell_b))
    for path in sorted({*a, *b}):
        if path not in a or path not in b:
            yield f"{path}: only in {'the first' if path in a else 'the second'}"
        elif a[path] != b[path]:
            yield f"{path}: {json.dumps(a[path])} and {json.dumps(b[path])}"


def tables(folder):
    found = {str(path.relative_to(folder))[: -len(".json")]: path for path in sorted(folder.glob("*/*.json"))
             if path.stem in ISAS}
    if not found:
        raise ResultsError(f"{folder}: holds no recording")
    return found


def statistics_differ(a, b):
    for path in sorted((a / "calibration").glob("*/basis.safetensors")):
        other = b / path.relative_to(a)
        if other.is_file() and sha256_of(path) != sha256_of(other):
            return path.parent.name
    return None


def compare(options):
    a, b = options.folder_a, options.folder_b
    name = statistics_differ(a, b)
    if name is not None:
        raise ResultsError(f"the statistics of {name} differ; record {b} again in an empty folder, with --calibration {a}")
    tables_a, tables_b = tables(a), tables(b)
    n_equal, n_differing = 0, 0
    for table in sorted({*tables_a, *tables_b}):
        if options.common and (table not in tables_a or table not in tables_b):
            print(f"{table}: only in {a if table in tables_a else b}, not compared")
            continue
        cells_a, cells_b = (read_cells(of.get(table, a / "none")) for of in (tables_a, tables_b))
        for kv in sorted({*cells_a, *cells_b}):
            lines = ([f"no cell in {a if kv not in cells_a else b}"] if kv not in cells_a or kv not in cells_b
                     else list(differences(cells_a[kv], cells_b[kv])))
            n_equal, n_differing = n_equal + (not lines), n_differing + bool(lines)
            for line in lines[: options.lines]:
                print(f"{table} {kv}: {line}")
            if len(lines) > options.lines:
                print(f"{table} {kv}: {len(lines) - options.lines} more")
    print(f"{n_equal} cells are equal, {n_differing} differ")
    return 1 if n_differing > 0 or n_equal == 0 else 0


def add_program(verb):
    verb.add_argument("--kvlathe", type=pathlib.Path, metavar="PROGRAM", default=ROOT / "build/release/bin/kvlathe")
    verb.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="programs at the same time")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("record", help="make what a recording lacks")
    verb.add_argument("folder", type=pathlib.Path, metavar="DIR")
    add_program(verb)
    verb.add_argument("--model", type=pathlib.Path, action="append", default=[], metavar="FILE", help="another model as well; repeats")
    verb.add_argument("--only", action="append", choices=[*EMBEDDED, "none"], default=[], help="of the models that come with kvlathe; repeats")
    verb.add_argument("--isa", action="append", choices=ISAS, help="only this instruction set; repeats")
    verb.add_argument("--calibration", type=pathlib.Path, metavar="DIR", help="the recording whose statistics are taken")
    verb.set_defaults(action=record)
    verb = verbs.add_parser("golden", help="write what no machine changes")
    add_program(verb)
    verb.set_defaults(action=golden)
    verb = verbs.add_parser("compare", help="name the cells in which two recordings differ")
    verb.add_argument("folder_a", type=pathlib.Path, metavar="DIR_A")
    verb.add_argument("folder_b", type=pathlib.Path, metavar="DIR_B")
    verb.add_argument("--common", action="store_true", help="only models and instruction sets that both recordings have")
    verb.add_argument("--lines", type=int, default=6, help="shown of a cell, at most")
    verb.set_defaults(action=compare)
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    end_on_signals()
    try:
        return options.action(options) or 0
    except (ResultsError, CallFailed, Interrupted) as error:
        print(f"recording.py: {error or 'interrupted'}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
