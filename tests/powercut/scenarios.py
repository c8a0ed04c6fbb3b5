"""The scenarios: what is done to a store while its disk is recorded."""

import contextlib
import os
import pathlib
import threading
import time

import disks
import acknowledged
import runtime
from program import Program
from samples import REPOSITORY

SYNC_SECONDS = 30
#: Longer than the least age of a collected image.
AGE_SECONDS = 1.2
NEIGHBOUR_SECONDS = 0.03
COMMIT, BACKGROUND = "commit", "background"
#: Settings of all scenarios: nothing is collected but on request.
SETTINGS = "gc: {enabled: false}\nregistryPullQPS: 0\nimageMinimumGCAge: 1s\n"


class Scenario:
    """A story, and the settings of the store that it happens to."""

    def __init__(self, name, story, durability=COMMIT, keeps_blobs=False, settings="", has_runtime=False):
        keeps = "true" if keeps_blobs else "false"
        self.name, self.story, self.has_runtime = name, story, has_runtime
        self.others = f"{SETTINGS}{settings}"
        self.of_store = f"durability: {durability}, keepBlobs: {keeps}"

    def settings(self, directory):
        return f"{self.others}store: {{directory: '{directory}', {self.of_store}}}\n"


class Actor:
    """Does the steps of a story and notes what each acknowledged."""

    def __init__(self, program, samples, address, length, has_runtime=False):
        self.program, self.samples, self.address, self.length = program, samples, address, length
        self.has_runtime = has_runtime
        self.observed_at = length()
        self.facts, self.marks, self.damages = acknowledged.Histories(), [], []
        self.in_daemon = False

    def reference(self, tag):
        return f"{self.address}/{REPOSITORY}:{tag}"

    def step(self, *arguments, promises=True, expected=0, makes_durable=False):
        """Runs a command, and observes the store after it."""
        begin = self.length()
        run = self.program.client if self.in_daemon else self.program.command
        outcome = run(*arguments)
        end = self.length()
        if expected is not None and outcome.status != expected:
            raise disks.Failed(f"`{' '.join(map(str, arguments))}` exits {outcome.status}: {outcome.errors[-1000:]}")
        self.note(begin, end, promises)
        if makes_durable:
            self.facts.promise_all(end, with_late=not self.in_daemon)
        return outcome

    def note(self, begin, end, promises=True):
        self.marks.append(end)
        if not self.has_runtime:
            now = acknowledged.observe(self.program)
        elif self.in_daemon:
            now = runtime.observe(self.program) | acknowledged.on_disk(self.program.state)
        else:
            return
        # A daemon writes between steps, too: what is new may be as old as the last look.
        begin, self.observed_at = min(begin, self.observed_at), end
        self.facts.observe(now, begin, end if promises else None, end if promises and not self.in_daemon else None)

    def interrupt(self, seconds, *arguments):
        """Kills a command: it acknowledges nothing, and the kernel keeps what it had written."""
        begin = self.length()
        self.program.killed(seconds, *arguments)
        self.note(begin, self.length(), promises=False)

    @contextlib.contextmanager
    def daemon(self, is_killed=False):
        """Steps inside ask a daemon; its orderly end makes everything durable."""
        with self.program.daemon(is_killed):
            self.in_daemon = True
            try:
                yield
            finally:
                self.in_daemon = False
            begin = self.length()
        end = self.length()
        self.note(begin, end, promises=not is_killed)
        if not is_killed:
            self.facts.promise_all(end, with_late=True)

    @contextlib.contextmanager
    def another_boot(self):
        """Steps inside see another boot, as after a power cut that took nothing from the disk."""
        disks.another_boot(self.program.folder)
        try:
            yield
        finally:
            disks.unmount(disks.BOOT_ID)

    def wait_for_sync(self):
        """Waits until the daemon has synced in the background."""
        begin, end = self.length(), time.monotonic() + SYNC_SECONDS
        while (self.program.store / "names.unsettled.json").exists():
            if time.monotonic() > end:
                raise disks.Failed(f"the daemon has not synced within {SYNC_SECONDS} s")
            time.sleep(0.05)
        end = self.length()
        self.note(begin, end)
        self.facts.promise_all(end, with_late=False)

    def pull(self, tag, **options):
        return self.step("pull", "-q", "--policy", "Always", self.reference(tag), **options)


def pull(actor):
    actor.pull("one")
    actor.pull("two")
    actor.samples.tag("moving", actor.samples.images["one"])
    actor.pull("moving")
    actor.samples.tag("moving", actor.samples.images["four"])
    actor.pull("moving")
    actor.pull("three")


def pull_in_background(actor):
    with actor.daemon():
        actor.pull("one", promises=False)
        actor.pull("two", promises=False)
        actor.wait_for_sync()
        actor.samples.tag("moving", actor.samples.images["one"])
        actor.pull("moving", promises=False)
        actor.samples.tag("moving", actor.samples.images["four"])
        actor.pull("moving", promises=False)
        # A removal makes everything durable first.
        actor.step("rm", actor.reference("two"), makes_durable=True)
        actor.pull("three", promises=False)
        actor.pull("two", promises=False)


def remove(actor):
    for tag in ("one", "two", "three"):
        actor.pull(tag)
    actor.samples.tag("moving", actor.samples.images["three"])
    actor.pull("moving")
    actor.step("untag", actor.reference("moving"))
    actor.step("rm", actor.reference("one"))
    actor.step("untag", actor.reference("three"))
    actor.pull("one")
    actor.step("rm", actor.reference("two"), actor.reference("one"))


def collect(actor):
    for tag in ("one", "two", "three", "four"):
        actor.pull(tag)
    actor.step("pin", actor.reference("three"))
    time.sleep(AGE_SECONDS)
    actor.step("gc", "--free", "300k")
    actor.pull("one")
    actor.step("gc", "--all-unused", "--now")
    actor.step("unpin", actor.reference("three"))
    actor.step("gc", "--all-unused", "--now")


def import_archives(actor):
    for name in ("three", "four"):
        actor.samples.archive(actor.program.folder / f"{name}.tar", actor.samples.images[name])
    actor.step("import", "-q", "--pin", actor.program.folder / "three.tar")
    actor.step("import", "-q", actor.program.folder / "four.tar")
    actor.step("rm", "registry.example/four:v1")
    actor.step("import", "-q", "--name", "registry.example/four:again", actor.program.folder / "four.tar")


def repair(actor):
    actor.pull("one")
    actor.pull("three")
    for change in (flip, delete):
        begin = actor.length()
        change(actor.program.store, actor.samples.images["one"])
        os.sync()
        # Found, marked, and no longer listed.
        actor.step("verify", expected=None)
        actor.step("verify", "--repair")
        actor.damages.append((actor.samples.images["one"].id, begin, actor.length()))


def state(actor):
    """Everything that a daemon keeps: pull records, pins, leases, resolved names, ledger, decisions."""
    pod = actor.program.folder / "pod.yaml"
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: n}\nspec:\n  containers:\n"
    pod.write_text(text + "".join(f"  - {{name: {tag}, image: '{actor.reference(tag)}'}}\n" for tag in ("one", "two")))
    with actor.daemon():
        actor.pull("one")
        actor.step("pin", f"{actor.address}/{REPOSITORY}*")
        actor.step("ensure", "-q", "-f", pod)
        actor.pull("four")
        actor.step("rm", actor.reference("four"))
        actor.step("pin", "registry.example/base/*")
        actor.step("unpin", f"{actor.address}/{REPOSITORY}*")
    actor.step("pin", actor.reference("two"))
    actor.step("unpin", "registry.example/base/*")
    with actor.daemon():
        actor.pull("three")
        actor.step("gc", "--all-unused", "--now")


def restart(actor):
    """Kills, and starts that clean up after them: the power goes while they do."""
    actor.pull("one")
    for number, tag in enumerate(("two", "three", "four")):
        reference = actor.reference(tag)
        actor.interrupt(0.02 + 0.02 * number, "pull", "-q", reference)
        actor.step("pin", "registry.example/nothing")
        actor.step("unpin", "registry.example/nothing")
        actor.interrupt(0.03, "pull", "-q", reference)
        actor.pull(tag)
    actor.interrupt(0.015, "rm", actor.reference("two"))
    actor.interrupt(0.02, "gc", "--all-unused", "--now")
    with actor.daemon():
        actor.pull("two")


def restart_in_background(actor):
    with actor.daemon(is_killed=True):
        actor.pull("one", promises=False)
    with actor.daemon(is_killed=True):
        actor.wait_for_sync()
        actor.pull("two", promises=False)
        actor.pull("three", promises=False)
    # The next owner finds the marks of its own boot and makes their content durable before it removes anything.
    actor.step("rm", actor.reference("three"), makes_durable=True)
    with actor.daemon():
        actor.pull("four", promises=False)
        actor.pull("three", promises=False)


def reboot(actor):
    """What is only valid for the boot that ended is dropped: the power goes once more while it is."""
    with actor.daemon():
        actor.pull("one", promises=False)
    with actor.daemon(is_killed=True):
        actor.samples.tag("moving", actor.samples.images["four"])
        actor.pull("moving", promises=False)
        actor.wait_for_sync()
        actor.samples.tag("moving", actor.samples.images["two"])
        actor.pull("moving", promises=False)
        actor.pull("three", promises=False)
    with actor.another_boot():
        actor.step("pin", "registry.example/nothing")
        with actor.daemon():
            actor.pull("three", promises=False)
        actor.step("rm", actor.reference("one"))


def import_into_runtime(actor):
    """Pulls before a containerd, which the bed runs."""
    with actor.daemon():
        actor.pull("one")
        actor.pull("two")
        actor.samples.tag("moving", actor.samples.images["three"])
        actor.pull("moving")
        actor.step("rm", actor.reference("two"))
        actor.pull("four")
        actor.pull("two")
    kinds = {kind for kind, _ in actor.facts.changes}
    if not {"name", "image", "record", "decision"} <= kinds:
        raise disks.Failed(f"only {sorted(kinds)} are known of what was imported")


def flip(store, image):
    """Changes a byte of a file of an image."""
    path = next(path for path in sorted(layer_tree(store, image).rglob("large-0")))
    with path.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


def delete(store, image):
    next(path for path in sorted(layer_tree(store, image).rglob("small-1"))).unlink()


def layer_tree(store, image):
    return pathlib.Path(store) / "layers" / image.layers[-1].diff_id.removeprefix("sha256:") / "fs"


SCENARIOS = (
    Scenario("pull", pull),
    Scenario("pull-keep", pull, keeps_blobs=True),
    Scenario("background", pull_in_background, BACKGROUND),
    Scenario("background-keep", pull_in_background, BACKGROUND, keeps_blobs=True),
    Scenario("remove", remove),
    Scenario("collect", collect),
    Scenario("import", import_archives),
    Scenario("repair", repair),
    Scenario("state", state, settings="staleOnOutage: {enabled: true}\n"),
    Scenario("runtime", import_into_runtime, has_runtime=True),
    Scenario("runtime-keep", import_into_runtime, keeps_blobs=True, has_runtime=True),
    Scenario("restart", restart),
    Scenario("restart-keep", restart, keeps_blobs=True),
    Scenario("restart-background", restart_in_background, BACKGROUND),
    Scenario("reboot", reboot, BACKGROUND),
    Scenario("reboot-keep", reboot, BACKGROUND, keeps_blobs=True),
)


class Neighbour:
    """Another program on the same disk: it syncs a file of its own again and again, so that the journal commits often."""

    def __init__(self, folder, length):
        self.path, self.length = pathlib.Path(folder) / "neighbour", length
        #: Length of the log, and how many bytes were durable by then.
        self.synced = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.write, daemon=True)

    def write(self):
        descriptor = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        size = 0
        while not self.ended.wait(NEIGHBOUR_SECONDS):
            size += os.write(descriptor, b"neighbour\n" * 20)
            os.fsync(descriptor)
            self.synced.append((self.length(), size))
        os.close(descriptor)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def named(name):
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def program(binary, folder, disk, scenario, injection=lambda _: ()):
    """The program on the store of a disk, and its containerd or `None`."""
    store, containerd, state = disk / "home/store", None, "state"
    settings = scenario.settings(store)
    if scenario.has_runtime:
        containerd = runtime.Containerd(disk / "containerd", folder / "containerd")
        settings += runtime.SETTINGS.format(socket=containerd.socket)
        state = runtime.state_of(containerd.socket)
        for recorded in (store / "runtimes").glob("*"):
            # The folder is named after the socket, which had another path while the disk was recorded.
            recorded.rename(store / state)
    return Program(binary, folder, store, settings, injection(store), state), containerd
