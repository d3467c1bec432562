"""Quality against bytes of everything that was measured, as what `kvlathe chart` draws."""

TITLES = {"kl": "KL to the base, by bytes", "tasks": "Scores on the learned tasks, by bytes"}
LABELS = {"kl": "KL, nats per token", "tasks": "% of the base's scores"}
FAMILIES = {"dmc": "DMC", "gqa": "GQA", "pool": "pooling, trained", "lathe": "lathe", "kivi": "kivi"}


def family_of(label, dropping):
    if " + " in label:
        return "DMC with a quantizer"
    first = label.split(" ")[0].split("(")[0]
    return first if first in dropping else FAMILIES.get(first)


def charts(view, dropping):
    """By name, of a RetrofitView; lines through caches of one family, the smallest first."""
    labels = dict.fromkeys(label for block in ("trained", "untrained", "composed") for label in view.blocks()[block])
    series = {name: {} for name in TITLES}
    for label in sorted(labels, key=view.size):
        family = family_of(label, dropping)
        if family is None:
            continue
        size = 100 * view.size(label)
        series["kl"].setdefault(family, []).append([size, view.rows[label]["text"]["kl"]])
        if view.has_all_tasks(label):
            series["tasks"].setdefault(family, []).append([size, 100 * view.kept(label)])
    return {name: {"title": TITLES[name], "x": {"label": "KV bytes, % of the base's 16-bit cache", "log": True},
                   "y": {"label": LABELS[name], "log": name == "kl"},
                   "series": [{"name": family, "points": points} for family, points in series[name].items()]}
            for name in TITLES if series[name]}
