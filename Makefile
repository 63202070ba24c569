# make demo   everything on a small scale, from a bare machine to a report
# make test   the whole test suite            make lint   ruff and mypy
# make bench  speed and memory, side by side  make setup  only the environment
# make bench-rl  what every preset learns, about an hour
PYTHON ?= python3
BIN := .venv/bin
# In the package's directory, so that a change of the lock or of the version installs anew.
STAMP := .venv/.installed-$(shell cat locks/cpu.txt locks/models.txt pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)

# Packages are compiled at their first import, not at every start of a process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint bench bench-rl lock clean
setup: $(STAMP)

$(STAMP):
	@PYTHON="$(PYTHON)" sh locks/install.sh
	@rm -f .venv/.installed-*; date +%s > $(STAMP)

demo:
	@began=$$(date +%s); $(MAKE) --no-print-directory setup && \
	$(BIN)/assay demo --install-seconds $$(( $$(date +%s) - began )) $(ARGS)

test: setup
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy -p assay

bench: setup
	for bench in $(filter-out tests/rl/bench_learning.py,$(wildcard tests/*/bench_*.py)); do \
	  $(BIN)/python $$bench || exit 1; done

# About an hour: what every preset learns, three seeds; what bench-rl/ has already is not done again.
bench-rl: setup
	$(BIN)/python tests/rl/bench_learning.py bench-rl

# Compile the lock anew: the newest versions that fit together.
lock:
	sh locks/compile.sh

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info
