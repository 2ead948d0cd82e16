# Unpacks Debian's etcd into .venv/etcd for the tests of the registry, without root, if no etcd is there and apt-get can
# download it. The tests are skipped, with the reason, on every other system. Expects the checkout's folder in $root.

install_etcd() {
  [ -n "${FLINTMQ_ETCD:-}" ] || [ -x "$root/.venv/etcd/usr/bin/etcd" ] || command -v etcd >/dev/null 2>&1 && return 0
  command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || return 0
  echo "set-up: unpacking etcd for the tests of the registry" >&2
  unpack_etcd >/dev/null 2>&1 || echo "set-up: etcd could not be downloaded: the tests of the registry are skipped" >&2
}

unpack_etcd() {
  (
    mkdir -p "$root/.venv/etcd" && cd "$root/.venv/etcd" &&
      timeout 120 apt-get download -qq etcd-server && dpkg -x etcd-server_*.deb . && rm etcd-server_*.deb
  )
}
