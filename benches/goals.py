"""The goals of the project, and whether what was measured meets them."""

import dataclasses

from report import table

OURS = ("imagelet", "daemon", "background")
DURABLE = ("imagelet", "daemon")
# imagelet between a kubelet and containerd, and containerd given the layers: of containerd's own pull in the same run.
IMPORTED = ("imported",)
# imagelet between a kubelet and a runtime that pulls.
FORWARDED = ("forwarded",)
COLUMNS = OURS + IMPORTED + FORWARDED
ADDED_MS = 10
WALL_IMPORTED = {"web": 0.36, "many": 0.50, "ml": 0.50}
CPU_IMPORTED = 0.5
PODSTART = 0.45
# Of the wall clock of containerd 1.6.20, every file durable before the answer; and in the background.
WALL = {"small": 0.38, "web": 0.30, "many": 0.28, "web-zstd": 0.42}
WALL_BACKGROUND = {"web": 0.24}
CPU = 0.45
# Of containerd 2.x with its default settings, where that is what is installed: goal and stretch.
WALL_2 = {"small": (0.50, 0.35), "web": (0.42, 0.33), "many": (0.40, 0.29), "web-zstd": (0.60, 0.45), "ml": (0.55, 0.40)}
CPU_2 = (0.65, 0.50)
# Of the 2-core bound.
BOUND_DURABLE, BOUND_BACKGROUND = 1.9, 1.5
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
    who: tuple = OURS


def goals(values, containerd):
    """All goals; `containerd` is the version that was measured."""
    found = []
    first = containerd.lstrip("v").startswith("1.")
    for image in ("small", "web", "many", "web-zstd", "ml"):
        if not first:
            found.append(Goal(f"{image}: wall / containerd 2.x", image, "x_wall", *WALL_2[image]))
            found.append(Goal(f"{image}: CPU / containerd 2.x", image, "x_cpu", *CPU_2))
        else:
            if image in WALL:
                found.append(Goal(f"{image}: wall / containerd 1.6", image, "x_wall", WALL[image], who=DURABLE))
            if image in WALL_BACKGROUND:
                wall = WALL_BACKGROUND[image]
                found.append(Goal(f"{image}: wall / containerd 1.6, background", image, "x_wall", wall, who=("background",)))
            found.append(Goal(f"{image}: CPU / containerd 1.6", image, "x_cpu", CPU))
        if image in WALL_IMPORTED:
            wall = WALL_IMPORTED[image]
            found.append(Goal(f"{image}: wall / containerd, imported", image, "x_wall", wall, who=IMPORTED))
            found.append(Goal(f"{image}: CPU / containerd, imported", image, "x_cpu", CPU_IMPORTED, who=IMPORTED))
        if image in ("web", "ml"):
            found.append(Goal(f"{image}: wall / 2-core bound", image, "x_bound", BOUND_DURABLE, who=DURABLE))
            found.append(Goal(f"{image}: wall / 2-core bound, background", image, "x_bound", BOUND_BACKGROUND, who=("background",)))
    images = max((one.get("count", 0) for one in values.get("idle", {}).values()), default=0)
    full = max((one.get("count", 0) for one in values.get("full", {}).values()), default=0)
    large = next((one["image"] for one in values.get("rss", {}).values()), "")
    found += [
        Goal("a pod of web starts, image absent: wall / containerd", "podstart", "x_wall", PODSTART, who=IMPORTED),
        *(Goal(f"{call} of a small image through imagelet adds over {runtime}, ms", "between", f"{runtime}_{call}_added", ADDED_MS, None, MILLISECOND, 1, FORWARDED)
          for runtime in ("containerd", "crio") for call in ("pull", "remove")),
        Goal(f"peak above idle while pulling {large}, MB", "rss", "above", 40, 20, MEGABYTE, 1),
        Goal("idle daemon, empty store, MB", "idle", "rss_empty", 12, 8, MEGABYTE, 1),
        Goal(f"idle daemon, {images} images, MB", "idle", "rss", 12, 8, MEGABYTE, 1),
        Goal("start to first answer, empty store, ms", "idle", "start_empty", 30, 15, MILLISECOND, 1),
        Goal(f"start to first answer, {images} images, ms", "idle", "start", 300, 100, MILLISECOND, 1),
        Goal(f"ListImages, {images} images, ms", "idle", "list", 2 * images / 1000, images / 1000, MILLISECOND),
        Goal("ImageFsInfo, asked again within a second, ms", "idle", "filesystem", 1, None, MILLISECOND),
        Goal("ImageStatus p50, ms", "idle", "status", 0.3, 0.15, MILLISECOND),
        Goal("110 callers at once: ImageStatus p99, ms", "callers", "p99", 5, 2, MILLISECOND),
        Goal(f"start to first answer, {full:,} images, ms", "full", "start", 400, 150, MILLISECOND, 1),
        Goal(f"ListImages, {full:,} images, ms", "full", "list", 20, 10, MILLISECOND),
        Goal(f"ImageStatus p50, {full:,} images, ms", "full", "status", 0.3, 0.15, MILLISECOND),
        Goal(f"110 callers at once, {full:,} images: ImageStatus p99, ms", "full", "crowd_p99", 5, 2, MILLISECOND),
        Goal(f"ImageFsInfo, {full:,} images, ms", "full", "filesystem", 1, None, MILLISECOND),
        Goal(f"`imagelet ls` of {full:,} images, ms", "full", "command", 20, None, MILLISECOND, 1),
        Goal(f"`imagelet ls -o json` of {full:,} images, ms", "full", "command_json", 50, 30, MILLISECOND, 1),
        Goal("40 MB/s a connection: what it adds to web, s", "slow", "more", 0.75),
        *(Goal(f"web over TLS, registry {place}: wall / containerd", "distant", f"x_{place}", 0.5, who=DURABLE) for place in ("near", "far")),
        Goal("web: wall / without partial layers", "partial", "x_wall", 1.05, 1.02, who=("daemon",)),
        Goal("artifact of 4 GiB: wall / slower of registry and disk", "artifact", "x_bound", 1.25, who=("daemon", *IMPORTED)),
        Goal("artifact of 4 GiB: peak above idle, MB", "artifact", "above", 100, None, MEGABYTE, 1, who=("daemon", *IMPORTED)),
        Goal("artifact of 4 GiB: bytes written / size", "artifact", "x_written", 1.02, who=("daemon", *IMPORTED)),
        Goal("all layers present: pull, ms", "present", "wall", 15, 8, MILLISECOND, 1),
        Goal("other stacking: layers unpacked again", "stacking", "again", 0, None, 1, 0),
        Goal("10 pulls at once: bytes / one's", "together", "x_bytes_10", 1.0),
        Goal("50 pulls at once: bytes / one's", "together", "x_bytes_50", 1.0),
        Goal("50 pulls at once: wall / one's", "together", "x_wall_50", 1.1, 1.03),
    ]
    return found


def judge(values, containerd):
    """Prints each goal that was measured with its verdicts; returns them."""
    rows, verdicts = [], []
    for goal in goals(values, containerd):
        measured = {who: values.get(goal.figure, {}).get(who, {}).get(goal.key) for who in COLUMNS}
        if not any(measured[who] is not None for who in goal.who):
            continue
        cells = []
        for who, value in measured.items():
            if value is None or who not in goal.who:
                cells.append("-")
                continue
            value = round(value / goal.scale, goal.digits)
            word = verdict(goal, value)
            cells.append(f"{value:.{goal.digits}f} {word}")
            verdicts.append({"goal": goal.text, "who": who, "value": value, "must": goal.must, "verdict": word})
        limit = "-" if goal.stretch is None else f"{goal.stretch:g}"
        rows.append([goal.text, f"{goal.must:g}", limit, *cells])
    if rows:
        table("goals (at most)", ["goal", "must", "stretch", *COLUMNS], rows)
        print(f"\n{len(verdicts) - missed(verdicts)} met, {missed(verdicts)} missed")
    return verdicts


def missed(verdicts):
    return sum(one["verdict"] == "MISSED" for one in verdicts)


def verdict(goal, value):
    if goal.stretch is not None and value <= goal.stretch:
        return "stretch"
    return "met" if value <= goal.must else "MISSED"
