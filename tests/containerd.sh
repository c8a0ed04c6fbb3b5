#!/usr/bin/env bash
# Unpacks containerd of another Debian release into a folder, beside the machine's own: containerd.sh SUITE FOLDER
set -euo pipefail
suite=$1 folder=$2
if [ -x "$folder/usr/bin/containerd" ]; then exit; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial,package}
# The machine's own sources, of the other suite: its mirror, its keys.
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
  if [ -f "$file" ] && grep -q "$codename" "$file"; then
    sed "s/\\b$codename\\b/$suite/g" "$file" >"$work/sources/$(basename "$file")"
  fi
done
apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources"
  -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
echo "unpacking containerd of Debian $suite to $folder"
fail() {
  echo "containerd of Debian $suite is missing: $1 (sources: /etc/apt, \`$codename\` replaced by \`$suite\`)" >&2
  exit 1
}
"${apt[@]}" update || fail "its package lists cannot be read"
(cd "$work/package" && "${apt[@]}" download containerd) || fail "its package cannot be downloaded"
# A folder that is there is whole.
mkdir -p "$(dirname "$folder")"
rm -rf "$folder" "$folder.new"
dpkg-deb -x "$work"/package/containerd_*.deb "$folder.new" || fail "its package cannot be unpacked"
mv "$folder.new" "$folder"
