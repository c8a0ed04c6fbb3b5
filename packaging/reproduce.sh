#!/usr/bin/env bash
# Makes the release of the last commit in a folder of its own and compares it with that in OUT: reproduce.sh OUT [TARGET...]
set -euo pipefail
out=$(realpath "$1")
shift
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/elsewhere/imagelet"
env -u CARGO_TARGET_DIR "$work/elsewhere/imagelet/packaging/dist.sh" "$work/out" "$@" >/dev/null
diff "$out/SHA256SUMS" "$work/out/SHA256SUMS" || { echo "reproduce: the two releases differ" >&2; exit 1; }
echo "reproduce: $(wc -l <"$out/SHA256SUMS") files with the same bytes in two folders"
