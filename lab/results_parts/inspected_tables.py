"""Tables of what `inspect` says of caches (inspected.py)."""

from .inspected import OF_HEADS, OF_ROTATIONS, RANKS, SIDES
from .view import code, figure, markdown_table


def residual_lines(view, part):
    """A table for K and one for V."""
    lines = []
    for side in SIDES:
        rows = []
        for kv in view.specs(part):
            row = view.row(part.name, kv)
            by_layer = row["layers"][f"{side}_rank4"]
            rows.append([code(kv), figure(row, f"{side}_error"), *(f"{figure(row, f'{side}_rank{rank}')} ({figure(row, f'{side}_white{rank}')})" for rank in RANKS),
                         f"{100 * min(by_layer):.1f} to {100 * max(by_layer):.1f}"])
        lines += [f"{side.upper()}:", "", *markdown_table(["cache", "error %", *(f"rank {rank}" for rank in RANKS), "rank 4, by layer"], rows)]
    return lines


def head_lines(view, part):
    rows = []
    for kv in view.specs(part):
        row = view.row(part.name, kv)
        spread = [f"{100 * min(row['layers'][name]):.0f} to {100 * max(row['layers'][name]):.0f}" for name in OF_HEADS]
        rows.append([code(kv), figure(row, "removed"), *(f"{figure(row, f'cv_{name}')} ({layers})" for name, layers in zip(OF_HEADS, spread)),
                     f"{figure(row, 'cv_all_largest_qk')}, {figure(row, 'cv_all_largest_v')}"])
    return markdown_table(["cache", "removed %", "largest of QK", "largest of V", "rank of K", "rank of V", "largest of all heads, QK and V"], rows)


def rotation_lines(view, parts):
    """A row for each pair of calibrations."""
    rows = [[*part.name.split("/")[1:], *(figure(view.row(part.name, kv), f"{side}_{name}") for side in ("qk", "v") for name in OF_ROTATIONS)]
            for part in parts for kv in view.specs(part)]
    header = [f"{side}: {name}" for side in ("QK", "V") for name in ("kept %", "lost", "overlap", "elements %")]
    return markdown_table(["rotations of", "rows of", *header], rows)
