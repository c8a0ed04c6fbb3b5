#!/usr/bin/env python3
"""Pulls images of many gigabytes amid resets, restarts of the registry, kills of the daemon and a disk that has room for three.

Usage: large.py IMAGELET [--images N] [--gigabytes G] [--alone SECONDS] [--slower-max X] [--on-its-way MB] [--seed S] [--place DIR]

Each image is pulled alone, then each beside the next one: three pulls an image. The layers are made while they are sent. In each pull
the registry restarts once; in every other one the daemon is killed; both come at a random share of the bytes. A process beside
it writes and syncs small files, as pods do: first alone, then beside a busy loop on each core, then beside the pulls. Pulls keep all
cores busy, so the loops show what their writes add. Prints a table, and what is violated. Needs root, and DIR on a real disk.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
# File systems, namespaces and the program are those of the power cuts.
sys.path += [str(HERE.parent / "powercut"), str(HERE.parents[1] / "benches")]
import disks  # noqa: E402
import isolation  # noqa: E402
from made_image import MadeImage  # noqa: E402
from made_registry import MadeRegistry  # noqa: E402
from program import Program  # noqa: E402
from report import table  # noqa: E402

REPOSITORY = "soak/large"
GIGABYTE, MEGABYTE = 10**9, 10**6
#: The disk has room for so many images, and for a fraction of another one and for its own tables beside them.
ROOM, MARGIN, TABLES = 3, 0.2, 64 << 20
REFETCHED_MAX, RESIDENT_MAX = 0.03, 150 * MEGABYTE
STILL_SECONDS_MAX = 10
#: Images that were just pulled are removed as well where a pull needs space.
SETTINGS = "imageMinimumGCAge: 0s\nstore: {{directory: {store}}}\n"
PULL_SECONDS, VERIFY_SECONDS = 1800, 600
#: Between two syncs of the process beside the pulls.
SYNC_SECONDS = 0.05
TRIES_MAX = 3


class Pods:
    """A process that writes 4 KiB and syncs them, again and again, and notes when and how long it took."""

    def __init__(self, folder, notes):
        self.file, self.notes = folder / "pod", notes
        self.child = os.fork()
        if self.child == 0:
            try:
                self.work()
            finally:
                os._exit(1)  # Never into the code of the parent.

    def work(self):
        with self.notes.open("w") as notes, self.file.open("wb", buffering=0) as file:
            while True:  # It ends with the namespaces of this program.
                begun = time.monotonic()
                file.seek(0)
                file.write(bytes(4096))
                os.fsync(file.fileno())
                print(begun, time.monotonic() - begun, file=notes, flush=True)
                time.sleep(SYNC_SECONDS)

    def end(self):
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)

    def slowest(self, since, until):
        """The slowest of a hundred between two moments, in seconds."""
        rows = (map(float, line.split()) for line in self.notes.read_text().splitlines() if line.count(" ") == 1)
        took = sorted(seconds for begun, seconds in rows if since <= begun < until)
        return took[len(took) * 99 // 100] if took else until - since


def burn(seconds):
    """Keeps each core busy, without the disk."""
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop) for _ in range(os.cpu_count())]
    try:
        time.sleep(seconds)
    finally:
        for one in loops:
            one.kill()
            one.wait()


class Reports:
    """Follows the progress of all pulls of one daemon; notes reports that stand still without a reason, and ends."""

    def __init__(self, program, problems):
        self.problems, self.moved, self.last = problems, {}, {}
        command = [str(program.binary), "--endpoint", f"unix://{program.socket}", "events", "-f", "-o", "json"]
        self.process = subprocess.Popen(command, env=program.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.process.stdout:
            row = json.loads(line)
            if row["type"] == "progress":
                self.note(row)

    def note(self, row):
        now, image, received = time.monotonic(), row["image"], row["bytesReceived"]
        has_reason = row["waits"] or row.get("retry") or row["phase"] in ("waiting", "committing")
        at, before = self.moved.get(image, (now, None))
        if has_reason or received != before or row["phase"] in ("done", "failed", "given-up"):
            self.moved[image] = (now, received)
        elif now - at > STILL_SECONDS_MAX:
            self.problems.append(f"{image}: {received} bytes, `{row['phase']}`, for {now - at:.0f} s without a reason")
            self.moved[image] = (now, received)
        if row["phase"] == "done" and received != row["bytesTotal"]:
            self.problems.append(f"{image}: `done` at {received} of {row['bytesTotal']} bytes")

    def end(self):
        self.process.kill()
        self.process.wait()


class LargeSoak:
    """One daemon, its registry, and what is done to them."""

    def __init__(self, program, registry, images, chance):
        self.program, self.registry, self.images, self.chance = program, registry, images, chance
        self.problems, self.rows, self.processes, self.highest = [], [], contextlib.ExitStack(), 0
        self.start()

    def start(self):
        self.process = self.processes.enter_context(self.program.daemon(is_killed=True))
        self.reports = Reports(self.program, self.problems)
        self.processes.callback(self.reports.end)

    def resident(self, field="VmHWM"):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))

    def pull(self, names, is_killed):
        """Pulls these images at once; removes them first, so that each byte has to come."""
        images = [self.images(name) for name in names]
        for image in images:
            self.program.client("rm", self.named(image))
        size = sum(image.layer.size for image in images)
        begun, sent, refused = time.monotonic(), self.registry.sent(), dict(self.registry.faults())
        moments = [("restart", self.chance.uniform(0.05, 0.95))]
        moments += [("kill", self.chance.uniform(0.05, 0.98))] if is_killed else []
        done = [self.begin(image) for image in images]
        for what, share in sorted(moments, key=lambda moment: moment[1]):
            while self.registry.sent() - sent < share * size and any(one.poll() is None for one in done):
                time.sleep(0.02)
            if what == "restart":
                self.registry.restart(self.chance.uniform(0.5, 3))
                continue
            self.highest = max(self.highest, self.resident())
            self.process.kill()
            self.processes.close()
            for one in done:
                one.wait()
            self.start()
            done = [self.begin(image) for image in images]
        tries = self.end(images, done)
        self.highest = max(self.highest, self.resident())
        took, fetched = time.monotonic() - begun, self.registry.sent() - sent
        self.rows.append({
            "pull": " and ".join(names),
            "share": {what: share for what, share in moments},
            "took": took,
            "size": size,
            "again": fetched - size,
            "tries": tries,
            "faults": sum(self.registry.faults().values()) - sum(refused.values()),
        })
        if fetched < 0.9 * size:
            self.problems.append(f"{' and '.join(names)}: {fetched} of {size} bytes were sent")
        self.verify(images)
        print(f"{self.line(self.rows[-1])}; {self.highest / MEGABYTE:.0f} MB resident at most", flush=True)

    def named(self, image):
        return f"{self.registry.address}/{REPOSITORY}:{image.name}"

    def begin(self, image):
        command = [str(self.program.binary), "--endpoint", f"unix://{self.program.socket}", "pull", "-q", self.named(image)]
        return subprocess.Popen(command, env=self.program.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self, images, done):
        """Waits for the pulls; one that failed is repeated, as a kubelet does. Returns the tries of the slowest."""
        tries = 1
        for image, one in zip(images, done, strict=True):
            for number in range(1, TRIES_MAX + 1):
                text = one.communicate(timeout=PULL_SECONDS)[0]
                if one.returncode == 0:
                    break
                print(f"note: {image.name}: {text.strip()[-300:]}", flush=True)
                if number == TRIES_MAX:
                    raise disks.Failed(f"{image.name} failed {TRIES_MAX} times: {text.strip()[-300:]}")
                time.sleep(1)
                one = self.begin(image)
            tries = max(tries, number)
        return tries

    def verify(self, images):
        for image in images:
            outcome = self.program.client("verify", self.named(image), seconds=VERIFY_SECONDS)
            if not outcome.is_success:
                self.problems.append(f"{image.name} is not whole: {(outcome.output + outcome.errors).strip()[-300:]}")

    @staticmethod
    def line(row):
        moments = ", ".join(f"{what} at {share:.0%}" for what, share in row["share"].items())
        again = f"{row['again'] / MEGABYTE:.1f} MB again ({row['again'] / row['size']:.2%})"
        return f"{row['pull']}: {row['size'] / GIGABYTE:.1f} GB in {row['took']:.0f} s, {again}; {moments}"

    def judge(self, alone, busy, beside, idle, slower_max, on_its_way):
        """The table of the pulls; what is violated is in `problems`."""
        rows = [
            [row["pull"], f"{row['took']:.0f}", f"{row['size'] / GIGABYTE:.2f}", f"{row['again'] / MEGABYTE:.1f}",
             *(f"{row['share'][what]:.0%}" if what in row["share"] else "-" for what in ("restart", "kill")),
             str(row["faults"]), str(row["tries"])]
            for row in self.rows
        ]
        table("large images", ["pull", "s", "GB packed", "MB again", "registry restarted at", "killed at", "faults", "tries"], rows)
        size, again = (sum(row[key] for row in self.rows) for key in ("size", "again"))
        if not self.rows:
            return
        print(f"fetched again: {again / size:.2%} of {size / GIGABYTE:.0f} GB; at most {REFETCHED_MAX:.0%}, and {on_its_way} MB a break")
        print(f"resident at most {self.highest / MEGABYTE:.0f} MB, {idle / MEGABYTE:.0f} MB when idle; at most {RESIDENT_MAX // MEGABYTE} MB")
        others = f"alone {1000 * alone:.1f} ms, beside busy loops {1000 * busy:.1f} ms"
        print(f"slowest sync of a hundred beside it: {1000 * beside:.1f} ms; {others}; at most x {slower_max:g} of alone")
        breaks = sum(len(row["share"]) for row in self.rows)
        if again > REFETCHED_MAX * size + on_its_way * MEGABYTE * breaks:
            self.problems.append("too many bytes were fetched again")
        if self.highest > RESIDENT_MAX:
            self.problems.append("too much memory is resident")
        if beside > slower_max * alone:
            self.problems.append("syncs beside the pulls are too slow")


def kept(size):
    """Makes an image when it is first asked for; the seeds are its name."""
    made = {}

    def image(name):
        if name not in made:
            made[name] = MadeImage(name, size)
        return made[name]

    return image


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("imagelet", type=pathlib.Path)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--gigabytes", type=float, default=12)
    parser.add_argument("--alone", type=float, default=20, help="seconds in which the syncs are measured without pulls, and again beside busy loops")
    parser.add_argument("--slower-max", type=float, default=2, help="how much slower the slowest sync of a hundred may be beside pulls")
    parser.add_argument("--on-its-way", type=int, default=0, help="megabytes that each kill and restart may cost beside; matters for small images")
    parser.add_argument("--seed", default="soak")
    parser.add_argument("--place", type=pathlib.Path, default=pathlib.Path("/var/tmp"))
    arguments = parser.parse_args()
    isolation.enter()
    binary, size = arguments.imagelet.resolve(), round(arguments.gigabytes * GIGABYTE)
    names, problems = [f"image-{number}" for number in range(arguments.images)], []
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(isolation.workspace())
        backing = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.place))) / "disk"
        disks.run("truncate", "-s", str(round((ROOM + MARGIN) * size) + TABLES), str(backing))
        disks.run("mkfs.ext4", "-q", "-F", "-m", "0", str(backing))
        device = stack.enter_context(disks.loop_device(backing, direct=True))
        root = stack.enter_context(disks.mounted(device, folder / "mounted", "ext4"))
        # Before there are sockets that it would inherit.
        pods = Pods(root, folder / "syncs")
        stack.callback(pods.end)
        registry = MadeRegistry(folder / "registry", arguments.seed, REPOSITORY)
        program = Program(binary, folder, root / "store", SETTINGS.format(store=root / "store"))
        make = kept(size)

        def image(name):
            found = make(name)
            registry.publish(found)
            return found

        soak = LargeSoak(program, registry, image, random.Random(arguments.seed))
        problems = soak.problems
        stack.callback(soak.processes.close)
        idle, alone = soak.resident("VmRSS"), time.monotonic()
        time.sleep(arguments.alone)
        loops = time.monotonic()
        burn(arguments.alone)
        begun = time.monotonic()
        rounds = [[name] for name in names] + [[one, other] for one, other in zip(names, [*names[1:], names[0]], strict=True)]
        try:
            for number, together in enumerate(rounds):
                soak.pull(together, is_killed=number % 2 == 1)
        except (disks.Failed, OSError, subprocess.TimeoutExpired) as error:
            problems.append(f"{type(error).__name__}: {error}")
            print((folder / "serve.log").read_text()[-3000:], file=sys.stderr)
        syncs = pods.slowest(alone, loops), pods.slowest(loops, begun), pods.slowest(begun, time.monotonic())
        soak.judge(*syncs, idle, arguments.slower_max, arguments.on_its_way)
    for problem in problems:
        print(f"violated: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
