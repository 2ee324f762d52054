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

# They would lead Python elsewhere: another installation, other packages.
unexport PYTHONHOME PYTHONPATH
# Where a locale has no UTF-8 Python could not name every file.
export PYTHONUTF8 := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup debian testbed down test test-unit test-emulated test-browser test-hosts test-fresh test-ryu lint docs bench demo clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# --- Installing -------------------------------------------------------------------------------------------

setup: debian $(VENV)/.finished ## Install what is missing (Debian packages as root, a .venv)

# No stamp: machines change under a checkout, and asking dpkg takes a tenth of a second.
debian:
	@bash testbed/setup/debian.sh $(DEBIAN_PACKAGES)

# A virtual environment does not work from another path than it was made at.
moved = $(shell test "$$(cat $(1)/.finished 2>/dev/null)" = "$(CURDIR)" || echo FORCE)
.PHONY: FORCE
$(VENV)/.finished: setup.cfg Makefile $(call moved,$(VENV))
	@bash testbed/setup/venv.sh $(VENV) '$(PYTHON)' \
		'$(TORCH)$(if $(TORCH_INDEX), --index-url $(TORCH_INDEX))' "-e .[emulation,dev]"

# --- Using ------------------------------------------------------------------------------------------------

testbed: setup ## Bring up the NetStorm-9 WAN, train across it under two schedulers, leave it standing
	@$(TESTBED) doctor --quick
	@$(TESTBED) up netstorm-9 --name $(NAME) --reuse $(if $(DYNAMICS),--dynamics '$(DYNAMICS)')
	@$(TESTBED) run quickstart --name $(NAME)
	@$(TESTBED) next-steps --name $(NAME)

down: ## Take the testbed away
	@if [ -x $(TESTBED) ]; then $(TESTBED) down $(NAME) --if-up; else echo "down: nothing is set up here"; fi

# The simulated world needs no root, no Debian package, neither torch nor mininet.
DEMO = $(if $(wildcard $(VENV)/.finished),$(VENV),.venv-demo)
.venv-demo/.finished: setup.cfg $(call moved,.venv-demo)
	@bash testbed/setup/venv.sh .venv-demo '$(PYTHON)' '-e .'

demo: $(DEMO)/.finished ## Every scheduler on NetStorm-9, simulated, beside the proven bound (no root)
	@$(DEMO)/bin/testbed demo
	@echo "The command is $(DEMO)/bin/testbed; try: $(DEMO)/bin/testbed --help"

# --- Checking ---------------------------------------------------------------------------------------------

lint: $(VENV)/.finished ## ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: setup firewall ryu browser lint ## Everything: lint, unit, emulated and browser tests (as root)
	@$(BIN)/pytest tests

# Ryu itself needs an environment of its own: it wants an older setuptools and does not know this eventlet.
.PHONY: ryu browser
ryu: $(VENV)/.finished
	@bash testbed/setup/ryu.sh '$(PYTHON)'

# Debian's chromium, driven through playwright-core; a node that the machine already has is used.
browser: debian
	@bash testbed/setup/debian.sh chromium $(if $(shell command -v npm),,nodejs npm)
	@test -d tests/browser/node_modules/playwright-core || { echo "setup: the browser tests' packages"; \
		cd tests/browser && npm ci --silent --no-audit --no-fund; }

test-browser: setup browser ## The live page in Debian's chromium
	@$(BIN)/pytest tests/browser

test-ryu: setup ryu ## The controller on Ryu 4.34 itself (root)
	@$(BIN)/pytest tests/emulated/test_controller.py -k ryu

test-unit: $(VENV)/.finished ## Only what needs no root
	@$(BIN)/pytest tests/unit

test-emulated: setup firewall ## Only the tests on real testbeds (root)
	@$(BIN)/pytest tests/emulated

# Some tests put a firewall between a testbed and a machine of their own.
.PHONY: firewall
firewall: debian
	@bash testbed/setup/debian.sh nftables

test-hosts: setup firewall ## Every setting of a machine that could be against a testbed; docs/machines.md (root)
	@bash testbed/setup/debian.sh iptables ufw locales
	@$(BIN)/pytest tests/emulated/test_hosts.py -m "hosts or not hosts"

test-fresh: setup ## The commands of this list on pristine Debian 12 and 13; writes docs/machines.md (root)
	@bash testbed/setup/debian.sh mmdebstrap debian-archive-keyring
	@$(BIN)/python -m tests.tools.fresh --write docs/machines.md

docs: $(VENV)/.finished ## Bring the generated documents and dashboards up to date
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
