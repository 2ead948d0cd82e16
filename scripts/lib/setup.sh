# Sourced by scripts/quickstart, pipeline, test and check (POSIX sh): `set_up_environment EXTRA… | all` makes .venv
# complete and compiles the kernels. Expects $root, the checkout's folder.

# The newest supported Python on PATH that really runs: a name may be a version manager's shim for one not installed.
find_python() {
    for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    echo "set-up: FlintMQ needs Python 3.11 to 3.14 on PATH: install one (python3.13, say) and start again" >&2
    return 1
}

set_up_environment() {
    python=$(find_python) || exit 1
    "$python" "$root/scripts/lib/environment.py" "$@" || exit 1
    # Compiling takes about half a minute once; after that the kernels come from their cache.
    "$root/.venv/bin/flintmq-broker" warm || exit 1
}
