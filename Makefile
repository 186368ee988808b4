# Every target is a plain command; `make` alone lists them.

# One set of flags everywhere, so that the build cache is shared with the control plane (tools/kube). Without gRPC's tracing pages the
# linker drops unused methods: edgecore is 77 instead of 108 MB.
export GOFLAGS := -trimpath -buildvcs=false -tags=grpcnotrace

GO    := CGO_ENABLED=0 go
RACE  := CGO_ENABLED=1 go
# An absolute name, so that it also works from a nested module.
LINT  := tool -modfile=$(CURDIR)/tools/lint/go.mod golangci-lint
# The nested modules that hold Go code of ours; those below tools/node, tools/lint and tools/gotestsum only name programs of others.
CODE  := tools/images tools/kube tools/conformance/suite tools/generate test/mapper
# A test that fails is run a second time, on its own; if it passes then, the run goes on, and the summary still lists the
# first failure. A data race, more than three failures, or a promise broken in the fault suite count at once. See
# CONTRIBUTING.md for why.
SUM   := tool -modfile=$(CURDIR)/tools/gotestsum/go.mod gotestsum --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary=skipped \
	--rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --packages
MODS  := . $(CODE) tools/kube/1.35 tools/kube/1.36 tools/coredns tools/helm tools/lint tools/gotestsum tools/node/containerd tools/node/cni tools/node/runc
# The kubelet takes minutes to compile with -race, so edged/kubelet and what imports it are tested without, by `make test`.
FAST  = $(shell go list ./... | grep -v -e /test/e2e -e /test/attacks -e /test/faults/suite -e /test/kit/kubetest -e /edged/kubelet -e /edged/agent -e /cmd/ -e /controllers/ -e /loadtest -e /test/chart)
KUBE  = ./controllers/... ./test/chart/... ./test/kit/kubetest/...
SLOW  = ./edged/kubelet/... ./edged/agent/... ./cmd/...
# Where the dev cluster of `make demo` lives; `make demo DIR=/elsewhere` moves it.
DIR   ?= .frond

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build cloudcore, edgecore and frond into bin/
	$(GO) build -ldflags "$$($(GO) run ./tools/ensure -ldflags)" -o bin/ ./cmd/...

# Architectures of the images, and their tag; PUSH=registry.example.com/frond also sends them there.
ARCHS   ?= $(shell go env GOARCH)
VERSION ?= $(shell git describe --tags --always)
.PHONY: images
images: ## Make images of cloudcore and the hub as OCI archives in bin/images
	@for arch in $(ARCHS); do GOARCH=$$arch $(GO) build -ldflags "-s -w $$($(GO) run ./tools/ensure -ldflags)" \
		-o bin/images/$$arch/ ./cmd/cloudcore ./cmd/frond github.com/nats-io/nats-server/v2 || exit 1; done
	@$(GO) -C tools/images run . -release $(CURDIR)/bin/images -version $(VERSION) $(addprefix -push ,$(PUSH)) \
		$(foreach arch,$(ARCHS),-programs $(arch)=$(CURDIR)/bin/images/$(arch))

.PHONY: demo
demo: ## Build what is missing, start a real cluster and show what Frond does
	$(GO) run ./cmd/frond-dev demo --dir $(DIR)

.PHONY: down
down: ## Stop the cluster of the demo
	$(GO) run ./cmd/frond-dev down --dir $(DIR)

.PHONY: check
check: verify lint unit ## Format, lint, layout and unit tests: before every commit

# The linters include all of go vet, so no test run vets again.
.PHONY: unit
unit: ## Unit tests with the race detector, without a cluster
	$(RACE) $(SUM) "$(FAST)" -- -race -shuffle=on -vet=off -timeout 20m -p 3
	$(GO) -C tools/images test -shuffle=on -vet=off ./...
	$(GO) -C tools/generate test -vet=off ./...

# ,root where this machine lets root do all that tests want: `make tools` installs the programs, if apt-get finds a network.
AS_ROOT = $(shell test "$$(id -u)" = 0 && type nft ip mosquitto systemctl /lib/systemd/systemd >/dev/null 2>&1 && unshare --net --mount true 2>/dev/null && echo ,root)

# The stages of `make test` that need most of the processors, and those that run real processes and mostly wait, the longest first.
# They run side by side: a stage has clusters of its own. LANES is how many of the latter run at once; three clusters are too many for two
# processors.
COMPUTING := unit verify lint
WAITING   := test-faults-processes test-e2e-containers test-faults-keys test-e2e-hollow test-kube test-attacks test-slow test-load test-conformance
LANES     ?= 2
# Where the output of each stage is, below a name like its own.
LOGS      ?= $(error make test runs the stages)

# The tools come first: they bring what REQUIRE asks for, and the C compiler that -race needs. A stage that fails starts no further ones;
# the last lines repeat what failed in any stage, also if it passed when it was run again.
.PHONY: test
test: export REQUIRE = kube$(AS_ROOT)
test: tools ## Everything: unit tests, then a real control plane, then the real cluster end to end
	@test "$$REQUIRE" = kube,root || echo "not tried: what takes root, namespaces, nft, ip or systemd (CONTRIBUTING.md, REQUIRE)"
	@logs=$$(mktemp -d) && \
	stages() { $(MAKE) --no-print-directory LOGS=$$logs "$$@"; } && \
	stages -j $(words $(COMPUTING)) $(addprefix stage-,$(COMPUTING)) && stages -j $(LANES) $(addprefix stage-,$(WAITING)); code=$$?; \
	for log in $$logs/*; do sed -n "/^=== [FE]/,\$$ s,^,$${log##*/}: ,p" $$log; done; cat $$logs/.took; rm -rf $$logs; exit $$code

# Each line of a stage begins with its name. Linters wait for a processor that nothing else wants: they must not delay a test.
stage-%:
	@began=$$(date +%s); \
	{ $(if $(filter verify lint,$*),nice -n 19) $(MAKE) --no-print-directory $* 2>&1; echo $$? >$(LOGS)/.$*; } | tee $(LOGS)/$* | sed -u "s,^,$*: ,"; \
	code=$$(cat $(LOGS)/.$* || echo 1); \
	test $$code = 0 || grep -q "^=== [FE]" $(LOGS)/$* || { end=$$(tail -n 20 $(LOGS)/$*); printf "=== Failed\n%s\n" "$$end" >>$(LOGS)/$*; }; \
	echo "$*: exit code $$code after $$(($$(date +%s) - began)) s" | tee -a $(LOGS)/.took; exit $$code

.PHONY: test-kube
test-kube:
	$(RACE) build -race $(KUBE) # with all cores; -p 1 below is for the tests, each of which starts a control plane
	$(RACE) $(SUM) "$(KUBE)" -- -race -shuffle=on -vet=off -timeout 20m -p 1

.PHONY: test-slow
test-slow:
	$(GO) $(SUM) "$(SLOW)" -- -shuffle=on -vet=off -timeout 20m -p 1

.PHONY: test-load
test-load:
	$(GO) $(SUM) ./loadtest/... -- -vet=off -timeout 20m

# Tests in parallel mostly wait, as do the three gateways that die at once in the fault suite, so they are more than there are processors.
E2E = $(GO) $(SUM) ./test/e2e/... --format testname -- -vet=off -timeout 40m -parallel 4
# The end-to-end tests whose subject is the same without real containers. `make test` runs them on a hollow cluster beside that of the
# others, and with them the one that has machines of its own. A test that is not named here has real containers if root runs it.
HOLLOW := \
	CSR_ForeignCertificatesAreRefused ServingCertificate_ExpiredIsRenewed ServingCertificate_IsWaitedFor \
	Deletions_MadeWhileOffline DirectMode HollowCluster_UnprivilegedUser Delivery_CostsNoAPIRequests KillsDuringUpdates \
	MalformedMessages_OnEverySubject Init_IsIdempotent Token_PrintedCommandJoins NodeGroup_IsAutonomous \
	RevokedGateway_SessionsEnd Logs_OfflineGatewayIsReported Sessions_AfterCloudcoreKill StaticPod_HasMirror \
	Services_ByNeed Status_EitherCloudcoreAnswers Sync_ViewsAgree Secret_LeavesWithLastPod Install_JoinAndReset Devices_FollowTheirNode Devices_MQTT \
	Devices_CrashPoints Devices_CustomTopics Devices_Commands Devices_Plant Jobs_PrePull Loadtest_JudgesARun
ON_HOLLOW := ^Test($(subst $(eval) ,|,$(HOLLOW)))$$

.PHONY: test-e2e
test-e2e: ## Drive a real cluster end to end as a user would
	$(E2E) -p 1

.PHONY: test-e2e-containers
test-e2e-containers:
	$(E2E) -p 1 -skip '$(ON_HOLLOW)'

.PHONY: test-e2e-hollow
test-e2e-hollow: # the messages of these tests make no dead letters either
	FROND_E2E_RUNTIME=hollow $(E2E) -run '$(ON_HOLLOW)|^TestDeadLetters_'

.PHONY: test-attacks
test-attacks:
	$(GO) $(SUM) ./test/attacks/... --format testname -- -vet=off -timeout 20m

.PHONY: test-conformance
test-conformance:
	@case "$$REQUIRE" in *root*) $(MAKE) conformance-subset;; *) echo "not tried: conformance tests, which take root";; esac

# Where the fault suite notes a broken promise, so that no second run passes for the first.
BREACH := $(CURDIR)/.breach
# A part of the fault suite, with these further flags.
define run-faults
@rm -f $(BREACH)-$@
FROND_FAULTS_BREACH=$(BREACH)-$@ $(GO) $(SUM) ./test/faults/suite/... --format testname -- -vet=off -timeout 45m -parallel 3 $(1)
@! test -e $(BREACH)-$@ || { echo "a promise was broken; a second run does not undo that:"; cat $(BREACH)-$@; exit 1; }
endef
# The tests that mostly wait for keys to expire, and the one with a cluster of its own: `make test` gives them a cluster beside the others'.
KEYS := ^Test(KeyRotation_|ExpiredKey_|CARotation_|HubAndCloudcoresLost_|Upgrade$$)

.PHONY: test-faults
test-faults: ## Break a cluster in every way there is, for some 12 minutes (docs/operations/faults.md)
	$(call run-faults)

.PHONY: test-faults-keys
test-faults-keys:
	$(call run-faults,-run '$(KEYS)')

.PHONY: test-faults-processes
test-faults-processes:
	$(call run-faults,-skip '$(KEYS)')

# What a soak plays: rounds FIRST to FIRST+ROUNDS-1 of SEED, or as many as begin within DURATION.
SEED     ?= $(shell date +%s)
FIRST    ?= 0
ROUNDS   ?= 1000000
DURATION ?= 1h
.PHONY: soak
soak: export FROND_FAULTS_KEEP ?= soak-$(SEED)
soak: ## Break a cluster at random for hours: SEED, FIRST, ROUNDS, DURATION; OLD=COMMIT is upgraded from first
	PASSES=3 SEED=$(SEED) FIRST=$(FIRST) ROUNDS=$(ROUNDS) DURATION=$(DURATION) OLD=$(OLD) \
		$(GO) test ./test/faults/suite -run 'TestUpgrade|TestCrashPoints|TestRounds' -count=1 -v -timeout 0

# Where the cluster, the logs and the results of the conformance tests are.
CONFORMANCE ?= .conformance
.PHONY: conformance
conformance: ## Run Kubernetes' conformance tests on a gateway, about an hour (docs/operations/conformance.md); goes on where it was stopped
	$(GO) run ./tools/conformance -dir $(CONFORMANCE)

.PHONY: conformance-page
conformance-page: ## Write the page of the documentation from the results of `make conformance`
	$(GO) run ./tools/conformance -dir $(CONFORMANCE) -page docs/operations/conformance.md

# Some twenty of them, which take two minutes.
.PHONY: conformance-subset
conformance-subset:
	$(GO) run ./tools/conformance -dir $(CONFORMANCE)-subset -subset

.PHONY: tools
tools: ## Build the control plane, containerd and the rest once into the cache
	$(GO) run ./tools/ensure -kube -node -nats -dns -frond -helm -machines -conformance

.PHONY: bench
bench: ## Print the numbers of the README, measured here and now
	$(GO) run ./cmd/loadtest
	$(GO) test -run '^$$' -bench . -benchtime 2s ./streams/tunnel
	REQUIRE=kube $(GO) test -run '^$$' -bench AgainstAPIServer -benchtime 2s ./leaf/localapi

.PHONY: verify
verify: ## Fail if a file is not formatted or a go.mod not tidy
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted, run make fmt:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@printf '%s\n' $(MODS) | xargs -P 4 -I % sh -c 'CGO_ENABLED=0 go -C % mod tidy -diff || { echo "not tidy: %"; exit 1; }'

.PHONY: generate
generate: ## Make deploy/crd, the deep copies of the kinds and the code of .proto files again
	$(GO) tool -modfile=$(CURDIR)/tools/generate/go.mod controller-gen object paths=./api/apps paths=./api/identity paths=./api/devices/... paths=./api/jobs paths=./api/operations/... crd:crdVersions=v1 output:crd:dir=deploy/crd
	$(GO) -C tools/generate run ./protobuf $(CURDIR) devicetwin/dmi/dmipb/messages.proto devicetwin/dmi/dmipb/services.proto

.PHONY: fmt
fmt: ## Format all Go files
	$(GO) $(LINT) fmt ./...

.PHONY: lint
lint: ## Run the linters of .golangci.yml
	$(GO) $(LINT) run ./...
	@for m in $(CODE); do $(GO) -C $$m $(LINT) run ./... || exit 1; done
