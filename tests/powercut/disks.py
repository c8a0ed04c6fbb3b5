"""Loop devices, mounts and namespaces, by system calls: everything ends with the process that asked for it."""

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import stat
import struct
import subprocess
import uuid

LIBC = ctypes.CDLL(None, use_errno=True)
LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LOOP_MAJOR = 7
AUTOCLEAR, DIRECT_IO = 4, 16
SECTOR = 512
MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 1024, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS = 0x00020000
ATTEMPTS = 50
BOOT_ID = "/proc/sys/kernel/random/boot_id"
class Failed(Exception):
    """The bed cannot go on; the message says why."""


def run(*command, **options):
    """Runs a command that has to succeed and returns its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except FileNotFoundError as error:
        raise Failed(f"`{error.filename}` is not installed") from error
    if done.returncode != 0:
        raise Failed(f"`{' '.join(map(str, command))}`: {done.stderr.strip() or done.returncode}")
    return done.stdout


class FileSystem:
    """How a file system is made, mounted while it is recorded, and checked, and the writes that it needs whole."""

    def __init__(self, name, form, options, check, whole):
        self.name, self.form, self.options, self.check, self.whole = name, form, options, check, whole

    def format(self, image, size):
        with open(image, "wb") as file:
            file.truncate(size)
        run(*self.form, str(image))

    def is_sound(self, image):
        """An empty text, or what the checker of the file system finds."""
        done = subprocess.run((*self.check, str(image)), capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else (done.stdout + done.stderr)[-500:]


EXT4_EXTENDED = "nodiscard,lazy_itable_init=0,lazy_journal_init=0"
# No discard, so that every block that is read was written. ext4's tables are written at once, so that a recording has no
# writes of the kernel's own. Without `auto_da_alloc` and with frequent commits, metadata reaches the disk before its data
# as early as it can: a missing sync shows. A superblock has one checksum over several sectors, and the file system relies
# on the disk to write them at once.
FILE_SYSTEMS = {
    "ext4": FileSystem(
        "ext4",
        ("mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "8192", "-J", "size=8", "-E", EXT4_EXTENDED),
        "commit=1,noauto_da_alloc",
        ("e2fsck", "-fn"),
        [range(0, 4096)],
    ),
    "btrfs": FileSystem(
        "btrfs",
        ("mkfs.btrfs", "-q", "-K", "-m", "single"),
        "commit=1,nodiscard",
        ("btrfs", "check", "-q"),
        [range(start, start + 4096) for start in (64 << 10, 64 << 20)],
    ),
}


def system_call(name, *arguments):
    if LIBC[name](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source, target, kind, flags=0, options=""):
    text = [str(part).encode() if part is not None else None for part in (source, target, kind)]
    system_call("mount", *text, ctypes.c_ulong(flags), options.encode())


def unmount(target, flags=0):
    system_call("umount2", str(target).encode(), flags)


def own_mounts():
    """Gives this process mounts of its own, which end with its last child."""
    system_call("unshare", CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def another_boot(folder):
    """Shows this process another boot id, as after a power cut, until it is unmounted. Needs mounts of its own."""
    path = pathlib.Path(folder) / "boot_id"
    path.write_text(f"{uuid.uuid4()}\n")
    mount(path, BOOT_ID, None, MS_BIND)


@contextlib.contextmanager
def loop_device(path, direct=False):
    """A loop device over a file; the kernel releases it with its last user."""
    backing = os.open(path, os.O_RDWR)
    control = os.open("/dev/loop-control", os.O_RDWR)
    try:
        device, descriptor = attach(control, backing, AUTOCLEAR | (DIRECT_IO if direct else 0))
    finally:
        os.close(control)
        os.close(backing)
    try:
        yield device
    finally:
        os.close(descriptor)


def attach(control, backing, flags):
    """Another process may take the free device first: then the next one is tried."""
    for _ in range(ATTEMPTS):
        number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
        device = f"/dev/loop{number}"
        if not os.path.exists(device):
            os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(LOOP_MAJOR, number))
        descriptor = os.open(device, os.O_RDWR)
        information = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, b"powercut", b"", b"", 0, 0)
        config = struct.pack("=II", backing, SECTOR) + information + bytes(64)
        try:
            fcntl.ioctl(descriptor, LOOP_CONFIGURE, config)
            return device, descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno != errno.EBUSY:
                raise
    raise Failed("no loop device is free")


def is_direct(device):
    """Whether the loop device passes the page cache of its backing file."""
    return pathlib.Path(f"/sys/block/{pathlib.Path(device).name}/loop/dio").read_text().strip() == "1"


@contextlib.contextmanager
def mounted(device, folder, kind, options=""):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    mount(device, folder, kind, MS_NOATIME, options)
    try:
        yield folder
    finally:
        try:
            unmount(folder)
        except OSError:
            unmount(folder, MNT_DETACH)
