#!/usr/bin/env python3
"""Cuts the power of imagelet's disk at many moments, and checks what is left.

Usage: powercut.py IMAGELET [--cuts N] [--seed S] [--scenario NAME]... [--at CUT] [--removed-syncs] [--keep]

Each scenario runs twice on a recorded disk: alone, and beside a program that syncs a file of its own, so that the journal
commits at other moments. Then the power is cut at N moments of the recordings. `--at` repeats one cut of a scenario, in the
form in which a violation prints it. `--removed-syncs` removes syncs of imagelet on purpose, one place after the other, and
demands that each is found. Exit status: 0 when every invariant holds, 1 when one is violated, 2 when the bed fails.

Needs root, FUSE and loop devices. All mounts, devices and processes live in namespaces that end with this process.
"""

import argparse
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

import disks
import outside
import removed_syncs
import scenarios
from invariants import Checker, Violations
from recorder import recorded
from recording import Cut, Recording, copy_sparse
from samples import Samples, registry

CUTS = 200
WORKERS = 2
DISK = 160 << 20
INODES = 8192
INSIDE = "IMAGELET_POWERCUT_INSIDE"
#: Metadata without its data reaches the disk as early as ext4 can: a missing sync shows.
RECORDING_OPTIONS = "commit=1,noauto_da_alloc"
CUT_OPTIONS = "errors=remount-ro"
CLONE_NEWTIME = 0x80
PULL_AGAIN_EVERY = 3
ALONE, BESIDE = "alone", "beside"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagelet", type=pathlib.Path)
    parser.add_argument("--cuts", type=int, default=CUTS, help="over all scenarios")
    parser.add_argument("--seed", default="power")
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in scenarios.SCENARIOS])
    parser.add_argument("--at", help="one cut: alone|beside/POSITION:MODE:SEED, with one --scenario")
    parser.add_argument("--removed-syncs", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep recordings and violating disks, and print their folder")
    arguments = parser.parse_args()
    if INSIDE not in os.environ:
        isolate()
    arguments.imagelet = arguments.imagelet.resolve()
    bring_loopback_up()
    with workspace(arguments.keep) as folder:
        if arguments.removed_syncs:
            return removed_syncs.prove(Bed(arguments, folder), arguments.cuts)
        return cut_all(Bed(arguments, folder), arguments)


def isolate():
    """Starts this program again in namespaces of its own, which end with this process, killed or not."""
    command = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--mount-proc", "--kill-child", "--fork"]
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*command, "--", sys.executable, *sys.argv])


def bring_loopback_up():
    up, set_flags, running = 1, 0x8914, 64
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", b"lo", up | running))


@contextlib.contextmanager
def workspace(keep):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="imagelet-powercut-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Known:
    """One recording of a scenario: the disk's log, and what was acknowledged when."""

    def __init__(self, scenario, manner, recording, start, actor, neighbour, outside_state):
        self.scenario, self.manner, self.recording, self.start = scenario, manner, recording, start
        self.facts, self.marks, self.damages = actor.facts, actor.marks, actor.damages
        self.neighbour, self.outside = neighbour, outside_state
        self.end = len(recording.entries)
        self.address = actor.address

    def neighbour_bytes(self, position):
        return max((size for at, size in self.neighbour if at <= position), default=0)


class Bed:
    """The folder, the images and the program that all scenarios share."""

    def __init__(self, arguments, folder):
        self.binary, self.folder, self.seed, self.keep = arguments.imagelet, folder, arguments.seed, arguments.keep
        self.samples = Samples(folder / "registry")
        self.base = folder / "base"
        disks.format_ext4(self.base, DISK, INODES)

    def record(self, scenario, manner, address, injection=()):
        """Runs a scenario on a recorded disk."""
        place = pathlib.Path(tempfile.mkdtemp(prefix=f"{scenario.name}-{manner}-", dir=self.folder))
        image, log = place / "image", place / "log"
        copy_sparse(self.base, image)
        with recorded(image, log, place) as (served, length):
            with disks.loop_device(served, direct=True) as device:
                if not disks.is_direct(device):
                    raise disks.Failed("the loop device would cache the recorded disk")
                with disks.mounted(device, place / "disk", RECORDING_OPTIONS) as disk:
                    outside_state = outside.make(disk / "outside")
                    (disk / "home").mkdir()
                    program = scenarios.program(self.binary, place, disk / "home/store", scenario, injection)
                    start = length()
                    actor = scenarios.Actor(program, self.samples, address, length)
                    neighbour = scenarios.Neighbour(disk, length)
                    with neighbour if manner == BESIDE else contextlib.nullcontext():
                        scenario.story(actor)
                    end = length()
        recording = Recording(self.base, log)
        image.unlink()
        known = Known(scenario, manner, recording, start, actor, neighbour.synced, outside_state)
        # What the unmount writes is no part of the story.
        known.end = end
        return known

    def cut(self, known, cuts, report):
        """Cuts the power of a recording and calls `report` with each cut and its violations."""
        place = pathlib.Path(tempfile.mkdtemp(prefix="cuts-", dir=self.folder))
        try:
            for number, (cut, leave) in enumerate(known.recording.disks(cuts, place / "durable")):
                disk = place / "disk.img"
                leave(disk)
                report(cut, self.inspect(known, cut, disk, place, number % PULL_AGAIN_EVERY == 0))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def inspect(self, known, cut, image, place, pulls_again):
        found = Violations()
        try:
            with disks.loop_device(image) as device, disks.mounted(device, place / "mounted", CUT_OPTIONS) as disk:
                program = scenarios.program(self.binary, place, disk / "home/store", known.scenario)
                found += Checker(program, known, self.samples, known.address).check(cut.position, pulls_again)
                found.check(outside.state(disk / "outside") == known.outside, "no file outside the store changed")
                wanted, neighbour = known.neighbour_bytes(cut.position), disk / "neighbour"
                size = neighbour.stat().st_size if neighbour.exists() else 0
                found.check(size >= wanted, "bed: a synced file keeps its bytes", f"{size} of {wanted}")
        except OSError as error:
            found.append(f"bed: the disk of the cut cannot be used: {error}")
        sound = subprocess.run(("e2fsck", "-fn", str(image)), capture_output=True, text=True, check=False)
        found.check(sound.returncode == 0, "bed: the file system is sound", sound.stdout[-500:])
        return found


def as_after_a_boot(folder):
    """This process, and all that it starts, see the boot after a power cut: another id, and an uptime of a second."""
    disks.own_mounts()
    disks.another_boot(folder)
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    disks.system_call("unshare", CLONE_NEWTIME)
    offset = int(uptime) - 1
    pathlib.Path("/proc/self/timens_offsets").write_text(f"boottime -{offset} 0\n")


def in_worker(folder, work):
    """Runs `work` in a child that sees another boot; returns its process id and the file of its reports."""
    reports = pathlib.Path(tempfile.mkstemp(prefix="reports-", dir=folder)[1])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = pathlib.Path(tempfile.mkdtemp(prefix="worker-", dir=folder))
            as_after_a_boot(own)
            # Only children of this process are in the new time namespace.
            grandchild = os.fork()
            if grandchild == 0:
                with reports.open("w") as file:
                    work(lambda *report: print(json.dumps(report), file=file, flush=True))
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        except BaseException:  # noqa: BLE001: a forked child must not return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    return child, reports


def in_workers(folder, jobs):
    """Runs all jobs, one worker each, and returns all their reports."""
    # The new boot is later than what was recorded.
    time.sleep(1.1)
    workers = [in_worker(folder, job) for job in jobs]
    failed = [child for child, _ in workers if os.waitpid(child, 0)[1] != 0]
    if failed:
        raise disks.Failed("a worker failed")
    return [json.loads(line) for _, reports in workers for line in reports.read_text().splitlines()]


def cut_all(bed, arguments):
    begun = time.monotonic()
    chosen = [it for it in scenarios.SCENARIOS if not arguments.scenario or it.name in arguments.scenario]
    manners = [ALONE, BESIDE]
    single = None
    if arguments.at:
        manner, single = arguments.at.split("/", 1)
        chosen, manners, single = chosen[:1], [manner], Cut.parse(single)
    with registry(bed.samples.folder) as address:
        recordings = []
        for scenario in chosen:
            for manner in manners:
                recordings.append(bed.record(scenario, manner, address))
                known = recordings[-1]
                flushes = len(known.recording.flushes(known.start, known.end))
                print(f"{scenario.name} {manner}: {known.end - known.start} entries, {flushes} flushes", file=sys.stderr)
        each = -(-arguments.cuts // len(recordings))
        jobs = [[] for _ in range(WORKERS)]
        for at, known in enumerate(recordings):
            seed = f"{arguments.seed}/{known.scenario.name}/{known.manner}"
            cuts = [single] if single else known.recording.cuts(each, known.start, known.end, known.marks, seed)
            jobs[at % WORKERS].append((at, cuts))
        recorded_in = time.monotonic() - begun

        def job(share):
            def work(report):
                for at, cuts in share:
                    bed.cut(recordings[at], cuts, lambda cut, found, at=at: report(at, str(cut), found))

            return work

        reports = in_workers(bed.folder, [job(share) for share in jobs])
    return summary(recordings, reports, recorded_in, time.monotonic() - begun)


def summary(recordings, reports, recorded_in, took):
    cuts, violated = collections.Counter(), collections.Counter()
    for at, cut, found in reports:
        known = recordings[at]
        cuts[known.scenario.name] += 1
        violated[known.scenario.name] += bool(found)
        for violation in found:
            print(f"VIOLATED {known.scenario.name} {known.manner}/{cut}: {violation}")
    print(f"{'scenario':18} {'cuts':>5} {'violated':>9}")
    for name, count in cuts.items():
        print(f"{name:18} {count:5} {violated[name]:9}")
    total, bad = sum(cuts.values()), sum(violated.values())
    print(f"{total} power cuts, {bad} with a violated invariant; recorded in {recorded_in:.0f} s, {took:.0f} s in all")
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    try:
        sys.exit(main())
    except disks.Failed as error:
        print(f"powercut: {error}", file=sys.stderr)
        sys.exit(2)
