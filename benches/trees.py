"""What the layers of the corpus hold: real Debian packages, Python wheels, and applications of small files."""

import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

from bed import Failed, run

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
SMALL = ["busybox-static", "libc6", "tzdata"]
SINGLES = """
    acl attr bc bison brotli bzip2 cpio curl dc dnsutils dos2unix ed ethtool file flex ftp gawk gettext-base hexedit htop
    iproute2 iptables iputils-ping jq less lsof lz4 m4 make moreutils nano net-tools netcat-openbsd parallel patch pigz procps
    psmisc pv rename rsync screen socat sqlite3 strace tcpdump telnet tmux traceroute tree unzip uuid-runtime wget whois
    xxd xz-utils zip zsh zstd
""".split()
WHEELS = {
    "application": ["django==5.0.7", "sqlalchemy==2.0.31", "flask==3.0.3", "requests==2.32.3"],
    "numpy": ["numpy==1.26.4"],
    "scipy": ["scipy==1.13.1"],
    "pandas": ["pandas==2.2.2"],
    "pyarrow": ["pyarrow==16.1.0"],
    "scikit-learn": ["scikit-learn==1.5.0"],
    "opencv": ["opencv-python-headless==4.10.0.84"],
    "polars": ["polars==1.4.0"],
    "numba": ["llvmlite==0.43.0", "numba==0.60.0"],
    "models": ["transformers==4.44.0", "matplotlib==3.9.0", "xgboost-cpu==2.1.1", "onnxruntime==1.18.1"],
    "torch": ["torch==2.6.0"],
}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "any")


class Trees:
    """Fills folders; what is downloaded for that is kept."""

    def __init__(self, folder):
        self.packages, self.wheels = folder / "packages", folder / "wheels"
        for place in (self.packages, self.wheels):
            place.mkdir(parents=True, exist_ok=True)

    def debian(self, names):
        """A tree with the content of these packages."""

        def fill(tree):
            missing = [name for name in names if not list(self.packages.glob(f"{name}_*.deb"))]
            if missing:
                download(["apt-get", "-qq", "download", *missing], self.packages)
            for name in names:
                run("dpkg-deb", "-x", max(self.packages.glob(f"{name}_*.deb")), tree)

        return fill

    def python(self, layer, compiled=False):
        """A site-packages tree of the wheels of this layer."""

        def fill(tree):
            site = tree / "usr/local/lib/python3.11/site-packages"
            site.mkdir(parents=True)
            for requirement in WHEELS[layer]:
                with zipfile.ZipFile(self.wheel(requirement)) as archive:
                    archive.extractall(site)
            if compiled:
                command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
                environment = {**os.environ, "PYTHONHASHSEED": "0"}
                # Files that do not compile are in the wheels on purpose.
                subprocess.run([*command, "-s", tree, tree], check=False, stdout=subprocess.DEVNULL, env=environment)

        return fill

    def copies(self, folder, layers):
        """The wheels of these layers, each in a folder of its own."""

        def fill(tree):
            for number, layer in enumerate(layers):
                for requirement in WHEELS[layer]:
                    with zipfile.ZipFile(self.wheel(requirement)) as archive:
                        archive.extractall(tree / folder / f"{number:02}")

        return fill

    def wheel(self, requirement):
        name = requirement.split("==")[0].replace("-", "_")
        found = [file for file in self.wheels.glob("*.whl") if file.name.lower().startswith(f"{name}-")]
        if not found:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
            platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
            download([*command, "--python-version=3.11", *platforms, "-d", self.wheels, requirement], self.wheels)
            found = [file for file in self.wheels.glob("*.whl") if file.name.lower().startswith(f"{name}-")]
        if not found:
            raise Failed(f"pip brought no wheel for `{requirement}`")
        return found[0]


def download(command, folder):
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(map(str, command))}`: {done.stderr.strip()}\nhint: `apt-get update`, or a corpus with --corpus")


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
        whiteout = pathlib.Path(tree) / "usr/share/doc/bash/.wh.RBASH"
        whiteout.parent.mkdir(parents=True)
        whiteout.touch()

    return fill
