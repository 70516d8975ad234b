#!/usr/bin/env bash
# Fetches the handwritten digits (57 KB, from the Debian package python3-sklearn) into build/data/digits.csv.
# Installs nothing and needs no root.
exec bash "$(dirname "${BASH_SOURCE[0]}")/fetch_data.sh" '' digits.csv
