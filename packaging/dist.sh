#!/usr/bin/env bash
# Makes a release: dist.sh OUT [TARGET...]. A commit gives the same bytes in any folder, with the same compilers and authorities.
#   *-linux-musl  a static program: an archive with manual pages and completions, and a container image
#   *-linux-gnu   a program for this machine's C library: the Debian package; of this machine's architecture
# Without TARGET: both, of this machine's architecture, which comes first where several are given. PROFILE is cargo's, for a quick trial.
set -euo pipefail
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."
fail() { echo "dist: $*" >&2; exit 1; }
root=$PWD profile=${PROFILE:-dist} cargo=${CARGO:-cargo}
machine=$(uname -m)
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=("$machine"-unknown-linux-{musl,gnu})
# The first program also runs here, and writes all manual pages and completions.
case ${targets[0]} in "$machine"-*) ;; *) fail "the first target has to be of this machine, as $machine-unknown-linux-musl is, not ${targets[0]}" ;; esac
built=$(cargo metadata --locked --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
registry=$(realpath "${CARGO_HOME:-$HOME/.cargo}")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
umask 022

# Where a path stands in a program, it is the same for every folder.
prefixes=("$registry=/usr/src/cargo" "$root=/usr/src/imagelet" "$built=/usr/src/target")
flags=$(printf -- '--remap-path-prefix=%s\x1f' "${prefixes[@]}")
export CARGO_ENCODED_RUSTFLAGS=${flags%$'\x1f'}
CFLAGS=$(printf -- '-ffile-prefix-map=%s ' "${prefixes[@]}")
export CFLAGS
# The one cross compiler that Debian has for musl's other architecture: of glibc, whose headers the C code here shares with musl.
export CC_aarch64_unknown_linux_musl=${CC_aarch64_unknown_linux_musl:-aarch64-linux-gnu-gcc}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER:-aarch64-linux-gnu-gcc}
for target in "${targets[@]}"; do # Before minutes of compiling.
  [ "$target" != aarch64-unknown-linux-musl ] || "$CC_aarch64_unknown_linux_musl" -xc -E -o /dev/null - <<<'#include <stdlib.h>' \
    || fail "$target needs $CC_aarch64_unknown_linux_musl and its headers (Debian package crossbuild-essential-arm64)"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/out"
xtask=(env -u CARGO_ENCODED_RUSTFLAGS -u CFLAGS "$cargo" run --locked --quiet --package xtask --)
export XTASK="${xtask[*]}"

compile() { # TARGET
  if command -v rustup >/dev/null; then rustup --quiet target add "$1"; fi
  "$cargo" build --locked --profile "$profile" --package imagelet --target "$1"
  program=$built/$1/$profile/imagelet
  if grep -qF IMAGELET_FAILPOINT "$program"; then fail "the program of $1 has the steps of the crash tests"; fi
  for prefix in "${prefixes[@]}"; do
    if grep -qF "${prefix%%=*}/" "$program"; then fail "the program of $1 names the folder ${prefix%%=*}"; fi
  done
}

pack() { # PARENT FOLDER OUT
  tar -C "$1" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' \
    -cf - "$2" | gzip -9n >"$3"
}

archive() { # TARGET: what is in $work/files, with the last program
  local name=imagelet-$version
  local packed=$work/out/$name-$1.tar.gz
  rm -rf "${work:?}/$name" # Of another target.
  mv "$work/files" "$work/$name"
  pack "$work" "$name" "$packed"
  tar -xzOf "$packed" "$name/imagelet" | cmp --quiet - "$program" || fail "the archive of $1 holds another program"
}

bill_of_materials() { # OUT: the crates in the program of the first target; those of tests are left out.
  local name=bill-of-materials tree
  cargo cyclonedx --quiet --manifest-path crates/imagelet/Cargo.toml --format json --spec-version 1.5 --no-build-deps --target "${targets[0]}" \
    --override-filename $name
  tree=$(cargo tree --locked --quiet --package imagelet --edges normal --target "${targets[0]}" --prefix none --format '{p}')
  python3 - "crates/imagelet/$name.json" "$root" "$tree" >"$1" <<'END'
import json, sys
path, root, tree = sys.argv[1:]
linked = {tuple(line.split()[:2]) for line in tree.splitlines()}
bill = json.loads(open(path).read().replace(root, "/usr/src/imagelet"))
bill["components"] = [one for one in bill["components"] if (one["name"], "v" + one["version"]) in linked]
known = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
bill["dependencies"] = [
    {**one, "dependsOn": [ref for ref in one.get("dependsOn", []) if ref in known]} for one in bill["dependencies"] if one["ref"] in known
]
json.dump(bill, sys.stdout, indent=2)
END
  # Written for every package of the workspace.
  find crates tests xtask -name $name.json -delete
}

writer= # The first program.
for target in "${targets[@]}"; do
  compile "$target"
  writer=${writer:-$program}
  version=$("$writer" version | cut -d' ' -f2)
  rm -rf "$work/files"
  TARGET=$target packaging/files.sh "$program" "$work/files" "$writer"
  case $target in
  *-linux-musl)
    if readelf --program-headers "$program" | grep -q INTERP; then fail "the program of $target is not static"; fi
    case $target in x86_64-*) architecture=amd64 ;; aarch64-*) architecture=arm64 ;; *) fail "no name for the architecture of $target" ;; esac
    "${xtask[@]}" image "$program" /etc/ssl/certs/ca-certificates.crt "$architecture" "$SOURCE_DATE_EPOCH" \
      "$work/out/imagelet-$version-image-$architecture.tar"
    archive "$target"
    ;;
  "$machine"-*-linux-gnu) packaging/deb.sh "$work/files" "$work/out" ;;
  *) fail "nothing is made for $target" ;;
  esac
done
bill_of_materials "$work/out/imagelet-$version.cdx.json"
pack deploy/chart imagelet "$work/out/imagelet-$version.tgz" # As `helm package` names it.
(cd "$work/out" && sha256sum -- * >SHA256SUMS)
mkdir -p "$out"
cp "$work"/out/* "$out"
cat "$out/SHA256SUMS"
