"""What follows from results by a rule: which caches keep 99%, and where another cache is better than lathe."""

import math

from . import plan
from .view import code, figure, markdown_table

KL_OF_ONE_PERCENT = 0.013  # nats per token, about 1% of perplexity
SAME_SIZE = 1.01  # a cache that is at most 1% larger counts as of the same size


def is_lathe(kv):
    return kv.startswith("lathe(") and "+" not in kv


def kept_of_tasks(view, kv, parts):
    """Of the deciding tasks measured with `kv`: how many, in how many the score is at least 99% of `none`'s, and the names
    of those where it is lower by more than the paired error."""
    n, n_kept, lost = 0, 0, []
    for part in parts:
        row, none = view.row(part.name, kv), view.row(part.name, "none")
        if row is None:
            continue
        n += 1
        n_kept += row["score"] >= 0.99 * none["score"]
        change = row.get("score_change")
        change = row["score"] - none["score"] if change is None else change
        if change < -(row.get("score_change_stderr") or 0):
            lost.append(part.name.split("/")[-1])
    return n, n_kept, lost


def row_on_text(view, name, kv):
    """The row of a text; some of lathe's on that of `quality` have a table of their own, `equal`."""
    return view.row(name, kv) or (view.row("equal", kv) if name == "quality" else None)


def kept_block(view):
    """Which caches keep 99% of a model."""
    parts = {part.name: part for part in view.measured_parts()}
    texts = [parts[name] for name in ("quality", "long", "full") if name in parts]
    tasks = [part for part in view.deciding() if not part.name.startswith("rivals/")]  # those are of the group needle, with other caches
    if not texts:
        return ["Not measured yet.", ""]
    main = texts[0]
    more = view.specs(parts["equal"]) if main.name == "quality" and "equal" in parts else []
    header = ["cache", "KV size %", *(f"KL ≤ {KL_OF_ONE_PERCENT} on `{part.name}`" for part in texts)]
    if tasks:
        header += ["tasks with 99% of the score", "tasks within one error", "which are not"]
    rows = []
    for kv in [*view.specs(main), *more]:
        if kv == "none" or kv not in plan.main_specs(view.setup):
            continue
        of_main = row_on_text(view, main.name, kv)
        row = [code(kv), figure(of_main, "size"), *(kl_verdict(row_on_text(view, part.name, kv)) for part in texts)]
        if tasks:
            n, n_kept, lost = kept_of_tasks(view, kv, tasks)
            row += ["-"] * 3 if n == 0 else [f"{n_kept} of {n}", f"{n - len(lost)} of {n}", ", ".join(lost) or "none"]
        rows.append((of_main["kv_fraction"], row))
    return markdown_table(header, [row for _, row in sorted(rows, key=lambda item: -item[0])])


def kl_verdict(row):
    if row is None:
        return "-"
    return f"{'yes' if row['kl'] <= KL_OF_ONE_PERCENT else 'no'} ({figure(row, 'kl')})"


def better_on_text(other, lathe):
    return other["kl"] < lathe["kl"]


def better_on_task(other, lathe):
    """A higher score by more than the error of the difference, of which each side's paired error is known."""
    errors = [row.get("score_change_stderr") if row.get("score_change_stderr") is not None else row["score_stderr"] for row in (other, lathe)]
    return other["score"] - lathe["score"] > math.hypot(*errors)


def rivals(view, part, kv):
    """Other caches of the same size or smaller, with their rows."""
    size = view.row(part.name, kv)["kv_fraction"]
    rows = ((other, view.row(part.name, other)) for other in view.specs(part) if "lathe" not in other and other != "none")
    return [(other, row) for other, row in rows if row["kv_fraction"] <= SAME_SIZE * size]


def has_lathe(view):
    return any(is_lathe(kv) for part in view.measured_parts() for kv in view.specs(part))


def beaten_block(view):
    """Every text and task where a cache of the same size or smaller is better than lathe."""
    rows, n_compared = [], 0
    for part in view.measured_parts():
        is_text = part.is_compared
        if not is_text and part not in view.deciding():
            continue
        for kv in filter(is_lathe, view.specs(part)):
            lathe, others = view.row(part.name, kv), rivals(view, part, kv)
            n_compared += len(others)
            better = [(other, row) for other, row in others if (better_on_text if is_text else better_on_task)(row, lathe)]
            if better:
                rows.append(beaten_row(part, kv, lathe, better, is_text))
    if not n_compared:
        return ["Nothing to compare yet: no other cache of the same size or smaller is measured.", ""]
    if not rows:
        return [f"Nowhere: in {n_compared} comparisons no other cache of the same size or smaller has a lower KL or a higher score.", ""]
    return [f"In {n_compared} comparisons with caches of the same size (at most 1% larger) or smaller, another is better in these:", "",
            *markdown_table(["part", "lathe", "KV size %", "KL or score %", "the best of the better", "KV size %", "KL or score %", "others"], rows)]


def beaten_row(part, kv, lathe, better, is_text):
    field = "kl" if is_text else "score"
    best, row = min(better, key=lambda item: item[1]["kl"] if is_text else -item[1]["score"])
    return [part.name, code(kv), figure(lathe, "size"), figure(lathe, field), code(best), figure(row, "size"), figure(row, field),
            str(len(better) - 1)]
