"""Files beside the store, on the same disk: no power cut and no command of imagelet may change them."""

import hashlib
import os
import pathlib
import random

FILES = 40


def make(folder):
    """Fills the folder and makes it durable."""
    folder = pathlib.Path(folder)
    chance = random.Random("outside")
    for number in range(FILES):
        place = folder / f"folder-{number % 5}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file-{number}").write_bytes(chance.randbytes(chance.randrange(1, 20_000)))
        (place / f"link-{number}").symlink_to(f"file-{number}")
    os.sync()
    return state(folder)


def state(folder):
    """Everything about the tree but the times of reading."""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found
