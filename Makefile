# make demo      one HTCJob through a real API server and a real HTCondor pool, for you to watch
# make demo-pool a pool in a real cluster and an HTCJob in it, for you to watch (needs root; builds Kubernetes' programs the first time)
# make test      the tests, on real servers: each promise at least once
# make test-long those and what takes longer: each promise in every way, with both versions, Kueue, 500 random kills, 100,000 jobs (before a release; hours)
# make one       T=outages::submitter::jobs_landing_late_run_no_payload one test on real servers (V=sid: with that version; N=20: so many times)
# make cluster   deploy/ on a real control plane with a real node, as docs/install.md says; pools, and jobs as Pods (needs root; ONLY=pods: a part)
# make soak      KILLS=500 random kills of the operator (VERSION=sid: one version only; HTC_TEST_SEED=…: as before)
# make model     the model checker on `decide`, `judge` and the workers' order, with larger bounds than in make test
# make bench     the operator beside HTCondor's own tools, measured (ROWS=1,3: some rows; FULL=1: 100,000 jobs too; VERSION=sid)
# make lint      formatting, clippy, shell scripts, bans and licences
# make plugin-targets  that kubectl-htc compiles for macOS and Windows
# make generate  crd/ and statecharts/ from the code
# make record    the session in the README, from docs/session/session.sh
#
# All of them set up what they need. What is downloaded or built goes into a folder outside this checkout
# (HTC_TESTBED_CACHE, else /var/cache/htc-operator for root and ~/.cache/htc-operator for others).

.DEFAULT_GOAL := help
.PHONY: help demo demo-pool test test-fast test-model test-long one cluster soak model bench lint plugin-targets generate record setup cluster-setup prerequisites cargo-deny

CACHE = $(or $(HTC_TESTBED_CACHE),$(if $(filter 0,$(shell id -u)),/var/cache,$(or $(XDG_CACHE_HOME),$(HOME)/.cache))/htc-operator)
DEBUG = $(or $(CARGO_TARGET_DIR),target)/debug
DENY = $(CACHE)/cargo-deny-0.20.2
# One build for all of them.
ALL = --locked --workspace --features htc-operator/fail-points
TESTBED = cargo run --locked --quiet -p testbed --
# The tests on real servers mostly wait: all are started at once, and tests/bed/src/turns.rs says which may run.
# Not by `cargo run`: a cargo in a cargo sees other variables, and builds ring and all that uses it once more.
E2E = RUST_TEST_THREADS=1000 $(DEBUG)/testbed measured cargo test $(ALL) --test e2e --
SHELL_SCRIPTS = .ci/run .ci/plain-words tests/testbed/prerequisites.sh crates/submit/src/payload/job.sh deploy/image/prepare.sh \
	deploy/image/relocate.sh src/htcpool/managed/shadow.sh

help: ## this list
	@sed -n 's/^# \(make .*\)/\1/p' $(MAKEFILE_LIST)

demo: prerequisites ## one HTCJob, from kubectl apply to kubectl delete
	@test -x $(DEBUG)/testbed || echo "building the program that sets up the rest (about a minute, once)"
	@cargo build --locked --quiet -p testbed
	@$(DEBUG)/testbed demo

demo-pool: cluster-setup ## a pool and an HTCJob on a real node
	$(DEBUG)/testbed cluster --demo $(DEBUG)/htc-operator

test: setup ## the tests, but for those of test-long
	cargo test $(ALL) --no-run
	cargo test $(ALL) --test e2e --test model --no-run
	cargo build $(ALL) --bins
	$(MAKE) --jobs=2 test-fast test-model
	$(E2E)

# Both at a time: the first wait for half of theirs. There is nothing left to compile by then: cargo needs none of make's jobs, and would
# warn that it cannot have them.
# XorShift: what proptest makes its random numbers by takes half of the time of generated tests otherwise, as in test-long.
test-fast:
	MAKEFLAGS= PROPTEST_RNG_ALGORITHM=xs cargo test $(ALL) --no-fail-fast

test-model:
	MAKEFLAGS= cargo test $(ALL) --test model

# The names are those in docs/guarantees.md; a module's name runs all of its tests.
one: setup ## one test on real servers
	@test -n "$(T)" || { echo "name a test: make one T=outages::submitter::jobs_landing_late_run_no_payload"; exit 2; }
	cargo test $(ALL) --test e2e --no-run
	cargo build $(ALL) --bins
	@names=$$(cargo test --quiet $(ALL) --test e2e -- --list --format=terse | sed -n 's/: test$$//p' | \
		grep -E "^$(T)(::.*)?$$" | grep -E "$(or $(V),.)"); \
	test -n "$$names" || { echo "no test is called $(T)$(if $(V), with $(V))"; exit 2; }; \
	for run in $$(seq $(or $(N),1)); do \
		echo "run $$run of $(or $(N),1)"; cargo test $(ALL) --test e2e -- --include-ignored --nocapture --exact $$names || exit; \
	done

# A test that passes by itself only fails it.
test-long: export HTC_TEST_STEADY = 1
test-long: test ## what takes too long for every change
	$(TESTBED) setup --kueue
	cargo test $(ALL) --no-fail-fast
	$(E2E) --ignored
	HTC_LARGE=100000 RUST_TEST_THREADS=1 cargo test $(ALL) --test e2e -- --ignored large::
	HTC_PLACES=20000 cargo test $(ALL) --test e2e -- --ignored --nocapture parallelism_under_kills::
	$(MAKE) plugin-targets
	$(MAKE) model
	$(MAKE) soak KILLS=500

cluster: cluster-setup ## pods on a real node: the operator's image, its rights, its volume, its Service; a pool; jobs as Pods
	$(DEBUG)/testbed cluster $(if $(ONLY),--only $(ONLY)) $(DEBUG)/htc-operator

cluster-setup: setup
	@sh tests/testbed/prerequisites.sh cluster
	cargo build $(ALL) --bins
	$(DEBUG)/testbed setup --cluster

soak: setup ## random kills, and everything checked afterwards
	HTC_SOAK_KILLS=$(or $(KILLS),60) cargo test $(ALL) --test e2e -- --include-ignored --nocapture --test-threads=2 soak::every_job_runs_once_under_random_kills::$(VERSION)

model: ## how things can go wrong, explored further than in make test (some minutes)
	HTC_MODEL=full cargo test --locked --release --package model --test model -- --nocapture --test-threads=1

bench: setup ## table, JSON and curves in target/bench (15 minutes with 2 cores, FULL=1 30)
	cargo build --locked --release --package htc-operator --package bench
	target/release/bench target/release/htc-operator $(if $(ROWS),--rows $(ROWS)) $(if $(FULL),--full) $(if $(VERSION),--version $(VERSION))

lint: prerequisites cargo-deny ## what CI refuses before it tests
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
	cargo clippy --locked --workspace --all-features --test e2e --test model -- -D warnings
	.ci/plain-words
	shellcheck $(SHELL_SCRIPTS)
	$(DENY)/bin/cargo-deny --log-level error check bans licenses sources

plugin-targets: ## kubectl-htc compiles for macOS and Windows
	rustup target add aarch64-apple-darwin x86_64-pc-windows-gnu
	@# No C compiler for these targets is needed: nothing is linked.
	for target in aarch64-apple-darwin x86_64-pc-windows-gnu; do \
		env CC_$$(echo $$target | tr - _)=true AR_$$(echo $$target | tr - _)=true \
			cargo check --locked --package kubectl-htc --target $$target || exit; \
	done

generate: prerequisites ## crd/ and statecharts/
	cargo build --locked --quiet --bin htc-operator
	$(DEBUG)/htc-operator crd > crd/.new && mv crd/.new crd/htcjobs.htc.cern.ch.yaml
	$(DEBUG)/htc-operator crd htcpools > crd/.new && mv crd/.new crd/htcpools.htc.cern.ch.yaml
	$(DEBUG)/htc-operator crd htcqueues > crd/.new && mv crd/.new crd/htcqueues.htc.cern.ch.yaml
	$(DEBUG)/htc-operator statechart statecharts

record: setup ## the session in the README
	HTC_RECORD=1 $(E2E) plugin::recording::readme_session_matches_a_real_one::sid

setup: prerequisites ## real servers, into the cache
	cargo run --locked --quiet -p testbed -- setup

prerequisites:
	@sh tests/testbed/prerequisites.sh

cargo-deny:
	@test -x $(DENY)/bin/cargo-deny || { echo "building cargo-deny (about 5 minutes, once)"; cargo install --quiet --locked cargo-deny --version 0.20.2 --root $(DENY); }
