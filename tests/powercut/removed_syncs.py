"""Syncs of imagelet that are removed on purpose: the proof that the bed finds a missing one.

The program stays as it is: strace answers chosen syncs with success and the kernel never sees them.
"""

import functools
import os

import disks
import acknowledged
import recording
import scenarios

CUTS = 6
ATTEMPTS = 3
WIDTH = 180
SYNCS = ("fsync", "fdatasync", "syncfs")


class Removed:
    """A sync that is removed wherever it has this path, and where it is looked for: scenario, variant, file system."""

    def __init__(self, title, scenario, variant, path, calls=SYNCS, file_system="ext4"):
        self.title, self.path, self.calls = title, path, calls
        self.scenario, self.variant, self.file_system = scenario, variant, file_system

    def injection(self, store, samples):
        paths = [os.path.normpath(store / path) for path in expand(self.path, samples)]
        chosen = [argument for path in paths for argument in ("-P", path)]
        calls = ",".join(self.calls)
        options = ["-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:retval=0"]
        return ["strace", *options, *chosen]


def expand(template, samples):
    """A path of every image where it has `{record}`, the name of its pull record."""
    if "{record}" in template:
        return [template.format(record=acknowledged.record_name(image.id)) for image in samples.images.values()]
    return [template]


STORE, ALONE, SHARED = "", "alone", "shared"
NAMES, RECORD, LOG = "names.new", "state/image_manager/pulled/{record}.tmp", "state/decisions/0000000001.jsonl"
PINS, LEDGER, RESOLVED = "state/inventory/.pins.json.new", "state/inventory/.ledger.new", "state/verified-names.new"
STAGING = "../../containerd/imagelet-staging"
FILE_SYSTEM, FOLDER = ("syncfs",), ("fsync",)
REMOVED = (
    Removed("the content of a pull", "pull", ALONE, STORE, calls=FILE_SYSTEM),
    Removed("the content of a pull with kept blobs", "pull-keep", SHARED, STORE, calls=FILE_SYSTEM),
    Removed("the content of pulls in the background", "background", ALONE, STORE, calls=FILE_SYSTEM),
    Removed("the content of an import", "import", ALONE, STORE, calls=FILE_SYSTEM),
    Removed("the content of a repair", "repair", ALONE, STORE, calls=FILE_SYSTEM),
    Removed("the content of an import into containerd", "runtime", ALONE, STAGING, calls=FILE_SYSTEM),
    Removed("the names, by a pull", "pull", SHARED, NAMES),
    Removed("the names, by a removal", "remove", ALONE, NAMES),
    Removed("the names, by a collection", "collect", SHARED, NAMES),
    Removed("the names, by a pull in the background", "background-keep", ALONE, NAMES),
    Removed("the names, by an import", "import", SHARED, NAMES),
    Removed("a pull record", "pull", ALONE, RECORD),
    Removed("the resolved names", "state", SHARED, RESOLVED),
    Removed("the pins", "collect", ALONE, PINS),
    Removed("the pins, by a daemon", "state", SHARED, PINS),
    Removed("the ledger", "remove", SHARED, LEDGER),
    Removed("the ledger, by a daemon", "state", ALONE, LEDGER),
    Removed("the log of decisions", "remove", ALONE, LOG),
    # A sync of any file of ext4 brings all earlier renames to the disk, one of btrfs only some.
    Removed("the folder of the names", "background", ALONE, STORE, FOLDER, "btrfs"),
    Removed("the folder of the images", "pull", ALONE, "images", FOLDER, "btrfs"),
    Removed("the folder of the pins and the ledger", "remove", ALONE, "state/inventory", FOLDER, "btrfs"),
)


def prove(bed, address, cut_all):
    """Removes one sync after the other, and again where no cut showed it: other recordings have other moments."""
    missing = REMOVED
    for _ in range(ATTEMPTS):
        missing = missed(bed, address, cut_all, missing)
    print(f"{len(REMOVED)} syncs removed, {len(missing)} not found")
    return 1 if missing else 0


def missed(bed, address, cut_all, syncs):
    recordings = []
    for removed in syncs:
        tracer = functools.partial(removed.injection, samples=bed.samples)
        bed.file_system = disks.FILE_SYSTEMS[removed.file_system]
        recordings.append(bed.record(scenarios.named(removed.scenario), removed.variant, address, tracer))
    reports = cut_all(bed, recordings, [cuts(known, bed.seed) for known in recordings]) if recordings else []
    shown = [show(removed, [found for number, _, found in reports if number == at]) for at, removed in enumerate(syncs)]
    return [removed for removed, is_found in zip(syncs, shown, strict=True) if not is_found]


def cuts(known, seed):
    """The moments after acknowledgements, where everything unsynced is lost, and some by seed."""
    chosen = [recording.Cut(mark, recording.LOSE_ALL, 0) for mark in known.marks]
    chosen += known.recording.cuts(CUTS, known.start, known.end, known.marks, seed)
    return sorted(chosen, key=lambda cut: cut.position)


def show(removed, cut_results):
    """Prints what the cuts of one removed sync found; returns whether they found it."""
    if any(violation.startswith("bed:") for found in cut_results for violation in found):
        raise disks.Failed(f"a removed sync must not disturb the bed itself: {removed.title}")
    violating = [found for found in cut_results if found]
    examples = {violation.split(": ")[0]: violation for found in violating for violation in found}
    where = f"{removed.scenario}, {removed.variant}, {removed.file_system}"
    print(f"{removed.title} ({where}): {len(violating)} of {len(cut_results)} cuts")
    print("".join(f"    {example[:WIDTH]}\n" for example in examples.values()) or "    not found\n", end="")
    return bool(violating)
