#!/usr/bin/env bash
# Gathers what every package has beside the units: files.sh PROGRAM FOLDER
# PROGRAM runs on this machine; it writes its own manual pages and completions. The licences are those of TARGET.
set -euo pipefail
program=$(realpath "$1") folder=$(realpath -m "$2")
cd "$(dirname "$0")/.."
target=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}

rm -rf "$folder"
mkdir -p "$folder"/{man,completions,docs}
install -m 755 "$program" "$folder/imagelet"
install -m 644 packaging/config.yaml packaging/imagelet.service packaging/imagelet.socket README.md CHANGELOG.md LICENSE "$folder"
cp -r docs/. "$folder/docs"
"$program" man "$folder/man"
"$program" completions bash >"$folder/completions/imagelet"
"$program" completions zsh >"$folder/completions/_imagelet"
"$program" completions fish >"$folder/completions/imagelet.fish"
cargo run --locked --quiet --release --package xtask -- licenses "$target" "$folder/third-party-licenses.txt"
