#!/bin/sh
# Resolve pyproject.toml into requirements.lock (with the extra `embedded`) and requirements-dev.lock, with hashes,
# for Linux on any machine and Python >= 3.11. Existing pins stay unless UPGRADE=1.
set -eu
cd "$(dirname "$0")/.."
if command -v uv >/dev/null; then
    uv=uv
else
    .venv/bin/python -m venv .venv/uv
    .venv/uv/bin/pip install --quiet --disable-pip-version-check uv
    uv=.venv/uv/bin/uv
fi
compile() {
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes ${UPGRADE:+--upgrade} \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$@"
}
compile pyproject.toml --extra embedded --group build -o requirements.lock
compile --group dev -c requirements.lock -o requirements-dev.lock
