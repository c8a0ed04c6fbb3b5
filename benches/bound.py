"""The bound of a pull: the CPU of its parts, each done once by the best tool at hand, over two cores.

Parts: receive the packed layers, hash and unpack them, hash what they hold, create and write the files. Nothing is synced, and
no part waits for another one. Tools of the machine do them, so that the bound is of this machine and of this run.

Beside the bound: the CPU with which the kernel brings the files to the disk. A pull that answers when they are there needs it, too.
"""

import contextlib
import hashlib
import pathlib
import resource
import shutil
import socket

from bed import CLOCK_TICKS, Failed, disk, run, settle
from report import median, table

CORES = 2
TURNS = 3
DISK_BYTES = 10 << 30
PIECE = 1 << 20
UNPACKERS = {"gzip": ("igzip", "-q", "-c", "-d"), "zstd": ("zstd", "-q", "-c", "-d")}
PACKAGES = {"igzip": "isal", "zstd": "zstd"}
PARTS = ("receive", "hash packed", "unpack", "hash", "write")
BESIDE = "to the disk"


def measure(bench, image):
    """The bound of an image in seconds; keeps the CPU seconds of its parts."""
    turns = [parts(bench, image) for _ in range(TURNS)]
    found = {name: median([turn[name] for turn in turns]) for name in (*PARTS, BESIDE)}
    total = sum(found[name] for name in PARTS)
    bench.keep(image, "bound", {"wall": total / CORES, **found})
    row = [*(found[name] for name in PARTS), total, total / CORES, found[BESIDE]]
    table(
        f"{image}: bound, CPU s of the parts of one pass over {CORES} cores, median of {TURNS}",
        [*PARTS, "sum", "bound s", BESIDE], [[f"{seconds:.2f}" for seconds in row]],
    )
    return total / CORES


def parts(bench, image):
    """CPU seconds of each part, of one turn."""
    layers = bench.source.manifest(image)["layers"]
    blobs = [bench.source.corpus / "blobs/sha256" / layer["digest"].removeprefix("sha256:") for layer in layers]
    found = dict.fromkeys((*PARTS, BESIDE), 0.0)
    with disk(bench.place, "bound", DISK_BYTES) as files:
        plain = bench.place / "plain.tar"
        for layer, blob in zip(layers, blobs):
            found["receive"] += spent(lambda: receive(bench.source.address, layer["digest"], layer["size"]))
            found["hash packed"] += spent(lambda: digest(blob))
            unpacker = UNPACKERS["zstd" if layer["mediaType"].endswith("zstd") else "gzip"]
            if shutil.which(unpacker[0]) is None:
                raise Failed(f"`{unpacker[0]}` is not installed: it is in the Debian package {PACKAGES[unpacker[0]]}")
            found["unpack"] += spent(lambda: run("sh", "-c", f"{' '.join(unpacker)} {blob} >/dev/null"))
            run("sh", "-c", f"{' '.join(unpacker)} {blob} >{plain}")
            found["hash"] += spent(lambda: digest(plain))
            before = busy()
            written = spent(lambda: run("tar", "-x", "-f", plain, "-C", files))
            found["write"] += written
            found[BESIDE] += busy() - before - written
        before = busy()
        settle(files)
        found[BESIDE] += busy() - before
        plain.unlink()
    return found


def busy():
    """CPU seconds of the whole machine, the kernel's own threads included."""
    user, nice, system, _, _, interrupts, soft = (int(ticks) for ticks in pathlib.Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft) / CLOCK_TICKS


def spent(work):
    """CPU seconds that it takes, with those of its children."""
    before = used()
    work()
    return used() - before


def used():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def digest(path):
    with pathlib.Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def receive(address, blob, size, start=0):
    """Reads so many bytes of a blob from the registry and drops them; fails where fewer come."""
    host, _, port = address.partition(":")
    with contextlib.closing(socket.create_connection((host, int(port)))) as connection:
        wanted = f"Host: {address}\r\nRange: bytes={start}-{start + size - 1}\r\nConnection: close"
        connection.sendall(f"GET /v2/perf/any/blobs/{blob} HTTP/1.1\r\n{wanted}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := connection.recv(PIECE)):
                raise Failed(f"the registry sends no head for {blob}")
            head += piece
        head, _, begun = head.partition(b"\r\n\r\n")
        if b" 206 " not in head.splitlines()[0]:
            raise Failed(f"the registry answers {head.splitlines()[0].decode()} for {blob}")
        buffer, left = bytearray(PIECE), size - len(begun)
        while left > 0:
            if (count := connection.recv_into(buffer)) == 0:
                raise Failed(f"{left} bytes of {blob} are missing")
            left -= count
