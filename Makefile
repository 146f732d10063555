# Everything that is run on this project: `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The system's Python: an environment made from one in a home directory cannot be executed by a service user.
PYTHON ?= /usr/bin/python3
DESTDIR ?=
PREFIX ?= /opt/vllm-supervisor
BINDIR ?= /usr/local/bin
UNITDIR ?= /usr/lib/systemd/system
SYSUSERSDIR ?= /usr/lib/sysusers.d
TMPFILESDIR ?= /usr/lib/tmpfiles.d
DOCDIR ?= /usr/local/share/doc/vllm-supervisor
CONFDIR ?= /etc/vllm-supervisor
ENGINE_DIR ?= /opt/vllm
VLLM ?=
PIP_ARGS ?=

VENV := .venv-test
BIN := $(VENV)/bin
LOGS := build/logs
SOURCES := $(shell find supervisor -name '*.py' -o -name '*.css' -o -name '*.js' -o -name py.typed -o -name runtime.lock)
# Arguments for pytest: make test ARGS="-k stop"
ARGS ?=

# What the tests stand on, as Debian and Ubuntu name it.
PACKAGES := python3 python3-venv python3-dev gcc make tar curl util-linux procps iproute2 systemd dbus prometheus chromium tmux zsh

# $(call quietly,NAME,COMMAND): the output goes to a log, and its end is shown when the command fails.
quietly = mkdir -p $(LOGS); { $(2); } >$(LOGS)/$(1).log 2>&1 || { tail -n 15 $(LOGS)/$(1).log >&2; echo "make: $(1) failed, all of its output is in $(LOGS)/$(1).log" >&2; exit 1; }
pip = $(1) -m pip --quiet --no-input --disable-pip-version-check

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/:.*## /\t/' | expand -t 16
	@echo; echo 'Variables: DESTDIR PREFIX BINDIR PYTHON ENGINE_DIR VLLM ARGS VSUP_DEV_HOME'

# --- tests ------------------------------------------------------------------------------------------------------

.PHONY: test test-long test-fast lint venv deps engine-dev model
# What runs without a machine of its own waits most of the time: some at once. A real engine has the processors to itself.
WORKERS ?= 4
# $(call pytest,MARKS,OPTIONS): ARGS may leave nothing to run of one of the two.
pytest = $(BIN)/python -m pytest -m '$(1)' $(2) $(ARGS) $(if $(ARGS),|| [ $$? = 5 ])
test: deps venv engine-dev model lint ## Run the gate (real systemd, real vLLM on the CPU; as root)
	@$(call pytest,not system and not long,-n $(WORKERS))
	@$(call pytest,system and not long)

test-long: deps venv engine-dev model ## Run the tests that take minutes of a real engine each (half an hour and more)
	@$(call pytest,long)

test-fast: venv ## Run the tests that need no engine and no root
	@$(call pytest,not system and not long,-n $(WORKERS))

lint: venv ## Check style, format and types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo 'make: some files are not formatted: run `make format`' >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

.PHONY: format
format: venv ## Format the Python files
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

venv: $(VENV)/.wheel ## Make the test environment: the built wheel and the locked tools

$(VENV)/.tools: tests/dev.lock
	@echo 'make: making $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'make: $(PYTHON) is older than Python 3.11: give a newer one as PYTHON=' >&2; exit 1; }
	@rm -rf $(VENV)
	@$(call quietly,venv,$(PYTHON) -m venv $(VENV) && $(call pip,$(BIN)/python) install --requirement tests/dev.lock)
	@touch $@

$(VENV)/.wheel: $(VENV)/.tools pyproject.toml README.md $(SOURCES)
	@rm -rf build/wheel
	@$(call quietly,wheel,$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel)
	@$(call quietly,wheel-install,$(call pip,$(BIN)/python) install --force-reinstall --no-deps build/wheel/*.whl)
	@touch $@

deps: ## Install the system's packages that the tests need (Debian, Ubuntu)
	@missing=; for package in $(PACKAGES); do \
	    dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then echo "make: this system has no apt-get: install what Debian calls$$missing" >&2; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as='sudo -n'; else \
	    echo "make: packages are missing, run: sudo apt-get install$$missing" >&2; exit 1; fi; \
	echo "make: installing$$missing"; \
	$(call quietly,deps,$$as apt-get update -q && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing)

engine-dev: ## Make, once, an environment with real vLLM for the CPU
	@$(PYTHON) tests/lab/engine.py >/dev/null

model: engine-dev ## Make, once, the small reasoning model
	@$(PYTHON) tests/lab/models.py >/dev/null

.PHONY: matrix soak reliability
MINUTES ?= 60
JOBS ?= 4
matrix: venv ## Strike every fault in every phase (a scripted engine; minutes)
	@PYTHONPATH=tests $(BIN)/python -m process.matrix.run --jobs $(JOBS) --out build/matrix.json $(ARGS)

soak: deps venv engine-dev model ## Load and a fault every minute on a real engine: make soak MINUTES=60 (as root)
	@SATURATE_SECONDS=$$(( $(MINUTES) * 30 )) $(BIN)/python -m pytest -q -o timeout=0 tests/system/test_liveness_real.py
	@$(BIN)/python tests/soak/soak.py --minutes $(MINUTES) $(ARGS)

reliability: venv ## Write what the last matrix, system tests and soak measured into docs/reliability.md
	@$(BIN)/python tests/process/matrix/report.py build/matrix.json build/faults-real.json build/soak.json

# --- what is generated ------------------------------------------------------------------------------------------

.PHONY: units images lock
units: ## Write the unit files from their templates
	@$(PYTHON) tests/lab/units.py

images: deps venv ## Look at the page in a real browser, and write the pictures of docs/images
	@VSUP_IMAGES=docs/images $(BIN)/python -m pytest -q tests/system/test_page_pictures.py

UV ?= uv
UV_COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade
lock: ## Choose the newest versions anew: supervisor/runtime.lock and tests/dev.lock (needs uv)
	@command -v $(UV) >/dev/null || { echo 'make: uv is missing: install it, or give its path as UV=' >&2; exit 1; }
	@$(UV_COMPILE) pyproject.toml --output-file supervisor/runtime.lock
	@echo 'hatchling' | $(UV_COMPILE) pyproject.toml - --group dev --constraints supervisor/runtime.lock --output-file tests/dev.lock

# --- installation -----------------------------------------------------------------------------------------------

.PHONY: install uninstall engine
INSTALL = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' BINDIR='$(BINDIR)' UNITDIR='$(UNITDIR)' SYSUSERSDIR='$(SYSUSERSDIR)' TMPFILESDIR='$(TMPFILESDIR)' \
    DOCDIR='$(DOCDIR)' CONFDIR='$(CONFDIR)' ENGINE_DIR='$(ENGINE_DIR)' VLLM='$(VLLM)' PIP_ARGS='$(PIP_ARGS)' PYTHON='$(PYTHON)' sh units/install.sh

install: ## Install the daemon, its units and its configuration (as root; DESTDIR= for packages)
	@$(INSTALL) install

uninstall: ## Remove the daemon and its units; configuration and state stay
	@$(INSTALL) uninstall

engine: ## Make the operator's engine: make engine VLLM=0.32.0 (/opt/vllm-0.32.0, linked as /opt/vllm; DESTDIR= for packages)
	@$(INSTALL) engine

# --- showing ----------------------------------------------------------------------------------------------------

.PHONY: demo bench clean
demo: venv ## Show a real engine from nothing to one answered question and back to nothing
	@$(BIN)/python tests/lab/demo.py $(ARGS)

bench: venv engine-dev model ## Measure the targets, side by side with a bare engine
	@$(BIN)/python tests/lab/bench.py $(ARGS)

clean: ## Remove what was built here (the engine and the models of the laboratory stay)
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
