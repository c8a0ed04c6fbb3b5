"""Syncs of imagelet that are removed on purpose."""
def prove(bed, cuts):
    return 2
