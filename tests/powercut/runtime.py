"""A containerd whose root is on the recorded disk, into which imagelet imports what it pulls."""

import contextlib
import hashlib
import json
import pathlib
import subprocess
import time

import acknowledged
import invariants
from disks import Failed, run
from invariants import CLEAN_SECONDS, Violations
from samples import REPOSITORY, hexadecimal

START_SECONDS = 60
NAMESPACE = ("-n", "k8s.io")
SETTINGS = """imageService: {{cri: {{endpoint: 'unix://{socket}'}}}}
runtimeImport: require
"""
CONFIG = """version = 2
root = "{root}"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
"""
#: Where no sandbox is started.
NO_PAUSE = "registry.example/pause:v1"


class Containerd:
    """containerd over a root; its socket and log are in a folder of their own. Sandboxes are started from `pause`."""

    def __init__(self, root, folder, pause=NO_PAUSE):
        self.root, self.folder, self.pause = pathlib.Path(root), pathlib.Path(folder), pause
        self.socket = self.folder / "containerd.sock"

    @contextlib.contextmanager
    def running(self):
        self.folder.mkdir(exist_ok=True)
        config, log = self.folder / "config.toml", self.folder / "containerd.log"
        config.write_text(CONFIG.format(root=self.root, folder=self.folder, pause=self.pause))
        self.socket.unlink(missing_ok=True)
        with log.open("w") as output:
            process = subprocess.Popen(("containerd", "-c", config), stdout=output, stderr=output)
        try:
            end = time.monotonic() + START_SECONDS
            while "containerd successfully booted" not in log.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    raise Failed(f"containerd does not start: {log.read_text()[-1000:]}")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()

    def ctr(self, *arguments):
        return run("ctr", "-a", str(self.socket), *NAMESPACE, *arguments)

    def layers(self, chain):
        """The folders of a snapshot and of its parents, the lowest first."""
        key = f"look-{time.monotonic_ns()}"
        mounts = json.loads(self.ctr("snapshots", "view", "--mounts", key, chain))
        with contextlib.suppress(Failed):
            # containerd may have collected it already: nothing refers to it.
            self.ctr("snapshots", "rm", key)
        lower = [option.partition("=")[2] for option in mounts[0]["Options"] if option.startswith("lowerdir=")]
        folders = lower[0].split(":") if lower else [mounts[0]["Source"]]
        return [pathlib.Path(folder) for folder in reversed(folders)]

    def content(self, digest):
        command = ("ctr", "-a", str(self.socket), *NAMESPACE, "content", "get", digest)
        return subprocess.run(command, capture_output=True, check=False).stdout

    @property
    def staging(self):
        """Where imagelet unpacks what it imports."""
        return self.root / "imagelet-staging"

    def leftovers(self):
        """Leases and staged files that no import needs any more."""
        leases = [line.split()[0] for line in self.ctr("leases", "ls").splitlines()[1:] if line.startswith("imagelet-")]
        return leases + [str(path) for folder in ("tmp", "layers", "trash") for path in self.staging.glob(f"{folder}/*")]


def state_of(socket):
    """Where a store has the state of the runtime behind a socket."""
    return f"runtimes/{hashlib.sha256(str(socket).encode()).hexdigest()[:16]}"


def chain(image):
    """The name of the snapshot of an image's top layer."""
    name = image.layers[0].diff_id
    for layer in image.layers[1:]:
        name = f"sha256:{hashlib.sha256(f'{name} {layer.diff_id}'.encode()).hexdigest()}"
    return name


def ask(program, *arguments):
    """Runs a command that asks the daemon, again while its containerd starts: that answers before its CRI plug-in does."""
    end = time.monotonic() + START_SECONDS
    outcome = program.client(*arguments)
    while "server is not initialized yet" in outcome.errors and time.monotonic() < end:
        time.sleep(0.1)
        outcome = program.client(*arguments)
    return outcome


def observe(program):
    """The facts that a daemon before containerd shows."""
    listing = json.loads(acknowledged.require(ask(program, "ls", "--all", "-o", "json")))
    found = {("name", name): row["id"] for row in listing["images"] for name in row["names"]}
    return found | {("image", row["id"]): True for row in listing["images"]}


class Checker(invariants.Checker):
    """Checks imagelet and the containerd that it imports into after a cut."""

    def __init__(self, program, known, samples, containerd):
        super().__init__(program, known, samples)
        self.containerd = containerd

    def check(self, position, pulls_again):
        found = Violations()
        try:
            self.check_state_files(position, found)
            with self.containerd.running(), self.program.daemon():
                used = ask(self.program, "df")
                found.check(used.is_success, f"`df` of the daemon works: {used.errors}")
                self.check_shown(position, found)
                self.check_clean(found)
                if pulls_again:
                    self.check_pull(found)
        except (AssertionError, Failed, ValueError, KeyError) as error:
            found.append(f"a start works: {error}")
        self.check_quarantine(found)
        return found

    def check_clean(self, found):
        """Soon after the first pull, whatever becomes of it, nothing of an import is left."""
        self.program.client("pull", "-q", f"{self.known.address}/{REPOSITORY}:absent")
        end = time.monotonic() + CLEAN_SECONDS
        while (left := self.containerd.leftovers()) and time.monotonic() < end:
            time.sleep(0.1)
        found.check(not left, "nothing of an import is left", str(left))

    def check_shown(self, position, found):
        shown = observe(self.program)
        self.check_facts(shown, position, found, "after the start")
        for kind, identifier in shown:
            if kind == "image":
                found += [f"a shown image is whole: {what}" for what in self.damage(identifier)]

    def check_pull(self, found):
        image = self.samples.images["one"]
        outcome = self.program.client("pull", "-q", "--policy", "Always", f"{self.known.address}/{REPOSITORY}:one")
        if found.check(outcome.is_success, "an import after the cut works", outcome.errors[-300:]):
            found += [f"an image imported after the cut is whole: {what}" for what in self.damage(image.id)]
            left = self.containerd.leftovers()
            found.check(not left, "nothing of an import is left after another one", str(left))

    def damage(self, identifier):
        image = self.samples.by_id.get(identifier)
        if image is None:
            yield f"{identifier} is no image of the registry"
            return
        for document in (image.config, image.manifest):
            digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
            if self.containerd.content(digest) != document:
                yield f"{image.name}: the document {hexadecimal(digest)[:12]} has other bytes"
        try:
            folders = self.containerd.layers(chain(image))
        except Failed as error:
            yield f"{image.name}: {error}"
            return
        for layer, folder in zip(image.layers, folders, strict=True):
            present = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
            for name in layer.files.keys() | present.keys():
                wanted = layer.files.get(name)
                content = present[name].read_bytes() if name in present else b""
                if wanted is None or f"sha256:{hashlib.sha256(content).hexdigest()}" != wanted:
                    yield f"{image.name}: `{name}` has other bytes"
