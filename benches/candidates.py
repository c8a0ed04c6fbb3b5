"""Who is measured: each pulls an image onto a disk of its own, removes it, and says when nothing of it is left."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import shutil
import subprocess
import time

import cri
from bed import Failed, Process, disk, launch, run, settle, wait_until

START_SECONDS = 60
CACHE = "/var/lib/containers"
DAEMON_CONFIG = "apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n"
# Containerd 2.x unpacks the layers of an image one after the other unless its configuration permits several at once.
TUNED_CONFIG = """[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_downloads = 10
  concurrent_layer_fetch_buffer = 8388608
  max_concurrent_unpacks = 4
"""
CONTAINERD_CONFIG = """version = 2
root = "{place}/root"
state = "{place}/state"
[grpc]
  address = "{place}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
"""
# No networks, and nothing outside of its place.
CRIO_CONFIG = """[crio]
root = "{place}/root"
runroot = "{place}/run"
storage_driver = "overlay"
log_dir = "{place}/pods"
version_file = "{place}/version"
version_file_persist = "{place}/version-persist"
clean_shutdown_file = "{place}/clean"
[crio.api]
listen = "{place}/crio.sock"
stream_port = "0"
[crio.runtime]
container_exits_dir = "{place}/exits"
container_attach_socket_dir = "{place}/attach"
namespaces_dir = "{place}/namespaces"
hooks_dir = ["{place}/hooks"]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
irqbalance_config_restore_file = "disable"
disable_hostport_mapping = true
log_level = "warn"
[crio.image]
pause_image = "{pause}"
signature_policy = "{policy}"
[crio.network]
network_dir = "{place}/cni"
plugin_dirs = ["{place}/cni"]
[crio.nri]
enable_nri = false
"""


@dataclasses.dataclass
class Pull:
    """One pull: seconds of wall clock and of CPU, peak of resident bytes, and of those what it had when it was idle; when it ended."""

    wall: float
    cpu: float
    peak: int
    idle: int = 0
    ended: float = 0


class Candidate:
    """A disk and whoever pulls onto it."""

    name = ""

    def __init__(self, place):
        self.place = place

    def remove_and_wait(self, image):
        self.remove(image)
        wait_until(f"{self.name} to let {image} go", self.is_empty)

    def settle(self):
        settle(self.place)


class Daemon(Candidate):
    """A process with a CRI socket that pulls, and stays."""

    process = None

    def start(self):
        """Answers the seconds until it answered its first call."""
        started = time.monotonic()
        self.process = Process(self.command, self.place / f"{self.name}.log", self.environment)
        while not cri.answers(self.socket):
            self.process.check()
            if time.monotonic() - started > START_SECONDS:
                raise Failed(f"{self.name} did not answer for {START_SECONDS} s:\n{self.process.tail()}")
            time.sleep(0.002)
        seconds = time.monotonic() - started
        time.sleep(1)
        self.idle = sum(process.memory() for process in self.processes())
        return seconds

    def stop(self):
        if self.process is not None:
            self.process.stop()

    def processes(self):
        """All that works for a pull."""
        return [self.process]

    def cpu(self):
        return sum(process.cpu() for process in self.processes())

    def pull(self, image):
        for process in self.processes():
            process.forget_peak()
        with self.calls() as connection:
            cpu, started = self.cpu(), time.monotonic()
            connection.pull(image)
            ended = time.monotonic()
        peak = sum(process.memory("VmHWM") for process in self.processes())
        return Pull(ended - started, self.cpu() - cpu, peak, self.idle, ended)

    def remove(self, image):
        self.ask(lambda connection: connection.remove(image))

    def ask(self, call):
        """One call on a connection of its own."""
        with self.calls() as connection:
            return call(connection)

    @contextlib.contextmanager
    def calls(self):
        """A connection of its own; what fails on it tells the end of the log."""
        try:
            with cri.Connection(self.socket) as connection:
                yield connection
        except (cri.CallFailed, OSError) as error:
            raise Failed(f"{self.name}: {error}:\n{self.process.tail()}") from error


class OneShot(Candidate):
    """`imagelet --store DIR pull`: no daemon."""

    name = "imagelet"

    def __init__(self, place, program):
        super().__init__(place)
        self.program, self.store = program, place / "store"

    def start(self):
        return 0

    def stop(self):
        pass

    def pull(self, image):
        found = launch(self.place / "log", self.program, "--store", self.store, "pull", "-q", image)
        return Pull(*found, ended=time.monotonic())

    def remove(self, image):
        run(self.program, "--store", self.store, "rm", image)

    def is_empty(self):
        return store_is_empty(self.store)

    def layers(self):
        """What it has unpacked."""
        return entries(self.store / "layers")


class ImageletDaemon(Daemon):
    """`imagelet serve`, asked through CRI."""

    name = "daemon"
    environment = None
    settings = ""

    def __init__(self, place, program):
        super().__init__(place)
        self.program, self.store, self.socket = program, place / "store", place / "imagelet.sock"
        config = place / "config.yaml"
        config.write_text(DAEMON_CONFIG + self.settings)
        self.command = [program, "serve", "--config", config, "--store", self.store, "--socket", self.socket]

    def is_empty(self):
        return store_is_empty(self.store)

    def layers(self):
        """What it has unpacked."""
        return entries(self.store / "layers")


class BackgroundDaemon(ImageletDaemon):
    """`imagelet serve` that answers before a pull is durable."""

    name = "background"
    settings = "store: {durability: background}\n"


class KeepingDaemon(ImageletDaemon):
    """`imagelet serve` that keeps the compressed blobs, as containerd does."""

    name = "keeping"
    settings = "store: {keepBlobs: true}\n"


class ForgettingDaemon(ImageletDaemon):
    """`imagelet serve` that writes nothing for a resumption."""

    name = "forgetting"
    settings = "pulls: {resumeFor: 0s}\n"


class Containerd(Daemon):
    """containerd through its CRI plug-in as it is shipped: 2.x finds `igzip` in the PATH, 1.x has Go's own gzip."""

    name = "containerd"
    settings = ""

    def __init__(self, place, program, pause):
        super().__init__(place)
        self.socket = self.pods = place / "containerd.sock"
        config = place / "config.toml"
        config.write_text(CONTAINERD_CONFIG.format(place=place, pause=pause) + self.settings)
        self.command = [program, "-c", config]
        if is_first(program):
            self.environment = {"CONTAINERD_DISABLE_PIGZ": "1"}
        elif shutil.which("igzip"):
            self.environment = {}
        else:
            raise Failed("containerd 2.x is measured with `igzip`, which is in the Debian package isal")
        if os.path.isabs(program):
            # The shim of a version lies beside it.
            self.environment["PATH"] = f"{os.path.dirname(program)}:{os.environ['PATH']}"

    def is_empty(self):
        return not entries(self.place / "root/io.containerd.content.v1.content/blobs/sha256") and not self.layers()

    def layers(self):
        """What it has unpacked: a layer once for each stack of layers it is the top of."""
        return entries(self.place / "root/io.containerd.snapshotter.v1.overlayfs/snapshots")


class TunedContainerd(Containerd):
    """containerd 2.x that fetches layers in parts and unpacks several at once."""

    name = "tuned"
    settings = TUNED_CONFIG


class Crio(Daemon):
    """CRI-O, where it is installed."""

    name = "crio"
    environment = None

    def __init__(self, place, program, pause):
        super().__init__(place)
        self.socket = self.pods = place / "crio.sock"
        folders = {name: place / name for name in ("root", "run", "pods", "config.d", "hooks", "cni")}
        for folder in folders.values():
            folder.mkdir(exist_ok=True)
        policy, config, settings = place / "policy.json", place / "crio.conf", place / "home/.config/containers"
        settings.mkdir(parents=True)
        (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "{pause.partition("/")[0]}"\ninsecure = true\n')
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        config.write_text(CRIO_CONFIG.format(place=place, pause=pause, policy=policy))
        self.environment = {"HOME": str(place / "home")}
        self.command = [program, "--config", config, "--config-dir", folders["config.d"]]


class ForwardingDaemon(Daemon):
    """`imagelet serve` between a kubelet and a runtime, which pulls; both processes are measured."""

    name = "forwarded"
    environment = None
    settings = "runtimeImport: never\n"

    def __init__(self, place, program, runtime):
        super().__init__(place)
        self.runtime, self.pods, self.socket = runtime, runtime.socket, place / "imagelet.sock"
        config = place / "config.yaml"
        config.write_text(f"{DAEMON_CONFIG}{self.settings}store: {{directory: '{place}/state'}}\n")
        endpoint = ["--runtime-endpoint", f"unix://{runtime.socket}"]
        self.command = [program, "serve", "--config", config, *endpoint, "--socket", self.socket]

    def start(self):
        self.runtime.start()
        return super().start()

    def stop(self):
        super().stop()
        self.runtime.stop()

    def processes(self):
        return [self.process, self.runtime.process]

    def is_empty(self):
        return self.runtime.is_empty()


class ImportingDaemon(ForwardingDaemon):
    """The same, where imagelet pulls and containerd is given the layers."""

    name = "imported"
    settings = "runtimeImport: require\n"


class Umoci(Candidate):
    """`skopeo copy` into an OCI layout, then `umoci unpack`."""

    name = "umoci"

    def start(self):
        return 0

    def stop(self):
        pass

    def pull(self, image):
        layout, bundle, log = self.place / "layout", self.place / "bundle", self.place / "log"
        # Its cache of what it saw would be written to, and synced on, the machine's own disk.
        cache = self.place / "cache"
        cache.mkdir(exist_ok=True)
        aside = f'mkdir -p {CACHE} && mount --bind "$0" {CACHE} && exec skopeo --insecure-policy copy -q "$@"'
        copy = ["unshare", "--mount", "sh", "-c", aside, cache]
        copied = launch(log, *copy, "--src-tls-verify=false", f"docker://{image}", f"oci:{layout}:image")
        unpacked = launch(log, "umoci", "unpack", "--image", f"{layout}:image", bundle)
        return Pull(copied[0] + unpacked[0], copied[1] + unpacked[1], max(copied[2], unpacked[2]), ended=time.monotonic())

    def remove(self, image):
        for folder in ("layout", "bundle", "cache"):
            shutil.rmtree(self.place / folder, ignore_errors=True)

    def is_empty(self):
        return not (self.place / "layout").exists()


NAMES = ("imagelet", "daemon", "background", "keeping", "forgetting", "imported", "forwarded", "containerd", "tuned", "umoci")
DEFAULT = ("imagelet", "daemon", "background", "keeping", "imported", "forwarded", "containerd", "tuned", "umoci")
OURS = {kind.name: kind for kind in (OneShot, ImageletDaemon, BackgroundDaemon, KeepingDaemon, ForgettingDaemon)}
BETWEEN = {kind.name: kind for kind in (ImportingDaemon, ForwardingDaemon)}


def entries(folder):
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def store_is_empty(store):
    return not any(entries(store / folder) for folder in ("images", "layers", "trash", "tmp"))


def can_unpack(who, layers):
    """Whether the candidate can unpack these layers: umoci of Debian 12 reads no zstd."""
    return who != Umoci.name or not any(layer["mediaType"].endswith("zstd") for layer in layers)


def knows(program, place, who):
    """Whether this imagelet has the settings the candidate needs."""
    config = pathlib.Path(place) / "settings.yaml"
    config.write_text(DAEMON_CONFIG + getattr({**OURS, **BETWEEN}.get(who), "settings", ""))
    return subprocess.run([program, "config", "check", config], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def started(who, folder, programs, pause, disk_bytes):
    """The candidate of that name on a disk of its own, running; `programs` are imagelet and containerd."""
    with disk(folder, who, disk_bytes) as place:
        if who in OURS:
            candidate = OURS[who](place, programs[0])
        elif who == "umoci":
            candidate = Umoci(place)
        else:
            candidate = (TunedContainerd if who == TunedContainerd.name else Containerd)(place, programs[1], pause)
            if who in BETWEEN:
                candidate = BETWEEN[who](place, programs[0], candidate)
        try:
            candidate.start()
            yield candidate
        finally:
            candidate.stop()


def is_first(program):
    """Whether it is a containerd 1.x."""
    return version(program).startswith("1.")


@functools.cache
def version(program):
    return run(program, "--version").split()[2].lstrip("v")


def is_installed(runtime):
    """Whether its program is there; containerd has to be."""
    return runtime == Containerd.name or shutil.which(Crio.name) is not None


@contextlib.contextmanager
def started_behind(runtime, folder, programs, pause, disk_bytes):
    """A runtime on a disk of its own, and imagelet between it and its callers."""
    with disk(folder, f"behind-{runtime}", disk_bytes) as place:
        behind = Containerd(place, programs[1], pause) if runtime == Containerd.name else Crio(place, Crio.name, pause)
        daemon = ForwardingDaemon(place, programs[0], behind)
        try:
            daemon.start()
            yield behind, daemon
        finally:
            daemon.stop()
