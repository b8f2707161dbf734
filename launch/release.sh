#!/usr/bin/env bash
# Makes a release: version, changelog, tests, source archive, and a wheel that is built from it and tried.
#   launch/release.sh 0.2.0           everything; takes an hour
#   launch/release.sh 0.2.0 --quick   without launch/test.sh
# Works on a copy of the last commit. Once all checks have passed, the archives are put into dist/, and the version and the
# changelog's heading are changed here, ready to commit. PYTHON is an interpreter with pip and setuptools (default:
# .venv/bin/python), PACKAGES as in launch/check_wheel.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
quick=${2:-}
PYTHON=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
export PYTHON
fail() { echo "error: $*" >&2; exit 1; }

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "expected a version such as 0.2.0, got $version"
[ -z "$quick" ] || [ "$quick" = --quick ] || fail "expected --quick or nothing after the version, got $quick"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed; commit or stash them"
[ ! -e "dist/sacglam-$version.tar.gz" ] || fail "dist/ already has $version"
released=$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' CHANGELOG.md | head -1)
[ "$(printf '%s\n' "$released" "$version" | sort -V | tail -1)" = "$version" ] && [ "$released" != "$version" ] ||
  fail "expected a version after $released, the last in CHANGELOG.md; got $version"
[ "$(sed -n '/^## Unreleased/,/^## [0-9]/p' CHANGELOG.md | grep -c '^- ')" -gt 0 ] ||
  fail "CHANGELOG.md has no entry under Unreleased"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git archive HEAD | tar -x -C "$copy"
sed -i.old "s/^__version__ = .*/__version__ = \"$version\"/" "$copy/sacglam/__init__.py"
sed -i.old "s/^## Unreleased$/## Unreleased\n\n## $version/" "$copy/CHANGELOG.md"
rm "$copy/sacglam/__init__.py.old" "$copy/CHANGELOG.md.old"
grep -q "\"$version\"" "$copy/sacglam/__init__.py" || fail "sacglam/__init__.py has no line with __version__"

[ "$quick" = --quick ] || launch/test.sh
(cd "$copy" && "$PYTHON" -c 'from setuptools import build_meta; build_meta.build_sdist("made")')
# Built from the source archive alone, which tests that the archive is complete.
"$PYTHON" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$copy/made" "$copy/made/sacglam-$version.tar.gz"
launch/check_wheel.sh "$copy/made/sacglam-$version-py3-none-any.whl"

mkdir -p dist
cp "$copy/made"/* dist/
cp "$copy/sacglam/__init__.py" sacglam/__init__.py
cp "$copy/CHANGELOG.md" CHANGELOG.md
echo "dist/ has $version. Next: git commit -am 'Version $version' && git tag v$version, then upload dist/sacglam-$version*"
