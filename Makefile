# Stormbed's commands. `make testbed` and `make test` work on a fresh Debian 12 machine as root: each
# installs what it lacks and starts no system service.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTBED := $(BIN)/testbed
NAME ?= stormbed
# How the links of `make testbed` change by themselves, such as netstorm; see docs/dynamics.md.
DYNAMICS ?=

# torch's newer and older releases are not interchangeable with what the process group subclass was checked on.
TORCH := torch==2.13.0
# An index of CPU builds saves gigabytes where the default index serves CUDA builds.
TORCH_INDEX ?=

DEBIAN_PACKAGES := mininet openvswitch-switch openssh-server openssh-client prometheus iproute2 ethtool \
	iputils-ping util-linux tini python3-venv

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup debian testbed down test test-unit test-emulated test-browser test-ryu lint docs bench demo clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# --- Installing -------------------------------------------------------------------------------------------

setup: debian $(VENV)/.emulation ## Install what is missing (Debian packages as root, a .venv)

# No stamp: machines change under a checkout, and asking dpkg takes a tenth of a second.
debian:
	@bash testbed/setup/debian.sh $(DEBIAN_PACKAGES)

$(VENV)/bin/python:
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.emulation: setup.cfg Makefile | $(VENV)/bin/python
	@echo "setup: $(TORCH)"
	@$(BIN)/pip install -q $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@echo "setup: stormbed and its Python packages"
	@$(BIN)/pip install -q -e '.[emulation,dev]'
	@touch $@

# --- Using ------------------------------------------------------------------------------------------------

testbed: setup ## Bring up the NetStorm-9 WAN, train across it under two schedulers, leave it standing
	@$(TESTBED) doctor --quick
	@$(TESTBED) up netstorm-9 --name $(NAME) --reuse $(if $(DYNAMICS),--dynamics '$(DYNAMICS)')
	@$(TESTBED) run quickstart --name $(NAME)
	@$(TESTBED) next-steps --name $(NAME)

down: ## Take the testbed away
	@$(TESTBED) down $(NAME) --if-up

# The simulated world needs no root, no Debian package, neither torch nor mininet.
DEMO_BIN = $(if $(wildcard $(VENV)/.emulation),$(BIN),.venv-demo/bin)
demo: ## Every scheduler on NetStorm-9, simulated, beside the proven bound (no root)
	@test -x $(DEMO_BIN)/testbed || { echo "demo: creating .venv-demo"; \
		$(PYTHON) -m venv .venv-demo && .venv-demo/bin/pip install -q -e .; }
	@$(DEMO_BIN)/testbed demo

# --- Checking ---------------------------------------------------------------------------------------------

lint: $(VENV)/.emulation ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: setup ryu browser lint ## Everything: lint, unit, emulated and browser tests (as root)
	@$(BIN)/pytest tests

# Ryu itself needs an environment of its own: it wants an older setuptools and does not know this eventlet.
.PHONY: ryu browser
ryu: $(VENV)/.emulation
	@bash testbed/setup/ryu.sh $(PYTHON)

# Debian's chromium, driven through playwright-core; a node that the machine already has is used.
browser: debian
	@bash testbed/setup/debian.sh chromium $(if $(shell command -v npm),,nodejs npm)
	@test -d tests/browser/node_modules/playwright-core || { echo "setup: the browser tests' packages"; \
		cd tests/browser && npm ci --silent --no-audit --no-fund; }

test-browser: setup browser ## The live page in Debian's chromium
	@$(BIN)/pytest tests/browser

test-ryu: setup ryu ## The controller on Ryu 4.34 itself (root)
	@$(BIN)/pytest tests/emulated/test_controller.py -k ryu

test-unit: $(VENV)/.emulation ## Only what needs no root
	@$(BIN)/pytest tests/unit

test-emulated: setup ## Only the tests on real testbeds (root)
	@$(BIN)/pytest tests/emulated

docs: $(VENV)/.emulation ## Bring the generated documents and dashboards up to date
	@$(TESTBED) reference --write

bench: setup ## Measure, and write the tables under docs/
	@$(BIN)/python benchmarks/simulation.py
	@$(BIN)/python benchmarks/packing.py
	@$(BIN)/python benchmarks/coflow.py
	@$(BIN)/python benchmarks/network.py
	@$(BIN)/python benchmarks/lifecycle.py
	@$(BIN)/python benchmarks/page.py

clean: ## Remove what earlier testbeds left and what was built here
	@if [ -x $(TESTBED) ]; then $(TESTBED) clean --none-up; fi
	@rm -rf $(VENV) .venv-demo .venv-ryu tests/browser/node_modules build ./*.egg-info .mypy_cache .ruff_cache .pytest_cache
