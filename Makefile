# FlashLab's commands. `make run` and `make test` need nothing but git and make on Debian 12 or
# Ubuntu 24.04: they install what is missing (as root, or by sudo without a password), build and go.

.PHONY: help run install test verify verify-all format clean
.DEFAULT_GOAL := help
# One recipe at a time: each one uses every core by itself.
.NOTPARALLEL:

help:
	@echo 'make run         install what is missing, build, compare the attention implementations here'
	@echo 'make install     build, then put command line, library and headers into ~/.local (PREFIX=...)'
	@echo '             with the common GPU kernels compiled: minutes; KERNELS=sm_90a or none takes less'
	@echo 'make test        install what is missing, build, run the tests'
	@echo 'make verify      formatter, lints, headers alone, documents, sanitizers, short fuzzing'
	@echo 'make verify-all  the same without shortcuts, for releases (an hour or more)'
	@echo 'make format      rewrite the sources by clang-format'
	@echo 'make clean       remove build/ (results/ stays)'
	@echo
	@echo 'make run ARGS="--preset gpt2-small"   passes flags on; after make run: build/flashlab --help'

run:
	@tools/packages.sh '[1/3]' build
	@tools/build.py '[2/3]' flashlab_cli
	@tools/compare.sh '[3/3]' $(ARGS)

install:
	@tools/packages.sh '[1/3]' build
	@tools/build.py '[2/3]' flashlab_cli
	@tools/install.sh '[3/3]' "$(PREFIX)" "$(KERNELS)"

test:
	@tools/packages.sh '[1/3]' build
	@tools/nvrtc.py '[1/3]'
	@tools/python_environment.py '[1/3]'
	@tools/build.py '[2/3]'
	@tools/run_tests.py '[3/3]'

verify:
	@tools/packages.sh '[1/2]' build verify
	@tools/nvrtc.py '[1/2]'
	@tools/verify.py '[2/2]'

verify-all:
	@tools/packages.sh '[1/2]' build verify
	@tools/nvrtc.py '[1/2]'
	@tools/verify.py '[2/2]' --all

format:
	@tools/packages.sh '[1/2]' verify
	@tools/format.sh --write

clean:
	rm -rf build
