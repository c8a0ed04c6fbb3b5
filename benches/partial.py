"""The figure of partial layers: what a pull that is not interrupted pays for a later resumption."""

import candidates
from bed import rotated
from report import median, spread, table

IMAGE = "web"
# Smaller layers begin anew.
RESUMED_BYTES = 16 << 20
PAIRS = 9
WHO = ("forgetting", "daemon")


def partial(bench):
    """A pull of `web` whose layers can be resumed, beside one with `pulls.resumeFor: 0s`."""
    if not all(candidates.knows(bench.program, bench.place, who) for who in WHO):
        print("note: this imagelet has no `pulls.resumeFor`: `partial` is left out")
        return
    name = bench.source.image(IMAGE)
    sizes = [layer["size"] for layer in bench.source.manifest(IMAGE)["layers"]]
    resumed = [size for size in sizes if size >= RESUMED_BYTES]
    runs = {who: [] for who in WHO}
    # The first turn does not count.
    for number in range((bench.pairs or PAIRS) + 1):
        for who in rotated(WHO, number):
            with bench.started(who, bench.room(IMAGE)) as candidate:
                candidate.settle()
                pull = candidate.pull(name)
            bench.tell(f"partial {number} {who}: {pull.wall:.3f} s, {pull.cpu:.3f} s CPU")
            if number > 0:
                runs[who].append(pull)
    found = {who: {key: [getattr(pull, key) for pull in made] for key in ("wall", "cpu")} for who, made in runs.items()}
    ratio = {key: median(found["daemon"][key]) / median(found["forgetting"][key]) for key in ("wall", "cpu")}
    for who, made in found.items():
        bench.keep("partial", who, {key: median(seconds) for key, seconds in made.items()})
    bench.keep("partial", "daemon", {f"x_{key}": value for key, value in ratio.items()})
    title = (
        f"partial: {IMAGE}, {len(resumed)} of {len(sizes)} layers with a journal; {len(runs['daemon'])} in turn; "
        f"wall x {ratio['wall']:.3f}, CPU x {ratio['cpu']:.3f}"
    )
    rows = [[who, spread(made["wall"], 3), spread(made["cpu"], 3)] for who, made in found.items()]
    table(title, ["who", "wall s", "CPU s"], rows)
