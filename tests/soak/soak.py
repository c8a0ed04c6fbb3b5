#!/usr/bin/env python3
"""Runs a daemon for minutes amid pulls, removals, collections, restarts, kills, a full disk and a registry with faults.

Usage: soak.py IMAGELET [--minutes N] [--seed S] [--report FILE]

After each operation what was acknowledged has to be there; every minute each byte of the store is verified. At the end
memory, descriptors and threads of a daemon that lived through the first part have to be flat, and the bytes of the store that
belong to no image all the time. The operations come by seed. Needs root: the store is on an ext4 of its own, in namespaces
that end with this process.
"""

import argparse
import contextlib
import os
import pathlib
import random
import subprocess
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
# File systems, namespaces, sample images and the program are those of the power cuts.
sys.path.append(str(HERE.parent / "powercut"))
import disks  # noqa: E402
import isolation  # noqa: E402
import measures  # noqa: E402
import report  # noqa: E402
from faulty_registry import FaultyRegistry  # noqa: E402
from invariants import Checker  # noqa: E402
from model import Store, Violation  # noqa: E402
from program import Program  # noqa: E402
from samples import REPOSITORY, Samples  # noqa: E402

DISK = 192 << 20
VERIFY_SECONDS, SAMPLE_SECONDS = 60, 2
#: Left free on a full disk, and the operations until it is freed.
FREE_MAX, FULL_OPERATIONS = 1 << 20, 12
#: Share of pulls that may fail although the disk has room. The retries of a pull end nearly every fault.
FAILED_MAX = 0.01
#: The log of decisions has a bound of its own, which a soak of minutes has to reach.
DECISIONS_MAX = 1 << 20
SETTINGS = f"gc: {{enabled: false, decisions: {{maxBytes: {DECISIONS_MAX}}}}}\n"
#: Operations and how often each comes. What must stay flat in a daemon is measured while none of the storms comes.
STEADY = {"pull": 40, "remove": 12, "collect": 6, "pin": 6, "unpin": 6, "mount": 8, "unmount": 6, "move_tag": 4}
STORMS = {"restart": 2, "kill": 2, "fill": 1}
#: Share of the time without storms.
STEADY_SHARE = 0.6


class Soak:
    """One daemon and what is done to it."""

    def __init__(self, program, store, samples, chance, folder):
        self.program, self.store, self.chance, self.folder = program, store, chance, folder
        self.checker = Checker(program, types.SimpleNamespace(damages=[]), samples)
        self.steady, self.stormy, self.processes = [], [], contextlib.ExitStack()
        self.full_until, self.operations = 0, 0
        self.start()

    def start(self):
        self.process = self.processes.enter_context(self.program.daemon(is_killed=True))

    def restart(self):
        """Ends the daemon in good order."""
        self.program.stop(self.process)
        self.processes.close()
        self.start()
        self.store.count("restart", True)

    def kill(self):
        """Kills the daemon while it pulls."""
        tag = self.chance.choice(list(self.store.served))
        pull = [self.program.binary, "--endpoint", f"unix://{self.program.socket}", "pull", "-q", "--policy", "Always"]
        client = subprocess.Popen(
            [*map(str, pull), self.store.name(tag)],
            env=self.program.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        time.sleep(self.chance.random() * 0.3)
        self.process.kill()
        self.process.wait()
        # What it may have reached before the kill is read from the next list.
        client.wait()
        if client.returncode == 0:
            self.store.names[self.store.name(tag)] = self.store.served[tag].id
        self.processes.close()
        self.start()
        self.store.count("kill", True)

    def fill(self):
        """Fills the disk for some operations."""
        space = os.statvfs(self.program.store.parent)
        size = space.f_bavail * space.f_frsize - FREE_MAX
        if size > 0:
            with (self.program.store.parent / "ballast").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        self.store.is_full, self.full_until = True, self.operations + FULL_OPERATIONS
        self.store.count("fill", True)

    def empty(self):
        (self.program.store.parent / "ballast").unlink(missing_ok=True)
        self.store.is_full = False

    def run(self, seconds):
        """Operations until the time is over, at first without storms."""
        self.phase(seconds * STEADY_SHARE, STEADY, self.steady)
        self.phase(seconds * (1 - STEADY_SHARE), STEADY | STORMS, self.stormy)
        self.empty()
        self.store.check()
        self.store.verify()
        while self.store.mounted:
            self.store.unmount()
        self.program.stop(self.process)

    def phase(self, seconds, weights, samples):
        began = verified = sampled = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            name = self.chance.choices(list(weights), weights.values())[0]
            getattr(self if name in STORMS else self.store, name)()
            self.operations += 1
            if self.store.is_full and self.operations >= self.full_until:
                self.empty()
            rows = self.store.check()
            if now > verified + VERIFY_SECONDS:
                self.store.verify()
                verified = now
            if now > sampled + SAMPLE_SECONDS and not self.store.is_full:
                samples.append((now - began, self.sample(rows)))
                sampled = now

    def sample(self, rows):
        decisions = self.program.store / "state/decisions"
        if (size := sum(path.stat().st_size for path in decisions.iterdir())) > DECISIONS_MAX:
            raise Violation(f"the log of decisions has {size} bytes; the limit is {DECISIONS_MAX}")
        referenced = [*self.checker.referenced(rows), *self.checker.partial_blobs(), self.program.store / "mounts", decisions]
        return measures.sample(self.process.pid, self.program.store, referenced)

    def growing(self):
        """What is not flat: all series while the daemon lives on, and the store's rest amid the storms."""
        stormy = [(time, {"rest": values["rest"]}) for time, values in self.stormy]
        return [*measures.growing(self.steady).items(), *measures.growing(stormy, ["rest"]).items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagelet", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", default="soak")
    parser.add_argument("--report", type=pathlib.Path, default=pathlib.Path("soak.html"))
    arguments = parser.parse_args()
    isolation.enter()
    binary, place = arguments.imagelet.resolve(), arguments.report.resolve()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(isolation.workspace())
        disk = disks.FILE_SYSTEMS["ext4"]
        disk.format(folder / "disk", DISK)
        device = stack.enter_context(disks.loop_device(folder / "disk"))
        root = stack.enter_context(disks.mounted(device, folder / "mounted", disk.name))
        mounts = folder / "mounts"
        mounts.mkdir()
        samples, chance = Samples(folder / "registry"), random.Random(arguments.seed)
        registry = FaultyRegistry(folder / "registry", arguments.seed)
        program = Program(binary, folder, root / "store", f"store: {{directory: {root / 'store'}}}\n{SETTINGS}")
        store = Store(program, samples, registry.serve(), REPOSITORY, chance, mounts)
        soak, problems = Soak(program, store, samples, chance, folder), []
        stack.callback(soak.processes.close)
        try:
            soak.run(arguments.minutes * 60)
        except (Violation, disks.Failed) as error:
            problems.append(f"after {soak.operations} operations: {error}")
        texts = store.failed.pop("texts", [])
        pulls = store.counts.get("pull", 0)
        if len(texts) > max(1, FAILED_MAX * pulls):
            problems.append(f"{len(texts)} of {pulls} pulls failed although the disk had room: {texts[0]}")
        for name, grown in soak.growing():
            problems.append(f"{name} grows: {grown:.0f} over the measured time; flat is up to {measures.FLAT[name]}")
        title = f"{soak.operations} operations in {arguments.minutes:g} minutes, seed {arguments.seed}"
        tables = [("Operations", store.counts.items()), ("Refused or failed", store.failed.items())]
        tables.append(("Faults of the registry", registry.faults.items()))
        phases = [("Without storms", soak.steady), ("With restarts, kills and a full disk", soak.stormy)]
        place.write_text(report.page(title, phases, tables, problems))
        if problems:
            log = (folder / "serve.log").read_text()[-3000:]
            print(log, file=sys.stderr)
    print(f"{title}: {dict(store.counts)}; refused or failed {dict(store.failed)}; registry {registry.faults}; report {place}")
    for problem in problems:
        print(f"violated: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
