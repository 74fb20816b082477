#!/usr/bin/env bash
# Mutation testing: injects one defect at a time from the lists in scripts/mutants/, and checks that
# a test detects it.
#
# usage: scripts/mutants.sh [OPTIONS] [NAME...]        scripts/mutants.sh --help
#
# Works in a copy of the source tree under target/mutants; the checkout is not changed.
set -euo pipefail

exec python3 "$(dirname "${BASH_SOURCE[0]}")/mutants/run.py" "$@"
