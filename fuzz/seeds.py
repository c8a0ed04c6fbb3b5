#!/usr/bin/env python3
"""Writes the seeds that fuzzing starts from: small archives, documents and streams as builders and registries make them.

`python3 fuzz/seeds.py` writes the same bytes each time, into `fuzz/seeds/TARGET.tar`. What fuzzing added there stays; a
file of a corpus is added by `python3 fuzz/seeds.py TARGET FILE…`, named by its hash. GNU tar makes the sparse archives, the
`zstd` program the compressed frames; all else is written here.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib

SEEDS = pathlib.Path(__file__).parent / "seeds"
TIME = 1_000_000_000
EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
OCI = "application/vnd.oci.image."
DOCKER = "application/vnd.docker."


made = {}


def write(target, name, content):
    made.setdefault(target, {})[name] = content


def keep():
    """Puts what was made into the archives, beside what they have."""
    for target, files in made.items():
        path = SEEDS / f"{target}.tar"
        if path.exists():
            with tarfile.open(path) as tar:
                files = {member.name: tar.extractfile(member).read() for member in tar} | files
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name in sorted(files):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(files[name]), TIME
                tar.addfile(info, io.BytesIO(files[name]))


# Archives.


def entry(name, kind=tarfile.REGTYPE, data=b"", link="", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mtime = kind, link, len(data), TIME
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def archive(entries, form=tarfile.USTAR_FORMAT, pax=None):
    out = io.BytesIO()
    tar = tarfile.open(fileobj=out, mode="w", format=form, pax_headers=pax)
    for info, data in entries:
        tar.addfile(info, io.BytesIO(data))
    # Left open: closing would fill up a record of 10 KiB.
    return out.getvalue()[: tar.offset] + bytes(1024)


def changed(content, old, new):
    """An archive with other bytes in its headers, checksums put right."""
    content = bytearray(content)
    at = 0
    while any(content[at : at + 512]):
        header = re.sub(old, new, bytes(content[at : at + 512]), count=1, flags=re.DOTALL)
        header = header[:148] + b" " * 8 + header[156:]
        content[at : at + 512] = header[:148] + b"%06o\0 " % sum(header) + header[156:]
        at += 512 + (int(header[124:135], 8) + 511) // 512 * 512
    return bytes(content)


def gnu_tar(arguments, build):
    """What GNU tar makes of a folder, without anything of this machine in it."""
    with tempfile.TemporaryDirectory() as folder:
        build(pathlib.Path(folder))
        command = ["tar", "-C", folder, "--sort=name", f"--mtime=@{TIME}", "--owner=0", "--group=0", "--numeric-owner"]
        command += ["--record-size=512", "--pax-option=delete=atime,delete=ctime,exthdr.name=PaxHeaders/%f"]
        if "--format=gnu" in arguments:
            command.pop()
        made = subprocess.run([*command, *arguments, "-cf", "-", "."], check=True, capture_output=True).stdout
        # Names of sparse files hold the process's number.
        return changed(made, rb"GNUSparseFile\.[0-9]*/sparse(\0*)", lambda found: b"GNUSparseFile.1/sparse".ljust(len(found[0]), b"\0"))


def sparse(folder):
    with open(folder / "sparse", "wb") as file:
        for offset in range(0, 6 * 65536, 65536):
            file.seek(offset)
            file.write(b"data" * 200)
        file.truncate(400_000)
    (folder / "plain").write_bytes(b"plain")


def archives():
    directory, symlink, hard_link = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    whole = [
        entry("./", directory),
        entry("bin/", directory),
        entry("bin/tool", data=b"#!/bin/sh\n", mode=0o4755),
        entry("bin/alias", symlink, link="tool"),
        entry("bin/same", hard_link, link="bin/tool"),
        entry("etc/passwd", data=b"root:x:0:0::/:/bin/sh\n", uid=1000, gid=1000),
        entry("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666),
        entry("dev/disk", tarfile.BLKTYPE, devmajor=7, devminor=0),
        entry("run/pipe", tarfile.FIFOTYPE),
        entry("tmp", directory, mode=0o1777),
    ]
    write("tar", "ustar", archive(whole))
    write("tar", "gnu", archive(whole, tarfile.GNU_FORMAT))
    write("tar", "pax", archive(whole, tarfile.PAX_FORMAT))
    write("tar", "empty", bytes(1024))
    write("tar", "without-end", archive(whole)[:-1024])
    write("tar", "v7", changed(archive([entry("d/", tarfile.AREGTYPE), entry("d/f", tarfile.AREGTYPE, b"v7")]), b"ustar\x0000", bytes(8)))
    whiteouts = ["d/", "d/a", "d/.wh.b", "d/.wh..wh..opq", "e/f/.wh..wh..opq", ".wh.g", "g/h", ".wh..wh.plnk", "i", ".wh.i"]
    kinds = [entry(name, directory if name.endswith("/") else tarfile.REGTYPE) for name in whiteouts]
    write("tar", "whiteouts", archive(kinds))
    write("tar", "opaque-root", archive([entry(".wh..wh..opq"), entry("a", data=b"own")]))
    long = "long/" * 30 + "name"
    for name, form in [("long-gnu", tarfile.GNU_FORMAT), ("long-pax", tarfile.PAX_FORMAT)]:
        write("tar", name, archive([entry(long, data=b"1"), entry("l", symlink, link=long), entry("h", hard_link, link=long)], form))
    records = {"mtime": "1000000000.123456789", "uid": "70000", "SCHILY.xattr.user.note": "text", "path": "d/é"}
    more = {"SCHILY.xattr.security.capability": "\1\0\0\2\0\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "LIBARCHIVE.xattr.user.b%3D": "YWJj"}
    write("tar", "pax-records", archive([entry("x", data=b"1", pax_headers=records), entry("y", data=b"2", pax_headers=more)], tarfile.PAX_FORMAT))
    write("tar", "pax-global", archive([entry("x", data=b"1")], tarfile.PAX_FORMAT, {"comment": "0123abcd", "mtime": "5.5"}))
    write("tar", "big-numbers", archive([entry("x", uid=1 << 30, gid=3_000_000, mtime=1 << 35), entry("y", mtime=-5)], tarfile.GNU_FORMAT))
    replaced = [entry("x", data=b"file"), entry("x", directory), entry("x/y", data=b"1"), entry("x", symlink, link="z"), entry("x/w", data=b"2"), entry("z", data=b"3")]
    write("tar", "replaced", archive(replaced))
    write("tar", "hardlinks", archive([entry("a", data=b"1"), entry("b", hard_link, link="a"), entry("c/d", hard_link, link="./b"), entry("a", data=b"22"), entry("b", hard_link, link="/c/d")]))
    escapes = [
        [entry("../host/secret", data=b"x")],
        [entry("/proc/self/cwd/host/secret", data=b"x")],
        [entry("l", symlink, link="../host"), entry("l/secret", data=b"x")],
        [entry("l", symlink, link="/proc/self/cwd/host"), entry("l/dir/file", data=b"x")],
        [entry("d", directory), entry("d/l", symlink, link=".."), entry("d/l/e", data=b"1"), entry("d/l/l", symlink, link=".."), entry("d/l/l/host/secret", data=b"x")],
        [entry("h", hard_link, link="../host/secret"), entry("h", data=b"x")],
        [entry("l", symlink, link="../host/secret"), entry("h", hard_link, link="l"), entry("h", data=b"x")],
        [entry("l", symlink, link="../host/secret"), entry("l", data=b"x")],
        [entry("d/../../host/secret", data=b"x")],
        [entry("a", symlink, link="b"), entry("b", symlink, link="a"), entry("a/x", data=b"x")],
        [entry("d", directory), entry("l", symlink, link="d"), entry("l", directory, mode=0o777), entry("l/.wh.x")],
    ]
    for number, entries in enumerate(escapes):
        write("tar", f"escape-{number:02}", archive(entries))
    write("tar", "sparse-gnu", gnu_tar(["--format=gnu", "--sparse"], sparse))
    for version in ["0.0", "0.1", "1.0"]:
        write("tar", f"sparse-pax-{version}", gnu_tar(["--format=posix", f"--sparse-version={version}", "--sparse"], sparse))
    write("tar", "star", changed(archive([entry("s", data=b"star")]), rb"\0{4}$", b"tar\0"))


def artifacts():
    """Manifests of ModelPack, ORAS and Helm, and archives of models, all beside hostile ones."""
    config = descriptor("application/vnd.oci.empty.v1+json", 2)
    model, title = "application/vnd.cncf.model.", "org.opencontainers.image.title"

    def put(name, *layers):
        document = {"schemaVersion": 2, "artifactType": model + "manifest.v1+json", "config": config, "layers": layers}
        write("artifact", name, json.dumps(document, separators=(",", ":")).encode())

    def blob(kind, number=0, **annotations):
        return {"mediaType": kind, "digest": f"sha256:{number:064x}", "size": 7, "annotations": annotations}

    path = {"org.cncf.model.filepath": "weights/1.bin"}
    unpack = {"io.deis.oras.content.unpack": "true", "io.deis.oras.content.digest": EMPTY}
    put("modelpack", blob(model + "weight.v1.raw", **path), blob(model + "weight.config.v1.tar", 1), blob(model + "doc.v1.tar+gzip", 2))
    put("modelpack-older", blob("application/vnd.cnai.model.weight.v1.tar+zstd", **{"org.cnai.model.filepath": "a"}))
    put("oras", blob("text/plain", **{title: "a/b.txt"}), blob(OCI + "layer.v1.tar+gzip", 1, **{title: "docs", **unpack}))
    put("oras-root", blob(OCI + "layer.v1.tar+gzip", **{title: ".", **unpack}))
    put("helm", blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip"))
    put("empty")
    put("clashes", blob("a/b", **{title: "a"}), blob("a/b", 1, **{title: "a"}), blob("a/b", 2, **{title: "a/b"}))
    put("unsafe", blob("a/b", **{title: "../../etc/passwd"}), blob("a/b", **{title: "/etc/.wh.x"}))
    directory, symlink, hard_link = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
    plain = [entry("d/", directory), entry("d/e/", directory), entry("d/e/a", data=b"1"), entry("d/e/b", symlink, link="a"), entry("d/e/c", hard_link, link="d/e/a")]
    write("artifact", "members", archive(plain))
    write("artifact", "members-of-the-root", archive([entry("./", directory), entry("./config.json", data=b"{}"), entry("l", symlink, link="./config.json")]))
    # Its one link up is within the artifact.
    write("artifact", "links", archive([*plain, entry("d/e/f", symlink, link="../e/a"), entry("d/e/g", symlink, link="f"), entry("d/e/h", directory), entry("d/e/g/x", data=b"2")]))
    escapes = [("d/e/l", symlink, "../../../x"), ("d/e/l", symlink, "/x"), ("d/e/l", symlink, "a/../../.."), ("d/e/n", tarfile.CHRTYPE, ""), ("d/e/.wh.a", tarfile.REGTYPE, ""), ("d/e/l", hard_link, "d/e/b"), ("d/e/a", tarfile.REGTYPE, "")]
    for number, (name, kind, link) in enumerate(escapes):
        write("artifact", f"escape-{number}", archive([*plain, entry(name, kind, link=link)]))


# Documents.


def descriptor(kind, size=7, **fields):
    return {"mediaType": kind, "digest": EMPTY, "size": size, **fields}


def documents():
    def put(name, document):
        write("manifest", name, json.dumps(document, separators=(",", ":")).encode())

    layers = [descriptor(OCI + f"layer.v1.tar{suffix}") for suffix in ["", "+gzip", "+zstd"]]
    image = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": descriptor(OCI + "config.v1+json"), "layers": layers}
    put("oci-image", {**image, "annotations": {"org.opencontainers.image.created": "2001-09-09T01:46:40Z"}})
    put("oci-artifact", {**image, "artifactType": "application/vnd.example", "subject": descriptor(OCI + "manifest.v1+json")})
    put("unnamed", {"schemaVersion": 2, "config": descriptor(""), "layers": []})
    foreign = descriptor(DOCKER + "image.rootfs.foreign.diff.tar.gzip", urls=["https://example.com/layer"])
    encrypted = descriptor(OCI + "layer.v1.tar+gzip+encrypted", annotations={"org.opencontainers.image.enc.keys.jwe": "e30="})
    docker = {"schemaVersion": 2, "mediaType": DOCKER + "distribution.manifest.v2+json", "config": descriptor(DOCKER + "container.image.v1+json")}
    put("docker-image", {**docker, "layers": [descriptor(DOCKER + "image.rootfs.diff.tar.gzip"), foreign, encrypted]})
    machines = [("linux", "amd64", ""), ("linux", "arm64", "v8"), ("linux", "arm", "v7"), ("unknown", "unknown", ""), ("windows", "amd64", "")]
    entries = [
        descriptor(OCI + "manifest.v1+json", platform={"os": os, "architecture": machine, "variant": variant})
        for os, machine, variant in machines
    ]
    put("oci-index", {"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": entries})
    put("nested-index", {"schemaVersion": 2, "manifests": [descriptor(OCI + "index.v1+json")]})
    put("docker-list", {"schemaVersion": 2, "mediaType": DOCKER + "distribution.manifest.list.v2+json", "manifests": entries})
    put("schema1", {"schemaVersion": 1, "name": "a", "tag": "b", "fsLayers": [{"blobSum": EMPTY}], "history": [{"v1Compatibility": "{}"}]})
    put("many-layers", {**image, "layers": [{"digest": EMPTY}] * 501})
    put("nulls", {"schemaVersion": None, "mediaType": None, "config": descriptor(None, None), "layers": None, "manifests": None})
    put("both", {**image, "manifests": entries})
    put("list", [image])
    config = {
        "created": "2001-09-09T01:46:40Z",
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": "1000:1000", "Env": ["PATH=/bin"], "Entrypoint": ["/bin/tool"], "Cmd": None, "WorkingDir": "/w",
            "Labels": {"a": "b"}, "Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}, "StopSignal": "SIGTERM",
        },
        "rootfs": {"type": "layers", "diff_ids": [EMPTY, "sha512:" + "ab" * 64]},
        "history": [{"created_by": "a tool", "empty_layer": True}],
    }
    put("config", config)
    put("config-bare", {"rootfs": {"diff_ids": None}})
    write("manifest", "deep", b'{"annotations":' + b"[" * 200 + b"]" * 200 + b"}")
    put("long-digest", {**image, "layers": [{"digest": "sha256:" + "x" * 8000}]})
    put("long-media-type", {**image, "mediaType": "x" * 8000})
    put("long-key", {"schemaVersion": 2, "y" * 5000: 1, "config": {"digest": EMPTY, "z" * 5000: 2}, "layers": {"w" * 5000: 2}})
    write("manifest", "wrong-types", json.dumps({"schemaVersion": "2", "layers": {"a": 1}, "config": "x" * 300}).encode())


# Streams.


def member(content, level=6, flags=0, extra=b""):
    """One gzip member with the header fields that the flags announce."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    data = packer.compress(content) + packer.flush()
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(4) + b"\0\xff" + extra
    if flags & 2:
        head += (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")
    return head + data + zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")


def zstd(content, *options):
    return subprocess.run(["zstd", "-q", "-c", *options], input=content, check=True, capture_output=True).stdout


def skippable(content, number=0):
    return (0x184D2A50 + number).to_bytes(4, "little") + len(content).to_bytes(4, "little") + content


def raw_frame(content, window):
    """A frame of one raw block with a window descriptor of our choice and no size."""
    block = (1 | len(content) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\0" + bytes([window]) + block + content


def streams():
    layer = archive([entry("a", data=b"text " * 200), entry("b", data=bytes(range(256)) * 4)])
    write("framing", "plain", layer)
    write("framing", "empty", b"")
    write("framing", "short", b"\x1f")
    for level in [0, 1, 9]:
        write("framing", f"gzip-{level}", member(layer, level))
    write("framing", "gzip-members", member(layer[:700]) + member(b"") + member(layer[700:], 1))
    write("framing", "gzip-header", member(layer, 6, 4 | 8 | 16 | 2, b"\4\0SSSS" + b"name\0" + b"comment\0"))
    write("framing", "gzip-garbage", member(layer) + b"garbage")
    write("framing", "gzip-zeros", member(layer) + bytes(512))
    write("framing", "gzip-cut", member(layer)[:-5])
    write("framing", "gzip-wrong-sum", member(layer)[:-8] + bytes(8))
    write("framing", "gzip-bomb", member(bytes(2 << 20), 9))
    write("framing", "gzip-full", member(bytes(1 << 19), 9))
    # Fixed and stored blocks only.
    fixed = zlib.compressobj(6, zlib.DEFLATED, -15, 8, zlib.Z_FIXED)
    data = fixed.compress(layer) + fixed.flush()
    write("framing", "gzip-fixed", b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + data + zlib.crc32(layer).to_bytes(4, "little") + len(layer).to_bytes(4, "little"))
    write("framing", "zstd", zstd(layer, "--no-check"))
    write("framing", "zstd-checked", zstd(layer, "--check", "-19"))
    write("framing", "zstd-frames", zstd(layer[:700]) + zstd(b"") + zstd(layer[700:]))
    write("framing", "zstd-skippable", skippable(b"first", 3) + zstd(layer) + skippable(b"", 15))
    write("framing", "zstd-skippable-inside", zstd(layer[:700]) + skippable(b"between") + zstd(layer[700:]))
    write("framing", "zstd-garbage", zstd(layer) + b"garbage")
    write("framing", "zstd-cut", zstd(layer)[:-5])
    write("framing", "zstd-long", zstd(layer, "--long=27"))
    write("framing", "zstd-bomb", zstd(bytes(2 << 20)))
    for log in [10, 27, 28, 31]:
        write("framing", f"zstd-window-{log}", raw_frame(b"content", (log - 10) << 3))
    write("framing", "zstd-then-gzip", zstd(layer) + member(layer))
    write("framing", "gzip-of-gzip", gzip.compress(member(layer), mtime=0))


# Recipes of layers: what it is, where, and where else; see `crates/imagelet/tests/fuzz/whiteouts.rs`.


def recipes():
    file, directory, other, hard_link, whiteout, opaque, rest = 0, 2, 4, 5, 6, 8, 9
    a, b, ab, abc, ba = 0b00000000, 0b00000001, 0b01000100, 0b10100100, 0b01000001
    made = {
        "file": [(file, a, 1)],
        "tree": [(directory, a, 0), (directory, ab, 1), (file, abc, 2), (other, b, 1)],
        "whiteouts": [(whiteout, a, 0), (whiteout, ab, 0), (whiteout, abc, 0)],
        "whiteout-then-own": [(whiteout, a, 0), (file, a, 1), (whiteout, ab, 0)],
        "own-then-whiteout": [(file, ab, 1), (whiteout, ab, 0), (whiteout, a, 0)],
        "whiteout-then-below": [(whiteout, a, 0), (file, ab, 1), (directory, a, 0)],
        "opaque": [(file, ab, 1), (opaque, a, 1), (file, abc, 1), (opaque, a, 0)],
        "opaque-then-whiteout": [(opaque, a, 1), (whiteout, ab, 0), (file, ba, 0)],
        "retyped": [(file, a, 1), (directory, a, 0), (file, ab, 2), (other, a, 0), (directory, a, 1)],
        "retyped-below-opaque": [(opaque, ab, 1), (file, a, 1), (directory, a, 0), (directory, ab, 0)],
        "hardlinks": [(file, a, 3), (hard_link, b, a), (hard_link, ab | 2, b), (file, a, 1), (hard_link, b, b)],
        "hardlink-to-itself-below": [(file, ab, 1), (hard_link, a, ab)],
        "hardlink-to-nothing": [(whiteout, a, 0), (hard_link, b, a)],
        "root": [(rest, 0, 0), (file, a, 1), (rest, ab, 1)],
        "spelled": [(file | 64, abc, 1), (128 | 4, ba, 2), (192 | 4, ab, 1), (240, ba, 1)],
        "below-a-file": [(file, a, 1), (file, ab, 1)],
    }
    for name, steps in made.items():
        write("whiteouts", name, bytes(byte for step in steps for byte in step))


# Names and headers.


def names():
    digest = f"@{EMPTY}"
    texts = [
        "busybox", "busybox:1.36", "library/busybox", "docker.io/library/busybox:latest", "index.docker.io/busybox" + digest,
        "localhost/a", "localhost:5000/a/b_c/d__e-f.g:v1.0-rc_1" + digest, "[::1]:5000/a", "Example.COM:443/a/b", "a.b/c",
        "registry.example/team/app:tag@sha512:" + "ab" * 64, EMPTY[7:], "UPPER", "a/B", "a:", "a@", "/a", "a//b", "..", "a/../b",
        "a.b/" + "c" * 255, "x:" + "t" * 129, "a\0b", "", "a b", "http://a/b", "user:password@host/a", "xn--n3h.com/a", "a.b:80a/c",
    ]
    for number, text in enumerate(texts):
        write("reference", f"{number:02}", text.encode())


def challenges():
    realm = 'realm="https://auth.docker.io/token"'
    texts = [
        f'Bearer {realm},service="registry.docker.io",scope="repository:a/b:pull,push"', 'Basic realm="a \\"quoted\\" one"', "BASIC",
        "Bearer realm=https://auth.example/token", 'Bearer Realm = "x" , service = y', f'Negotiate, Basic realm="x", Bearer {realm}',
        'NTLM TlRMTVNTUAAB==, Basic realm="x"', f'Bearer {realm}\nBasic realm="x"', "", " , ,", 'realm="x"', 'Bearer realm="x',
        'Bearer realm="a",realm="b"', "Basic," * 9, 'Bearer realm="' + "x" * 9000 + '"', "Digest " + ",".join(f"p{n}=v" for n in range(17)),
        'Basic realm="\xe4"', "Bearer =a", "Basic a=",
    ]
    for number, text in enumerate(texts):
        write("challenge", f"{number:02}", text.encode("latin-1"))


# Files of registries: the examples of the documentation.


def registries():
    page = (pathlib.Path(__file__).parent.parent / "docs/registries.md").read_text()
    for number, example in enumerate(re.findall(r"```(?:toml\n|yaml\n(?=mirrors:))(.*?)```", page, re.DOTALL)):
        write("registries", f"{number:02}", example.encode())


# Policies of signatures, and signed texts.


def policies():
    def put(name, document):
        write("policy", name, json.dumps(document, separators=(",", ":")).encode())

    accept, reject, gpg = {"type": "insecureAcceptAnything"}, {"type": "reject"}, {"type": "signedBy", "keyType": "GPGKeys", "keyPath": "/k"}
    point = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200") + bytes([4]) + bytes(64)
    pem = b"-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(point) + b"\n-----END PUBLIC KEY-----\n"
    key = {"type": "sigstoreSigned", "keyData": base64.b64encode(pem).decode()}
    put("accept", {"default": [accept]})
    put("reject", {"default": [reject], "transports": {"docker-daemon": {"": [accept]}, "docker": {"docker.io/library": [accept]}}})
    names = ["", "*.example", "a.example", "a.example/team", "a.example/team/app", "a.example/team/app:v1", "docker.io/library/app:v1"]
    put("scopes", {"default": [reject], "transports": {"docker": {name: [accept] for name in names}}})
    put("keys", {"default": [key, gpg, {**key, "fulcio": {}}], "transports": {"docker": {"a.example": [{"type": "sigstoreSigned", "keyPaths": ["/a", "/b"]}]}}})
    identities = ["matchExact", "matchRepoDigestOrExact", "matchRepository", "exactReference", "remapIdentity"]
    put("identities", {"default": [{**key, "signedIdentity": {"type": kind}} for kind in identities]})
    put("refused", {"default": [{"type": "sigstoreSigned", "keyPath": "relative", "keyData": "!"}], "other": 1})
    write("policy", "scope-twice", b'{"default":[{"type":"reject"}],"transports":{"docker":{"a.example":[{"type":"reject"}],"a.example":[]}}}')
    for name in ["a.example/team/app:v1", "a.example/team/app", "docker.io/library/app:v1", "b.example/x:v1"]:
        critical = {"type": "cosign container image signature", "image": {"docker-manifest-digest": EMPTY}, "identity": {"docker-reference": name}}
        put("claim-" + re.sub("[^a-z0-9]", "-", name), {"critical": critical, "optional": {"creator": "a tool", "timestamp": 1}})


# Archives to import; a recipe of files is read by `crates/imagelet/tests/fuzz/import.rs`.


def imports():
    def text(document):
        return json.dumps(document, separators=(",", ":")).encode()

    def recipe(name, *files):
        write("import", name, b"".join(b"\n== " + name.encode() + b"\n" + content for name, content in files))

    def blob(number, kind, **fields):
        return {"mediaType": kind, "digest": f"sha256:@{number}@", "size": f"#{number}#", **fields}

    def numbered(document):
        return re.sub(rb'"(#\d#)"', rb"\1", text(document))

    layer = archive([entry("x", data=b"1")])
    layer_id = "sha256:" + hashlib.sha256(layer).hexdigest()
    config = text({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer_id]}})
    image = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": blob(1, OCI + "config.v1+json"), "layers": [blob(0, OCI + "layer.v1.tar+gzip")]}
    base = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("blob", gzip.compress(layer, mtime=0)), ("blob", config), ("blob", numbered(image))]
    machine = {"platform": {"os": "linux", "architecture": "amd64"}}
    full = {"annotations": {"io.containerd.image.name": "a.example/app:v1", "org.opencontainers.image.ref.name": "v1"}}
    kind = OCI + "manifest.v1+json"
    index = ("blob", numbered({"schemaVersion": 2, "manifests": [blob(2, kind, **machine)]}))
    nested = ("blob", numbered({"schemaVersion": 2, "manifests": [blob(3, OCI + "index.v1+json")]}))
    top = lambda *entries: ("index.json", numbered({"schemaVersion": 2, "manifests": entries}))
    recipe("oci", *base, top(blob(2, kind, **full)))
    recipe("oci-tag-alone", *base, top(blob(2, kind, annotations={"org.opencontainers.image.ref.name": "v1"})))
    recipe("oci-platforms", *base, top(blob(2, kind, **full, **machine), blob(1, kind, **full)))
    recipe("oci-nested", *base, index, nested, top(blob(4, OCI + "index.v1+json", **full)))
    recipe("oci-no-layer", base[0], base[2], top(blob(0, kind, **full)))
    saved = {"Config": "@0@.json", "RepoTags": ["a.example/app:v1", "b:v2"], "Layers": ["l/layer.tar"]}
    recipe("docker", ("l/layer.tar", layer), ("blob", config), ("manifest.json", text([{**saved, "Config": "blobs/sha256/@0@"}])))
    digest = hashlib.sha256(config).hexdigest()
    saved = text([{**saved, "Config": digest + ".json"}])
    for name, content in [("plain", layer), ("gzip", gzip.compress(layer, mtime=0))]:
        write("import", f"docker-{name}-tar", archive([entry("manifest.json", data=saved), entry(digest + ".json", data=config), entry("l/layer.tar", data=content)]))
    linked = [entry("manifest.json", data=saved), entry("a.json", data=config), entry(digest + ".json", tarfile.LNKTYPE, link="a.json"), entry("l/layer.tar", tarfile.SYMTYPE, link="../layer"), entry("layer", data=layer)]
    write("import", "docker-links-tar", archive(linked))
    packed = gzip.compress(layer, mtime=0)
    describe = lambda kind, content: descriptor(kind, len(content), digest="sha256:" + hashlib.sha256(content).hexdigest())
    manifest = text({"schemaVersion": 2, "config": describe(OCI + "config.v1+json", config), "layers": [describe(OCI + "layer.v1.tar+gzip", packed)]})
    top = text({"schemaVersion": 2, "manifests": [{**describe(kind, manifest), **full}]})
    place = lambda content: "blobs/sha256/" + hashlib.sha256(content).hexdigest()
    write("import", "oci-tar", archive([entry("./index.json", data=top)] + [entry(place(content), data=content) for content in [manifest, config, packed]]))


# Credentials: docker configurations, answers of plug-ins, helpers and token services. The password is always the same.


def answers():
    def put(target, name, document):
        write(target, name, json.dumps(document, separators=(",", ":")).encode())

    auth = base64.b64encode(b"user:hunter2").decode()
    login = {"username": "user", "password": "hunter2"}
    put("logins", "auth", {"auths": {"a.example": {"auth": auth}, "https://index.docker.io/v1/": {"auth": auth, "email": "e"}}})
    put("logins", "fields", {"auths": {"*.example:443": login}, "credsStore": "x", "credHelpers": {"a.example": "y", "docker.io": ""}})
    put("logins", "old", {"a.example": {**login, "Auth": auth}, "b.example": {}})
    put("logins", "refused", {"auths": {"a.example": {"auth": "!"}, "b.example": {"auth": base64.b64encode(b"hunter2").decode()}}})
    write("logins", "any-case", b'{"AUTHS":{"a.example":{"Username":"user","PASSWORD":"hunter2"}},"auths":null}')
    answer = {"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry"}
    put("plugins", "answer", {**answer, "cacheDuration": "6h0m1.5s", "auth": {"a.example": login, "*.b.example/c": login}})
    put("plugins", "empty", {**answer, "cacheDuration": None, "auth": None})
    put("plugins", "version", {**answer, "apiVersion": "credentialprovider.kubelet.k8s.io/v2"})
    put("plugins", "helper", {"ServerURL": "a.example", "Username": "user", "Secret": "hunter2"})
    put("plugins", "helper-token", {"Username": "<token>", "Secret": "hunter2"})
    write("plugins", "helper-fails", b'{"Secret":"hunter2"}                token=hunter2 expired\nlog in')
    provider = {"name": "a", "matchImages": ["*.example"], "defaultCacheDuration": "1h", "apiVersion": answer["apiVersion"], "env": [{"name": "A", "value": "hunter2"}]}
    put("plugins", "config", {"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]})
    yaml = b"kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n- name: a\n  matchImages: ['*.example']\n"
    write("plugins", "config-yaml", yaml + b"  defaultCacheDuration: 1h\n  tokenAttributes: {serviceAccountTokenAudience: x, cacheType: Token}\n")
    put("tokens", "token", {"token": "hunter2", "access_token": "other", "expires_in": 300, "issued_at": "2026-01-02T03:04:05Z"})
    put("tokens", "access-token", {"token": "", "access_token": "hunter2"})
    put("tokens", "none", {"token": None, "expires_in": -1})


# Files of the state directory.


def states():
    def text(document):
        return json.dumps(document, separators=(",", ":")).encode()

    version = {"apiVersion": "kubelet.config.k8s.io/v1beta1"}
    secret = {"uid": "u", "namespace": "n", "name": "s", "credentialHash": "h"}
    account = {"uid": "u", "namespace": "n", "name": "a"}
    mapping = {"a.example/app": {"kubernetesSecrets": [secret], "kubernetesServiceAccounts": [account]}, "b": {"nodePodsAccessible": True}}
    record = {"kind": "ImagePulledRecord", **version, "lastUpdatedTime": "2026-01-02T03:04:05Z", "imageRef": "sha256:1", "credentialMapping": mapping}
    write("records", "record", text(record))
    write("records", "record-old", text({**record, "apiVersion": "kubelet.config.k8s.io/v1alpha1", "lastUpdatedTime": None}))
    write("records", "record-yaml", b"kind: ImagePulledRecord\napiVersion: kubelet.config.k8s.io/v1beta1\nimageRef: sha256:1\ncredentialMapping: {}\n")
    write("records", "intent", text({"kind": "ImagePullIntent", **version, "image": "a.example/app:v1"}))
    time = {"secs_since_epoch": TIME, "nanos_since_epoch": 1}
    nanos = TIME * 1_000_000_000
    usage = {"first_seen": nanos, "last_used": nanos + 1, "in_use": True, "origin": "pulled", "user": "default/pod"}
    anchor = {"boot": "b", "uptime": 1, "steady": nanos}
    for name, window in [("watching", {"since": time, "last_pass": time, "containers": 3, "vanished_at": None}), ("empty", {})]:
        images = {"sha256:" + "1" * 64: usage, "sha256:" + "2" * 64 + ",kata": {"released_at": nanos, "gone": nanos}}
        body = text({"version": 1, "window": window, "anchor": anchor, "images": images})
        write("ledger", name, b"sha256:" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    write("ledger", "no-digest", b"{}")
    at = "2026-01-02T03:04:05Z"
    act = {"at": at, "code": "pulled", "keys": ["sha256:1"], "names": ["app:v1"], "by": "command", "bytes": 1, "tookMs": 2}
    run = {"head": {"at": at, "until": at, "by": "timer"}, "decided": [{"key": "sha256:1", "names": ["app:v1"], "size": 1, "goes": True, "code": "age", "text": "old"}]}
    removed = {"key": "sha256:1", "result": {"removed": 1}}
    lost = {"lost": {"at": at, "count": 2**64 - 1, "error": "full"}}
    lines = [{"act": act}, {"act": {**act, "code": "removing"}}, {"run": {**run, "outcomes": [removed]}}, {"run": {**run, "gone": ["sha256:1"], "leftOut": 1}}]
    write("decisions", "history", b"".join(text(line) + b"\n" for line in lines))
    write("decisions", "lost", b"".join(text(line) + b"\n" for line in [lost, {"act": {**act, "code": "pull_failed", "keys": []}}]))
    write("decisions", "torn", text(lines[0]) + b"\n" + text(lines[1])[:40])


# Configurations: what a kubelet and the packages have.


def configurations():
    head = b"apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n"
    kubelet = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    keys = b"imageGCHighThresholdPercent: 85\nimageGCLowThresholdPercent: 80\nimageMinimumGCAge: 2m0s\nimageMaximumGCAge: 0s\n"
    keys += b"serializeImagePulls: false\nmaxParallelImagePulls: 4\nregistryPullQPS: 5\nregistryBurst: 10\nfeatureGates:\n  ImageMaximumGCAge: true\n"
    keys += b"evictionHard:\n  imagefs.available: 15%\n  nodefs.inodesFree: 5%\n  memory.available: 100Mi\n"
    write("configuration", "kubelet", kubelet + keys + b"authentication: {webhook: {enabled: true}}\nclusterDNS: [10.96.0.10]\n")
    write("configuration", "kubelet-eviction", kubelet + b"evictionSoft: {imagefs.available: 20%}\nevictionSoftGracePeriod: {imagefs.available: 1m30s}\nevictionMinimumReclaim: {imagefs.available: 2Gi}\ntracing: {endpoint: 'localhost:4317', samplingRatePerMillion: 100}\n")
    write("configuration", "own", head + keys)
    proxies = b"registry:\n  proxies:\n  - {hosts: ['*.a.example'], url: 'http://user:hunter2@proxy.example:3128'}\n"
    write("configuration", "own-proxies", head + proxies)
    write("configuration", "own-anchors", head + b"preloadedImagesVerificationAllowlist: &a ['a.example/*', b.example/c]\nevictionHard: &b {imagefs.available: 5%}\nevictionSoft: *b\n")
    write("configuration", "own-json", b'{"apiVersion":"imagelet.dev/v1alpha1","kind":"ImageletConfiguration","store":{"durability":"background"},"imageService":{"cri":{"endpoint":"unix:///run/containerd/containerd.sock"}}}')
    write("configuration", "refused", head + b"imageGCHighThreshold: 85\nstore: [1]\nimageMinimumGCAge: soon\nregistryPullQPS: -1\n")
    packaged = pathlib.Path(__file__).parent.parent / "packaging"
    for number, path in enumerate(sorted(packaged.rglob("*.yaml"))):
        write("configuration", f"packaged-{number}", path.read_bytes())


# Messages of Protocol Buffers: a field is a number with a number, a text or fields.


def protobuf(*fields):
    def varint(value):
        value %= 1 << 64
        out = b""
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def digest_of(letter):
    return "sha256:" + letter * 64


def cri_messages():
    p = protobuf
    spec = p((1, "a.example:5000/team/app:v1"), (2, p((1, "note"), (2, "x"))), (18, "app:v1"), (19, "kata"))
    pod = p((1, p((1, "web"), (2, "uid"), (3, "default"), (4, 1))), (7, p((1, "io.containerd.cri.runtime-handler"), (2, "kata"))))
    basic = p((1, "user"), (2, "hunter2"), (4, "https://a.example:5000"))
    write("cri", "list-request", p((1, p((1, spec)))))
    write("cri", "status-request", p((1, spec), (2, 1)))
    write("cri", "pull", p((1, spec), (2, basic), (3, pod)))
    for name, auth in [("auth", p((3, "dXNlcjpodW50ZXIy"))), ("token", p((5, "hunter2"), (4, "a.example"))), ("registry-token", p((6, "hunter2")))]:
        write("cri", f"pull-{name}", p((1, p((1, "busybox"))), (2, auth)))
    image = p((1, digest_of("a")), (2, "a.example/app:v1"), (2, "b.example/app:v2"), (3, "a.example/app@" + digest_of("b")), (4, 1 << 30), (5, p((1, 65534))), (7, spec), (8, 1))
    other = p((1, digest_of("c")), (4, 7), (6, "nobody"))
    write("cri", "images", p((1, image), (1, other)))
    write("cri", "status", p((1, image), (2, p((1, "info"), (2, '{"imageSpec":{}}')))))
    disk = p((1, TIME * 1_000_000_000), (2, p((1, "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"))), (3, p((1, 1 << 40))), (4, p((1, 1000))))
    write("cri", "disks", p((1, disk), (2, disk)))
    write("cri", "disks-of-containerd", p((1, disk)))
    container = p((1, "c1"), (2, "s1"), (3, p((1, "web"), (2, 1))), (4, spec), (5, digest_of("a")), (6, 1), (7, TIME), (8, p((1, "io.kubernetes.pod.uid"), (2, "uid"))), (10, digest_of("a")))
    write("cri", "containers", p((1, container), (1, p((1, "c2"), (6, 9), (7, -1)))))
    write("cri", "sandboxes", p((1, p((1, "s1"), (2, p((1, "web"), (2, "uid"), (3, "default"))), (3, 1), (4, TIME), (7, "kata")))))
    mounts = [(14, p((9, spec))), (14, p((9, p((1, digest_of("d")), (20, digest_of("e"))))))]
    write("cri", "container", p((1, p((1, "c1"), (2, p((1, "web"))), (4, TIME), (8, spec), (9, digest_of("a")), *mounts))))
    write("cri", "version", p((1, "0.1.0"), (2, "containerd"), (3, "v1.7.24"), (4, "v1")))
    write("cri", "runtime", p((1, p((1, p((1, "RuntimeReady"), (2, 1))), (1, p((1, "NetworkReady"), (4, "no network"))))), (2, p((1, "config"), (2, "{}")))))
    for number, text in enumerate(["RegistryUnavailable: dial tcp: connection refused", "rpc error: code = NotFound desc = a.example/app:v1: not found", "failed to pull: unexpected status 401 Unauthorized for user:hunter2", "dXNlcjpodW50ZXIy " * 300]):
        write("cri", f"refusal-{number}", text.encode())


def containerd_lists():
    p = protobuf
    label = lambda key, value: p((1, "containerd.io/" + key), (2, value))
    a, b, c, d, e, f = (digest_of(letter) for letter in "abcdef")
    blob = lambda digest, size, *labels: (2, p((1, digest), (2, size), *[(5, label(*pair)) for pair in labels]))
    record = lambda name, target: (1, p((1, name), (2, p((1, "io.cri-containerd.image"), (2, "managed"))), (3, p((2, target), (3, 7)))))
    snapshot = lambda name, parent, kind=3, *labels: (4, p((1, name), (2, parent), (3, kind), (4, p((1, TIME), (2, 1))), *[(6, label(*pair)) for pair in labels]))
    index = blob(a, 700, ("gc.ref.content.m.0", b), ("distribution.source.a.example", "team/app"))
    manifest = blob(b, 900, ("gc.ref.content.config", c), ("gc.ref.content.l.0", d), ("gc.ref.content.l.1", e))
    config = blob(c, 1500, ("gc.ref.snapshot.overlayfs", f))
    layers = [blob(d, 1 << 20), blob(e, 5000, ("gc.expire", "2026-01-02T03:04:05Z"))]
    tree = [(3, "overlayfs"), snapshot(d, ""), snapshot(f, d), snapshot("active", f, 2)]
    names = [record(c, a), record("a.example/team/app:v1", a), record("a.example/team/app@" + a, a)]
    write("containerd", "image", p(*names, index, manifest, config, *layers, *tree))
    write("containerd", "shared", p(*names, record("b.example/app:v1", b), index, manifest, config, *layers, *tree, (5, p((1, d), (2, "content"))), (6, e)))
    write("containerd", "leased", p(*names, index, manifest, config, *tree, (5, p((1, f), (2, "snapshots/overlayfs")))))
    write("containerd", "other-snapshotter", p(record(c, b), blob(b, 1, ("gc.ref.content.config", c)), blob(c, -1, ("gc.ref.snapshot.stargz/x", f), ("gc.root", "x")), (3, "native"), snapshot(f, f)))
    write("containerd", "circle", p(record("a.example/app:v1", a), blob(a, 1, ("gc.ref.content", b)), blob(b, 1, ("gc.ref.content/x", a), ("gc.ref.content.config", a))))


if __name__ == "__main__":
    if sys.argv[1:]:
        for path in sys.argv[2:]:
            content = pathlib.Path(path).read_bytes()
            write(sys.argv[1], hashlib.sha1(content).hexdigest(), content)
    else:
        os.umask(0o022)
        for make in [archives, artifacts, documents, streams, recipes, names, challenges, registries, policies, imports, answers, states, configurations, cri_messages, containerd_lists]:
            make()
    keep()
