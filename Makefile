# What people type and what CI runs.
#
#   make demo     install, start everything, train a sample model     PORT= DATA_DIR=
#   make run      the same without sample data
#   make setup    install only
#   make test, make test-slow, make check
#   make check-deployment   nginx, docker-compose and systemd-analyze read the files of docs/deployment/
#   make translations   extract new texts into locale/
#   make lock     resolve the dependencies again into requirements/
#   make bench-live, bench-record, bench-ingest, bench-chart, bench-transfer, bench-trainer, bench-lstm
#   make pictures   the pictures of docs/guide, from a running Evenkeel

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := setup

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) requirements/install.py packages

# Variables of .env (see .env.example); those given on the command line win.
ENVIRONMENT := set -a; if [ -f .env ]; then . ./.env; fi; \
	$(foreach name,PORT DATA_DIR,$(if $($(name)),$(name)='$($(name))';)) set +a;

.PHONY: setup setup-dev demo run test test-slow check check-deployment lock messages translations pictures

setup: $(VENV)/.run node_modules/.installed messages
	@echo "Set-up is complete."

setup-dev: setup $(VENV)/.dev

# A stamp is newer than its locks only if every install went through.
$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || { echo "There is no $(PYTHON) here; Evenkeel needs Python 3.10, 3.11, 3.12 or 3.13."; exit 1; }
	@"$(PYTHON)" requirements/install.py venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.created requirements/worker.txt requirements/web.txt requirements/trainer-cpu.txt
	@echo "== 1/3  Python packages of the worker"
	@$(INSTALL) requirements/worker.txt
	@echo "== 2/3  Python packages of the web side"
	@$(INSTALL) requirements/web.txt
	@echo "== 3/3  Python packages of the trainer: Paddle and PaddleNLP, about 450 MB, takes a minute or two"
	@$(INSTALL) requirements/trainer-cpu.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "== Python packages for development"
	@$(INSTALL) requirements/dev.txt
	@touch $@

# npm if there is one, else the one that a Python package brings.
node_modules/.installed: package.json package-lock.json .npmrc | $(VENV)/.run
	@echo "== Front-end files"
	@if ! command -v npm >/dev/null; then \
		$(INSTALL) requirements/frontend.txt; PATH="$$PWD/$(VENV)/bin:$$PATH"; \
	fi; npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

# gettext's .po into .mo, without needing gettext's own tools.
messages: | $(VENV)/.run
	@for po in $$(find locale -name '*.po' 2>/dev/null); do \
		if [ ! "$${po%.po}.mo" -nt "$$po" ]; then $(VENV)/bin/pybabel -q compile -i "$$po" -o "$${po%.po}.mo"; fi; \
	done

# Every text of the web side into the .po files, which people then complete; tests notice what was forgotten.
translations: setup-dev
	@$(RUN) manage.py translations

demo: setup
	@$(ENVIRONMENT) exec $(RUN) manage.py up --demo

run: setup
	@$(ENVIRONMENT) exec $(RUN) manage.py up

# All on SQLite; what reads and writes the database once more on PostgreSQL, pages only with the slow ones.
test: setup-dev
	@$(RUN) -m pytest -m "not slow"
	@$(RUN) -m tests.with_postgresql $(RUN) -m pytest -m "not slow" tests/jobs --ignore tests/jobs/views

test-slow: setup-dev
	@$(RUN) -m pytest -m slow
	@$(RUN) -m tests.with_postgresql $(RUN) -m pytest -m "not slow" tests/jobs/views

check: setup-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(RUN) manage.py makemigrations --check --dry-run
	$(RUN) manage.py check
	find templates jobs -name '*.html' -print0 | xargs -0r $(VENV)/bin/djade --target-version 5.2 --check
	find templates jobs -name '*.html' -print0 | xargs -0r $(VENV)/bin/djhtml --check --tabwidth 2

# Needs tools that are not Python's, and says which one is missing.
check-deployment: setup-dev
	@$(RUN) -m pytest tests/check_deployment.py

pictures: setup-dev
	@$(RUN) docs/guide/make_pictures.py

bench-%: setup-dev
	@$(RUN) -m benches.$*

# One resolution for all groups, then one lock per group that keeps to it.
# Versions stay where they are if they can; UPGRADE=1 takes the newest that fit.
LOCKS := worker web trainer-base trainer-cpu dev frontend
COMPILE := $(VENV)/bin/uv pip compile -q pyproject.toml --universal --python-version 3.10 --no-emit-index-url
lock: setup-dev
	@all=$$(mktemp); trap 'rm -f "$$all"' EXIT; \
	if [ -z "$(UPGRADE)" ]; then cat $(LOCKS:%=requirements/%.txt) >"$$all"; fi; \
	$(COMPILE) $(foreach group,$(LOCKS),--group $(group)) -o "$$all"; \
	for group in $(LOCKS); do \
		echo "== requirements/$$group.txt"; \
		$(COMPILE) --group $$group --generate-hashes -c "$$all" --no-annotate --no-header -o requirements/$$group.txt; \
	done
