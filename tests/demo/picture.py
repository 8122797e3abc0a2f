# SPDX-License-Identifier: Apache-2.0
"""The run as a picture: what Prometheus recorded, as an SVG that reads in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Points = Sequence[tuple[float, float]]

WIDTH, LEFT, RIGHT, PANEL, GAP, TOP = 860, 64, 150, 120, 34, 44
# Okabe and Ito's palette: told apart by the colour-blind too.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"


@dataclass(frozen=True)
class Panel:
    """One curve over time. ``band`` is drawn behind it; ``steps``: it holds until it changes."""

    title: str
    points: Points
    high: float
    colour: str
    unit: str
    band: tuple[float, float] | None = None
    steps: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened, as a line through all panels."""

    at: float
    what: str


def svg(title: str, panels: Sequence[Panel], events: Sequence[Event]) -> str:
    """The whole picture. Times are seconds; the first point of all is the origin."""
    times = [t for panel in panels for t, _ in panel.points]
    begin, end = min(times), max(times)
    height = TOP + len(panels) * (PANEL + GAP) + 20
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12" role="img" aria-label="{title}">'
        ),
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{title}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, TOP + number * (PANEL + GAP), begin, end)
    for number, event in enumerate(events):
        x = _x(event.at, begin, end)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 40}" stroke="{GREY}" '
            f'stroke-dasharray="3 3"/>'
            f'<text x="{x + 4:.1f}" y="{TOP + 12 + 14 * (number % 3)}" fill="{GREY}" '
            f'font-size="11">{event.what}</text>'
        )
    for minute in range(int((end - begin) // 60) + 1):
        x = _x(begin + 60 * minute, begin, end)
        parts.append(
            f'<text x="{x:.1f}" y="{height - 22}" text-anchor="middle" '
            f'fill="{GREY}">{minute}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{height - 6}" text-anchor="middle" fill="{GREY}">minutes</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _x(at: float, begin: float, end: float) -> float:
    return LEFT + (at - begin) / max(end - begin, 1.0) * (WIDTH - LEFT - RIGHT)


def _panel(panel: Panel, top: float, begin: float, end: float) -> list[str]:
    def y(value: float) -> float:
        return top + PANEL - min(max(value / panel.high, 0.0), 1.0) * PANEL

    width = WIDTH - LEFT - RIGHT
    parts = [f'<rect x="{LEFT}" y="{top}" width="{width}" height="{PANEL}" fill="#f4f4f4"/>']
    if panel.band:
        low, high = panel.band
        parts.append(
            f'<rect x="{LEFT}" y="{y(high):.1f}" width="{width}" '
            f'height="{y(low) - y(high):.1f}" fill="{panel.colour}" opacity="0.2"/>'
        )
    for value in (0.0, panel.high / 2, panel.high):
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end" fill="{GREY}">'
            f"{value:g}</text>"
        )
    path, last = [], None
    for at, value in panel.points:
        x = _x(at, begin, end)
        if panel.steps and last is not None:
            path.append(f"{x:.1f},{last:.1f}")
        last = y(value)
        path.append(f"{x:.1f},{last:.1f}")
    parts.append(
        f'<polyline points="{" ".join(path)}" fill="none" stroke="{panel.colour}" '
        'stroke-width="1.8"/>'
    )
    parts.append(
        f'<text x="{WIDTH - RIGHT + 10}" y="{top + 16}" fill="{panel.colour}" '
        f'font-weight="bold">{panel.title}</text>'
        f'<text x="{WIDTH - RIGHT + 10}" y="{top + 32}" fill="{GREY}">{panel.unit}</text>'
    )
    return parts
