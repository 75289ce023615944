# What a person types. Every target first makes its own environment, with python3 (3.11 or newer, with venv) alone:
#
#   make demo     a simulated GPU service under rising load, shown in the terminal, about 70 seconds
#                 POLICY=adaptive|tiers|concurrency|fixed  SECONDS=45  TRACE=path.csv  SPEED=20
#                 ENGINE=llm  a simulated LLM server that streams its answers, in place of that GPU
#   make test     the fast tests on two cores, some minutes; TESTS=tests/gpu runs all tests of a part
#   make test-all every test on two cores, with branch coverage of the pure modules
#   make docs     the documentation site, in build/site/index.html, within a minute
#   make check    format, lint, types, the import contract, dependencies, the wheel
#   make bench    the measurements, about 40 minutes; BENCHMARKS="decision peers" runs some of them,
#                 BENCHMARKS=redis six minutes of shared limits, BENCHMARKS=overload half an hour of real HTTP
#   make clean    forget the environment and everything that was built
#
# PYTHON=python3.12 chooses the interpreter, VENV=/somewhere/else the folder of the environment.

PYTHON ?= python3
VENV ?= .venv
TESTS ?=
BENCHMARKS ?= decision peers serve waiting breaker gateway closed_loop instructions

BIN := $(VENV)/bin
ENVIRONMENT := @$(PYTHON) .ci/environment.py "$(VENV)"
PYTEST := -m pytest -p tests.project.report
TWO := -n 2 --dist loadgroup
FULL := HYPOTHESIS_PROFILE="$${HYPOTHESIS_PROFILE:-full}"
# Each process would rewrite the assertions of every test module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all docs check format lint types imports dependencies wheel bench clean python
.NOTPARALLEL:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

python:
	@command -v "$(PYTHON)" > /dev/null || { echo "$(PYTHON) is not here; name a Python 3.11 or newer: make PYTHON=... " >&2; exit 1; }

demo: python
	$(ENVIRONMENT) demo
	@"$(BIN)/python" -m examples.demo \
		$(if $(ENGINE),--engine "$$ENGINE") $(if $(POLICY),--policy "$$POLICY") $(if $(TRACE),--trace "$$TRACE") \
		$(if $(SPEED),--speed "$$SPEED") $(if $(SECONDS),--seconds "$$SECONDS")

test: python
	$(ENVIRONMENT) test
	@$(if $(TESTS),$(FULL)) "$(BIN)/python" $(PYTEST) $(if $(TESTS),$(TESTS),$(TWO) -m "not slow")

test-all: python
	$(ENVIRONMENT) test
	@$(FULL) "$(BIN)/python" $(PYTEST) $(TWO) -p tests.project.young_machine -p tests.project.coverage_report

docs: python
	$(ENVIRONMENT) docs
	@"$(BIN)/python" -m docs.generate.site

check: format lint types imports dependencies wheel

format: python
	$(ENVIRONMENT) test check
	"$(BIN)/ruff" format --check .

lint: python
	$(ENVIRONMENT) test check
	"$(BIN)/ruff" check .

types: python
	$(ENVIRONMENT) test check
	"$(BIN)/mypy"
	@said=$$(PATH="$(abspath $(BIN)):$$PATH" basedpyright --verifytypes autoglm_throttle --ignoreexternal) \
		|| { echo "$$said"; exit 1; }; echo "$$said" | grep completeness
	"$(BIN)/python" -m tests.project.typed_user

imports: python
	$(ENVIRONMENT) test check
	"$(BIN)/lint-imports"

dependencies: python
	$(ENVIRONMENT) test check
	"$(BIN)/deptry" .

wheel: python
	$(ENVIRONMENT) test check
	"$(BIN)/python" -m tests.project.wheel

bench: python
	$(ENVIRONMENT) test bench
	@for name in $(BENCHMARKS); do "$(BIN)/python" -m "benchmarks.$$name" || exit 1; done

clean:
	rm -rf "$(VENV)" dist build .coverage .coverage.* .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
