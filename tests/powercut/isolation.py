"""Where the bed runs: namespaces and memory that end with its process, and workers that see another boot."""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import socket
import struct
import sys
import tempfile
import time
import traceback

import disks

WORKERS = 2
INSIDE = "IMAGELET_POWERCUT_INSIDE"
MEMORY = "/dev/shm"
CLONE_NEWTIME = 0x80


def enter():
    """Starts this program again in namespaces of its own, which end with this process, killed or not."""
    if INSIDE in os.environ:
        bring_loopback_up()
        return
    command = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--mount-proc", "--kill-child", "--fork"]
    os.environ[INSIDE] = "1"
    os.execvp("unshare", [*command, "--", sys.executable, *sys.argv])


def bring_loopback_up():
    up, set_flags, running = 1, 0x8914, 64
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", b"lo", up | running))


@contextlib.contextmanager
def workspace(keep=False, is_seen=False):
    """A folder in memory; no other process sees it unless it is kept, or `is_seen` because an earlier one is read."""
    if not keep and not is_seen:
        disks.mount("powercut", MEMORY, "tmpfs", 0, "mode=0700")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="imagelet-powercut-", dir=MEMORY))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def as_after_a_boot(folder):
    """This process, and all that it starts, see the boot after a power cut: another id, and an uptime of a second."""
    disks.own_mounts()
    disks.another_boot(folder)
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    disks.system_call("unshare", CLONE_NEWTIME)
    offset = int(uptime) - 1
    pathlib.Path("/proc/self/timens_offsets").write_text(f"boottime -{offset} 0\n")


def in_worker(folder, job, share):
    """Runs jobs in a child that sees another boot; returns its process id and the file of its reports."""
    reports = pathlib.Path(tempfile.mkstemp(prefix="reports-", dir=folder)[1])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = pathlib.Path(tempfile.mkdtemp(prefix="worker-", dir=folder))
            as_after_a_boot(own)
            # Only children of this process are in the new time namespace.
            grandchild = os.fork()
            if grandchild == 0:
                with reports.open("w") as file:
                    for number in share:
                        job(number, lambda *report: print(json.dumps(report), file=file, flush=True))
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        except BaseException:  # noqa: BLE001: a forked child must not return into its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)
    return child, reports


def in_workers(folder, job, count):
    """Runs `job` for each number below `count`, spread over workers, and returns all that they report."""
    # The new boot is later than what was recorded.
    time.sleep(1.1)
    shares = [range(first, count, WORKERS) for first in range(WORKERS)]
    workers = [in_worker(folder, job, share) for share in shares]
    failed = [child for child, _ in workers if os.waitpid(child, 0)[1] != 0]
    if failed:
        raise disks.Failed("a worker failed")
    return [json.loads(line) for _, reports in workers for line in reports.read_text().splitlines()]
