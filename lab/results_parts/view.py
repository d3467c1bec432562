"""Results as tables want them: in the order of the plan, grouped by what is compressed, as formatted figures."""

import re

from . import plan
from .measure import decides
from .store import ResultsError

AXES = ("codes", "bases", "retention", "compositions")
AXIS_TITLES = {"codes": "Codes", "bases": "Fewer dimensions", "retention": "Fewer positions", "compositions": "Compositions"}
RETAINING = ("h2o", "mas", "tova", "keyformer", "snapkv", "kvzip", "window", "pool", "dmc")
COMPOSED = ("kvquant-z", "kvq-f", "kvq-p", "kf-f", "kf-p", "keyformer-z")
REPAIRS = ("lowrank", "sparse")


def percent(digits, sign=""):
    return lambda value: f"{100 * value:{sign}.{digits}f}"


def decimal(digits, sign=""):
    return lambda value: f"{value:{sign}.{digits}f}"


def divergence(value):
    return f"{value:.4f}" if value >= 0.001 or value == 0 else f"{value:.5f}"


def times(value):
    """Of what is seldom far from 1."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


# By the name that documents use: the program's field, and how it is written.
FIELDS = {
    "size": ("kv_fraction", percent(1)),
    "smaller": ("kv_fraction", lambda value: f"{1 / value:.1f}"),
    "bytes": ("kv_bytes_per_token", decimal(0)),
    "perplexity": ("perplexity", decimal(2)),
    "change": ("perplexity_change", percent(2, "+")),
    "change_error": ("perplexity_change_stderr", percent(2)),
    "kl": ("kl", divergence),
    "kl_error": ("kl_stderr", divergence),
    "kl_median": ("kl_median", divergence),
    "kl_p99": ("kl_p99", divergence),
    "kl_p999": ("kl_p999", divergence),
    "kl_worst": ("kl_worst_window", divergence),
    "top1_worst": ("top1_worst_window", percent(1)),
    "predicted": ("predicted_kl", divergence),
    "predicted_share": (None, decimal(2)),  # of the measured KL
    "top1": ("top1_agreement", percent(1)),
    "score": ("score", percent(1)),
    "score_error": ("score_stderr", percent(1)),
    "acc": ("acc", percent(1)),
    "acc_error": ("acc_stderr", percent(1)),
    "acc_norm": ("acc_norm", percent(1)),
    "acc_norm_error": ("acc_norm_stderr", percent(1)),
    "score_change": ("score_change", percent(1, "+")),
    "score_change_error": ("score_change_stderr", percent(1)),
    "flips": ("flips", percent(1)),
    "chance": ("chance", percent(1)),
    "parted_at": ("parted_at", decimal(0)),
    "parted_at_median": ("parted_at_median", decimal(0)),
    "never_parted": ("never_parted", decimal(0)),
    "never_parted_share": ("never_parted_share", percent(1)),
    "valid_json": ("valid_json", percent(1)),
    "right_tool": ("right_tool", percent(1)),
    "right_arguments": ("right_arguments", percent(1)),
    "text_nll": ("text_nll", decimal(3)),
    "own_nll": ("own_nll", decimal(3)),
    "repeats": ("repeats", percent(1)),
    "none_repeats": ("none_repeats", percent(1)),
    "removed": ("removed", percent(1)),
    **{f"{side}_error": (f"{side}_error", percent(2)) for side in ("k", "v")},
    **{name: (name, percent(1)) for name in (f"{side}_{what}{rank}" for side in ("k", "v") for what in ("rank", "white") for rank in (1, 2, 4, 8, 16))},
    **{name: (name, percent(0)) for name in (f"cv_{which}{of}" for which in ("", "all_") for of in ("largest_qk", "largest_v", "rank_k", "rank_v"))},
    **{f"{side}_{name}": (f"{side}_{name}", form) for side in ("qk", "v") for name, form in (
        ("kept", percent(2)), ("lost", times), ("overlap", decimal(3)), ("element_difference", percent(2)))},
}


def figure(row, field):
    """A figure as text; a dash where the row has none."""
    key, form = FIELDS[field]
    if field == "predicted_share":
        value = row["predicted_kl"] / row["kl"] if row.get("predicted_kl") and row.get("kl") else None
    else:
        value = row.get(key)
    return "-" if value is None else form(value)


def with_error(row, field):
    text, error = figure(row, field), figure(row, f"{field}_error")
    return text if "-" in (text, error) else f"{text} ± {error}"


def axis_of(kv):
    first, *others = [re.match(r"[\w-]*", stage)[0] for stage in kv.split("+")]
    if first in COMPOSED or any(other not in REPAIRS for other in others):
        return "compositions"
    if first in RETAINING:
        return "retention"
    if first in ("fdc", "zack", "palu", "eigen", "svd-online") or kv.startswith("lathe(rate="):
        return "bases"
    return "codes"


FIRST_RATIO_OF_8_BITS = 5  # from which lathe keeps what is not sealed in 8 bits (open=auto)


def kept_unsealed(resolved):
    """How many first and newest positions a spec never makes codes of, as `first + newest`; "all" where it has no codes."""
    sink, newest = (re.search(rf"\b{key}=(\d+|auto)", resolved) for key in ("sink", "newest"))
    if newest is None:
        return "all"
    ratio = re.search(r"\blathe\(ratio=([0-9.]+)", resolved)
    in_8_bits = ratio and "open=auto" in resolved and float(ratio[1]) >= FIRST_RATIO_OF_8_BITS
    return f"{int(sink[1]) if sink else 0} + {newest[1]}" + (" (8 bits)" if in_8_bits and newest[1] != "0" else "")


class View:
    """A results file and the plan that it is of."""

    def __init__(self, store):
        self.store = store
        model = store.model
        if not model:
            raise ResultsError(f"{store.path}: no such results; measure some with lab/results.py run")
        self.name = model["name"]
        self.setup = plan.Setup(model=model["file"], context=model["context"], data="DATA", work=f"build/results/{self.name}",
                                embedded_text="its own" if model["embedded"] else None, n_bytes=model["bytes"])
        self.parts = plan.parts_of(self.setup)

    def row(self, part, kv):
        return self.store.result(part, kv)

    def part(self, name):
        for part in self.parts:
            if part.name == name:
                return part
        raise ResultsError(f"{self.name} has no part {name}")

    def specs(self, part):
        """Those measured, in the order of the plan."""
        measured = self.store.measured(part.name)
        return [kv for kv in part.specs if kv in measured] + sorted(kv for kv in measured if kv not in part.specs)

    def measured_parts(self, group=None):
        return [part for part in self.parts if self.store.measured(part.name) and group in (None, part.name.split("/")[0])]

    def tasks(self, group=None):
        """Measured parts that have a score, for which `none` is known."""
        return [part for part in self.measured_parts(group) if part.baseline and self.row(part.name, "none")]

    def deciding(self, group=None):
        return [part for part in self.tasks(group) if decides(self.row(part.name, "none"))]

    def undecided(self, group=None):
        return [part for part in self.tasks(group) if not decides(self.row(part.name, "none"))]

    def commands(self, part):
        """How the rows of a part were measured, KV for the spec; that of `none` only where nothing else is."""
        used = {}
        for kv in self.specs(part):
            template = self.store.commands[self.store.records[part.name, kv]["command"]]
            used.setdefault(template, kv == "none")
        others = [template for template, is_none in used.items() if not is_none]
        return [template.replace("{kv}", "KV") for template in others or used]

    def figure(self, part, kv, field):
        """One figure for a document, or an error that says what is missing."""
        if field not in FIELDS:
            raise ResultsError(f"no field {field}; there are {', '.join(FIELDS)}")
        row = self.row(part, kv)
        if row is None:
            raise ResultsError(f"{self.name} has no result of {part} with {kv}")
        text = figure(row, field)
        if text == "-":
            raise ResultsError(f"{part} with {kv} of {self.name} has no {field}")
        return text


def markdown_table(header, rows, n_most=20):
    """Lines of tables of at most `n_most` rows each."""
    lines = []
    for begin in range(0, len(rows), n_most):
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        lines += ["| " + " | ".join(row) + " |" for row in rows[begin:begin + n_most]] + [""]
    return lines


def code(text):
    return f"`{text}`"


def command_lines(commands):
    return [*(f"    {command}" for command in commands), ""]
