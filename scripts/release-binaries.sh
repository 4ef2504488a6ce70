#!/usr/bin/env bash
# Builds every program of cmd/ for Linux, macOS and Windows on amd64 and arm64, packed, with the
# checksums of the archives:
#
#   scripts/release-binaries.sh v0.1.0 dist
#
# SYSTEMS are those to build for, "linux/amd64 …" by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?the version, such as v0.1.0}
mkdir -p "${2:?a folder}"
dist=$(cd "$2" && pwd)
read -ra systems <<<"${SYSTEMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}"
found=0
for dir in cmd/*/; do
	[ -e "$dir/go.mod" ] || continue
	found=1
	name=$(basename "$dir")
	for system in "${systems[@]}"; do
		export GOOS=${system%/*} GOARCH=${system#*/} CGO_ENABLED=0
		tmp=$(mktemp -d)
		file=$name
		if [ "$GOOS" = windows ]; then file=$name.exe; fi
		(cd "$dir" && go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$version" -o "$tmp/$file" .)
		cp LICENSE "$tmp/"
		# The same bytes from the same source: fixed owners and times, sorted names.
		tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$tmp" -cf - . | gzip -n >"$dist/${name}_${version}_${GOOS}_${GOARCH}.tar.gz"
		rm -rf "$tmp"
	done
done
if [ $found = 0 ]; then
	echo "there is no program in cmd/" >&2
	exit 1
fi
cd "$dist"
sha256sum ./*.tar.gz | sed 's| \./| |' >SHA256SUMS
cat SHA256SUMS
