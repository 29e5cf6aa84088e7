# `make install`, `make run` and `make test` are all that a newcomer needs, with Python 3.11 or later.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEELS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c $(VENV)/constraints.txt \
	$(if $(WHEELS),--no-index --find-links $(WHEELS))
NULL_GPU_VENV ?= .null-gpu
# Scripts of the atlas, such as ATLAS="gc_pauses --jobs 2".
ATLAS ?=
# Options of the check, such as GPU_CHECK="--minutes 9 --stages timing,memory".
GPU_CHECK ?=
# One more than the cores, up to four: tests wait a tenth of their time for processes that they end.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n > 3 ? 4 : n + 1 )))

.DEFAULT_GOAL := run
.PHONY: install run test lint format bench compat gpu-check null-gpu test-null-gpu test-slurm test-documents test-cases atlas sweeps api docs man screenshots film wheels clean

install: $(VENV)/.installed  ## the program, into .venv

run: $(VENV)/.installed  ## open the workstation; without a terminal, measure the default profile
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/sysbench-tui; else $(BIN)/sysbench-tui run; fi

# The tests start hundreds of processes: without cached bytecode each would compile our modules again.
test: $(VENV)/.installed-test  ## the whole suite, on a machine without a GPU
	@env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/pytest -q -m "not gpu and not null_gpu and not slurm" -n $(WORKERS) --dist loadfile

# docs/words.txt and docs/phrases.txt have what plain words replace.
WORDED := core tui profiles docs examples skills tests
lint: $(VENV)/.installed-lint  ## ruff, mypy strict, import contracts, spelling, words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests docs
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@! grep -rniwF -f docs/phrases.txt --include='*.py' --include='*.toml' --include='*.md' $(WORDED) *.md

format: $(VENV)/.installed-lint
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-test  ## figures, as ratios measured in one run; asserts nothing
	@for script in tests/benchmarks/bench_*.py; do $(BIN)/python -P $$script; done

compat: $(VENV)/.installed-test  ## a small set of tests on every combination of versions, and docs/compatibility.md
	@$(BIN)/python -m tests.compat

gpu-check: $(VENV)/.installed-test  ## in stages that go on where they stopped: docs/validation/<gpu>.md
	@$(BIN)/python -m tests.gpu $(GPU_CHECK)

null-gpu: $(VENV)/.installed-test  ## PyTorch's CUDA build on stand-ins that compute nothing
	@NULL_GPU_VENV="$(NULL_GPU_VENV)" $(BIN)/python -m tests.null_gpu.install

test-null-gpu: $(VENV)/.installed-test  ## what needs the null GPU; skipped where none is built
	@NULL_GPU_VENV="$(NULL_GPU_VENV)" $(BIN)/pytest -q -m null_gpu

test-slurm: $(VENV)/.installed-test  ## studies on a Slurm of two nodes on the loopback; skipped without Debian's packages
	@$(BIN)/pytest -q -m slurm tests/slurm

test-documents: $(VENV)/.installed-test  ## every command of README and docs, with small models
	@$(BIN)/pytest -q -n $(WORKERS) tests/validation/play_documents.py

test-cases: $(VENV)/.installed-test  ## files and models that were read wrongly once, from ../shared/data/cases
	@NULL_GPU_VENV="$(NULL_GPU_VENV)" $(BIN)/pytest -q tests/validation/play_cases.py

atlas: $(VENV)/.installed-test  ## sick and healthy trainings under `watch`: docs/validation/atlas.md
	@NULL_GPU_VENV="$(NULL_GPU_VENV)" $(BIN)/python -m tests.atlas $(ATLAS)

# Each script draws or lists all cases of what the suite tests with a few.
sweeps: $(VENV)/.installed-test  ## all architectures, caches and instruction sets against their predictions
	@$(BIN)/python -m tests.validation.models
	@$(BIN)/python -m tests.validation.serving
	@$(BIN)/python -m tests.validation.measure_instruction_sets

api: $(VENV)/.installed  ## docs/api.md and docs/reference, from docstrings, types and registries
	@$(BIN)/python -P docs/make_reference.py

docs: $(VENV)/.installed-docs  ## the site, into build/site; a broken link fails, nothing is fetched
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo build/site/index.html

man: $(VENV)/.installed  ## the manual page, from the parser of the command line
	@$(BIN)/python -P docs/make_man.py build/sysbench-tui.1

screenshots: $(VENV)/.installed-test  ## pictures of the real app on real runs, for the README and the tour
	@$(BIN)/python -m tests.validation.screenshots

film: $(VENV)/.installed-test  ## docs/pictures/film.svg: the main job by keys, in the real app
	@$(BIN)/python -m tests.validation.film

# Torch is not included: such a machine has its own. FOR=3.12 is the Python there, if another.
wheels:  ## for a machine without network, where `make install WHEELS=wheels` installs them
	@grep -v '^torch==' constraints.txt | xargs $(PYTHON) -m pip --disable-pip-version-check download \
		--quiet --no-deps --only-binary=:all: -d $(or $(WHEELS),wheels) 'setuptools>=77' \
		$(if $(FOR),--python-version $(FOR) --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64)

clean:
	rm -rf $(VENV) build dist *.egg-info

# A GPU machine has its own torch, built for its driver: use it and keep its dependencies. If that
# torch is in a virtual environment, which --system-site-packages does not see, a .pth file names
# its folder. Elsewhere the tested set is installed as pinned.
HAS_TORCH := import importlib.metadata as m; v = m.version("torch").split("."); exit((int(v[0]), int(v[1])) < (2, 9))
SITE := import sysconfig; print(sysconfig.get_paths()["purelib"])

$(VENV)/constraints.txt: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@if $(PYTHON) -c '$(HAS_TORCH)' 2>/dev/null; then \
		[ -x $(BIN)/python ] || $(PYTHON) -m venv --system-site-packages $(VENV); \
		$(BIN)/python -c '$(HAS_TORCH)' 2>/dev/null || \
			$(PYTHON) -c '$(SITE)' > "$$($(BIN)/python -c '$(SITE)')/box.pth"; \
		grep -vE '^(torch|numpy|pandas|setuptools)==' constraints.txt > $@; \
	else \
		[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); \
		cp constraints.txt $@; \
	fi

$(VENV)/.installed: pyproject.toml $(VENV)/constraints.txt
	@echo "installing into $(VENV): with torch about 1 GB, some minutes; on a box with torch less …" >&2
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "installing what the tests need …" >&2
	@$(PIP) -e '.[test]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing what the site needs …" >&2
	@$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.installed-test
	@echo "installing what the checks need …" >&2
	@$(PIP) -e '.[lint]'
	@touch $@
