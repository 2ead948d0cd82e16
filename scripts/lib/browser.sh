# Installs Debian's Chromium for the browser tests, if it is missing and this system allows it. The tests are skipped, with
# the reason, on every other system.

install_browser() {
  command -v chromium >/dev/null 2>&1 && return 0
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
  echo "set-up: installing Chromium for the browser tests" >&2
  # The package lists may be missing or old, and a network that is closed must not hold the tests up for long.
  { apt_install || { timeout 120 apt-get update -qq && apt_install; }; } >/dev/null 2>&1 ||
    echo "set-up: Chromium could not be installed: the browser tests are skipped" >&2
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -qq -y --no-install-recommends chromium
}
