"""Figures of images whose layers are here: under another name, and in another stacking."""

import contextlib
import time

from bed import launch, rotated
from report import median, spread, table

BASE = "web"
# Of `web`: the base, Python, the application; as an image of the same family has them.
FAMILY = (0, 1, 4)
# The same layers, the middle ones the other way round.
TURNED = (0, 4, 3, 2, 1, 5, 6)
WHO = ("imagelet", "daemon", "background", "keeping", "containerd")


def milliseconds(seconds):
    return spread([one * 1e3 for one in seconds], 1)


def present(bench):
    """Pulls of an image whose layers are all here, under a config of its own, and of one that is here itself."""
    times = 2 * (bench.pairs or 5) + 1
    base = bench.source.image(BASE)
    images = [bench.source.variant(BASE, "present", f"v{number}") for number in range(times)]
    with contextlib.ExitStack() as parts:
        chosen = [parts.enter_context(bench.started(who)) for who in WHO if who in bench.candidates]
        for candidate in chosen:
            candidate.pull(base)
            candidate.settle()
        found = {candidate.name: {"new": [], "again": [], "command": []} for candidate in chosen}
        for number, image in enumerate(images):
            for candidate in rotated(chosen, number):
                one = walls(bench, candidate, image)
                if number > 0:
                    for key, seconds in one.items():
                        found[candidate.name][key].append(seconds)
    rows = []
    for who, one in found.items():
        medians = {key: median(seconds) for key, seconds in one.items() if seconds}
        bench.keep("present", who, {"wall": medians["new"], **medians})
        rows.append([who, *(milliseconds(one[key]) if one[key] else "-" for key in ("new", "again", "command"))])
    head = ["who", "other config, ms", "same again, ms", "same by the command, ms"]
    table(f"present: pulls whose layers are all here ({BASE}), {times - 1} in turn", head, rows)


def walls(bench, candidate, image):
    """Seconds of a pull under the other config, of the same again, and of the same by way of the command line."""
    found = {"new": candidate.pull(image).wall, "again": candidate.pull(image).wall}
    if candidate.name in ("daemon", "background", "keeping"):
        endpoint = f"unix://{candidate.socket}"
        command = (bench.program, "--endpoint", endpoint, "pull", "-q", "--policy", "Always", image)
        found["command"] = launch(candidate.place / "command.log", *command)[0]
    candidate.remove(image)
    candidate.settle()
    time.sleep(0.1)
    return found


def stacking(bench):
    """The same layers in another order, and some of them below a new one: what is fetched and unpacked again."""
    own, diff_id = bench.source.tiny_layer()
    config, layers = bench.source.config(BASE), bench.source.manifest(BASE)["layers"]
    diff_ids = [*(config["rootfs"]["diff_ids"][place] for place in FAMILY), diff_id]
    family = bench.source.publish("family", "v1", [*(layers[place] for place in FAMILY), own], diff_ids)
    order = [place for place in TURNED if place < len(layers)]
    turned = bench.source.variant(BASE, "turned", "v1", order)
    shared = {layer["digest"] for layer in layers}
    rows = []
    for who in WHO:
        if who not in bench.candidates:
            continue
        with bench.started(who) as candidate:
            candidate.pull(bench.source.image(BASE))
            again = 0
            for what, image, new in (("family", family, 1), ("turned", turned, 0)):
                kept = set(candidate.layers())
                bench.source.forget()
                wall = candidate.pull(image).wall
                fetched = sum(times for blob, times in bench.source.count()["blobs"].items() if blob in shared)
                unpacked = max(len(set(candidate.layers()) - kept) - new, 0) if fetched == 0 else fetched
                again += unpacked
                rows.append([who, what, f"{wall * 1e3:.1f}", fetched, unpacked])
                bench.keep("stacking", who, {f"wall_{what}": wall, f"fetched_{what}": fetched})
            bench.keep("stacking", who, {"again": again})
    head = ["who", "image", "wall ms", "layers fetched again", "layers unpacked again"]
    table(f"stacking: images of layers that are here ({BASE})", head, rows)
