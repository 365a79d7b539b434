# `make demo` and `make test` start from nothing but Python, a C++ compiler, cmake and make.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
CACHE  ?= .cache
# More workers than cores only wait for each other: every test session computes on all of them.
WORKERS ?= 2

.PHONY: demo test quick lint format ort-range serve-check clean

$(VENV)/.installed: pyproject.toml plugins/CMakeLists.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# The native library again, after a change under plugins/.
.PHONY: native
native: $(VENV)/.installed
	cmake --build build/editable

demo: $(VENV)/.installed
	$(BIN)/python samples/01_export_smollm2/demo.py --cache $(CACHE)

test: native
	$(BIN)/python -m pytest -n $(WORKERS)

quick: native
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow'

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	git ls-files 'plugins/*.cpp' 'plugins/*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files 'plugins/*.cpp' 'plugins/*.h' | xargs $(BIN)/clang-format -i

# What goes through ONNX Runtime, on the oldest that is supported; `make test` runs the newest.
ort-range: native
	$(PYTHON) -m venv build/ort-lowest
	build/ort-lowest/bin/python -m pip install --quiet onnxruntime==1.20.1 numpy onnx onnx-ir \
	  tokenizers safetensors jinja2 rich pytest pytest-xdist hypothesis
	PYTHONPATH=build/editable/import build/ort-lowest/bin/python -m pytest -q -n $(WORKERS) \
	  tests/plugins/test_ort_*.py tests/runtime/test_session.py tests/runtime/test_device_copies.py -m 'not slow'

# The serving sample on Ray Serve, asked by the OpenAI client: too large an installation for the suite,
# which tests the sample's engine and its HTTP side without Ray.
serve-check: native
	$(PYTHON) -m venv build/serve
	build/serve/bin/python -m pip install --quiet -r samples/03_serve_ray/requirements.txt \
	  onnxruntime numpy onnx onnx-ir tokenizers jinja2 rich pytest hypothesis
	PYTHONPATH=$(CURDIR)/build/editable/import build/serve/bin/python -m pytest -q \
	  -p no:cacheprovider tests/samples/test_serve_*.py

clean:
	rm -rf build $(VENV) out
