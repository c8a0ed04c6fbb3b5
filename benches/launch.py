"""Runs one command and tells its seconds of wall clock, of CPU, its peak of resident memory, and its exit status.

Usage: python3 -I -S launch.py LOG COMMAND...

A program of its own, and one that imports little: a child's peak starts at what its parent has, so the parent is small.
"""

import os
import sys
import time

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
started = time.monotonic()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, file_actions=actions)
_, status, used = os.wait4(child, 0)
wall = time.monotonic() - started
print(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, os.waitstatus_to_exitcode(status))
