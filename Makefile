# Each target sets up what it needs in .venv, from a bare Python 3.11 to 3.13 (PYTHON=… chooses one) and a network.
# Words after the command: make test ARGS='tests/unit -k graph', make demo ARGS=--json.
SHELL := /bin/sh
.DEFAULT_GOAL := help
OTHER_RAYS = 2.59.0
OTHER_AIRFLOWS = 3.2.2
OTHER_KFPS = 2.17.3
DAGSTERS = 1.13.29
BESIDE = -n 3 # processes, as tests wait a lot; tests that share a start of a framework are in one (BESIDE= for a debugger)
AGAIN ?= # --reruns 1: a scenario on a real framework that fails is tried once more, and reported (.ci/run does)
RAYS_RUN = tests/unit/ray $(addprefix tests/conformance/ray/test_ray_,observe.py compat.py run.py act.py)
ALSO_REST = -m 'not long and not slow and not cluster'
# What runs the same without Airflow is left out: nothing there can differ by its version.
AIRFLOW_UNITS = $(filter-out $(patsubst %,tests/unit/airflow/test_%.py,agent_limits agent_processes airflow_audit airflow_keep \
	airflow_local airflow_records agent_session lease published),$(sort $(wildcard tests/unit/airflow/test_*.py)))
AIRFLOWS_RUN = $(AIRFLOW_UNITS) $(addprefix tests/conformance/airflow/test_,airflow_observe_mode.py order.py)
KFPS_RUN = tests/unit/kubeflow $(addprefix tests/conformance/kubeflow/test_kfp_,run.py component.py forked.py containers.py)
.PHONY: help setup demo test coverage test-slow test-long test-versions bench lint format docs picture screenshots dist check-dist clean

# The environment's scripts (egs, ray) come first for what the targets run, but not for `setup`, which looks for a Python.
# Python keeps what it has compiled, also where images have it not (PYTHONDONTWRITEBYTECODE): hundreds of processes start.
RUN = PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONDONTWRITEBYTECODE= RAY_USAGE_STATS_ENABLED=0

help:
	@echo 'make setup         make .venv, or bring it up to date; then: . .venv/bin/activate'
	@echo 'make demo          run six pipelines on a local Ray, natively and with EGS; write build/demo/report.html, and show it'
	@echo 'make test          run the quick tests, and a tour of what EGS does on each real framework'
	@echo 'make coverage      run both, counting lines and branches: build/coverage/index.html'
	@echo 'make test-slow     run all other tests on a real framework'
	@echo 'make test-long     run the longest tests, which start clusters of their own'
	@echo 'make test-versions run the tests of observing and ordering on Ray $(OTHER_RAYS), Airflow $(OTHER_AIRFLOWS) and kfp $(OTHER_KFPS), and the fourth adapter on Dagster'
	@echo 'make bench         run the benchmarks: engine, graphs, the demo in all variants'
	@echo 'make lint          run ruff, mypy --strict and the import contracts'
	@echo 'make format        format the code and apply safe fixes'
	@echo 'make docs          build the documentation site, build/site/index.html; a broken link is an error'
	@echo 'make picture       draw the picture of the README from build/demo (after make demo)'
	@echo 'make screenshots   take the pictures of the dashboard from build/demo, with Chromium (after make demo)'
	@echo 'make dist          build wheels and source distributions of the four packages into dist/'
	@echo 'make check-dist    make dist, then install each package by itself and use it'
	@echo 'make clean         remove .venv, caches and build output'

setup:
	@sh scripts/with_python.sh scripts/setup_venv.py

demo: setup
	@$(RUN) .venv/bin/python -m egs_core.cli.app demo --out build/demo $(ARGS)

test: setup
	@$(RUN) .venv/bin/python -m pytest $(BESIDE) $(AGAIN) $(ARGS)

coverage: setup
	@mkdir -p build
	@$(RUN) .venv/bin/python -m pytest $(BESIDE) -m 'not long and not cluster' --cov --cov-branch --cov-report=term \
		--cov-report=html:build/coverage $(ARGS)

test-slow: setup
	@$(RUN) .venv/bin/python -m pytest $(BESIDE) $(AGAIN) -m '(slow or rest) and not long and not cluster' $(ARGS)

test-long: setup
	@$(RUN) .venv/bin/python -m pytest $(BESIDE) $(AGAIN) -m long $(ARGS)

test-versions: setup
	@$(RUN) .venv/bin/python scripts/test_versions.py \
		$(foreach version,$(OTHER_RAYS),--on ray $(version) "$(RAYS_RUN) $(ALSO_REST) $(AGAIN) $(ARGS)") \
		$(foreach version,$(OTHER_AIRFLOWS),--on airflow $(version) "$(AIRFLOWS_RUN) $(ALSO_REST) $(AGAIN) $(ARGS)") \
		$(foreach version,$(OTHER_KFPS),--on kfp $(version) "$(KFPS_RUN) $(ALSO_REST) $(AGAIN) $(ARGS)") \
		$(foreach version,$(DAGSTERS),--on dagster $(version) "tests/conformance/dagster $(ALSO_REST) $(AGAIN) $(ARGS)")

bench: setup
	@$(RUN) .venv/bin/python -m benchmarks $(ARGS)

lint: setup
	@$(RUN) sh scripts/lint.sh

format: setup
	@$(RUN) ruff check --fix-only --quiet .
	@$(RUN) ruff format --quiet .

docs: setup
	@$(RUN) NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build $(ARGS)

screenshots: setup
	@.venv/bin/python -m scripts.screenshots build/demo

picture: setup
	@.venv/bin/python -m scripts.picture build/demo

dist: setup
	@.venv/bin/python scripts/build_dist.py

check-dist: dist
	@$(RUN) .venv/bin/python scripts/check_dist.py $(ARGS)

clean:
	rm -rf .venv .venv-* .venv.lock build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
