# Each target sets up what it needs: a virtual environment in .venv, installed through constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench bench-gpu bench-growth audit clean

demo: .venv/ready
	$(BIN)/hidden-uncertainty demo

test: .venv/ready
	$(BIN)/python -m pytest -n auto

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps FrEIA==0.2
	$(BIN)/python -m bench; slower=$$?; $(BIN)/python -m bench.render; exit $$slower

# On a machine with a CUDA device, whose own python3 has torch for it: PYTHON is used as it is.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m bench.gpu
	PYTHONPATH=src $(PYTHON) -m bench.render

bench-growth: .venv/ready
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.render

audit: .venv/ready
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-output
