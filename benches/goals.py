"""The goals of the project, and whether what was measured meets them."""

import dataclasses

from report import table

OURS = ("imagelet", "daemon", "background")
DURABLE = ("imagelet", "daemon")
DAEMONS = ("daemon", "background", "imported")
# imagelet between a kubelet and containerd, and containerd given the layers: of containerd's own pull in the same run.
IMPORTED = ("imported",)
# imagelet between a kubelet and a runtime that pulls.
FORWARDED = ("forwarded",)
COLUMNS = OURS + IMPORTED + FORWARDED
ADDED_MS = 10
# Of containerd 2.x as it is shipped, with igzip: goal and stretch of the wall clock.
WALL = {"small": (0.50, 0.35), "web": (0.33, 0.28), "many": (0.33, 0.29), "web-zstd": (0.60, 0.45), "ml": (0.47, 0.40), "ai": (0.45, 0.40)}
WALL_IMPORTED = {"web": (0.38,), "many": (0.42,)}
# Of the tuned one.
TUNED = {"web": (0.45, 0.40), "many": (0.40, 0.35), "ml": (0.50,), "ai": (0.50,)}
TUNED_IMPORTED = {"web": (0.52,), "many": (0.52,)}
PODSTART, PODSTART_TUNED = (0.40, 0.33), (0.55, 0.45)
CPU = {"web": (0.45, 0.40), "ml": (0.62, 0.58)}
# Of the 2-core bound.
BOUND = {"web": (1.3, 1.2), "ml": (1.15, 1.1)}
# Of the bytes that the image takes on the disk.
WRITTEN = 1.02
# Megabytes above idle.
ABOVE = {"ml": 40, "ai": 80}
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
    """All goals; `containerd` is the version that was measured: the goals beside containerd are those beside 2.x."""
    found = []
    if not containerd.startswith("1."):
        found += beside_containerd()
    for image, bound in BOUND.items():
        found.append(Goal(f"{image}: wall / 2-core bound", image, "x_bound", *bound, who=DURABLE))
    for image in ABOVE:
        found.append(Goal(f"{image}: bytes written / bytes it takes", image, "x_written", WRITTEN, who=("daemon", "imported")))
    for image, megabytes in ABOVE.items():
        found.append(Goal(f"{image}: peak above idle, MB", image, "above", megabytes, None, MEGABYTE, 1, DAEMONS))
    images = max((one.get("count", 0) for one in values.get("idle", {}).values()), default=0)
    full = max((one.get("count", 0) for one in values.get("full", {}).values()), default=0)
    large = next((one["image"] for one in values.get("rss", {}).values()), "")
    found += [
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
        *(Goal(f"web over TLS, registry {place}: wall / containerd", "distant", f"x_{place}", 0.5, who=DURABLE) for place in ("near", "far", "far40")),
        Goal("web onto 125 MiB/s: until all is written / its bytes at that rate", "slow_disk", "x_disk", 1.1, who=("daemon", "imported")),
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


def beside_containerd():
    found = []
    for image, wall in WALL.items():
        found.append(Goal(f"{image}: wall / containerd", image, "x_wall", *wall, who=DURABLE))
    for key, beside, per_image in (("x_wall", "containerd", WALL_IMPORTED), ("x_tuned", "tuned containerd", TUNED_IMPORTED)):
        found += [Goal(f"{image}: wall / {beside}, imported", image, key, *wall, who=IMPORTED) for image, wall in per_image.items()]
    for image, wall in TUNED.items():
        found.append(Goal(f"{image}: wall / tuned containerd", image, "x_tuned", *wall, who=DURABLE))
    for image, cpu in CPU.items():
        found.append(Goal(f"{image}: CPU / containerd", image, "x_cpu", *cpu, who=DURABLE))
    text = "a pod of web starts, image absent: wall /"
    found.append(Goal(f"{text} containerd", "podstart", "x_wall", *PODSTART, who=IMPORTED))
    found.append(Goal(f"{text} tuned containerd", "podstart", "x_tuned", *PODSTART_TUNED, who=IMPORTED))
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
