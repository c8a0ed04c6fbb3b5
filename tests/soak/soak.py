#!/usr/bin/env python3
"""Runs two daemons for minutes amid pulls, removals, collections, restarts, kills, a full disk, clock steps and a registry with faults.

Usage: soak.py IMAGELET [--minutes N] [--seed S] [--report FILE]

One daemon has a store of its own; the other one stands before containerd, which runs pods. After each operation what was
acknowledged has to be there; every minute each byte of the store is verified. At the end memory, descriptors and threads of
the daemons that lived through the first part have to be flat, and all the time the bytes of the store that belong to no image.
The operations come by seed. Needs root: each daemon is on an ext4 of its own, in namespaces that end with this process.
"""

import argparse
import contextlib
import os
import pathlib
import random
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
# File systems, namespaces, sample images and the program are those of the power cuts.
sys.path += [str(HERE.parent / "powercut"), str(HERE.parents[1] / "benches")]
import cri  # noqa: E402
import disks  # noqa: E402
import isolation  # noqa: E402
import measures  # noqa: E402
import report  # noqa: E402
import runtime  # noqa: E402
from clock import Clock  # noqa: E402
from faulty_registry import FaultyRegistry  # noqa: E402
from invariants import Checker  # noqa: E402
from model import Store, Violation  # noqa: E402
from node_with_pods import Node  # noqa: E402
from program import Program  # noqa: E402
from samples import REPOSITORY, Samples  # noqa: E402

DISK, NODE_DISK = 192 << 20, 384 << 20
VERIFY_SECONDS, SAMPLE_SECONDS = 60, 2
KILL_SECONDS_MAX = 0.3
#: Left free on a full disk, and the operations until it is freed.
FREE_MAX, FULL_OPERATIONS = 1 << 20, 12
#: Share of pulls that may fail although the disk has room. The retries of a pull end nearly every fault.
FAILED_MAX = 0.01
#: The log of decisions has a bound of its own, which a soak of minutes has to reach.
DECISIONS_MAX = 1 << 20
SETTINGS = f"gc: {{enabled: false, decisions: {{maxBytes: {DECISIONS_MAX}}}}}\n"
#: Operations and how often each comes. What must stay flat in a daemon is measured while none of the storms comes.
STEADY = {"store.pull": 40, "store.remove": 12, "store.collect": 6, "store.pin": 6, "store.unpin": 6, "store.mount": 8}
STEADY |= {"store.unmount": 6, "store.move_tag": 4, "node.run_pod": 8, "node.end_pod": 4, "node.collect": 4}
STORMS = {"soak.restart": 2, "soak.kill": 2, "soak.fill": 1, "soak.step_clock": 2}
STORMS |= {"node.restart": 1, "node.kill": 1, "node.restart_runtime": 1}
#: A call that fails, an answer that does not parse, or a file or image that is missing: an invariant does not hold, either.
BROKEN = (AssertionError, OSError, LookupError, ValueError, cri.CallFailed)
#: Share of the time without storms.
STEADY_SHARE = 0.6


class Soak:
    """Two daemons and what is done to them."""

    def __init__(self, program, store, samples, node, clock, chance):
        self.program, self.store, self.node, self.clock, self.chance = program, store, node, clock, chance
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
        # What it may have reached before the kill is read from the next list.
        if self.program.killed_pull(self.process, self.store.name(tag), self.chance.random() * KILL_SECONDS_MAX):
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

    def step_clock(self):
        if self.clock.sees_steps:
            self.clock.step()
            self.store.count("step of the clock", True)

    def empty(self):
        (self.program.store.parent / "ballast").unlink(missing_ok=True)
        self.store.is_full = False

    def run(self, seconds):
        """Operations until the time is over, at first without storms."""
        self.node.start()
        self.node.run_pod()
        self.phase(seconds * STEADY_SHARE, STEADY, self.steady)
        self.step_clock()
        self.phase(seconds * (1 - STEADY_SHARE), STEADY | STORMS, self.stormy, STORMS)
        self.empty()
        self.store.check()
        self.store.verify()
        while self.store.mounted:
            self.store.unmount()
        self.program.stop(self.process)
        self.node.finish()

    def phase(self, seconds, weights, samples, once=()):
        """Operations by chance; those of `once` also come first, by turns with others."""
        began = verified = sampled = time.monotonic()
        pending = self.chance.sample(list(once), len(once))
        while (now := time.monotonic()) < began + seconds or pending:
            is_due = pending and self.operations % 2
            name = pending.pop() if is_due else self.chance.choices(list(weights), weights.values())[0]
            owner, _, operation = name.partition(".")
            getattr({"soak": self, "store": self.store, "node": self.node}[owner], operation)()
            self.operations += 1
            if self.store.is_full and self.operations >= self.full_until:
                self.empty()
            rows = self.store.check()
            self.node.check()
            if now > verified + VERIFY_SECONDS:
                self.store.verify()
                verified = now
            if now > sampled + SAMPLE_SECONDS and not self.store.is_full:
                samples.append((now - began, self.sample(rows)))
                (self.node.steady if samples is self.steady else self.node.stormy).append((now - began, self.node.sample()))
                sampled = now

    def sample(self, rows):
        for program in (self.program, self.node.program):
            decisions = program.state / "decisions"
            if decisions.is_dir() and (size := sum(path.stat().st_size for path in decisions.iterdir())) > DECISIONS_MAX:
                raise Violation(f"the log of decisions has {size} bytes; the limit is {DECISIONS_MAX}")
        referenced = [*self.checker.referenced(rows), self.program.store / "mounts", self.program.state / "decisions"]
        return measures.sample(self.process.pid, self.program.store, referenced)

    def growing(self):
        """What is not flat: all series while the daemons live on, and what no image needs amid the storms."""
        for who, one in (("of the daemon with a store", self), ("of the daemon before containerd", self.node)):
            grown = measures.growing(one.steady) | measures.growing(one.stormy, ["rest"])
            yield from ((f"{name} {who}", growth, measures.FLAT[name]) for name, growth in grown.items())


def node_over(binary, folder, root, samples, prefix, chance):
    """A node whose containerd and daemon have their folders there."""
    home, store = folder / "node", root / "imagelet"
    home.mkdir()
    containerd = runtime.Containerd(root / "containerd", home / "containerd", f"{prefix}:pause")
    settings = runtime.SETTINGS.format(socket=containerd.socket) + f"store: {{directory: {store}}}\n{SETTINGS}"
    program = Program(binary, home, store, settings, state=runtime.state_of(containerd.socket))
    return Node(program, containerd, samples, prefix, chance)


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
        disk.format(folder / "node-disk", NODE_DISK)
        device = stack.enter_context(disks.loop_device(folder / "node-disk"))
        node_root = stack.enter_context(disks.mounted(device, folder / "node-mounted", disk.name))
        samples, chance = Samples(folder / "registry"), random.Random(arguments.seed)
        registry = FaultyRegistry(folder / "registry", arguments.seed)
        address, clock = registry.serve(), Clock(binary, folder, chance)
        program = Program(binary, folder, root / "store", f"store: {{directory: {root / 'store'}}}\n{SETTINGS}")
        program.environment |= clock.environment
        store = Store(program, samples, address, REPOSITORY, chance, mounts)
        node = node_over(binary, folder, node_root, samples, f"{address}/{REPOSITORY}", chance)
        node.program.environment |= clock.environment_beside_containerd
        stack.callback(node.close)
        soak, problems = Soak(program, store, samples, node, clock, chance), []
        stack.callback(soak.processes.close)
        try:
            soak.run(arguments.minutes * 60)
        except (Violation, disks.Failed, *BROKEN) as error:
            problems.append(f"after {soak.operations} operations: {type(error).__name__}: {error}")
        texts = store.failed.pop("texts", [])
        texts += node.texts
        pulls = store.counts.get("pull", 0) + node.counts.get("import", 0)
        if len(texts) > max(1, FAILED_MAX * pulls):
            problems.append(f"{len(texts)} of {pulls} pulls failed although the disk had room: {texts[0]}")
        for name, grown, flat in soak.growing():
            problems.append(f"{name} grows: {grown:.0f} over the measured time; flat is up to {flat}")
        title = f"{soak.operations} operations in {arguments.minutes:g} minutes, seed {arguments.seed}"
        counts, failed = store.counts | node.counts, store.failed | node.failed
        tables = [("Operations", counts.items()), ("Refused or failed", failed.items())]
        tables.append(("Faults of the registry", registry.faults.items()))
        storms = "with restarts, kills, a full disk and clock steps" if clock.sees_steps else "with restarts, kills and a full disk"
        phases = [("The store, without storms", soak.steady), (f"The store, {storms}", soak.stormy)]
        phases += [("The node with pods, without storms", node.steady), (f"The node with pods, {storms}", node.stormy)]
        place.write_text(report.page(title, phases, tables, problems))
        if problems:
            for log in (folder / "serve.log", folder / "node/serve.log", folder / "node/containerd/containerd.log"):
                print(f"{log.name}: {log.read_text()[-3000:] if log.exists() else 'none'}", file=sys.stderr)
    if not clock.sees_steps:
        print("no step of the clock: the program is static, or libfaketime is not installed")
    print(f"{title}: {counts}; refused or failed {failed}; registry {registry.faults}; report {place}")
    for problem in problems:
        print(f"violated: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
