# Two commands do everything: `make demo` trains the demo, `make test` runs the quick tests. Both set up .venv first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# Tests start hundreds of processes; without bytecode each of them would compile the package for two seconds.
unexport PYTHONDONTWRITEBYTECODE

# Processes that share the tests out; each test knows its own children, so they do not meet. Tests wait for other
# processes a fifth of their time: three keep two cores busy.
TEST_PROCESSES ?= 3
SHARED_OUT := --numprocesses $(TEST_PROCESSES) --dist worksteal

# Devices that `make install` builds the CUDA kernels for: the fewer, the quicker. `make wheel` builds them for all.
CUDA_ARCHITECTURES ?= 90

# What the installed package is made of, besides Python files (an editable install finds those in src/).
BUILD_INPUTS := pyproject.toml constraints-dev.txt CMakeLists.txt $(wildcard cuda/*.* cuda/boot/* cuda/include/glt/*)

.PHONY: install demo test test-all soak faults multi-host ptx-check gpu-check docs docs-serve lint format wheel wheels wheel-cuda clean

install: $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "glt_lightning needs Python >= 3.11, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true). Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Pinned, so that everybody runs what continuous integration runs. The CUDA kernels are part of it where nvcc is found.
$(VENV)/.installed: $(VENV)/bin/python $(BUILD_INPUTS)
	$(BIN)/python -m pip install --editable '.[dev]' --constraint constraints-dev.txt \
	  --config-settings 'cmake.define.GLT_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)' --config-settings cmake.define.GLT_WERROR=ON
	touch $@

demo: install
	$(BIN)/glt-lightning demo

# pytest comes last: its closing line is the result. It fails when no test was run.
test: lint
	$(PYTEST) $(SHARED_OUT) -m "not slow and not soak and not gpu and not faults"

# One cell per fault of the fault matrix is part of it.
test-all: lint
	GLT_TEST_EXAMPLES=all $(PYTEST) $(SHARED_OUT) -m "not soak and not gpu and (slow or not faults)"

# Among others 20 minutes of training under faults, with default deadlines; GLT_SOAK_MINUTES changes that.
soak: install
	$(PYTEST) -m soak

# The fault matrix: mode x fault x point of the run, as a table; under an hour on two cores. Some cells need root, else they
# are skipped by name.
faults: install
	$(PYTEST) -m faults tests/faults

# Several hosts on this one: network namespaces, links of 1 Gbit/s, mutual TLS. Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN).
multi-host: install
	$(PYTEST) tests/multi_host

# The CUDA kernels, run on the CPU from the PTX that nvcc makes of them; part of `make test-all` where nvcc is found. Takes a
# few minutes. PTX_ARCHITECTURE: whose PTX, a compute capability.
PTX_ARCHITECTURE ?= $(CUDA_ARCHITECTURES)
ptx-check: install
	@command -v nvcc > /dev/null || { echo "ptx-check needs nvcc, and there is none on PATH." >&2; exit 1; }
	GLT_PTX_ARCHITECTURE=$(PTX_ARCHITECTURE) $(PYTEST) tests/ptx

# On a machine with a GPU, nvcc, and torch with CUDA for PYTHON; needs no network, installs nothing, takes less than 8 minutes.
gpu-check:
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(if $(filter file,$(origin PYTHON)),python3,$(PYTHON)) -m benchmarks.gpu_check

# The site, in build/site, without a warning or a dead link; and docs/options.md, every option with its type and default.
docs: $(VENV)/.site
	$(BIN)/python docs/options_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

$(VENV)/.site: $(VENV)/.installed
	$(BIN)/python -m pip install --editable '.[site]' --constraint constraints-dev.txt
	touch $@

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel: install
	$(BIN)/python -m pip wheel . --no-deps --wheel-dir dist --config-settings cmake.define.GLT_CUDA_ARCHITECTURES=ALL

# What a registry takes: wheels for x86-64 and arm64 with the CPU kernels, and the sdist. Needs no compiler and no container.
wheels: .venv-wheels/.installed
	.venv-wheels/bin/python packaging/build_wheels.py

# The CUDA kernels as a wheel of their own, for the devices of GLT_CUDA_ARCHITECTURES; needs nvcc.
wheel-cuda: .venv-wheels/.installed
	PATH="$(CURDIR)/.venv-wheels/bin:$$PATH" .venv-wheels/bin/python -m pip wheel packaging/cuda --no-deps --no-build-isolation \
	  --wheel-dir dist --config-settings cmake.define.GLT_CUDA_ARCHITECTURES=$(if $(filter file,$(origin CUDA_ARCHITECTURES)),ALL,$(CUDA_ARCHITECTURES))

.venv-wheels/.installed: packaging/requirements.txt
	$(PYTHON) -m venv .venv-wheels
	.venv-wheels/bin/python -m pip install --requirement packaging/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-wheels build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
