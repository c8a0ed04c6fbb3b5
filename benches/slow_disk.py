"""The figure of a slow disk: pulls onto a device that takes 125 MiB a second."""

import contextlib
import os
import pathlib
import time

from bed import Failed, rotated, used, written
from report import median, megabytes, spread, table

IMAGE = "web"
BYTES_PER_SECOND = 125 << 20
WHO = ("daemon", "imported", "containerd", "tuned")
THROTTLE = pathlib.Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


def slow_disk(bench):
    """Cold pulls of `web` onto a disk of 125 MiB/s, until every byte is on it."""
    name = bench.source.image(IMAGE)
    runs = {who: [] for who in WHO if who in bench.candidates}
    for number in range((bench.pairs or 3) + 1):
        for who, found in rotated(runs.items(), number):
            with bench.started(who, bench.room(IMAGE)) as candidate, held(candidate.place):
                candidate.settle()
                before = [measured(candidate.place) for measured in (written, used)]
                begun = time.monotonic()
                pull = candidate.pull(name)
                candidate.settle()
                whole = time.monotonic() - begun
                disk = [measured(candidate.place) - old for measured, old in zip((written, used), before)]
            bench.tell(f"slow_disk {number} {who}: {pull.wall:.3f} s, on the disk after {whole:.3f} s")
            if number > 0:
                found.append({"wall": pull.wall, "whole": whole, "written": disk[0], "used": disk[1]})
    rows = []
    for who, found in runs.items():
        values = {key: median([one[key] for one in found]) for key in found[0]}
        values["x_disk"] = values["whole"] * BYTES_PER_SECOND / values["used"]
        bench.keep("slow_disk", who, values)
        walls = [spread([one[key] for one in found]) for key in ("wall", "whole")]
        rows.append([who, *walls, megabytes(values["written"]), megabytes(values["used"]), f"{values['x_disk']:.2f}"])
    title = f"slow_disk: {IMAGE} onto {BYTES_PER_SECOND >> 20} MiB/s; x: on the disk, by its bytes and that rate"
    table(title, ["who", "answered, s", "on the disk, s", "MB written", "MB it takes", "x"], rows)


@contextlib.contextmanager
def held(place):
    """Holds the device of the file system there to the rate, for all who write."""
    if not THROTTLE.is_file():
        raise Failed(f"`{THROTTLE}` is not there: the figure `slow_disk` needs control groups of version 1")
    device = os.stat(place).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    THROTTLE.write_text(f"{number} {BYTES_PER_SECOND}")
    try:
        yield
    finally:
        THROTTLE.write_text(f"{number} 0")
