"""What is measured: parts, which are one command each, for every spec of a list."""

import pathlib
from dataclasses import dataclass

from . import prepare
from .paper_specs import FEW_TOKENS, GEAR, HEADS, N_ROTATED, N_TOKENS, N_WITH_GRADIENTS, RESIDUALS, ROTATED
from .rival_specs import DMS_HEADS, LEARNED, PUBLISHED_WINDOWS, RIVALS, RIVALS_ON_NEEDLES

# Where a method can keep its newest positions in 16 bits, it keeps 32. lathe keeps more by itself: WITHOUT has it with 32, NEWEST others with as many.
CODES = ["q4_0(newest=32)", "kivi(bits=4,group=64,newest=32)", "kivi(bits=3,group=64,newest=32)",
         "kivi(bits=2,group=64,newest=32)", "kvquant(bits=3,newest=32)", "gear(bits=2,newest=32)", "lathe(ratio=4)",
         "lathe(ratio=4,keys=before)", "lathe(ratio=6)", "lathe(ratio=6,keys=before)", "lathe(ratio=8)", "lathe(ratio=8,keys=before)",
         "lathe(ratio=10,keys=before)"]
# From a half to a sixteenth of the bytes in windows of 2048 tokens.
EIGHTH, TENTH = "lathe(ratio=8,context=2048,keys=before)", "lathe(ratio=10,context=2048,keys=before)"
SHORTER = EIGHTH.replace("2048", "1024")
EQUAL = ["lathe(ratio=2,context=2048)", "lathe(ratio=8,context=2048)", EIGHTH, "lathe(ratio=8,context=2048,keys=before,classes=3)", TENTH,
         "lathe(ratio=16,context=2048,keys=before)", SHORTER]
WITHOUT = [EIGHTH.replace(")", f",{key})") for key in ("newest=32", "open=16", "scales=static", "heads=own")]
BASES = ["palu(rate=0.25,round=16)", "fdc(rate=0.25)", "zack(rate=0.25)"]
LONG = ["none", *CODES, "snapkv(keep=0.5)"]
NEWEST = ["kivi(bits=4,group=64,newest=auto)", "kivi(bits=2,group=64,newest=auto)"]
FULL = ["none", "kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)", "lathe(ratio=8)", "lathe(ratio=8,keys=before)",
        "lathe(ratio=10,keys=before)"]
MOST_WINDOW = 32768  # of the full context of a model
MORE = ["h2o(keep=0.5)", "palu(rate=0.25,round=16)"]
# On tasks. Prompts of data sets end a little behind 1,000 tokens, needles near 2,000: the last row holds about an eighth on the former and less on the latter.
MAIN = [*(kv for kv in LONG if not kv.startswith("lathe")), *MORE, "lathe(ratio=4)", "lathe(ratio=6)", "lathe(ratio=8,context=2048)", EIGHTH,
        SHORTER]
# Scores that look ahead, beside those that do not, at a half and a quarter of the entries, and with codes behind them.
AHEAD = ["kvzip(keep=0.5)", "kvzip(keep=0.25)", "kvzip(keep=0.5,heads=own)", "snapkv(keep=0.25)", "h2o(keep=0.25)",
         *(f"lathe(ratio=4)+{method}(keep={keep})" for method in ("kvzip", "snapkv", "h2o") for keep in (0.5, 0.25))]
# Where bases that cut and entries that are dropped have failed on easier tasks of the same kind.
HARDER = ["none", "kivi(bits=4,group=64,newest=32)", "kivi(bits=3,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)", "lathe(ratio=4)",
          "lathe(ratio=6)", SHORTER, "snapkv(keep=0.5)"]
QUALITY = [*LONG, *MORE, "int8(newest=32)", "q8_0(newest=32)", "kivi(bits=4,group=64)"]  # kivi as published

# Baselines as their papers set them, and at their best where no other row has that (docs/methods/, Settings).
PUBLISHED = ["palu(rate=0.25,ranks=fisher,sink=0)", "fdc(rate=0.25,sink=0)", "kivi(bits=2,group=32,buffer=128,newest=128,sink=0)",
             "kvarn(run=128,sink=128)",
             "gear(bits=2,run=prompt,sink=0)", "kvquant(bits=4,sink=1)", "h2o(keep=0.2,budget=prompt,prune=prompt,sink=0)",
             "tova(budget=512,prune=prompt,sink=0)", "keyformer(keep=0.6,budget=prompt,prune=prompt,sink=0)"]
BEST = ["palu(rate=0.25)", "palu(rate=0.25,group=3)", "kivi(bits=2,group=32,buffer=128)", "gear(bits=2,run=prompt,buffer=256)",
        "h2o(keep=0.5,recent=0.25)", "h2o(keep=0.5,recent=0.75)", "tova(keep=0.5,heads=own)", "keyformer(keep=0.5,recent=0.5)"]
# When entries are dropped: where runs of a prompt end, or behind all of it.
SCHEDULES = ["none", *(f"{method}(keep=0.5{key})" for method in ("h2o", "tova", "keyformer") for key in ("", ",prune=prompt"))]

METHODS = ["none", *BASES, "eigen(rate=0.25)", "lathe(rate=0.25)", "lathe(rate=0.25,keys=before)",
           "lathe(rate=0.25,heads=own)", "svd-online(rate=0.25)", "zack(rate=0.25,online=on)",
           "token(bits=4,newest=32)", "kcvt(bits=4,newest=32)", "kivi(bits=4,newest=32)", "kvquant(bits=4,newest=32)", "int8(newest=32)",
           "q8_0(newest=32)", "q4_0(newest=32)", "q4_0(hadamard=on,newest=32)", "kivi(bits=2,group=64,newest=32)",
           "kivi(bits=2,group=64,newest=32)+lowrank", "kivi(bits=2,group=64,newest=32)+sparse", "gear(bits=4,newest=32)",
           "gear(bits=2,newest=32)", "gear-l(bits=4,newest=32)", "gear-l(bits=2,newest=32)", "outlier-aware(bits=2,newest=32)",
           "lathe(ratio=4)", "lathe(ratio=6)", "lathe(ratio=8)", "kvquant-z(rate=0.25,newest=32)", "kvq-f(rate=0.25,newest=32)",
           "kvq-p(rate=0.25,newest=32)", "fdc(rate=0.25)+gear(bits=4,newest=32)", "snapkv(keep=0.5)+kivi(bits=4,group=64,newest=32)",
           "lathe(ratio=4)+snapkv(keep=0.5)", "snapkv(keep=0.5)", "kvzip(keep=0.5)", "window(size=1020)", "pool(n=2)", "h2o(keep=0.5)", "mas(keep=0.5)",
           "tova(keep=0.5)", "keyformer(keep=0.5)", "keyformer-z(rate=0.5)", "kf-f(rate=0.5)", "kf-p(rate=0.5)"]
NOT_MEASURED = {"dmc": "needs weights that were trained for it"}

CALIBRATED = [*BASES, "lathe(rate=0.25)", "lathe(ratio=4)", "lathe(ratio=6)"]
CALIBRATIONS = ("random", "text", "books")
# 10,000 tokens of each are the text of the kind that is scored, which is another novel.
BOOKS = ["Emma_158.txt", "Middlemarch_145.txt", "Great-Expectations_1400.txt", "Moby-Dick--Or-The-Whale_2701.txt"]
NOVEL = "books-valid/Pride-and-Prejudice_1342.txt"
WIKI = "wikitext2/wiki.test.raw"
PROGRAMS = "humaneval/HumanEval.jsonl.gz"
GSM8K_SHOTS = "cot_prompts/gsm8k_prompt_original.txt"
AQUA_SHOTS = "cot_prompts/aqua_cot_prompt_8shots.txt"
MULTI_NEWS = "longbench/multi_news.jsonl"
JAPANESE = "japanese/manual.txt"  # Debian's of man, apt-get and dpkg, as plain text
PREDICTED = ("lathe(ratio=4)", "lathe(ratio=6)", "lathe(ratio=8)")

# Of a model of a billion parameters and more, which reads some 60 tokens a second on two cores. lathe's maps come with kvlathe.
LARGE_BYTES = 512 << 20  # of weights
LARGE = ["none", "kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)", "q8_0(newest=32)", "q4_0(newest=32)", "int8(newest=32)",
         "kivi(bits=3,group=64,newest=32)", "gear(bits=2,newest=32)", "snapkv(keep=0.5)", "h2o(keep=0.5)", "lathe(ratio=4)", "lathe(ratio=6)",
         "lathe(ratio=8)"]
LARGE_TASKS = ["none", "lathe(ratio=8)", "kivi(bits=4,group=64,newest=32)", "lathe(ratio=4)", "kivi(bits=2,group=64,newest=32)",
               "gear(bits=2,newest=32)"]
# Those of GEAR's tables, on chains of thought.
GEAR_TASKS = ["none", "lathe(ratio=8)", "kivi(bits=2,group=64,newest=32)", "gear(bits=2,newest=32)", "kivi(bits=4,group=64,newest=32)",
              "kcvt(bits=4,newest=32)", "h2o(keep=0.5)", "gear-l(bits=2,newest=32)", "outlier-aware(bits=2,newest=32)", "gear(bits=4,newest=32)",
              "token(bits=2,newest=32)", "lathe(ratio=4)"]
LARGE_LONG = ["none", "kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)", "lathe(ratio=4)", "lathe(ratio=8)"]
LARGE_NEEDLES = ["none", "lathe(ratio=8)", "kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)"]

# Of GEAR's thesis: errors of the cache compound over a long way to the answer.
BBH = {"object_counting": "counting objects", "date_understanding": "dates", "multistep_arithmetic_two": "arithmetic of several steps"}

SMALL = ["none", "int8", "kivi(bits=4,group=64,newest=32)", "kivi(bits=2,group=64,newest=32)", "gear(bits=2,newest=32)",
         "lathe(ratio=4)", "lathe(ratio=6)", "lathe(ratio=8)", "snapkv(keep=0.5)", "h2o(keep=0.5)", *BASES]
SMALL_TASKS = ["passkey", "recall", "multihop", "arithmetic", "sort", "copy", "classify", "summary", "code", "rules"]


@dataclass(frozen=True)
class Part:
    """One command for every spec. `arguments` are those of the program before its specs."""
    name: str  # GROUP or GROUP/NAME
    title: str
    specs: tuple
    arguments: tuple
    data: tuple = ()  # files of the data that it reads
    prepared: tuple = ()  # files that are made for it
    baseline: str = ""  # of a task: the file of what `none` answered
    problems: str = ""  # of a task whose answers are programs: HumanEval's file, with whose tests they are run
    n_together: int = 1  # of a text: caches that one command measures, so that `none` is computed once for them

    @property
    def is_compared(self):
        return self.arguments[0] == "compare"

    @property
    def is_inspected(self):
        return self.arguments[0] == "inspect"

    def matches(self, names):
        """Whether a name of --only means it."""
        return not names or bool({self.name, *self.name.split("/")} & set(names))

    def command(self, *kvs):
        """The arguments for specs, one but for texts; it may be the placeholder {kv}."""
        specs = [argument for kv in kvs for argument in ("--kv", kv)]
        return [*self.arguments, *specs, *(["--no-latency"] if self.is_compared else self.answers(kvs[0])), "--json"]

    def answers(self, kv):
        if not self.baseline:
            return ()
        if self.problems:
            return ("--predictions", self.answers_file(kv))
        return ("--predictions" if kv == "none" else "--baseline", self.baseline)


    def answers_file(self, kv):
        """Where the program writes what it answered with `kv`, where that is kept."""
        return self.baseline if kv == "none" else self.baseline.replace(".none.", ".other.")

    def judging(self, kv):
        """The command that runs the programs of the answers, and compares them with those of `none`."""
        if not self.problems:
            return ()
        return ("lab/pass_at_1.py", self.problems, *dict.fromkeys((self.baseline, self.answers_file(kv))))


@dataclass(frozen=True)
class Setup:
    """What a plan is made for. Paths are as the program gets them."""
    model: str
    context: int
    data: str | None  # None: none is there
    work: str  # folder for made files, relative to the tree
    embedded_text: str | None = None  # of a model that comes with kvlathe
    n_bytes: int = 0  # of the weights


def compared(setup, name, title, specs, text, n_windows, n_window, source, extra=(), needs=(), n_together=1):
    n_window = min(n_window, setup.context)
    path = f"{setup.work}/{text}-{n_windows}x{n_window}.txt"
    head = prepare.Prepared(path, prepare.head_by_tokens(f"{setup.data}/{source}", n_windows, n_window))
    return Part(name, title, tuple(specs),
                ("compare", "-m", setup.model, "-c", str(n_window), "--text", path, *extra),
                data=(source,), prepared=(head, *needs), n_together=n_together)


def text_parts(setup):
    parts = [compared(setup, "quality", "WikiText-2 test, 12 windows of 2048 tokens", QUALITY, "wiki", 12, 2048, WIKI)]
    parts.append(compared(setup, "equal", "the same text, lathe from a half to a sixteenth of the bytes", EQUAL, "wiki", 12, 2048, WIKI))
    parts.append(compared(setup, "without", f"the same text, parts of {EIGHTH} left out", WITHOUT, "wiki", 12, 2048, WIKI))
    if setup.context >= 8192:
        parts.append(compared(setup, "long", "WikiText-2 test, 3 windows of 8192 tokens", [*LONG, *NEWEST], "wiki", 3, 8192, WIKI))
    if setup.context > 8192:
        n_window = min(setup.context, MOST_WINDOW)
        parts.append(compared(setup, "full", f"WikiText-2 test, a window of {n_window} tokens", FULL, "wiki", 1, n_window, WIKI))
    parts.append(compared(setup, "methods", "every method on WikiText-2 test, 4 windows of 2048 tokens", METHODS, "wiki", 4, 2048, WIKI, n_together=8))
    parts.append(compared(setup, "gear", "the same text, GEAR's ranks, exact entries and repairs of a part", GEAR, "wiki", 4, 2048, WIKI, n_together=10))
    if setup.context >= 2048:
        parts += inspected_parts(setup) + rotation_parts(setup)
    parts.append(compared(setup, "baselines", "baselines at their best and as published, on the same text", [*BEST, *PUBLISHED], "wiki", 4, 2048,
                          WIKI, n_together=6))
    return parts + calibration_parts(setup) + prediction_parts(setup)


def inspected_parts(setup):
    """What the figures of papers show of a model and a quantizer."""
    n_window = min(2048, setup.context)
    path = f"{setup.work}/wiki-2x{n_window}.txt"
    head = prepare.Prepared(path, prepare.head_by_tokens(f"{setup.data}/{WIKI}", 2, n_window))
    basis = prepare.Prepared(f"{setup.work}/heads.safetensors", prepare.calibrated(("--text", "share/calibration.txt", "--gradients=false")))
    return [Part("residuals", f"errors of quantizers on the first {n_window} tokens of WikiText-2 test", tuple(RESIDUALS),
                 ("inspect", "-m", setup.model, "-c", str(n_window), "--errors", path), data=(WIKI,), prepared=(head,)),
            Part("heads", "heads of a layer beside one another", tuple(HEADS), ("inspect", "-m", setup.model, "--basis", basis.path),
                 prepared=(basis,))]


def rotation_parts(setup):
    """Rotations of several texts, each on the rows of the others; then from 1024 tokens and more of a text, and what caches lose with them."""
    def basis(name, *arguments, needs=()):
        return prepare.Prepared(f"{setup.work}/{name}.safetensors", prepare.calibrated(arguments), needs)

    def text(name, source, needs=()):
        return prepare.Prepared(f"{setup.work}/{name}", prepare.head_by_tokens(source, 4, 2048), needs)

    problems = prepare.Prepared(f"{setup.work}/humaneval.py", prepare.programs_of(f"{setup.data}/{PROGRAMS}"))
    moments = ("--gradients=false",)
    most = ("--tokens", N_ROTATED)
    texts = {"wiki": text("wiki-4x2048.txt", f"{setup.data}/{WIKI}"), "novel": text("novel-4x2048.txt", f"{setup.data}/{NOVEL}"),
             "programs": text("prediction-programs.txt", problems.path, (problems,))}
    bases = {name: basis(f"rotations-{name}", "--text", of.path, *most, *moments, needs=(of,)) for name, of in texts.items()}
    bases["random"] = basis("rotations-random", "--random-tokens", N_ROTATED, *moments)
    few = {n: basis(f"tokens-{n}", "--text", "share/calibration.txt", "--tokens", str(n), *(moments if n > N_WITH_GRADIENTS else ()))
           for n in N_TOKENS}
    pairs = [(one, other) for one in bases for other in bases if one != other] + [(n, "wiki") for n in N_TOKENS]
    bases |= few
    data = (WIKI, NOVEL, PROGRAMS)
    parts = [Part(f"rotations/{one}/{other}", f"rotations of {one} on rows of {other}", (ROTATED,),
                  ("inspect", "-m", setup.model, "--basis", bases[one].path, "--against", bases[other].path), data=data,
                  prepared=(bases[one], bases[other])) for one, other in pairs]
    return parts + [Part(f"tokens/{n}", f"WikiText-2 test, 4 windows of 2048 tokens, calibrated on {n} tokens",
                         tuple(kv for kv in FEW_TOKENS if n <= N_WITH_GRADIENTS or not kv.startswith("lathe")),
                         ("compare", "-m", setup.model, "-c", "2048", "--basis", few[n].path, "--text", texts["wiki"].path), data=(WIKI,),
                         prepared=(few[n], texts["wiki"]), n_together=len(FEW_TOKENS)) for n in N_TOKENS]


def prediction_parts(setup):
    """What is measured on texts beside what calibration predicts, which is the same for all of them."""
    programs = prepare.Prepared(f"{setup.work}/humaneval.py", prepare.programs_of(f"{setup.data}/{PROGRAMS}"))
    texts = {"wiki": ("WikiText-2 test", f"{setup.data}/{WIKI}", WIKI, ()),
             "novel": ("a novel", f"{setup.data}/{NOVEL}", NOVEL, ()),
             "sample": ("the mixed text that comes with kvlathe", "share/sample.txt", None, ()),
             "programs": ("HumanEval's programs", programs.path, PROGRAMS, (programs,)),
             "japanese": ("manual pages in Japanese", f"{setup.data}/{JAPANESE}", JAPANESE, ())}
    parts, n_window = [], min(2048, setup.context)
    for name, (title, source, data, needs) in texts.items():
        head = prepare.Prepared(f"{setup.work}/prediction-{name}.txt", prepare.head_by_tokens(source, 4, n_window), needs)
        parts.append(Part(f"prediction/{name}", f"predicted and measured on {title}, 4 windows of {n_window} tokens", PREDICTED,
                          ("compare", "-m", setup.model, "-c", str(n_window), "--text", head.path),
                          data=() if data is None else (data,), prepared=(head,)))
    return parts


def calibration_parts(setup):
    n_window = min(2048, setup.context)
    scored = f"{setup.work}/novel-4x{n_window}.txt"
    novel = prepare.Prepared(scored, prepare.head_by_tokens(f"{setup.data}/{NOVEL}", 4, n_window))
    own, books = "share/calibration.txt", f"{setup.work}/calibration-books.txt"
    sources = {
        "random": (("--random-tokens", "40000"), None, ()),
        "text": (("--text", own), own, ()),
        "books": (("--text", books), books,
                  (prepare.Prepared(books, prepare.heads_of([f"{setup.data}/books/{book}" for book in BOOKS], 43000)),)),
    }
    titles = {"random": "random tokens", "text": "the text that comes with kvlathe", "books": "other novels"}
    parts = []
    for kind in CALIBRATIONS:
        arguments, text, needs = sources[kind]
        basis = prepare.Prepared(f"{setup.work}/{kind}.safetensors", prepare.calibrated(arguments, text, scored), (novel, *needs))
        parts.append(Part(f"calibration/{kind}", f"a novel, calibrated on {titles[kind]}", tuple(CALIBRATED),
                          ("compare", "-m", setup.model, "-c", str(n_window), "--basis", basis.path, "--text", scored),
                          data=(NOVEL, *(f"books/{book}" for book in BOOKS if kind == "books")), prepared=(novel, basis)))
    return parts


def rival_parts(setup):
    """The field's quantizers of 2026 beside kivi, kvquant and lathe, at equal bytes: on texts, then where facts hide in a novel."""
    n_windows = 2 if is_large(setup) else 4
    windows = f"{n_windows} windows of 2048 tokens"
    parts = [compared(setup, "rivals/wiki", f"WikiText-2 test, {windows}: rivals at equal bytes", RIVALS, "wiki", n_windows, 2048, WIKI,
                      n_together=6),
             compared(setup, "rivals/novel", f"a novel, {windows}: rivals at equal bytes", RIVALS, "novel", n_windows, 2048, NOVEL, n_together=6)]
    if setup.context >= 8192:
        parts.append(compared(setup, "rivals/long", "WikiText-2 test, a window of 8192 tokens: rivals with their published windows",
                              PUBLISHED_WINDOWS, "wiki", 1, 8192, WIKI, n_together=5))
    rounded = ("--weights-exact=false",) if is_large(setup) else ()
    for name, title, argument in (("needle", "one number in a novel", "needle"), ("uuids", "an identifier (UUID)", "needle(kind=uuids)")):
        parts.append(task(setup, f"rivals/{name}", title, argument,
                          ("--task-text", f"{setup.data}/{NOVEL}", "--task-length", "2000", "--task-count", "10" if is_large(setup) else "25",
                           *rounded), RIVALS_ON_NEEDLES, data=(NOVEL,)))
    return parts


def learned_parts(setup):
    """Heads that were taught what may leave a cache, beside votes, on texts that they were not taught on and where facts hide in a novel."""
    if pathlib.Path(setup.model).stem != "smollm2":
        return []
    heads, windows = ("--dms", DMS_HEADS), "4 windows of 2048 tokens"
    parts = [compared(setup, "learned/wiki", f"WikiText-2 test, {windows}: entries that leave", LEARNED, "wiki", 4, 2048, WIKI, heads, n_together=6),
             compared(setup, "learned/novel", f"a novel, {windows}: entries that leave", LEARNED, "novel", 4, 2048, NOVEL, heads, n_together=6)]
    options = ("--task-text", f"{setup.data}/{NOVEL}", "--task-length", "2000", "--task-count", "25", *heads)
    return parts + [task(setup, f"learned/{name}", title, argument, options, LEARNED, data=(NOVEL,))
                    for name, title, argument in (("needle", "one number in a novel", "needle"), ("uuids", "an identifier (UUID)", "needle(kind=uuids)"))]


def task(setup, name, title, argument, options, specs=MAIN, **files):
    baseline = f"{setup.work}/{name.replace('/', '-')}.none.jsonl"
    return Part(name, title, tuple(specs), ("eval", "-m", setup.model, "--task", argument, *options), baseline=baseline, **files)


def file_tasks(setup):
    """Tasks of data sets, 100 examples each."""
    def of(name, title, path, *options, reader=None, shots=None, prepared=()):
        data = (path,) if shots is None else (path, shots)
        argument = f"{reader or name}:{prepared[0].path if prepared else f'{setup.data}/{path}'}"
        shot_options = ("--shot-tokens", "1000") if shots is None else ("--shots", f"{setup.data}/{shots}")
        return task(setup, f"tasks/{name}", title, argument, ("--task-count", "100", *shot_options), data=data, prepared=prepared)

    packed = "hellaswag/hellaswag_val_full.txt.bz2"
    endings = prepare.Prepared("build/results/hellaswag_val_full.txt", prepare.unpacked(f"{setup.data}/{packed}"))
    return [
        of("hellaswag", "HellaSwag", packed, prepared=(endings,)),
        of("piqa", "PIQA", "piqa/valid.jsonl"),
        of("arc-easy", "ARC easy", "arc/arc-easy/test.json", reader="arc"),
        of("arc-challenge", "ARC challenge", "arc/arc-challenge/test.json", reader="arc"),
        of("winogrande", "WinoGrande", "winogrande/dev.json"),
        of("gsm8k", "GSM8K", "gsm8k/test.jsonl", shots=GSM8K_SHOTS),
        of("aqua", "AQuA", "aqua/test.json", shots=AQUA_SHOTS),
    ]


def retrieval_tasks(setup):
    """Facts hidden in a novel, 25 examples each."""
    def of(name, title, argument, n_tokens=2000, n_examples=25, specs=MAIN):
        return task(setup, name, title, argument, ("--task-text", f"{setup.data}/{NOVEL}", "--task-length", str(n_tokens),
                                                   "--task-count", str(n_examples)), specs, data=(NOVEL,))
    parts = [
        of("needle/one", "one number in a novel", "needle", specs=[*MAIN, *AHEAD]),
        of("needle/schedules", "one number in a novel, by caches that drop entries sooner or later", "needle", specs=SCHEDULES),
        of("needle/keys4", "one of four numbers in a novel", "needle(keys=4)"),
        of("needle/values2", "two numbers of one key", "needle(values=2)"),
        of("needle/uuids", "an identifier (UUID)", "needle(kind=uuids)", specs=[*MAIN, *AHEAD]),
        # A cell of these takes two minutes.
        of("needle/7000", "one number in 7,000 tokens", "needle", 7000, 12,
           ["none", "kivi(bits=4,group=64,newest=32)", "lathe(ratio=4)", "lathe(ratio=6)", "lathe(ratio=8,keys=before)"]),
        of("needle/variables", "variables that have a value by assignments in a novel", "variables", specs=HARDER),
        task(setup, "needle/frequent", "the most frequent word of a list", "frequent(words=1)", ("--task-length", "2000", "--task-count", "50"),
             HARDER),
        task(setup, "needle/json", "facts of a text as a JSON object", "json", ("--task-length", "2000", "--task-count", "25"),
             HARDER),
    ]
    return [part for part in parts if part.name != "needle/7000" or setup.context >= 8192]


def drift_part(setup):
    return Part("drift", "1,000 tokens of free generation after 4 prompts", tuple(MAIN),
                ("eval", "-m", setup.model, "--drift", f"{setup.data}/{NOVEL}", "--drift-tokens", "1000", "--drift-prompts", "4"), data=(NOVEL,))


def embedded_parts(setup):
    parts = [Part("quality", f"its sample text, windows of {setup.context} tokens or fewer", tuple(SMALL),
                  ("compare", "-m", setup.model, "-c", str(setup.context), "--text", setup.embedded_text))]
    return parts + [task(setup, f"tasks/{name}", name, name, ("--task-count", "50"), SMALL) for name in SMALL_TASKS]


def is_large(setup):
    return not setup.embedded_text and setup.n_bytes >= LARGE_BYTES


def main_specs(setup):
    """The caches that the first table of a page is about."""
    return LARGE if is_large(setup) else (*MAIN, *SMALL)


def large_parts(setup):
    """What a machine of two cores measures in some hours. Tasks are answered with products as `run` and `serve` have them."""
    rounded = "--weights-exact=false"

    def needle(n_tokens, n_examples):
        """An identifier, which has to be copied exactly: what caches of few bits lose first."""
        return task(setup, f"needle/{n_tokens}", f"an identifier (UUID) in {n_tokens} tokens of a novel", "needle(kind=uuids)",
                    ("--task-text", f"{setup.data}/{NOVEL}", "--task-length", str(n_tokens), "--task-count", str(n_examples), rounded),
                    LARGE_NEEDLES, data=(NOVEL,))

    def chained(name, title, reader, path, shots, n_examples):
        """Questions that are answered by writing down the way to the answer, behind solved ones of a prompt file."""
        return task(setup, f"tasks/{name}", title, f"{reader}:{setup.data}/{path}",
                    ("--task-count", str(n_examples), "--shots", f"{setup.data}/{shots}", rounded), GEAR_TASKS, data=(path, shots))

    problems = prepare.Prepared("build/results/humaneval.jsonl", prepare.unpacked(f"{setup.data}/{PROGRAMS}"))
    return [
        compared(setup, "quality", "WikiText-2 test, 2 windows of 2048 tokens", LARGE, "wiki", 2, 2048, WIKI, n_together=5),
        compared(setup, "long", "WikiText-2 test, a window of 8192 tokens", LARGE_LONG, "wiki", 1, 8192, WIKI, n_together=5),
        task(setup, "tasks/gsm8k", "GSM8K", f"gsm8k:{setup.data}/gsm8k/test.jsonl",
             ("--task-count", "200", "--shots", f"{setup.data}/{GSM8K_SHOTS}", rounded), GEAR_TASKS, data=("gsm8k/test.jsonl", GSM8K_SHOTS)),
        task(setup, "tasks/humaneval", "HumanEval, pass@1", f"humaneval:{problems.path}", ("--task-count", "164", rounded), LARGE_TASKS,
             data=(PROGRAMS,), prepared=(problems,), problems=f"{setup.data}/{PROGRAMS}"),
        needle(4000, 10),
        needle(16000, 4),
        chained("aqua", "AQuA", "aqua", "aqua/test.json", AQUA_SHOTS, 50),
        *(chained(f"bbh-{name}", f"BIG-Bench Hard, {title}", "bbh", f"bbh/{name}.json", f"bbh/{name}.txt", 50) for name, title in BBH.items()),
        task(setup, "tasks/longbench-multi_news", "LongBench, summaries of news", f"longbench:{setup.data}/{MULTI_NEWS}",
             ("--task-count", "10", "--task-length", "4000", rounded), GEAR_TASKS, data=(MULTI_NEWS,)),
        task(setup, "tasks/tools", "a call of one of six tools, in JSON", "tools",
             ("--task-count", "100", "--task-length", "1500", rounded), GEAR_TASKS),
        *inspected_parts(setup),
        *rival_parts(setup),
    ]


def parts_of(setup):
    if setup.embedded_text:
        return embedded_parts(setup)
    if is_large(setup):
        return large_parts(setup)
    return [*text_parts(setup), *file_tasks(setup), *retrieval_tasks(setup), drift_part(setup), *rival_parts(setup),
            *learned_parts(setup)]


def missing_data(part, setup):
    """The first file of the data that is not there, or None."""
    for path in part.data:
        if setup.data is None or not (pathlib.Path(setup.data) / path).exists():
            return path
    return None
