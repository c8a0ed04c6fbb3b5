"""The figures of the network: a registry that holds each connection to a rate, and one far away behind TLS."""

import contextlib
import os

from bed import rotated, run
from report import median, megabytes, spread, table
from source import registry

IMAGE = "web"
BYTES_PER_SECOND = 40_000_000
WHO = ("imagelet", "daemon", "background", "keeping", "imported", "containerd", "tuned")


def slow(bench):
    """What 40 MB/s for each connection add to a pull of `web`."""
    layers = [layer["size"] for layer in bench.source.manifest(IMAGE)["layers"]]
    with contextlib.ExitStack() as parts:
        held = parts.enter_context(registry(bench.source.corpus, bench.source.drafts, rate=BYTES_PER_SECOND))
        chosen = [parts.enter_context(bench.started(who)) for who in WHO if who in bench.candidates]
        found = {candidate.name: {"free": [], "held": []} for candidate in chosen}
        for number in range((bench.pairs or 3) + 1):
            for candidate in rotated(chosen, number):
                for key, source in rotated((("free", bench.source), ("held", held)), number):
                    image = source.image(IMAGE)
                    wall = candidate.pull(image).wall
                    candidate.remove_and_wait(image)
                    candidate.settle()
                    bench.tell(f"slow {candidate.name} {key}: {wall:.3f} s")
                    if number > 0:
                        found[candidate.name][key].append(wall)
    rows = []
    for who, walls in found.items():
        free, slowed = median(walls["free"]), median(walls["held"])
        bench.keep("slow", who, {"free": free, "held": slowed, "more": slowed - free})
        rows.append([who, spread(walls["free"]), spread(walls["held"]), f"{slowed - free:+.2f}"])
    largest = max(layers)
    title = (
        f"slow: {IMAGE} at {BYTES_PER_SECOND / 1e6:.0f} MB/s a connection; its largest layer ({megabytes(largest)} MB) "
        f"takes one connection {largest / BYTES_PER_SECOND:.2f} s"
    )
    table(title, ["who", "not held, s", "held, s", "more, s"], rows)


# Of a network for documentation: no host has it, and clients ask it by TLS, as they may not where a registry is on loopback.
ADDRESS = "198.51.100.7"
FAR = {"far": {"round_trip": 0.02, "line": 125_000_000}, "far40": {"round_trip": 0.04, "line": 1_250_000_000}}
CERTIFICATE = f"""[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = registry
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:{ADDRESS}
"""


def distant(bench):
    """Cold pulls of `web` over TLS: from a registry at hand, from one 20 ms and 1 Gbit/s away, and 40 ms and 10 Gbit/s."""
    places = {"near": {}, **FAR}
    found = {place: {who: [] for who in WHO if who in bench.candidates} for place in places}
    with contextlib.ExitStack() as parts:
        certificate = parts.enter_context(trusted(bench.place))
        for place, options in places.items():
            source = parts.enter_context(registry(bench.source.corpus, bench.source.drafts, address=ADDRESS, tls=certificate, **options))
            for number in range((bench.pairs or 3) + 1):
                for who, made in rotated(found[place].items(), number):
                    with bench.started(who, bench.room(IMAGE)) as candidate:
                        candidate.settle()
                        pull = candidate.pull(source.image(IMAGE))
                    bench.tell(f"distant {who} {place}: {pull.wall:.3f} s, {pull.cpu:.3f} s CPU")
                    if number > 0:
                        made.append(pull)
    rows = []
    for who in found["near"]:
        pulled = {place: found[place][who] for place in found}
        values = {f"{place}_{key}": median([getattr(one, key) for one in pulled[place]]) for place in found for key in ("wall", "cpu")}
        theirs = {place: median([one.wall for one in found[place]["containerd"]]) for place in found if "containerd" in found[place]}
        values |= {f"x_{place}": values[f"{place}_wall"] / wall for place, wall in theirs.items()}
        bench.keep("distant", who, values)
        row = [who]
        for place, pulls_there in pulled.items():
            ratio = f"{values[f'x_{place}']:.2f}" if theirs else "-"
            row += [spread([one.wall for one in pulls_there]), ratio, f"{values[f'{place}_cpu']:.2f}"]
        rows.append(row)
    lines = "; ".join(f"{place}: {one['round_trip'] * 1e3:.0f} ms and {one['line'] / 1e6:.0f} MB/s for all connections together" for place, one in FAR.items())
    table(f"distant: {IMAGE} over TLS; {lines}", ["who", *(title for place in places for title in (f"{place}, s", "x", "CPU s"))], rows)


@contextlib.contextmanager
def trusted(place):
    """An address of this host that is not loopback, and a certificate for it that every process started meanwhile trusts."""
    config, certificate, key = place / "certificate.conf", place / "certificate.pem", place / "key.pem"
    config.write_text(CERTIFICATE)
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-config", config, "-keyout", key, "-out", certificate)
    both = place / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    former = os.environ.get("SSL_CERT_FILE")
    run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    os.environ["SSL_CERT_FILE"] = str(certificate)
    try:
        yield both
    finally:
        run("ip", "address", "del", f"{ADDRESS}/32", "dev", "lo")
        if former is None:
            del os.environ["SSL_CERT_FILE"]
        else:
            os.environ["SSL_CERT_FILE"] = former
