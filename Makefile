# `make demo` and `make test` need a Linux host, root and Go; whatever else they need they
# install themselves by apt-get. Everything that is built goes to bin/ and build/.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.NOTPARALLEL:
.DELETE_ON_ERROR:
export PATH := $(PATH):/usr/sbin:/sbin

GO       ?= go
FUZZTIME ?= 10s
# More words for `make bench-edge`, for example --quick.
BENCH    ?=
# Scenarios that `make test` runs last, with the binary that users get.
SMOKE    ?= egress-day egress-swap egress-direct egress-awg egress-uplink-cut --cut 20s

# Packages whose tests make network namespaces, devices and rules, or lists of 100,000
# profiles, which the race detector makes slow. They run one after
# another, never from the cache: their figures are times, and the kernel is no input that
# the cache knows of. All other packages, also ones that come later, are quick.
KERNEL   := cli flow host knock lab lane nft plane probe provider tripwire tunnel watchdog
MODULE   := github.com/shunt-net/shunt
kernel    = $(filter $(addsuffix /%,$(KERNEL:%=$(MODULE)/internal/%)) $(KERNEL:%=$(MODULE)/internal/%),$(packages))
quick     = $(filter-out $(kernel),$(packages))
packages  = $(shell $(GO) list -e ./...)
# The race detector needs cgo and a C compiler; without them the quick tests run without it.
race      = $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null && echo -race)
# Stamp the revision only where git can tell one (a tarball has none).
vcs       = $(shell git rev-parse HEAD >/dev/null 2>&1 && echo true || echo false)

.PHONY: help demo test test-quick test-kernel smoke race lint fmt bench bench-edge fuzz man completions build clean \
	need-go need-root need-demo need-test need-lint

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F "\t" '{ printf "%-12s %s\n", $$1, $$2 }'

build: need-go ## bin/shunt
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(vcs) -ldflags '-s -w' -o bin/shunt ./cmd/shunt

demo: need-root need-demo build ## five lanes in throw-away namespaces lose one and get it back, told with times
	timeout --foreground 300 bin/shunt lab run egress-day

test: need-root need-demo need-test test-quick test-kernel smoke ## everything; needs root

test-quick: need-go ## tests that need neither root nor network
	$(GO) test $(race) -short $(quick)
	$(GO) test $(MODULE)/internal/edge $(MODULE)/internal/egress

test-kernel: need-root need-demo need-test
	.ci/again $(kernel) -- $(GO) test -p 1 -count=1 -timeout 20m

smoke: need-root need-demo build
	timeout --foreground 900 bin/shunt lab run $(SMOKE) || { \
	  echo "once more: a machine that stood still breaks a bound, a fault breaks it again" >&2; \
	  timeout --foreground 900 bin/shunt lab run $(SMOKE); }

race: need-root need-demo need-test ## every test under the race detector; slow
	$(GO) test -race -p 1 -count=1 -timeout 45m ./...

lint: need-go need-lint ## format, rings and the rest of .ci/golangci.yml, with pinned tools
	.ci/lint

fmt: need-go ## format every file as lint wants it
	"$$(.ci/tool golangci-lint)" fmt -c .ci/golangci.yml

bench: need-go ## benchmarks
	$(GO) test -p 1 -run '^$$' -bench . -benchmem ./...

bench-edge: need-root build ## deaths behind shunt, HAProxy, nginx, keepalived and a shell loop in turn; build/bench-edge.json, .txt
	.ci/bench-edge
	@mkdir -p build
	timeout --foreground 960 bin/shunt lab run edge-bench $(BENCH) --output json 2> >(tee build/bench-edge.txt >&2) >build/bench-edge.json

fuzz: need-go ## each fuzz target for FUZZTIME (10s)
	.ci/fuzz $(FUZZTIME)

man: build ## build/man, one page for each command
	@mkdir -p build/man
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct 2>/dev/null || date +%s)" bin/shunt man --dir build/man

completions: build ## build/completions for bash, zsh and fish
	@mkdir -p build/completions
	for s in bash zsh fish; do bin/shunt completion $$s >build/completions/shunt.$$s; done

clean: ## remove bin/ and build/
	rm -rf bin build

need-go:
	@command -v $(GO) >/dev/null || { echo "error: $(GO) is not installed" >&2; \
	  echo "hint: Go $$(sed -n 's/^go //p' go.mod) or newer, from https://go.dev/dl" >&2; exit 1; }

need-root: need-go
	@[ "$$(id -u)" = 0 ] || { echo "error: this needs root: it makes network namespaces and devices of its own" >&2; \
	  echo "hint: sudo make $(MAKECMDGOALS)" >&2; exit 1; }

need-demo:
	@.ci/need nft:nftables ip:iproute2 conntrack:conntrack wg:wireguard-tools ping:iputils-ping

need-test:
	@.ci/need systemd-analyze:systemd unshare:util-linux keepalived:keepalived

need-lint:
	@.ci/need shellcheck:shellcheck
