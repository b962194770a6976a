# The commands of developers and of CI. `make help` lists them.
SHELL := /bin/bash
GO ?= go
FUZZTIME ?= 10s

# The systems on which dsbuild runs.
PLATFORMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64

# The program that makes a release: the last version that compiles with the Go of go.mod.
GORELEASER = v2.12.0

# The linter, which reads .golangci.yml. dsbuild does not depend on it, so it is not in go.mod.
GOLANGCI_LINT = v2.15.0
GOVULNCHECK = v1.9.0

# If git refuses the checkout (root in the folder of another user), the Go tool cannot
# stamp the version and fails. Then build without the stamp.
ifeq ($(shell git rev-parse HEAD 2>/dev/null),)
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)
endif

ifneq ($(filter check test test-full,$(MAKECMDGOALS)),)
export PATH := $(shell ci/path.sh 2>/dev/null)
endif

# Programs are linked like those of a release. All of them, the engine's and the tests too, have the same
# flags, so that Go compiles their common packages once. The compiler spends a tenth of its time on debug information.
FLAGS = -trimpath -gcflags=all=-dwarf=false -ldflags=-w
build quickstart nodes nodes-stop engine engine-stop bin/ci/engine source check test test-full: export CGO_ENABLED = 0
quickstart nodes nodes-stop: export GOFLAGS += $(FLAGS)

PREFIX ?= /usr/local

.PHONY: help modules build install packages-lock prove cross quickstart nodes nodes-stop check race source test test-full test-gpu gpu-kit bench pictures release-snapshot release fuzz engine engine-stop lint vulncheck clean clean-caches
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

# Go downloads modules without a word, and without a network it says so once for each.
modules:
	@GOPROXY=off $(GO) list -deps ./cmd/dsbuild >/dev/null 2>&1 || { \
	  echo "==> downloading the Go modules from $$($(GO) env GOPROXY)"; \
	  said=$$($(GO) mod download 2>&1) || { echo "$$said" | tail -n 1; \
	  echo "hint: without internet, set GOPROXY to a mirror, or copy $$($(GO) env GOMODCACHE) from a machine that has it"; exit 1; }; }

build: modules ## compile bin/dsbuild
	@echo "==> compiling dsbuild (the first time it takes a minute or two)"
	@$(GO) build $(FLAGS) -o bin/dsbuild ./cmd/dsbuild

install: build ## install dsbuild, its manual pages and completions into PREFIX (/usr/local)
	@install -D -m 755 bin/dsbuild $(DESTDIR)$(PREFIX)/bin/dsbuild || { echo "hint: without root: make install PREFIX=$$HOME/.local"; exit 1; }
	bin/dsbuild man $(DESTDIR)$(PREFIX)/share/man/man1
	mkdir -p $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	bin/dsbuild completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/dsbuild
	bin/dsbuild completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_dsbuild
	bin/dsbuild completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/dsbuild.fish

cross: ## compile bin/dsbuild-OS-ARCH for every supported platform
	@for t in $(PLATFORMS); do echo "==> $$t"; \
	  GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build $(FLAGS) -o bin/dsbuild-$${t/\//-}$$([[ $$t != windows/* ]] || echo .exe) ./cmd/dsbuild || exit 1; done

# The programs of the module ci, which run in this folder.
bin/ci/%: FORCE
	@$(GO) build -C ci $(FLAGS) -o ../$@ ./$*
FORCE:

quickstart: modules ## build a real wheel for every GPU and deploy it to three local nodes
	@echo "==> compiling quickstart (the first time it takes a minute)"
	@cd ci && $(GO) run ./quickstart # it writes elsewhere if this folder is read-only

nodes: modules ## start the three local nodes of quickstart and keep them running, for the commands in the docs
	@cd ci && $(GO) run ./quickstart start

nodes-stop: ## stop these nodes and keep their files
	@cd ci && $(GO) run ./quickstart stop

# Check the sources: format and vet.
source:
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || { echo "gofmt -w: $$unformatted"; exit 1; }
	$(GO) vet $(FLAGS) -tags full ./...
	cd ci && $(GO) vet $(FLAGS) -tags full ./...

# CI is empty here: a missing part fails make test, but not make check. The tests wait for processes
# and timers too, so more of them run at once than there are cores.
check: build source ## before each commit, in a few minutes: build, vet, format, tests without engine and wheel
	cores=$$(getconf _NPROCESSORS_ONLN) && CI= $(GO) test $(FLAGS) -vet=off -short -p $$((cores + 1)) -parallel $$((cores * 2)) ./... && \
	  cd ci && CI= $(GO) test $(FLAGS) -vet=off -short ./...

race: modules ## the short tests with Go's race detector; the last line is the share of statements that they run
	mkdir -p bin && CI= $(GO) test -race -short -coverprofile=bin/coverage ./... && $(GO) tool cover -func=bin/coverage | tail -n 1

packages-lock: bin/ci/packagelock ## re-resolve the Python packages of all toolchains on PyPI: dockerfiles/packages.lock
	bin/ci/packagelock

prove: RELEASE ?= latest
prove: bin/ci/prove ## prove the ops of RELEASE (latest) that have changed, over torch's stable ABI, and write compat/data
	bin/ci/prove $(RELEASE)

test: build bin/ci/engine ## what CI runs: real engine, real wheel, real nodes (without an engine, the tests that need none); or PART=fleet, remote, rest
	FLAGS="$(FLAGS)" ci/test.sh $(PART)

test-full: build bin/ci/engine ## the long proofs, in six hours: all, or PART="inside fleet"
	FLAGS="$(FLAGS)" ci/full.sh $(PART)

test-gpu: ## on a machine with a GPU: every kernel of both ABIs, compared with torch
	$(GO) test -tags full -count=1 -v -timeout 12h -run '^TestGPU' ./cmd/dsbuild

gpu-kit: build bin/ci/gpukit ## a folder that compares every op with torch on a machine with a GPU and no network; or of WHEEL=FILE
	@wheel="$(WHEEL)"; [[ -n $$wheel ]] || { rm -rf bin/gpu-wheel && bin/dsbuild wheel -o bin/gpu-wheel && wheel=$$(ls bin/gpu-wheel/*.whl); } && \
	  bin/ci/gpukit "$$wheel" bin/gpu-kit

bench: build bin/ci/engine bin/ci/bench ## compare builds with the stock recipe, the fan-out with pdsh, clush, Ansible, scp; or PART=growth
	bin/ci/bench $(PART)

pictures: build ## make docs/pictures, from real runs on three local nodes
	cd ci && $(GO) test -tags full -count=1 -v -run '^TestDrawPictures$$' ./pictures

release-snapshot: SNAPSHOT = --snapshot ## put all files of a release, and its image, into bin/release
release: SNAPSHOT = # only .github/workflows/release.yml calls it
release release-snapshot: bin/ci/programimage
	GOFLAGS= $(GO) run github.com/goreleaser/goreleaser/v2@$(GORELEASER) release $(SNAPSHOT) --clean
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) bin/ci/programimage bin/release

fuzz: ## run every fuzz target for FUZZTIME (10s)
	ci/fuzz.sh $(FUZZTIME)

lint: ## compile golangci-lint (once, a few minutes) and run it
	$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT) run
	cd ci && $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT) run

vulncheck: ## check the code that the program calls for known vulnerabilities (vuln.go.dev)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) ./cmd/dsbuild

engine: bin/ci/engine ## start dsbuild's own Dagger engine (root, Debian 12 or 13)
	bin/ci/engine up

engine-stop: bin/ci/engine ## stop it; its cache stays
	bin/ci/engine down

clean: ## remove the files that make built
	rm -rf bin dist .test

clean-caches: engine-stop ## remove the engine, the store and the test nodes too
	rm -rf "$${XDG_STATE_HOME:-$$HOME/.local/state}/dsbuild" "$${XDG_CACHE_HOME:-$$HOME/.cache}/dsbuild"
