"""The report of a soak: one HTML page with the plots of what must stay flat, and the counts of what happened."""

import html

import measures

WIDTH, HEIGHT, MARGIN = 640, 150, 8
UNITS = {"resident": ("resident memory of the daemon", "MiB", 1 << 20), "descriptors": ("open descriptors", "", 1)}
UNITS |= {"threads": ("threads", "", 1), "rest": ("bytes of the store beside its images", "KiB", 1 << 10)}
STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:680px;margin:2em auto;padding:0 1em;color:#1a1a1a;background:#fff}"
    "svg{width:100%;height:auto;background:#f4f5f7}polyline{fill:none;stroke:#1d5fbf;stroke-width:1.5}"
    "line{stroke:#9aa3ad;stroke-dasharray:4}table{border-collapse:collapse}td,th{padding:.2em 1em .2em 0;text-align:left}"
    ".bad{color:#a11}h2{font-size:1.15em;margin:1.6em 0 .4em}h3{font-size:1em;margin:1em 0 .2em}"
)


def plot(points, unit):
    """A line over time, from zero to its highest value; the dashed line ends the warm-up."""
    highest = max(value for _, value in points) or 1
    first, last = points[0][0], points[-1][0]
    span = (last - first) or 1
    place = [
        f"{MARGIN + (time - first) / span * (WIDTH - 2 * MARGIN):.1f},{HEIGHT - MARGIN - value / highest * (HEIGHT - 2 * MARGIN):.1f}"
        for time, value in points
    ]
    warm = MARGIN + measures.WARM_UP * (WIDTH - 2 * MARGIN)
    label, size = f"0 to {highest / unit[2]:.1f} {unit[1]}", f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    line = f'<line x1="{warm:.0f}" x2="{warm:.0f}" y1="0" y2="{HEIGHT}"/>'
    return f'<svg {size} role="img" aria-label="{label}">{line}<polyline points="{" ".join(place)}"/></svg><p>{label}</p>'


def table(rows):
    cells = "".join(f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def series(samples):
    """The plots of one phase."""
    for name, unit in UNITS.items():
        points = [(time, values[name]) for time, values in samples]
        grown, flat = measures.growth(points), measures.FLAT[name] / unit[2]
        text = "too few samples for a slope" if grown is None else f"growth {grown / unit[2]:+.1f} {unit[1]}; flat up to {flat:g}"
        yield f"<h3>{unit[0]}</h3>{plot(points, unit)}<p>{text}</p>"


def page(title, phases, tables, problems):
    """The whole page; `phases` are pairs of a heading and its samples, `tables` of a heading and its rows."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="bad">{html.escape(problem)}</p>' for problem in problems] or ["<p>Every invariant held.</p>"]
    for heading, samples in phases:
        if samples:
            parts += [f"<h2>{heading}</h2>", *series(samples)]
    for heading, rows in tables:
        parts += [f"<h2>{heading}</h2>", table(rows)]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
