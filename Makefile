# The commands of daily use. `make help` lists them; scripts/ holds what they do.

BARS ?= all
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup build run serve test test-full bench error-table kde-study format lint clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: ## install what is missing (Debian 12; root or sudo)
	@scripts/setup.sh

build: setup ## build the server and the command line client (build/release)
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target attnd attnctl attnd_demo

run: build ## start a server, run the main job on real data against it, show the result
	@scripts/run_demo.sh

serve: build ## run a server in the foreground; options: make serve ARGS="--help"
	@exec build/release/server/attnd $(ARGS)

test: setup ## build and run the tests, sanitizers and short fuzzing included
	@scripts/test.sh

test-full: setup ## the same with the long tests, the linter and g++
	@scripts/test.sh --full

bench: setup ## run the benchmarks; a part of them: make bench BARS=engine|kde|service|store
	@scripts/bench.sh $(BARS)

error-table: setup ## print how far each feature map is from softmax attention, and its cost
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target attnd_error_table
	@build/release/tests/bench/attnd_error_table

kde-study: setup ## print what KDEformer's parts promise and give on real vectors
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target attnd_kde_study
	@build/release/tests/bench/attnd_kde_study $(ARGS)

format: setup ## format the C++ files in place
	@scripts/check_format.sh --fix

lint: setup ## clang-format, shellcheck and clang-tidy
	@scripts/lint.sh

clean: ## remove the build directories
	@rm -rf build
