"""What the store must hold: the results that the program acknowledged, and the operations that change it."""

import hashlib
import json

MEGABYTE = 1 << 20


class Violation(Exception):
    """An invariant does not hold; the message says which."""


class Store:
    """The operations of a soak, each with the change that it makes to what is known."""

    def __init__(self, program, samples, address, repository, chance, mounts):
        self.program, self.samples, self.chance, self.mounts = program, samples, chance, mounts
        self.prefix = f"{address}/{repository}"
        self.names, self.pins, self.mounted = {}, set(), {}
        # Names of images that were removed since the last check.
        self.gone = {}
        self.served = {name: image for name, image in samples.images.items()}
        self.counts, self.failed, self.is_full = {}, {}, False

    def name(self, tag):
        return f"{self.prefix}:{tag}"

    def count(self, operation, is_success):
        counts = self.counts if is_success else self.failed
        counts[operation] = counts.get(operation, 0) + 1

    def pull(self):
        tag = self.chance.choice(list(self.served))
        self.finish_pull(tag, self.program.client("pull", "-q", "--policy", "Always", self.name(tag)))

    def finish_pull(self, tag, outcome):
        self.count("pull", outcome.is_success)
        if outcome.is_success:
            self.names[self.name(tag)] = self.served[tag].id
        elif not self.is_full:
            self.failed.setdefault("texts", []).append(outcome.errors.strip()[-300:])

    def move_tag(self):
        """A name of the registry is another image from now on."""
        tag, image = self.chance.choice(list(self.served)), self.chance.choice(list(self.samples.images.values()))
        self.samples.tag(tag, image)
        self.served[tag] = image
        self.count("move tag", True)

    def remove(self):
        if not self.names:
            return
        image = self.names[self.chance.choice(list(self.names))]
        outcome = self.program.client("rm", image)
        is_held = image in self.mounted.values()
        self.count("rm", outcome.is_success or is_held)
        if outcome.is_success:
            if is_held:
                raise Violation(f"`rm` removed the mounted image {image}")
            self.forget(image)
        elif not is_held and not self.is_full:
            raise Violation(f"`rm` of an unused image failed: {outcome.errors[-300:]}")

    def forget(self, image):
        self.gone |= {name: other for name, other in self.names.items() if other == image}
        self.names = {name: other for name, other in self.names.items() if other != image}

    def collect(self):
        wanted = ("--all-unused",) if self.chance.random() < 0.3 else ("--free", str(self.chance.randrange(1, 4) * MEGABYTE))
        outcome = self.program.client("gc", *wanted, "-o", "json")
        # A goal out of reach is an answer, too.
        report = json.loads(outcome.output) if outcome.output.strip() else None
        self.count("gc", report is not None)
        if report is None:
            raise Violation(f"`gc` reports nothing: {outcome.errors[-300:]}")
        for image in report["images"]:
            if image["verdict"] in ("removed", "remove"):
                if image["id"] in self.mounted.values() or self.is_pinned(image["id"]):
                    raise Violation(f"a collection removed an image in use or pinned: {image}")
                self.forget(image["id"])

    def is_pinned(self, image):
        return any(other == image and name in self.pins for name, other in self.names.items())

    def pin(self):
        name = self.name(self.chance.choice(list(self.served)))
        outcome = self.program.client("pin", name)
        self.count("pin", outcome.is_success)
        if outcome.is_success:
            self.pins.add(name)

    def unpin(self):
        if self.pins:
            name = self.chance.choice(sorted(self.pins))
            outcome = self.program.client("unpin", name)
            self.count("unpin", outcome.is_success)
            if outcome.is_success:
                self.pins.discard(name)

    def mount(self):
        if not self.names or len(self.mounted) > 2:
            return self.unmount()
        name = self.chance.choice(list(self.names))
        place = self.mounts / f"mount-{self.chance.randrange(1 << 30)}"
        place.mkdir()
        outcome = self.program.client("mount", name, place)
        self.count("mount", outcome.is_success)
        if outcome.is_success:
            self.mounted[place] = self.names[name]
        elif not self.is_full:
            raise Violation(f"`mount` of a present image failed: {outcome.errors[-300:]}")
        return None

    def unmount(self):
        if self.mounted:
            place, image = self.mounted.popitem()
            layer = self.samples.by_id[image].layers[-1]
            file, expected = self.chance.choice(list(layer.files.items()))
            found = f"sha256:{hashlib.sha256((place / file).read_bytes()).hexdigest()}"
            if found != expected:
                raise Violation(f"`{file}` of the mounted image {image} has other bytes")
            outcome = self.program.client("unmount", place)
            self.count("unmount", outcome.is_success)
            if not outcome.is_success:
                raise Violation(f"`unmount` failed: {outcome.errors[-300:]}")

    def check(self):
        """All that has to hold between two operations. Returns the listed rows."""
        listing = self.program.client("ls", "--all", "-o", "json")
        if not listing.is_success:
            raise Violation(f"`ls` failed: {listing.errors[-300:]}")
        rows = json.loads(listing.output)["images"]
        shown = {name: row["id"] for row in rows for name in row["names"]}
        for name, image in self.names.items():
            if shown.get(name) != image:
                raise Violation(f"the acknowledged image `{name}` is {shown.get(name)}, not {image}")
        for name, image in self.gone.items():
            if shown.get(name) == image:
                raise Violation(f"the removed image `{name}` is still listed")
        self.gone.clear()
        pins = json.loads(self.program.client("pins", "-o", "json").output)["pins"]
        if (found := {pin["pattern"] for pin in pins}) != self.pins:
            raise Violation(f"the pins are {found}, not {self.pins}")
        # A pull that a kill or a full disk cut off may have been complete all the same.
        self.names |= {name: image for name, image in shown.items() if name.startswith(self.prefix)}
        return rows

    def verify(self):
        document = self.program.client("verify", "-o", "json")
        results = json.loads(document.output) if document.output.strip() else {"images": [], "store": {"result": document.errors}}
        damaged = [image for image in results["images"] if image["result"] != "ok"]
        if damaged or results["store"]["result"] != "ok":
            raise Violation(f"`verify` finds damage: {damaged or results['store']}"[:600])
