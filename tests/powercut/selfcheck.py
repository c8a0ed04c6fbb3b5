#!/usr/bin/env python3
"""Checks the bed itself: flushes arrive, unsynced data is lost, synced data is not, and nothing of the bed remains.

Usage: selfcheck.py
"""

import ctypes
import json
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import disks
import acknowledged
import isolation
import recorder
import recording

HERE = pathlib.Path(__file__).resolve().parent
SIZE = 64 << 20
EXT4 = disks.FILE_SYSTEMS["ext4"]
PAGE = 4096


def write(path, content, synced):
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, content)
    if synced:
        os.fsync(descriptor)
    os.close(descriptor)


class RecordedDisk(unittest.TestCase):
    """ext4 on the recorded disk."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=isolation.MEMORY))
        self.image, self.log = self.folder / "image", self.folder / "log"
        EXT4.format(self.image, SIZE)
        recording.copy_sparse(self.image, self.folder / "base")

    def record(self, act):
        """Calls `act` with the mounted disk and the length of the log; returns what it returns, and the recording."""
        with recorder.recorded(self.image, self.log, self.folder) as (served, length):
            with disks.loop_device(served, direct=True) as device:
                self.assertTrue(disks.is_direct(device), "the loop device passes the page cache")
                with disks.mounted(device, self.folder / "disk", "ext4", EXT4.options) as disk:
                    result = act(disk, length)
        return result, recording.Recording(self.folder / "base", self.log)

    def files_after(self, log, cut):
        (_, leave), *_ = log.disks([cut], self.folder / "durable")
        leave(self.folder / "cut")
        with disks.loop_device(self.folder / "cut") as device, disks.mounted(device, self.folder / "after", "ext4") as disk:
            return {path.name: path.read_bytes() for path in disk.iterdir() if path.is_file()}

    def test_a_sync_of_a_file_arrives_as_writes_and_flushes_that_cover_them(self):
        def act(disk, length):
            before = length()
            write(disk / "file", b"x" * PAGE * 3, synced=True)
            return before, length()

        (before, after), log = self.record(act)
        entries = log.entries[before:after]
        data = [at for at, entry in enumerate(log.entries) if not entry.is_flush and self.bytes_of(log, entry) == b"x" * PAGE * 3]
        self.assertEqual(len(data), 1)
        # The commit block is written with FUA: a flush before it and one after.
        self.assertGreaterEqual(sum(entry.is_flush for entry in entries), 2)
        self.assertGreater(log.durable[after], data[0], "a flush covers the data when the sync returns")
        self.assertEqual(log.durable[after], after - 1, "and everything before it")

    @staticmethod
    def bytes_of(log, entry):
        return log.bytes[entry.place : entry.place + entry.length]

    def test_a_write_that_passes_the_page_cache_is_in_the_log_before_it_returns(self):
        with recorder.recorded(self.image, self.log, self.folder) as (served, length):
            with disks.loop_device(served, direct=True) as device:
                descriptor = os.open(device, os.O_RDWR | os.O_DIRECT)
                page = mmap.mmap(-1, PAGE)
                first, lengths = length(), []
                for number in range(20):
                    page[:] = bytes([number]) * PAGE
                    os.pwrite(descriptor, page, number * PAGE)
                    lengths.append(length())
                os.fsync(descriptor)
                lengths.append(length())
                os.close(descriptor)
        numbers = list(range(first + 1, first + 21))
        self.assertEqual(lengths[:20], numbers, "no write waits in a cache or merges with another")
        entry = recording.Recording(self.folder / "base", self.log).entries[first + 20]
        self.assertEqual((lengths[20], entry.covered), (first + 21, first + 20))

    def test_what_was_synced_survives_every_cut_and_what_was_not_is_lost(self):
        def act(disk, length):
            write(disk / "synced", b"s" * 5000, synced=True)
            position = length()
            write(disk / "unsynced", b"u" * 5000, synced=False)
            # Another file's sync brings the name of the first to the disk, and none of its bytes.
            write(disk / "other", b"o", synced=True)
            return position, length()

        (position, end), log = self.record(act)
        for number in range(10):
            for mode in recording.MODES:
                found = self.files_after(log, recording.Cut(position, mode, number))
                self.assertEqual(found.get("synced"), b"s" * 5000, mode)
        found = self.files_after(log, recording.Cut(end, recording.LOSE_ALL, 0))
        self.assertEqual(found.get("unsynced"), b"", "a missing sync before a rename would show")

    def test_a_cut_keeps_and_loses_sectors_of_writes_under_way(self):
        def act(disk, length):
            write(disk / "file", b"a" * PAGE * 64, synced=True)
            descriptor = os.open(disk / "file", os.O_WRONLY)
            os.pwrite(descriptor, b"b" * PAGE * 64, 0)
            before = length()
            os.fdatasync(descriptor)
            os.close(descriptor)
            return before

        before, log = self.record(act)
        written = next(at for at in range(before, len(log.entries)) if not log.entries[at].is_flush)
        states = set()
        for number in range(8):
            content = self.files_after(log, recording.Cut(written + 1, recording.TEAR, number))["file"]
            sectors = {content[start : start + recording.SECTOR] for start in range(0, len(content), recording.SECTOR)}
            self.assertLessEqual(sectors, {b"a" * recording.SECTOR, b"b" * recording.SECTOR})
            states.add(content)
        self.assertEqual(len(states), 8, "each seed tears elsewhere")


class Requests(unittest.TestCase):
    """The serving process, on a socket in the place of the kernel."""

    def test_a_flush_covers_no_write_that_waited_beside_it(self):
        kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        image, log = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        for resource in (kernel, device, image, log):
            self.addCleanup(resource.close)
        device.setblocking(False)
        image.truncate(SIZE)
        server = recorder.Recorder(device.fileno(), image.fileno(), log.fileno(), ctypes.c_uint64())
        for together in ([recorder.WRITE], [recorder.WRITE, recorder.FSYNC, recorder.WRITE], [recorder.FSYNC]):
            for operation in together:
                self.send(kernel, operation)
            server.answer_all(server.waiting())
        log.seek(0)
        path = f"/proc/self/fd/{log.fileno()}"
        entries = recording.Recording(path, path).entries
        self.assertEqual([entry.covered for entry in entries], [None, None, 1, None, 4])

    @staticmethod
    def send(kernel, operation):
        body = recorder.TRANSFER.pack(1, 0, 512, 0, 0, 0, 0) + bytes(512) if operation == recorder.WRITE else bytes(16)
        head = recorder.REQUEST.pack(recorder.REQUEST.size + len(body), operation, 1, 1, 0, 0, 0, 0, 0)
        kernel.send(head + body)


class History(unittest.TestCase):
    """What a cut may show."""

    def test_the_old_and_the_new_value_are_allowed_until_the_acknowledgement(self):
        known = acknowledged.Histories()
        key = ("pin", "app")
        known.observe({key: True}, 10, 20, 20)
        known.observe({}, 30, 40, 40)
        allowed = {position: known.allowed(key, position) for position in (5, 10, 20, 29, 35, 40)}
        self.assertEqual(allowed, {5: [None], 10: [None, True], 20: [True], 29: [True], 35: [True, None], 40: [None]})

    def test_what_is_not_promised_may_be_lost_until_it_is(self):
        known = acknowledged.Histories()
        key, late = ("image", "sha256:0"), ("first seen", "sha256:0")
        known.observe({key: True, late: 7}, 10, None, None)
        self.assertEqual(known.allowed(key, 50), [None, True])
        known.promise_all(60, with_late=False)
        self.assertEqual((known.allowed(key, 59), known.allowed(key, 60)), ([None, True], [True]))
        self.assertEqual(known.allowed(late, 60), [None, 7])

    def test_the_record_of_a_closed_intent_may_precede_a_steps_own_but_replaces_no_acknowledged_one(self):
        image = "sha256:0"
        name = acknowledged.record_name(image)
        fields = {"kind": "ImagePulledRecord", "apiVersion": "v", "lastUpdatedTime": "t", "imageRef": image}
        closing, record, intent = json.dumps(fields), ("record", name), ("intent", "sha256-1")
        known = acknowledged.Histories()
        known.observe({intent: True}, 5, None, None)
        known.observe({record: "first"}, 10, 20, 20)
        known.observe({record: "second", intent: True}, 30, 40, 40)
        known.observe({record: "third"}, 50, 60, 60)
        may = {position: known.may_close(name, closing, position) for position in (4, 7, 10, 19, 20, 35, 55)}
        self.assertEqual(may, {4: False, 7: False, 10: True, 19: True, 20: False, 35: False, 55: False})
        opened = json.dumps(fields | {"credentialMapping": {"a": {"nodePodsAccessible": True}}})
        for content in (opened, json.dumps(fields | {"imageRef": "sha256:2"}), closing[:-1], "[]", ""):
            self.assertFalse(known.may_close(name, content, 10), content)
        without = acknowledged.Histories()
        without.observe({record: "first"}, 10, 20, 20)
        self.assertFalse(without.may_close(name, closing, 10), "no pull was interrupted")


class Remains(unittest.TestCase):
    """A bed that is killed."""

    def test_a_killed_bed_leaves_no_device_mount_or_process(self):
        program = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "import isolation\n"
            "isolation.enter()\n"
            "import pathlib, time, disks, recorder, recording\n"
            "with isolation.workspace() as folder:\n"
            "    image = folder / 'image'\n"
            "    disks.FILE_SYSTEMS['ext4'].format(image, 64 << 20)\n"
            "    with recorder.recorded(image, folder / 'log', folder) as (served, _):\n"
            "        with disks.loop_device(served, direct=True) as device, disks.mounted(device, folder / 'disk', 'ext4'):\n"
            "            print(device, flush=True)\n"
            "            time.sleep(600)\n"
        )
        environment = {name: value for name, value in os.environ.items() if name != isolation.INSIDE}
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(program)
            file.flush()
            bed = subprocess.Popen((sys.executable, file.name, str(HERE)), stdout=subprocess.PIPE, text=True, env=environment)
            device = bed.stdout.readline().strip()
            self.assertTrue(device.startswith("/dev/loop"), device)
            backing = pathlib.Path(f"/sys/block/{pathlib.Path(device).name}/loop/backing_file")
            os.kill(bed.pid, signal.SIGKILL)
            bed.wait()
            bed.stdout.close()
            end = time.monotonic() + 20
            while backing.exists() and "imagelet-powercut" in backing.read_text() and time.monotonic() < end:
                time.sleep(0.1)
            self.assertFalse(backing.exists() and "imagelet-powercut" in backing.read_text(), "the loop device is free")
        self.assertNotIn("imagelet-powercut", pathlib.Path("/proc/mounts").read_text())


if __name__ == "__main__":
    isolation.enter()
    disks.mount("powercut", isolation.MEMORY, "tmpfs", 0, "mode=0700")
    unittest.main(verbosity=1)
