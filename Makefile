# SPDX-License-Identifier: Apache-2.0
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:

# Debian's interpreter: PyGObject and pydbus are Debian's, built for this one.
SYSTEM_PYTHON := /usr/bin/python3
VENV := .venv
PY := $(VENV)/bin/python

VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' daemon/swift_governor/version.py)
DEB := dist/swift-governor_$(VERSION)-1_all.deb
RPM := dist/swift-governor-$(VERSION)-1.noarch.rpm
STAGE := build/stage
FAKE_NVML := tests/fake_nvml/build/libnvidia-ml.so.1
# One time stamp for all files of a package: the last commit's.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1767225600)

# What setup installs where it is missing: the daemon's own needs, the tools of check, the tests' VM.
APT_PACKAGES := python3-venv python3-gi python3-pydbus python3-psutil python3-prometheus-client \
  python3-yaml systemd shellcheck lintian prometheus gcc libc6-dev git rpm \
  e2fsprogs fakeroot mmdebstrap openssh-client qemu-system-x86 util-linux

PACKAGED := $(shell find daemon -type f -not -name '*.pyc' -not -path '*/*.egg-info/*' 2>/dev/null) \
  $(wildcard systemd/* etc/swift-governor/* etc/swift-governor/*/* packaging/* packaging/*/*) README.md CHANGELOG.md

say = @printf '\n== %s\n'

.PHONY: help setup demo test unit node test-trainer check format lint types shell units package-check \
  deb rpm bench clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(VENV)/ready ## Install missing Debian packages, and .venv with a working swift-governor
	@# A tree that was moved, or whose .venv another one took, has a command that is not its own.
	@cd / && { $(CURDIR)/$(VENV)/bin/swift-governor --help >/dev/null 2>&1 && $(CURDIR)/$(PY) -c \
	  'import swift_governor as s; raise SystemExit(not s.__file__.startswith("$(CURDIR)/"))'; } || \
	  { rm $(CURDIR)/$(VENV)/ready; $(MAKE) -C $(CURDIR) $(VENV)/ready; }
	@$(VENV)/bin/swift-governor --help >/dev/null
	@echo 'setup: $(VENV)/bin/swift-governor works'

.PHONY: packages
packages:
	@there=$$(dpkg-query -W -f '$${binary:Package} $${db:Status-Status}\n' $(APT_PACKAGES) 2>/dev/null | \
	  sed -n 's/\(:[a-z0-9]*\)\? installed$$//p' || true); \
	lacking=(); for p in $(APT_PACKAGES); do grep -qx "$$p" <<<"$$there" || lacking+=("$$p"); done; \
	[ $${#lacking[@]} -gt 0 ] || exit 0; \
	printf '\n== setup: Debian packages: %s\n' "$${lacking[*]}"; \
	apt=(apt-get -o DPkg::Lock::Timeout=300 -q); \
	if [ "$$(id -u)" -ne 0 ]; then \
	  command -v sudo >/dev/null || \
	    { echo "run as root: apt-get install --no-install-recommends $${lacking[*]}" >&2; exit 1; }; \
	  apt=(sudo "$${apt[@]}"); fi; \
	"$${apt[@]}" update; \
	DEBIAN_FRONTEND=noninteractive "$${apt[@]}" -y install --no-install-recommends "$${lacking[@]}"

$(VENV)/ready: requirements-dev.txt pyproject.toml | packages
	$(say) 'setup: $(VENV) over $(SYSTEM_PYTHON)'
	[ -x $(PY) ] || $(SYSTEM_PYTHON) -m venv --system-site-packages $(VENV)
	$(PY) -m pip --disable-pip-version-check --quiet install --requirement requirements-dev.txt
	$(PY) -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup $(DEB) $(FAKE_NVML) ## The whole chain once in a throw-away VM, narrated
	$(say) 'demo: the ms-swift that is trained with'
	tests/trainer/environment.sh
	$(say) 'demo'
	$(PY) -m tests.demo

# One pytest session, cheapest first: one closing line with all counts. tests/conftest.py adds the
# table by area above it.
test: setup check $(FAKE_NVML) ## Everything: check, unit, fake NVML, metrics, trainer, node in a VM
	$(say) 'test: the ms-swift that is trained with'
	tests/trainer/environment.sh
	$(say) 'test: unit, fake NVML and metrics, then a real trainer, then the node in a VM'
	@mkdir -p build; rm -f build/.coverage*
	@status=0; $(PY) -m coverage run -m pytest -m 'not slow' tests/unit tests/fake_nvml tests/trainer \
	  tests/node || status=$$?; \
	$(MAKE) coverage || status=1; exit $$status

.PHONY: coverage
coverage:
	@$(PY) -m coverage combine -q build 2>/dev/null || true
	@$(PY) -m coverage report --format=total >/dev/null
	@echo "coverage of daemon/, VM runs included where they left data: $$($(PY) -m coverage report --format=total) % of lines"

unit: $(VENV)/ready $(FAKE_NVML) ## The tests that need neither VM nor trainer
	$(PY) -m pytest -q tests/unit tests/fake_nvml

test-trainer: $(VENV)/ready ## All tests with a real ms-swift, the slow ones too
	tests/trainer/environment.sh
	$(PY) -m pytest tests/trainer

node: $(VENV)/ready $(DEB) $(FAKE_NVML) ## The tests with real systemd in a VM
	tests/trainer/environment.sh
	$(PY) -m pytest tests/node

check: $(VENV)/ready format lint types shell units package-check ## Format, lint, types, shell, units, package
	@echo 'check: all good'

format:
	$(say) 'check: ruff format'
	$(VENV)/bin/ruff format --check

lint:
	$(say) 'check: ruff'
	$(VENV)/bin/ruff check

types:
	$(say) 'check: mypy --strict'
	$(VENV)/bin/mypy

shell:
	$(say) 'check: shellcheck'
	git ls-files --cached --others --exclude-standard -z '*.sh' .ci/run | xargs -0 -r shellcheck

units: $(STAGE)/.done
	$(say) 'check: systemd-analyze verify'
	packaging/verify-units.sh $(STAGE)

package-check: $(DEB)
	$(say) 'check: lintian'
	lintian --no-tag-display-limit --fail-on error $(DEB)

deb: $(DEB) ## Build the Debian package into dist/

rpm: $(RPM) ## Build the rpm into dist/

$(STAGE)/.done: $(PACKAGED) | $(VENV)/ready
	$(say) 'package: what it installs, into $(STAGE)'
	packaging/stage.sh $(STAGE) "$$($(PY) -c 'import pynvml; print(pynvml.__file__)')" $(VERSION)
	@touch $@

$(DEB) $(RPM): $(STAGE)/.done packaging/nfpm.yaml $(wildcard packaging/scripts/*)
	$(say) 'package: $@'
	@mkdir -p $(@D)
	@rm -rf build/package && cp -a $(STAGE) build/package && rm build/package/.done
	VERSION=$(VERSION) $(VENV)/bin/nfpm package --config packaging/nfpm.yaml \
	  --packager $(if $(filter %.deb,$@),deb,rpm) --target $@

$(FAKE_NVML): $(wildcard tests/fake_nvml/*.[ch]) tests/fake_nvml/Makefile
	$(say) 'fake NVML: a C library in place of the driver'
	$(MAKE) -C tests/fake_nvml

bench: setup $(DEB) $(FAKE_NVML) ## Measure in the VM: exec to contained, memory, idle CPU
	tests/trainer/environment.sh
	$(PY) -m tests.bench

clean: ## Remove what was built; .cache/ (VM roots, ms-swift) and .venv stay
	rm -rf build dist tests/fake_nvml/build .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find daemon tests -name __pycache__ -prune -exec rm -rf {} +
