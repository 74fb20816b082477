"""Injects the defects that scripts/mutants/*.toml lists, one at a time, and checks that the named tests detect each.

The lists contain defects that generic tools cannot generate: weakened memory orderings, removed LOCK prefixes, waits, masks, flags, guards and
retries. An entry is one replacement of a text that occurs exactly once in a file:

    [[mutant]]
    name = "store/lock-prefix"              # unique; FILE/DEFECT
    file = "wordpatch/src/store.rs"
    after = "fn exchange"                   # optional: the text is searched after the first occurrence of this one
    find = "lock cmpxchg"
    replace = "cmpxchg"
    killed_by = ["wordpatch:lib store"]     # SUITE FILTER...: at least one of these commands must fail
    # or, instead of killed_by:
    equivalent = "why no test can distinguish it from the original"
    tests = ["wordpatch:fork"]              # optional, with equivalent: what it must pass; all tests of the crate otherwise

A suite is PACKAGE:TARGET, where TARGET is `lib`, `bins` or the name of an integration test; PACKAGE:loom is the library's tests with
`--cfg loom`. Filters select tests by name.

Verdicts: `killed` (a test failed, or hung until the time limit: a hang counts as killed and is reported as such), `survived`,
`equivalent` (survived, as expected), `stale` (the text is not found exactly once) and `broken` (the mutant does not compile, so it
proves nothing).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LISTS = Path(__file__).resolve().parent
CARGO = os.environ.get("CARGO", "cargo")

# Profile of the mutants: quick to build.
FAST_BUILDS = {
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_INCREMENTAL": "true",
}

# The test suites for equivalent mutants of each list that name no narrower ones.
ALL_SUITES = {
    "wordpatch": ["wordpatch:*"],
    "callpatch": ["callpatch:*", "tests:calls"],
    "fastinst": ["fastinst:*", "tests:probes"],
    "wasm-jit": ["wasm-jit:probes", "wasm-jit:frame_maps"],
    "profiler": ["profiler:*"],
    "whamm": ["wasm-jit-whamm:*"],
    "script": ["tests:script"],
    "replay": ["wasm-jit-replay:*"],
    "monitors": ["wasm-jit-monitors:*", "wasm-jit-debug:*"],
}

# The entry that --quick builds and runs, of the crate with the fewest dependencies: it shows that
# the machinery works.
QUICK = "segments/null-check-inverted"

EXAMPLES = """examples:
  scripts/mutants.sh                              every mutant: about an hour on two processors
  scripts/mutants.sh --list                       names, files and expected verdicts
  scripts/mutants.sh --check                      only checks that each text is still found exactly once
  scripts/mutants.sh --quick                      --check, then runs one mutant (used by .ci/run)
  scripts/mutants.sh store/ retarget/             those whose names begin so
  scripts/mutants.sh --crate callpatch --json     one list, as JSON
  scripts/mutants.sh --repeat 20 store/lock       how reliably a race is found: at least 19 of 20 runs must kill it
  scripts/mutants.sh --record scripts/mutants/RECORD.md

exit codes: 0 every mutant has its expected verdict; 1 some do not; 2 wrong arguments or the unmutated tests fail

Generic mutants (operators, return values) are made by cargo-mutants, which is not installed by our scripts:
  cargo install cargo-mutants
  cargo mutants --package callpatch --file callpatch/src/encoding.rs --profile release --timeout 60 --output target/cargo-mutants
It copies the tree as well; one file takes minutes."""


class Failure(Exception):
    """Ends the program with this message."""


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/mutants.sh",
        description="Injects one defect at a time and checks that a test detects it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants whose name begins with this")
    parser.add_argument("--crate", choices=sorted(ALL_SUITES), help="only the list of this crate")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--check", action="store_true", help="check that every text is found exactly once, and stop")
    parser.add_argument("--quick", action="store_true", help="--check, then run one mutant")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run the tests of each mutant N times; 19 of 20 must fail (default 1)")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="time limit of one test command (default 60)")
    parser.add_argument("--skip-equivalent", action="store_true", help="do not run the mutants that are listed as equivalent")
    parser.add_argument("--work", type=Path, default=ROOT / "target/mutants", metavar="FOLDER", help="the copy of the tree and its target folder (default target/mutants)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the results to this Markdown file")
    return parser.parse_args()


def load(arguments):
    """The selected mutants, each with its crate."""
    mutants, names = [], set()
    for path in sorted(LISTS.glob("*.toml")):
        # CRATE.toml or CRATE-PART.toml, where the crate's name may have a hyphen.
        crate = max((name for name in ALL_SUITES if f"{path.stem}-".startswith(f"{name}-")), key=len)
        for mutant in tomllib.loads(path.read_text())["mutant"]:
            mutant["crate"] = crate
            if mutant["name"] in names:
                raise Failure(f"{path.name}: {mutant['name']} is listed twice")
            if ("killed_by" in mutant) == ("equivalent" in mutant):
                raise Failure(f"{path.name}: {mutant['name']} needs either killed_by or equivalent")
            names.add(mutant["name"])
            mutants.append(mutant)

    def is_wanted(mutant):
        if arguments.crate and mutant["crate"] != arguments.crate:
            return False
        return not arguments.names or any(mutant["name"].startswith(name) for name in arguments.names)

    wanted = [mutant for mutant in mutants if is_wanted(mutant)]
    if not wanted:
        raise Failure("no mutant has this name; --list prints all of them")
    return wanted


def mutate(mutant, root):
    """The file's text with the defect, or None when the text is not found exactly once."""
    try:
        text = (root / mutant["file"]).read_text()
    except FileNotFoundError:
        return None
    start = 0
    if "after" in mutant:
        start = text.find(mutant["after"])
        if start < 0:
            return None
        start += len(mutant["after"])
    at = text.find(mutant["find"], start)
    # With `after`, the first occurrence after it.
    if at < 0 or ("after" not in mutant and text.find(mutant["find"], at + 1) >= 0):
        return None
    return text[:at] + mutant["replace"] + text[at + len(mutant["find"]) :]


def copy_tree(tree):
    """Makes `tree` equal to the checkout according to git. Unchanged files keep their times, so that cargo rebuilds little."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    files = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for old in tree.rglob("*") if tree.exists() else []:
        if old.is_file() and str(old.relative_to(tree)) not in files:
            old.unlink()
    for name in files:
        source, copy = ROOT / name, tree / name
        content = source.read_bytes()
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            copy.chmod(source.stat().st_mode)


class Builder:
    """Builds and runs test suites in the copy."""

    def __init__(self, work, timeout):
        self.tree = work / "tree"
        self.target = work / "target"
        self.timeout = timeout
        self.programs = {}

    def source_has_changed(self):
        """Must be called after each change of the copy."""
        self.programs = {}

    def build(self, suite):
        """The suite's test programs with their folders, or None when it does not compile."""
        if suite not in self.programs:
            self.programs[suite] = self.compile(suite)
        return self.programs[suite]

    def compile(self, suite):
        package, target = suite.split(":")
        command = [CARGO, "test", "--release", "--no-run", "--message-format=json", "--package", package]
        environment = dict(os.environ, **FAST_BUILDS, CARGO_TARGET_DIR=str(self.target))
        if package == "wordpatch":
            configuration = "loom" if target == "loom" else "fault_injection"
            environment["RUSTC_WORKSPACE_WRAPPER"] = str(self.tree / "scripts/cfg" / configuration)
        if target in ("lib", "loom"):
            command.append("--lib")
        elif target == "bins":
            command.append("--bins")
        elif target != "*":
            command += ["--test", target]
        built = subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True)
        if built.returncode != 0:
            self.errors = built.stderr
            return None
        if package == "tests":
            # What the tests run. They would build it themselves, within the time limit.
            script = [self.tree / "scripts/build.sh", "--quiet", "--target-dir", self.target]
            if subprocess.run(script, env=environment, capture_output=True).returncode != 0:
                return None
        programs = []
        for line in built.stdout.splitlines():
            message = json.loads(line)
            if message.get("executable") and message.get("profile", {}).get("test"):
                programs.append((message["executable"], Path(message["manifest_path"]).parent))
        return programs

    def run(self, program, filters):
        """The outcome of the test program: passed, failed or hung."""
        executable, folder = program
        environment = dict(os.environ, **FAST_BUILDS)
        environment |= {"CARGO_MANIFEST_DIR": str(folder), "CARGO_TARGET_DIR": str(self.target)}
        process = subprocess.Popen(
            [executable, *filters],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            code = None
        # The program may have left children that wait for it.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        return "hung" if code is None else "passed" if code == 0 else "failed"

    def outcome(self, commands):
        """Runs commands until one detects the defect. Returns how, and which one."""
        for command in commands:
            suite, *filters = command.split()
            programs = self.build(suite)
            if programs is None:
                return "broken", command
            for program in programs:
                result = self.run(program, filters)
                if result != "passed":
                    return result, command
        return "passed", None


def commands_of(mutant):
    return mutant.get("killed_by") or mutant.get("tests") or ALL_SUITES[mutant["crate"]]


def test(mutant, builder, repeat):
    """Injects the defect, runs the tests and removes it."""
    result = {"name": mutant["name"], "file": mutant["file"], "runs": 0, "kills": 0, "hangs": 0, "by": None, "seconds": 0.0}
    mutated = mutate(mutant, builder.tree)
    if mutated is None:
        return result | {"verdict": "stale"}
    path = builder.tree / mutant["file"]
    original = path.read_text()
    path.write_text(mutated)
    builder.source_has_changed()
    begin = time.monotonic()
    try:
        for _ in range(repeat):
            outcome, by = builder.outcome(commands_of(mutant))
            if outcome == "broken":
                print(builder.errors, file=sys.stderr)
                return result | {"verdict": "broken"}
            result["runs"] += 1
            result["kills"] += outcome != "passed"
            result["hangs"] += outcome == "hung"
            result["by"] = by or result["by"]
    finally:
        path.write_text(original)
        builder.source_has_changed()
        result["seconds"] = round(time.monotonic() - begin, 1)
    if "equivalent" in mutant:
        result["verdict"] = "equivalent" if result["kills"] == 0 else "killed"
    else:
        # At least 19 of 20.
        result["verdict"] = "killed" if result["kills"] * 20 >= result["runs"] * 19 else "survived"
    return result


def expected(mutant):
    return "equivalent" if "equivalent" in mutant else "killed"


def check_unmutated(mutants, builder):
    """The tests must pass without a defect, otherwise their failure is meaningless."""
    commands = sorted({command for mutant in mutants for command in commands_of(mutant)})
    for command in commands:
        outcome, _ = builder.outcome([command])
        if outcome == "broken":
            raise Failure(f"{command} does not compile without a mutant:\n{builder.errors}")
        if outcome != "passed":
            raise Failure(f"{command} {outcome} without a mutant")


def line_of(result):
    by = result["by"] or ""
    how = f"{result['kills']}/{result['runs']}" if result["runs"] > 1 else ("hang" if result["hangs"] else "")
    return f"{result['verdict']:<10} {result['name']:<52} {result['seconds']:>6.1f} s {how:>6}  {by}"


def record(path, mutants, results):
    """Writes the Markdown record."""
    verdicts = {result["name"]: result for result in results}
    lines = [
        "# Mutants",
        "",
        "Written by `scripts/mutants.sh --record scripts/mutants/RECORD.md`; the lists are next to this file.",
        "",
        "| crate | mutants | killed | of these by a hang | equivalent | others |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for crate in sorted(ALL_SUITES):
        of_crate = [verdicts[mutant["name"]] for mutant in mutants if mutant["crate"] == crate]
        count = lambda verdict: sum(result["verdict"] == verdict for result in of_crate)
        hangs = sum(result["hangs"] > 0 for result in of_crate)
        others = len(of_crate) - count("killed") - count("equivalent")
        lines.append(f"| {crate} | {len(of_crate)} | {count('killed')} | {hangs} | {count('equivalent')} | {others} |")
    lines += ["", "## Equivalent", "", "No test can distinguish these from the original, for the reason given.", ""]
    for mutant in mutants:
        if "equivalent" in mutant:
            lines.append(f"* `{mutant['name']}`: {mutant['equivalent']}")
    unexpected = [mutant for mutant in mutants if verdicts[mutant["name"]]["verdict"] != expected(mutant)]
    if unexpected:
        lines += ["", "## Not as expected", ""]
        lines += [f"* `{mutant['name']}`: {verdicts[mutant['name']]['verdict']}" for mutant in unexpected]
    lines += ["", "## Killed", "", "| mutant | by |", "| --- | --- |"]
    for mutant in mutants:
        result = verdicts[mutant["name"]]
        if result["verdict"] == "killed" and "killed_by" in mutant:
            hang = " (hangs)" if result["hangs"] else ""
            lines.append(f"| `{mutant['name']}` | `{result['by']}`{hang} |")
    path.write_text("\n".join(lines) + "\n")


def main():
    arguments = parse_arguments()
    mutants = load(arguments)
    if arguments.list:
        for mutant in mutants:
            print(f"{expected(mutant):<10} {mutant['name']:<52} {mutant['file']}")
        return 0
    stale = [mutant["name"] for mutant in mutants if mutate(mutant, ROOT) is None]
    if arguments.check or arguments.quick:
        for name in stale:
            print(f"stale: {name}: its text is not found exactly once; bring the list up to date", file=sys.stderr)
        if stale or arguments.check:
            print(f"mutants.sh: {len(mutants) - len(stale)} of {len(mutants)} mutants apply", file=sys.stderr)
            return int(bool(stale))
    if arguments.quick:
        mutants = [mutant for mutant in mutants if mutant["name"] == QUICK]
    if arguments.skip_equivalent:
        mutants = [mutant for mutant in mutants if "equivalent" not in mutant]
    builder = Builder(arguments.work, arguments.timeout)
    copy_tree(builder.tree)
    check_unmutated(mutants, builder)
    results = []
    for mutant in mutants:
        result = test(mutant, builder, arguments.repeat)
        results.append(result)
        mark = "" if result["verdict"] == expected(mutant) else "   <-- expected " + expected(mutant)
        print(line_of(result) + mark, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    wrong = sum(result["verdict"] != expected(mutant) for mutant, result in zip(mutants, results))
    if arguments.json:
        print(json.dumps({"mutants": results, "unexpected": wrong}, indent=2))
    if arguments.record:
        record(arguments.record, mutants, results)
    print(f"mutants.sh: {len(results)} mutants, {wrong} with an unexpected verdict", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        print(f"mutants.sh: {failure}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
