#!/usr/bin/env bash
# Makes .venv for the app, or with the argument "test" for the tests too.
# Each step leaves a stamp with the hash of what it installed, so that the next run has nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."

goal=${1:-app}

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    if [[ -n ${PYTHON:-} ]]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not a command here."
        new_enough "$PYTHON" || fail "Focus Lab needs Python 3.11 or newer; $PYTHON is $("$PYTHON" -V 2>&1)."
        echo "$PYTHON"
        return
    fi
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Focus Lab needs Python 3.11 or newer; python3 here is: $(python3 -V 2>&1 || true)" \
        "Install one (on Debian or Ubuntu: sudo apt install python3 python3-venv), then: make setup PYTHON=python3.11"
}

make_environment() {
    if [[ -x .venv/bin/python ]]; then
        new_enough .venv/bin/python || fail "The environment in .venv is older than Python 3.11." "Remove it: rm -r .venv"
        return
    fi
    local python
    python=$(find_python)
    echo "Making the environment in .venv with $("$python" -V)."
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        fail "The environment could not be made." \
            "On Debian or Ubuntu this installs what is missing: sudo apt install python3-venv"
    fi
}

# Asks once whether TORCH_INDEX answers: pip would ask a dead one again for minutes, for every package.
# Any answer will do, and what only pip knows of, its proxy or its certificates, is left to pip.
check_index() {
    [[ ${TORCH_INDEX:-} == http* ]] || return 0
    local why
    why=$(timeout 12 .venv/bin/python -c '
import ssl, sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=4).close()
except urllib.error.HTTPError:
    pass
except (OSError, ValueError) as error:
    reason = getattr(error, "reason", error)
    if not isinstance(reason, ssl.SSLError):
        print(reason)
        sys.exit(1)
' "$TORCH_INDEX" 2>&1) && return
    .venv/bin/python -m pip config list 2>/dev/null | grep -q proxy && return
    fail "TORCH_INDEX=$TORCH_INDEX does not answer (${why:-no answer in 12 s}). Check it, or leave it out."
}

# What of pip's talk is kept where no terminal shows its bars: the large files, and that unpacking has begun.
large_files() {
    sed -Eun -e 's/^ *(Downloading|Using cached) (.*\/)?([^/]+ \([0-9]{2,}[0-9.]* MB\)).*/  \1 \3/p' \
        -e 's/^Installing collected packages.*/  Unpacking the packages/p'
}

# install NAME WHAT FILE... runs "pip install" with FILE unless the stamp NAME has the hash of the files.
install() {
    local name=$1 what=$2 hash
    shift 2
    hash=$(hash_of "$@")
    [[ -f .venv/.$name && $(<".venv/.$name") == "$hash" ]] && return
    check_index
    echo "$what"
    local command=(.venv/bin/python -m pip install --disable-pip-version-check
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"})
    if [[ -t 1 ]]; then "${command[@]}" -r "${!#}"; else
        "${command[@]}" --progress-bar off -r "${!#}" | large_files
    fi || fail "The installation did not finish; nothing is lost. Check the network, then run the same command again."
    echo "$hash" >".venv/.$name"
}

install_model() {
    local hash status=0
    hash=$(hash_of focus_core/models/catalog.py)
    [[ -f .venv/.model && $(<.venv/.model) == "$hash" ]] && return
    echo "Getting the default model, SmolLM2-135M-Instruct, unless it is here: 93 MB."
    .venv/bin/python -m focus_core.models fetch >/dev/null || status=$?
    case $status in
    0) echo "$hash" >.venv/.model ;;
    2) exit 1 ;;
    *) echo "The app starts without it, and any other model works; this gets it later: make setup" >&2 ;;
    esac
}

if [[ -n ${TORCH_INDEX:-} ]]; then size="about 0.6 GB with CPU wheels"; else
    size="about 3.1 GB on Linux, most of it CUDA; about 0.6 GB with TORCH_INDEX=https://download.pytorch.org/whl/cpu"
fi
make_environment
install app "Installing what the app needs: $size." requirements.txt
install_model
if [[ $goal == test ]]; then
    install test "Installing the test tools: about 670 MB." requirements{,-eval,-ray,-dev}.txt
fi
