# `make` alone prints this list. Every target sets up .venv first; when nothing changed that costs milliseconds.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
ARGS ?=

# One thread per process: several processes share the cores here, and OpenMP threads beside busy neighbours crawl.
export OMP_NUM_THREADS ?= 1
# Many short-lived processes import torch here: with compiled modules at hand a start takes half as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo fast test test-web check lint clients web docs format search chaos storm bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv hold the project and its tools (leaves .venv/bin/lethe)
	@scripts/setup

demo: setup ## six clinics train on real digits, the coordinator is killed half-way, one clinic is forgotten with a certificate
	@$(BIN)/lethe demo $(ARGS)

fast: setup ## what needs no server: unit, architecture and contract tests, on SQLite alone (ARGS="-k fence" narrows)
	@$(BIN)/pytest -n 2 --dist worksteal --without-servers --durations=10 -rfE tests/unit tests/architecture tests/contract $(ARGS)

test: setup ## every test, on a real Postgres and Redis that the tests start themselves (ARGS="-k fence" narrows)
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=25 --ignore=tests/web $(ARGS)

test-web: setup ## the dashboard in a real browser against real processes, and its bundle against a fresh build
	@$(BIN)/pytest --durations=10 tests/web $(ARGS)

check: lint test test-web ## what CI runs

lint: setup docs ## ruff, mypy, import-linter, hadolint, drift of openapi/v1.json and of the synchronous client, the documentation site
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo 'unformatted files: run `make format`'; exit 1; }
	@$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report"; exit 1; }
	@$(BIN)/hadolint --config deploy/hadolint.yaml deploy/Dockerfile.*
	@$(BIN)/lethe openapi --check
	@$(BIN)/python scripts/make-synchronous --check

clients: setup ## write anew what is made from the code: the contract, the synchronous client, the TypeScript client
	@$(BIN)/lethe openapi > openapi/v1.json.new && mv openapi/v1.json.new openapi/v1.json
	@$(BIN)/python scripts/make-synchronous
	@cd openapi/clients/typescript && PATH="$(CURDIR)/$(BIN):$$PATH" && npm ci --silent && npm run --silent generate

web: setup ## build the dashboard into coordinator/api/dashboard (Node comes from a wheel)
	@cd dashboard && PATH="$(CURDIR)/$(BIN):$$PATH" && npm ci --silent && npm run --silent check && npm run --silent build -- --logLevel warn

docs: setup ## the documentation site in build/site; a link, an anchor or a page that is missing fails
	@report=$$(NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1) || { echo "$$report"; exit 1; }

format: setup ## rewrite the code in the house format
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

search: setup ## after every kind of erasure, and after restoring every backup, look for what must be gone; then a hundred attackers on each back end
	@LETHE_SEARCH=all LETHE_WALKS=100 $(BIN)/pytest -n 2 tests/e2e/test_search.py tests/property/test_attackers.py $(ARGS)

chaos: setup ## SIGKILL coordinator, compute and workers, stop Postgres, flush Redis, erase clients meanwhile; compare digests (JSON lines)
	@$(BIN)/python -m benchmarks.chaos $(ARGS)

storm: setup ## hostile clients and a failover of Postgres for two minutes on each back end; honest runs and erasures must complete
	@$(BIN)/python -m benchmarks.storm $(ARGS)

bench: setup ## seconds per round, memory and CPU; then training against a plain loop (JSON lines)
	@$(BIN)/lethe bench coordination --json $(ARGS)
	@$(BIN)/lethe bench training --json

clean: ## remove caches and demo data (keeps .venv)
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist .lethe lethe-data tour
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
