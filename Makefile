# dsbuild: what people and CI call. `make help` lists it.
SHELL := /bin/bash
GO ?= go
FUZZTIME ?= 10s

# What dsbuild is driven from, and which of them make test compiles: one of each
# system that CI itself is not. Another processor changes no line of dsbuild's.
DRIVERS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
OTHERS = darwin/arm64 windows/amd64

# What makes a release; the last that compiles with the Go of go.mod.
GORELEASER = v2.12.0

# What reads .golangci.yml. It is no dependency of dsbuild's, so not in go.mod.
GOLANGCI_LINT = v2.15.0

# Where git refuses the checkout (root in the folder of another user), the Go tool
# would not build: then it stamps no version.
ifeq ($(shell git rev-parse HEAD 2>/dev/null),)
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)
endif

# Programs are linked as a release's are. One set of flags for all of them, the
# engine's too: what they share is compiled once.
build quickstart engine engine-stop: export CGO_ENABLED = 0

.PHONY: help build drivers quickstart check source test test-full bench pictures release-snapshot release fuzz engine engine-stop lint clean clean-caches
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

build: ## compile bin/dsbuild
	@echo "==> compiling dsbuild (the first time a minute or two)"
	@$(GO) build -trimpath -o bin/dsbuild ./cmd/dsbuild

drivers: ## compile bin/dsbuild-OS-ARCH for every system it is driven from
	@for t in $(DRIVERS); do echo "==> $$t"; \
	  GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build -trimpath -o bin/dsbuild-$${t/\//-}$$([[ $$t != windows/* ]] || echo .exe) ./cmd/dsbuild || exit 1; done

quickstart: ## a real wheel for A100, built and deployed to three local nodes
	@echo "==> compiling quickstart (the first time a minute)"
	@$(GO) run -trimpath ./ci/quickstart

# The sources as they stand: format and vet.
source:
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "gofmt -w: $$unformatted"; exit 1; }
	$(GO) vet -tags full ./...

# CI is empty here: a part that is missing fails make test, not this.
check: build source ## before each commit, in 3 minutes: build, vet, format, tests without engine and wheel
	CI= $(GO) test -short ./...

test: build source ## all that CI runs: real engine, real wheel, real nodes; without an engine what needs none
	@for t in $(OTHERS); do echo "==> compiling for $$t"; GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/dsbuild || exit 1; done
	$(GO) run ./ci/test

test-full: ## the long proofs, each part at most an hour: all, or PART=inside
	$(GO) run ./ci/full $(PART)

bench: build ## builds beside the stock recipe, the fan-out beside pdsh, clush, Ansible, scp; or PART=growth
	$(GO) run ./ci/bench $(PART)

pictures: build ## docs/pictures, from real runs on three local nodes
	$(GO) run ./ci/pictures

release-snapshot: ## all that a release would publish, into bin/release
	GOFLAGS= $(GO) run github.com/goreleaser/goreleaser/v2@$(GORELEASER) release --snapshot --clean

# Only .github/workflows/release.yml calls it.
release:
	GOFLAGS= $(GO) run github.com/goreleaser/goreleaser/v2@$(GORELEASER) release --clean

fuzz: ## every fuzz target for FUZZTIME (10s)
	$(GO) run ./ci/fuzz $(FUZZTIME)

lint: ## golangci-lint, which is compiled first (once, some minutes)
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT) run

engine: ## start dsbuild's own Dagger engine (root, Debian 12 or 13)
	$(GO) run -trimpath ./ci/engine up

engine-stop: ## stop it; its cache stays
	$(GO) run -trimpath ./ci/engine down

clean: ## remove what was built in this folder
	rm -rf bin dist .test

clean-caches: engine-stop ## remove the engine, the store and the test nodes too
	rm -rf "$${XDG_STATE_HOME:-$$HOME/.local/state}/dsbuild" "$${XDG_CACHE_HOME:-$$HOME/.cache}/dsbuild"
