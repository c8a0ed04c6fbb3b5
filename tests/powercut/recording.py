"""A recording: what a disk held at first, its writes and flushes since, and the disks that a power cut can leave."""

import mmap
import os
import random

from recorder import FLUSH_ENTRY, HEAD, WRITE_ENTRY

SECTOR = 512
# What becomes of the writes that no completed flush covers.
LOSE_ALL, KEEP_ALL, KEEP_SOME, KEEP_FEW, TEAR = "lose all", "keep all", "keep some", "keep few", "tear"
MODES = (LOSE_ALL, KEEP_ALL, KEEP_SOME, KEEP_FEW, TEAR)


class Entry:
    """A write or a flush of the log."""

    __slots__ = ("covered", "length", "offset", "place")

    def __init__(self, length, offset, covered, place):
        self.length, self.offset, self.covered, self.place = length, offset, covered, place

    @property
    def is_flush(self):
        return self.covered is not None


class Cut:
    """A power cut after so many entries of the log, and what becomes of the writes under way."""

    def __init__(self, position, mode, seed):
        self.position, self.mode, self.seed = position, mode, seed

    def __str__(self):
        return f"{self.position}:{self.mode.replace(' ', '-')}:{self.seed}"

    @classmethod
    def parse(cls, text):
        position, mode, seed = text.split(":")
        return cls(int(position), mode.replace("-", " "), int(seed))


class Recording:
    """The log of a disk, over the image that it starts from; writes to the ranges `whole` are not torn."""

    def __init__(self, image, log, whole=()):
        self.image, self.whole = image, whole
        with open(log, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.entries = list(self.read())
        covered = 0
        #: For each length of the log: the entries that a completed flush covers.
        self.durable = [0]
        for entry in self.entries:
            if entry.is_flush:
                covered = max(covered, entry.covered)
            self.durable.append(covered)

    def read(self):
        place = 0
        while place < len(self.bytes):
            kind, length, offset, covered = HEAD.unpack_from(self.bytes, place)
            place += HEAD.size
            assert kind in (WRITE_ENTRY, FLUSH_ENTRY), f"an entry of kind {kind}"
            yield Entry(length, offset, covered if kind == FLUSH_ENTRY else None, place)
            place += length

    def flushes(self, start, end):
        return [at for at in range(start, end) if self.entries[at].is_flush]

    def cuts(self, count, start, end, marks, seed):
        """Cuts by seed, in the order of the log: half at flushes and acknowledgements, half anywhere."""
        chance = random.Random(seed)
        edges = [at + after for at in self.flushes(start, end) for after in (0, 1)] + [mark for mark in marks if mark >= start]
        cuts = []
        for number in range(count):
            position = chance.choice(edges) if edges and number % 2 == 0 else chance.randint(start, end)
            cuts.append(Cut(position, chance.choice(MODES), chance.getrandbits(32)))
        return sorted(cuts, key=lambda cut: cut.position)

    def disks(self, cuts, work):
        """The disk after each cut, which must be in the order of the log; `work` is a file for the durable part.

        Yields the cut and a function that writes its disk to a path.
        """
        copy_sparse(self.image, work)
        descriptor = os.open(work, os.O_RDWR)
        done = 0
        try:
            for cut in cuts:
                durable = self.durable[cut.position]
                for at in range(done, durable):
                    self.apply(descriptor, self.entries[at])
                done = max(done, durable)
                yield cut, lambda path, cut=cut: self.leave(cut, work, path)
        finally:
            os.close(descriptor)

    def leave(self, cut, work, path):
        copy_sparse(work, path)
        chance = random.Random(cut.seed)
        descriptor = os.open(path, os.O_RDWR)
        try:
            for at in range(self.durable[cut.position], cut.position):
                entry = self.entries[at]
                if not entry.is_flush:
                    self.apply_part(descriptor, entry, cut.mode, chance)
        finally:
            os.close(descriptor)

    def apply(self, descriptor, entry):
        if not entry.is_flush:
            os.pwrite(descriptor, memoryview(self.bytes)[entry.place : entry.place + entry.length], entry.offset)

    def apply_part(self, descriptor, entry, mode, chance):
        """Writes under way reach the disk in any order: each is kept or lost on its own, when torn each sector."""
        share = {LOSE_ALL: 0, KEEP_ALL: 1, KEEP_SOME: 0.5, KEEP_FEW: 0.15, TEAR: 0.5}[mode]
        if mode != TEAR or any(entry.offset in places for places in self.whole):
            if chance.random() < share:
                self.apply(descriptor, entry)
            return
        whole = memoryview(self.bytes)[entry.place : entry.place + entry.length]
        for start in range(0, entry.length, SECTOR):
            if chance.random() < share:
                os.pwrite(descriptor, whole[start : start + SECTOR], entry.offset + start)


def copy_sparse(source, target):
    """Copies a file without its holes."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        start = 0
        while start < size:
            try:
                start = os.lseek(reader.fileno(), start, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            os.lseek(reader.fileno(), start, os.SEEK_SET)
            os.lseek(writer.fileno(), start, os.SEEK_SET)
            while start < end:
                start += os.sendfile(writer.fileno(), reader.fileno(), start, end - start)
