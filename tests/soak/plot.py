#!/usr/bin/env python3
"""Plots the samples of a soak test: plot.py CSV SVG. Stacked small charts over the number of executions; each axis
starts at zero, so that a flat curve looks flat."""

import csv
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 110, 70, 30, 46
CHARTS = [
    ("executions per second", [("per_second", "#2563eb")]),
    ("latency in ms: median, 99th percentile", [("p50_ms", "#2563eb"), ("p99_ms", "#d97706")]),
    ("resident memory in MiB: service, workers", [("rss_mib", "#2563eb"), ("workers_mib", "#d97706")]),
    ("open descriptors", [("descriptors", "#2563eb")]),
    ("disk of the data folder in MiB", [("disk_mib", "#2563eb")]),
]


def nice(most):
    """The end of a scale: 1, 2 or 5 times a power of ten, at least `most`."""
    power = 1.0
    while power * 10 < most:
        power *= 10
    return next(power * step for step in (1, 2, 5, 10) if power * step >= most)


def chart(rows, title, lines, top):
    most = nice(max(max(row[name] for row in rows for name, _ in lines), 1))
    end = max(rows[-1]["executions"], 1)
    out = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{title}</text>']
    for part in (0, 0.5, 1):
        y = top + HEIGHT * (1 - part)
        out.append(f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + WIDTH}" y2="{y}" stroke="#8884"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{most * part:g}</text>')
    for name, colour in lines:
        points = " ".join(f'{LEFT + WIDTH * row["executions"] / end:.1f},{top + HEIGHT * (1 - row[name] / most):.1f}'
                          for row in rows)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return out


def main():
    with open(sys.argv[1]) as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    if not rows:
        sys.exit("there are no samples to draw")
    height = TOP + len(CHARTS) * (HEIGHT + GAP) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>']
    for number, (title, lines) in enumerate(CHARTS):
        out += chart(rows, title, lines, TOP + number * (HEIGHT + GAP))
    bottom = TOP + len(CHARTS) * (HEIGHT + GAP) - GAP + 18
    for part in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<text x="{LEFT + WIDTH * part}" y="{bottom}" text-anchor="middle">'
                   f'{rows[-1]["executions"] * part:,.0f}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{bottom + 18}" text-anchor="middle">executions, in '
               f'{rows[-1]["seconds"]:,.0f} s</text></svg>')
    with open(sys.argv[2], "w") as file:
        file.write("\n".join(out) + "\n")


main()
