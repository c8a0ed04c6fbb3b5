"""Steps of the wall clock, which the program under test sees and nothing else: libfaketime stands between it and the C library."""

import pathlib
import subprocess

LIBRARY = "*/faketime/libfaketimeMT.so.1"
HOUR, YEAR = 3600, 365 * 24 * 3600
STEPS = (HOUR, -HOUR, YEAR, -YEAR)
# A containerd sees the true time, and ends a lease whose day is over by it: beside one, no clock is off by more.
BESIDE_CONTAINERD_MAX = HOUR


class Clock:
    """The offset of the wall clock. A static program sees no step, and `sees_steps` says so."""

    def __init__(self, binary, folder, chance):
        self.chance, self.offset = chance, 0
        self.file, self.file_beside = pathlib.Path(folder) / "clock", pathlib.Path(folder) / "clock-beside-containerd"
        library = next(iter(sorted(pathlib.Path("/usr/lib").glob(LIBRARY))), None)
        self.sees_steps = library is not None and is_dynamic(binary)
        self.set(0)
        self.environment = self.environment_beside_containerd = {}
        if self.sees_steps:
            # The monotonic clock and the boot clock go on, and so do the times of files.
            rest = {"LD_PRELOAD": str(library), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
            self.environment = rest | {"FAKETIME_TIMESTAMP_FILE": str(self.file)}
            self.environment_beside_containerd = rest | {"FAKETIME_TIMESTAMP_FILE": str(self.file_beside)}

    def set(self, offset):
        self.offset = offset
        near = max(-BESIDE_CONTAINERD_MAX, min(offset, BESIDE_CONTAINERD_MAX))
        for file, seconds in ((self.file, offset), (self.file_beside, near)):
            new = file.with_suffix(".new")
            new.write_text(f"{seconds:+d}\n")
            new.rename(file)

    def step(self):
        """An hour or a year forwards or backwards, never further than a year and an hour from the truth."""
        self.set(self.chance.choice([step for step in STEPS if abs(self.offset + step) <= YEAR + HOUR]) + self.offset)


def is_dynamic(binary):
    """Whether the loader reads `LD_PRELOAD` for this program: it complains about a library that is not there."""
    environment = {"LD_PRELOAD": "/nonexistent.so"}
    done = subprocess.run([binary, "--version"], env=environment, capture_output=True, text=True, check=False)
    return "/nonexistent.so" in done.stderr
