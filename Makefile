# Every target bootstraps .venv from requirements.lock first: a fresh clone needs Python 3.11, pip and make alone.
PYTHON ?= python3
VENV := .venv
RUN := .venv-run
# Real tools that the acceptance tests run; their pins conflict with those of Headgate.
DBT := .venv-dbt
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NODE := $(VENV)/node/.installed
PIP := $(BIN)/pip --disable-pip-version-check -q
# Airflow 3 and 2, for the soak alone.
AIRFLOW := .venv-airflow3 .venv-airflow2
# LocalStack's Step Functions, for the soak alone. It runs on Python 3.13.
LOCALSTACK := .venv-localstack
PYTHON_3_13 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python) python3.13)
# Acceptance tests that the soak also runs with the state on DynamoDB, unchanged.
STORIES := closed_loop api_cli durable_cli pipeline_cli fanout_server checks command_jobs repair gate_page asl_cli \
  fanout_cli health_api health_cli
# Twice the cores of a small machine: in acceptance and contract tests a worker waits for two fifths of its time.
JOBS ?= 4
# If bytecode caching is off, every program that the tests start compiles all of its modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: airflow all audit dev demo test quick unit hooks lint localstack check compiled docs reference screenshots proto bench peers pythons soak lock clean services
.DEFAULT_GOAL := all

all: test  ## everything CI runs

dev: $(STAMP)  ## create .venv with the program and its tools

# Packages are not compiled at installation: most modules are never imported.
$(BIN)/uv: requirements.lock
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m pip -q install --target $(VENV).boot virtualenv \
	  && { test -x $(BIN)/pip || PYTHONPATH=$(VENV).boot $(PYTHON) -m virtualenv -q $(VENV); }
	sed -n '/^uv==/,/^    #/p' requirements.lock > $(VENV)/uv-requirements.txt
	$(PIP) install --no-compile --no-deps --require-hashes -r $(VENV)/uv-requirements.txt
	touch $@

# Installs requirements $(2) for the Python $(1), in a tenth of the time of pip. Where uv cannot, as with a registry that
# only the settings of pip name, pip does.
define install
$(BIN)/uv pip install -q --python $(1) $(2) || $(PIP) --python $(1) install --no-compile $(2)
endef

# The lock is complete, so nothing is resolved; the check says what it would lack.
$(STAMP): requirements.lock pyproject.toml $(BIN)/uv
	$(call install,$(BIN)/python,--no-deps --require-hashes -r requirements.lock)
	$(call install,$(BIN)/python,--no-build-isolation --no-deps -e .)
	$(BIN)/uv pip check -q --python $(BIN)/python
	touch $@

# What running needs, without the test tools; pinned to the same versions.
$(RUN)/.installed: requirements.lock pyproject.toml
	@echo "installing Headgate into $(RUN) …"
	@started=$$(date +%s) \
	  && { test -x $(RUN)/bin/pip || $(PYTHON) -m venv $(RUN) || { $(PYTHON) -m pip -q install --target $(RUN).boot virtualenv \
	  && PYTHONPATH=$(RUN).boot $(PYTHON) -m virtualenv -q $(RUN); }; } \
	  && sed -e '/--hash=/d' -e 's/ *\\$$//' requirements.lock > $(RUN)/constraints.txt \
	  && $(RUN)/bin/pip --disable-pip-version-check -q install --no-compile -c $(RUN)/constraints.txt -e . \
	  && echo "installed in $$(( $$(date +%s) - started )) s"
	@touch $@

demo: $(RUN)/.installed  ## run a small shop's platform through a bad deployment, and print where to see it
	@$(RUN)/bin/headgate demo

lint: $(STAMP)  ## style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

services: ## install the Debian packages that the tests run against
	command -v redis-server >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; } \
	  || { echo "the tests need redis-server: install it, or run make as root" >&2; exit 1; }
	test -d /usr/lib/postgresql || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; } \
	  || { echo "the tests need postgresql: install it, or run make as root" >&2; exit 1; }
	command -v mariadb-install-db >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends mariadb-server; } \
	  || { echo "the tests need mariadb-server: install it, or run make as root" >&2; exit 1; }
	command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
	  || { echo "the tests need chromium: install it, or run make as root" >&2; exit 1; }
	{ command -v zsh && command -v fish; } >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends zsh fish; } \
	  || { echo "the tests need zsh and fish: install them, or run make as root" >&2; exit 1; }
	command -v npm >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends nodejs npm; } \
	  || { echo "the tests need node and npm: install them, or run make as root" >&2; exit 1; }

# An independent validator of state machines.
$(NODE): tests/node/package.json tests/node/package-lock.json $(STAMP) | services
	mkdir -p $(VENV)/node
	cp tests/node/package.json tests/node/package-lock.json $(VENV)/node/
	npm ci --prefix $(VENV)/node --silent --no-audit --no-fund --ignore-scripts
	touch $@

$(DBT)/.installed: tests/acceptance/dbt-requirements.txt | $(BIN)/uv
	test -x $(DBT)/bin/python || $(PYTHON) -m venv --without-pip $(DBT)
	$(call install,$(DBT)/bin/python,-r $<)
	touch $@

.venv-airflow%/.installed: tests/soak/airflow%-requirements.txt $(STAMP)
	test -x $(@D)/bin/pip || $(PYTHON) -m venv $(@D) || $(PYTHON) -m pip -q install --target $(@D).boot virtualenv \
	  && { test -x $(@D)/bin/pip || PYTHONPATH=$(@D).boot $(PYTHON) -m virtualenv -q $(@D); }
	$(@D)/bin/pip --disable-pip-version-check -q install --no-compile -r $<
	touch $@

airflow: $(AIRFLOW:%=%/.installed)  ## Airflow 3 and 2 with headgate-airflow, which the soak runs
	$(PIP) wheel -q --no-build-isolation --no-deps -w $(VENV)/wheels ./integrations/airflow
	for venv in $(AIRFLOW); do \
	  $$venv/bin/pip --disable-pip-version-check -q install --no-deps --force-reinstall $(VENV)/wheels/headgate_airflow-*.whl || exit 1; done

$(LOCALSTACK)/.installed: tests/soak/localstack-requirements.txt $(STAMP)
	test -x $(LOCALSTACK)/bin/python || $(PYTHON_3_13) -m venv --without-pip $(LOCALSTACK)
	$(call install,$(LOCALSTACK)/bin/python,-r $<)
	touch $@

localstack: $(LOCALSTACK)/.installed $(NODE)  ## LocalStack's Step Functions, which the soak runs

# In parallel: fetching packages and checking types use one core each.
test:  ## style, types, layers, and every test
	$(MAKE) --no-print-directory -j 3 lint check

quick: $(STAMP)  ## lint and pure unit tests: the inner loop
	$(MAKE) --no-print-directory -j 2 lint unit

unit: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not integration" tests/unit tests/tidy

hooks: $(STAMP)  ## check every commit with ruff, mypy and import-linter
	$(PIP) install pre-commit
	$(BIN)/pre-commit install

# Compile the tests once, while node's packages are fetched, instead of in each test process.
compiled: $(STAMP)
	$(BIN)/pytest -q --collect-only tests >$(VENV)/collected 2>&1 || { tail -n 50 $(VENV)/collected; exit 1; }

check: $(STAMP) $(NODE) $(DBT)/.installed services compiled
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests

docs: reference  ## the reference from the code, and all documents as a site in .site/pages
	$(BIN)/python -m docs.site

reference: $(STAMP)  ## generate docs/reference from the code
	$(BIN)/python -m docs.generator
	$(BIN)/python docs/pipeline_cases.py
	$(BIN)/python -m tests.asl_peers
	$(BIN)/python -m tests.sync_client
	$(BIN)/python deploy/dashboards.py

screenshots: $(STAMP)  ## take the screenshots of docs/images from the shop of the browser tests
	$(BIN)/python -m tests.acceptance.browser.screenshots

proto: $(STAMP)  ## compile statestore.proto
	$(BIN)/python -m grpc_tools.protoc -I observability/statestore/v1=src/headgate/serve/rpc/statestore --include_imports \
	  --descriptor_set_out=src/headgate/serve/rpc/statestore/statestore.binpb --pyi_out=$(VENV) observability/statestore/v1/statestore.proto
	mv $(VENV)/observability/statestore/v1/statestore_pb2.pyi src/headgate/serve/rpc/statestore/proto.pyi

bench: $(STAMP)  ## speed, each figure as a ratio to a yardstick of the same run
	$(BIN)/python -m bench

peers: $(STAMP)  ## durable execution beside DBOS, Restate and Temporal, which it installs into .venv-peers
	$(BIN)/python -m bench.peers

soak: $(STAMP) airflow localstack  ## kill -9 a thousand times, an hour of simulated seeds, attacks, memory; writes docs/reliability.md
	HEADGATE_TEST_SOAK_SECONDS=$${SOAK_SECONDS:-600} $(BIN)/pytest tests/acceptance/test_store_crash.py tests/acceptance/test_durable_processes.py \
	  tests/acceptance/test_fanout_processes.py
	HEADGATE_TEST_SEEDS=1 $(BIN)/pytest -s tests/simulation/test_retention.py
	HEADGATE_TEST_PAGES=1 $(BIN)/pytest tests/acceptance/test_glue_page.py tests/acceptance/browser/test_pages.py
	HEADGATE_TEST_FORTNIGHT=1 $(BIN)/pytest tests/scenarios/test_medallion.py
	HEADGATE_TEST_KILL_ORDERS=1 $(BIN)/pytest tests/acceptance/test_command_jobs.py
	HEADGATE_TEST_DEMO_KILLS=10 $(BIN)/pytest tests/acceptance/test_demo.py
	HEADGATE_TEST_ACCEPTANCE_STORE=dynamodb $(BIN)/pytest $(STORIES:%=tests/acceptance/test_%.py)
	$(BIN)/python -m tests.soak

pythons: $(STAMP)  ## install the wheel on each Python from 3.11 to 3.13 that is found, and run the unit tests there
	$(BIN)/python -m tests.soak installs

audit:  ## scan the locked dependencies for known vulnerabilities, where a database is reachable
	test -x $(VENV)-audit/bin/pip-audit || { $(PYTHON) -m venv $(VENV)-audit && $(VENV)-audit/bin/pip -q install pip-audit; }
	$(VENV)-audit/bin/python deploy/vulnerabilities.py requirements.lock

lock: $(STAMP)  ## resolve the dependencies again
	$(PIP) install pip-tools
	$(BIN)/pip-compile -q --all-extras --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-header --upgrade -o requirements.lock pyproject.toml
	$(BIN)/python deploy/container/lock.py

clean:
	rm -rf $(VENV) $(VENV).boot $(VENV)-audit $(VENV)-peers $(RUN) $(RUN).boot $(DBT) $(AIRFLOW) $(AIRFLOW:%=%.boot) $(LOCALSTACK) .headgate .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
