"""The recording disk: a file whose writes and flushes are logged in order, served by FUSE.

The kernel's protocol is spoken directly. The file is the root of its own mount, opened without page cache, so that each
write of the loop device above it arrives as a WRITE and each flush as an FSYNC.

A flush promises the writes that were complete when it was sent, and no more. All requests that wait are read before the
first of them is answered: a write that waits beside a flush was not complete, and that flush does not cover it.

The log has one entry after another: HEAD, then the bytes of a write.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import pathlib
import select
import signal
import struct
import traceback

import disks

HEAD = struct.Struct("=BxxxIQQ")  # kind, length, offset of a write, covered entries of a flush
WRITE_ENTRY, FLUSH_ENTRY = 1, 2

REQUEST = struct.Struct("=IIQQIIIHH")
ANSWER = struct.Struct("=IiQ")
TRANSFER = struct.Struct("=QQIIQII")
ATTRIBUTES = struct.Struct("=6Q10I")
FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 2, 3, 4, 14, 15, 16, 17, 18, 20
FLUSH, INIT, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 36, 38, 42
DIRECT = 1  # FOPEN_DIRECT_IO
ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES = 1 << 0, 1 << 5, 1 << 15, 1 << 22
VERSION = (7, 31)
WRITE_MAX = 1 << 20
BUFFER = WRITE_MAX + 4096
PENDING_MAX = 512
GONE = (errno.ENODEV, errno.ENOENT)


class Recorder:
    """The process that serves the file. It must not touch what is mounted above it."""

    def __init__(self, device, image, log, counter):
        self.device, self.image, self.log, self.counter = device, image, log, counter
        self.size = os.fstat(image).st_size
        self.entries = 0

    def serve(self):
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        while True:
            poll.poll()
            try:
                waiting = list(self.waiting())
            except OSError as error:
                if error.errno in GONE:
                    return
                raise
            self.answer_all(waiting)

    def waiting(self):
        """All requests that wait now."""
        while True:
            try:
                yield os.read(self.device, BUFFER)
            except BlockingIOError:
                return

    def answer_all(self, requests):
        covered = self.entries
        for request in requests:
            self.answer(request, covered)

    def answer(self, request, covered):
        _, operation, unique, *_ = REQUEST.unpack_from(request)
        body = memoryview(request)[REQUEST.size :]
        if operation in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        error, out = 0, b""
        if operation == INIT:
            out = self.agree(body)
        elif operation == GETATTR:
            out = struct.pack("=QII", 3600, 0, 0) + self.attributes()
        elif operation == OPEN:
            out = struct.pack("=QII", 1, DIRECT, 0)
        elif operation == READ:
            _, offset, length, *_ = TRANSFER.unpack_from(body)
            out = os.pread(self.image, length, offset)
        elif operation == WRITE:
            _, offset, length, *_ = TRANSFER.unpack_from(body)
            data = body[TRANSFER.size : TRANSFER.size + length]
            os.pwrite(self.image, data, offset)
            self.append(HEAD.pack(WRITE_ENTRY, length, offset, 0), data)
            out = struct.pack("=II", length, 0)
        elif operation == FSYNC:
            self.append(HEAD.pack(FLUSH_ENTRY, 0, 0, covered))
        elif operation == STATFS:
            out = bytes(80)
        elif operation not in (RELEASE, FLUSH, DESTROY):
            error = errno.ENOSYS
        try:
            os.writev(self.device, (ANSWER.pack(ANSWER.size + len(out), -error, unique), out))
        except OSError as failed:
            if failed.errno not in GONE:
                raise

    def agree(self, body):
        _, _, readahead, flags = struct.unpack_from("=IIII", body)
        flags &= ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES
        limits = (PENDING_MAX, PENDING_MAX, WRITE_MAX, 1, WRITE_MAX // 4096, 0, 0)
        return struct.pack("=IIIIHHIIHHI", *VERSION, readahead, flags, *limits) + bytes(28)

    def attributes(self):
        return ATTRIBUTES.pack(1, self.size, self.size // 512, 0, 0, 0, 0, 0, 0, 0o100600, 1, 0, 0, 0, 4096, 0)

    def append(self, *parts):
        os.writev(self.log, parts)
        self.entries += 1
        # Last: an entry that is counted is in the log. One store of the processor: no reader sees half a number.
        self.counter.value = self.entries


@contextlib.contextmanager
def recorded(image, log, folder):
    """Serves the image file, logs its changes, and returns the served file and a function that returns the log's length.

    The image follows the writes; a copy made before is what the log starts from.
    """
    served = pathlib.Path(folder) / "recorded"
    served.touch()
    counter = ctypes.c_uint64.from_buffer(mmap.mmap(-1, mmap.PAGESIZE))
    device = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
    disks.mount("recorder", served, "fuse", 0, f"fd={device},rootmode=100000,user_id=0,group_id=0,max_read={WRITE_MAX}")
    child = os.fork()
    if child == 0:
        serve(device, image, log, counter)
    os.close(device)
    try:
        yield served, lambda: counter.value
    finally:
        with contextlib.suppress(OSError):
            disks.unmount(served, disks.MNT_DETACH)
        # The serving process has a mount of its own, which goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def serve(device, image, log, counter):
    """The life of the serving process."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Else this process, killed last, would unmount the disk above before its end of the device is closed, and wait for
        # its own answer.
        disks.own_mounts()
        content = os.open(image, os.O_RDWR)
        entries = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        Recorder(device, content, entries, counter).serve()
        status = 0
    except BaseException:  # noqa: BLE001: a forked child must not return into its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)
