# Each target sets up what it needs in .venv, from a bare Python 3.11 to 3.13 (PYTHON=… chooses one) and a network.
# Words after the command: make test ARGS='tests/unit -k graph', make demo ARGS=--json.
SHELL := /bin/sh
.DEFAULT_GOAL := help
OTHER_RAYS = 2.59.0
OTHER_AIRFLOWS = 3.2.2
OTHER_KFPS = 2.17.3
BESIDE = -n 2 # two processes; the tests of one framework are all in one of them (BESIDE= for a debugger)
RAYS_RUN = tests/unit/ray $(addprefix tests/conformance/ray/test_ray_,observe.py compat.py run.py act.py)
AIRFLOWS_RUN = tests/unit/airflow $(addprefix tests/conformance/airflow/test_,airflow_observe_mode.py order.py)
KFPS_RUN = tests/unit/kubeflow tests/conformance/kubeflow
.PHONY: help setup demo test test-slow test-long test-versions bench lint format clean

# The environment's scripts (egs, ray) come first for what the targets run, but not for `setup`, which looks for a Python.
RUN = PATH="$(CURDIR)/.venv/bin:$$PATH" RAY_USAGE_STATS_ENABLED=0

help:
	@echo 'make demo   run the demo natively and with EGS on a local Ray, compare, write build/demo/report.html'
	@echo 'make test   run the tests'
	@echo 'make test-slow     run the tests that take many runs on a real Ray or Airflow'
	@echo 'make test-long     run the tests that start clusters of their own'
	@echo 'make test-versions run the quick tests on Ray $(OTHER_RAYS), Airflow $(OTHER_AIRFLOWS) and kfp $(OTHER_KFPS) too'
	@echo 'make bench  measure: engine, graphs, and the demo in all its variants'
	@echo 'make lint   ruff, mypy --strict, import contracts'
	@echo 'make format apply ruff'\''s formatting and safe fixes'
	@echo 'make clean  remove .venv, caches and build output'

setup:
	@sh scripts/with_python.sh scripts/setup_venv.py

demo: setup
	@$(RUN) .venv/bin/python -m egs_core.cli.app demo --out build/demo $(ARGS)

test: setup
	@$(RUN) .venv/bin/python -m pytest $(BESIDE) $(ARGS)

test-slow: setup
	@$(RUN) .venv/bin/python -m pytest -m 'slow and not long' $(ARGS)

test-long: setup
	@$(RUN) .venv/bin/python -m pytest -m long $(ARGS)

# $(call on_version,FRAMEWORK): pytest in an environment over .venv with that framework's $$version; the rest of the line
# says of what. The cache is for failed tests, which are those of `make test`.
on_version = .venv/bin/python scripts/setup_version.py $(1) $$version \
	&& PATH="$(CURDIR)/.venv-$(1)-$$version/bin:$(CURDIR)/.venv/bin:$$PATH" RAY_USAGE_STATS_ENABLED=0 \
	.venv-$(1)-$$version/bin/python -m pytest -p no:cacheprovider

test-versions: setup
	@for version in $(OTHER_RAYS); do $(call on_version,ray) $(RAYS_RUN) $(ARGS) || exit 1; done
	@for version in $(OTHER_AIRFLOWS); do $(call on_version,airflow) $(AIRFLOWS_RUN) $(ARGS) || exit 1; done
	@for version in $(OTHER_KFPS); do $(call on_version,kfp) $(KFPS_RUN) $(ARGS) || exit 1; done

bench: setup
	@$(RUN) .venv/bin/python -m benchmarks $(ARGS)

lint: setup
	@$(RUN) sh scripts/lint.sh

format: setup
	@$(RUN) ruff check --fix-only --quiet .
	@$(RUN) ruff format --quiet .

clean:
	rm -rf .venv .venv-* .venv.lock build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
