"""Images of many gigabytes that are stored nowhere: each byte of their layers is made when it is asked for."""

import bisect
import hashlib
import itertools
import json
import random
import tarfile
import threading
import zlib

BLOCK = tarfile.BLOCKSIZE
#: What a large file is made of, and how many kinds of it there are. Half of the bytes are random, as weights nearly are.
PIECE, PIECES = 4 << 20, 16
#: Small files come in groups of so many; a group has about a quarter of a piece.
GROUP, SMALL_MAX = 64, 32 << 10
#: Of the bytes of a layer, those of small files.
SMALL_SHARE = 16
LARGE_FILE = 1 << 30
GZIP_HEAD = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255))
MEDIA = "application/vnd.oci.image."
REDUCED = 0xEDB88320


class Piece:
    """Bytes, and their deflate blocks, which refer to nothing before them and end on a byte."""

    def __init__(self, plain):
        deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self.plain, self.packed = plain, deflate.compress(plain) + deflate.flush(zlib.Z_FULL_FLUSH)
        self.checksum = zlib.crc32(plain)


class Shift:
    """What so many zero bytes after a text do to its CRC-32: a matrix over GF(2), one column for each bit."""

    def __init__(self, length):
        one_bit = [REDUCED, *(1 << number for number in range(31))]
        self.columns, power, bits = [1 << number for number in range(32)], one_bit, 8 * length
        while bits:
            if bits & 1:
                self.columns = [multiply(power, column) for column in self.columns]
            power, bits = [multiply(power, column) for column in power], bits >> 1

    def joined(self, before, after):
        """The checksum of two texts, of which the second has this length."""
        return multiply(self.columns, before) ^ after


def multiply(columns, vector):
    product = 0
    for column in columns:
        if vector & 1:
            product ^= column
        vector >>= 1
    return product


class Layer:
    """A gzip layer of about `size` unpacked bytes; the same seed makes the same layer."""

    pieces = None

    def __init__(self, seed, size):
        if Layer.pieces is None:
            chance = random.Random("pieces")
            Layer.pieces = [Piece(half_random(chance, PIECE)) for _ in range(PIECES)]
            Layer.shift = Shift(PIECE)
        chance = random.Random(seed)
        self.parts = list(self.made(chance, size))
        sizes = [len(part.packed) for part in self.parts]
        self.starts = list(itertools.accumulate(sizes, initial=len(GZIP_HEAD)))
        checksum, plain = 0, 0
        for part in self.parts:
            whole = len(part.plain) == PIECE
            checksum = Layer.shift.joined(checksum, part.checksum) if whole else zlib.crc32(part.plain, checksum)
            plain += len(part.plain)
        # An empty last block ends the stream.
        self.tail = b"\x03\x00" + checksum.to_bytes(4, "little") + (plain % (1 << 32)).to_bytes(4, "little")
        self.plain, self.size = plain, self.starts[-1] + len(self.tail)
        digests = [hashlib.sha256(GZIP_HEAD), hashlib.sha256()]
        hashed = threading.Thread(target=lambda: [digests[1].update(part.plain) for part in self.parts])
        hashed.start()
        for part in self.parts:
            digests[0].update(part.packed)
        digests[0].update(self.tail)
        hashed.join()
        self.digest, self.diff_id = (f"sha256:{digest.hexdigest()}" for digest in digests)
        # Only packed bytes are served.
        self.parts = [part.packed for part in self.parts]

    def made(self, chance, size):
        """The parts of the archive: large files, each of pieces, and groups of small files between them."""
        made, number = 0, itertools.count()
        while made < size:
            large = max(1, min(LARGE_FILE, size - made) // PIECE)
            yield Piece(header(f"model/{chance.getrandbits(64):016x}.safetensors", large * PIECE))
            for _ in range(large):
                yield chance.choice(self.pieces)
            made += large * PIECE
            small = 0
            while small < large * PIECE // SMALL_SHARE:
                group = Piece(b"".join(small_file(f"lib/{next(number):06}", chance) for _ in range(GROUP)))
                small += len(group.plain)
                yield group
            made += small
        yield Piece(bytes(2 * BLOCK))

    def read(self, start, end):
        """The packed bytes of a span, piece by piece."""
        if start < len(GZIP_HEAD):
            yield GZIP_HEAD[start:end]
            start = len(GZIP_HEAD)
        at = max(0, bisect.bisect_right(self.starts, start) - 1)
        while start < end and at < len(self.parts):
            first, packed = self.starts[at], self.parts[at]
            yield memoryview(packed)[start - first:end - first]
            start, at = first + len(packed), at + 1
        if start < end:
            yield self.tail[start - self.starts[-1]:end - self.starts[-1]]


def half_random(chance, size):
    """Random bytes and text by turns: gzip makes two thirds of it."""
    run = 4096
    text = (b"layer.weight.%d " % number for number in itertools.count())
    runs = (chance.randbytes(run) if turn % 2 else b"".join(itertools.islice(text, 256))[:run] for turn in range(2 * size // run))
    return b"".join(runs)[:size]


def small_file(name, chance):
    content = chance.randbytes(16) * (chance.randrange(SMALL_MAX) // 16)
    return header(name, len(content)) + content + bytes(-len(content) % BLOCK)


def header(name, size):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 1_700_000_000
    return entry.tobuf(tarfile.GNU_FORMAT)


class MadeImage:
    """An image of one layer in the registry."""

    def __init__(self, name, size):
        self.name, self.layer = name, Layer(name, size)
        config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [self.layer.diff_id]}}
        self.config = json.dumps(config).encode()
        layer = {"mediaType": f"{MEDIA}layer.v1.tar+gzip", "digest": self.layer.digest, "size": self.layer.size}
        manifest = {"schemaVersion": 2, "mediaType": f"{MEDIA}manifest.v1+json", "layers": [layer]}
        manifest["config"] = {"mediaType": f"{MEDIA}config.v1+json", "digest": digest(self.config), "size": len(self.config)}
        self.manifest = json.dumps(manifest).encode()
        self.id = digest(self.config)


def digest(text):
    return f"sha256:{hashlib.sha256(text).hexdigest()}"
