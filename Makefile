# The two commands: `make test` proves the tree, `make bench` prints every figure the project claims.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

CARGO ?= cargo
DENY_VERSION := 0.20.2
FUZZ_VERSION := 0.13.2
MDBOOK_VERSION := 0.4.52
CYCLONEDX_VERSION := 0.5.9
SEMVER_VERSION := 0.51.0
# How long `make fuzz` spends on each target; all run at once.
FUZZ_SECONDS ?= 3600
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
TEST_LOG := target/test.log
# Tests of a program that run at the same time: many wait for processes and for time.
ifndef RUST_TEST_THREADS
export RUST_TEST_THREADS := $(shell echo $$((3 * $$(nproc) / 2)))
endif

# Where cargo builds; asked when needed.
TARGET_DIRECTORY = $$($(CARGO) metadata --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')

# What the tests start for real, as `program:package`.
PARTS := containerd:containerd runc:runc docker-registry:docker-registry busybox:busybox-static htpasswd:apache2-utils \
	openssl:openssl skopeo:skopeo strace:strace mkfs.ext4:e2fsprogs mount:mount zstd:zstd gzip:gzip cc:gcc make:make python3:python3 \
	systemd-analyze:systemd tinyproxy:tinyproxy-bin promtool:prometheus \
	chromium:chromium chromedriver:chromium-driver faketime:faketime
# Shell that installs the Debian packages of programs that are missing, of PARTS unless given as an argument.
define install_parts
export PATH="$$PATH:/usr/sbin:/sbin"
parts=($(if $(1),$(1),$(PARTS)))
missing=()
for part in "$${parts[@]}"; do
  command -v "$${part%%:*}" >/dev/null || missing+=("$${part##*:}")
done
if [ "$${#missing[@]}" -gt 0 ]; then
  echo "installing: $${missing[*]}"
  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
  $$sudo apt-get update -qq
  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
fi
for part in "$${parts[@]}"; do
  command -v "$${part%%:*}" >/dev/null || { echo "missing: $${part%%:*} (Debian package $${part##*:})" >&2; exit 1; }
done
endef
# Shell that prints how many tests passed, by the log and what is given beside: PASSED,FAILED.
define summary
awk -v passed="$(1)" -v failed="$(2)" '/^test result:/ { passed += $$4; failed += $$6; ignored += $$8 }
  END { printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored; exit passed == 0 }' $(TEST_LOG)
endef
# Containerds of the next Debian releases, as `version:suite`; unpacked below target, not installed.
CONTAINERDS := 1.7:trixie 2.1:forky

# What `make deb` and `make package-test` need beside those.
DEB_PARTS := dpkg-buildpackage:dpkg-dev dh:debhelper cc:gcc python3:python3
PACKAGE_PARTS := $(DEB_PARTS) lintian:lintian debootstrap:debootstrap unshare:util-linux systemd-analyze:systemd \
	strip:binutils update-ca-certificates:ca-certificates
# What `make dist` needs.
DIST_PARTS := $(DEB_PARTS) git:git musl-gcc:musl-tools readelf:binutils update-ca-certificates:ca-certificates \
	$(if $(findstring aarch64-,$(DIST_TARGETS)),aarch64-linux-gnu-gcc:crossbuild-essential-arm64)
# What `make powercut` needs.
POWERCUT_PARTS := python3:python3 mkfs.ext4:e2fsprogs mkfs.btrfs:btrfs-progs unshare:util-linux \
	strace:strace containerd:containerd
# How many moments it cuts the power at, over all scenarios, and which; the program, built where empty.
CUTS ?= 192
# How many in `make ci`: a round of one to three minutes.
CI_CUTS := 96
SEED ?= power
IMAGELET ?=
# What `make soak` needs, and how long it runs; once before each release.
SOAK_PARTS := python3:python3 mkfs.ext4:e2fsprogs unshare:util-linux containerd:containerd runc:runc \
	busybox:busybox-static faketime:faketime
MINUTES ?= 20
# What `make release-check` measures once: figures that need no large image.
ONCE_FIGURES := small idle between callers full
ONCE_CANDIDATES := imagelet,daemon,background,keeping,imported,forwarded,containerd
# What `make semver-check` compares with: a tag or commit, which git has.
BASELINE ?=
# The targets of `make dist`; this machine's with musl and with glibc where empty.
DIST_TARGETS ?=

.PHONY: help parts fmt lint doc book deny test powercut powercut-proof soak soak-large package-test release-check ci deb dist dist-check publish-check chart-check semver-check fuzz bench

help: ## Lists the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

parts: ## Installs the Debian packages the tests start, where they are missing, and unpacks later containerds.
	@$(install_parts)
	for one in $(CONTAINERDS); do tests/containerd.sh "$${one#*:}" "target/parts/containerd-$${one%%:*}"; done

fmt: ## Checks the formatting.
	@$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --all --check

lint: fmt ## Formatting, clippy, and that the fuzz targets compile; warnings are errors.
	@$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	# Without libFuzzer itself, which a C++ compiler makes. fuzz/Cargo.lock has the program's versions: most is compiled already.
	$(CARGO) check --locked --quiet --no-default-features --manifest-path fuzz/Cargo.toml --target-dir "$(TARGET_DIRECTORY)"

doc: ## Builds the API documentation, warnings are errors.
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --quiet --workspace --all-features --no-deps

book: ## Builds the documentation as a book, below target/book.
	@[ "$$(mdbook --version 2>/dev/null)" = "mdbook v$(MDBOOK_VERSION)" ] \
	  || $(CARGO) install --quiet --locked mdbook --version $(MDBOOK_VERSION) --no-default-features --features search
	mdbook build

deny: ## Checks what the dependency tree may hold.
	@[ "$$($(CARGO) deny --version 2>/dev/null)" = "cargo-deny $(DENY_VERSION)" ] \
	  || $(CARGO) install --quiet --locked cargo-deny --version $(DENY_VERSION)
	$(CARGO) fetch --locked --quiet
	$(CARGO) deny --offline --log-level error check bans licenses sources
	if timeout 60 $(CARGO) deny --log-level off fetch db 2>/dev/null; then
	  $(CARGO) deny --offline --log-level error check advisories
	else
	  echo "NOT CHECKED: known vulnerabilities of dependencies; the database of advisories cannot be reached" >&2
	fi

test: parts lint doc deny ## Everything CI checks; names the slowest tests, ends on `N passed, N failed`.
	@mkdir -p $(dir $(TEST_LOG))
	export PATH="$$PATH:/usr/sbin:/sbin"
	python3 -m doctest tests/times.py
	python3 benches/selfcheck.py
	status=0
	$(CARGO) test --locked --workspace --no-fail-fast 2>&1 | python3 tests/times.py $(TEST_LOG) || status=$$?
	grep -E '^test .* FAILED$$' $(TEST_LOG) || true
	# What each of them said, once more at the end, where a reader looks first.
	grep -A 3 -E ' panicked at ' $(TEST_LOG) | cut -c 1-400 | head -n 60 || true
	$(call summary,0,0)
	exit $$status

# Shell that names the program of the power cuts: IMAGELET, or one that is built.
define powercut_program
$(call install_parts,$(POWERCUT_PARTS))
program="$(IMAGELET)"
if [ -z "$$program" ]; then
  $(CARGO) build --locked --package imagelet
  program="$(TARGET_DIRECTORY)/debug/imagelet"
fi
endef

powercut: ## Cuts the power of the store's disk at CUTS recorded moments, IMAGELET=PROGRAM or a build; root.
	@$(powercut_program)
	python3 tests/powercut/selfcheck.py
	python3 tests/powercut/powercut.py "$$program" --cuts $(CUTS) --seed "$(SEED)"

powercut-proof: ## Removes syncs of the program on purpose, and demands that power cuts show each; root.
	@$(powercut_program)
	python3 tests/powercut/powercut.py "$$program" --seed "$(SEED)" --removed-syncs

soak: ## Runs daemons for MINUTES amid pods, kills, a full disk, clock steps and faults, IMAGELET=PROGRAM or a build; root.
	@$(call install_parts,$(SOAK_PARTS))
	program="$(IMAGELET)"
	if [ -z "$$program" ]; then
	  $(CARGO) build --locked --release --package imagelet
	  program="$(TARGET_DIRECTORY)/release/imagelet"
	fi
	python3 tests/soak/selfcheck.py
	python3 tests/soak/soak.py "$$program" --minutes $(MINUTES) --seed "$(SEED)" --report target/soak.html

soak-large: ## Pulls images of 12 GB amid resets, kills and a disk with room for three, on the disk of /var/tmp; root, 60 GB, an hour.
	@$(call install_parts,$(SOAK_PARTS))
	program="$(IMAGELET)"
	if [ -z "$$program" ]; then
	  $(CARGO) build --locked --profile dist --package imagelet
	  program="$(TARGET_DIRECTORY)/dist/imagelet"
	fi
	python3 tests/soak/large.py "$$program" --seed "$(SEED)"

release-check: parts ## Builds a release, looks for the steps of crash tests in it, and takes some figures once; root.
	@$(call install_parts,igzip:isal)
	export PATH="$$PATH:/usr/sbin:/sbin"
	$(CARGO) build --locked --release --package imagelet
	target=$(TARGET_DIRECTORY)
	if grep -qF IMAGELET_FAILPOINT "$$target/release/imagelet"; then echo "the release has the steps of the crash tests" >&2; exit 1; fi
	for figure in ensure inventory; do $(CARGO) bench --locked --quiet --profile release --package imagelet-core --bench "$$figure"; done
	python3 benches/bench.py $(ONCE_FIGURES) --imagelet "$$target/release/imagelet" --work "$$target/bench-once" \
	  --pairs 1 --images 20 --full 200 --candidates $(ONCE_CANDIDATES) --unjudged --quiet

ci: test ## `make test`, then the package's tests, a round of power cuts and the release's check; ends on the summary of all.
	@passed=0 failed=0
	# The program that the tests ran.
	parts=(package-test "powercut CUTS=$(CI_CUTS) IMAGELET=$(TARGET_DIRECTORY)/debug/imagelet" release-check)
	[ -e /dev/fuse ] || { echo "NOT RUN: power cuts need /dev/fuse" >&2; parts=(package-test release-check); }
	for part in "$${parts[@]}"; do
	  if $(MAKE) --no-print-directory $$part; then passed=$$((passed + 1)); else failed=$$((failed + 1)); fi
	done
	$(call summary,$$passed,$$failed)
	[ "$$failed" = 0 ]

package-test: ## Makes the Debian package of the tests' build, and installs, upgrades and purges it in a new Debian; root.
	@$(call install_parts,$(PACKAGE_PARTS))
	export PATH="$$PATH:/usr/sbin:/sbin"
	# The packages and targets of `make test`: nothing is compiled twice.
	$(CARGO) build --locked --workspace --bins --tests
	target=$(TARGET_DIRECTORY)
	XTASK="$$target/debug/xtask" tests/package.sh "$$target/debug/imagelet" target/parts

deb: ## Makes the Debian package in target/packages.
	@$(call install_parts,$(DEB_PARTS))
	$(CARGO) build --locked --profile dist --package imagelet
	export CARGO=$(CARGO)
	packaging/files.sh "$(TARGET_DIRECTORY)/dist/imagelet" target/packages/files
	packaging/deb.sh target/packages/files target/packages

dist: ## Makes a release in target/packages: static program, Debian package, container image, bill of materials, sums.
	@$(call install_parts,$(DIST_PARTS))
	[ "$$($(CARGO) cyclonedx --version 2>/dev/null)" = "cargo-cyclonedx-cyclonedx $(CYCLONEDX_VERSION)" ] \
	  || $(CARGO) install --quiet --locked cargo-cyclonedx --version $(CYCLONEDX_VERSION)
	CARGO=$(CARGO) packaging/dist.sh target/packages $(DIST_TARGETS)

dist-check: dist ## Makes the release of the last commit once more, in another folder, and compares the two.
	@CARGO=$(CARGO) packaging/reproduce.sh target/packages $(DIST_TARGETS)

publish-check: ## Packs the crates as for crates.io, and compiles what was packed.
	@$(CARGO) publish --locked --workspace --dry-run

chart-check: ## Lints the Helm chart, and compares deploy/imagelet.yaml with what it renders; wants helm.
	@helm lint --strict deploy/chart/imagelet
	$(CARGO) test --locked --package imagelet --test it -- --ignored chart::

semver-check: ## Compares what the library crates offer with BASELINE=REVISION; what a caller would lose is an error.
	@[ -n "$(BASELINE)" ] || { echo "semver-check: BASELINE is the revision of the last release" >&2; exit 2; }
	[ "$$($(CARGO) semver-checks --version 2>/dev/null)" = "cargo-semver-checks $(SEMVER_VERSION)" ] \
	  || $(CARGO) install --quiet --locked cargo-semver-checks --version $(SEMVER_VERSION)
	$(CARGO) semver-checks --workspace --exclude imagelet --baseline-rev "$(BASELINE)"

fuzz: ## Fuzzes all targets side by side, FUZZ_SECONDS each; wants a C++ compiler and an hour.
	@[ "$$($(CARGO) fuzz --version 2>/dev/null)" = "cargo-fuzz $(FUZZ_VERSION)" ] \
	  || $(CARGO) install --quiet --locked cargo-fuzz --version $(FUZZ_VERSION)
	cd fuzz
	here=$$PWD # The targets work in a folder of their own.
	options=(--sanitizer none --no-cfg-fuzzing)
	$(CARGO) fuzz build "$${options[@]}"
	for target in $(FUZZ_TARGETS); do
	  mkdir -p corpus/$$target artifacts/$$target regressions/$$target
	  tar -xf seeds/$$target.tar -C corpus/$$target
	  nice -n 19 $(CARGO) fuzz run "$${options[@]}" $$target "$$here"/{corpus,regressions}/$$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -timeout=20 -rss_limit_mb=1024 -print_final_stats=1 \
	    >artifacts/$$target.log 2>&1 &
	done
	status=0
	for job in $$(jobs -p); do wait $$job || status=1; done
	grep -H -E '^Done |number_of_executed_units|^thread .* panicked|ERROR: libFuzzer' artifacts/*.log
	exit $$status

bench: parts ## Prints every figure the project claims; FIGURES="web rss" for some, BENCH_ML=1 for the large image too.
	@export PATH="$$PATH:/usr/sbin:/sbin"
	missing=()
	for part in skopeo:skopeo umoci:umoci igzip:isal zstd:zstd; do
	  command -v "$${part%%:*}" >/dev/null || missing+=("$${part##*:}")
	done
	if [ "$${#missing[@]}" -gt 0 ]; then
	  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
	fi
	core=" ensure inventory " # Benchmarks of the library: they need no binary.
	figures="$(FIGURES)"
	others=
	for figure in $$figures; do [[ "$$core" = *" $$figure "* ]] || others+=" $$figure"; done
	[ -n "$$figures" ] && [ -z "$$others" ] || $(CARGO) build --locked --profile dist --package imagelet
	target=$(TARGET_DIRECTORY)
	status=0
	for figure in $$core; do
	  [ -z "$$figures" ] || grep -qw "$$figure" <<<"$$figures" || continue
	  $(CARGO) bench --locked --quiet --profile dist --package imagelet-core --bench "$$figure" -- --check || status=1
	done
	[ -n "$$figures" ] && [ -z "$$others" ] || python3 benches/bench.py $$others --imagelet "$$target/dist/imagelet" --work "$$target/bench" $(BENCH_FLAGS) || status=1
	exit "$$status"
