//! The command: distributes seeds to worker processes, and reports their findings.
//!
//! A worker writes each seed to its standard output before it runs it. If the worker ends by a
//! signal, a panic or a difference, or is silent for `MAX_SILENCE`, the last seed is the finding:
//! it can be run again with `--case`, and shown as text.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use wasm_jit::{BoundsChecks, Config};

use crate::bytes;
use crate::case::{Case, Kind};
use crate::engine::{Engine, load_and_run};
use crate::ours::Ours;
use crate::probed::{self, Done};
use crate::program::{self, Features, Form};
use crate::record::{Difference, Event, Outcome, Record, difference};
use crate::reduce;

/// Maximum time for one seed, and for one with probes, whose programs run many times.
const MAX_SILENCE: Duration = Duration::from_secs(20);
const MAX_SILENCE_PROBED: Duration = Duration::from_secs(60);

/// How often `--case` tries a seed with probes.
const PROBED_TIMES: u32 = 100;

/// Maximum memory use of a worker, in kilobytes.
const MAX_MEMORY: u64 = 1_500_000;

/// Runs random modules under wasm-jit and under another engine, and compares the results.
///
/// Examples:
///   wasm-jit-fuzz --seconds 3600 --seed 7      an hour, starting with seed 7
///   wasm-jit-fuzz --cases 10000000             ten million seeds, however long they take
///   wasm-jit-fuzz --case 123456                one seed again, with the module as text
///   wasm-jit-fuzz --case 123456 --reduce       a smaller module
#[derive(Parser)]
#[command(verbatim_doc_comment)]
struct Options {
    /// Duration in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Number of seeds to run, instead of a duration.
    #[arg(long, conflicts_with = "seconds")]
    cases: Option<u64>,
    /// The first seed; the others follow it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of worker processes.
    #[arg(long)]
    jobs: Option<u64>,
    /// Runs this seed only, and prints the module and its results.
    #[arg(long)]
    case: Option<u64>,
    /// Reduces the module of `--case` as long as the engines differ, and prints only the result.
    #[arg(long, requires = "case")]
    reduce: bool,
    /// Writes the module of `--case` to this file.
    #[arg(long, requires = "case")]
    output: Option<std::path::PathBuf>,
    /// Uses bounds checks by instructions in wasm-jit's code.
    #[arg(long)]
    bounds_checks: bool,
    /// Hardens wasm-jit's code against speculation.
    #[arg(long)]
    harden_speculation: bool,
    /// Uses no AVX-512 in wasm-jit's code.
    #[arg(long)]
    no_avx512: bool,
    /// Collects garbage at each allocation of wasm-jit's programs. Otherwise that is done for a
    /// third of the seeds.
    #[arg(long)]
    collect_always: bool,
    /// Compares the fuel that calls consume, too, if the other engine's instructions cost as much
    /// as wasm-jit's.
    #[arg(long)]
    fuel: bool,
    /// Stores wasm-jit's modules in files, and executes their code there.
    #[arg(long)]
    stored: bool,
    /// Compiles each function of wasm-jit's modules when it is first called.
    #[arg(long, conflicts_with = "stored")]
    lazy: bool,
    /// Runs wasm-jit's code with random probes, which are switched while it runs, and compares
    /// their counts, too. `--case` then tries 100 times, since threads are scheduled differently
    /// each time.
    #[arg(long, conflicts_with = "fuel")]
    probes: bool,
    /// Runs as a worker: the seeds from --seed on, in steps of this size.
    #[arg(long, hide = true)]
    worker: Option<u64>,
}

/// The command's main function, with the reference engine.
pub fn main(mut theirs: impl Engine, mut features: Features) -> ExitCode {
    let options = Options::parse();
    if options.fuel && !features.fuel {
        eprintln!("wasm-jit-fuzz: --fuel: the instructions of {} have other costs", theirs.name());
        return ExitCode::from(2);
    }
    features.fuel = options.fuel;
    if options.fuel {
        theirs.consume_fuel();
    }
    let theirs = &theirs;
    let ours = Engines::new(&options);
    if let Some(seed) = options.case {
        return show(seed, &options, ours.of(seed, &options), theirs, features);
    }
    match options.worker {
        Some(step) => work(&options, step, &ours, theirs, features),
        None => drive(&options),
    }
}

impl Options {
    /// The settings of wasm-jit.
    fn config(&self) -> Config {
        let mut config = Config::new();
        config.consume_fuel(self.fuel).harden_speculation(self.harden_speculation);
        if self.bounds_checks {
            config.bounds_checks(BoundsChecks::Instructions);
        }
        if self.no_avx512 {
            config.avx512(false);
        }
        config.lazy_compilation(self.lazy);
        config
    }

    fn collects_always(&self, seed: u64) -> bool {
        self.collect_always || seed.is_multiple_of(3)
    }

    /// A separate engine for a case with probes.
    fn with_probes(&self, seed: u64) -> Ours {
        let mut config = self.config();
        config.collects_always(self.collects_always(seed));
        probed::configure(&mut config, seed);
        self.ours(&config)
    }

    /// An engine with these settings.
    fn ours(&self, config: &Config) -> Ours {
        let ours = Ours::with_config(config.clone());
        if self.stored { ours.storing() } else { ours }
    }
}

/// Engines for cases without probes.
struct Engines {
    plain: Ours,
    collecting: Ours,
}

impl Engines {
    fn new(options: &Options) -> Self {
        let collecting = options.ours(options.config().collects_always(true));
        Self { plain: options.ours(&options.config()), collecting }
    }

    /// The engine for a seed.
    fn of(&self, seed: u64, options: &Options) -> &Ours {
        if options.collects_always(seed) { &self.collecting } else { &self.plain }
    }
}

fn try_seed(
    seed: u64,
    options: &Options,
    ours: &Ours,
    theirs: &impl Engine,
    features: Features,
    counts: &mut Counts,
) -> Result<(), String> {
    counts.seeds += 1;
    if Kind::of(seed) == Kind::Bytes {
        counts.loaded += u64::from(ours.loads(&bytes::of_seed(seed)));
        return Ok(());
    }
    let Some(case) = Case::new(seed, features) else { return Ok(()) };
    let their = load_and_run(theirs, &case)
        .map_err(|error| format!("{} refuses the module: {error}", theirs.name()))?;
    if options.probes {
        counts.modules += 1;
        let done = probed::run(&options.with_probes(seed), theirs, &case, |our| {
            counts.count(&our);
            compared(&case, our, their.clone()).map_or(Ok(()), |difference| Err(difference.to_string()))
        })?;
        counts.add_done(done);
        return Ok(());
    }
    let our =
        load_and_run(ours, &case).map_err(|error| format!("{} refuses the module: {error}", ours.name()))?;
    counts.modules += 1;
    counts.count(&our);
    match compared(&case, our, their) {
        None => Ok(()),
        Some(difference) => Err(difference.to_string()),
    }
}

/// Runs a case with probes once.
fn try_probes(case: &Case, options: &Options, theirs: &impl Engine) -> Result<(), String> {
    let their = load_and_run(theirs, case)?;
    probed::run(&options.with_probes(case.seed), theirs, case, |our| {
        compared(case, our, their.clone()).map_or(Ok(()), |difference| Err(difference.to_string()))
    })
    .map(drop)
}

fn compared(case: &Case, our: Record, their: Record) -> Option<Difference> {
    let [our, their] =
        [our, their].map(|record| if case.same_nans { record.with_same_nans() } else { record });
    difference(&our, &their)
}

/// Counts of a worker.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    seeds: u64,
    modules: u64,
    returned: u64,
    trapped: u64,
    host: u64,
    loaded: u64,
    done: Done,
}

impl Counts {
    fn count(&mut self, record: &Record) {
        for event in &record.events {
            match event {
                Event::Called { outcome: Outcome::Returned(_), .. } => self.returned += 1,
                Event::Called { .. } => self.trapped += 1,
                Event::Host { .. } => self.host += 1,
                _ => {}
            }
        }
    }

    fn add_done(&mut self, done: Done) {
        self.done.probes += done.probes;
        self.done.changes += done.changes;
        self.done.counts += done.counts;
    }

    fn fields(&mut self) -> [&mut u64; 9] {
        [
            &mut self.seeds,
            &mut self.modules,
            &mut self.returned,
            &mut self.trapped,
            &mut self.host,
            &mut self.loaded,
            &mut self.done.probes,
            &mut self.done.changes,
            &mut self.done.counts,
        ]
    }

    /// The line in which a worker reports them.
    fn line(&mut self) -> String {
        self.fields().map(|field| field.to_string()).join(" ")
    }

    fn add(&mut self, line: &str) {
        for (field, number) in self.fields().into_iter().zip(line.split(' ')) {
            *field += number.parse::<u64>().unwrap_or(0);
        }
    }
}

fn work(options: &Options, step: u64, ours: &Engines, theirs: &impl Engine, features: Features) -> ExitCode {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut counts = Counts::default();
    let mut out = io::stdout().lock();
    let mut seed = options.seed;
    // As many seeds as asked for, or as long.
    while options.cases.map_or_else(|| Instant::now() < end, |cases| counts.seeds < cases) {
        // If the driver is gone, there is nothing left to do.
        if writeln!(out, "seed {seed}").and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
        if let Err(finding) = try_seed(seed, options, ours.of(seed, options), theirs, features, &mut counts) {
            eprintln!("{finding}");
            return ExitCode::FAILURE;
        }
        seed = seed.wrapping_add(step);
    }
    let _ = writeln!(out, "done {}", counts.line());
    match peak_memory() {
        Some(kilobytes) if kilobytes > MAX_MEMORY => {
            eprintln!("used {kilobytes} kB of memory");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Peak memory use of this process, in kilobytes.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// The result of a worker.
struct End {
    last_seed: Option<u64>,
    counts: String,
    /// Its standard error, if it failed.
    finding: Option<String>,
}

fn drive(options: &Options) -> ExitCode {
    let jobs =
        options.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, |jobs| jobs.get() as u64));
    let ends: Vec<End> = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|job| scope.spawn(move || watch(options, job, jobs))).collect();
        workers.into_iter().map(|worker| worker.join().expect("the watching thread does not panic")).collect()
    });
    let mut counts = Counts::default();
    let mut found = false;
    for end in ends {
        counts.add(&end.counts);
        if let Some(finding) = end.finding {
            found = true;
            let seed = end.last_seed.map_or("none".to_owned(), |seed| seed.to_string());
            eprintln!("fuzz: seed {seed} (run it again: --case {seed}):\n{finding}");
        }
    }
    println!(
        "fuzz: {} seeds: {} modules, {} calls returned and {} did not, {} calls of the host; {} of the other bytes were modules",
        counts.seeds, counts.modules, counts.returned, counts.trapped, counts.host, counts.loaded
    );
    if options.probes {
        let Done { probes, changes, counts } = counts.done;
        println!("fuzz: {probes} probes, {changes} changes, {counts} exact counts");
    }
    if found { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Starts a worker, and waits until it ends or is silent for too long.
fn watch(options: &Options, job: u64, jobs: u64) -> End {
    let mut end = End { last_seed: None, counts: String::new(), finding: None };
    let mut child = match start(options, job, jobs) {
        Ok(child) => child,
        Err(error) => {
            end.finding = Some(format!("no worker: {error}"));
            return end;
        }
    };
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take().expect("it was piped");
    let reader = thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let mut stderr = child.stderr.take().expect("it was piped");
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut silent = false;
    let max_silence = if options.probes { MAX_SILENCE_PROBED } else { MAX_SILENCE };
    loop {
        match lines.recv_timeout(max_silence) {
            Ok(line) => {
                if let Some(seed) = line.strip_prefix("seed ") {
                    end.last_seed = seed.parse().ok();
                } else if let Some(counts) = line.strip_prefix("done ") {
                    end.counts = counts.to_owned();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                silent = true;
                let _ = child.kill();
                break;
            }
        }
    }
    let status = child.wait();
    let _ = reader.join();
    let errors = errors.join().unwrap_or_default();
    end.finding = match status {
        _ if silent => Some(format!("takes more than {} s\n{errors}", max_silence.as_secs())),
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{status}\n{errors}")),
        Err(error) => Some(error.to_string()),
    };
    end
}

fn start(options: &Options, job: u64, jobs: u64) -> io::Result<Child> {
    let amount = match options.cases {
        // Those of this worker's seeds that are among the first ones.
        Some(cases) => ["--cases".to_owned(), cases.saturating_sub(job).div_ceil(jobs).to_string()],
        None => ["--seconds".to_owned(), options.seconds.to_string()],
    };
    Command::new(std::env::current_exe()?)
        .args(amount)
        .args(["--seed", &options.seed.wrapping_add(job).to_string()])
        .args(["--worker", &jobs.to_string()])
        .args(options.bounds_checks.then_some("--bounds-checks"))
        .args(options.harden_speculation.then_some("--harden-speculation"))
        .args(options.no_avx512.then_some("--no-avx512"))
        .args(options.fuel.then_some("--fuel"))
        .args(options.collect_always.then_some("--collect-always"))
        .args(options.stored.then_some("--stored"))
        .args(options.lazy.then_some("--lazy"))
        .args(options.probes.then_some("--probes"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Prints the module of a seed and its results in both engines.
fn show(seed: u64, options: &Options, ours: &Ours, theirs: &impl Engine, features: Features) -> ExitCode {
    if Kind::of(seed) == Kind::Bytes {
        let bytes = bytes::of_seed(seed);
        println!("{}", bytes.escape_ascii());
        println!("a module: {}", ours.loads(&bytes));
        return ExitCode::SUCCESS;
    }
    let Some(case) = Case::new(seed, features) else {
        println!("this seed does not generate a module");
        return ExitCode::SUCCESS;
    };
    if let Some(path) = &options.output
        && let Err(error) = std::fs::write(path, &case.wasm)
    {
        eprintln!("{}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if options.reduce {
        let mut found = None;
        let mut differs = |wasm: &[u8]| {
            let mut case = Case { wasm: wasm.to_vec(), ..case.host() };
            if Kind::of(seed) == Kind::Program {
                // The text has none.
                case = case.with_hints();
            }
            if options.probes {
                if theirs.load(&case).is_err() {
                    return false;
                }
                let problem = (0..PROBED_TIMES / 10).find_map(|_| try_probes(&case, options, theirs).err());
                let differs = problem.is_some();
                found = problem.or(found.take());
                return differs;
            }
            match (load_and_run(ours, &case), load_and_run(theirs, &case)) {
                (Ok(our), Ok(their)) => compared(&case, our, their).is_some(),
                (our, their) => our.is_ok() != their.is_ok(),
            }
        };
        let text = match Kind::of(seed) {
            Kind::Program => program::text_of(seed, features, Form::Table),
            _ => case.nested_text(),
        };
        println!("{}", reduce::reduced(&text, &mut differs));
        if let Some(problem) = found {
            println!(";; {problem}");
        }
        return ExitCode::SUCCESS;
    }
    println!("{}", case.text());
    if let Some(legacy) = &case.legacy {
        println!("{}", Case { wasm: legacy.clone(), ..case.host() }.text());
    }
    // Before a possible crash.
    let _ = io::stdout().flush();
    if options.probes {
        return match (0..PROBED_TIMES).try_for_each(|_| try_probes(&case, options, theirs)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(difference) => {
                println!("{difference}");
                ExitCode::FAILURE
            }
        };
    }
    let their = load_and_run(theirs, &case);
    println!("{}: {their:#?}", theirs.name());
    let our = load_and_run(ours, &case);
    println!("{}: {our:#?}", ours.name());
    match (our, their) {
        (Ok(our), Ok(their)) => match compared(&case, our, their) {
            None => ExitCode::SUCCESS,
            Some(difference) => {
                println!("{difference}");
                ExitCode::FAILURE
            }
        },
        _ => ExitCode::FAILURE,
    }
}
