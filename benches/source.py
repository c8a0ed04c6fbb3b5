"""The registry of a measurement: starts `registry.py`, reads its counts, and makes small images on the spot."""

import contextlib
import gzip
import hashlib
import http.client
import io
import json
import pathlib
import subprocess
import sys
import tarfile

from bed import BENCHES, Failed

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
BUSYBOX = (pathlib.Path("/usr/bin/busybox"), pathlib.Path("/bin/busybox"))


class Source:
    """A running registry over the corpus and over a folder for what is made during the measurement."""

    def __init__(self, address, corpus, drafts):
        self.address, self.corpus, self.drafts = address, corpus, drafts

    def image(self, name, tag="v1"):
        return f"{self.address}/perf/{name}:{tag}"

    def has(self, name):
        return (self.corpus / "v2/perf" / name / "manifests/v1").is_file()

    def manifest(self, name):
        return json.loads((self.corpus / "v2/perf" / name / "manifests/v1").read_text())

    def config(self, name):
        digest = self.manifest(name)["config"]["digest"]
        return json.loads((self.corpus / "blobs/sha256" / digest.removeprefix("sha256:")).read_text())

    def count(self):
        """What was sent since `forget`: requests, manifests, bytes, and how often each blob."""
        return json.loads(self.ask("GET"))

    def forget(self):
        self.ask("POST")

    def ask(self, method):
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request(method, "/count")
        text = connection.getresponse().read()
        connection.close()
        return text

    def variant(self, base, name, tag, order=None):
        """The layers of an image under another config, in another order if one is given; answers its full name."""
        manifest, config = self.manifest(base), self.config(base)
        order = order or range(len(manifest["layers"]))
        layers = [manifest["layers"][place] for place in order]
        diff_ids = [config["rootfs"]["diff_ids"][place] for place in order]
        return self.publish(name, tag, layers, diff_ids)

    def tiny_layer(self):
        """A layer of one small file; answers its descriptor and diff id."""
        return self.layer({"etc/motd": b"the same in every image\n" * 40}, 0o644)

    def pause(self):
        """The image that pods rest on: a shell that ends when it is asked to."""
        try:
            program = next(path for path in BUSYBOX if path.is_file()).read_bytes()
        except StopIteration:
            raise Failed("busybox is not installed: it is in the Debian package busybox-static") from None
        layer, diff_id = self.layer({f"bin/{name}": program for name in ("sh", "sleep")}, 0o755)
        command = ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
        return self.publish("pause", "v1", [layer], [diff_id], command)

    def layer(self, files, mode):
        """A layer of these files; answers its descriptor and diff id."""
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        packed = gzip.compress(plain.getvalue(), mtime=0)
        return self.blob(packed, LAYER_TYPE), f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"

    def publish(self, name, tag, layers, diff_ids, command=("/bin/sh",)):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Labels": {"bench": f"{name}:{tag}"}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        config = self.blob(json.dumps(config).encode(), CONFIG_TYPE)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers}
        text = json.dumps(manifest).encode()
        digest = self.blob(text, MANIFEST_TYPE)["digest"]
        folder = self.drafts / "v2/perf" / name / "manifests"
        folder.mkdir(parents=True, exist_ok=True)
        for one in (tag, digest):
            (folder / one).write_bytes(text)
        return self.image(name, tag)

    def blob(self, content, media_type):
        folder = self.drafts / "blobs/sha256"
        folder.mkdir(parents=True, exist_ok=True)
        hexadecimal = hashlib.sha256(content).hexdigest()
        (folder / hexadecimal).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{hexadecimal}", "size": len(content)}


@contextlib.contextmanager
def registry(corpus, drafts, **options):
    """A registry of its own process over both folders, with options as `registry.py` has them."""
    drafts.mkdir(exist_ok=True)
    command = [sys.executable, BENCHES / "registry.py", drafts, corpus]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise Failed("the registry did not start")
            yield Source(address, corpus, drafts)
        finally:
            process.terminate()
            process.wait()
