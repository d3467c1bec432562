"""Quality against bytes of everything that was measured, as an SVG: KL to the base, and how much of the base's tasks is left."""

import html
import math

FAMILIES = (("DMC", "#d62728"), ("DMC with a quantizer", "#9467bd"), ("GQA", "#2ca02c"), ("pooling, trained", "#8c564b"),
            ("entries dropped", "#7f7f7f"), ("lathe", "#1f77b4"), ("kivi", "#ff7f0e"))
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 300, 64, 40, 80
SIZES = (2, 5, 10, 20, 50, 100)


def family_of(label, dropping):
    if " + " in label:
        return "DMC with a quantizer"
    first = label.split(" ")[0].split("(")[0]
    return {"dmc": "DMC", "gqa": "GQA", "pool": "pooling, trained", "lathe": "lathe", "kivi": "kivi"}.get(
        first, "entries dropped" if first in dropping else None)


def panel(left, title, points, scale, ticks):
    """`points` are (family, label, size %, value); `scale` maps a value to [0, 1]."""
    low, high = math.log(SIZES[0]), math.log(SIZES[-1] * 1.15)

    def across(size):
        return left + (math.log(max(size, SIZES[0])) - low) / (high - low) * WIDTH

    def up(value):
        return TOP + HEIGHT - min(1, max(0, scale(value))) * HEIGHT

    svg = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>',
           f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
           f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">KV bytes, % of the 16-bit cache of the base</text>']
    for size in SIZES:
        svg.append(f'<text x="{across(size):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{size}</text>')
    for tick in ticks:
        svg.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for family, colour in FAMILIES:
        line = sorted((size, value, label) for of, label, size, value in points if of == family)
        if family in ("DMC", "GQA", "pooling, trained", "lathe", "kivi") and len(line) > 1:
            path = " ".join(f"{across(size):.1f},{up(value):.1f}" for size, value, _ in line)
            svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5" opacity="0.6"/>')
        for size, value, label in line:
            svg.append(f'<circle cx="{across(size):.1f}" cy="{up(value):.1f}" r="4" fill="{colour}"><title>{html.escape(label)}: '
                       f'{size:.1f}%, {value:.4g}</title></circle>')
    return svg


def figure(view, dropping):
    """An SVG file's text of a RetrofitView."""
    rows = [(family_of(label, dropping), label, 100 * view.size(label)) for label in view.blocks()["trained"]
            + view.blocks()["untrained"] + view.blocks()["composed"] if not label.startswith("grouped")]
    rows = [row for row in dict.fromkeys(rows) if row[0]]
    kl = [(*row, view.rows[row[1]]["text"]["kl"]) for row in rows]
    kept = [(*row, 100 * view.kept(row[1])) for row in rows if view.has_all_tasks(row[1])]
    svg = panel(LEFT, "KL to the base, nats per token", kl, lambda value: (math.log10(max(value, 1e-4)) + 4) / 4.5,
                (0.0001, 0.001, 0.01, 0.1, 1))
    svg += panel(LEFT + WIDTH + GAP, "Scores on the learned tasks, % of the base's", kept, lambda value: value / 105, (0, 25, 50, 75, 100))
    for i, (family, colour) in enumerate(FAMILIES):
        x, y = LEFT + 190 * (i % 4), TOP + HEIGHT + 62 + 20 * (i // 4)
        svg.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{x + 10}" y="{y}">{family}</text>')
    width, height = LEFT + 2 * WIDTH + GAP + 20, TOP + HEIGHT + 96
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(svg) + "\n</svg>\n")
