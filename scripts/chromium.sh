#!/usr/bin/env bash
# Prints the path of a Chromium for the browser tests; installs one where that is possible.
set -euo pipefail
cd "$(dirname "$0")/.."

found() {
    local name
    for name in "${FOCUS_LAB_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
        if [[ -n $name ]] && command -v "$name"; then return 0; fi
    done
    name=$(.venv/bin/python -c 'from playwright.sync_api import sync_playwright as p
with p() as play: print(play.chromium.executable_path)' 2>/dev/null) || return 1
    [[ -x $name ]] && echo "$name"
}

found && exit 0
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "No Chromium here: installing the distribution's (about 100 MB)." >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >&2 || true
    found && exit 0
fi
echo "No Chromium here: downloading the one that Playwright brings (about 180 MB)." >&2
.venv/bin/python -m playwright install chromium >&2 || true
found && exit 0
cat >&2 <<'TEXT'
The browser tests need a Chromium, and none could be installed. Any of these helps:
  sudo apt install chromium
  .venv/bin/python -m playwright install --with-deps chromium
  make test FOCUS_LAB_CHROMIUM=/path/to/chrome
TEXT
exit 1
