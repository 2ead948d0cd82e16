# Sourced by the scripts (POSIX sh): `set_up_environment EXTRA… | all` installs the extras into .venv and compiles the
# kernels. Expects the folder of the checkout in $root.

# Print the newest supported Python on PATH that runs: a name may be a shim for a Python that is not installed.
find_python() {
    for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    echo "set-up: FlintMQ needs Python 3.11 to 3.14 on PATH: install one, such as python3.13, and start again" >&2
    return 1
}

set_up_environment() {
    python=$(find_python) || exit 1
    "$python" "$root/scripts/lib/environment.py" "$@" || exit 1
    # Compiling takes about half a minute, once; later starts use the cache.
    "$root/.venv/bin/flintmq-broker" warm || exit 1
}
