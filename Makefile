# gradlag — one Makefile, non-recursive. `make help` lists the targets and these variables.
#   BUILD=release|debug|asan|tsan|fuzz  one directory per configuration, build/$(BUILD)
#   V=1                                 show the commands
#   SETUP=no                            do not install packages (scripts/setup --list prints them)
#   WERROR=yes                          treat warnings as errors, as .ci/run does
#   CUDA=no  NVCC=  CUDA_ARCHS=         build without CUDA; path of nvcc; GPU architectures
#   NCCL=no                             build without NCCL
#   ONEDNN=DIR                          use DIR/include and DIR/lib instead of the system's oneDNN
VERSION := 0.1.0-dev
BUILD  ?= release
V      ?= 0
CC     ?= cc
PREFIX ?= /usr/local
SETUP  ?= yes
WERROR ?= no
JOBS   ?= $(shell nproc)
DIR    := build/$(BUILD)
Q      := $(if $(filter 1,$(V)),,@)

.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:

WARN   := -Wall -Wextra $(if $(filter yes,$(WERROR)),-Werror) -Wshadow -Wconversion -Wstrict-prototypes -Wvla \
          -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wno-sign-conversion -Wno-format-truncation \
          -Wno-unknown-warning-option # clang does not know all of these
CFLAGS_release := -O3 -g
CFLAGS_debug   := -O0 -g3 -DGRADLAG_DEBUG
CFLAGS_asan    := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined \
                  -fno-omit-frame-pointer -DGRADLAG_DEBUG -DGRADLAG_SANITIZE
CFLAGS_tsan    := -O1 -g -fsanitize=thread -DGRADLAG_DEBUG -DGRADLAG_SANITIZE
CFLAGS_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
                  -fno-omit-frame-pointer -DGRADLAG_DEBUG -DGRADLAG_SANITIZE
LDFLAGS_fuzz   := -fsanitize=address,undefined
LDFLAGS_asan   := -fsanitize=address,undefined
LDFLAGS_tsan   := -fsanitize=thread
CFLAGS_BUILD   := $(CFLAGS_$(BUILD))
ifeq ($(CFLAGS_BUILD),)
$(error BUILD=$(BUILD) is not known: release, debug, asan, tsan or fuzz)
endif

ifdef ONEDNN
ONEDNN_CFLAGS := -I$(ONEDNN)/include
ONEDNN_LIBS   := -L$(ONEDNN)/lib -Wl,-rpath,$(abspath $(ONEDNN))/lib -ldnnl
else
ONEDNN_LIBS   := -ldnnl
endif
MPI_CFLAGS  := $(shell pkg-config --cflags ompi-c 2>/dev/null)
MPI_LIBS    := $(shell pkg-config --libs ompi-c 2>/dev/null)
PACKAGES    := libzmq sqlite3 jansson zlib yaml-0.1 libarchive libjpeg
LIB_CFLAGS  := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
LIB_LIBS    := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)

# If nvcc is found, the CUDA backend is built. CUDA_ARCHS lists the GPU architectures; for the last one the program also holds
# PTX, which later GPUs can run.
CUDA       ?= yes
CUDA_ARCHS ?= 80 90
ifeq ($(CUDA),yes)
NVCC       := $(or $(NVCC),$(firstword $(shell command -v nvcc 2>/dev/null) \
                $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME) $(CUDA_PATH) /usr/local/cuda))))
ifneq ($(NVCC),)
ifeq ($(shell command -v $(NVCC)),)
$(error NVCC=$(NVCC) does not exist; set NVCC=PATH, or CUDA=no to build without CUDA)
endif
CUDA_TOP   := $(abspath $(dir $(realpath $(shell command -v $(NVCC))))..)
CUDART     := $(firstword $(wildcard $(CUDA_TOP)/lib64/libcudart_static.a $(CUDA_TOP)/lib/libcudart_static.a \
                $(CUDA_TOP)/targets/*/lib/libcudart_static.a /usr/lib/*/libcudart_static.a))
CUDA_HEADER := $(firstword $(wildcard $(CUDA_TOP)/include/cublasLt.h /usr/include/cublasLt.h))
ifeq ($(and $(CUDART),$(CUDA_HEADER)),)
$(warning $(NVCC) comes without libcudart_static.a or cublasLt.h: building without CUDA)
else
WITH_CUDA  := yes
CUDA_VERSION := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
endif
endif
endif
# If nccl.h is found, the NCCL communicator is built.
NCCL       ?= yes
ifeq ($(WITH_CUDA)$(NCCL),yesyes)
NCCL_HEADER := $(firstword $(wildcard $(CUDA_TOP)/include/nccl.h /usr/include/nccl.h /usr/local/include/nccl.h))
NCCL_DIR    := $(dir $(firstword $(wildcard $(addsuffix /libnccl.so*,$(CUDA_TOP)/lib64 $(CUDA_TOP)/lib \
                 $(CUDA_TOP)/targets/*/lib))))
endif
CUDA_ONLY  := worker/cuda/cuda_device.c worker/cuda/cuda_errors.c worker/cuda/cuda_cublas.c
ifeq ($(WITH_CUDA),yes)
# As system headers, CUDA's do not raise our warnings. -isystem /usr/include would break the compiler.
CUDA_CFLAGS := -DGRADLAG_CUDA $(if $(NCCL_HEADER),-DGRADLAG_NCCL) $(if $(filter-out /usr,$(CUDA_TOP)),-isystem $(CUDA_TOP)/include)
CUDA_LIBS   := $(CUDART) -ldl -lrt
NVCC_ARCHS  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
               $(foreach a,$(lastword $(CUDA_ARCHS)),-gencode arch=compute_$(a),code=compute_$(a))
NVCC_FLAGS  := -std=c++17 -O3 -lineinfo -I. -DGRADLAG_CUDA $(NVCC_ARCHS) \
               -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-pthread \
               $(if $(filter yes,$(WERROR)),-Xcompiler -Werror -Werror all-warnings)
endif

# No contraction and no fast math: numbers must not depend on the vector width. Without -fno-trapping-math gcc forms no vectors of a
# loop that chooses between two numbers.
# `override`: our flags are added to values from make's command line, too, not only to values from the environment.
override CFLAGS  += -std=c17 -D_GNU_SOURCE -I. -I$(DIR) -fno-math-errno -fno-trapping-math -ffp-contract=off -pthread $(WARN) \
           $(CFLAGS_BUILD) $(ONEDNN_CFLAGS) $(LIB_CFLAGS) $(CUDA_CFLAGS)
override LDFLAGS += -pthread $(LDFLAGS_$(BUILD))
override LDLIBS  += $(ONEDNN_LIBS) $(LIB_LIBS) $(MPI_LIBS) $(CUDA_LIBS) -lm

ROOMS    := base worker ps sync results experiments
SOURCES  := $(shell find $(ROOMS) -name '*.c')
SOURCES  := $(filter-out $(if $(WITH_CUDA),worker/cuda/cuda_absent.c,$(CUDA_ONLY)),$(SOURCES))
ifeq ($(NCCL_HEADER),)
SOURCES  := $(filter-out sync/communicator/communicator_nccl_library.c,$(SOURCES))
endif
PRELOADED := experiments/run/loopback_bind.c
SOURCES  := $(filter-out $(PRELOADED),$(SOURCES))
# The kernels are the same in all configurations. nvcc needs 45 s for them, so they come first.
KERNELS  := $(if $(WITH_CUDA),build/kernels/cuda_kernels.o)
OBJECTS  := $(KERNELS) $(SOURCES:%.c=$(DIR)/%.o) $(DIR)/embedded.o $(DIR)/loopback_bind.o
LIBRARY  := $(DIR)/libgradlag.a
PROGRAM  := $(DIR)/gradlag
# A test program has the name of its source file, in one folder: $(DIR)/tests/test_NAME.
TEST_SOURCES := $(shell find tests $(if $(WITH_CUDA),,-path tests/worker/cuda -prune -o -name test_process_cuda.c -prune -o) -name 'test_*.c' -print)
TESTS    := $(patsubst %.c,$(DIR)/tests/%,$(notdir $(TEST_SOURCES)))
TESTLIB  := $(patsubst %.c,$(DIR)/%.o,$(shell find tests -path tests/fuzz -prune -o -name '*.c' ! -name 'test_*' ! -name '*stand_in*' -print))
EMBEDDED := $(sort $(shell find results experiments -name '*.sql' -o -name '*.css' -o -name '*.js' -o -name '*.yaml' -o -name '*.csv'))

-include $(shell find $(DIR) $(dir $(KERNELS)) -name '*.d' 2>/dev/null)

.PHONY: all
all: $(PROGRAM)
	$(Q)[ $(BUILD) != release ] || ln -sfn $(BUILD)/gradlag build/gradlag

$(PROGRAM): $(DIR)/experiments/main.o $(LIBRARY)
	@echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(LIBRARY): $(filter-out $(DIR)/experiments/main.o,$(OBJECTS))
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

# A change of the compiler or of its flags rebuilds all objects.
FLAGS := $(CC) $(CFLAGS) $(MPI_CFLAGS)
$(DIR)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(FLAGS))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(FLAGS))' > $@
.PHONY: FORCE
FORCE:

$(DIR)/%.o: %.c $(DIR)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<
# cmocka 2 calls assert_in_range() deprecated; cmocka 1 has no other.
$(DIR)/tests/%.o: override CFLAGS += -Wno-deprecated-declarations

NVCC_ALL := $(NVCC) $(CUDA_VERSION) $(NVCC_FLAGS)
build/kernels/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(NVCC_ALL)' | cmp -s - $@ || printf '%s\n' '$(NVCC_ALL)' > $@
build/kernels/cuda_kernels.o: worker/cuda/kernels/cuda_kernels.cu build/kernels/flags
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(DIR)/worker/cuda/cuda_cublas.o: override CFLAGS += -DGRADLAG_CUDA_MAJOR='"$(firstword $(subst ., ,$(CUDA_VERSION)))"' \
                                       -DGRADLAG_CUDA_LIBRARIES='"$(dir $(CUDART))"'

# Build facts for the row of each run. The header is rewritten only if one of them changes.
$(DIR)/build_info.h: FORCE
	@mkdir -p $(@D)
	@scripts/build-info $(VERSION) $(BUILD) $(FLAGS) > $@.tmp && { cmp -s $@.tmp $@ && rm $@.tmp || mv $@.tmp $@; }
$(DIR)/experiments/run/provenance.o: $(DIR)/build_info.h

ifneq ($(NCCL_HEADER),)
$(DIR)/sync/communicator/communicator_nccl.o $(DIR)/sync/communicator/communicator_nccl_library.o: override CFLAGS += \
    -DGRADLAG_NCCL_LIBRARIES='"$(NCCL_DIR)"' $(if $(filter-out /usr/include/ $(CUDA_TOP)/include/,$(dir $(NCCL_HEADER))),-isystem $(dir $(NCCL_HEADER)))
endif

# Only these folders see the MPI headers.
$(DIR)/sync/%.o: override CFLAGS += $(MPI_CFLAGS)
$(DIR)/experiments/%.o: override CFLAGS += $(MPI_CFLAGS)
$(DIR)/tests/%.o: override CFLAGS += $(MPI_CFLAGS)

# The program is one file: schema, queries and experiments are compiled in. The list changes if a file is added, removed or renamed.
$(DIR)/embedded.list: FORCE
	@mkdir -p $(@D)
	@echo '$(EMBEDDED)' | cmp -s - $@ || echo '$(EMBEDDED)' > $@
$(DIR)/embedded.c: $(EMBEDDED) $(DIR)/embedded.list scripts/embed
	@mkdir -p $(@D)
	@echo "  EMBED $@"
	$(Q)scripts/embed $(EMBEDDED) > $@.tmp && mv $@.tmp $@
$(DIR)/embedded.o: $(DIR)/embedded.c $(DIR)/flags
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# A library that mpirun preloads (experiments/run/mpirun.c). It is compiled in, too, always without sanitizers.
$(DIR)/loopback_bind.so: $(PRELOADED) $(DIR)/flags
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) -std=c17 -D_GNU_SOURCE $(WARN) -O2 -fPIC -shared -s -o $@ $<
$(DIR)/loopback_bind.c: $(DIR)/loopback_bind.so
	$(Q){ echo '#include <stddef.h>'; \
	  echo 'extern const unsigned char loopback_bind_library[]; extern const size_t loopback_bind_bytes;'; \
	  echo 'const unsigned char loopback_bind_library[] = {'; od -An -v -tu1 $< | sed 's/ *\([0-9][0-9]*\)/\1,/g'; \
	  echo '}; const size_t loopback_bind_bytes = sizeof loopback_bind_library;'; } > $@.tmp && mv $@.tmp $@
$(DIR)/loopback_bind.o: $(DIR)/loopback_bind.c
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

# The linker takes from this archive only the helpers that a test calls.
$(DIR)/libtests.a: $(TESTLIB)
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(foreach test,$(TEST_SOURCES),$(eval $(DIR)/tests/$(notdir $(test:.c=)): $(DIR)/$(test:.c=.o)))
$(TESTS): $(DIR)/libtests.a $(LIBRARY)
	@echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter-out %.o,$^) -lcmocka $(LDLIBS)

# Programs with the fake CUDA of tests/worker/cuda/cuda_stand_in.h: its cuda* functions replace those of libcudart, and the loader
# finds its libcublasLt first. Each GPU test test_cuda_NAME is linked with it a second time as test_stand_in_NAME. The program is
# linked with it, too, for test_process_cuda.
ifeq ($(WITH_CUDA),yes)
STAND_IN        := $(patsubst %.c,$(DIR)/%.o,$(wildcard tests/worker/cuda/cuda_stand_in*.c))
CUBLAS_STAND_IN := $(DIR)/tests/stand_in/libcublasLt.so.$(firstword $(subst ., ,$(CUDA_VERSION)))
STAND_IN_AGAIN  := $(addprefix $(DIR)/tests/test_stand_in_,backend device device_vectors product rates sequence steps worker)
STAND_IN_TESTS  := $(addprefix $(DIR)/tests/test_,stand_in batch_norm core_allocation overlap precision replica sync_steady sync_trainer worker)
ON_STAND_IN     := $(STAND_IN_TESTS) $(STAND_IN_AGAIN) $(DIR)/tests/gradlag-stand-in
TESTS           += $(STAND_IN_AGAIN)
$(ON_STAND_IN): LDFLAGS += -rdynamic -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/stand_in'
$(ON_STAND_IN): $(STAND_IN) | $(CUBLAS_STAND_IN)
$(STAND_IN_AGAIN): $(DIR)/tests/test_stand_in_%: $(DIR)/tests/worker/cuda/test_cuda_%.o $(DIR)/libtests.a $(LIBRARY)
	@echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter-out %.o,$^) -lcmocka $(LDLIBS)
$(DIR)/tests/gradlag-stand-in: $(DIR)/experiments/main.o $(LIBRARY)
	@echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter-out %.o,$^) $(LDLIBS)
$(DIR)/tests/test_process_cuda: | $(DIR)/tests/gradlag-stand-in
$(CUBLAS_STAND_IN): tests/worker/cuda/cublas_stand_in.c $(DIR)/flags
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) $(CFLAGS) -fPIC -shared -Wl,-soname,$(@F) -MMD -MP -MF $(DIR)/tests/cublas_stand_in.d -o $@ $<
endif

# Tests that start processes are slow under the sanitizers, so PROCESSES=no leaves them to `make nightly`.
ifeq ($(PROCESSES),no)
TESTS := $(filter-out $(patsubst %.c,$(DIR)/tests/%,$(notdir $(shell grep -lE '/(process_rig|sync_rig|trainer_rig|campaign)\.h"' $(TEST_SOURCES)))),$(TESTS))
endif

.PHONY: tests
tests: $(TESTS)

## python-tests: the Python package and its examples; PYTHON=… chooses the interpreter (needs NumPy; skips the tests of other missing packages)
PYTHON ?= python3
.PHONY: python-tests
python-tests: all
	$(Q)$(PYTHON) python/tests/run.py $(PROGRAM)

## python-environments: the same in two new virtual environments, with NumPy alone and with all packages (downloads 300 MB)
.PHONY: python-environments
python-environments: all
	$(Q)python/tests/environments $(PROGRAM)

## objects: compile everything without linking
.PHONY: objects
objects: $(OBJECTS) $(TESTLIB) $(TEST_SOURCES:%.c=$(DIR)/%.o)

# ---- for users ------------------------------------------------------------------------------------
# demo and test first install missing packages, then start make again, which then finds the libraries.

.PHONY: setup
setup:
ifeq ($(SETUP),yes)
	$(Q)scripts/setup $(SETUP_FOR)
endif

## demo: install missing packages, build, run the headline comparison (4 to 7 minutes on 2 cores)
.PHONY: demo
demo: setup
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) all
	$(Q)build/gradlag reproduce stale-gradients --quick results=build/demo.db

## test: install missing packages, build, run every test (about 9 minutes on 2 cores)
.PHONY: test
test: setup
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) all tests
	$(Q)$(MAKE) --no-print-directory unit

## unit: run the tests; T=name runs test_name; BUILD=asan uses the sanitizers; PROCESSES=no omits tests that start processes
.PHONY: unit
unit: all $(if $(T),$(DIR)/tests/test_$(T),tests)
	$(Q)BUILD_DIR=$(DIR) scripts/run-tests $(if $(T),$(DIR)/tests/test_$(T),$(TESTS))

## nightly: long tests: all tests under the sanitizers, random events for the server core, the replay matrix, random runs with random faults, an attacked server, a locked file, a killed sweep, jobs under Slurm, the bundle
# PROPERTY_EVENTS=n PROPERTY_SEED=n: random events and their seed; REPLAY_EVERY=n: every n-th run of the replay matrix;
# CAMPAIGN_RUNS=n CAMPAIGN_FIRST=seed: random runs with random faults; KILLS=n: kills of a sweep; LOCKED_S=n: seconds of the lock;
# ATTACK_S=n: seconds of each attack; STALL_S=n: seconds for which a server stalls;
# HOSTILE_SECONDS=n: seconds of random attacks, seeded by PROPERTY_SEED
PROPERTY_EVENTS ?= 300000000
ifndef PROPERTY_SEED
PROPERTY_SEED   := $(shell date +%s)
endif
REPLAY_EVERY    ?= 1
CAMPAIGN_RUNS   ?= 500
ifndef CAMPAIGN_FIRST
CAMPAIGN_FIRST  := $(shell date +%s)
endif
KILLS           ?= 50
LOCKED_S        ?= 60
ATTACK_S        ?= 60
STALL_S         ?= 24
HOSTILE_SECONDS ?= 300
NIGHTLY := GRADLAG_PROPERTY_EVENTS=$(PROPERTY_EVENTS) GRADLAG_PROPERTY_SEED=$(PROPERTY_SEED) GRADLAG_REPLAY_MATRIX=full \
           GRADLAG_REPLAY_EVERY=$(REPLAY_EVERY) GRADLAG_KILLS=$(KILLS) GRADLAG_LOCKED_S=$(LOCKED_S) \
           GRADLAG_CAMPAIGN_RUNS=$(CAMPAIGN_RUNS) GRADLAG_CAMPAIGN_FIRST=$(CAMPAIGN_FIRST) \
           GRADLAG_ATTACK_S=$(ATTACK_S) GRADLAG_STALL_S=$(STALL_S)
HOSTILE := GRADLAG_HOSTILE_SECONDS=$(HOSTILE_SECONDS) GRADLAG_HOSTILE_SEED=$(PROPERTY_SEED)
.PHONY: nightly
nightly: setup
	$(Q)$(MAKE) --no-print-directory -j$(JOBS) all tests
	@echo "$(NIGHTLY) $(HOSTILE)"
	$(Q)failed=0; \
	$(NIGHTLY) TEST_TIMEOUT_S=10800 TEST_TELLS=yes BUILD_DIR=$(DIR) scripts/run-tests \
	    $(addprefix $(DIR)/tests/test_,server_core_properties replay_matrix recorder_faults process_sweep campaign ps_strangers) || failed=1; \
	$(HOSTILE) TEST_TIMEOUT_S=10800 $(MAKE) --no-print-directory -j$(JOBS) BUILD=asan unit || failed=1; \
	scripts/try-slurm $(PROGRAM) || failed=1; \
	! command -v orted >/dev/null || { $(MAKE) --no-print-directory bundle && scripts/check-bundle build/gradlag-bundle.tar.[xg]z; } || failed=1; \
	exit $$failed

## links: measure two ranks on two simulated hosts with links of 1 and 10 Gbit/s (root)
.PHONY: links
links: all
	$(Q)scripts/measure-links $(PROGRAM)

## slurm: run the Slurm recipes on four simulated nodes (root, slurm-wlm)
.PHONY: slurm
slurm: all
	$(Q)scripts/try-slurm $(PROGRAM)

## hosts: runs on four simulated hosts by one command, with links of 100 Mbit/s (root)
.PHONY: hosts
hosts: all
	$(Q)scripts/try-hosts $(PROGRAM)

## server-links: compare asynchronous runs over links of 0.1 and 1 Gbit/s with the virtual cluster (root)
.PHONY: server-links
server-links: all
	$(Q)scripts/measure-server-links $(PROGRAM)

## board: write the experiments with runs in RESULTS=FILE into docs/reproduction.md; without RESULTS: show its age in commits
.PHONY: board
board: all
	$(Q)PROGRAM=$(PROGRAM) scripts/write-board $(RESULTS)

## repeat: repeat RUNS=10 runs of RESULTS=FILE (EXPERIMENT=NAME), chosen at random, and compare bit for bit
.PHONY: repeat
repeat: all
	$(Q)PROGRAM=$(PROGRAM) scripts/repeat-runs '$(RESULTS)' $(or $(RUNS),10) $(EXPERIMENT)

## map: write the map of `gradlag advise`, experiments/questions/crossover.csv, from RESULTS=FILE; the next make builds it in
.PHONY: map
map: all
	$(Q)PROGRAM=$(PROGRAM) scripts/write-map $(RESULTS)

# One libFuzzer program for each tests/fuzz/fuzz_NAME.c (clang).
FUZZERS := $(patsubst tests/fuzz/%.c,$(DIR)/tests/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(DIR)/tests/fuzz/fuzz_%: $(DIR)/tests/fuzz/fuzz_%.o $(DIR)/tests/fuzz/fuzz.o $(LIBRARY)
	@echo "  LINK  $@"
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

.PHONY: fuzzers
fuzzers: $(FUZZERS)

## fuzz: fuzz the readers of files and messages (clang), FUZZ_SECONDS=60 each; T=wire: only one
.PHONY: fuzz
fuzz:
	$(Q)$(MAKE) --no-print-directory BUILD=fuzz CC=clang fuzzers
	$(Q)scripts/fuzz $(if $(T),build/fuzz/tests/fuzz/fuzz_$(T),$(FUZZERS:$(DIR)/%=build/fuzz/%))

## lint: format, layers, cppcheck, pages, the reproduction board, file sizes
lint format: SETUP_FOR := --lint
.PHONY: lint
lint: setup
	$(Q)scripts/lint

## format: format the sources with clang-format
.PHONY: format
format: setup
	$(Q)clang-format -i $$(git ls-files '*.c' '*.h' '*.cu')

## bundle: pack the program and its libraries into build/gradlag-bundle.tar.xz, for machines with the same or a later glibc (needs Open MPI 4)
GPU_TESTS := $(filter $(DIR)/tests/test_cuda%,$(TESTS))
.PHONY: bundle
bundle: all $(GPU_TESTS)
	$(Q)scripts/bundle $(DIR) build/gradlag-bundle.tar.xz $(GPU_TESTS)

## install: install the program, its man page and its bash completion; PREFIX=/usr/local DESTDIR=
# Under sudo an existing program is not built again: root may have another PATH and other flags.
.PHONY: install
install: $(if $(and $(SUDO_USER),$(wildcard $(PROGRAM))),,all)
	$(Q)DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' scripts/install $(PROGRAM)

## uninstall: remove what install wrote; PREFIX=/usr/local DESTDIR=
.PHONY: uninstall
uninstall:
	$(Q)DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' scripts/install --remove

## clean: remove build/
.PHONY: clean
clean:
	$(Q)rm -rf build

## help: print this list, and the variables
.PHONY: help
help:
	$(Q)sed -n 's/^## /make /p' Makefile; echo; sed -n 's/^#   //p' Makefile
