#!/usr/bin/env python3
"""Builds the images of the benchmark.

Usage: corpus.py DIR [small|web|many|web-zstd|ml|ml-zstd|eight|ai]...

DIR receives `blobs/sha256/HEX` (configs, manifests, layers), `v2/perf/IMAGE/manifests/v1`, and what was downloaded and
packed, so that a second run asks nobody. GNU tar sorted by name, fixed times, owner 0:0; `gzip -n -6`, one stream, or
`zstd -3`. Where an archive has moved on, package versions differ and so do the digests; sizes stay within a few percent.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

from bed import Failed, run
from trees import BASE, GIT, NGINX, PYTHON, SINGLES, SMALL, Trees, application

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
TAR = ("tar", "--format=gnu", "--sort=name", "--mtime=2024-01-01 00:00:00Z", "--owner=0", "--group=0", "--numeric-owner")
PACKERS = {"gzip": ("gzip", "-n", "-6"), "zstd": ("zstd", "-q", "-3")}
ML_WHEELS = ("numpy", "scipy", "pandas", "pyarrow", "scikit-learn", "opencv", "polars", "numba", "models", "torch")
# Copies are further apart than gzip looks back: a layer is as large as all of them. About 400 MB, and 3 GB.
EIGHTH = (*ML_WHEELS[:-1], "models", "pyarrow", "opencv")
AI = ML_WHEELS * 3


class Corpus:
    """The folder the images are built in."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.blobs, self.packed = self.folder / "blobs/sha256", self.folder / "packed"
        for place in (self.blobs, self.packed):
            place.mkdir(parents=True, exist_ok=True)
        self.trees = Trees(self.folder)

    def layers(self, image):
        """Names and contents of the layers, bottom first."""
        trees = self.trees
        base, python = ("base", trees.debian(BASE)), ("python", trees.debian(PYTHON))
        if image == "small":
            return [("small", trees.debian(SMALL))]
        if image == "many":
            return [base, *((f"single-{name}", trees.debian([name])) for name in SINGLES)]
        if image == "web":
            application_layer = ("application", trees.python("application", compiled=True))
            settings = [(name, application(files, name)) for name, files in (("settings", 300), ("more-settings", 20))]
            return [base, python, ("nginx", trees.debian(NGINX)), ("git", trees.debian(GIT)), application_layer, *settings]
        if image == "eight":
            return [(f"eight-{number}", trees.copies(f"opt/{number}", EIGHTH)) for number in range(8)]
        if image == "ai":
            return [base, ("ai", trees.copies("opt/ai", AI))]
        wheels = [(f"wheels-{name}", trees.python(name)) for name in ML_WHEELS]
        return [base, python, *wheels, ("ml-settings", application(50, "ml-settings"))]

    def build(self, image):
        """Builds the image, unless it is there."""
        manifest = self.folder / "v2/perf" / image / "manifests/v1"
        if manifest.exists():
            return
        print(f"building the image `{image}`", file=sys.stderr)
        packer = "zstd" if image.endswith("-zstd") else "gzip"
        layers = [self.layer(name, fill, packer) for name, fill in self.layers(image.removesuffix("-zstd"))]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["diff_id"] for layer in layers]},
        }
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self.blob(config, CONFIG_TYPE),
            "layers": [{key: layer[key] for key in ("mediaType", "digest", "size")} for layer in layers],
        }
        digest = self.blob(document, MANIFEST_TYPE)["digest"]
        manifest.parent.mkdir(parents=True, exist_ok=True)
        # Beside, then renamed: an image that was not finished is built again.
        draft = manifest.parent / "draft"
        for name in (digest, "v1"):
            shutil.copy(self.blobs / digest.removeprefix("sha256:"), draft)
            draft.rename(manifest.parent / name)
        packed, plain = (sum(layer[key] for layer in layers) / 1e6 for key in ("size", "plain"))
        print(f"{image}: {len(layers)} layers, {packed:.1f} MB packed, {plain:.1f} MB unpacked", file=sys.stderr)

    def layer(self, name, fill, packer):
        """Packs the tree that `fill` makes, unless it was packed before; answers its descriptor and diff id."""
        known = self.packed / f"{name}.{packer}.json"
        if known.exists():
            return json.loads(known.read_text())
        tree, plain, packed = (self.folder / place for place in ("tree", "layer.tar", "layer.packed"))
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        fill(tree)
        run(*TAR, "-C", tree, "-cf", plain, ".")
        shutil.rmtree(tree)
        with plain.open("rb") as source, packed.open("wb") as target:
            subprocess.run(PACKERS[packer], stdin=source, stdout=target, check=True)
        layer = {
            "mediaType": f"{LAYER_TYPE}+{packer}",
            "digest": digest_of(packed),
            "size": packed.stat().st_size,
            "diff_id": digest_of(plain),
            "plain": plain.stat().st_size,
        }
        packed.rename(self.blobs / layer["digest"].removeprefix("sha256:"))
        plain.unlink()
        known.write_text(json.dumps(layer))
        return layer

    def blob(self, document, media_type):
        text = json.dumps(document, sort_keys=True).encode()
        hexadecimal = hashlib.sha256(text).hexdigest()
        (self.blobs / hexadecimal).write_bytes(text)
        return {"mediaType": media_type, "digest": f"sha256:{hexadecimal}", "size": len(text)}


def digest_of(path):
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def ready(given, work, images):
    """The folder of a corpus with these images: the given one, or one of our own that is built where it lacks any."""
    if given is not None:
        missing = [image for image in images if not (given / "v2/perf" / image / "manifests/v1").is_file()]
        if missing:
            raise Failed(f"the corpus `{given}` has no {', '.join(missing)}")
        return given.resolve()
    return build(work / "corpus", images)


def build(folder, images):
    """Builds what is missing of these images; answers the folder."""
    os.umask(0o022)
    corpus = Corpus(folder)
    for image in images:
        corpus.build(image)
    return corpus.folder


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build(sys.argv[1], sys.argv[2:] or ["small", "web", "many", "web-zstd"])
