# make app    sets up .venv and starts the app          make app TORCH_INDEX=https://download.pytorch.org/whl/cpu
# make test   sets up .venv with the test tools, then lint, types and every test
# make setup  only sets up .venv; does nothing when nothing changed
# PYTHON=python3.12 chooses the interpreter; ARGS="..." goes to streamlit or to pytest; WORKERS=4 runs four tests at once.

export PYTHON TORCH_INDEX
ARGS ?=
WORKERS ?= 2

.PHONY: help setup setup-test app test
help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -4

setup:
	@scripts/setup.sh app

setup-test:
	@scripts/setup.sh test

app: setup
	.venv/bin/streamlit run app/main.py $(ARGS)

test: setup-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	FOCUS_LAB_CHROMIUM="$$(scripts/chromium.sh)" && export FOCUS_LAB_CHROMIUM && OMP_NUM_THREADS=1 \
		.venv/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)
