"""What holds of a store after a power cut, whatever moment it came at."""

import hashlib
import json
import os
import pathlib
import time

import acknowledged
from disks import Failed
from samples import REPOSITORY, hexadecimal

REST_MAX = 1 << 20
CLEAN_SECONDS = 10
#: What an age may lose: the ledger is written once a minute (C3), and times are shown in seconds.
USE_BACK_MAX, SEEN_FORWARD_MAX = 62, 2
BLOCK = 512
ROOT_FILES = {"blobs", "images", "ingest", "layers", "lock", "mounts", "names.json", "names.new", "names.unsettled.json"}
ROOT_FILES |= {"registry-health.json", "state", "tmp", "trash"}


class Violations(list):
    """The violated invariants of one cut."""

    def check(self, holds, invariant, detail=""):
        if not holds:
            self.append(f"{invariant}: {detail}" if detail else invariant)
        return holds


class Checker:
    """Checks the store of a cut; the recording's facts and samples say what it may hold."""

    def __init__(self, program, known, samples):
        self.program, self.known, self.samples = program, known, samples
        self.store = pathlib.Path(program.store)

    def check(self, position, pulls_again):
        """Returns what is violated. The store starts as the power cut left it."""
        found = Violations()
        try:
            self.check_state_files(position, found)
            if not (self.store / "names.json").exists() and not (self.store / "images").is_dir():
                # No store yet: the first command had not got that far.
                self.check_facts({}, position, found, "without a store")
                return found
            before = self.observe("before the start", found)
            self.check_facts(before, position, found, "before the start")
            found.check(self.program.command("df").is_success, "`df` works")
            with self.program.daemon():
                after = self.listing(self.program.client, found)
                self.check_facts(self.shown(after), position, found, "after the start")
                found.check(self.program.client("df").is_success, "`df` of the daemon works")
                self.check_pins(position, found)
                self.check_whole(after, position, found)
                self.check_records(after, found)
                self.check_clean(after, found)
                if pulls_again:
                    self.check_pull(found)
        except (AssertionError, Failed, ValueError, KeyError) as error:
            found.append(f"a start works: {error}")
        self.check_quarantine(found)
        return found

    def observe(self, when, found):
        try:
            return acknowledged.observe(self.program)
        except AssertionError as error:
            found.append(f"read-only commands work {when}: {error}")
            return {}

    def listing(self, run, found):
        return json.loads(acknowledged.require(run("ls", "--all", "-o", "json")))["images"]

    def shown(self, rows):
        shown = {("name", name): row["id"] for row in rows for name in row["names"]}
        shown |= {("image", row["id"]): True for row in rows}
        shown |= {("first seen", row["id"]): acknowledged.seconds(row["firstSeen"]) for row in rows}
        return shown | {("last used", row["id"]): acknowledged.seconds(row["lastUsed"]) for row in rows}

    def check_state_files(self, position, found):
        """Records, resolved names and decisions as the disk has them, before a start may prune them."""
        on_disk = acknowledged.on_disk(self.program.state)
        for key in self.known.facts.changes:
            kind, name = key
            if kind in ("record", "resolved name", "decision"):
                allowed, value = self.known.facts.allowed(key, position), on_disk.get(key)
                holds = value in allowed or (kind == "record" and value is not None and self.may_close(name, position))
                found.check(holds, f"an acknowledged {kind} survives", f"{name[:160]} is {value}; allowed: {allowed}")

    def may_close(self, name, position):
        content = (self.program.state / "image_manager/pulled" / name).read_bytes()
        return self.known.facts.may_close(name, content, position)

    def check_facts(self, shown, position, found, when):
        for key in self.known.facts.changes:
            kind, name = key
            allowed, value = self.known.facts.allowed(key, position), shown.get(key)
            if kind in ("name", "image"):
                detail = f"`{name}` is {value} {when}; allowed: {allowed}"
                found.check(value in allowed, "an acknowledged pull, tag or removal survives", detail)
            elif kind == "pin" and when == "before the start":
                found.check(value in allowed, "an acknowledged pin survives", f"`{name}` is {value}; allowed: {allowed}")
            elif kind in ("first seen", "last used") and None not in (value, *allowed):
                present = self.known.facts.allowed(("image", name), position)
                if present == [True]:
                    late = kind == "first seen" and value > max(allowed) + SEEN_FORWARD_MAX
                    early = kind == "last used" and value < min(allowed) - USE_BACK_MAX
                    found.check(not late and not early, "ages survive", f"{kind} of `{name}` is {value} {when}: {allowed}")
        for key in shown:
            if key[0] in ("image", "name"):
                found.check(key in self.known.facts.changes, "nothing appears that was never there", f"{key}")

    def check_pins(self, position, found):
        pins = json.loads(acknowledged.require(self.program.client("pins", "-o", "json")))["pins"]
        patterns = {pin["pattern"] for pin in pins}
        for kind, pattern in self.known.facts.changes:
            if kind == "pin":
                allowed = self.known.facts.allowed((kind, pattern), position)
                value = True if pattern in patterns else None
                found.check(value in allowed, "an acknowledged pin survives", f"`{pattern}` is {value} in the daemon: {allowed}")

    def is_damaged_on_purpose(self, image, position):
        return any(image == damaged and begin <= position <= end for damaged, begin, end in self.known.damages)

    def check_whole(self, rows, position, found):
        """Every shown image is whole: by `verify`, and by the bed's own digests of what it packed."""
        document = json.loads(self.program.client("verify", "-o", "json").output)
        results = {image["id"]: image for image in document["images"]}
        found.check(document["store"]["result"] == "ok", "`verify` finds no damage", str(document["store"])[:300])
        for row in rows:
            if self.is_damaged_on_purpose(row["id"], position):
                continue
            result = results.get(row["id"], {"result": "not checked"})
            found.check(result["result"] == "ok", "`verify` finds no damage", str(result)[:400])
            found += [f"a shown image is whole: {what}" for what in self.damage(row["id"])]

    def damage(self, identifier):
        image = self.samples.by_id.get(identifier)
        if image is None:
            yield f"{identifier} is no image of the registry"
            return
        for layer in image.layers:
            tree = self.store / "layers" / hexadecimal(layer.diff_id) / "fs"
            present = {str(path.relative_to(tree)): path for path in tree.rglob("*") if path.is_file()}
            for name in layer.files.keys() ^ present.keys():
                yield f"{image.name}: `{name}` is {'missing' if name in layer.files else 'too much'}"
            for name in layer.files.keys() & present.keys():
                content = present[name].read_bytes()
                if f"sha256:{hashlib.sha256(content).hexdigest()}" != layer.files[name]:
                    yield f"{image.name}: `{name}` has other bytes"

    def check_records(self, rows, found):
        """A pulled image without record or intent would count as preloaded: every pod could use it (C4)."""
        intents = " ".join(path.read_text() for path in acknowledged.files(self.program.state, "image_manager/pulling"))
        for row in rows:
            record = acknowledged.record_name(row["id"])
            if ("record", record) in self.known.facts.changes:
                known = (self.store / "state/image_manager/pulled" / record).is_file()
                known |= any(name in intents for name in row["names"])
                found.check(known, "a pulled image has its pull record", f"{row['names']}")

    def check_clean(self, rows, found):
        """Soon after the start the store holds its images and nothing else."""
        end = time.monotonic() + CLEAN_SECONDS
        while True:
            referenced = self.referenced(rows)
            unreferenced = [str(path.relative_to(self.store)) for path in self.unreferenced(referenced)]
            size, wanted = usage(self.store), sum(usage(path) for path in referenced)
            if not unreferenced and size <= wanted + REST_MAX:
                return
            if time.monotonic() > end:
                left = ", ".join(path[:20] for path in unreferenced[:8])
                found.check(not left, "nothing is left that nothing frees", left)
                found.check(size <= wanted + REST_MAX, "the store is as large as its images", f"{size} bytes, images {wanted}")
                return
            time.sleep(0.1)

    def referenced(self, rows):
        folders = set()
        names = {row["id"] for row in rows} | self.damaged_images()
        for identifier in names:
            folder = self.store / "images" / hexadecimal(identifier)
            folders.add(folder)
            record = json.loads((folder / "image.json").read_text()) if (folder / "image.json").is_file() else {}
            for layer in record.get("layers", []):
                folders.add(self.store / "layers" / hexadecimal(layer["diff_id"]))
                if layer.get("blob"):
                    folders.add(self.store / "blobs" / layer["blob"].replace(":", "/"))
        return {folder for folder in folders if folder.exists()}

    def damaged_images(self):
        """Damaged images keep their names and their whole parts until a repair or a removal."""
        return {image for image, _, _ in self.known.damages}

    def unreferenced(self, referenced):
        for folder in ("tmp", "trash", "ingest", "layers", "images", "blobs/sha256"):
            place = self.store / folder
            for path in place.iterdir() if place.is_dir() else ():
                # The samples' blobs are too small to be kept for the next pull (`pulls.resumeFor`).
                if path not in referenced:
                    yield path
        yield from (path for path in self.store.iterdir() if path.name not in ROOT_FILES and ".corrupt-" not in path.name)

    def check_pull(self, found):
        """The registry's image comes back whole, whatever an unfinished pull left."""
        image = self.samples.images["one"]
        self.samples.tag("one", image)
        outcome = self.program.client("pull", "-q", "--policy", "Always", f"{self.known.address}/{REPOSITORY}:one")
        if found.check(outcome.is_success, "a pull after the cut works", outcome.errors[-300:]):
            found += [f"an image pulled after the cut is whole: {what}" for what in self.damage(image.id)]

    def check_quarantine(self, found):
        """A power cut damages no file of the store: nothing is set aside, nothing is marked as damaged."""
        for folder, _, names in os.walk(self.store):
            if "/fs" not in folder:
                for name in names:
                    marked = name == "damaged" and not self.known.damages
                    found.check(not marked and ".corrupt-" not in name, "no file was damaged", os.path.join(folder, name))


def usage(path):
    """Allocated bytes of a file or tree."""
    total = os.lstat(path).st_blocks * BLOCK
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * BLOCK
            except FileNotFoundError:
                pass  # Cleaned up meanwhile.
    return total
