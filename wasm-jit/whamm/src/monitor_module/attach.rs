//! A monitor that is attached to a program.

use std::collections::HashMap;

use wasm_jit::probes::{Scope, WasmFn};
use wasm_jit::{AsContextMut, Error, Instance, Linker, Module, Store, Val};

use super::blame::{Libraries, of_rule};
use super::contents::Contents;
use super::counted::{RuleMatch, choose};
use super::error::MonitorError;
use super::load::MonitorModule;
use super::made::{Callee, Maker, Probes, Switches};
use super::matching::Matching;
use super::names::{Event, Rule};
use super::operands::Functions;
use super::rules::Rules;
use super::strings::Buffer;
use super::time_limit::TimeLimit;

/// A monitor that observes a module. Its probes are removed when it is dropped.
#[derive(Debug)]
pub struct Attached {
    instance: Instance,
    probes: Probes,
    last: Last,
    unfit: Vec<Unfit>,
}

impl Attached {
    /// The instance of the monitor, with everything that was counted until now.
    ///
    /// If the program continues, what the engine counts for rules that only add constants appears
    /// in the instance when this is called again, or by [`Attached::finish`]. It is lost if the
    /// monitor is dropped before.
    ///
    /// # Panics
    /// If the store is not the one in which the monitor was attached.
    pub fn instance(&self, store: impl AsContextMut) -> &Instance {
        self.probes.settle(&self.instance, store);
        &self.instance
    }

    /// The number of places at which functions of the monitor are called, or the engine counts for
    /// them, in functions that have been called so far.
    pub fn probes(&self) -> usize {
        self.probes.count().0
    }

    /// The number of places at which the engine counts, in functions that have been called so far.
    pub fn counters(&self) -> usize {
        self.probes.count().1
    }

    /// The rules that observe nothing, because no place has values of their types.
    pub fn unfit(&self) -> &[Unfit] {
        &self.unfit
    }

    /// Calls the functions of the rules `wasm:end`, then `wasm:exit`. They are called once, however
    /// often this is called.
    ///
    /// # Errors
    /// [`MonitorError::Failed`]: a rule of a script has failed, and no function is called.
    /// [`MonitorError::Run`]: a function failed, and the remaining ones are not called.
    /// [`MonitorError::Incomplete`]: all functions were called, but a rule was not observed in a
    /// function that was called.
    pub fn finish<T: 'static>(&mut self, store: &mut Store<T>) -> Result<(), MonitorError> {
        self.probes.end()?;
        self.instance(&mut *store);
        for (export, arguments) in std::mem::take(&mut self.last) {
            run(store, &self.instance, &export, &arguments)?;
        }
        self.probes.take_refused().map_or(Ok(()), Err)
    }
}

/// Rules of the end, with the constants for their functions.
pub(crate) type Last = Vec<(String, Vec<Val>)>;

pub(super) fn run<T: 'static>(
    store: &mut Store<T>,
    instance: &Instance,
    export: &str,
    arguments: &[Val],
) -> Result<(), MonitorError> {
    let function = instance.get_func(&*store, export).expect("it was there when the module was loaded");
    let done = function.call(&mut *store, arguments, &mut []);
    done.map_err(|source| MonitorError::Run { export: export.to_owned(), source: Box::new(source) })
}

/// A monitor that was instantiated, with the matches of its rules.
pub(crate) struct Matched {
    pub(crate) instance: Instance,
    pub(crate) found: Vec<RuleMatch>,
    /// The functions by rule.
    pub(crate) functions: Vec<WasmFn>,
    pub(crate) last: Last,
    pub(super) switches: Switches,
    pub(super) unfit: Vec<Unfit>,
    pub(super) libraries: Libraries,
}

/// A rule that observes nothing, because the places of its event do not have the values that it
/// binds, or have them in other types than its function's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The name of the rule's export.
    pub export: String,
    /// The number of places of the rule's event.
    pub places: usize,
}

impl MonitorModule {
    /// Instantiates the monitor and its libraries in a store, and creates probes in a module, which
    /// fire in its instances in this store. If the module has no instances yet, the probes of a
    /// function are created when it is first called.
    ///
    /// The linker provides the imports of the libraries and the monitor, such as WASI. The
    /// libraries' exports are added to it.
    ///
    /// If a rule of a [script](crate::lang::Script) fails, by a division by zero for instance, the
    /// monitor observes nothing more, and the program continues. A function of another monitor that
    /// traps ends the program's call with this trap.
    ///
    /// # Errors
    /// The errors of instantiation, of functions that are called at match time, and of creating
    /// probes. No probes are left then.
    ///
    /// # Panics
    /// If the store, the linker, the modules and the program's module belong to different engines.
    pub fn attach<T: 'static>(
        &self,
        store: &mut Store<T>,
        linker: &mut Linker<T>,
        program: &Module,
    ) -> Result<Attached, MonitorError> {
        let Matched { instance, found, functions, last, switches, unfit, .. } =
            self.matched(store, linker, program)?;
        let callees = functions.into_iter().map(Callee::Function).collect();
        let scope = Scope::Store(store.id());
        let maker = Maker { program: program.clone(), scope, exports: self.names(), callees };
        let probes = Probes::new(maker, found, &switches, true);
        probes.switch(true)?;
        Ok(Attached { instance, probes, last, unfit })
    }

    /// The names of the rules.
    pub(crate) fn names(&self) -> Vec<String> {
        self.rules.iter().map(|(export, _)| export.clone()).collect()
    }

    /// The rules that match places, but none with their values, and the numbers of these places.
    /// A compiled script has several exports for one rule if a value has several types, and one
    /// that has matches is enough.
    fn unfit(&self, found: &[RuleMatch], unfit: &[usize]) -> Vec<Unfit> {
        let mut matches = vec![false; self.rules.len()];
        found.iter().for_each(|found| matches[found.rule] = true);
        let of_matches = self.rules.iter().zip(&matches).filter(|(_, matches)| **matches);
        let found: Vec<&Rule> = of_matches.map(|((_, rule), _)| rule).collect();
        let is_variant = |rule: &Rule| found.iter().any(|found| found.is_variant_of(rule));
        let all = self.rules.iter().zip(unfit).zip(&matches);
        let nothing =
            all.filter(|(((_, rule), places), matches)| **places > 0 && !**matches && !is_variant(rule));
        nothing.map(|(((export, _), places), _)| Unfit { export: export.clone(), places: *places }).collect()
    }

    /// Instantiates the monitor and its libraries, and matches the rules with a program.
    pub(crate) fn matched<T: 'static>(
        &self,
        store: &mut Store<T>,
        linker: &mut Linker<T>,
        program: &Module,
    ) -> Result<Matched, MonitorError> {
        let mut limit = TimeLimit::new(store.interrupt_handle(), self.call_limit);
        let mut libraries = Libraries::default();
        for (name, library) in &self.libraries {
            let failed = |source| instantiate_error(name, source);
            limit.renew();
            let instance = start(store, linker, library).map_err(|source| match limit.has_passed() {
                true => self.too_slow(format!("the start of the library `{name}`")),
                false => failed(source),
            })?;
            libraries.add(&*store, &instance, name, library);
            linker.instance(&mut *store, name, instance).map_err(failed)?;
        }
        let failed = |source| instantiate_error("monitor", source);
        let switches = Switches::default();
        // Each monitor has its own.
        let mut own = linker.clone();
        switches.define(own.allow_shadowing(true), &self.clock).map_err(failed)?;
        limit.renew();
        let began = start(store, &own, &self.module);
        let instance = began.map_err(|source| self.begin_error(&limit, &libraries, source))?;
        let buffer = self.has_strings.then(|| Buffer::of(store, &instance)).transpose()?;
        let functions = self.rules.iter().map(|(export, _)| {
            let function = instance.get_func(&*store, export).expect("checked when it was loaded");
            WasmFn::new(&*store, function)
                .map_err(|source| MonitorError::Probe { export: export.clone(), source })
        });
        let functions = functions.collect::<Result<_, _>>()?;
        let mut matching = Matching {
            monitor: self,
            store,
            instance: &instance,
            buffer,
            functions,
            rules: Rules::of(self),
            found: Vec::new(),
            unfit: vec![0; self.rules.len()],
            limit,
            libraries,
            callees: HashMap::new(),
            interned: HashMap::new(),
        };
        let mut operands = Functions::of(program, self.rules.iter().map(|(_, rule)| rule));
        matching.once(&Event::Begin, |matching, export, arguments| {
            matching.limit.renew();
            run(matching.store, matching.instance, export, &arguments).map_err(|error| {
                match matching.limit.has_passed() {
                    true => self.too_slow(format!("the export `{export}`")),
                    false => error,
                }
            })
        })?;
        for function in program.functions() {
            let operands = operands.as_mut().and_then(|all| all.operands(function.index()));
            matching.function(program, function, operands.as_ref())?;
        }
        let mut last = Vec::new();
        for event in [Event::End, Event::LastEnd] {
            matching.once(&event, |_, export, arguments| {
                last.push((export.to_owned(), arguments));
                Ok(())
            })?;
        }
        let Matching { mut found, functions, unfit, libraries, .. } = matching;
        let unfit = self.unfit(&found, &unfit);
        let mut contents = Contents::of(&self.module, &instance, &mut *store);
        let indices = self.rules.iter().map(|(export, _)| contents.exported(export));
        let functions: Vec<_> = functions.into_iter().zip(indices).collect();
        if self.always_calls {
            found.iter_mut().for_each(|found| found.group = None);
        } else {
            let are_sums: Vec<bool> =
                self.rules().map(|export| self.described.sums.contains(export)).collect();
            choose(&mut found, &functions, &are_sums, &mut contents);
        }
        let functions = functions.into_iter().map(|(function, _)| function).collect();
        Ok(Matched { instance, found, functions, last, switches, unfit, libraries })
    }

    /// The error of a monitor that cannot be started.
    fn begin_error(&self, limit: &TimeLimit, libraries: &Libraries, source: Error) -> MonitorError {
        let name = libraries.executed(&source).map(|name| libraries.with_called(name, &source));
        match (of_rule(source), name) {
            (Ok((name, source)), _) => MonitorError::Begin { name, source: Box::new(source) },
            (Err(_), name) if limit.has_passed() => {
                self.too_slow(name.unwrap_or_else(|| "the start of the monitor".to_owned()))
            }
            (Err(source), Some(name)) => MonitorError::Begin { name, source: Box::new(source) },
            (Err(source), None) => instantiate_error("monitor", source),
        }
    }

    fn too_slow(&self, name: String) -> MonitorError {
        MonitorError::TooSlow { name, when: "when the monitor is attached", limit: self.call_limit }
    }
}

fn instantiate_error(module: &str, source: Error) -> MonitorError {
    MonitorError::Instantiate { module: module.to_owned(), source: Box::new(source) }
}

/// An instance that is initialized.
fn start<T: 'static>(store: &mut Store<T>, linker: &Linker<T>, module: &Module) -> Result<Instance, Error> {
    let instance = linker.instantiate(&mut *store, module)?;
    if let Some(initialize) = instance.get_func(&*store, "_initialize") {
        initialize.typed::<(), ()>(&*store)?.call(&mut *store, ())?;
    }
    Ok(instance)
}
