# Two commands do everything on a fresh machine with Python >= 3.10, a C/C++ compiler and make: `make run`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find compat -type f -not -name '*.pyc') $(wildcard core/*.[ch] core/binding/* include/shoal/*.h include/shoal/ext/*.h envs/*.h envs/*/*.[ch])
C_FILES := $(wildcard core/*.[ch] core/binding/* include/shoal/*.h include/shoal/ext/*.h compat/puffer/include/puffer/*.[ch] compat/puffer/include/puffer/*/*.h tests/puffer/ocean/*/*.[ch] src/shoal/cuda/kernel/*.[ch] src/shoal/cuda/kernel/include/*.h envs/*.h envs/*/*.[ch] tests/core/*.[ch] tests/core/plugins/*.c tests/abi/*.[ch]* tests/native/plugins/*.c tests/cuda/*.c tests/check/plugins/*.c src/shoal/native/template.c lab/src/shoal_lab/bench/c/*.c examples/*.c tests/faults/*.c tests/fuzz/*.c)
BUILD_NEEDS := "scikit-build-core>=0.11" "nanobind>=3,<4" "cmake>=3.18" ninja
PIP := $(BIN)/pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --no-build-isolation --config-settings=cmake.define.SHOAL_WERROR=ON --editable

# Programs and tests start Python thousands of times: each start would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

# What a target needs and cannot install is an error; with IF_POSSIBLE=1, as in CI, it is one line, and make goes on.
IF_POSSIBLE ?=
# Not $(MAKE) itself in a recipe: `make -n` would run the whole line.
MAKE_HERE = $(MAKE) --no-print-directory
cannot = { echo "not run: $(1)"; $(if $(IF_POSSIBLE),true,exit 2); }

# Tests run in this many processes beside each other. Some tests wait, so more processes than cores are faster on
# two cores. JOBS=0 runs all tests in one process, as a debugger needs it.
JOBS ?= 3
# A test that fails runs this many times more. CI allows one; the summary lists every test that needed it (RERUN).
RERUNS ?= 0
AGAIN := $(if $(filter-out 0,$(RERUNS)),--reruns $(RERUNS) --reruns-delay 3 -rR)
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(AGAIN)

.PHONY: all run test quick slow-list check fix asan asan-python fuzz stress tsan bench learn test-gymnasium test-gpu test-viewer screenshots test-adapters test-arm64 torch cuda clean chaos soak docs env-pages test-cluster test-compiler test-puffer wheels wheels-containers release hooks

all: check test

run: $(VENV)/.installed
	@$(BIN)/shoal demo $(ARGS)

test: $(VENV)/.ready
	@$(PYTEST) $(ARGS)

# The tests that take less than a second each, all in a minute; tests/quick.py says how they are chosen.
quick: $(VENV)/.ready
	@$(PYTEST) --quick $(ARGS)

# Runs all tests one after the other and writes down which of them are slow, for make quick.
slow-list: $(VENV)/.ready
	@$(BIN)/python -m pytest --record-slow $(ARGS)

# On a machine with a GPU, in a virtual environment with torch: kernels from the cache, or compiled with ziglang.
test-gpu: $(VENV)/.ready
	@SHOAL_TEST_DEVICE=cuda $(PYTEST) tests/cuda $(ARGS)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf build/types && mkdir -p build/types/shoal
	@ln -s $(filter-out %/compat,$(wildcard $(CURDIR)/src/shoal/*)) $(CURDIR)/compat build/types/shoal
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

fix: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

# Git then runs make check before a commit, checks its subject, and runs make quick before a push.
hooks: $(VENV)/.ready
	@$(PIP) install "pre-commit>=4"
	@$(BIN)/pre-commit install

asan:
	SANITIZE=address,undefined tests/core/run.sh

# The Python tests that feed bad input to C, against a module built with AddressSanitizer.
asan-python: $(VENV)/.ready
	@$(PIP) install --no-build-isolation --no-deps --upgrade --target build/asan-python \
	    --config-settings=build-dir=build/asan-build --config-settings=cmake.build-type=RelWithDebInfo \
	    --config-settings=cmake.define.CMAKE_C_FLAGS=-fsanitize=address \
	    --config-settings=cmake.define.CMAKE_CXX_FLAGS=-fsanitize=address .
	LD_PRELOAD="$$($(or $(CC),cc) -print-file-name=libasan.so) $$($(or $(CXX),c++) -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=build/asan-python $(BIN)/python tests/run_installed.py -q \
	    -p no:cacheprovider tests/vector tests/spaces tests/state tests/native/test_plugin_fields.py $(ARGS)

# What `make test` does for seconds, for long: every call of every constructor fails once; mutated files, headers,
# tables, requests and arguments, with AddressSanitizer. make fuzz CASES=1000 SEED=7 chooses.
CASES ?= 70000
SEED ?= 1
fuzz: $(VENV)/.ready
	mkdir -p -m 700 build/sessions
	SHOAL_SESSION_DIR=$(CURDIR)/build/sessions $(BIN)/python -m tests.built $$($(BIN)/python -m tests.built --build faults) \
	    tests.faults.driver
	$(BIN)/python -m tests.replay.losses --losses 2000 --seed $(SEED)
	tests/fuzz/asan.sh $(BIN)/python -m tests.fuzz.run --cases $(CASES) --seed $(SEED) $(ARGS)
	SANITIZE=address,undefined TESTS=tests/core/test_fuzz.c FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) tests/core/run.sh

tsan:
	SANITIZE=thread tests/core/run.sh

# Threads that step, receive, reset, close and are interrupted at random, on every backend, with AddressSanitizer;
# then the guard and the flow in C with ThreadSanitizer. make stress SECONDS=600 SEED=7 chooses.
SECONDS ?= 60
stress: $(VENV)/.ready
	tests/fuzz/asan.sh $(BIN)/python -m tests.vector.stress --seconds $(SECONDS) --seed $(SEED)
	SANITIZE=thread TESTS=tests/core/test_guard.c GUARD_SECONDS=$(SECONDS) tests/core/run.sh

bench: $(VENV)/.lab
	@$(BIN)/python lab/benchmarks/spaces.py
	@$(BIN)/python lab/benchmarks/native.py $(ARGS)
	@$(BIN)/shoal bench sweep --only threads

# Every fault, in full: 10,000 workers, 100,000 ring writers and 1,000 trainers killed; hours on two cores. What was
# run is kept in build/chaos and not run again, so it can be stopped and taken up: make chaos ARGS="--minutes 30"
chaos: $(VENV)/.lab
	@mkdir -p build/chaos
	@nice -n 10 $(BIN)/shoal chaos --kills 10000 --seed 1 --record build/chaos/seed-1.jsonl $(ARGS)

# An hour of make, step, kill, attach and close: make soak ARGS="--chart soak.svg"
soak: $(VENV)/.lab
	@nice -n 10 $(BIN)/shoal chaos --soak 60 $(ARGS)

# The documentation as a site of plain files, build/docs/index.html. A broken link fails it.
docs: $(VENV)/.installed
	@$(PIP) install "markdown-it-py>=3" "pygments>=2.13"
	@$(BIN)/python docs/site/build.py build/docs

# The pages and pictures of the bundled environments, docs/envs; a test fails when they are out of date.
env-pages: $(VENV)/.installed
	@$(BIN)/python docs/site/environments.py

# Does it still learn? PPO and DQN on CartPole for some seeds; each must reach a return within a number of steps.
learn: $(VENV)/.lab
	@$(BIN)/python lab/benchmarks/learn.py $(ARGS)

# Gymnasium's own tests, from a checkout of it, against Shoal's functions and ProcessVectorEnv under every start
# method: make test-gymnasium GYMNASIUM=../Gymnasium
# Left out: one test that expects the lines "Shutting it down", since Shoal shuts nothing down where an environment raises.
test-gymnasium: $(VENV)/.ready
	@test -f "$(GYMNASIUM)/tests/vector/utils/test_shared_memory.py" || \
	    { echo "give a checkout of Gymnasium: make test-gymnasium GYMNASIUM=../Gymnasium"; exit 2; }
	cd "$(GYMNASIUM)" && PYTHONPATH="$(CURDIR)/tests/gymnasium_suite" "$(CURDIR)/$(BIN)/python" -m pytest -q \
	    -p swapped -p no:cacheprovider tests/vector/utils/test_shared_memory.py $(ARGS)
	$(PIP) install pygame
	cd "$(GYMNASIUM)" && for context in "" fork forkserver spawn; do \
	    SHOAL_CONTEXT=$$context PYTHONPATH="$(CURDIR)/tests/gymnasium_suite" SDL_VIDEODRIVER=dummy \
	    "$(CURDIR)/$(BIN)/python" -m pytest -q -p swapped_vector -p no:cacheprovider tests/vector \
	    tests/envs/registration/test_make_vec.py --deselect \
	    tests/vector/test_sync_vector_env.py::test_sync_vector_env_seed --deselect \
	    tests/vector/test_async_vector_env.py::test_async_vector_subenv_error $(ARGS) || exit 1; done

# Every environment of a checkout of PufferLib, or below any other folder, for 100,000 steps each; prints a table.
# make test-puffer SRC=../PufferLib/ocean ARGS=--asan
test-puffer: $(VENV)/.ready
	@test -d "$(SRC)" || { echo "give the folder of PufferLib's environments: make test-puffer SRC=../PufferLib/ocean"; exit 2; }
	@$(BIN)/python tests/puffer/suite.py "$(SRC)" $(ARGS)

# The viewer's tests with those in a browser: Debian's chromium, which is installed where it is missing, driven by
# playwright. Gymnasium draws its environments with pygame.
test-viewer: $(VENV)/.ready
	@if tests/viewer/chromium.sh && $(PIP) install playwright pygame tensorboard prometheus_client; then \
	    $(BIN)/python -m pytest $(AGAIN) tests/viewer tests/docs/test_site_browser.py $(ARGS); \
	else $(call cannot,make test-viewer needs chromium, playwright, pygame, tensorboard and prometheus_client); fi

# The screenshots of the viewer in docs/pictures, of real runs.
screenshots: $(VENV)/.ready
	@tests/viewer/chromium.sh && $(PIP) install playwright && $(BIN)/python -m tests.viewer.screenshots docs/pictures $(ARGS)

# Each adapter against the library it is for, in a virtual environment of its own: make test-adapters ADAPTERS=sb3
ADAPTERS ?= envpool sb3 tianshou pettingzoo torchrl rllib jax
LIBRARY_envpool := envpool==1.2.*
LIBRARY_sb3 := stable-baselines3==2.9.*
LIBRARY_tianshou := tianshou==2.0.*
LIBRARY_pettingzoo := pettingzoo[butterfly]==1.27.*
LIBRARY_torchrl := torchrl==0.14.*
LIBRARY_rllib := ray[rllib]==2.60.*
LIBRARY_jax := jax>=0.9

test-adapters: $(ADAPTERS:%=test-adapter-%)

test-adapter-%: $(VENV)/.wheel
	@if $(MAKE_HERE) .venv-adapters/$*/.made; then \
	    .venv-adapters/$*/bin/pip --quiet --disable-pip-version-check install --force-reinstall --no-deps build/wheel/*.whl && \
	    .venv-adapters/$*/bin/python -m pytest $(AGAIN) -p no:cacheprovider tests/adapters/test_$*.py \
	        $(wildcard tests/adapters/test_$*_*.py) \
	        tests/docs/test_pages.py::test_a_block_that_needs_another_library_runs_where_that_is $(ARGS); \
	else $(call cannot,make test-adapter-$* needs $(LIBRARY_$*) which pip cannot install for $$($(PYTHON) --version)); fi

# The fleet against real Ray, on nodes of a cluster that is simulated on this machine.
LIBRARY_cluster := ray[default]==2.60.*

test-cluster: $(VENV)/.wheel
	@if $(MAKE_HERE) .venv-adapters/cluster/.made; then \
	    .venv-adapters/cluster/bin/pip --quiet --disable-pip-version-check install --force-reinstall --no-deps build/wheel/*.whl && \
	    .venv-adapters/cluster/bin/python -m pytest $(AGAIN) -p no:cacheprovider tests/cluster $(ARGS); \
	else $(call cannot,make test-cluster needs $(LIBRARY_cluster) which pip cannot install for $$($(PYTHON) --version)); fi

.PRECIOUS: .venv-adapters/%/.made
.venv-adapters/%/.made:
	@echo "creating $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(if $(filter sb3 tianshou torchrl rllib,$*),$(@D)/bin/pip --quiet --disable-pip-version-check install torch==2.13.0)
	@$(@D)/bin/pip --quiet --disable-pip-version-check install "$(LIBRARY_$*)" "gymnasium>=1.1,<2" pytest \
	    pytest-timeout pytest-rerunfailures hypothesis
	@touch $@

$(VENV)/.wheel: $(VENV)/.build-needs $(NATIVE) lab/pyproject.toml $(shell find src lab/src -name '*.py')
	@rm -rf build/wheel
	@$(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/wheel . ./lab
	@touch $@

# Libraries that some tests of make test use where they are: torch (CPU), and what Gymnasium's wrappers need.
torch: $(VENV)/.ready
	@$(PIP) install torch==2.13.0 array-api-compat moviepy || \
	    $(call cannot,make torch needs torch 2.13.0 which pip cannot install for $$($(PYTHON) --version))

# The GPU compiler, which tests/cuda uses where it is: clang (ziglang), libdevice, and ptxas to assemble PTX.
cuda: $(VENV)/.ready
	@$(PIP) install "ziglang>=0.17" nvidia-nvvm nvidia-cuda-nvcc || \
	    $(call cannot,make cuda needs ziglang and nvidia-nvvm and nvidia-cuda-nvcc which pip cannot install for this machine)

# C environments compiled by the Python package ziglang, as on a machine without a compiler.
test-compiler: $(VENV)/.ready
	@if $(PIP) install "ziglang>=0.17"; then \
	    $(BIN)/python -m pytest $(AGAIN) tests/native/test_zig.py $(ARGS); \
	else $(call cannot,make test-compiler needs ziglang which pip cannot install for this machine); fi

# Wheels for Linux, into dist: x86-64 and arm64, for the Pythons that are here, compiled by zig for an older GNU libc.
# make wheels ARGS="--python 3.12 --machine x86_64" chooses.
wheels: $(VENV)/.created
	@$(BIN)/python packaging/wheels.py $(ARGS)

# The core and the wheel for arm64 on an x86-64 machine, under Debian's qemu-user, which is fetched into build/arm64.
# make test-arm64 ARGS="--wheel FILE" tests a wheel of CPython 3.11 that is built already.
test-arm64: $(VENV)/.installed
	@if $(BIN)/python packaging/arm64.py --prepare; then $(BIN)/python packaging/arm64.py $(ARGS); \
	else $(call cannot,make test-arm64 needs apt-get to fetch qemu and an arm64 Python 3.11); fi

# The source archive, built offline from itself, and the wheels, into dist; nothing is uploaded. docs/release.md
# has the whole list. make release ARGS=--draft goes on although the checkout is not ready.
release: $(VENV)/.installed
	@$(BIN)/python packaging/release.py $(ARGS)

# The same wheels by cibuildwheel, for every Python that pyproject.toml names; Linux builds them in containers.
wheels-containers: $(VENV)/.created
	@$(PIP) install "cibuildwheel>=3"
	@$(BIN)/python -m cibuildwheel --output-dir dist $(ARGS)

clean:
	rm -rf $(VENV) .venv-adapters build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "Shoal needs Python 3.10 or newer; set PYTHON=/path/to/python3"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Shoal needs Python 3.10 or newer, found $$($(PYTHON) --version); set PYTHON=/path/to/python3"; exit 2; }
	@command -v $(or $(CC),cc) >/dev/null || { echo "Shoal needs a C compiler (Debian: apt install build-essential)"; exit 2; }
	@command -v $(or $(CXX),c++) >/dev/null || { echo "Shoal needs a C++ compiler (Debian: apt install build-essential)"; exit 2; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "python cannot make a virtual environment (Debian: apt install python3-venv)"; exit 2; }
	@touch $@

$(VENV)/.build-needs: $(VENV)/.created
	@echo "installing build tools"
	@$(PIP) install $(BUILD_NEEDS)
	@touch $@

$(VENV)/.installed: $(VENV)/.build-needs $(NATIVE)
	@echo "building shoal"
	@$(INSTALL) '.[cli]'
	@touch $@

# The commands `shoal bench` and `shoal chaos`.
$(VENV)/.lab: $(VENV)/.installed lab/pyproject.toml
	@$(INSTALL) ./lab
	@touch $@

# The same with the tools of developers. It does for .installed and .lab too, so one build serves all.
$(VENV)/.ready: $(VENV)/.build-needs $(NATIVE) lab/pyproject.toml
	@echo "building shoal, installing test tools"
	@$(INSTALL) '.[cli,dev]'
	@$(INSTALL) ./lab
	@touch $(VENV)/.installed $(VENV)/.lab $@
