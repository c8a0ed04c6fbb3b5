"""What is known of one recording of a scenario: the disk's log, and what was acknowledged when. It can be kept."""

import pickle

import disks
from recording import Recording


class RecordedScenario:
    """One recording; `marks` are the lengths of the log at which commands returned."""

    def __init__(self, scenario, variant, file_system, folder, start, end, actor, neighbour, outside_state):
        self.scenario, self.variant, self.file_system, self.folder = scenario.name, variant, file_system, folder
        self.start, self.end = start, end
        self.facts, self.marks, self.damages, self.address = actor.facts, actor.marks, actor.damages, actor.address
        self.neighbour, self.outside, self.recording = neighbour, outside_state, None

    @classmethod
    def load(cls, folder):
        known = pickle.loads((folder / "known").read_bytes())
        whole = disks.FILE_SYSTEMS[known.file_system].whole
        known.recording = Recording(folder / "base", folder / "log", whole)
        return known

    def save(self):
        (self.folder / "known").write_bytes(pickle.dumps(self))

    def cuts(self, count, seed):
        seed = f"{seed}/{self.scenario}/{self.variant}"
        return self.recording.cuts(count, self.start, self.end, self.marks, seed)

    def neighbour_bytes(self, position):
        return max((size for at, size in self.neighbour if at <= position), default=0)
