"""The pages of a model: every table of its results file, and where it is from."""

import functools

from wrap_markdown import wrapped

from . import inspected_tables, plan
from .findings import beaten_block, has_lathe, kept_block
from .store import ResultsError
from .view import AXES, AXIS_TITLES, axis_of, code, command_lines, figure, kept_unsealed, markdown_table, with_error

LEGEND = """KV size is relative to the 16-bit cache of the same text, tables and padding included. KL is in nats per token to the
uncompressed model, top-1 the share of tokens where both find the same one likeliest; the error of a change is that of the
differences token by token. "Unsealed": how many of the first and at least of the newest positions a cache makes no codes of, in
16 bits where nothing else is said (auto: 32, or a 32nd of the first 2048 and a sixteenth of those behind, less 4)."""
TASK_LEGEND = """The change against `none` and its standard error are of the differences example by example; flips are the share of examples
whose answer is another one than that of `none`, right or wrong. Commands with `--baseline` read what `none` answered, which the
same command wrote with `--kv none` and `--predictions` in place of `--baseline`."""
PARTED_LEGEND = """"Parted at" is the median of the tokens that an answer shares with that of `none` before the first that
differs (all of them where none does), "never" the share of answers whose tokens are all the same."""
# Of tasks whose rows have them: the fields' names, and the columns'.
TASK_COLUMNS = {"valid_json": "JSON %", "right_tool": "right tool %", "right_arguments": "right arguments %",
                "parted_at_median": "parted at", "never_parted_share": "never %"}
UNDECIDED_LEGEND = """A task on which `none` is not three standard errors above chance tells caches apart by luck: it is measured with
`none` alone and decides nothing:"""
LARGE_LEGEND = """Of a model of this size fewer caches are measured, on fewer tokens, and tasks are answered with
products that round rows to 8 bits, as `run` and `serve` do."""
KEPT_LEGEND = "A cache keeps 99% of the model on a text where its KL is at most 0.013, about 1% of perplexity."
KEPT_TASKS_LEGEND = """Of the tasks that decide two numbers say it: in how many the score is at least 99% of that of `none`, and in how
many it is not lower than that by more than one standard error of the paired difference (where nothing is lost, one task in six
falls below by chance)."""
# Of tasks: the titles of their pages, and what is on them.
GROUPS = {"tasks": ("Tasks", "what changes in answers, and each task with its sizes"),
          "needle": ("Retrieval", "what changes where facts hide in a text, and each task with its sizes")}
# Columns of texts beside the mean KL, where rows have them: rows that were measured before programs gave them have none.
TAILS = {"kl_median": "KL, median", "kl_p99": "99%", "kl_p999": "99.9%", "kl_worst": "worst window", "top1_worst": "worst top-1 %"}
RESIDUALS_LEGEND = """Squared errors of what is stored over squares of the rows, and the share of them, in percent, that factors of a rank would
remove at best from each run of 512 positions and head; in brackets, from white noise in matrices of the same shapes. Means of layers; `sparse`
takes 2% of the entries out first (GEAR, Figure 2b)."""
HEADS_LEGEND = """Standard deviation over mean among the KV heads of a layer, in percent: the mean of layers, and the least to the most of a layer
(ZACK, Tables 6 and 7)."""
ROTATIONS_TITLE = "rotations of one text on the rows of another"
ROTATIONS_LEGEND = """Calibrated on 4096 tokens of WikiText-2 test, a novel, programs (HumanEval) and random tokens, and on 1024 and more of the text
that comes with kvlathe. Of the energy (squares) of rows of one text, kept is what the first directions of another text keep, over
what as many of their own keep; lost is what they lose, over what their own lose; overlap the mean squared cosine between both
spaces. Elements differ by the mean of the absolute difference, columns with the signs that agree, which is how ZACK's Tables 4 and 5 compare."""
N_MOST_ROWS = 20  # of a table
GENERATED = "Written by lab/results.py page"  # stands in the first line of each page

def in_hours(seconds):
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.0f} minutes"


def provenance_block(view):
    store = view.store
    lines = [f"Model: `{store.model['file']}`, {store.model['bytes']:,} bytes of weights, SHA-256 `{store.model['sha256']}`.", ""]
    for key, run in store.runs.items():
        seconds = [record["seconds"] for record in store.records.values() if record["run"] == key]
        dirty = " with changes that are in no commit" if run.get("dirty") else ""
        machine = f"{run['machine']}, {run['cores']} cores" + (f", {run['instructions']}" if run["instructions"] else "")
        lines.append(f"- {run['date']}: {len(seconds)} records in {in_hours(sum(seconds))} by the program of commit {run['commit']}{dirty}; {machine}")
    return [*lines, ""]


def files_block(view):
    if not view.store.files:
        return []
    return ["## How texts and calibrations are made", "", "DATA is the folder of the data sets.", "", *command_lines(view.store.files.values())]


def by_axis(view, part, header, cells):
    """Codes first, then what cuts dimensions, then what drops positions: one table where that is short, else one for each. `cells`
    makes the columns behind the name of a cache."""
    rows = {axis: [[code(kv), *cells(kv, view.row(part.name, kv))] for kv in view.specs(part) if axis_of(kv) == axis] for axis in AXES}
    if sum(map(len, rows.values())) <= N_MOST_ROWS:
        return markdown_table(["cache", *header], [row for axis in AXES for row in rows[axis]])
    lines = []
    for axis in AXES:
        if rows[axis]:
            lines += [f"{AXIS_TITLES[axis]}:", "", *markdown_table(["cache", *header], rows[axis])]
    return lines


def text_block(view, part):
    has_tails = any(view.row(part.name, kv).get("kl_p99") is not None for kv in view.specs(part))
    tails = TAILS if has_tails else {}
    def cells(kv, row):
        return [figure(row, "size"), figure(row, "bytes"), kept_unsealed(view.store.resolved_of(part.name, kv)), figure(row, "perplexity"),
                with_error(row, "change"), with_error(row, "kl"), *(figure(row, field) for field in tails), figure(row, "top1")]
    header = ["KV size %", "bytes/token", "unsealed", "perplexity", "change %", "KL", *tails.values(), "top-1 %"]
    return by_axis(view, part, header, cells)


def task_block(view, part):
    """All caches on a task."""
    rows = [view.row(part.name, kv) for kv in view.specs(part)]
    more = {field: title for field, title in TASK_COLUMNS.items() if any(figure(row, field) != "-" for row in rows)}
    def cells(_kv, row):
        return [figure(row, "size"), with_error(row, "score"), with_error(row, "score_change"), figure(row, "flips"),
                *(figure(row, field) for field in more)]
    return by_axis(view, part, ["KV size %", "score %", "change", "flips %", *more.values()], cells)


def changes_block(view, group):
    """Score changes of all caches on all tasks of a group that decide."""
    parts = view.deciding(group)
    if not parts:
        return ["No task here decides anything." if view.tasks(group) else "Not measured yet.", ""]
    measured = dict.fromkeys(kv for part in parts for kv in view.specs(part))
    specs = [kv for axis in AXES for kv in measured if axis_of(kv) == axis]
    rows = []
    for kv in specs:
        changes = [view.row(part.name, kv) or {} for part in parts]
        rows.append([code(kv), *(with_error(row, "score" if kv == "none" else "score_change") for row in changes)])
    return markdown_table(["cache", *(part.name.split("/")[-1] for part in parts)], rows)


def undecided_section(view, group):
    parts = view.undecided(group)
    rows = [[part.title, with_error(view.row(part.name, "none"), "score"), figure(view.row(part.name, "none"), "chance")] for part in parts]
    if not rows:
        return []
    return ["## Tasks that decide nothing", "", UNDECIDED_LEGEND, "", *markdown_table(["task", "score of `none` %", "chance %"], rows)]


def drift_block(view, part):
    def cells(_kv, row):
        return [figure(row, "size"), figure(row, "parted_at"), figure(row, "parted_at_median"), figure(row, "never_parted"),
                with_error(row, "kl"), figure(row, "top1"), figure(row, "text_nll"), figure(row, "own_nll"), figure(row, "repeats")]
    header = ["KV size %", "parts at token, mean", "median", "never", "KL", "top-1 %", "NLL of its text", "of none's text", "repeats %"]
    return by_axis(view, part, header, cells)


def compared_parts(view, *groups):
    """The texts of these groups that are measured."""
    return [part for group in groups for part in view.measured_parts(group) if part.is_compared]


def section(view, part, block):
    return [f"## {part.name}: {part.title}", "", *command_lines(view.commands(part)), *block(view, part)]


def text_sections(view, *groups):
    return [line for part in compared_parts(view, *groups) for line in section(view, part, text_block)]


def calibration_section(view, group="calibration", title="a novel by bases of several texts"):
    """One text by bases of several calibrations: a column for each."""
    parts = compared_parts(view, group)
    if not parts:
        return []
    specs = dict.fromkeys(kv for part in parts for kv in view.specs(part))
    def kl(part, kv):
        row = view.row(part.name, kv)
        return with_error(row, "kl") if row else "-"
    def size(kv):
        return figure(next(filter(None, (view.row(part.name, kv) for part in parts))), "size")
    rows = [[code(kv), size(kv), *(kl(part, kv) for part in parts)] for kv in specs]
    commands = list(dict.fromkeys(command for part in parts for command in view.commands(part)))
    return [f"## {group}: {title}", "",
            *(f"- `{part.name}`: {part.title}" for part in parts), "", *command_lines(commands),
            *markdown_table(["cache", "KV size %", *(f"KL, `{part.name}`" for part in parts)], rows)]


def prediction_section(view):
    """What calibration predicts beside what is measured: a row for each text and cache."""
    parts = compared_parts(view, "prediction")
    if not parts:
        return []
    rows = [[f"`{part.name}`", code(kv), *(figure(view.row(part.name, kv), field) for field in ("size", "predicted", "kl", "predicted_share"))]
            for part in parts for kv in view.specs(part)]
    commands = list(dict.fromkeys(command for part in parts for command in view.commands(part)))
    return ["## prediction: the KL that calibration predicts, and what is measured", "",
            *(f"- `{part.name}`: {part.title}" for part in parts), "", *command_lines(commands),
            *markdown_table(["text", "cache", "KV size %", "predicted KL", "measured KL", "predicted / measured"], rows)]


def inspected_section(view, group, legend, block):
    parts = view.measured_parts(group)
    if not parts:
        return []
    commands = list(dict.fromkeys(command for part in parts for command in view.commands(part)))
    title = parts[0].title if len(parts) == 1 else ROTATIONS_TITLE
    shown = commands if len(commands) < 3 else [*commands[:1], f"({len(commands) - 1} more, one for each row)"]
    return [f"## {group}: {title}", "", legend, "", *command_lines(shown), *block(view, parts if len(parts) > 1 else parts[0])]


def papers_sections(view):
    """What figures and ablations of papers show."""
    return [*inspected_section(view, "residuals", RESIDUALS_LEGEND, inspected_tables.residual_lines), *text_sections(view, "gear"),
            *inspected_section(view, "heads", HEADS_LEGEND, inspected_tables.head_lines),
            *inspected_section(view, "rotations", ROTATIONS_LEGEND, inspected_tables.rotation_lines),
            *calibration_section(view, "tokens", "WikiText-2 by bases from so many tokens of the text that comes with kvlathe")]


def methods_sections(view):
    lines = text_sections(view, "methods", "baselines")
    if lines:
        lines += [*(f"Not measured: {code(kv)}, which {why}." for kv, why in plan.NOT_MEASURED.items()), ""]
    return lines


def group_sections(view, group):
    """Of a group of tasks what changes, in one table; then each of those that decide."""
    if not view.tasks(group):
        return []
    lines = changes_block(view, group)
    if view.deciding(group):
        parts_texts = any(figure(view.row(part.name, kv), "parted_at_median") != "-" for part in view.deciding(group) for kv in view.specs(part))
        legends = [TASK_LEGEND, "", *([PARTED_LEGEND, ""] if parts_texts else [])]
        lines = [*legends, "Of `none` the score in percent, of the others its change in points:", "", *lines]
    lines += undecided_section(view, group)
    for part in view.deciding(group):
        lines += section(view, part, task_block)
    return lines


def drift_sections(view):
    lines = []
    for part in view.measured_parts("drift"):
        lines += ["Both generate freely from the same prompts, each with its own cache.", "", *section(view, part, drift_block)]
    return lines


def failed_section(view):
    failures = sorted(view.store.failures(), key=lambda record: (record["part"], record["kv"]))
    if not failures:
        return []
    return ["## Failed", "", *markdown_table(["part", "cache", "error"], [[record["part"], code(record["kv"]), record["failed"].replace("|", "\\|")]
                                                                       for record in failures])]


def main_page(view, links):
    """What is found, on the first screen; then the texts that it rests on, and where all is from."""
    source = view.store.path.name
    others = ["Other pages:", "", *links, ""] if links else []
    beaten = ["## Where lathe is beaten", "", *beaten_block(view)] if has_lathe(view) else []
    note = [LARGE_LEGEND, ""] if plan.is_large(view.setup) else []
    return [f"# Results on {view.name}", "", f"{KEPT_LEGEND} {KEPT_TASKS_LEGEND}" if view.deciding() else KEPT_LEGEND, "",
            *kept_block(view), LEGEND, "", *note, *beaten, *others, *text_sections(view, "quality", "equal"), *failed_section(view), "## What measured it", "", *provenance_block(view),
            f"[{source}]({source}) names the run of each row.", ""]


def page_texts(view):
    """The pages of a model by path: the main one, and beside it those that have something to show."""
    page = view.store.path.with_suffix(".md")
    details = [(f"{page.stem}-texts.md", "Texts", "longer windows, parts left out, calibrations, predictions, how texts are made",
                [*text_sections(view, "without", "long", "full"), *calibration_section(view), *prediction_section(view), *files_block(view)]),
               (f"{page.stem}-methods.md", "Every method", "every method and preset on one text", methods_sections(view)),
               (f"{page.stem}-papers.md", "What papers' figures show", "spectra of errors, GEAR's ablations, heads and rotations beside one another",
                papers_sections(view)),
               *((f"{page.stem}-{group}.md", title, about, group_sections(view, group))
                 for group, (title, about) in GROUPS.items()),
               (f"{page.stem}-drift.md", "Free generation", "how soon free generation parts from that of `none`", drift_sections(view))]
    details = [detail for detail in details if detail[3]]
    back = f"Model, program and machine are those of [{page.name}]({page.name}), which says what the columns mean."
    pages = {page: main_page(view, [f"- [{name}]({name}): {about}" for name, _, about, _ in details])}
    pages |= {page.with_name(name): [f"# {title} on {view.name}", "", back, "", *lines] for name, title, _, lines in details}
    note = f"<!-- {GENERATED} docs/results/{view.store.path.name}; change that file or the script. -->"
    return {path: wrapped("\n".join([note, *lines]).rstrip("\n") + "\n") for path, lines in pages.items()}


def block_lines(view, name):
    """A table by its name in a document."""
    blocks = {"kept": kept_block, "beaten": beaten_block, "provenance": provenance_block,
              **{group: functools.partial(changes_block, group=group) for group in GROUPS}}
    if name in blocks:
        return blocks[name](view)
    try:
        part = view.part(name)
    except ResultsError:
        names = [*blocks, *(part.name for part in view.parts)]
        raise ResultsError(f"{view.name} has no block {name}; there are {', '.join(names)}") from None
    if not view.specs(part):
        return ["Not measured yet.", ""]
    return text_block(view, part) if part.is_compared else task_block(view, part) if part.baseline else drift_block(view, part)

