#!/usr/bin/env bash
# Installs Chromium for the browser tests if it is missing, as root on Debian. Elsewhere it prints a message and succeeds;
# the browser tests are then skipped.
set -euo pipefail
if command -v chromium || command -v chromium-browser || command -v google-chrome; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no chromium here: the browser tests are skipped (Debian: sudo apt-get install -y chromium)"
  exit 0
fi
echo "== installing chromium for the browser tests"
(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 ||
  echo "chromium could not be installed: the browser tests are skipped"
