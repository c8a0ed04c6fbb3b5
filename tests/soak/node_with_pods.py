"""A node with pods: imagelet between their starter and containerd, amid pulls, collections, restarts and kills."""

import contextlib
import hashlib
import itertools
import json
import pathlib
import time
import types

import cri
import measures
import runtime
from model import MEGABYTE, Violation
from samples import Image, Layer

BUSYBOX = pathlib.Path("/bin/busybox")
COMMAND = ("/bin/sleep", "1000000")
PODS_MAX = 3
KILL_SECONDS_MAX = 0.3
PULLS_MAX = 5
READY_SECONDS = 60


def images():
    """The images of pods, and the one of their sandboxes."""
    base = Layer("pods", 4, [], {"bin/sleep": BUSYBOX.read_bytes()})
    pods = {f"pod-{number}": Image(f"pod-{number}", [base, Layer(f"pod-{number}", 6, [300_000])]) for number in range(4)}
    return pods, Image("pause", [base], COMMAND)


class Node:
    """A daemon before containerd, and the pods that run."""

    def __init__(self, program, containerd, samples, prefix, chance):
        self.program, self.containerd, self.samples, self.prefix, self.chance = program, containerd, samples, prefix, chance
        self.images, pause = images()
        for image in (*self.images.values(), pause):
            samples.publish(image)
        self.pause = f"{prefix}:{pause.name}"
        # Sandboxes by id, each with the image and the container of its pod.
        self.pods, self.names, self.numbers = {}, {}, itertools.count()
        self.counts, self.failed, self.texts = {}, {}, []
        self.steady, self.stormy = [], []
        self.runtime, self.daemon = contextlib.ExitStack(), contextlib.ExitStack()

    def start(self):
        self.runtime.enter_context(self.containerd.running())
        self.pull_pause()
        self.start_daemon()

    def pull_pause(self):
        """By containerd's own pull, which marks it; the registry may fail."""
        for attempt in range(PULLS_MAX):
            try:
                with cri.Connection(self.containerd.socket) as images:
                    self.names[self.pause] = images.pull(self.pause)
                    return
            except cri.CallFailed:
                if attempt + 1 == PULLS_MAX:
                    raise

    def start_daemon(self):
        self.process = self.daemon.enter_context(self.program.daemon(is_killed=True))
        self.wait_for_answers()

    def wait_for_answers(self):
        """containerd may have started again, and imagelet connects to it by itself."""
        end = time.monotonic() + READY_SECONDS
        while not cri.answers(self.program.socket):
            if time.monotonic() > end:
                raise Violation(f"the daemon before containerd does not answer for {READY_SECONDS} s")
            time.sleep(0.05)

    def close(self):
        self.daemon.close()
        for sandbox in list(self.pods):
            with contextlib.suppress(cri.CallFailed, OSError):
                self.end(sandbox)
        self.runtime.close()

    def count(self, operation, is_success):
        counts = self.counts if is_success else self.failed
        counts[operation] = counts.get(operation, 0) + 1

    def pull(self, tag):
        """Pulls as a kubelet does, again after a failure; answers the id or nothing."""
        for _ in range(PULLS_MAX):
            outcome = self.program.client("pull", "-q", "--policy", "Always", f"{self.prefix}:{tag}")
            self.count("import", outcome.is_success)
            if outcome.is_success:
                self.names[f"{self.prefix}:{tag}"] = identity = outcome.output.strip()
                return identity
            self.texts.append(outcome.errors.strip()[-300:])
        return None

    def run_pod(self):
        """A pod of any image starts, and another one ends where there are many."""
        if len(self.pods) == PODS_MAX:
            self.end_pod()
        image = self.images[self.chance.choice(sorted(self.images))]
        if (identity := self.pull(image.name)) is None:
            return
        if identity != image.id:
            raise Violation(f"the pull of {image.name} answers {identity}, not {image.id}")
        logs = self.containerd.folder / "logs"
        logs.mkdir(exist_ok=True)
        try:
            with cri.Connection(self.containerd.socket) as pods:
                sandbox, config = pods.run_sandbox(f"pod-{next(self.numbers)}", logs)
                self.pods[sandbox] = None
                container = pods.create_container((sandbox, config), image.id, COMMAND)
                pods.start_container(container)
        except cri.CallFailed as error:
            log = (self.containerd.folder / "containerd.log").read_text()[-1500:]
            raise Violation(f"a pod of a pulled image does not start: {error}: {log}") from None
        self.pods[sandbox] = (image, container)
        self.count("pod", True)

    def end_pod(self):
        """A pod ends; before it, a file of its container has the bytes that were packed."""
        if not self.pods:
            return
        sandbox = self.chance.choice(sorted(self.pods))
        image, container = self.pods[sandbox]
        root = self.containerd.folder / "state/io.containerd.runtime.v2.task/k8s.io" / container / "rootfs"
        file, expected = self.chance.choice([pair for layer in image.layers for pair in sorted(layer.files.items())])
        found = f"sha256:{hashlib.sha256((root / file).read_bytes()).hexdigest()}"
        if found != expected:
            raise Violation(f"`{file}` in a container of {image.name} has other bytes")
        self.end(sandbox)
        self.count("end of a pod", True)

    def end(self, sandbox):
        with cri.Connection(self.containerd.socket) as pods:
            pods.remove_sandbox(sandbox)
        del self.pods[sandbox]

    def collect(self):
        wanted = ("--all-unused",) if self.chance.random() < 0.5 else ("--free", str(self.chance.randrange(1, 4) * MEGABYTE))
        outcome = self.program.client("gc", *wanted, "-o", "json")
        if not outcome.output.strip():
            raise Violation(f"`gc` of the node reports nothing: {outcome.errors[-300:]}")
        self.count("gc before containerd", True)
        used = {image.id for image, _ in self.pods.values()}
        for image in json.loads(outcome.output)["images"]:
            if image["verdict"] in ("removed", "remove"):
                if image["id"] in used or image["id"] == self.names[self.pause]:
                    raise Violation(f"a collection removed the image of a pod or of sandboxes: {image}")
                self.names = {name: other for name, other in self.names.items() if other != image["id"]}

    def restart(self):
        """imagelet ends in good order while the pods run on."""
        self.program.stop(self.process)
        self.daemon.close()
        self.start_daemon()
        self.count("restart before containerd", True)

    def kill(self):
        """imagelet is killed amid an import."""
        tag = self.chance.choice(sorted(self.images))
        if self.program.killed_pull(self.process, f"{self.prefix}:{tag}", self.chance.random() * KILL_SECONDS_MAX):
            self.names[f"{self.prefix}:{tag}"] = self.images[tag].id
        self.daemon.close()
        self.start_daemon()
        self.count("kill before containerd", True)

    def restart_runtime(self):
        """containerd restarts; its pods run on, and imagelet connects again."""
        self.runtime.close()
        self.runtime.enter_context(self.containerd.running())
        self.wait_for_answers()
        self.count("restart of containerd", True)

    def check(self):
        """What has to hold between two operations."""
        shown = {key[1]: value for key, value in runtime.observe(self.program).items() if key[0] == "name"}
        for name, image in self.names.items():
            if shown.get(name) != image:
                raise Violation(f"the imported image `{name}` is {shown.get(name)}, not {image}")
        for image, _ in self.pods.values():
            if image.id not in shown.values():
                raise Violation(f"the image of the pod of {image.name} is not listed")
        self.names |= {name: image for name, image in shown.items() if name.startswith(self.prefix)}

    def sample(self):
        return measures.sample(self.process.pid, self.containerd.staging, [])

    def finish(self):
        """Every listed image is whole, and nothing of an import is left."""
        while self.pods:
            self.end_pod()
        self.check()
        checker = runtime.Checker(self.program, types.SimpleNamespace(damages=[]), self.samples, self.containerd)
        damages = [damage for image in set(self.names.values()) for damage in checker.damage(image)]
        if damages:
            raise Violation(f"containerd has damaged images: {damages[:5]}")
        if left := self.containerd.leftovers():
            raise Violation(f"leases or staged files of imports are left: {left}")
        self.program.stop(self.process)
