#!/usr/bin/env python3
"""Cuts the power of imagelet's disk at many moments, and checks what is left.

Usage: powercut.py IMAGELET [--cuts N] [--seed S] [--scenario NAME]... [--keep]
       powercut.py IMAGELET --recording FOLDER [--at CUT] [--keep]
       powercut.py IMAGELET --removed-syncs

Each scenario runs twice on a recorded disk: alone, and shared with a program that syncs a file of its own, so that the journal
commits at other moments. Then the power is cut at N moments of the recordings. `--removed-syncs` removes syncs of imagelet
on purpose, one place after the other, and demands that each is found. Exit status: 0 when every invariant holds, 1 when one
is violated, 2 when the bed fails.

No two recordings are equal. `--keep` keeps them, and the disk of each cut that violates an invariant; `--recording` cuts a
kept one again, at one cut with `--at`, in the form in which a violation prints it.

Needs root, FUSE and loop devices. All mounts, devices and processes live in namespaces that end with this process.
"""

import argparse
import collections
import contextlib
import itertools
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import zlib

import disks
import isolation
import outside
import removed_syncs
import runtime
import scenarios
from invariants import Checker, Violations
from recorded_scenario import RecordedScenario
from recorder import recorded
from recording import Cut, copy_sparse
from samples import Samples, registry

CUTS = 192
DISK = 160 << 20
PULL_AGAIN_EVERY = 3
ALONE, SHARED = "alone", "shared"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagelet", type=pathlib.Path)
    parser.add_argument("--cuts", type=int, default=CUTS, help="over all scenarios")
    parser.add_argument("--seed", default="power")
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in scenarios.SCENARIOS])
    parser.add_argument("--recording", type=pathlib.Path, help="a kept folder, SCENARIO-MANNER")
    parser.add_argument("--at", help="one cut of it: POSITION:MODE:SEED")
    parser.add_argument("--file-system", default="ext4", choices=disks.FILE_SYSTEMS)
    parser.add_argument("--removed-syncs", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep recordings and violating disks, and print their folder")
    arguments = parser.parse_args()
    isolation.enter()
    arguments.imagelet = arguments.imagelet.resolve()
    with isolation.workspace(arguments.keep, is_seen=arguments.recording is not None) as folder:
        bed = Bed(arguments, folder)
        with registry(bed.samples.folder) as address:
            if arguments.removed_syncs:
                return removed_syncs.prove(bed, address, cut_all)
            begun = time.monotonic()
            if arguments.recording:
                recordings = [RecordedScenario.load(arguments.recording)]
            else:
                recordings = record_all(bed, address, arguments.scenario)
            each = -(-arguments.cuts // len(recordings))
            single = [Cut.parse(arguments.at)] if arguments.at else None
            recorded_in = time.monotonic() - begun
            reports = cut_all(bed, recordings, [single or known.cuts(each, bed.seed) for known in recordings])
            return summary(recordings, reports, recorded_in, time.monotonic() - begun)


class Bed:
    """The folder, the images and the program that all scenarios share."""

    def __init__(self, arguments, folder):
        self.binary, self.folder, self.seed, self.keep = arguments.imagelet, folder, arguments.seed, arguments.keep
        self.samples, self.file_system = Samples(folder / "registry"), disks.FILE_SYSTEMS[arguments.file_system]

    def places(self, name):
        yield self.folder / name
        yield from (self.folder / f"{name}-{number}" for number in itertools.count(2))

    def record(self, scenario, variant, address, injection=lambda _: ()):
        """Runs a scenario on a recorded disk; `injection` returns the tracer of the program for a store."""
        place = next(place for place in self.places(f"{scenario.name}-{variant}") if not place.exists())
        place.mkdir()
        image, log = place / "image", place / "log"
        self.file_system.format(image, DISK)
        copy_sparse(image, place / "base")
        with recorded(image, log, place) as (served, length):
            with disks.loop_device(served, direct=True) as device:
                if not disks.is_direct(device):
                    raise disks.Failed("the loop device would cache the recorded disk")
                with disks.mounted(device, place / "disk", self.file_system.name, self.file_system.options) as disk:
                    outside_state = outside.make(disk / "outside")
                    (disk / "home").mkdir()
                    program, containerd = scenarios.program(self.binary, place, disk, scenario, injection)
                    with containerd.running() if containerd else contextlib.nullcontext():
                        start = length()
                        actor = scenarios.Actor(program, self.samples, address, length, scenario.has_runtime)
                        neighbour = scenarios.Neighbour(disk, length)
                        with neighbour if variant == SHARED else contextlib.nullcontext():
                            scenario.story(actor)
                        end = length()
        image.unlink()
        # What the unmount writes is no part of the story.
        kind = self.file_system.name
        RecordedScenario(scenario, variant, kind, place, start, end, actor, neighbour.synced, outside_state).save()
        return RecordedScenario.load(place)

    def cut(self, known, cuts, report):
        """Cuts the power of a recording and calls `report` with each cut and its violations."""
        place = pathlib.Path(tempfile.mkdtemp(prefix="cuts-", dir=self.folder))
        try:
            # Cuts come in order of their positions: each recording pulls again at other ones.
            first = zlib.crc32(f"{known.scenario} {known.variant}".encode())
            for number, (cut, leave) in enumerate(known.recording.disks(cuts, place / "durable"), first):
                disk = place / "disk.img"
                leave(disk)
                found = self.inspect(known, cut, disk, place, number % PULL_AGAIN_EVERY == 0)
                if found and self.keep:
                    leave(known.folder / f"violated-{cut}.img")
                report(cut, found)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def inspect(self, known, cut, image, place, pulls_again):
        found = Violations()
        try:
            with disks.loop_device(image) as device, disks.mounted(device, place / "mounted", known.file_system) as disk:
                program, containerd = scenarios.program(self.binary, place, disk, scenarios.named(known.scenario))
                checker = Checker(program, known, self.samples)
                if containerd:
                    checker = runtime.Checker(program, known, self.samples, containerd)
                found += checker.check(cut.position, pulls_again)
                found.check(outside.state(disk / "outside") == known.outside, "no file outside the store changed")
                wanted, neighbour = known.neighbour_bytes(cut.position), disk / "neighbour"
                size = neighbour.stat().st_size if neighbour.exists() else 0
                found.check(size >= wanted, "bed: a synced file keeps its bytes", f"{size} of {wanted}")
        except OSError as error:
            found.append(f"bed: the disk of the cut cannot be used: {error}")
        flaws = disks.FILE_SYSTEMS[known.file_system].is_sound(image)
        found.check(not flaws, "bed: the file system is sound", flaws)
        return found


def record_all(bed, address, chosen):
    recordings = []
    for scenario in scenarios.SCENARIOS:
        for variant in (ALONE, SHARED) if not chosen or scenario.name in chosen else ():
            known = bed.record(scenario, variant, address)
            flushes = len(known.recording.flushes(known.start, known.end))
            print(f"{scenario.name} {variant}: {known.end - known.start} entries, {flushes} flushes", file=sys.stderr)
            recordings.append(known)
    return recordings


def cut_all(bed, recordings, cuts):
    """Makes the cuts of each recording; returns the number of the recording, the cut and its violations."""

    def job(at, report):
        bed.cut(recordings[at], cuts[at], lambda cut, found: report(at, str(cut), found))

    return isolation.in_workers(bed.folder, job, len(recordings))


def summary(recordings, reports, recorded_in, took):
    cuts, violated = collections.Counter(), collections.Counter()
    for at, cut, found in reports:
        known = recordings[at]
        cuts[known.scenario] += 1
        violated[known.scenario] += bool(found)
        for violation in found:
            print(f"VIOLATED {known.scenario} {known.variant} {cut}: {violation}")
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
