#!/usr/bin/env python3
"""Time of a decode step by context and by sequences, from two `bench model --json` files: a table each, and a picture.

  lab/speed/scaling_chart.py CONTEXTS.json SEQUENCES.json OUT.svg

A dashed line is what the machine allows: weights read or multiplied, and the cache read, at the limits measured in the
same run.
"""
import json
import math
import sys

COLOURS = ("#333333", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")
WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 280, 60, 40, 90


def read(path, axis):
    """{kv: {x: (milliseconds of a step, at the limit)}}"""
    lines = {}
    with open(path, encoding="utf-8") as file:
        for row in json.load(file)["rows"]:
            step = [1000 * row["n_parallel"] / row[speed] for speed in ("avg_ts", "limit_ts")]
            lines.setdefault(row["kv"], {})[row[axis]] = step
    return lines


def print_table(title, lines):
    xs = list(next(iter(lines.values())))
    print(f"| {title} | " + " | ".join(map(str, xs)) + " |")
    print("|---|" + "---:|" * len(xs))
    for kv, points in lines.items():
        print(f"| `{kv}` | " + " | ".join(f"{points[x][0]:.1f} ({points[x][1] / points[x][0]:.2f})" for x in xs) + " |")
    print()


def panel(left, title, lines):
    xs = sorted(next(iter(lines.values())))
    values = [value for points in lines.values() for pair in points.values() for value in pair]
    low, high = min(values) * 0.9, max(values) * 1.1

    def place(x, y):
        across = math.log(x / xs[0]) / math.log(xs[-1] / xs[0])
        up = math.log(y / low) / math.log(high / low)
        return f"{left + across * WIDTH:.1f},{TOP + HEIGHT - up * HEIGHT:.1f}"

    svg = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>',
           f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    for x in xs:
        across = float(place(x, high).split(",")[0])
        name = f"{x // 1024}k" if x >= 1024 else str(x)
        svg.append(f'<text x="{across}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{name}</text>')
    tick = 10 ** math.ceil(math.log10(low))
    for factor in (0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if low <= factor * tick <= high:
            up = float(place(xs[0], factor * tick).split(",")[1])
            svg.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{up}" y2="{up}" stroke="#ddd"/>'
                       f'<text x="{left - 6}" y="{up + 4}" text-anchor="end">{factor * tick:g} ms</text>')
    for colour, points in zip(COLOURS, lines.values()):
        for i, style in enumerate(("", ' stroke-dasharray="5 4" opacity="0.6"')):
            path = " ".join(place(x, points[x][i]) for x in xs)
            svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>')
    return svg


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    contexts, sequences = read(sys.argv[1], "n_depth"), read(sys.argv[2], "n_parallel")
    print("Milliseconds of a decode step (share of the limit):\n")
    print_table("one sequence, by context", contexts)
    print_table("2048 tokens each, by sequences", sequences)
    svg = panel(LEFT, "A step of one sequence, by context", contexts)
    svg += panel(LEFT + WIDTH + GAP, "A step of sequences of 2k, by their number", sequences)
    for i, (colour, kv) in enumerate(zip(COLOURS, contexts)):
        x = LEFT + 170 * i
        svg.append(f'<rect x="{x}" y="{TOP + HEIGHT + 34}" width="14" height="4" fill="{colour}"/>'
                   f'<text x="{x + 20}" y="{TOP + HEIGHT + 40}">{kv}</text>')
    width, height = LEFT + 2 * WIDTH + GAP + 30, TOP + HEIGHT + 60
    with open(sys.argv[3], "w", encoding="utf-8") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
                  f'font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(svg) + "\n</svg>\n")


if __name__ == "__main__":
    main()
