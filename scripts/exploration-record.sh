#!/usr/bin/env bash
# Explores every execution of the drivers of wordpatch and callpatch under the memory model, and
# prints the results as Markdown.
#
# usage: scripts/exploration-record.sh >wordpatch/model/record.md
#
# Builds both crates with --cfg model, which takes half a minute the first time. The exploration
# itself takes seconds.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
found=$(
    RUSTC_WORKSPACE_WRAPPER=scripts/cfg/model "$cargo" test --release --quiet -p wordpatch -p callpatch --lib \
        exploration -- --nocapture --test-threads 1 --format pretty
)

cat <<'END'
# Exploration of the drivers

Made by `scripts/exploration-record.sh`. The scenarios and assumptions are described in the documentation of `wordpatch-model`
and in the tests (`exploration` of wordpatch and callpatch).

## Assumptions

Each is dropped from a scenario that holds with it. The counterexample is the shortest one.

| assumption | status | source | steps to the counterexample |
| --- | --- | --- | --- |
END
awk '
    sub(/^test [^ ]+ [.][.][.] /, "") || 1 { }
    /^assumption: / { sub(/^assumption: /, ""); split($0, part, " [|] "); names[++count] = part[1]; row[part[1]] = $0 }
    /^fails without / { name = $3; sub(/:$/, "", name); if (!(name in least) || $4 < least[name]) least[name] = $4; if ($4 > most[name]) most[name] = $4 }
    END {
        for (i = 1; i <= count; i++) {
            name = names[i]
            print "| " row[name] " | " (least[name] == most[name] ? least[name] : least[name] " to " most[name]) " |"
        }
    }
' <<<"$found"

cat <<'END'

## Scenarios

States are of the scenarios that hold, counterexamples of those with a defect or without an assumption.

| test | scenarios that hold | states | the largest | counterexamples | steps |
| --- | --- | --- | --- | --- | --- |
END
awk '
    /^test result/ { next }
    /^test / { name = $2; sub(/^exploration::/, "", name); name = (name ~ /::/ ? "wordpatch " : "callpatch ") name; if (!(name in seen)) names[++count] = name; seen[name]; sub(/^test [^ ]+ [.][.][.] /, "") }
    /^holds: / { holds[name]++; states[name] += $2; if ($2 > largest[name]) largest[name] = $2 }
    /^fails/ { match($0, /: [0-9]+ steps/); steps = substr($0, RSTART + 2) + 0; fails[name]++
        if (!(name in least) || steps < least[name]) least[name] = steps; if (steps > most[name]) most[name] = steps }
    END {
        for (i = 1; i <= count; i++) {
            name = names[i]
            steps = least[name] == most[name] ? least[name] : least[name] " to " most[name]
            print "| " name " | " holds[name] + 0 " | " states[name] + 0 " | " largest[name] + 0 " | " fails[name] + 0 " | " steps " |"
            all_holds += holds[name]; all_states += states[name]; all_fails += fails[name]
        }
        print "| all | " all_holds " | " all_states " | | " all_fails " | |"
    }
' <<<"$found"
