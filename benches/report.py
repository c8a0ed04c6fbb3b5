"""How results are shown: tables of text, and the machine they come from."""

import os
import pathlib
import platform
import statistics

import candidates
from bed import run


def median(numbers):
    return statistics.median(numbers)


def spread(numbers, digits=2):
    """`median [least-most]`."""
    return f"{median(numbers):.{digits}f} [{min(numbers):.{digits}f}-{max(numbers):.{digits}f}]"


def megabytes(number):
    return f"{number / 1e6:.1f}"


def table(title, head, rows):
    """Prints a table, the first column to the left."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row):
        first, *others = zip(row, widths)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    print(f"\n{title}")
    for row in [head, ["-" * width for width in widths], *rows]:
        print(f"  {line(row)}")
    print(end="", flush=True)


def machine(containerd, place):
    """Where this is measured, over which disk, and with which containerd."""
    names = [line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    autogroup = pathlib.Path("/proc/sys/kernel/sched_autogroup_enabled")
    memory = next(int(line.split()[1]) * 1024 for line in open("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory": memory,
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "autogroup": autogroup.exists() and autogroup.read_text().strip() == "1",
        "containerd": candidates.version(containerd),
        "disk": " ".join(run("findmnt", "--first-only", "--noheadings", "--output", "SOURCE,FSTYPE", "--target", place).split()),
    }


def show_machine(found):
    print(
        f"machine: {found['cpu']}, {found['cores']} cores, {found['memory'] / 2**30:.0f} GiB, Linux {found['kernel']}, "
        f"containerd {found['containerd']}, file systems over {found['disk']}"
    )
    if found["load"] > 0.5:
        print(f"warning: the load is {found['load']:.1f}; these numbers are good for nothing but their own test")
    if found["autogroup"]:
        print("warning: sched_autogroup_enabled is 1: sessions share the cores evenly, whatever runs in them")
