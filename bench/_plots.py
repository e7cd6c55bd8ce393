"""Draw plots to be read in five seconds: lockstead in one strong colour, peers in muted ones, floors dotted."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, pairwise
from math import isnan, log, nan
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench._report import US, Result

OURS = "#0a58ca"
PEERS = ("#4d4d4d", "#a8693a", "#8a8a8a", "#6d8764", "#8d6e97", "#b5b5b5")
FLOOR = "#1b1b1b"
FLOOR_BAR = "#c9c9c9"
STORES = {"memory": "#041f4d", "SQLite": "#0a58ca", "Redis": "#2f8fe6", "PostgreSQL": "#6aa5dd"}
"""Shades of our colour, where each line is a store of ours."""
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # the first comes with matplotlib
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "figure.facecolor": "white",  # or a dark page shows through
    "savefig.dpi": 130,
    "svg.fonttype": "none",  # a fifth of the size
    "svg.hashsalt": "lockstead",  # the same figures make the same file
}
FAR = 40
"""The largest ratio of values on a linear scale."""
RUNTIMES = ("threads", "asyncio", "uvloop")
KINDS = ("threads", "tasks", "processes")

Rows = Sequence[Mapping[str, Any]]
Lines = Mapping[str, Sequence[tuple[float, float]]]
Looks = Mapping[str, Mapping[str, Any]]
Plot = Callable[[Rows], Figure | None]
"""Draws rows of a program; None if the rows it shows are missing, as in a quick run."""


def draw(results: Iterable[Result], folder: Path) -> dict[str, str]:
    """Draw each plot that has results, as SVG and PNG; return those that could not be drawn, and why."""
    rows = {result.program: result.rows for result in results}
    for old in [*folder.glob("*.svg"), *folder.glob("*.png")]:
        old.unlink()
    failed = {}
    for name, (program, plot) in PLOTS.items():
        if not rows.get(program):
            continue
        try:
            with mpl.rc_context(STYLE):
                if figure := plot(rows[program]):
                    figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
                    figure.savefig(folder / f"{name}.png", bbox_inches="tight")
        except Exception:
            failed[name] = traceback.format_exc()
    return failed


def gap_over_waiters(rows: Rows) -> Figure | None:
    title = "How long does a lock lie idle when it changes hands?"
    return over_waiters(rows, "gap_ms", title, "gap, ms (median, log)")


def commands_over_waiters(rows: Rows) -> Figure | None:
    title = "What does one acquisition ask of the server as the crowd grows?"
    return over_waiters(rows, "commands", title, "commands per acquisition (log)")


def over_waiters(rows: Rows, column: str, title: str, unit: str) -> Figure | None:
    """Draw a panel for each kind of crowd, and a line for each contender."""
    rows = [row for row in rows if row["section_ms"] and not isnan(middle(row[column]))]
    if not rows:
        return None
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    looks = looks_of(row["case"] for row in rows)
    sections = ", ".join(sorted({f"{row['section_ms']:g} ms" for row in rows}))
    figure, panels = frame(title, f"Redis, each holds for {sections}; lower is better", len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        axes.set_title(kind)
        lines = points([row for row in rows if row["kind"] == kind], "case", "waiters", column)
        draw_lines(axes, lines, looks, "waiters", named=axes is panels[-1])
    panels[0].set_ylabel(unit)
    return figure


def cost_over_line(rows: Rows) -> Figure:
    steps = list(dict.fromkeys(row["step"] for row in rows))
    figure, panels = frame("Does a longer line cost more?", "the store's own steps; flat is good", len(steps))
    for axes, step in zip(panels, steps, strict=True):
        axes.set_title(step)
        lines = points([row for row in rows if row["step"] == step], "store", "waiting", "µs")
        draw_lines(axes, lines, looks_of(lines), "waiting in line", named=axes is panels[-1])
    panels[0].set_ylabel("µs (median, log)")
    return figure


def cost_over_names(rows: Rows) -> Figure:
    figure, (axes,) = frame(
        "Do more locks make one cost more?", "uncontended acquire + release; flat is good", 1, width=7
    )
    lines = points(rows, "store", "names", "pair µs")
    draw_lines(axes, lines, looks_of(lines), "other names held", named=True)
    axes.set_ylabel("µs (median, log)")
    return figure


def pair_cost(where: str, floor: str, column: str, rows: Rows) -> Figure | None:
    """Draw a panel for each runtime, in which the floor is a line."""
    measured = [row for row in rows if row[column] is not None and not row["case"].startswith("floor")]
    if not measured:
        return None
    groups: dict[str, dict[str, float]] = {}
    for row in sorted(measured, key=itemgetter(column)):
        groups.setdefault(row["runtime"], {})[row["case"]] = row[column]
    runtimes = [runtime for runtime in RUNTIMES if runtime in groups]
    title = f"What does an uncontended acquire + release cost {where}?"
    figure, panels = stack(title, "further left is better; dotted: the floor", [len(groups[each]) for each in runtimes])
    costs = [1.0, *(row[column] for row in measured)]
    for axes, runtime in zip(panels, runtimes, strict=True):
        axes.set_title(runtime, loc="left", fontweight="bold")
        draw_costs(axes, groups[runtime], times, costs)
        axes.axvline(1, color=FLOOR, linewidth=1.5, linestyle=":")
    name_scale(panels[-1], f"times {floor}")
    return figure


def redis_pair_cost(rows: Rows) -> Figure | None:
    return pair_cost("on one Redis", "the floor", "x floor", [row for row in rows if row["nodes"] == "1 node"])


def redlock_pair_cost(rows: Rows) -> Figure | None:
    return pair_cost(
        "on five Redis nodes", "the floor of one node", "x floor", [row for row in rows if row["nodes"] == "5 nodes"]
    )


def fan_out(rows: Rows) -> Figure | None:
    rows = [row for row in rows if row["loop"] == "asyncio"]
    if not rows:
        return None
    speeds = {row["case"]: row["pairs/s"] for row in sorted(rows, key=itemgetter("pairs/s"), reverse=True)}
    title = "How much do 1,000 tasks of one process lock and release?"
    figure, (axes,) = stack(title, "asyncio, Redis, a name for each task; longer is better", [len(speeds)])
    draw_costs(axes, speeds, "{:,.0f}".format, list(speeds.values()))
    name_scale(axes, "pairs per second")
    return figure


def cost_of_holding(rows: Rows) -> Figure:
    costs = {f"{row['case']}, {row['locks']:,} locks": row[CPU] for row in rows if row[CPU] is not None}
    title = "What does it cost to keep many locks renewed?"
    figure, (axes,) = stack(title, "client CPU per 1,000 renewals; further left is better", [len(costs)])
    draw_costs(axes, dict(sorted(costs.items(), key=itemgetter(1))), "{:.3g} ms".format, list(costs.values()))
    name_scale(axes, "ms of CPU per 1,000 renewals")
    return figure


def recovery_time(rows: Rows) -> Figure | None:
    rows = [row for row in rows if not isnan(middle(row["idle s"]))]
    if not rows:
        return None
    groups: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=lambda row: middle(row["idle s"])):
        groups.setdefault(row["killed"], {})[row["case"]] = middle(row["idle s"])
    title = "How soon does the next one hold after a SIGKILL?"
    ttl = middle(rows[0]["idle s"]) / rows[0]["x ttl"]
    note = f"a lease lasts for {ttl:.2g} s; further left is better"
    figure, panels = stack(title, note, [len(group) for group in groups.values()])
    idle_times = [idle for group in groups.values() for idle in group.values()]
    for axes, who in zip(panels, sorted(groups), strict=True):
        axes.set_title(f"killed: {who}", loc="left", fontweight="bold")
        draw_costs(axes, groups[who], seconds, idle_times)
    name_scale(panels[-1], "seconds, median")
    return figure


CPU = "CPU ms / 1,000 renewals"
PLOTS: Mapping[str, tuple[str, Plot]] = {
    "pair": ("pair", partial(pair_cost, "on one machine", "the floor", "x floor")),
    "redis_pair": ("redis_pair", redis_pair_cost),
    "redis_pair-redlock": ("redis_pair", redlock_pair_cost),
    "postgres_pair": ("postgres_pair", partial(pair_cost, "on PostgreSQL", "a bare advisory lock", "x bare advisory")),
    "redis_fanout": ("redis_fanout", fan_out),
    "redis_handover-gap": ("redis_handover", gap_over_waiters),
    "redis_handover-commands": ("redis_handover", commands_over_waiters),
    "redis_held": ("redis_held", cost_of_holding),
    "line": ("line", cost_over_line),
    "names": ("names", cost_over_names),
    "recovery": ("recovery", recovery_time),
}


def frame(title: str, note: str, panels: int, *, width: float = 4.0) -> tuple[Figure, list[Axes]]:
    """Begin a figure with panels beside each other, which share their scale."""
    figure = Figure(figsize=(width * panels, 4.4), layout="constrained")
    entitle(figure, title, note)
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])


def stack(title: str, note: str, heights: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Begin a figure with panels for so many bars each below each other, which share their scale."""
    figure = Figure(figsize=(9, 1.3 + 0.6 * len(heights) + 0.36 * sum(heights)), layout="constrained")
    entitle(figure, title, note)
    axes = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, height_ratios=[height + 0.5 for height in heights]
    )
    return figure, [row[0] for row in axes]


def entitle(figure: Figure, title: str, note: str) -> None:
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=16, fontweight="bold")
    inch = 1 / figure.get_figheight()
    figure.text(0.01, 1 - 0.42 * inch, note, color="#555555", va="top")


def points(rows: Rows, by: str, x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """Group rows into a line for each value of a column."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if not isnan(middle(row[y])):
            lines.setdefault(row[by], []).append((row[x], middle(row[y])))
    return {name: sorted(line) for name, line in lines.items()}


def draw_lines(axes: Axes, lines: Lines, looks: Looks, unit: str, *, named: bool) -> None:
    for name in sorted(lines, key=list(looks).index):
        axes.plot(*zip(*lines[name], strict=True), **looks[name])
    axes.set(xlabel=unit, xscale="log", yscale="log")
    axes.set_xticks(sorted({x for line in lines.values() for x, _ in line}))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color="#e4e4e4")
    if named:
        write_names(axes, {name: line[-1][1] for name, line in lines.items()}, looks)


def looks_of(cases: Iterable[str]) -> Looks:
    """Choose a style for every case, the same in all panels; ours come last, to be drawn above the others."""
    distinct = dict.fromkeys(cases)
    ours = {case: STORES.get(case, OURS) for case in distinct if case in STORES or case.startswith(US)}
    peers = [case for case in distinct if case not in ours]
    looks: dict[str, Mapping[str, Any]] = {
        case: {"color": color, "marker": marker, "linewidth": 1.6, "markersize": 6}
        for case, color, marker in zip(peers, cycle(PEERS), cycle("sD^vPX"), strict=False)
    }
    looks |= {case: {"color": color, "marker": "o", "linewidth": 3, "markersize": 8} for case, color in ours.items()}
    return looks


def write_names(axes: Axes, ends: Mapping[str, float], looks: Looks) -> None:
    """Write the name of every line to the right of its end, spread where names would overlap."""
    bottom, top = map(log, axes.get_ylim())
    heights = [(log(value) - bottom) / (top - bottom) for value in ends.values()]
    for name, height in zip(ends, apart(heights, 0.075), strict=True):
        weight = "bold" if name.startswith(US) else "normal"
        color = looks[name]["color"]
        axes.text(1.04, height, name, transform=axes.transAxes, color=color, fontweight=weight, va="center")


def apart(places: Sequence[float], distance: float) -> list[float]:
    """Move positions so that none is closer to the next than that, and all stay near where they were."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for _ in range(100):
        for lower, upper in pairwise(order):
            overlap = distance - (moved[upper] - moved[lower])
            if overlap > 0:
                moved[lower] -= overlap / 2
                moved[upper] += overlap / 2
    return moved


def draw_costs(axes: Axes, values: Mapping[str, float], write: Callable[[float], str], scale: Sequence[float]) -> None:
    """Draw a bar for each name, the first on top; or a dot, where the values need a logarithmic scale."""
    least, most = min(scale), max(scale)
    is_wide = most > FAR * least
    if is_wide:
        axes.set(xscale="log", xlim=(least / 2, 3 * most))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x", color="#e4e4e4")
    else:
        axes.set_xlim(0, 1.14 * most)
    for name, value in values.items():
        if is_wide:
            axes.plot(value, name, "o", markersize=11, color=color_of(name))
        else:
            axes.barh(name, value, height=0.68, color=color_of(name))
        axes.annotate(write(value), (value, name), (10 if is_wide else 5, 0), textcoords="offset points", va="center")
    axes.xaxis.set_major_formatter(FuncFormatter(short))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for text, name in zip(axes.get_yticklabels(), values, strict=True):
        if name.startswith(US):
            text.set(color=OURS, fontweight="bold")


def name_scale(axes: Axes, unit: str) -> None:
    axes.set_xlabel(f"{unit} (log)" if axes.get_xscale() == "log" else unit)


def color_of(name: str) -> str:
    if name.startswith(US):
        return OURS
    return FLOOR_BAR if name.startswith("floor") else PEERS[2]


def short(value: float, _position: int | None = None) -> str:
    """Format a tick: 5,000 as 5k."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def times(value: float) -> str:
    return f"{value:,.0f} x" if value >= 10 else f"{value:.1f} x"


def seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 0.1 else f"{1e3 * value:.2g} ms"


def middle(value: Any) -> float:
    """Return the median of a spread, or the single figure; nan if there is none."""
    found = value["median"] if isinstance(value, dict) else value
    return nan if found is None else float(found)
