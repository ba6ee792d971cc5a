#!/bin/sh
# Make .venv from the lock files: `.ci/setup.sh run` what a crawl needs, `.ci/setup.sh dev` also what the tests need.
# Never uses sudo, never touches anything outside the repository but the download caches of pip or uv.
# Exit 3: this machine lacks something; the message says what to do.
set -eu
cd "$(dirname "$0")/.."
need=${1:-run}
venv=.venv

fail() {
    printf '\nfyke: %s\n  %s\n' "$1" "$2" >&2
    exit 3
}

# A stamp holds the checksum of what was installed, so that a second call does nothing.
wanted() {
    case $need in
    dev) cat pyproject.toml requirements.lock requirements-dev.lock ;;
    *) cat pyproject.toml requirements.lock ;;
    esac | cksum
}

up_to_date() {
    [ -x $venv/bin/fyke ] && [ "$(cat "$venv/.fyke-$need" 2>/dev/null)" = "$(wanted)" ]
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python3.14; do
        if command -v "$name" >/dev/null 2>&1 && is_recent "$name"; then
            command -v "$name"
            return
        fi
    done
}

make_venv() {
    python=$(find_python)
    if [ -n "$python" ] && "$python" -m venv "$venv" >/dev/null 2>&1; then
        echo "Python: $python ($("$python" -V 2>&1))"
        return
    fi
    rm -rf "$venv"
    if command -v uv >/dev/null 2>&1; then
        echo "Python: by uv (it downloads one, about 30 MB, when there is none >= 3.11)"
        uv venv --quiet --python '>=3.11,<3.15' "$venv" || fail "uv could not provide Python >= 3.11." "See its message above."
        return
    fi
    if [ -n "$python" ]; then
        fail "$python cannot make virtual environments." \
            "Install its venv module (Debian: the package python3-venv) or uv, then try again."
    fi
    fail "No Python >= 3.11 and no uv on PATH." \
        "Install Python 3.11 or newer, or uv, then try again; PYTHON=/path/to/python names one that is elsewhere."
}

install() {
    if [ -x $venv/bin/pip ]; then
        $venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@"
    else
        uv pip install --quiet --python $venv/bin/python "$@"
    fi
}

up_to_date && exit 0

started=$(date +%s)
[ -x $venv/bin/python ] && is_recent $venv/bin/python || make_venv

echo "Packages: $(grep -c '==' requirements.lock), about 75 MB to download, a Java runtime for the broker included"
install --require-hashes --no-deps -r requirements.lock ||
    fail "The packages could not be installed." "Check the connection to your Python package index and free disk space."
if [ "$need" = dev ]; then
    echo "Packages for the tests: $(grep -c '==' requirements-dev.lock), about 55 MB to download"
    install --require-hashes --no-deps -r requirements-dev.lock ||
        fail "The packages for the tests could not be installed." "See the message above."
fi
install --no-deps --no-build-isolation --editable . || fail "Fyke itself could not be installed." "See the message above."

wanted >"$venv/.fyke-$need"
if [ "$need" = dev ]; then need=run && wanted >"$venv/.fyke-run"; fi
echo "Ready: $venv, $(du -sm $venv | cut -f1) MB, $(($(date +%s) - started)) s"
