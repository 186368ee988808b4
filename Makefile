# Every target is a plain command; `make` alone lists them.

# One set of flags everywhere, so that the build cache is shared with the control plane (tools/kube).
export GOFLAGS := -trimpath -buildvcs=false

GO    := CGO_ENABLED=0 go
RACE  := CGO_ENABLED=1 go
LINT  := $(GO) tool -modfile=tools/lint/go.mod golangci-lint
# The kubelet takes minutes to compile with -race: edged is checked there by `make test` only.
FAST  = $(shell go list ./... | grep -v -e /internal/e2e -e /internal/kubetest -e '/edged$$' -e /internal/edgenode -e /cmd/ -e /controllers/ -e /loadtest)
KUBE  = ./controllers/... ./internal/kubetest/...
# Where the dev cluster of `make demo` lives; `make demo DIR=/elsewhere` moves it.
DIR   ?= .frond

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build cloudcore, edgecore and frond into bin/
	$(GO) build -o bin/ ./cmd/...

.PHONY: demo
demo: ## Build what is missing, start a real cluster and show what Frond does
	$(GO) run ./cmd/frond dev demo --dir $(DIR)

.PHONY: down
down: ## Stop the cluster of the demo
	$(GO) run ./cmd/frond dev down --dir $(DIR)

.PHONY: check
check: verify lint vet unit ## Format, lint, vet, house rules and unit tests: before every commit

.PHONY: unit
unit: ## Unit tests with the race detector, without a cluster
	$(RACE) test -race -shuffle=on $(FAST)

.PHONY: test
test: check tools ## Everything: unit tests, then a real control plane, then the real cluster end to end
	$(GO) test -shuffle=on -timeout 20m ./edged/... ./internal/edgenode/... ./cmd/...
	REQUIRE=kube $(RACE) test -race -shuffle=on -timeout 20m -p 1 $(KUBE)
	$(GO) test -timeout 60m -v ./internal/e2e/...

.PHONY: tools
tools: ## Build the control plane, containerd and the rest once into the cache
	$(GO) run ./tools/ensure -kube -node -nats -frond

.PHONY: bench
bench: ## Print the numbers of the README, measured here and now
	$(GO) test ./loadtest -run '^$$' -bench . -benchtime 1x -timeout 60m -v

.PHONY: verify
verify: ## Fail if a file is not formatted or a go.mod not tidy
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted, run make fmt:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) mod tidy -diff

.PHONY: fmt
fmt: ## Format all Go files
	$(LINT) fmt ./...

.PHONY: lint
lint: ## Run the linters of .golangci.yml
	$(LINT) run ./...

.PHONY: vet
vet: ## Run go vet
	$(GO) vet ./...
