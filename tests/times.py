#!/usr/bin/env python3
"""Shows how long each test took, and names the slowest.

usage: cargo test … 2>&1 | times.py LOG

Copies what `cargo test` prints to LOG as it is, and to its own output with the time of each test. libtest measures no times
on stable Rust. It starts the tests of a program in the order of their names, the next one when one of its threads is free,
and prints a line at the end of each: so a test began at the end of an earlier one.
"""

import os
import re
import sys
import time

SLOWEST = 10
BEGIN = re.compile(r"^running \d+ tests?$")
PROGRAM = re.compile(r"^\s*(?:Running (?:unittests )?(\S+)|Doc-tests (\S+))")
END = re.compile(r"^test (?P<name>.+?) \.\.\. (?P<result>ok|FAILED|ignored.*)$")


class Program:
    """The tests of one program; `threads` of them run at once."""

    def __init__(self, name, began, threads):
        self.name, self.began, self.threads, self.ended, self.within = name, began, threads, {}, 0

    def end(self, test, at):
        self.ended[test] = at

    def times(self):
        """The seconds of each test.

        >>> program = Program("it", 100.0, 2)
        >>> for test, at in [("b", 101.0), ("a", 104.0), ("c", 106.0), ("d", 106.5)]:
        ...     program.end(test, at)
        >>> program.times()
        {'a': 4.0, 'b': 1.0, 'c': 5.0, 'd': 2.5}
        """
        ends = [self.began] * self.threads + sorted(self.ended.values())
        return {test: max(0.0, self.ended[test] - began) for test, began in zip(sorted(self.ended), ends)}


def threads():
    return int(os.environ.get("RUST_TEST_THREADS") or len(os.sched_getaffinity(0)))


def follow(lines, clock, log, out):
    """Copies the lines; returns the programs. A program's times are known at its end, so they are shown then.

    A test may run its own program once more, for itself alone.

    >>> text = ["     Running tests/it/main.rs (target/it-1)", "running 2 tests", "running 1 test", "test a ... ok"]
    >>> text += ["test result: ok.", "test a ... ok", "test b ... ignored", "test result: ok."]
    >>> import io
    >>> out, ticks = io.StringIO(), iter([0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0])
    >>> [program] = follow((line + "\\n" for line in text), lambda: next(ticks), io.StringIO(), out)
    >>> program.name, program.times()
    ('tests/it/main.rs', {'a': 3.0})
    >>> print(out.getvalue().splitlines()[-1])
    times of tests/it/main.rs: a 3.0 s
    """
    programs, name, open_program = [], "", None
    for line in lines:
        now = clock()
        log.write(line)
        out.write(line)
        text = line.rstrip("\n")
        if found := PROGRAM.match(text):
            name = found[1] or f"doc tests of {found[2]}"
        elif BEGIN.match(text) and open_program:
            open_program.within += 1
        elif BEGIN.match(text):
            open_program = Program(name, now, threads())
            programs.append(open_program)
        elif open_program and (found := END.match(text)):
            # An ignored test takes no thread.
            if not found["result"].startswith("ignored"):
                open_program.end(found["name"], now)
        elif open_program and text.startswith("test result:") and open_program.within:
            open_program.within -= 1
        elif open_program and text.startswith("test result:"):
            each = ", ".join(f"{test} {seconds:.1f} s" for test, seconds in open_program.times().items())
            if each:
                out.write(f"times of {open_program.name}: {each}\n")
            open_program = None
        out.flush()
    return programs


def main():
    with open(sys.argv[1], "w") as log:
        # What a test prints need be no UTF-8.
        sys.stdin.reconfigure(errors="replace")
        programs = follow(sys.stdin, time.monotonic, log, sys.stdout)
    times = [(seconds, test, program.name) for program in programs for test, seconds in program.times().items()]
    print(f"the {SLOWEST} slowest of {len(times)} tests:")
    for seconds, test, program in sorted(times, reverse=True)[:SLOWEST]:
        print(f"{seconds:8.1f} s  {test}  ({program})")


if __name__ == "__main__":
    main()
