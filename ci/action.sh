#!/usr/bin/env bash
# The steps of action.yml: action.sh install|lint|diff|gate. Inputs come as variables of the environment, never as
# part of the script: a branch's name or a path is no command.
set -euo pipefail

temp=${RUNNER_TEMP:?is set by the runner}
summary=${GITHUB_STEP_SUMMARY:-/dev/null}

# The lines of $1, each a pattern, as words in `found`; a pattern that fits nothing stays, so that perfdoc names it.
expand() {
  found=()
  local line path fits
  while IFS= read -r line; do
    line=${line#"${line%%[![:space:]]*}"}
    line=${line%"${line##*[![:space:]]}"}
    [ -n "$line" ] || continue
    fits=$(compgen -G "$line" | LC_ALL=C sort) || fits=$line
    while IFS= read -r path; do found+=("$path"); done <<<"$fits"
  done <<<"$1"
}

# Option $1 once for each line of $2, added to `words`.
each_line() {
  local line
  while IFS= read -r line; do
    [ -z "${line//[[:space:]]/}" ] || words+=("$1" "$line")
  done <<<"$2"
}

# What perfdoc said on stderr, as one annotation: a mistake in the workflow has no other place to be seen.
annotate() {
  local text
  text=$(tail -n 1 "$2" | sed -e 's/%/%25/g' -e 's/\r/%0D/g')
  echo "::error title=$1::$text"
}

run_gate() {
  local words=(gate "${PERFDOC_COMMAND:-check}") found=() runs code=0
  local json="$temp/perfdoc-gate.json" markdown="$temp/perfdoc-gate.md" errors="$temp/perfdoc-gate.err" verdict=""
  rm -f "$json" "$markdown"
  expand "${PERFDOC_RUNS:?names the runs}"
  runs=("${found[@]}")
  words+=(--baselines "${PERFDOC_BASELINES:-perfdoc-baselines}")
  [ -z "${PERFDOC_LABEL:-}" ] || words+=(--label "$PERFDOC_LABEL")
  [ -z "${PERFDOC_PEAK_TFLOPS:-}" ] || words+=(--peak-tflops "$PERFDOC_PEAK_TFLOPS")
  [ -z "${PERFDOC_PRACTICAL:-}" ] || words+=(--practical "$PERFDOC_PRACTICAL")
  [ -z "${PERFDOC_INCOMPLETE:-}" ] || words+=(--incomplete "$PERFDOC_INCOMPLETE")
  if [ "${PERFDOC_COMMAND:-check}" = check ]; then
    each_line --ignore "${PERFDOC_IGNORE:-}"
    each_line --floor "${PERFDOC_FLOORS:-}"
    expand "${PERFDOC_BESIDE:-}"
    local path
    for path in ${found[@]+"${found[@]}"}; do words+=(--beside "$path"); done
    words+=(--inconclusive "${PERFDOC_INCONCLUSIVE:-exit-3}" --format github --json "$json" --force)
  fi
  # perfdoc adds the Markdown to the file of this variable: first to one of its own, which is an output too.
  GITHUB_STEP_SUMMARY=$markdown perfdoc "${words[@]}" -- "${runs[@]}" 2>"$errors" || code=$?
  cat "$errors" >&2
  if [ -s "$markdown" ]; then
    cat "$markdown" >>"$summary"
  elif [ "$code" -ne 0 ]; then
    annotate "perfdoc gate" "$errors"
  fi
  [ ! -s "$json" ] || verdict=$(sed -n 's/^  "verdict": "\([a-z]*\)",$/\1/p' "$json" | head -n 1)
  {
    echo "verdict=$verdict"
    echo "exit-code=$code"
    [ ! -s "$json" ] || echo "json=$json"
    [ ! -s "$markdown" ] || echo "markdown=$markdown"
  } >>"${GITHUB_OUTPUT:-/dev/null}"
  return "$code"
}

run_lint() {
  local found=() code=0 errors="$temp/perfdoc-lint.err"
  expand "${PERFDOC_CONFIGS:?names the configurations}"
  perfdoc lint --inconclusive pass --format github -- "${found[@]}" 2>"$errors" || code=$?
  cat "$errors" >&2
  [ "$code" -lt 2 ] || annotate "perfdoc lint" "$errors"
  return "$code"
}

run_diff() {
  local code=0 errors="$temp/perfdoc-diff.err" markdown="$temp/perfdoc-diff.md"
  perfdoc diff --format markdown -- "${PERFDOC_BEFORE:?}" "${PERFDOC_AFTER:?}" >"$markdown" 2>"$errors" || code=$?
  cat "$errors" >&2
  cat "$markdown" >>"$summary"
  [ "$code" -eq 0 ] || annotate "perfdoc diff" "$errors"
  return "$code"
}

run_install() {
  # An environment of its own: the job's packages stay as they are.
  python3 -m venv "$temp/perfdoc"
  "$temp/perfdoc/bin/python" -m pip install --quiet --disable-pip-version-check \
    "${PERFDOC_INSTALL:-${GITHUB_ACTION_PATH:?is set by the runner}}"
  echo "$temp/perfdoc/bin" >>"${GITHUB_PATH:?is set by the runner}"
}

case "${1:-}" in
  install | lint | diff | gate) "run_$1" ;;
  *)
    echo "usage: action.sh install|lint|diff|gate" >&2
    exit 2
    ;;
esac
