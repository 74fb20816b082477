//! Runs one script, directive by directive.
//!
//! A module that could not be loaded leaves a gap: later directives that depend on it fail for the
//! same reason, and are skipped if the module is.

use std::collections::HashMap;
use std::io::Write;
use std::sync::LazyLock;
use std::thread::{self, Scope, ScopedJoinHandle};

use tempfile::NamedTempFile;
use wasm_jit::{
    BoundsChecks, Config, Engine, Error, FuncType, Instance, Linker, Module, ProbeSites, SharedMemory, Store,
    Trap, Val, ValType,
};
use wast::lexer::Lexer;
use wast::parser::{self, ParseBuffer};
use wast::token::Id;
use wast::{QuoteWat, QuoteWatTest, Wast, WastDirective, WastExecute, WastInvoke, WastThread, Wat};

use crate::files::File;
use crate::probes;
use crate::skipped::Skipped;
use crate::spectest;
use crate::tally::Tally;
use crate::values;

fn has(flag: &str) -> bool {
    std::env::args().any(|argument| argument == flag)
}

/// An engine with the settings of the command line.
fn engine() -> Engine {
    let mut config = Config::new();
    config.harden_speculation(has("--harden-speculation"));
    if has("--bounds-checks") {
        config.bounds_checks(BoundsChecks::Instructions);
    }
    if has("--no-avx512") {
        config.avx512(false);
    }
    config.collects_always(has("--collect-always"));
    config.lazy_compilation(has("--lazy"));
    if has("--probe-sites") {
        config.probe_sites(ProbeSites::Branches);
    }
    if probes::need_sites() {
        config.probe_sites(ProbeSites::All);
    }
    Engine::new(&config).expect("the configuration is possible")
}

/// All scripts share one engine.
static ENGINE: LazyLock<Engine> = LazyLock::new(engine);

/// With `--precompiled`, the engine that compiles the modules which the other one runs. Types have
/// other ids in it.
static COMPILER: LazyLock<Option<Engine>> = LazyLock::new(|| {
    has("--precompiled").then(|| {
        let engine = engine();
        let other = FuncType::new([ValType::I32; 9], []);
        engine.func_type_id(&other).expect("the type refers to no other type");
        engine
    })
});

/// Runs all of a script.
pub(crate) fn run(file: &File, skipped: &Skipped) -> Tally {
    let mut lexer = Lexer::new(&file.text);
    lexer.allow_confusing_unicode(true);
    let buffer = match ParseBuffer::new_with_lexer(lexer) {
        Ok(buffer) => buffer,
        Err(error) => return Tally::failed(format!("{}: {error}", file.path)),
    };
    let directives = match parser::parse::<Wast<'_>>(&buffer) {
        Ok(script) => script.directives,
        Err(error) => return Tally::failed(format!("{}: {error}", file.path)),
    };
    thread::scope(|scope| match Script::new(file, skipped, scope) {
        Ok(script) => script.run(directives),
        Err(error) => Tally::failed(format!("{}: {error}", file.path)),
    })
}

/// A failed directive.
#[derive(Debug)]
enum Failure {
    Wrong(String),
    /// It depends on the module of that line, which could not be loaded.
    NoModule(usize),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Wrong(message)
    }
}

/// The reason why code did not complete.
#[derive(Debug)]
enum Stop {
    Engine(Error),
    Failure(Failure),
}

impl<F: Into<Failure>> From<F> for Stop {
    fn from(failure: F) -> Self {
        Self::Failure(failure.into())
    }
}

impl Stop {
    /// For a directive that expects another outcome.
    fn unexpected(self) -> Failure {
        match self {
            Self::Engine(error) => Failure::Wrong(error.to_string()),
            Self::Failure(failure) => failure,
        }
    }
}

/// The meaning of a name.
#[derive(Clone, Debug)]
enum Named {
    Instance(Instance),
    /// The shared memories of another thread's instance, by name.
    Shared(Vec<(String, SharedMemory)>),
    Gap(usize),
}

/// The state of a script, or of a thread of it.
struct Script<'s, 'e, 'a> {
    file: &'s File,
    skipped: &'s Skipped,
    scope: &'s Scope<'s, 'e>,
    store: Store<()>,
    linker: Linker<()>,
    /// The module or instance of directives that name none.
    current: Option<Named>,
    named: HashMap<&'a str, Named>,
    /// The module that was defined last, and those with a name.
    definition: Option<Result<Module, usize>>,
    definitions: HashMap<&'a str, Result<Module, usize>>,
    threads: HashMap<&'a str, ScopedJoinHandle<'s, Tally>>,
}

impl<'s, 'e, 'a: 's> Script<'s, 'e, 'a> {
    fn new(file: &'s File, skipped: &'s Skipped, scope: &'s Scope<'s, 'e>) -> Result<Self, Error> {
        let mut store = Store::new(&ENGINE, ());
        let mut linker = Linker::new(&ENGINE);
        linker.allow_shadowing(true);
        spectest::define(&mut store, &mut linker)?;
        Ok(Self {
            file,
            skipped,
            scope,
            store,
            linker,
            current: None,
            named: HashMap::new(),
            definition: None,
            definitions: HashMap::new(),
            threads: HashMap::new(),
        })
    }

    fn run(mut self, directives: Vec<WastDirective<'a>>) -> Tally {
        let mut tally = Tally::default();
        let whole = self.skipped.whole(&self.file.path);
        for directive in directives {
            let kind = kind(&directive);
            let line = directive.span().linecol_in(&self.file.text).0 + 1;
            let result = self.directive(directive, line, &mut tally);
            let at = match result {
                Err(Failure::NoModule(module)) => module,
                _ => line,
            };
            let reason = whole.as_ref().map(|whole| whole.reason(result.is_err()));
            match (result, reason) {
                (_, Some(reason)) => *tally.skipped.entry(reason).or_default() += 1,
                (Ok(()), None) => *tally.passed.entry(kind).or_default() += 1,
                (Err(failure), None) => match (self.skipped.line(&self.file.path, at), failure) {
                    (Some(reason), _) => *tally.skipped.entry(reason).or_default() += 1,
                    (None, Failure::Wrong(message)) => {
                        tally.failures.push(format!("{}:{line}: {kind}: {message}", self.file.path));
                    }
                    (None, Failure::NoModule(module)) => {
                        tally
                            .failures
                            .push(format!("{}:{line}: {kind}: needs line {module}", self.file.path));
                    }
                },
            }
        }
        tally
    }

    fn directive(
        &mut self,
        directive: WastDirective<'a>,
        line: usize,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        match directive {
            WastDirective::Module(module) => self.module(module, line),
            WastDirective::ModuleDefinition(module) => {
                let name = module.name();
                let module = load(module);
                let defined = module.as_ref().map(Module::clone).map_err(|_| line);
                if let Some(name) = name {
                    self.definitions.insert(name.name(), defined.clone());
                }
                self.definition = Some(defined);
                module.map(drop).map_err(|refusal| Failure::Wrong(refusal.to_string()))
            }
            WastDirective::ModuleInstance { instance, module, .. } => {
                let module = match module {
                    Some(name) => self.definitions.get(name.name()),
                    None => self.definition.as_ref(),
                };
                let module = module.ok_or_else(|| "no module has this name".to_owned())?.clone();
                let result = module.map_err(Failure::NoModule).and_then(|module| {
                    self.instantiate(&module).map_err(|error| Failure::Wrong(error.to_string()))
                });
                self.enter(instance, result, line)
            }
            WastDirective::Register { name, module, .. } => match self.named(module)? {
                Named::Instance(instance) => self
                    .linker
                    .instance(&mut self.store, name, instance)
                    .map(drop)
                    .map_err(|error| Failure::Wrong(error.to_string())),
                Named::Shared(memories) => {
                    for (field, memory) in memories {
                        self.linker
                            .define(&mut self.store, name, &field, memory)
                            .map_err(|error| error.to_string())?;
                    }
                    Ok(())
                }
                Named::Gap(line) => Err(Failure::NoModule(line)),
            },
            WastDirective::Invoke(invoke) => self.invoke(invoke).map(drop).map_err(Stop::unexpected),
            WastDirective::AssertReturn { exec, results, .. } => {
                let values = self.execute(exec).map_err(Stop::unexpected)?;
                Ok(values::check_results(&self.store, &values, &results)?)
            }
            WastDirective::AssertTrap { exec, message, .. } => {
                let stop = self.execute(exec).map(drop);
                check_trap(stop, message)
            }
            WastDirective::AssertExhaustion { call, message, .. } => {
                let stop = self.invoke(call).map(drop);
                check_trap(stop, message)
            }
            WastDirective::AssertException { exec, .. } => match self.execute(exec) {
                Ok(_) => Err("returned".to_owned().into()),
                Err(Stop::Engine(Error::Exception { .. })) => Ok(()),
                Err(other) => Err(other.unexpected()),
            },
            WastDirective::AssertInvalid { module, .. } => match load(module) {
                Ok(_) => Err("was accepted".to_owned().into()),
                Err(Refusal::Engine(Error::Invalid { .. })) => Ok(()),
                Err(other) => Err(other.to_string().into()),
            },
            WastDirective::AssertMalformed { module, .. } => match load(module) {
                Ok(_) => Err("was accepted".to_owned().into()),
                Err(Refusal::Engine(Error::Invalid { .. } | Error::Text { .. }) | Refusal::Text(_)) => Ok(()),
                Err(other) => Err(other.to_string().into()),
            },
            WastDirective::AssertUnlinkable { module, .. } => {
                let module = load(QuoteWat::Wat(module)).map_err(|refusal| refusal.to_string())?;
                match self.instantiate(&module) {
                    Ok(_) => Err("was linked".to_owned().into()),
                    Err(Error::UnknownImport { .. } | Error::IncompatibleImport { .. }) => Ok(()),
                    Err(other) => Err(other.to_string().into()),
                }
            }
            WastDirective::Thread(thread) => self.thread(thread),
            WastDirective::Wait { thread, .. } => {
                let handle = self.threads.remove(thread.name()).ok_or_else(|| "no such thread".to_owned())?;
                tally.add(handle.join().map_err(|_| "the thread panicked".to_owned())?);
                Ok(())
            }
            WastDirective::AssertInvalidCustom { .. }
            | WastDirective::AssertMalformedCustom { .. }
            | WastDirective::AssertSuspension { .. } => Err("unknown kind of directive".to_owned().into()),
        }
    }

    /// Loads a module, instantiates it, and makes it the current one.
    fn module(&mut self, module: QuoteWat<'a>, line: usize) -> Result<(), Failure> {
        let name = module.name();
        let result = load(module).map_err(|refusal| refusal.to_string()).and_then(|module| {
            self.definition = Some(Ok(module.clone()));
            if let Some(name) = name {
                self.definitions.insert(name.name(), Ok(module.clone()));
            }
            self.instantiate(&module).map_err(|error| error.to_string())
        });
        self.enter(name, result.map_err(Failure::Wrong), line)
    }

    fn instantiate(&mut self, module: &Module) -> Result<Instance, Error> {
        self.linker.instantiate(&mut self.store, module)
    }

    /// Makes this the current instance, or the gap that stands for it.
    fn enter(
        &mut self,
        name: Option<Id<'a>>,
        result: Result<Instance, Failure>,
        line: usize,
    ) -> Result<(), Failure> {
        let named = match &result {
            Ok(instance) => Named::Instance(*instance),
            Err(Failure::NoModule(line)) => Named::Gap(*line),
            Err(Failure::Wrong(_)) => Named::Gap(line),
        };
        if let Some(name) = name {
            self.named.insert(name.name(), named.clone());
        }
        self.current = Some(named);
        result.map(drop)
    }

    fn named(&self, name: Option<Id<'a>>) -> Result<Named, Failure> {
        let named = match name {
            Some(name) => self.named.get(name.name()),
            None => self.current.as_ref(),
        };
        Ok(named.ok_or_else(|| "no instance has this name".to_owned())?.clone())
    }

    fn instance(&self, name: Option<Id<'a>>) -> Result<Instance, Failure> {
        match self.named(name)? {
            Named::Instance(instance) => Ok(instance),
            Named::Shared(_) => Err("this instance is another thread's".to_owned().into()),
            Named::Gap(line) => Err(Failure::NoModule(line)),
        }
    }

    fn execute(&mut self, execute: WastExecute<'a>) -> Result<Vec<Val>, Stop> {
        match execute {
            WastExecute::Invoke(invoke) => self.invoke(invoke),
            WastExecute::Wat(module) => {
                let module = load(QuoteWat::Wat(module)).map_err(|refusal| refusal.to_string())?;
                self.instantiate(&module).map(|_| Vec::new()).map_err(Stop::Engine)
            }
            WastExecute::Get { module, global, .. } => {
                let instance = self.instance(module)?;
                let found = instance.get_global(&mut self.store, global);
                Ok(vec![found.ok_or_else(|| format!("no global {global}"))?.get(&mut self.store)])
            }
        }
    }

    fn invoke(&mut self, invoke: WastInvoke<'a>) -> Result<Vec<Val>, Stop> {
        let instance = self.instance(invoke.module)?;
        let func = instance.get_func(&mut self.store, invoke.name);
        let func = func.ok_or_else(|| format!("no function {}", invoke.name))?;
        let arguments = invoke.args.iter().map(values::argument);
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let mut results = vec![Val::I32(0); func.ty(&self.store).results().len()];
        func.call(&mut self.store, &arguments, &mut results).map_err(Stop::Engine)?;
        Ok(results)
    }

    /// Starts a thread with a store of its own.
    fn thread(&mut self, thread: WastThread<'a>) -> Result<(), Failure> {
        let mut shared = None;
        if let Some(name) = thread.shared_module {
            let instance = self.instance(Some(name))?;
            let memories = instance.exports(&mut self.store).filter_map(|export| {
                let name = export.name().to_owned();
                Some((name, export.into_extern().into_shared_memory()?))
            });
            shared = Some((name.name(), Named::Shared(memories.collect())));
        }
        let (file, skipped, scope) = (self.file, self.skipped, self.scope);
        let handle = scope.spawn(move || match Script::new(file, skipped, scope) {
            Ok(mut script) => {
                script.named.extend(shared);
                script.run(thread.directives)
            }
            Err(error) => Tally::failed(format!("{}: {error}", file.path)),
        });
        self.threads.insert(thread.name.name(), handle);
        Ok(())
    }
}

/// The reason why a module could not be loaded.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("text: {0}")]
    Text(wast::Error),
    #[error("{0}")]
    Engine(Error),
}

fn load(mut module: QuoteWat<'_>) -> Result<Module, Refusal> {
    let bytes = match module.to_test().map_err(Refusal::Text)? {
        QuoteWatTest::Binary(bytes) => bytes,
        QuoteWatTest::Text(text) => assemble(&text).map_err(Refusal::Text)?,
    };
    let module = match &*COMPILER {
        None => Module::new(&ENGINE, &bytes).map_err(Refusal::Engine)?,
        Some(compiler) => {
            let module = Module::new(compiler, &bytes).map_err(Refusal::Engine)?;
            let mut stored = NamedTempFile::new().expect("a temporary file can be made");
            let contents = module.serialize().map_err(Refusal::Engine)?;
            stored.write_all(&contents).expect("a temporary file can be written");
            // SAFETY: just serialized; nobody else knows the file, which is removed.
            unsafe { Module::deserialize_file(&ENGINE, stored.path()) }.map_err(Refusal::Engine)?
        }
    };
    probes::attach(&module);
    Ok(module)
}

fn assemble(text: &[u8]) -> Result<Vec<u8>, wast::Error> {
    let malformed = |_| wast::Error::new(wast::token::Span::from_offset(0), "malformed UTF-8".to_owned());
    let buffer = ParseBuffer::new(std::str::from_utf8(text).map_err(malformed)?)?;
    parser::parse::<Wat<'_>>(&buffer)?.encode()
}

/// Checks that the outcome is the trap with this message.
fn check_trap(result: Result<(), Stop>, expected: &str) -> Result<(), Failure> {
    let expected = match expected {
        // The names that null references of a kind have.
        "null function reference"
        | "null array reference"
        | "null structure reference"
        | "null i31 reference" => "null reference",
        other => other,
    };
    match result {
        Ok(()) => Err(format!("no trap instead of {expected:?}").into()),
        Err(Stop::Engine(Error::Trap { trap, .. })) => {
            if message(trap)
                .is_some_and(|message| message.starts_with(expected) || expected.starts_with(message))
            {
                Ok(())
            } else {
                Err(format!("trap {trap:?} instead of {expected:?}").into())
            }
        }
        Err(other) => Err(other.unexpected()),
    }
}

/// The suite's name of a trap. Its text may be a prefix of this, or add an index.
fn message(trap: Trap) -> Option<&'static str> {
    Some(match trap {
        Trap::StackOverflow => "call stack exhausted",
        Trap::MemoryOutOfBounds => "out of bounds memory access",
        Trap::HeapMisaligned => "unaligned atomic",
        Trap::TableOutOfBounds => "out of bounds table access",
        Trap::UndefinedElement => "undefined element",
        Trap::IndirectCallToNull => "uninitialized element",
        Trap::BadSignature => "indirect call type mismatch",
        Trap::IntegerOverflow => "integer overflow",
        Trap::IntegerDivisionByZero => "integer divide by zero",
        Trap::BadConversionToInteger => "invalid conversion to integer",
        Trap::UnreachableCodeReached => "unreachable",
        Trap::NullReference => "null reference",
        Trap::CastFailure => "cast failure",
        Trap::ArrayOutOfBounds => "out of bounds array access",
        Trap::AtomicWaitNonSharedMemory => "expected shared memory",
        _ => return None,
    })
}

fn kind(directive: &WastDirective<'_>) -> &'static str {
    match directive {
        WastDirective::Module(_) => "module",
        WastDirective::ModuleDefinition(_) => "module definition",
        WastDirective::ModuleInstance { .. } => "module instance",
        WastDirective::AssertMalformed { .. } => "assert_malformed",
        WastDirective::AssertInvalid { .. } => "assert_invalid",
        WastDirective::AssertInvalidCustom { .. } => "assert_invalid_custom",
        WastDirective::Register { .. } => "register",
        WastDirective::Invoke(_) => "invoke",
        WastDirective::AssertTrap { .. } => "assert_trap",
        WastDirective::AssertReturn { .. } => "assert_return",
        WastDirective::AssertExhaustion { .. } => "assert_exhaustion",
        WastDirective::AssertUnlinkable { .. } => "assert_unlinkable",
        WastDirective::AssertException { .. } => "assert_exception",
        WastDirective::AssertSuspension { .. } => "assert_suspension",
        WastDirective::Thread(_) => "thread",
        WastDirective::Wait { .. } => "wait",
        WastDirective::AssertMalformedCustom { .. } => "assert_malformed_custom",
    }
}
