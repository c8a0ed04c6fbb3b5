#!/usr/bin/env bash
# Makes the Debian package of gathered files: deb.sh FOLDER OUT [VERSION]
# FOLDER is made by files.sh. The version is that of packaging/debian/changelog unless given.
set -euo pipefail
files=$(realpath "$1") out=$(realpath -m "$2") version=${3:-}
cd "$(dirname "$0")"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(dpkg-parsechangelog -l debian/changelog -S Timestamp)}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/imagelet"
cp -r debian "$work/imagelet/debian"
cp -r "$files" "$work/imagelet/files"
# debhelper takes units from beside the changelog.
mv "$work"/imagelet/files/imagelet.{service,socket} "$work/imagelet/debian"
cd "$work/imagelet"
if [ -n "$version" ]; then sed -i "1s/(.*)/($version)/" debian/changelog; fi
dpkg-buildpackage --build=binary --unsigned-changes --no-check-builddeps >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mkdir -p "$out"
mv "$work"/imagelet_*.deb "$out"
