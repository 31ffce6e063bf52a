# Each target sets up what it needs: a virtual environment in .venv, installed through constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo play browser test lint docs site release bench bench-gpu bench-growth audit clean

demo: .venv/ready
	$(BIN)/hidden-uncertainty demo

# A page in which one draws digits, at http://localhost:8000; npm fetches its runtime.
play: .venv/ready
	$(BIN)/python examples/play/build.py --serve

# What tests of pages need, without which they are skipped: Chromium, from Debian's packages. Those of the page that
# draws need that page too, which `make play` builds.
browser:
	(command -v chromium && command -v chromedriver) || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver)

# A process per core, whose threads would spin while they wait for each other: a fifth of the CPU time of density tests.
test: .venv/ready
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n auto --dist loadfile

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The documentation at http://127.0.0.1:8000, written anew when a page changes.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

site: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What a version must pass before it is published; says what is missing.
release: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build twine
	$(BIN)/python tools/release.py

bench: .venv/peers/ready
	PYTHONPATH=.venv/peers $(BIN)/python -m bench; slower=$$?; $(BIN)/python -m bench.render; exit $$slower

# What only benchmarks compare with, beside the environment: torchvision would come with a torch of its own.
.venv/peers/ready: .venv/ready
	rm -rf .venv/peers
	$(BIN)/python -m pip install --quiet --no-deps --target .venv/peers FrEIA==0.2 pytorch-ood==0.4.0 torchvision==0.28.0
	touch $@

# On a machine with a CUDA device, whose own python3 has torch for it: PYTHON is used as it is.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m bench.gpu
	PYTHONPATH=src $(PYTHON) -m bench.render

bench-growth: .venv/peers/ready
	PYTHONPATH=.venv/peers $(BIN)/python -m bench.growth
	$(BIN)/python -m bench.render

audit: .venv/ready
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output site dist
	rm -rf examples/play/site examples/play/node_modules
