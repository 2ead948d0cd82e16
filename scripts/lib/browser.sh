# Installs Debian's Chromium for the browser tests, if it is missing and this system allows it. The tests are skipped, with
# the reason, on every other system.

install_browser() {
  command -v chromium >/dev/null 2>&1 && return 0
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
  echo "set-up: installing Chromium for the browser tests" >&2
  {
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium ||
      { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; }
  } >/dev/null 2>&1 || echo "set-up: Chromium could not be installed: the browser tests are skipped" >&2
}
