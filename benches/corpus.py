#!/usr/bin/env python3
"""Builds the image `web` of the benchmark from real Debian packages and Python wheels.

Usage: corpus.py DIR

DIR receives `blobs/HEX` (config and layers), `manifest.json`, and what was downloaded, so that a second run asks nobody.
Seven layers as a web service has them: a Debian base, Python, nginx, git, a Django application compiled to bytecode, and
two small layers with a whiteout and links. GNU tar sorted by name, fixed times, owner 0:0; gzip -n -6, one stream.
Where an archive has moved on, package versions differ and so do the digests; sizes stay within a few percent.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

BASE = """
    apt base-files base-passwd bash bsdutils ca-certificates coreutils dash debconf debianutils diffutils dpkg findutils
    gcc-12-base grep gzip hostname init-system-helpers libacl1 libapt-pkg6.0 libattr1 libblkid1 libbz2-1.0 libc-bin libc6
    libcrypt1 libdb5.3 libdebconfclient0 libgcc-s1 libgcrypt20 libgmp10 libgpg-error0 liblz4-1 liblzma5 libmd0 libmount1
    libpam-modules libpam-runtime libpam0g libpcre2-8-0 libselinux1 libssl3 libstdc++6 libsystemd0 libtinfo6 libudev1
    libuuid1 libzstd1 login mawk mount ncurses-base ncurses-bin openssl passwd perl-base sed sysvinit-utils tar tzdata
    util-linux zlib1g
""".split()
PYTHON = """
    libexpat1 libffi8 libncursesw6 libnsl2 libpython3.11-minimal libpython3.11-stdlib libreadline8 libsqlite3-0 libtirpc3
    media-types python3-pip python3-setuptools python3-wheel python3.11 python3.11-minimal
""".split()
NGINX = """
    fonts-dejavu-core libfontconfig1 libfreetype6 libgd3 libjpeg62-turbo libpng16-16 libtiff6 libwebp7 nginx nginx-common
""".split()
GIT = ["git", "libcurl3-gnutls", "liberror-perl"]
WHEELS = ["django==5.0.7", "sqlalchemy==2.0.31", "flask==3.0.3", "requests==2.32.3"]
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
TAR = ["tar", "--format=gnu", "--sort=name", "--mtime=2024-01-01 00:00:00Z", "--owner=0", "--group=0", "--numeric-owner"]


class Corpus:
    """The folder an image is built in."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.blobs = self.folder / "blobs"
        self.packages = self.folder / "packages"
        self.wheels = self.folder / "wheels"
        for place in (self.blobs, self.packages, self.wheels):
            place.mkdir(parents=True, exist_ok=True)

    def debian(self, names):
        """A tree with the content of these packages."""

        def fill(tree):
            missing = [name for name in names if not list(self.packages.glob(f"{name}_*.deb"))]
            if missing:
                subprocess.run(["apt-get", "-qq", "download", *missing], cwd=self.packages, check=True)
            for name in names:
                package = max(self.packages.glob(f"{name}_*.deb"))
                subprocess.run(["dpkg-deb", "-x", package, tree], check=True)

        return fill

    def python(self, requirements):
        """A site-packages tree, compiled."""

        def fill(tree):
            site = tree / "usr/local/lib/python3.11/site-packages"
            site.mkdir(parents=True)
            for requirement in requirements:
                self.fetch_wheel(requirement)
                with zipfile.ZipFile(self.wheel(requirement)) as archive:
                    archive.extractall(site)
            compileall = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", tree, tree]
            subprocess.run(compileall, check=False, stdout=subprocess.DEVNULL)

        return fill

    def wheel(self, requirement):
        name = requirement.split("==")[0]
        found = [file for file in self.wheels.glob("*.whl") if file.name.lower().startswith(f"{name}-")]
        return found[0] if found else None

    def fetch_wheel(self, requirement):
        if self.wheel(requirement) is None:
            platforms = ["--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64", "--platform=any"]
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
            command += ["--python-version=3.11", *platforms, "-d", self.wheels, requirement]
            subprocess.run(command, check=True)

    def layer(self, name, fill):
        """Packs the tree that `fill` makes; answers its descriptor and diff id."""
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        fill(tree)
        plain = self.folder / "layer.tar"
        subprocess.run([*TAR, "-C", tree, "-cf", plain, "."], check=True)
        packed = self.folder / "layer.tar.gz"
        with plain.open("rb") as source, packed.open("wb") as target:
            subprocess.run(["gzip", "-n", "-6"], stdin=source, stdout=target, check=True)
        layer = {"name": name, "diff_id": digest(plain), "digest": digest(packed), "size": packed.stat().st_size}
        layer["unpacked"] = plain.stat().st_size
        packed.rename(self.blobs / layer["digest"].removeprefix("sha256:"))
        plain.unlink()
        shutil.rmtree(tree)
        return layer

    def image(self, layers):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/sh"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["diff_id"] for layer in layers]},
        }
        config = json.dumps(config, sort_keys=True).encode()
        config_digest = hashlib.sha256(config).hexdigest()
        (self.blobs / config_digest).write_bytes(config)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": f"sha256:{config_digest}", "size": len(config)},
            "layers": [{"mediaType": LAYER_TYPE, "digest": one["digest"], "size": one["size"]} for one in layers],
        }
        # Beside, then renamed: a corpus that was not finished is built again.
        draft = self.folder / "manifest.draft"
        draft.write_text(json.dumps(manifest, sort_keys=True))
        draft.rename(self.folder / "manifest.json")


def application(files, name):
    """A small layer of an application: settings, links, a script, and a whiteout of a file of the base."""

    def fill(tree):
        settings = tree / "app/settings"
        settings.mkdir(parents=True)
        for number in range(files):
            lines = (f"option{line}: {hashlib.sha256(f'{name} {number} {line}'.encode()).hexdigest()}\n" for line in range(20))
            (settings / f"{number:03}.yaml").write_text("".join(lines))
            if number % 10 == 0:
                (settings / f"{number:03}.current").symlink_to(f"{number:03}.yaml")
        script = tree / "app/start"
        script.write_text(f"#!/bin/sh\nexec echo {name}\n")
        script.chmod(0o755)
        whiteout = tree / "usr/share/doc/bash/.wh.RBASH"
        whiteout.parent.mkdir(parents=True)
        whiteout.touch()

    return fill


def digest(path):
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def build(folder):
    """Builds `web` in the folder, unless it is there."""
    corpus = Corpus(folder)
    if (corpus.folder / "manifest.json").exists():
        return
    layers = [
        corpus.layer("base", corpus.debian(BASE)),
        corpus.layer("python", corpus.debian(PYTHON)),
        corpus.layer("nginx", corpus.debian(NGINX)),
        corpus.layer("git", corpus.debian(GIT)),
        corpus.layer("application", corpus.python(WHEELS)),
        corpus.layer("settings", application(300, "settings")),
        corpus.layer("more-settings", application(20, "more-settings")),
    ]
    corpus.image(layers)
    packed, unpacked = (sum(layer[key] for layer in layers) / 1e6 for key in ("size", "unpacked"))
    print(f"web: {len(layers)} layers, {packed:.1f} MB packed, {unpacked:.1f} MB unpacked", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    os.umask(0o022)
    build(sys.argv[1])
