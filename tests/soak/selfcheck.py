#!/usr/bin/env python3
"""Checks the judgements of the soak (a leak is found, and noise is not), and the layers that are made while they are sent."""

import gzip
import random

import made_image
import measures


def series(values):
    return [(number * 10.0, {name: value for name in measures.FLAT}) for number, value in enumerate(values)]


def check_made_layer(chance):
    layer = made_image.Layer("selfcheck", 9 << 20)
    whole = b"".join(layer.read(0, layer.size))
    assert (len(whole), made_image.digest(whole)) == (layer.size, layer.digest)
    # Its checksum, too.
    assert made_image.digest(gzip.decompress(whole)) == layer.diff_id
    for _ in range(50):
        start, end = sorted(chance.sample(range(layer.size + 1), 2))
        assert b"".join(layer.read(start, end)) == whole[start:end], f"{start} to {end}"
    assert made_image.Layer("selfcheck", 9 << 20).digest == layer.digest != made_image.Layer("other", 9 << 20).digest


def main():
    chance = random.Random(1)
    flat = [50 << 20] * 60
    noisy = [value + chance.randrange(-4 << 20, 4 << 20) for value in flat]
    peaks = [value + (40 << 20 if number % 9 == 0 else 0) for number, value in enumerate(flat)]
    warming = [min(number, 10) * (4 << 20) for number in range(60)]
    leaking = [value + number * (1 << 19) for number, value in enumerate(noisy)]
    for name, values, expected in (
        ("flat", flat, set()),
        ("peaks", peaks, set()),
        ("warm-up", warming, set()),
        ("leak", leaking, set(measures.FLAT)),
        ("few samples", [number << 20 for number in range(9)], set()),
    ):
        found = set(measures.growing(series(values)))
        assert found == expected, f"{name}: {found}"
    assert measures.growing(series(noisy)).keys() <= {"descriptors", "threads", "rest"}, "memory may be noisy"
    check_made_layer(chance)
    print("the judgements of the soak hold")


if __name__ == "__main__":
    main()
