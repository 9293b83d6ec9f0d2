# Each target makes .venv first if it is missing or older than its pins.

# The newest Python that the course can use. Each is tried: a command may be there and
# not run (pyenv's), or lack venv (Debian's). If none will do, $(STAMP) says why.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
HAS_VENV := import ensurepip, venv
those_that = $(foreach name,python3.14 python3.13 python3.12 python3.11 python3,\
    $(shell $(name) -c '$(1)' >/dev/null 2>&1 && echo $(name)))
RIGHT = $(call those_that,$(FITS))
PYTHON ?= $(firstword $(filter $(call those_that,$(HAS_VENV)),$(RIGHT)) $(RIGHT) python3)
PY := .venv/bin/python
STAMP := .venv/.installed
LESSONS := $(PY) notebooks/tools/lessons.py
RELEASE := $(PY) notebooks/tools/release.py
LESSON_FLAG := $(if $(LESSON),--lesson $(LESSON))
# Three workers, also on two cores: a test of a hang or a deadline mostly waits.
PYTEST := $(PY) -m pytest -n 3 --dist loadfile

# Minibatches are small here: one thread is as fast as two, and on a busy machine two
# wait for each other (lesson 05: 91 seconds, with one thread 39). The figures of
# `make bench` are with all of them.
course lab test check refresh settings: export OMP_NUM_THREADS ?= 1
# Empty is off. Many containers set it, and then each rank compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help course lab test check refresh release settings lint count bench

help:
	@echo 'make course   run every lesson, build the book: build/course/index.html  (LESSON=03: one)'
	@echo 'make lab      open your own copies of the lessons in JupyterLab: build/lab'
	@echo 'make test     lint, all tests, every lesson and problem set against its stored outputs'
	@echo 'make check    lessons and problem sets against their stored outputs  (LESSON=03 or ps1: one)'
	@echo 'make refresh  run every notebook and store its outputs  (LESSON=03 or ps1: one; REDRAW=1: all charts)'
	@echo 'make release  the problem sets, and a zip for learners: without solutions, hidden checks'
	@echo 'make settings every lesson at the extremes of its settings  (LESSON=03: one)'
	@echo 'make lint     ruff: form and faults, notebooks too; who imports whom'
	@echo 'make count    how large each folder is, in lines and tokens, beside its aim'
	@echo 'make bench    the figures of the course, as ratios'

course: $(STAMP)
	@$(LESSONS) $(LESSON_FLAG)

lab: $(STAMP)
	@$(PY) notebooks/tools/lab.py

test: lint
	$(PYTEST) tests
	$(LESSONS) check

check: $(STAMP)
	@$(LESSONS) check $(LESSON_FLAG)

refresh: $(STAMP)
	@$(LESSONS) refresh $(LESSON_FLAG) $(if $(REDRAW),--redraw)

release: $(STAMP)
	@$(RELEASE) --zip build/manual_dp_course.zip

settings: $(STAMP)
	@$(LESSONS) settings $(LESSON_FLAG)

# All three run, so that one fault does not hide another's.
lint: $(STAMP)
	@fault=0; \
	$(PY) -m ruff format --check . || { fault=1; echo 'To lay it out: .venv/bin/ruff format .'; }; \
	$(PY) -m ruff check --output-format=concise . || { fault=1; \
	    echo 'Of these, ruff itself mends what has [*]: .venv/bin/ruff check --fix .'; }; \
	$(PY) .venv/bin/lint-imports --no-cache --no-logo || { fault=1; \
	    echo 'The layers stand in pyproject.toml: move the function down, or pass it as an argument.'; }; \
	exit $$fault

count: $(STAMP)
	@$(PY) notebooks/tools/count.py

bench: $(STAMP)
	@$(PY) -m course bench

# The stamp holds the folder's name: in a copied or moved tree the old .venv would
# run the old folder's module.
ifneq "$(shell cat $(STAMP) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(STAMP)
endif

# An install that was cut short left no stamp: it starts again from nothing. The pip that
# comes with Python 3.11 takes three times as long to choose versions as pip 25. What each
# rank imports is compiled here, and the rest where it is first used: a Python that may
# write no bytecode, as in many containers, else takes 4 s to import torch.
$(STAMP): pyproject.toml constraints.txt
	@$(eval PYTHON := $(PYTHON))
	@$(PYTHON) -c '' >/dev/null 2>&1 || \
	    { echo 'make: $(PYTHON) not found. Install Python 3.11 to 3.14, or say PYTHON=path/to/it'; exit 1; }
	@$(PYTHON) -c '$(FITS)' || \
	    { echo 'make: $(PYTHON) is not Python 3.11 to 3.14, which the course needs'; exit 1; }
	@$(PYTHON) -c '$(HAS_VENV)' 2>/dev/null || \
	    { echo 'make: $(PYTHON) has no venv. On Debian and Ubuntu: apt install python3-venv'; exit 1; }
	@echo 'Installing into .venv, once. 1 of 3: torch, JupyterLab and the rest: the longest'
	@grep -qsxF '$(CURDIR)' $@ || $(PYTHON) -m venv --clear .venv
	@rm -f $@
	@$(PY) -m pip install --quiet 'pip>=25' || echo 'With this older pip it takes a minute longer.'
	@$(PY) -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[course]'
	@echo 'Installing, 2 of 3: the functions of the book'
	@$(PY) -m pip install --quiet --no-compile --constraint constraints.txt --no-deps d2l
	@echo 'Installing, 3 of 3: compiling what each rank imports'
	@$(PY) -c 'import manual_dp.audit.script, manual_dp.ranks'
	@printf '%s\n' '$(CURDIR)' > $@
