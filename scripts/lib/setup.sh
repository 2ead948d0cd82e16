# Sourced by the scripts (POSIX sh): `set_up_environment NAME… | all` installs extras and dependency groups into .venv and
# compiles the kernels. Expects the folder of the checkout in $root.

# Print a supported Python on PATH that runs: a name may be a shim for a Python that is not installed. The newest for
# which every package has wheels comes first, then newer ones.
find_python() {
    for name in python3.14 python3.13 python3.12 python3.11 python3.15 python3 python; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    echo "set-up: FlintMQ needs Python 3.11 or newer on PATH: install one, such as python3.13, and start again" >&2
    return 1
}

set_up_environment() {
    python=$(find_python) || exit 1
    "$python" "$root/scripts/lib/environment.py" "$@" || exit 1
    # Compiling takes about half a minute, once; later starts use the cache.
    "$root/.venv/bin/flintmq-broker" warm || exit 1
}

set_up_tests() {
    set_up_environment all
    # The tests start hundreds of Python programs; without bytecode on the disk each would compile all that it imports.
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="$root/.venv/bytecode"
    rm -rf "$PYTHONPYCACHEPREFIX${TMPDIR:-/tmp}" # of modules that earlier tests wrote
    . "$root/scripts/lib/browser.sh"
    install_browser
    . "$root/scripts/lib/etcd.sh"
    install_etcd
}
