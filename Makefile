# `make help` lists the targets; the comments behind ## are what it prints.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO            ?= go
MODULE        := $(shell sed -n 's/^module //p' go.mod)
MODULES       := . cmd/idemctl dedupe/pgxstore examples metrics otelhooks tests
LINT_VERSION  := v2.15.0
LINT          := bin/golangci-lint-$(LINT_VERSION)
TIMEOUT       ?= 15m
BENCH         ?= .
BENCHTIME     ?= 1s
ROWS          ?= .
ROUNDS        ?= 5
TARGET        ?= 500ms
FUZZTIME      ?= 10s
PACKAGES      ?= 2
PARALLEL      ?= 5

# The race detector needs cgo, and cgo a C compiler.
HAS_CC := $(shell command -v "$$($(GO) env CC)" >/dev/null 2>&1 && [ "$$($(GO) env CGO_ENABLED)" = 1 ] && echo yes)
RACE   := $(if $(HAS_CC),-race)

# The fault runs, by their whole names, are kept out of `make test`: they have targets of
# their own. make_test.go looks that this leaves out nothing else.
FAULT_RUNS := TestFaultThreeAtOnce|TestFaultEverythingAtOnce|TestFaultChaos
FAULTS     := ^($(FAULT_RUNS))$$
FAULTS_IN   = $(addprefix ./,$(sort $(dir $(shell cd tests && grep -lrE 'func ($(FAULT_RUNS))\b' --include='*_test.go' *))))

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: servers
servers: ## bring Redis 8.6, 8.0, 7.0, Valkey 8.1, 9.1, PostgreSQL 15 and MariaDB 10.11 into .servers/ (nothing is installed)
	@scripts/servers.sh

.PHONY: idemctl
idemctl: ## build the operator's tool into bin/idemctl
	@mkdir -p bin
	$(GO) build -trimpath -o bin/idemctl ./cmd/idemctl

.PHONY: lint
lint: $(LINT) ## golangci-lint on all modules
	@failed=0; for m in $(MODULES); do \
		echo "lint $$m"; \
		(cd $$m && $(CURDIR)/$(LINT) run --allow-serial-runners --config $(CURDIR)/.golangci.yml ./...) || failed=1; \
	done; exit $$failed

$(LINT):
	@echo "building golangci-lint $(LINT_VERSION) (once)"
	@GOBIN=$(CURDIR)/bin GOFLAGS=-buildvcs=false $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv bin/golangci-lint $@

.PHONY: fmt
fmt: $(LINT) ## format all modules
	@for m in $(MODULES); do (cd $$m && $(CURDIR)/$(LINT) fmt --config $(CURDIR)/.golangci.yml ./...); done

.PHONY: test
test: servers test-root test-idemctl test-metrics test-otelhooks test-examples test-reconnect test-servers ## all tests but the fault runs: root, idemctl, metrics, otelhooks, examples, real servers

# With the versions of the root's own go.mod, as a user gets it: the other modules require newer ones.
.PHONY: test-root
test-root: race-note ## tests beside the code, no server needed
	GOWORK=off $(GO) test $(RACE) -timeout $(TIMEOUT) ./...

.PHONY: test-idemctl
test-idemctl: race-note ## the operator's tool, without servers
	cd cmd/idemctl && $(GO) test $(RACE) -timeout $(TIMEOUT) ./...

.PHONY: test-metrics
test-metrics: race-note ## the Prometheus metrics, with their dashboard and alerts
	cd metrics && $(GO) test $(RACE) -timeout $(TIMEOUT) ./...

.PHONY: test-otelhooks
test-otelhooks: race-note ## traces and metrics of OpenTelemetry
	cd otelhooks && $(GO) test $(RACE) -timeout $(TIMEOUT) ./...

.PHONY: test-examples
test-examples: race-note ## the example programs
	cd examples && $(GO) test $(RACE) -timeout $(TIMEOUT) ./...

# Tests mostly wait, so that there may be more of them than processors. Each package has servers
# of its own.
.PHONY: test-servers
test-servers: race-note servers ## tests on real servers
	cd tests && $(GO) test $(RACE) -p $(PACKAGES) -parallel $(PARALLEL) -count 1 -timeout $(TIMEOUT) -skip '$(FAULTS)' ./...

# Watermill's TestReconnect has a data race of its own, in the test.
.PHONY: test-reconnect
test-reconnect: servers ## Watermill's reconnect test, which restarts the server; without -race
	cd tests && $(GO) test -count 1 -timeout $(TIMEOUT) -run 'TestUniversal$$/.*/.*/TestReconnect' ./subscriber

.PHONY: matrix
matrix: servers ## Watermill's universal suite and stress test: all servers, 1 and 64 in flight
	cd tests && UNIVERSAL_SERVERS=all $(GO) test -count 1 -timeout 120m -run '^TestUniversal' ./subscriber

.PHONY: diff-existing-app
diff-existing-app: ## what changes in an app that moves from watermill-redisstream
	@diff -u --label before/app.go --label after/app.go examples/existing-app/before/app.go examples/existing-app/after/app.go || true

.PHONY: faults
faults: race-note servers ## the fault runs at full length
	cd tests && $(GO) test $(RACE) -p 1 -count 1 -timeout 60m -run '$(FAULTS)' $(FAULTS_IN)

.PHONY: faults-short
faults-short: race-note servers ## the fault runs, short
	cd tests && $(GO) test $(RACE) -p 1 -count 1 -timeout $(TIMEOUT) -short -run '$(FAULTS)' $(FAULTS_IN)

# JSON and SVG name files for the results and their chart.
.PHONY: bench
bench: servers ## beside watermill-redisstream and the raw client, with floors: exit 1 if one is short (ROWS=regexp ROUNDS=5 TARGET=500ms JSON=file SVG=file)
	cd tests && ROWS='$(ROWS)' ROUNDS=$(ROUNDS) TARGET=$(TARGET) JSON=$(abspath $(JSON)) SVG=$(abspath $(SVG)) JUDGE=$(JUDGE) \
		$(GO) test -run '^$$' -bench '^BenchmarkFloors$$' -benchtime 1x -timeout 60m ./bench

.PHONY: bench-short
bench-short: ## the same, only long enough to see that it runs
	@$(MAKE) --no-print-directory bench ROUNDS=1 TARGET=20ms JUDGE=no

.PHONY: benchmarks
benchmarks: servers ## Go benchmarks on real servers (BENCH=regexp BENCHTIME=1s)
	cd tests && $(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -timeout 60m ./...

.PHONY: release-check
release-check: ## whether this commit can be released: VERSION=v0.1.0 (docs/releasing.md)
	@scripts/release-check.sh $(VERSION)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=10s
	@$(GO) list ./... | while read -r pkg; do \
		for f in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
		done; done

.PHONY: cover
cover: servers ## coverage of the root module by its own tests and those on real servers
	$(GO) test -coverpkg ./... -coverprofile cover-root.prof ./...
	cd tests && $(GO) test -p 1 -coverpkg $(MODULE)/... -coverprofile ../cover-servers.prof -skip '$(FAULTS)' ./...
	@for p in root servers; do echo -n "$$p: "; $(GO) tool cover -func cover-$$p.prof | tail -n 1; done

.PHONY: race-note
race-note:
	@$(if $(HAS_CC),true,echo "NOTE: no C compiler here: these tests run without -race")
