# `make demo` and `make test` each work alone on a fresh machine that has Python 3.11 and make.
PYTHON ?= python3
WORKERS ?= 2
BENCH ?= local
SEEDS ?= 2001 2002 2003
RANKS ?= 2
EMULATE_ON ?= auto
BASE ?= ../base

BIN := .venv/bin
# The repository root must stay off sys.path: its `kernels` folder would pass for another project's package.
export PYTHONSAFEPATH := 1
# A hundred processes of the tests would compile the package anew, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE
# One thread for each pytest worker, or they fight over the cores. A worker takes whole stretches of tests, which share
# fixtures, and from the other when it has none left. Other plugins, and the rewriting of their asserts, take seconds.
PLUGINS := --disable-plugin-autoload -p xdist -p _hypothesis_pytestplugin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest $(PLUGINS) -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test small-tests all coverage quick lint typecheck wheel-test mutants bench bench-models bench-paired bench-ranks gpu rehearse pictures screenshot docs browser clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

.venv/.installed: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/.installed  ## fetch SmolLM2-135M, generate on a virtual wafer, compare with transformers (EMULATE_ON=cpu)
	$(BIN)/python -m wafer_triton.models.demo --emulate-on $(EMULATE_ON)

# mypy takes a core for a quarter of a minute, beside which pytest begins.
test: .venv/.installed  ## what a change needs: lint, types, the tests that are not large
	@$(MAKE) --no-print-directory -j2 lint small-tests

small-tests: .venv/.installed
	$(PYTEST) -m "not large"

all: .venv/.installed  ## the rest: planted faults, other machines, whole models, searches, large meshes, ranks, pages, training
	$(BIN)/python tests/helpers/planted.py
	$(PYTEST) -m large
	WAFER_REHEARSE=1 OMP_NUM_THREADS=1 $(BIN)/pytest $(PLUGINS) tests/gpu

coverage: .venv/.installed  ## lines that neither `make test` nor `make all` reaches, after twice their time
	@rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n $(WORKERS) -q; tests=$$?; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$tests

quick: .venv/.installed  ## the fast tests of the library, in a minute
	$(PYTEST) -m "not slow and not large" $(foreach f,bench cli docs gpu inputs models/test_text.py parity train/test_inputs.py,--ignore tests/$(f))

lint: typecheck  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: .venv/.installed  ## mypy alone
	MYPYPATH=src $(BIN)/mypy -p wafer_triton

wheel-test: .venv/.installed  ## build a wheel and try it outside the repository
	$(BIN)/pytest tests/test_packaging.py

mutants: .venv/.installed  ## 5,000 mutants of all schedules, healthy ones on 35 meshes: does the checker tell them apart?
	OMP_NUM_THREADS=1 PYTHONPATH=tests/helpers $(BIN)/python tests/helpers/mutants.py 5000 $(SEEDS)

bench: .venv/.installed  ## time the emulation; writes bench/results/$(BENCH).json
	@mkdir -p bench/results
	$(BIN)/pytest bench/suites --ignore=bench/suites/bench_models.py --benchmark-json=bench/results/$(BENCH).json
	$(BIN)/python bench/harness/report.py bench/results/$(BENCH).json

bench-models: .venv/.installed  ## time SmolLM2-135M beside transformers; writes bench/results/models.json
	$(BIN)/pytest bench/suites/bench_models.py --benchmark-json=bench/results/models.json
	$(BIN)/python bench/harness/report.py bench/results/models.json

bench-paired: .venv/.installed  ## time all CPU cases of this checkout and of BASE in turns, by CPU time; then beside plain PyTorch
	$(BIN)/python bench/paired.py $(BASE)
	$(BIN)/python bench/paired.py --peers

bench-ranks: .venv/.installed  ## time meshes and models over RANKS processes beside one
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node $(RANKS) bench/ranks.py

gpu: .venv/.installed  ## on a machine with a GPU: its rows and tests within ten minutes; writes the one file to send
	$(BIN)/python bench/gpu.py

rehearse: .venv/.installed  ## `make gpu` with small rows on a CPU; its parts are in `make all`
	$(PYTEST) tests/bench/test_rehearsal.py
	WAFER_REHEARSE=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/gpu

pictures: .venv/.installed  ## draw the pictures of README.md and docs anew, in docs/pictures
	$(BIN)/python docs/pictures/draw.py

screenshot: .venv/.installed  ## take the screenshot of docs/reference.md anew, with Chromium
	PYTHONPATH=tests/helpers $(BIN)/python tests/helpers/screenshot.py

docs: .venv/.installed  ## build the site of docs/ into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "written: build/site/index.html"

browser:  ## install Debian's Chromium and zsh, where that may be done; without them their tests are left out
	@command -v chromium >/dev/null && command -v zsh >/dev/null || timeout 180 sh -c \
		'apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium zsh' >/dev/null 2>&1 \
		|| echo "no Chromium and zsh could be installed: the tests of pages, or of zsh, are left out"

clean:  ## remove what make made (the checkpoint cache stays)
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
