"""What a measurement stands on: a folder, file systems on loop devices, and processes ended by their id."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

READY_SECONDS = 120
INODES = "250000"
# Megabytes, whatever the size of the disk.
JOURNAL = "size=128"
MEMORY = pathlib.Path("/dev/shm")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
SECTOR = 512
PAGE = os.sysconf("SC_PAGE_SIZE")
BENCHES = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    """The measurement cannot go on; the message says why."""


def wait_until(what, ready, seconds=READY_SECONDS, step=0.01):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise Failed(f"waited {seconds} s for {what}")
        time.sleep(step)


def rotated(items, turn):
    """All items, in each turn from the next one on: what drifts within a turn weighs on each."""
    items = list(items)
    start = turn % len(items) if items else 0
    return items[start:] + items[:start]


def run(*command):
    """A command that has to work; answers what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failed(f"`{error.filename}` is not installed") from error
    if done.returncode != 0:
        raise Failed(f"`{' '.join(map(str, command))}`: {done.stderr.strip() or done.returncode}")
    return done.stdout


@contextlib.contextmanager
def folder(parent=MEMORY):
    """A folder, in memory by default, gone at the end."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="imagelet-bench-", dir=parent))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def disk(place, name, size):
    """A new ext4 file system on a loop device over a file in this place; answers where it is mounted.

    The file stays, for the next disk of this size: a virtual machine returns free memory to its host, and has it back page by page, which
    costs the processor several times what it costs to write to a page that is there.
    """
    unused = place / f"unused-{size}"
    unused.mkdir(exist_ok=True)
    image, mountpoint = place / f"{name}.img", place / name
    if left := next(unused.iterdir(), None):
        left.rename(image)
    with image.open("ab") as file:
        file.truncate(size)
    # Whole at once: nothing is left to be initialised beside a measurement.
    run("mkfs.ext4", "-q", "-F", "-N", INODES, "-J", JOURNAL, "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", image)
    mountpoint.mkdir()
    run("mount", "-o", "loop", image, mountpoint)
    try:
        yield mountpoint
    finally:
        # What a runtime mounted below it goes first.
        below = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for mounted in sorted((one for one in below if one.startswith(f"{mountpoint}/")), reverse=True):
            subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
        if subprocess.run(["umount", mountpoint], check=False, capture_output=True).returncode == 0:
            image.rename(unused / f"{time.monotonic_ns()}.img")
        else:
            # Something still has files open there.
            subprocess.run(["umount", "-l", mountpoint], check=False)
            image.unlink()
        mountpoint.rmdir()


def settle(place):
    """Waits until the file system there has written what it was given."""
    run("sync", "-f", place)


def written(place):
    """Bytes that the device of the file system there was given, since it exists."""
    device = os.stat(place).st_dev
    fields = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[6]) * SECTOR


def used(place):
    """Bytes that the files there take."""
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


class Process:
    """A process of ours with its log."""

    def __init__(self, command, log, environment=None):
        self.log = pathlib.Path(log)
        environment = {**os.environ, **(environment or {})}
        with self.log.open("ab") as output:
            command = [str(word) for word in command]
            try:
                self.child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
                )
            except FileNotFoundError as error:
                raise Failed(f"`{command[0]}` is not installed") from error
        self.pid = self.child.pid
        # The process' own clock: nanoseconds, with all its threads, also those that ended.
        self.clock = (~self.pid << 3) | 2

    def stop(self):
        if self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(60)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()

    def check(self):
        if self.child.poll() is not None:
            raise Failed(f"`{self.child.args[0]}` ended with {self.child.returncode}:\n{self.tail()}")

    def tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])

    def cpu(self):
        """Seconds of CPU so far, with those of the children it waited for."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(self.clock) + (int(fields[13]) + int(fields[14])) / CLOCK_TICKS

    def memory(self, key="VmRSS"):
        """Resident bytes now, or the peak since `forget_peak` as `VmHWM`."""
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
        raise Failed(f"process {self.pid} has no {key}")

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def launch(log, *command):
    """Runs a command to its end; answers its seconds of wall clock, of CPU, and its peak of resident bytes."""
    text = run(sys.executable, "-I", "-S", BENCHES / "launch.py", log, *command).split()
    if text[3] != "0":
        words = pathlib.Path(log).read_text(errors="replace").strip()
        raise Failed(f"`{' '.join(map(str, command))}` ended with {text[3]}: {words}")
    return float(text[0]), float(text[1]), int(text[2])
