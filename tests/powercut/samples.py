"""The images that the scenarios pull, the registry that serves them, and archives to import; all are made by seed."""

import contextlib
import gzip
import hashlib
import io
import json
import pathlib
import random
import subprocess
import sys
import tarfile

from disks import Failed

BENCHES = pathlib.Path(__file__).resolve().parents[2] / "benches"
MEDIA = "application/vnd.oci.image."
REPOSITORY = "power/cut"
PORT = "5000"


class Layer:
    """A packed layer, and what its files have to hold; `programs` are files by name that may be executed."""

    def __init__(self, seed, small, large, programs=None):
        chance = random.Random(seed)
        files = {f"{seed}/small-{number}": chance.randbytes(chance.randrange(1, 6000)) for number in range(small)}
        files |= {f"{seed}/large-{number}": chance.randbytes(size) for number, size in enumerate(large)}
        files[f"{seed}/empty"] = b""
        files |= programs or {}
        tar = pack(files, programs or {})
        self.diff_id = digest(tar)
        self.blob = gzip.compress(tar, 1, mtime=0)
        self.files = {name: digest(content) for name, content in files.items()}


class Image:
    """An image in the registry."""

    def __init__(self, name, layers, command=()):
        config = {"architecture": "amd64", "os": "linux", "config": {"Env": [f"NAME={name}"]}}
        if command:
            config["config"]["Cmd"] = list(command)
        config["rootfs"] = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
        self.name, self.layers, self.config = name, layers, encode(config)
        blobs = [descriptor(f"{MEDIA}layer.v1.tar+gzip", layer.blob) for layer in layers]
        manifest = {"schemaVersion": 2, "mediaType": f"{MEDIA}manifest.v1+json"}
        self.manifest = encode(manifest | {"config": descriptor(f"{MEDIA}config.v1+json", self.config), "layers": blobs})
        self.id = digest(self.config)

    def blobs(self):
        return [self.config, self.manifest, *(layer.blob for layer in self.layers)]


class Samples:
    """All images, and the folder that the registry serves."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        base = Layer("base", 12, [700_000, 90_000])
        self.images = {
            "one": Image("one", [base, Layer("one", 8, [400_000])]),
            "two": Image("two", [base, Layer("two", 5, [250_000, 250_000])]),
            "three": Image("three", [Layer("three", 20, [])]),
            "four": Image("four", [Layer("four", 3, [600_000]), Layer("five", 4, [50_000])]),
        }
        self.by_id = {}
        for image in self.images.values():
            self.publish(image)

    def publish(self, image):
        for blob in image.blobs():
            self.put(f"blobs/sha256/{hexadecimal(digest(blob))}", blob)
        self.tag(image.name, image)
        self.by_id[image.id] = image

    def put(self, path, content):
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def tag(self, tag, image):
        """Names an image in the registry; a name of another one moves."""
        self.put(f"v2/{REPOSITORY}/manifests/{tag}", image.manifest)

    def archive(self, path, image):
        """An OCI layout in a tar file, as other tools export images."""
        index = {"schemaVersion": 2, "manifests": [descriptor(f"{MEDIA}manifest.v1+json", image.manifest)]}
        index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": f"registry.example/{image.name}:v1"}
        files = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(index)}
        files |= {f"blobs/sha256/{hexadecimal(digest(blob))}": blob for blob in image.blobs()}
        pathlib.Path(path).write_bytes(pack(files))


@contextlib.contextmanager
def registry(folder):
    """Serves a folder on loopback, always at the same address, so that a kept recording can be cut again."""
    command = (sys.executable, str(BENCHES / "registry.py"), "--port", PORT, str(folder))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise Failed("the registry did not start")
        yield address
    finally:
        process.kill()
        process.wait()


def pack(files, programs=()):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o755 if name in programs else 0o644, 1_700_000_000
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def encode(document):
    return json.dumps(document, sort_keys=True).encode()


def descriptor(media_type, content):
    return {"mediaType": media_type, "digest": digest(content), "size": len(content)}


def digest(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hexadecimal(text):
    return text.removeprefix("sha256:")
