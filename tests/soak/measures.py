"""What must stay flat: samples of the daemon and of its store, and the test of their slopes."""

import os
import pathlib
import statistics

BLOCK = 512
#: Growth over the measured time that counts as flat, by series. Memory: caches of names and records of the sample images fill
#: early; a leak of a kibibyte an operation is found within an hour.
FLAT = {"resident": 8 << 20, "descriptors": 8, "threads": 4, "rest": 1 << 20}
#: Samples before this share of the time are warm-up.
WARM_UP = 0.25
SAMPLES_MIN = 8


def sample(process, store, referenced):
    """One sample of a running daemon; `referenced` are the paths that images need."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "resident": int(fields["VmRSS"].split()[0]) << 10,
        "threads": int(fields["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{process}/fd")),
        "rest": max(0, usage(store) - sum(map(usage, referenced))),
    }


def usage(path):
    """Allocated bytes of a file or a tree; what is removed meanwhile counts as nothing."""
    try:
        total = os.lstat(path).st_blocks * BLOCK
    except FileNotFoundError:
        return 0
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * BLOCK
            except FileNotFoundError:
                continue
    return total


def growth(points):
    """The growth over the measured time by the median of all slopes (Theil and Sen): single peaks do not move it."""
    measured = points[int(len(points) * WARM_UP):]
    if len(measured) < SAMPLES_MIN:
        return None
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for number, earlier in enumerate(measured)
        for later in measured[number + 1:]
        if later[0] > earlier[0]
    ]
    return statistics.median(slopes) * (measured[-1][0] - measured[0][0])


def growing(samples, names=tuple(FLAT)):
    """The series that are not flat, with their growth; `samples` are pairs of a time and a sample."""
    found = {}
    for name in names:
        grown = growth([(time, values[name]) for time, values in samples])
        if grown is not None and grown > FLAT[name]:
            found[name] = grown
    return found
