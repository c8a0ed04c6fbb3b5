"""The goals of the project, and whether what was measured meets them."""

import dataclasses

from report import table

OURS = ("imagelet", "daemon", "background")
# What containerd 2.x took of 1.6.20's wall clock (with its default settings, and tuned to unpack in parallel) and CPU, on
# one machine in alternating runs. Debian 12 ships 1.6.20, so a goal against 2.x is judged by way of these. For ml 1.6.20
# was not run: its decoder against 2.x's is what decides there, as for web.
SINCE_1_6 = {
    "small": {"default": 0.78, "cpu": 0.81},
    "web": {"default": 0.70, "tuned": 0.50, "cpu": 0.69},
    "many": {"default": 0.85, "tuned": 0.57, "cpu": 0.73},
    "web-zstd": {"default": 0.70, "cpu": 0.70},
    "ml": {"default": 0.70, "tuned": 0.41, "cpu": 0.70},
}
WALL = {"small": (0.50, 0.35), "web": (0.42, 0.33), "many": (0.40, 0.29), "web-zstd": (0.60, 0.45), "ml": (0.55, 0.40)}
WALL_TUNED = {"web": (0.60, 0.45), "many": (0.55, 0.40), "ml": (0.80, 0.67)}
MEGABYTE = 1e6
MILLISECOND = 1e-3


@dataclasses.dataclass
class Goal:
    """At most `must`; `stretch` is better still. The value is `values[figure][who][key] / scale`, as it is printed."""

    text: str
    figure: str
    key: str
    must: float
    stretch: float | None = None
    scale: float = 1
    digits: int = 2


def goals(values, containerd):
    """All goals; `containerd` is the version that was measured."""
    since = SINCE_1_6 if containerd.lstrip("v").startswith("1.") else {}
    found = []
    for image, (must, stretch) in WALL.items():
        factor = since.get(image, {}).get("default", 1)
        found.append(Goal(f"{image}: wall / containerd 2.x", image, "x_wall", must, stretch, factor))
        if image in WALL_TUNED:
            tuned = SINCE_1_6[image]["tuned"] if since else SINCE_1_6[image]["tuned"] / SINCE_1_6[image]["default"]
            found.append(Goal(f"{image}: wall / 2.x tuned", image, "x_wall", *WALL_TUNED[image], tuned))
        cpu = since.get(image, {}).get("cpu", 1)
        found.append(Goal(f"{image}: CPU / containerd 2.x", image, "x_cpu", 0.65, 0.50, cpu))
        found.append(Goal(f"{image}: wall / 2-core bound", image, "x_bound", 1.6, 1.25))
    images = max((one.get("count", 0) for one in values.get("idle", {}).values()), default=0)
    large = next((one["image"] for one in values.get("rss", {}).values()), "")
    found += [
        Goal(f"peak above idle while pulling {large}, MB", "rss", "above", 40, 20, MEGABYTE, 1),
        Goal("idle daemon, empty store, MB", "idle", "rss_empty", 12, 8, MEGABYTE, 1),
        Goal(f"idle daemon, {images} images, MB", "idle", "rss", 12, 8, MEGABYTE, 1),
        Goal("start to first answer, empty store, ms", "idle", "start_empty", 30, 15, MILLISECOND, 1),
        Goal(f"start to first answer, {images} images, ms", "idle", "start", 300, 100, MILLISECOND, 1),
        Goal(f"ListImages, {images} images, ms", "idle", "list", 2 * images / 1000, images / 1000, MILLISECOND),
        Goal("ImageStatus p50, ms", "idle", "status", 0.3, 0.15, MILLISECOND),
        Goal("all layers present: pull, ms", "present", "wall", 15, 8, MILLISECOND, 1),
        Goal("other stacking: layers unpacked again", "stacking", "again", 0, None, 1, 0),
        Goal("10 pulls at once: bytes / one's", "together", "x_bytes_10", 1.0),
        Goal("50 pulls at once: bytes / one's", "together", "x_bytes_50", 1.0),
        Goal("50 pulls at once: wall / one's", "together", "x_wall_50", 1.1, 1.03),
    ]
    return found


def judge(values, containerd):
    """Prints each goal that was measured with its verdicts; answers them."""
    rows, verdicts = [], []
    for goal in goals(values, containerd):
        measured = {who: values.get(goal.figure, {}).get(who, {}).get(goal.key) for who in OURS}
        if not any(value is not None for value in measured.values()):
            continue
        cells = []
        for who, value in measured.items():
            if value is None:
                cells.append("-")
                continue
            value = round(value / goal.scale, goal.digits)
            word = verdict(goal, value)
            cells.append(f"{value:.{goal.digits}f} {word}")
            verdicts.append({"goal": goal.text, "who": who, "value": value, "must": goal.must, "verdict": word})
        limit = "-" if goal.stretch is None else f"{goal.stretch:g}"
        rows.append([goal.text, f"{goal.must:g}", limit, *cells])
    if rows:
        table("goals (at most)", ["goal", "must", "stretch", *OURS], rows)
        missed = sum(one["verdict"] == "MISSED" for one in verdicts)
        print(f"\n{len(verdicts) - missed} met, {missed} missed")
    return verdicts


def verdict(goal, value):
    if goal.stretch is not None and value <= goal.stretch:
        return "stretch"
    return "met" if value <= goal.must else "MISSED"
