#!/usr/bin/env bash
# Proves the Debian package in a new Debian: lintian, units, installation, the daemon, upgrade, removal, purge. Root.
#   package.sh PROGRAM PARTS    PARTS keeps the bootstrapped Debian for the next run
set -euo pipefail

suite=bookworm
fail() { echo "FAILED: $*" >&2; exit 1; }
step() { echo "package: $*"; }

# The second half: in mount and process namespaces of its own, so that its end leaves neither mounts nor processes.
inside() {
  work=$1 root=$1/root
  mount --make-rprivate /
  # Its root is a mount, as that of a machine is.
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/run"
  mount --bind /dev "$root/dev"
  local environment=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive)
  guest() { chroot "$root" "${environment[@]}" "$@"; }
  apt() { guest apt-get -qq -o APT::Sandbox::User=root "$@" >>"$work/apt.log" 2>&1 || { cat "$work/apt.log"; fail "apt-get $*"; }; }
  # A `systemctl` that records what the maintainer scripts ask of systemd, which does not run here.
  mkdir -p "$root/run/systemd/system"
  cat >"$root/usr/bin/systemctl" <<'END'
#!/bin/sh
echo "$@" >>/run/systemctl.log
case "$*" in
*is-enabled*) echo enabled ;;
*is-active*) exit 3 ;;
esac
END
  chmod +x "$root/usr/bin/systemctl"
  asked() { grep -E "(^| )($1) (.* )?$2( |\$)" "$root/run/systemctl.log"; }
  must_ask() { asked "$@" >/dev/null || { cat "$root/run/systemctl.log"; fail "systemd is not asked: $*"; }; }
  start() { # The daemon, as the unit starts it.
    local command
    command=$(sed -n 's/^ExecStart=//p' "$root/lib/systemd/system/imagelet.service")
    chroot "$root" "${environment[@]}" $command >>"$work/daemon.log" 2>&1 &
    daemon=$!
    for _ in $(seq 300); do
      if guest imagelet status >/dev/null 2>&1 && [ -S "$root/run/imagelet/imagelet.sock" ]; then return; fi
      kill -0 $daemon 2>/dev/null || break
      sleep 0.1
    done
    cat "$work/daemon.log"
    fail "the daemon of \`$command\` does not answer"
  }
  images() { guest imagelet ls -q; guest imagelet pins; guest imagelet verify; }
  stop() { kill -TERM $daemon; wait $daemon || { cat "$work/daemon.log"; fail "the daemon did not exit 0"; }; }

  step "install"
  cp "$work"/old/*.deb "$root/old.deb"
  cp "$work"/new/*.deb "$root/new.deb"
  cp "$work/image.tar" "$root/image.tar"
  apt install --no-install-recommends -y /old.deb
  for unit in imagelet.socket imagelet.service; do
    must_ask preset $unit
    must_ask start $unit
  done
  guest imagelet config check /etc/imagelet/config.yaml >/dev/null
  [ -s "$root/usr/share/bash-completion/completions/imagelet" ] || fail "no completions"
  # Read to its end: a list that is cut off by `grep -q` is a failure of dpkg.
  guest dpkg -L imagelet | grep '/man1/imagelet-pull.1.gz$' >/dev/null || fail "no manual pages"

  step "the daemon imports and mounts an image"
  start
  guest imagelet import /image.tar >/dev/null
  guest imagelet pin 'localhost/*' >/dev/null
  name=$(guest imagelet ls -o json | python3 -c 'import json,sys; print(json.load(sys.stdin)["images"][0]["names"][0])')
  guest mkdir -p /mnt/image
  guest imagelet mount "$name" /mnt/image >/dev/null
  cmp "$root/mnt/image/usr/bin/imagelet" "$root/usr/bin/imagelet" || fail "the mounted image has another program"
  before=$(images)
  stop

  step "upgrade over the store, with a changed configuration"
  echo '# changed by hand' >>"$root/etc/imagelet/config.yaml"
  : >"$root/run/systemctl.log"
  apt install --no-install-recommends -y -o Dpkg::Options::=--force-confdef /new.deb
  must_ask restart imagelet.service
  if asked 'restart|stop|try-restart' imagelet.socket; then fail "the upgrade stops or restarts the socket"; fi
  grep -q 'changed by hand' "$root/etc/imagelet/config.yaml" || fail "the upgrade replaced a changed configuration"
  start
  [ "$(images)" = "$before" ] || fail "the upgrade changed images or pins"
  stop

  step "and back"
  apt install --no-install-recommends -y --allow-downgrades /old.deb
  start
  [ "$(images)" = "$before" ] || fail "the way back changed images or pins"
  stop

  step "remove keeps configuration and store"
  : >"$root/run/systemctl.log"
  apt remove -y imagelet
  for unit in imagelet.service imagelet.socket; do
    must_ask stop $unit
  done
  [ ! -e "$root/usr/bin/imagelet" ] || fail "the program is still there"
  [ -s "$root/etc/imagelet/config.yaml" ] || fail "the configuration is gone"
  [ -d "$root/var/lib/imagelet" ] || fail "the store is gone"

  step "purge while an image is mounted keeps the store, and removes it otherwise"
  apt purge -y imagelet
  [ -d "$root/var/lib/imagelet" ] || fail "the store of a mounted image is gone"
  umount "$root/mnt/image"
  apt install --no-install-recommends -y /new.deb
  apt purge -y imagelet
  left=$(cd "$root" && find . -xdev -name '*imagelet*' -not -path './proc/*' -not -path './run/*')
  [ -z "$left" ] || fail "left after the purge: $left"
}

if [ "$1" = --inside ]; then
  inside "$2"
  exit
fi

program=$(realpath "$1") parts=$(realpath -m "$2")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step "packages"
# The package has no symbols; a quick build has.
strip -o "$work/imagelet" "$program"
program=$work/imagelet
packaging/files.sh "$program" "$work/files"
packaging/deb.sh "$work/files" "$work/new"
version=$(dpkg-deb -f "$work"/new/*.deb Version)
packaging/deb.sh "$work/files" "$work/old" "$version~before"
cargo_version=$("$program" version | cut -d' ' -f2)
[ "${version%-*}" = "$cargo_version" ] || fail "packaging/debian/changelog has version $version, the program is $cargo_version"
read -ra xtask <<<"${XTASK:-${CARGO:-cargo} run --locked --quiet --package xtask --}"
"${xtask[@]}" image "$program" /etc/ssl/certs/ca-certificates.crt \
  "$(dpkg --print-architecture)" 0 "$work/image.tar"

step "lintian"
lintian --fail-on error,warning --info "$work"/new/*.deb || fail "lintian found faults"

step "units"
mkdir "$work/new/tree"
dpkg-deb -x "$work"/new/*.deb "$work/new/tree"
units=$work/new/tree/lib/systemd/system
systemd-analyze security --offline=yes --threshold=60 --no-pager "$units/imagelet.service" >"$work/security" \
  || { cat "$work/security"; fail "the unit is more exposed than 6.0"; }
tail -1 "$work/security"

if [ ! -s "$parts/debian-$suite.tar" ]; then
  step "debootstrap $suite"
  mkdir -p "$parts"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" 2>/dev/null | head -1 || true)
  debootstrap --variant=minbase "$suite" "$work/bootstrap" ${mirror:+"$mirror"} >"$work/log" 2>&1 \
    || { tail -20 "$work/log"; fail "debootstrap of $suite"; }
  tar -C "$work/bootstrap" -cf "$parts/debian-$suite.tar.new" .
  mv "$parts/debian-$suite.tar.new" "$parts/debian-$suite.tar"
  rm -rf "$work/bootstrap"
fi
mkdir "$work/root"
tar -C "$work/root" -xpf "$parts/debian-$suite.tar"
unshare --mount --pid --fork --kill-child "$0" --inside "$work"
echo "package: all steps passed"
