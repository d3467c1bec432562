"""The pages of a model: every table of its results file, and where it is from."""

import pathlib

from wrap_markdown import wrapped

from . import plan
from .findings import beaten_block, kept_block, main_block
from .store import ResultsError, Store, write_whole
from .view import AXES, AXIS_TITLES, View, axis_of, code, command_lines, figure, kept_unsealed, markdown_table, with_error

LEGEND = """KV size is relative to the 16-bit cache of the same text, tables and padding included. "Unsealed": how many of the first
and at least of the newest positions a cache makes no codes of, in 16 bits where nothing else is said (auto: 32, or a 32nd of the first 2048 and a sixteenth of those behind, less 4). KL is in nats per token to the uncompressed model, top-1 the share of tokens
where both find the same one likeliest; the error of a change is that of the differences token by token."""
TASK_LEGEND = """The change against `none` and its standard error are of the differences example by example; flips are the share of examples
whose answer is another one than that of `none`, right or wrong. A task on which `none` is not three standard errors above chance
tells caches apart by luck: it is measured with `none` alone, listed below, and decides nothing."""
KEPT_LEGEND = """Three measures of keeping 99% of the model. On a text: a KL of at most 0.013, about 1% of perplexity. On the tasks that
decide: in how many of them the score is at least 99% of that of `none`; and in how many it is not lower than that by more than
one standard error of the paired difference (where nothing is lost, one task in six falls below by chance)."""


def provenance_block(view):
    store = view.store
    lines = [f"Model: `{store.model['file']}`, {store.model['bytes']:,} bytes of weights, SHA-256 `{store.model['sha256']}`.", ""]
    for key, run in store.runs.items():
        n = sum(record["run"] == key for record in store.records.values())
        dirty = " with changes that are in no commit" if run.get("dirty") else ""
        machine = f"{run['machine']}, {run['cores']} cores" + (f", {run['instructions']}" if run["instructions"] else "")
        lines.append(f"- {run['date']}: {n} records by the program of commit {run['commit']}{dirty}; {machine}")
    return [*lines, ""]


def files_block(view):
    if not view.store.files:
        return []
    return ["Texts and calibrations are made so, DATA being the folder of the data sets:", "", *command_lines(view.store.files.values())]


def by_axis(view, part, header, cells):
    """A table for each axis; `cells` makes the columns behind the name of a cache."""
    lines, specs = [], view.specs(part)
    for axis in AXES:
        of_axis = [kv for kv in specs if axis_of(kv) == axis]
        if of_axis and of_axis != ["none"]:
            lines += [f"{AXIS_TITLES[axis]}:", ""]
        lines += markdown_table(["cache", *header], [[code(kv), *cells(kv, view.row(part.name, kv))] for kv in of_axis])
    return lines


def text_block(view, part):
    def cells(kv, row):
        return [figure(row, "size"), figure(row, "bytes"), kept_unsealed(view.store.resolved_of(part.name, kv)), figure(row, "perplexity"),
                with_error(row, "change"), with_error(row, "kl"), figure(row, "top1")]
    return by_axis(view, part, ["KV size %", "bytes/token", "unsealed", "perplexity", "change %", "KL", "top-1 %"], cells)


def task_block(view, part):
    """All caches on a task; the choices' two accuracies where it has them."""
    has_accuracies = view.row(part.name, "none").get("acc") is not None
    def cells(_kv, row):
        accuracies = [with_error(row, "acc"), with_error(row, "acc_norm")] if has_accuracies else []
        return [figure(row, "size"), with_error(row, "score"), *accuracies, with_error(row, "score_change"), figure(row, "flips")]
    header = ["KV size %", "score %", *(["acc %", "acc_norm %"] if has_accuracies else []), "change", "flips %"]
    return by_axis(view, part, header, cells)


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


def undecided_block(view, group=None):
    parts = view.undecided(group)
    rows = [[part.title, with_error(view.row(part.name, "none"), "score"), figure(view.row(part.name, "none"), "chance")] for part in parts]
    if not rows:
        return []
    return ["Measured with `none` alone, because it is not three standard errors above chance; these decide nothing:", "",
            *markdown_table(["task", "score of `none` %", "chance %"], rows)]


def drift_block(view, part):
    def cells(_kv, row):
        return [figure(row, "size"), figure(row, "parted_at"), figure(row, "parted_at_median"), figure(row, "never_parted"),
                with_error(row, "kl"), figure(row, "top1"), figure(row, "text_nll"), figure(row, "own_nll"), figure(row, "repeats")]
    header = ["KV size %", "parts at token, mean", "median", "never", "KL", "top-1 %", "NLL of its text", "of none's text", "repeats %"]
    return by_axis(view, part, header, cells)


def text_sections(view):
    lines = []
    for part in view.measured_parts():
        if part.is_compared:
            lines += [f"## {part.name}: {part.title}", "", *command_lines(view.commands(part)), *text_block(view, part)]
            if part.name == "methods":
                lines += [*(f"Not measured: {code(kv)}, which {why}." for kv, why in plan.NOT_MEASURED.items()), ""]
    return lines


def change_sections(view):
    """Of each group of tasks what changes, in one table."""
    titles = {"tasks": "Tasks", "needle": "Retrieval"}
    lines = []
    for group, title in titles.items():
        if view.tasks(group):
            lines += [f"## {title}", "", TASK_LEGEND, "", "Of `none` the score in percent, of the others its change in points:", "",
                      *changes_block(view, group), *undecided_block(view, group)]
    return lines


def task_sections(view):
    lines = []
    for part in view.deciding():
        lines += [f"## {part.name}: {part.title}", "", *command_lines(view.commands(part)), *task_block(view, part)]
    return lines


def drift_sections(view):
    lines = []
    for part in view.measured_parts("drift"):
        lines += [f"## {part.name}: {part.title}", "", "Both generate freely from the same prompts, each with its own cache.", "",
                  *command_lines(view.commands(part)), *drift_block(view, part)]
    return lines


def failed_section(view):
    failures = sorted(view.store.failures(), key=lambda record: (record["part"], record["kv"]))
    if not failures:
        return []
    return ["## Failed", "", *markdown_table(["part", "cache", "error"], [[record["part"], code(record["kv"]), record["failed"].replace("|", "\\|")]
                                                                       for record in failures])]


def page_texts(view):
    """The pages of a model by path: what is found and all texts, and beside it every task, where there are some."""
    page = view.store.path.with_suffix(".md")
    details = page.with_name(f"{page.stem}-tasks.md")
    of_tasks = [*task_sections(view), *drift_sections(view)]
    link = [f"Each task by itself, with its commands and sizes: [{details.name}]({details.name}).", ""] if of_tasks else []
    pages = {page: [f"# Results on {view.name}", "", *provenance_block(view), *files_block(view), LEGEND, "", *link, "## What keeps 99%", "",
                    KEPT_LEGEND, "", *kept_block(view), "## Where lathe is beaten", "", *beaten_block(view), *change_sections(view),
                    *text_sections(view), *failed_section(view)]}
    if of_tasks:
        pages[details] = [f"# Tasks on {view.name}", "", f"Model, program and files are those of [{page.name}]({page.name}).", "", *of_tasks]
    source = view.store.path.name
    note = f"<!-- Written by lab/results.py page docs/results/{source}; change that file or the script. -->"
    return {path: wrapped("\n".join([note, *lines]).rstrip("\n") + "\n") for path, lines in pages.items()}


def block_lines(view, name):
    """A table by its name in a document."""
    blocks = {"main": main_block, "kept": kept_block, "beaten": beaten_block, "provenance": provenance_block, "undecided": undecided_block,
              "tasks": lambda of: changes_block(of, "tasks"), "needle": lambda of: changes_block(of, "needle")}
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


def write_pages(paths, say):
    for path in map(pathlib.Path, paths):
        for page, text in page_texts(View(Store(path))).items():
            write_whole(page, text)
            say(str(page))
    return 0
