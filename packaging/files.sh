#!/usr/bin/env bash
# Gathers what every package has beside the units: files.sh PROGRAM FOLDER [WRITER]
# WRITER, PROGRAM itself unless given, runs on this machine and writes manual pages and completions. The licences are those of TARGET.
set -euo pipefail
program=$(realpath "$1") folder=$(realpath -m "$2") writer=$(realpath "${3:-$1}")
cd "$(dirname "$0")/.."
target=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
read -ra xtask <<<"${XTASK:-${CARGO:-cargo} run --locked --quiet --package xtask --}"

rm -rf "$folder"
mkdir -p "$folder"/{man,completions,docs}
install -m 755 "$program" "$folder/imagelet"
install -m 644 packaging/config.yaml crates/imagelet/src/install/imagelet.{service,socket} README.md CHANGELOG.md LICENSE "$folder"
cp -r docs/. "$folder/docs"
"$writer" man "$folder/man"
"$writer" completions bash >"$folder/completions/imagelet"
"$writer" completions zsh >"$folder/completions/_imagelet"
"$writer" completions fish >"$folder/completions/imagelet.fish"
"${xtask[@]}" licenses "$target" "$folder/third-party-licenses.txt"
