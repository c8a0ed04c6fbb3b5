#!/usr/bin/env python3
"""Writes the linker script that puts what a daemon runs at its start and while it is idle beside each other.

Usage: start_order.py PROGRAM OUT

PROGRAM is `imagelet` with symbols; it is started on an empty store and asked what a kubelet asks. Each of its functions has a breakpoint
until it is called for the first time. The functions found are written as patterns of section names, in groups where most of a module is
called, so that small changes of the code do not make the script wrong: what it does not name stands elsewhere, which costs memory only.
x86-64 Linux.
"""

import ctypes
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

SECONDS = 25
BREAKPOINT = b"\xcc"
TRACEME, CONT, GETREGS, SETREGS, SETOPTIONS = 0, 7, 12, 13, 0x4200
TRACE_CLONE, TRACE_EXEC, EXIT_KILL = 1 << 3, 1 << 4, 1 << 20
EVENT_EXEC = 4
WAIT_ALL = 0x40000000
REGISTERS, INSTRUCTION_POINTER = struct.Struct("27Q"), 16
# What a line of the script is worth in bytes of functions that are not called, and what a called function costs that is left out: more than
# its own pages, as the kernel maps sixteen at once.
LINE_BYTES, LEFT_OUT_BYTES = 1500, 40_000
CLIENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import cri
with cri.Connection(sys.argv[2]) as node:
    for _ in range(3):
        node.list(), node.status("busybox:1"), node.filesystem()
        time.sleep(3)
"""

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, pid, address=0, data=0):
    if libc.ptrace(request, pid, address, data) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request} of {pid}")


def functions(program):
    """All names and the size of each function, by address: equal functions are one."""
    found = {}
    listed = subprocess.run(["nm", "--print-size", "--defined-only", program], capture_output=True, text=True, check=True)
    for fields in map(str.split, listed.stdout.splitlines()):
        if len(fields) == 4 and fields[2] in "tTwW":
            names, _ = found.setdefault(int(fields[0], 16), ([], int(fields[1], 16)))
            names.append(fields[3])
    return found


class Traced:
    """A daemon with a breakpoint at each function that was not called yet."""

    def __init__(self, program, known, place):
        self.program, self.known, self.called, self.original = os.path.realpath(program), known, set(), {}
        self.pid = os.fork()
        if self.pid == 0:
            libc.ptrace(TRACEME, 0, 0, 0)
            log = os.open(place / "log", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.execv(self.program, [self.program, "--store", str(place / "store"), "serve", "--socket", str(place / "socket")])
        os.waitpid(self.pid, 0)
        ptrace(SETOPTIONS, self.pid, 0, TRACE_CLONE | TRACE_EXEC | EXIT_KILL)
        self.arm()
        ptrace(CONT, self.pid)

    def arm(self):
        """The daemon executes itself once more at its start, which ends all breakpoints."""
        maps = pathlib.Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        self.base = min(int(line.partition("-")[0], 16) for line in maps if line.endswith(self.program))
        self.memory = open(f"/proc/{self.pid}/mem", "r+b", buffering=0)
        for address in self.known.keys() - self.called:
            self.original[address] = self.write(address, BREAKPOINT)

    def write(self, address, byte):
        self.memory.seek(self.base + address)
        former = self.memory.read(1)
        self.memory.seek(self.base + address)
        self.memory.write(byte)
        return former

    def step(self):
        """Handles one stop of a thread, if there is one. Returns whether there was."""
        thread, status = os.waitpid(-1, WAIT_ALL | os.WNOHANG)
        if thread == 0 or not os.WIFSTOPPED(status):
            if thread == self.pid:
                raise SystemExit("start_order: the daemon ended")
            return thread != 0
        caught, event, passed_on = os.WSTOPSIG(status), status >> 16, 0
        if event == EVENT_EXEC:
            self.arm()
        elif caught == signal.SIGTRAP and event == 0:
            self.reached(thread)
        elif caught not in (signal.SIGTRAP, signal.SIGSTOP):
            passed_on = caught
        ptrace(CONT, thread, 0, passed_on)
        return True

    def reached(self, thread):
        registers = ctypes.create_string_buffer(REGISTERS.size)
        ptrace(GETREGS, thread, 0, ctypes.cast(registers, ctypes.c_void_p))
        values = list(REGISTERS.unpack(registers.raw))
        address = values[INSTRUCTION_POINTER] - 1 - self.base
        if address in self.known:
            if address not in self.called:
                self.called.add(address)
                self.write(address, self.original[address])
            values[INSTRUCTION_POINTER] -= 1
            changed = ctypes.create_string_buffer(REGISTERS.pack(*values))
            ptrace(SETREGS, thread, 0, ctypes.cast(changed, ctypes.c_void_p))


def called(program, known):
    """The addresses of the functions that a daemon calls, which nothing but a kubelet's questions reaches."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        daemon, client = Traced(program, known, place), None
        benches = pathlib.Path(__file__).resolve().parent.parent / "benches"
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if client is None and (place / "socket").exists():
                client = subprocess.Popen([sys.executable, "-c", CLIENT, benches, place / "socket"])
            if not daemon.step():
                time.sleep(0.0005)
        os.kill(daemon.pid, signal.SIGKILL)
        if client is None:
            raise SystemExit("start_order: no socket appeared:\n" + (place / "log").read_text()[-2000:])
        return daemon.called


def parts(name):
    """A mangled name, cut where modules and types begin; what differs from build to build is left out."""
    if name.startswith("_R"):  # Only the standard library's own code.
        return ["_R"]
    if not name.startswith("_ZN"):
        return [re.sub(r"\d+_\d+_\d+", "*", name)]  # Of C; a library has its version in names.
    found, at = ["_ZN"], 3
    while length := re.match(r"\d+", name[at:]):
        at += len(length[0])
        word = name[at : at + int(length[0])]
        at += len(word)
        if re.fullmatch(r"h[0-9a-f]{16}", word):
            break
        if "$" in word or ".." in word:
            # The length depends on what follows.
            found += ["*"] + [part for part in re.split(r"(?<=\.\.)|(?<=\$LT\$)|(?<=\$u20\$)|(?<=\$GT\$)", word) if part]
        else:
            found.append(length[0] + word)
    return [*found, "17h"]


class Node:
    """All functions whose names begin alike."""

    def __init__(self):
        self.below, self.idle_bytes, self.calls = {}, 0, 0

    def cheapest(self, path):
        """The patterns for the called functions here, and what they cost."""
        if not self.calls:
            return 0, []
        here = (LINE_BYTES + self.idle_bytes, [path])
        if not self.below:
            return min(here, (LEFT_OUT_BYTES * self.calls, []))
        found = [node.cheapest([*path, part]) for part, node in self.below.items()]
        split = (sum(cost for cost, _ in found), [pattern for _, patterns in found for pattern in patterns])
        return min(here, split, key=lambda one: one[0]) if path not in ([], ["_ZN"]) else split


def patterns(known, found):
    root = Node()
    for address, (names, size) in known.items():
        for name in names:
            node = root
            for part in parts(name):
                node = node.below.setdefault(part, Node())
                node.idle_bytes += 0 if address in found else size
                node.calls += address in found
            root.calls += address in found
    _, chosen = root.cheapest([])
    return sorted({re.sub(r"\*+", "*", "".join(path) + "*") for path in chosen})


def main():
    program, out = sys.argv[1:]
    known = functions(program)
    found = called(program, known)
    lines = patterns(known, found)
    pathlib.Path(out).write_text(
        "/* What a daemon calls at its start and while it is idle. Written by `make start-order`. */\n"
        "SECTIONS\n{\n  .text.start : {\n" + "".join(f"    *(.text*.{line})\n" for line in lines) + "  }\n}\nINSERT BEFORE .text;\n"
    )
    print(f"{len(found)} functions, {sum(known[address][1] for address in found):,} bytes; {len(lines)} patterns")


if __name__ == "__main__":
    main()
