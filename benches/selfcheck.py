#!/usr/bin/env python3
"""Checks what the benchmark makes of its results: goals that are met, missed, and not measured; and the order of its turns."""

import contextlib
import io

import bench
import goals
from bed import rotated


def judged(wall, version="2.1.9"):
    """The verdicts and the exit status for a wall clock of `wall` times that of containerd 2.x."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        verdicts = goals.judge({"small": {"imagelet": {"x_wall": wall}}}, version) if wall else goals.judge({}, version)
    return [one["verdict"] for one in verdicts], bench.exit_status(verdicts), printed.getvalue()


def main():
    must, stretch = goals.WALL["small"]
    verdicts, status, printed = judged(must)
    assert (verdicts, status) == (["met"], None) and "1 met, 0 missed" in printed, (verdicts, status, printed)
    assert judged(stretch)[0] == ["stretch"] and judged(must, "1.6.20")[0] == []
    # As printed: a value that rounds to the goal meets it.
    assert judged(must + 0.004)[:2] == (["met"], None)
    verdicts, status, printed = judged(must + 0.01)
    assert (verdicts, status) == (["MISSED"], "error: 1 of 1 goals missed") and "MISSED" in printed, (verdicts, status, printed)
    assert judged(None) == ([], None, "")
    stretch = goals.Goal("", "", "", 2, 1)
    assert [goals.verdict(stretch, value) for value in (1, 2, 2.01)] == ["stretch", "met", "MISSED"]
    turns = [rotated("abc", turn) for turn in range(3)]
    assert turns == [list("abc"), list("bca"), list("cab")] and rotated([], 1) == [], turns
    print("the benchmark's verdicts are sound")


if __name__ == "__main__":
    main()
