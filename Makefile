# make demo and make test need nothing beforehand but root, a Debian-like system and Go:
# they install and build what they need, and say so.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# All that is compiled is compiled as what ships is, without a C library and without paths: vet, tests and programs
# share what the cache has. With other flags each of them compiles all dependencies for itself. Without gRPC's page of
# traces (grpcnotrace), whose templates call methods by name, the linker leaves out the methods that nothing calls. No
# program keeps what a debugger reads (-s -w), so that no compiler writes it (-dwarf=false): an eighth of its time.
export CGO_ENABLED := 0
AS_SHIPPED         := -trimpath -tags=grpcnotrace -gcflags=all=-dwarf=false
export GOFLAGS     := $(filter-out $(AS_SHIPPED),$(GOFLAGS)) $(AS_SHIPPED)

# Compilers that collect their garbage less often take a quarter less time, and a third more memory.
COMPILERS := 400

BIN      := $(CURDIR)/bin
TOOLS    := $(BIN)/tools
PROGRAMS := semaphore-exporter semaphore-broker semaphore-agent semaphorectl testbed
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
LDFLAGS  := -s -w -X github.com/kube-semaphore/semaphore/internal/program.Version=$(VERSION)

# Debian packages: what the testbed's nodes and pods are made with, and a C compiler for the race detector.
BED      := iproute2 iptables nftables ipset conntrack procps kmod curl dash netcat-openbsd wireguard-tools gcc libc6-dev
# Beside them the emulator of make test-kernel, and the browser that opens the broker's page (100 MB to load, 300 MB on
# the disk). Debian has the browser, others may not.
BROWSER  := chromium-headless-shell
PACKAGES := $(BED) qemu-system-x86 $(BROWSER)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# SOURCE=1 builds the components where official programs could be fetched, too.
SOURCE ?=

.PHONY: demo
demo: ## bring up two connected clusters on this machine and show, step by step, that they talk
	@$(MAKE) -j3 PACKAGES='$(BED)' deps modules build
	@GOGC=$(COMPILERS) $(BIN)/testbed build $(if $(SOURCE),--source)
	@$(BIN)/testbed demo

.PHONY: recording
recording: build ## docs/images/demo.svg, which plays, from a run of the demo
	@$(BIN)/testbed demo </dev/null | tee $(BIN)/demo.log
	@go run ./test/recording < $(BIN)/demo.log > docs/images/demo.svg

# The modules of the components are loaded while something else is done, so that no compiler waits for them.
.PHONY: modules
modules:
	@(cd tools/components && go list -deps tool ./coredns 2>&1 >/dev/null) | sed '/^go: downloading/d'

# Three tiers: make unit after each change, make test before a change is sent and in CI, make test-all each night and
# before a release. docs/faults.md lists what only make test-all finds. The tests that a change is most likely to break
# are in make test, too: see CHANGED.
.PHONY: test
test: ## what CI runs: lint, unit tests, each feature end to end, the dearest faults, the attacks (twenty minutes; forty the first time)
	@rm -f $(BIN)/test-*.json $(BIN)/unit*.json $(BIN)/*.done
	@$(MAKE) -j3 deps modules $(TOOLS)/gotestsum
	@failed=0; $(MAKE) -k -j2 lane-clusters lane-components || failed=1; \
	$(if $(filter test/testbed/% test/testkit/kubetest/% tools/components/% tools/calico-apiserver/%,$(CHANGED)),$(MAKE) test-testbed || failed=1;) \
	$(if $(filter test/sim/%,$(CHANGED)),$(MAKE) test-planted || failed=1;) \
	$(if $(filter docs/%.md README.md,$(CHANGED)),$(MAKE) test-documents || failed=1;) \
	echo "== the slowest twenty tests"; \
	cat $(BIN)/test-*.json | $(GOTESTSUM) tool slowest --num 20; \
	$(NOT_TESTED); exit $$failed

.PHONY: test-all
test-all: export SEMAPHORE_TESTS := all
test-all: test test-kernel test-tools sim mutations ## everything: make test, the whole table of faults, documents as printed, emulated kernel, 20,000 seeds, mutations, alerts and chart (each night, before a release)
	@$(MAKE) skew PREVIOUS=$(or $(PREVIOUS),$(RELEASED))

# The release before this commit, or while there is none, what the project was a hundred commits ago.
RELEASED = $(shell git describe --tags --abbrev=0 HEAD~1 2>/dev/null || git rev-parse -q --verify HEAD~100)

# Objects that a test could not examine. Where all is to be tested such a test fails.
NOT_TESTED_IS := NOT TESTED:
NOT_TESTED     = all=$$(cat $(BIN)/unit.json $(BIN)/test-*.json | grep -o '"Test":.*$(NOT_TESTED_IS).*' || true); \
	left=$$(cat $(BIN)/test-*.json | grep -o '"Test":.*only in make test-all' | sort -u | grep -c . || true); \
	echo "== $$(grep -c . <<< "$$all" || true) times NOT TESTED; $$left tests and steps are left to make test-all"; echo "$$all"

# The files that differ from what is published; in a clone of exactly that, those of the last commit.
BASE     = $$(base=$$(git rev-parse -q --verify origin/main || true); \
	if [ "$$base" = "$$(git rev-parse HEAD)" ]; then base=$$(git rev-parse -q --verify HEAD~1 || true); fi; echo $$base)
CHANGED ?= $(shell git diff --name-only $(BASE) -- 2>/dev/null)

# Lint by buf, and generated code: they can differ only after a change of these files.
CONTRACTS = $(if $(filter all,$(SEMAPHORE_TESTS))$(filter proto/% buf.% api/% deploy/crds/% tools/dev/% Makefile,$(CHANGED)),contracts)

# make test runs tests of make test-all for a change; what they cannot test on this machine it counts, as ever.
PULLED   = SEMAPHORE_TESTS=$(or $(SEMAPHORE_TESTS),changed)

.PHONY: test-machine
test-machine:
	@echo "== device, peers, routes, their healing, guard, rotation, dual stack and MTU on a real kernel's WireGuard (all of the agent's tests: make test-kernel)"
	@$(BIN)/testbed test-kernel ./agent/kernel ./agent/guard './agent=$(KERNEL_TESTS)'

.PHONY: test-testbed
test-testbed:
	@echo "== the testbed itself"
	@$(PULLED) $(GOTEST) --jsonfile $(BIN)/test-testbed.json -- $(GOTESTFLAGS) -p 1 ./test/testbed/... ./test/testkit/kubetest

.PHONY: test-planted
test-planted:
	@echo "== the mistakes that the simulation finds"
	@$(PULLED) $(GOTEST) --jsonfile $(BIN)/test-planted.json -- $(GOTESTFLAGS) -run '^TestPlanted' ./test/sim

.PHONY: test-documents
test-documents:
	@echo "== documents as printed"
	@$(PULLED) $(GOTEST) --jsonfile $(BIN)/test-documents.json -- $(GOTESTFLAGS) -run '^TestDocuments$$' ./test/e2e

.PHONY: test-agent
test-agent:
	@echo "== the agent on nodes of namespaces"
	@$(GOTEST) --jsonfile $(BIN)/test-agent.json -- $(GOTESTFLAGS) -p 2 -parallel 3 $(AGENT)

# Packages that the lanes link. With a cold cache compilers would run beside the tests for most of their time otherwise.
.PHONY: test-packages
test-packages:
	@echo "== the packages of the tests"
	@go list -toolexec '$(TOOLEXEC)' -test -export ./... >/dev/null

# Two lanes, for these tests wait more than they compute: one has the tests with real nodes, one after the other, and
# the other what needs an apiserver alone or nothing. With clusters in both at once two processors are not enough, and
# what starts is not ready in time. The agent's nodes are namespaces, and need no component: the other lane builds these
# meanwhile. Where that failed, it fails here once more, and no cluster starts.
.PHONY: lane-clusters
lane-clusters:
	@trap 'touch $(BIN)/agent.done $(BIN)/clusters.done' EXIT; failed=0; $(MAKE) test-agent || failed=1; touch $(BIN)/agent.done; \
	$(call DONE,components); $(MAKE) components; $(MAKE) build; \
	$(if $(filter agent/% test/testbed/machine/%,$(CHANGED)),$(MAKE) test-machine || failed=1;) \
	$(MAKE) test-clusters || failed=1; exit $$failed

# The agent's tests have the processors first. The components that last longest begin after them, beside lint and unit
# tests, or after lint and unit tests, where these had little to do; then those that the unit tests have not run whole.
.PHONY: lane-components
lane-components:
	@trap 'touch $(BIN)/components.done' ERR; $(BEHIND); $(MAKE) components; $(MAKE) build; touch $(BIN)/components.done; \
	failed=0; $(MAKE) test-packages || failed=1; \
	$(MAKE) -k -j2 vet unit-recorded staticcheck $(CONTRACTS) & units=$$!; \
	$(call DONE,agent,$$units); \
	$(MAKE) test-longest & longest=$$!; \
	wait $$units || failed=1; \
	$(MAKE) RECORDED=$(BIN)/unit.json test-components || failed=1; \
	wait $$longest || failed=1; exit $$failed

CLUSTERS   := ./test/e2e
FAULTS     := ./test/testbed ./test/e2e/faults ./test/e2e/migration
# These lose packets where wireguard-go waits for a processor: beside them is only what takes what they leave idle. They
# wait more than they compute, so three of them run at a time.
AGENT      := ./agent ./agent/kernel ./agent/paths
GOTESTSUM   = $(TOOLS)/gotestsum
GOTEST      = $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg
# The tests do not see this.
TOOLEXEC   := env GOGC=$(COMPILERS)
# A test that hangs is to end, and to say where it hangs, before CI ends everything. For a package with clusters its
# wait for the lock counts, too.
LASTS      := $(if $(filter all,$(SEMAPHORE_TESTS)),120m,40m)
# make vet has vetted the code.
GOTESTFLAGS = -ldflags='-s -w' -timeout $(LASTS) -count 1 -vet off
LANE        = $(GOTESTFLAGS) -p 2 -toolexec 'nice -n 10 $(TOOLEXEC)'
# Tests end with the program that started them.
ENDING     := setpriv --pdeathsig TERM
# In the lane of clusters the next package is linked while the one before it is tested: the tests take turns by a lock.
# So the time of a package has its wait for the lock in it; that of a test has not.
TURNS       = -exec 'flock --close $(BIN)/$@.lock $(ENDING)'
# Components that last longest, and the longest of the others, which come first: at the end they would run alone.
LONGEST    := broker test/redteam ctl/link broker/apply ctl/install
LONG       := deploy exporter/publish exporter internal/kube/leader internal/kube broker/stored ctl/fleet broker/nodes

.PHONY: test-clusters
test-clusters:
	@$(GOTEST) --jsonfile $(BIN)/test-clusters.json -- $(LANE) $(TURNS) $(CLUSTERS) $(FAULTS)

# make test has run all tests of a package before, with the race detector, where none was skipped and -short left
# nothing out. To compile and link those once more would take a twentieth of all its time.
RECORDED ?=
WHOLE     = of() { sed 's/.*"Package":"\([^"]*\)".*/\1/' | sort -u; }; \
	grep '"Action":"pass"' $(RECORDED) | grep -v '"Test":' | of | \
	grep -vxF "$$(grep '"Action":"skip"' $(RECORDED) | of)" | \
	grep -vxF "$$shortened"
SHORTENED = git grep --untracked -l 'testing\.Short' -- '*_test.go' ':!tools' | xargs -n1 dirname | sort -u | \
	sed 's|^|./|' | xargs go list

COMPONENTS  = $(GOTEST) --jsonfile $(BIN)/$@.json -- $(LANE) -exec '$(ENDING)'
# A bed needs less than one of two processors in the mean, and three times as long where it has to wait for them. So the
# other lane has a control group, which counts as a quarter of one process beside those of the bed, and as eight once
# there is no bed, beside other programs of the machine. Beside the agent's tests it has only what they leave, where the
# kernel can do that; else it waits for their end.
BEHIND = g=/sys/fs/cgroup; [ -d $$g/cpu ] && g=$$g/cpu || echo +cpu > $$g/cgroup.subtree_control; \
	b=$$g/semaphore-behind-$$$$; mkdir $$b; \
	trap "kill \$$(jobs -p) 2>/dev/null || true; wait || true; echo $$$$ > $$g/cgroup.procs; rmdir $$b || true" EXIT; \
	percent() { [ -e $$b/cpu.weight ] && echo $$1 > $$b/cpu.weight || echo $$(($$1 * 1024 / 100)) > $$b/cpu.shares; }; \
	if [ -e $$b/cpu.idle ]; then echo 1 > $$b/cpu.idle; else $(call DONE,agent); fi; \
	($(call DONE,agent); [ ! -e $$b/cpu.idle ] || echo 0 > $$b/cpu.idle; percent 25; \
	  $(call DONE,clusters); percent 800) & \
	echo $$$$ > $$b/cgroup.procs
# A waiter ends with the process that it names, too; in the background with its lane.
DONE = until [ -e $(BIN)/$(1).done ] || ! kill -0 $(or $(2),$$$$) 2>/dev/null; do sleep 1; done

.PHONY: test-longest
test-longest:
	@$(COMPONENTS) $(LONGEST:%=./%)

.PHONY: test-components
test-components:
	@all=$$(go list ./... | grep -vxF "$$(go list $(CLUSTERS) $(FAULTS) $(AGENT) $(LONGEST:%=./%))"); \
	$(if $(RECORDED),shortened=$$($(SHORTENED)); all=$$(grep -vxF "$$($(WHOLE))" <<< "$$all");) \
	$(COMPONENTS) $$(for p in $(LONG); do grep "/semaphore/$$p$$" <<< "$$all" || true; done) $$all

# Tests of package agent that run on the emulated machine each time: it is ten times slower than this one.
KERNEL_TESTS := TestHealing|TestPeersAreHealed|TestMoves|TestRoamingPeer|TestAdoption|TestCleanup|TestNoIPv6|TestF07|TestF08|TestF29
KERNEL_TESTS := $(KERNEL_TESTS)|TestNeverInTheClear|TestKeyRotationUnderTraffic|TestRotationWaitsForTheRemote|TestDualStack|TestNarrowPath

.PHONY: test-kernel
test-kernel: deps ## the agent's tests on WireGuard of a real kernel, in an emulated machine
	@echo "== the agent on a real kernel's WireGuard, in an emulated machine"
	@go build -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/testbed ./cmd/testbed
	@$(BIN)/testbed test-kernel
	@$(BIN)/testbed test-kernel --append ipv6.disable=1 --run '^TestNoIPv6$$' ./agent
	@go build -o $(BIN)/bench-table ./test/bench/table
	@$(BIN)/testbed test-kernel --bench '^BenchmarkTunnel$$' ./agent | $(BIN)/bench-table

UNITFLAGS := -short -vet off -timeout 5m -ldflags='-s -w' -toolexec '$(TOOLEXEC)'
# The longest comes first: at the end it would run alone.
UNITS     := ./test/sim ./...
# Beside other tests, and other programs, a package waits for a processor most of its time.
BESIDE    := $(UNITFLAGS) -timeout 20m

# RACE=1 tests all with the race detector.
RACE ?=

.PHONY: unit
unit: ## the inner loop: unit tests (those that need no other program) of what has changed; RACE=1: all, with the race detector
	@echo "== unit tests"
	$(if $(RACE),CGO_ENABLED=1 )go test $(if $(RACE),-race )$(UNITFLAGS) $(UNITS)

# The race detector looks at the packages whose code starts goroutines, where these or what they import has changed;
# SEMAPHORE_TESTS=all: at all. With it all dependencies compile once more: ten minutes of a processor on a new machine.
ifeq ($(SEMAPHORE_TESTS),all)
RACED   := go list ./...
else
REACHING = $(if $(filter go.mod go.sum,$(CHANGED)),.*,$(patsubst %/,%,$(sort $(dir $(filter %.go,$(CHANGED))))))
RACED    = git grep --untracked -lE '^\s+go (func|[A-Za-z.]+)\(' -- '*.go' ':!*_test.go' ':!tools' | xargs -n1 dirname | \
	sort -u | sed 's|^|./|' | xargs go list -test -f '{{.ImportPath}} {{join .Deps " "}}' | awk -v folders='$(REACHING)' ' \
	BEGIN {n = split(folders, folder)} \
	sub(/\.test /, " ") {for (i = 1; i <= n; i++) if ($$0 ~ "/semaphore/" folder[i] "( |$$)") {print $$1; next}}'
endif

# Go's cache has the results of what has not changed: these tests run no program that it does not know of. Those with
# the race detector run beside those without: both wait more than they compute.
.PHONY: unit-recorded
unit-recorded: $(TOOLS)/gotestsum
	@echo "== unit tests, with the race detector where goroutines start"
	@raced=$$($(RACED)); bare=$$(go list $(UNITS) | grep -vxF -e "$${raced:-none}" || true); failed=0; race=; \
	if [ -n "$$raced" ]; then \
	  CGO_ENABLED=1 $(GOTEST) --hide-summary skipped --jsonfile $(BIN)/unit-race.json -- -race $(BESIDE) $$raced & race=$$!; fi; \
	if [ -n "$$bare" ]; then \
	  $(GOTEST) --hide-summary skipped --jsonfile $(BIN)/unit-bare.json -- $(BESIDE) $$bare || failed=1; fi; \
	wait $$race || failed=1; \
	cat $(BIN)/unit-*.json > $(BIN)/unit.json; exit $$failed

# PLANT="broker/mesh agent/" plants those whose file begins so.
PLANT ?=

.PHONY: mutations
mutations: ## plant the faults of test/mutation one by one, to see that a test fails for each: PLANT=prefix (five minutes)
	go run ./test/mutation $(PLANT)

# Modules of their own, so that nothing else needs Helm, Prometheus or Calico's module: the first build takes minutes,
# a run seconds.
.PHONY: test-tools
test-tools: ## the Helm chart beside kustomize, alerts on recorded series, selectors beside Calico's parser, what others read
	@echo "== chart, alerts, selectors and readers"
	cd tools/helm && go test ./...
	cd tools/rules && go test ./...
	cd tools/selector && go test ./...
	cd tools/readers && go test ./...
	cd tools/envoygateway && go test ./...

# make sim SEEDS=200000 FROM=1; what a seed finds is shown again by SEED=n go test ./test/sim -run TestSeed$$ -v
SEEDS ?= 20000
FROM  ?= 1

.PHONY: sim
sim: ## the deterministic simulation: SEEDS=n seeds, from FROM on
	@echo "== simulation, and successions without a change: $(SEEDS) seeds of each from $(FROM) on"
	SEEDS=$(SEEDS) FROM=$(FROM) go test -timeout 0 -count 1 -v -run '^Test(Seeds|ASuccessionWithoutAChangeWritesNothing)$$' ./test/sim

.PHONY: e2e
e2e: deps components build ## the end-to-end tests alone
	go test -timeout 40m -p 1 -count 1 -v ./test/e2e/...

# A tag or a commit of this repository.
PREVIOUS ?=

.PHONY: skew
skew: deps build ## exporter, broker and agent beside those of another build, then an upgrade: PREVIOUS=v0.1.0 (two minutes and its compilation)
	@test -n "$(PREVIOUS)" || { echo "make skew: name the tag or commit to test with: PREVIOUS=v0.1.0"; exit 1; }
	@echo "== with the programs of $(PREVIOUS)"
	@rm -rf $(BIN)/previous && mkdir -p $(BIN)/previous/source
	@git archive $(PREVIOUS) | tar -x -C $(BIN)/previous/source
	@cd $(BIN)/previous/source && go build -buildvcs=false -o .. ./cmd/semaphore-exporter ./cmd/semaphore-broker \
		./cmd/semaphore-agent
	@rm -rf $(BIN)/previous/source
	SEMAPHORE_TESTS=all SEMAPHORE_PREVIOUS=$(BIN)/previous go test -timeout 20m -count 1 -v -run '^TestF38_VersionSkew$$' ./test/e2e/faults

# BENCH=REGEXP runs some of them. The packages run one after the other, so that they do not share the processors.
BENCH ?= .

.PHONY: bench
bench: components build ## all benchmarks as one table, each figure with its floor, ratio and bound; fails when a bound is broken (half an hour)
	@echo "== benchmarks of $$(git describe --always --dirty), $$(nproc) processors, load $$(cut -d' ' -f1-3 /proc/loadavg)"
	@go build -o $(BIN)/bench-table ./test/bench/table
	@go test -p 1 -timeout 40m -run '^$$' -bench '$(BENCH)' -benchtime 1s \
	  $$(git grep -l '^func Benchmark.*testing.B' -- '*_test.go' ':!test/scale' | xargs -n1 dirname | sort -u | sed 's|^|./|') | $(BIN)/bench-table
	@echo "load afterwards: $$(cut -d' ' -f1-3 /proc/loadavg)"

# SCALE=PREFIX runs some rows: Mesh, Agents, Devices, Endpoints. docs/scale.md says which variables make them smaller.
SCALE ?= Mesh|Agents|Devices|Endpoints

.PHONY: scale
scale: components build ## the cost of a hundred clusters as one table: SCALE=Mesh runs one row of four (half an hour)
	@echo "== scale of $$(git describe --always --dirty), $$(nproc) processors, load $$(cut -d' ' -f1-3 /proc/loadavg)"
	@go build -o $(BIN)/bench-table ./test/bench/table
	@SCALE=1 go test -p 1 -timeout 3h -run '^$$' -bench '^Benchmark($(SCALE))' -benchtime 1x ./agent ./test/scale | \
	  $(BIN)/bench-table
	@echo "load afterwards: $$(cut -d' ' -f1-3 /proc/loadavg)"

SOAK ?= 2h

.PHONY: soak
soak: components build ## broker and exporter under churn for SOAK=2h: what they use is flat, and printed every minute
	@go build -o $(BIN)/bench-table ./test/bench/table
	@SOAK=$(SOAK) go test -timeout 25h -run '^$$' -bench '^BenchmarkSoak$$' -benchtime 1x ./test/scale | \
	  tee /dev/stderr | $(BIN)/bench-table

.PHONY: build
build: ## the programs, into bin/
	@echo "== programs"
	@GOGC=$(COMPILERS) go build -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/ $(PROGRAMS:%=./cmd/%)

# make image PUSH=registry.example/semaphore:v1 sends it to a registry, too (with the credentials of docker login).
PUSH ?=

.PHONY: image
image: ## the product's image for amd64 and arm64 with its SBOM, as an OCI archive in bin/image/; PUSH=REFERENCE sends it
	@echo "== image"
	@go run ./deploy/image/build $(if $(PUSH),--push '$(PUSH)')

# The files of a release are made here, without a network once the modules are loaded: .github/workflows/release.yaml
# calls this, publishes and signs. The same commit, version and release of Go give the same bytes.
REPOSITORY ?= kube-semaphore/semaphore
RELEASE    ?= $(BIN)/release/$(VERSION)
PARTS       = $(BIN)/release/parts-of-$(VERSION)
DIGEST      = $$(cat $(PARTS)/digest)
PLATFORMS  := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
PACK        = tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --use-compress-program='gzip -n' \
	--mtime=@$$(git log -1 --format=%ct) -cf

.PHONY: release
release: ## all that a release has, into bin/release/VERSION: VERSION=vX.Y.Z; PUSH=REFERENCE as in make image
	@[[ '$(VERSION)' =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$$ ]] || \
	  { echo "make release: give it a version: VERSION=v0.1.0"; exit 1; }
	@rm -rf $(RELEASE) $(PARTS) && mkdir -p $(RELEASE) $(PARTS)/chart
	@echo "== image"
	@go run ./deploy/image/build --out $(RELEASE) $(if $(PUSH),--push '$(PUSH)') | tee $(PARTS)/image.log
	@grep -o -m 1 'sha256:[0-9a-f]\{64\}' $(PARTS)/image.log > $(PARTS)/digest
	@echo "== manifests and chart, with that image by its digest"
	@git ls-files -z deploy ':!*.go' | xargs -0 cp --parents -t $(PARTS)
	@grep -rl ghcr.io/kube-semaphore/semaphore:main $(PARTS)/deploy --include=*.yaml | \
	  xargs sed -i "s#ghcr.io/kube-semaphore/semaphore:main#ghcr.io/$(REPOSITORY)@$(DIGEST)#"
	@$(PACK) $(RELEASE)/semaphore-manifests-$(VERSION).tar.gz -C $(PARTS) deploy
	@sed -i "s#^  repository: .*#  repository: ghcr.io/$(REPOSITORY)#; s#^  digest: \"\"#  digest: $(DIGEST)#" \
	  $(PARTS)/deploy/values.yaml
	@cd tools/helm && go tool helm package $(PARTS)/deploy --version $(VERSION:v%=%) --app-version $(VERSION) \
	  --destination $(PARTS) >/dev/null
	@tar -xmzf $(PARTS)/semaphore-$(VERSION:v%=%).tgz -C $(PARTS)/chart # Helm writes the time of now
	@$(PACK) $(RELEASE)/semaphore-$(VERSION:v%=%).tgz -C $(PARTS)/chart semaphore
	@cp tools/krew.yaml $(RELEASE)/krew-semaphore.yaml
	@sed -i 's/VERSION/$(VERSION)/' $(RELEASE)/krew-semaphore.yaml
	@for p in $(PLATFORMS); do os=$${p%/*} arch=$${p#*/}; one=$(PARTS)/$$os-$$arch; \
	  archive=semaphorectl-$$os-$$arch.tar.gz; \
	  echo "== semaphorectl for $$p"; mkdir $$one; cp LICENSE $$one; \
	  GOOS=$$os GOARCH=$$arch go build -buildvcs=false -ldflags '$(LDFLAGS)' -o $$one/ ./cmd/semaphorectl; \
	  $(PACK) $(RELEASE)/$$archive -C $$one LICENSE $$(cd $$one && echo semaphorectl*); \
	  printf '    - selector: {matchLabels: {os: %s, arch: %s}}\n      uri: %s\n      sha256: %s\n      bin: %s\n' \
	    $$os $$arch https://github.com/$(REPOSITORY)/releases/download/$(VERSION)/$$archive \
	    $$(sha256sum $(RELEASE)/$$archive | cut -d' ' -f1) $$(cd $$one && echo semaphorectl*) \
	    >> $(RELEASE)/krew-semaphore.yaml; done
	@cd $(RELEASE) && sha256sum -- * > SHA256SUMS && ls -s --block-size=K

.PHONY: components
components: ## what the testbed's clusters and nodes run, Kubernetes, containerd, Calico and so on: built once, then cached
	@GOGC=$(COMPILERS) go build -buildvcs=false -ldflags '$(LDFLAGS)' -o $(BIN)/testbed ./cmd/testbed
	@GOGC=$(COMPILERS) $(BIN)/testbed build --all $(if $(SOURCE),--source)

.PHONY: deps
deps: ## the few Debian packages that are needed
	@missing=""; for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] || apt-get update -qq; \
	if [[ "$$missing" == *$(BROWSER)* ]] && ! apt-cache show $(BROWSER) >/dev/null 2>&1; then \
	  echo "== this system has no package $(BROWSER): the dashboard is not looked at"; missing=$${missing/ $(BROWSER)/}; fi; \
	if [ -n "$$missing" ]; then \
	  echo "== installing Debian packages:$$missing"; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

# The development tools are pinned in tools/dev/go.mod and built into bin/tools, each once something needs it: buf alone
# compiles for two minutes.
$(TOOLS)/%: tools/dev/go.mod tools/dev/go.sum
	@cd tools/dev && GOGC=$(COMPILERS) GOBIN=$(TOOLS) go install $$(go list tool | grep '/$*$$')
	@touch $@

MAKERS := $(TOOLS)/buf $(TOOLS)/controller-gen $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc

.PHONY: generate
generate: $(MAKERS) ## the Go code of proto/, and what is made from api/
	PATH=$(TOOLS):$$PATH buf generate
	$(call GENERATE_API,api/v1alpha1,deploy/crds)

# The copying code to $(1) and the CustomResourceDefinition to $(2).
define GENERATE_API
$(TOOLS)/controller-gen object paths=./api/... output:object:dir=$(1)
$(TOOLS)/controller-gen crd paths=./api/... output:crd:stdout | sed '1{/^---$$/d}' > $(2)/remoteclusters.yaml
endef

.PHONY: check-generated
check-generated: $(MAKERS) ## what make generate makes is what is committed
	@out=$$(mktemp -d); trap "rm -rf $$out" EXIT; PATH=$(TOOLS):$$PATH buf generate -o $$out; \
	for f in $$(cd $$out/proto && find . -name '*.go'); do \
	  cmp -s $$out/proto/$$f proto/$$f || { echo "proto/$$f is not what proto/ generates: run make generate"; exit 1; }; done
	@out=$$(mktemp -d); trap "rm -rf $$out" EXIT; $(TOOLS)/controller-gen object paths=./api/... output:object:dir=$$out; \
	$(TOOLS)/controller-gen crd paths=./api/... output:crd:stdout | sed '1{/^---$$/d}' > $$out/remoteclusters.yaml; \
	cmp -s $$out/zz_generated.deepcopy.go api/v1alpha1/zz_generated.deepcopy.go && cmp -s $$out/remoteclusters.yaml deploy/crds/remoteclusters.yaml || \
	  { echo "deploy/crds or zz_generated.deepcopy.go is not what api/ generates: run make generate"; exit 1; }

.PHONY: lint
lint: contracts vet staticcheck ## buf lint and breaking, generated code current, gofmt, vet, staticcheck

.PHONY: contracts
contracts: $(MAKERS)
	@echo "== proto/ and api/"
	PATH=$(TOOLS):$$PATH buf lint
	@base=$(BASE); \
	if [ -n "$$base" ] && git cat-file -e $$base:buf.yaml 2>/dev/null; then \
	  echo "buf breaking against $$base"; $(TOOLS)/buf breaking --against ".git#ref=$$base"; \
	else echo "buf breaking: nothing to compare with"; fi
	@$(MAKE) -s check-generated

.PHONY: vet
vet:
	@echo "== lint"
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not gofmt'ed: $$unformatted"; exit 1; fi
	go mod tidy -diff
	GOGC=$(COMPILERS) go vet ./...

.PHONY: staticcheck
staticcheck: $(TOOLS)/staticcheck
	GOGC=$(COMPILERS) $(TOOLS)/staticcheck ./...

.PHONY: clean-testbed
clean-testbed: ## remove what a killed testbed left behind (never one that runs)
	@go build -buildvcs=false -o $(BIN)/testbed ./cmd/testbed
	@$(BIN)/testbed clean
	@rmdir /sys/fs/cgroup/{,cpu/}semaphore-behind-* 2>/dev/null || true

.PHONY: clean
clean: ## remove bin/
	rm -rf $(BIN)
