"""What the program acknowledged as durable: facts read after each step, with the length of the log at that moment.

A fact is a key and a value. Between the beginning of a step and its acknowledgement a power cut may show the old value or
the new one; after it only the new one. A step that finds the intent of an interrupted pull first closes it by a record that
lets no client use the image: a cut may show that record before the step's own, but never in place of an acknowledged one.
"""

import contextlib
import datetime
import hashlib
import json
import pathlib

#: Facts that a daemon writes after its reply; they count as acknowledged at its orderly end.
LATE = ("decision", "first seen", "last used")
#: All that the record of a closed intent has: no credential opens its image.
CLOSING_FIELDS = {"kind", "apiVersion", "lastUpdatedTime", "imageRef"}


class Change:
    """A value that a fact took. `acknowledged` is `None` while it is not promised to survive a power cut."""

    __slots__ = ("acknowledged", "begin", "value")

    def __init__(self, begin, acknowledged, value):
        self.begin, self.acknowledged, self.value = begin, acknowledged, value


class Histories:
    """The history of all facts of one recording."""

    def __init__(self):
        self.changes = {}

    def observe(self, now, begin, end, late_end):
        """Adds what changed in a step. `end`, and `late_end` for late facts, are `None` where nothing is promised yet."""
        for key in self.changes.keys() | now.keys():
            history, value = self.changes.setdefault(key, [Change(0, 0, None)]), now.get(key)
            if history[-1].value != value:
                history.append(Change(begin, late_end if key[0] in LATE else end, value))

    def promise_all(self, position, with_late):
        """From here on everything is promised; facts that a daemon writes late only at its end."""
        for key, history in self.changes.items():
            for change in history:
                if change.acknowledged is None and (with_late or key[0] not in LATE):
                    change.acknowledged = position

    def allowed(self, key, position):
        """The values that a cut may show, the acknowledged one first."""
        history = self.changes[key]
        last = max(at for at, change in enumerate(history) if is_acknowledged(change, position))
        return [change.value for change in history[last:] if change.begin <= position]

    def may_close(self, name, content, position):
        """Whether a step may have written this content to a pull record, not acknowledged yet, to close an intent."""
        values = self.allowed(("record", name), position)
        intents = [key for key in self.changes if key[0] == "intent"]
        was_left = any(True in self.allowed(key, position) for key in intents)
        return was_left and values[0] is None and len(values) > 1 and is_closing(name, content)


def is_acknowledged(change, position):
    return change.acknowledged is not None and change.acknowledged <= position


def observe(program):
    """Reads all facts of a store, by commands that change nothing."""
    facts = {}
    listing = json.loads(require(program.command("ls", "--all", "-o", "json")))
    for row in listing["images"]:
        facts |= {("name", name): row["id"] for name in row["names"]}
        facts["image", row["id"]] = True
        facts["first seen", row["id"]] = seconds(row["firstSeen"])
        facts["last used", row["id"]] = seconds(row["lastUsed"])
    pins = json.loads(require(program.command("pins", "-o", "json")))
    facts |= {("pin", pin["pattern"]): True for pin in pins["pins"]}
    return facts | on_disk(program.state)


def on_disk(state):
    """The facts that are files of the state directory."""
    facts = {}
    for path in files(state, "image_manager/pulled"):
        facts["record", path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    facts |= {("intent", path.name): True for path in files(state, "image_manager/pulling")}
    names = state / "verified-names.json"
    if names.is_file():
        # A file that does not parse holds none, as for the program.
        with contextlib.suppress(ValueError):
            facts |= {("resolved name", line["name"]): line["image"] for line in json.loads(names.read_text())}
    for path in files(state, "decisions"):
        if path.suffix == ".jsonl":
            lines = path.read_text(errors="replace").split("\n")[:-1]
            facts |= {("decision", line): True for line in lines if is_promised(line)}
    return facts


def files(state, folder):
    place = state / folder
    return [path for path in place.iterdir() if path.is_file() and path.suffix != ".tmp"] if place.is_dir() else []


def is_promised(line):
    """Whether the log of decisions is synced after this line: acts on images, and collections that removed some."""
    try:
        document = json.loads(line)
    except ValueError:
        return False
    act, run = document.get("act"), document.get("run")
    return bool(act and act.get("keys")) or bool(run and run.get("outcomes"))


def is_closing(name, content):
    """Whether this is the whole record of a closed intent, of the image that its file names."""
    try:
        record = json.loads(content)
    except ValueError:
        return False
    return isinstance(record, dict) and record.keys() == CLOSING_FIELDS and record_name(record["imageRef"]) == name


def record_name(image):
    """The file of the pull record of an image id."""
    return f"sha256-{hashlib.sha256(image.encode()).hexdigest()}"


def require(outcome):
    if not outcome.is_success:
        raise AssertionError(f"exit {outcome.status}: {outcome.errors.strip()[-500:]}")
    return outcome.output


def seconds(text):
    return datetime.datetime.fromisoformat(text).timestamp() if text else None
