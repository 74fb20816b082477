//! Frees the stubs of lists, and the objects to which the probes of these lists refer.
//!
//! A list's stubs are kept when its probes are switched off, so that switching them on again
//! generates nothing. The stubs of all versions are freed together, when
//! 1. no site jumps to them: the site has another form;
//! 2. no thread is in them or will return to one
//!    ([`Counters::code_in_use`](super::counters::Counters::code_in_use)); only frames of stores
//!    that have an instance of the module can be in a stub;
//! 3. no forked child executes them: its pages are others ([`forks`](crate::code::forks));
//! 4. memory is needed: either a multiple of the memory in use at the last time is in use, or there
//!    is a multiple of the idle lists with recorders, and one of the list's probes has been
//!    removed; or the limit is reached, and all of the list's probes are off (they get new stubs
//!    when they are switched on).
//!
//! Lists that sites have left are remembered as *idle* ([`Changes::add_idle`]). A pass examines
//! only these, so its time is proportional to their number, not to the number of sites. At the
//! limit, there is no pass without an idle list, and passes that free nothing, because threads are
//! in the stubs, become rarer ([`StubMemory::may_reclaim`](super::stub_memory::StubMemory)):
//! refusing a probe takes constant time.
//!
//! The table of blocks keeps an entry for the freed block, without a length. Return addresses in
//! the stub are removed from caches that are keyed by them. A backtrace contains positions of
//! instructions, not addresses in stubs ([`WasmBacktrace`](crate::WasmBacktrace)). What the list
//! owns (closures) is dropped when the lock of changes has been released, because its destructors
//! may change probes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use wordpatch::text;

use super::stubs::{Form, ProbeAction};
use super::{Changes, FunctionState, ProbeState};
use crate::code::{CodeImage, forks};

/// The lists that may be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unneeded {
    /// The lists with a probe that has been removed.
    Removed,
    /// All lists whose probes are off.
    Off,
}

/// A list at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListAt {
    pub function: u32,
    pub position: u32,
    pub number: u32,
}

impl Changes {
    /// Records that a site has left a list, or never got it: the list's stubs may be freed when
    /// memory is needed.
    pub(super) fn add_idle(&mut self, at: ListAt) {
        if let Some(list) = self.site(at.function, at.position).find_list_mut(at.number)
            && !std::mem::replace(&mut list.is_idle, true)
        {
            let has_recorder = list.has_recorder();
            self.idle.push(at);
            self.stubs.list_is_idle(has_recorder);
        }
    }

    /// Frees the stubs of lists that are not needed and in which no thread is, except those of the
    /// list `keep`. Returns whether any were freed.
    pub(super) fn reclaim(&mut self, image: &Arc<CodeImage>, unneeded: Unneeded, keep: ListAt) -> bool {
        let lists = self.unneeded_lists(unneeded, keep);
        let mut stubs: Vec<(Range<usize>, usize)> = Vec::new();
        for (number, at) in lists.iter().enumerate() {
            let starts = self.site(at.function, at.position).list(at.number).stubs;
            let blocks = starts.iter().filter_map(|start| image.probed().blocks.find(*start));
            stubs.extend(blocks.map(|block| (block.start..block.end, number)));
        }
        stubs.sort_unstable_by_key(|(stub, _)| stub.start);
        let (stubs, list_of): (Vec<Range<usize>>, Vec<usize>) = stubs.into_iter().unzip();
        let used = match stubs.is_empty() {
            true => Some(Vec::new()),
            // SAFETY: no site jumps to the stubs, whose lists no site has, and a stub ends with a
            // jump.
            false => unsafe { image.counters.code_in_use(&stubs) },
        };
        let mut is_used = vec![false; lists.len()];
        // Children have other pages, or else the code must not be changed.
        match used.filter(|_| self.refused.is_none() && !text::is_shared_with_parent()) {
            Some(used) => list_of.iter().zip(used).for_each(|(list, used)| is_used[*list] |= used),
            None => is_used.fill(true),
        }
        let all = stubs.into_iter().zip(list_of);
        let freed: Vec<Range<usize>> =
            all.filter(|(_, list)| !is_used[*list]).map(|(stub, _)| stub).collect();
        freed.iter().for_each(|stub| self.stubs.give_back(image, stub.start));
        forget_continuations(image, &freed);
        for (at, is_used) in lists.into_iter().zip(is_used) {
            if is_used {
                self.keep_idle(at);
            } else {
                let list = self.site(at.function, at.position).more_mut().take_list(at.number);
                self.dropped.extend(list);
            }
        }
        let Self { functions, idle, .. } = &*self;
        let has_recorder = |at: &&ListAt| {
            let site = functions.site(at.function, at.position).expect("a site is never removed");
            site.list(at.number).has_recorder()
        };
        let idle_recorders = idle.iter().filter(has_recorder).count();
        self.stubs.reclaimed(idle_recorders);
        !freed.is_empty()
    }

    /// Returns a list to the idle ones.
    fn keep_idle(&mut self, at: ListAt) {
        let list = self.site(at.function, at.position).find_list_mut(at.number);
        list.expect("it was idle").is_idle = true;
        self.idle.push(at);
    }

    /// Removes from the idle lists those that no site has and that are not needed.
    fn unneeded_lists(&mut self, unneeded: Unneeded, keep: ListAt) -> Vec<ListAt> {
        let mut idle = std::mem::take(&mut self.idle);
        let Self { functions, probes, .. } = self;
        let mut lists = Vec::new();
        // The actions of the probes of the function whose lists are being looked at.
        let mut known: Option<(u32, HashMap<u32, Vec<&ProbeAction>>)> = None;
        idle.sort_unstable_by_key(|at| at.function);
        idle.retain(|at| {
            if unneeded == Unneeded::Removed && known.as_ref().is_none_or(|(of, _)| *of != at.function) {
                let state = functions.get(at.function).expect("it has sites");
                known = Some((at.function, present(state, probes)));
            }
            let site = functions.site_mut(at.function, at.position).expect("a site is never removed");
            let is_at_site = site.form == Form::List(at.number);
            // The number may have been given to another list since.
            let Some(list) = site.find_list_mut(at.number).filter(|list| list.is_idle) else { return false };
            if is_at_site || list.is_pinned {
                list.is_idle = false;
                return false;
            }
            let present = known.as_ref().map(|(_, present)| present.get(&at.position));
            let is_present = |item: &ProbeAction| {
                let present = present.flatten();
                *item == ProbeAction::Count || present.is_some_and(|actions| actions.contains(&item))
            };
            let is_needed = || unneeded == Unneeded::Removed && list.items().iter().all(is_present);
            if *at == keep || is_needed() {
                return true;
            }
            // No other entry that names it, if there is one, is a list.
            list.is_idle = false;
            lists.push(*at);
            false
        });
        self.idle = idle;
        lists
    }
}

/// Forgets how frames in these stubs, which are in ascending order, become plain.
fn forget_continuations(image: &CodeImage, stubs: &[Range<usize>]) {
    let is_in_stub = |pc: usize| {
        let after = stubs.partition_point(|stub| stub.start <= pc);
        after.checked_sub(1).is_some_and(|at| stubs[at].contains(&pc))
    };
    let mut plain = forks::lock(&image.probed().found.plain);
    plain.retain(|return_address, _| !is_in_stub(*return_address));
}

/// The actions of the probes of a function, by their positions.
fn present<'a>(
    state: &FunctionState,
    probes: &'a [Option<ProbeState>],
) -> HashMap<u32, Vec<&'a ProbeAction>> {
    let mut present: HashMap<u32, Vec<&ProbeAction>> = HashMap::new();
    for probe in state.probes.iter().filter_map(|number| probes[*number].as_ref()) {
        present.entry(probe.position).or_default().push(&probe.what);
    }
    present
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use super::super::stub_memory::{Change, StubMemory};
    use super::super::stubs::Active;
    use super::*;
    use crate::probes::{
        AccessError, Bound, Callback, GenericFn, Kind, Location, Place, Probe, ProbeError, ProbeSpec,
        Recorder, RefusedFunction, activate_all,
    };
    use crate::{Engine, Instance, Module, Store};

    const ADDITIONS: usize = 500;

    /// A module whose function `f` has many instructions, and whose stubs get little memory.
    fn module() -> Module {
        module_of(&Engine::default())
    }

    fn module_of(engine: &Engine) -> Module {
        let additions = "(local.set 0 (i32.add (local.get 0) (i32.const 1)))".repeat(ADDITIONS);
        let text = format!(
            "(module $additions (func (export \"f\") (param i32) (result i32) {additions} (local.get 0)))"
        );
        let module = Module::new(engine, text).unwrap();
        module.code().changes().stubs.limit = Some(64 << 10);
        module
    }

    fn attempts(module: &Module) -> u32 {
        module.code().changes().stubs.attempts
    }

    fn callback(function: &Callback) -> Kind {
        Kind::Callback { function: function.clone(), values: [Bound::Offset].into() }
    }

    /// What probes at all instructions are made from.
    fn specs(module: &Module, kind: &Kind) -> Vec<ProbeSpec> {
        let info = module.functions().next().unwrap();
        let body = info.body().unwrap();
        let spec = |offset| ProbeSpec {
            location: Location { function: 0, place: Place::Instruction { offset } },
            kind: kind.clone(),
        };
        let start = body.range().start;
        body.instructions().map(|instruction| spec((instruction.offset() - start) as u32)).collect()
    }

    fn make(module: &Module, specs: &[ProbeSpec]) -> Vec<Probe> {
        module.probes(specs).into_iter().map(Result::unwrap).collect()
    }

    /// Probes at all instructions, off.
    fn probes(module: &Module, function: &Callback) -> Vec<Probe> {
        make(module, &specs(module, &callback(function)))
    }

    fn appended(module: &Module) -> usize {
        module.code().changes().arenas.appended()
    }

    fn call(module: &Module) -> i32 {
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[]).unwrap();
        instance.get_typed_func::<i32, i32>(&mut store, "f").unwrap().call(&mut store, 1).unwrap()
    }

    /// Switches all on as far as they can be, and returns how many are.
    fn on(probes: &[Probe]) -> usize {
        on_or_refused(probes).0.len()
    }

    /// Likewise; returns the numbers of those that are, and of the others.
    fn on_or_refused(probes: &[Probe]) -> (Vec<usize>, Vec<usize>) {
        let results = activate_all(probes);
        let refused = |result: &Result<(), ProbeError>| matches!(result, Err(ProbeError::StubMemory { .. }));
        assert!(results.iter().all(|result| result.is_ok() || refused(result)), "{results:?}");
        (0..probes.len()).partition(|number| results[*number].is_ok())
    }

    /// What is refused at the limit does not look for memory, unless a list has become idle.
    #[test]
    fn probes_beyond_the_limit_are_refused_without_attempts_to_free_stubs() {
        let module = module();
        let fired = Arc::new(AtomicUsize::new(0));
        let of_closure = fired.clone();
        let probes = probes(&module, &Callback::new(move |_| _ = of_closure.fetch_add(1, Ordering::Relaxed)));
        let (are_on, refused) = on_or_refused(&probes);
        assert!((50..probes.len() / 2).contains(&are_on.len()), "{are_on:?}");
        assert_eq!(attempts(&module), 0);
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
        assert_eq!(fired.load(Ordering::Relaxed), are_on.len());
        // Two that are switched off make room for another one.
        for (number, off) in are_on.chunks(2).take(10).enumerate() {
            off.iter().for_each(|off| probes[*off].deactivate().unwrap());
            probes[refused[refused.len() - 20 + number]].activate().unwrap();
            assert!((1..number as u32 + 2).contains(&attempts(&module)));
        }
        let are_on_now = on(&probes);
        assert!(attempts(&module) <= 11, "{}", attempts(&module));
        fired.store(0, Ordering::Relaxed);
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
        assert_eq!(fired.load(Ordering::Relaxed), are_on_now);
    }

    /// The thread in a stub does not leave it while the others are refused.
    #[test]
    fn attempts_that_free_nothing_become_rarer() {
        let module = module();
        let all: Arc<Mutex<Vec<Probe>>> = Arc::default();
        let (of_closure, its_module) = (all.clone(), module.clone());
        let is_first = AtomicBool::new(true);
        let probes = probes(
            &module,
            &Callback::new(move |_| {
                if is_first.swap(false, Ordering::Relaxed) {
                    let probes = of_closure.lock().unwrap();
                    let before = attempts(&its_module);
                    probes[0].deactivate().unwrap();
                    let refused = probes.len() - on(&probes[1..]);
                    assert!(refused > 1000);
                    let attempts = attempts(&its_module) - before;
                    assert!((1..30).contains(&attempts), "{attempts} for {refused}");
                }
            }),
        );
        on(&probes);
        *all.lock().unwrap() = probes;
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
        // Now nobody is there.
        let probes = std::mem::take(&mut *all.lock().unwrap());
        probes[1].deactivate().unwrap();
        assert!(probes[0].activate().is_ok());
    }

    /// A global probe of all modules keeps nothing about those that were freed.
    #[test]
    fn refused_functions_end_with_their_module() {
        let engine = Engine::default();
        let function = Callback::new(|_| ());
        let global =
            engine.global_probe(Kind::Callback { function, values: [Bound::Offset].into() }).unwrap();
        global.activate().unwrap();
        let modules = [(); 2].map(|()| module_of(&engine));
        modules.iter().for_each(|module| assert_eq!(call(module), 1 + ADDITIONS as i32));
        let [first, second] = modules;
        drop(first);
        assert_eq!(global.refused().len(), 1);
        assert_eq!(call(&second), 1 + ADDITIONS as i32);
        assert_eq!(global.refused().len(), 0, "it is not tried again");
        drop(second);
        assert_eq!(global.refused().len(), 0);
    }

    /// A global probe tries functions again that were refused.
    #[test]
    fn global_probes_try_functions_again() {
        let module = module();
        let fired = Arc::new(AtomicUsize::new(0));
        let of_closure = fired.clone();
        let function = Callback::new(move |_| _ = of_closure.fetch_add(1, Ordering::Relaxed));
        let global =
            module.global_probe(Kind::Callback { function, values: [Bound::Offset].into() }).unwrap();
        let others = probes(&module, &Callback::new(|_| ()));
        for round in 1..3 {
            global.activate().unwrap();
            assert_eq!(call(&module), 1 + ADDITIONS as i32);
            let refused = global.refused();
            let [RefusedFunction { module, function: 0, error: ProbeError::StubMemory { .. }, .. }] =
                &refused[..]
            else {
                panic!("{round}: {refused:?}")
            };
            assert_eq!(module.as_deref(), Some("additions"));
            assert_eq!((global.functions(), fired.load(Ordering::Relaxed)), (0, 0));
            global.deactivate().unwrap();
        }
        module.code().changes().stubs.limit = Some(1 << 20);
        global.activate().unwrap();
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
        assert_eq!(fired.load(Ordering::Relaxed), 4 * ADDITIONS + 2);
        global.deactivate().unwrap();
        // Others use the memory: it is refused as a function, and does not fail.
        module.code().changes().stubs.limit = Some(64 << 10);
        assert!(on(&others) > 0);
        global.activate().unwrap();
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
        assert_eq!(global.refused().len(), 1);
        assert_eq!(fired.load(Ordering::Relaxed), 4 * ADDITIONS + 2);
    }

    /// A plain version whose stubs do not fit takes no more memory each time that a closure asks
    /// for it, and is not compiled again before something has changed.
    #[test]
    fn plain_versions_without_room_for_their_stubs_are_given_up() {
        let module = module();
        let refused = Arc::new(AtomicUsize::new(0));
        let of_closure = refused.clone();
        let writes = GenericFn::new(move |frame| {
            if frame.operands() > 1 {
                // The constant, which has no place of its own.
                let value = frame.operand(0)?;
                match frame.set_operand(0, &value) {
                    Err(AccessError::Version(_)) => _ = of_closure.fetch_add(1, Ordering::Relaxed),
                    set => set?,
                }
            }
            Ok(())
        });
        let probes = make(&module, &specs(&module, &Kind::Generic(writes)));
        let (are_on, _) = on_or_refused(&probes);
        // Some of the stubs of a plain version fit.
        are_on[2 * are_on.len() / 3..].iter().for_each(|off| probes[*off].deactivate().unwrap());
        let mut first = None;
        let state = || module.code().changes().stubs.state(module.code());
        for _ in 0..4 {
            for _ in 0..2 {
                let before = state();
                probes[0].deactivate().unwrap();
                assert_ne!(state(), before, "there may be room");
                probes[0].activate().unwrap();
            }
            assert_eq!(call(&module), 1 + ADDITIONS as i32);
            assert_eq!(*first.get_or_insert_with(|| appended(&module)), appended(&module));
            let before = (state(), refused.load(Ordering::Relaxed));
            assert_eq!(call(&module), 1 + ADDITIONS as i32);
            assert_eq!(state(), before.0, "it is not compiled");
            assert!(refused.load(Ordering::Relaxed) > before.1 + 10);
        }
        module.code().changes().stubs.limit = Some(1 << 20);
        refused.store(0, Ordering::Relaxed);
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
        assert_eq!(refused.load(Ordering::Relaxed), 0);
    }

    /// Likewise for a version with one more site, which needs stubs for all probes that are on. It
    /// may be shorter than the one whose memory it gets, which is not lost to longer ones.
    #[test]
    fn versions_without_room_for_their_stubs_are_given_up() {
        let module = module();
        let specs = specs(&module, &callback(&Callback::new(|_| ())));
        let probes = make(&module, &specs[..100]);
        assert_eq!(on(&probes), 100);
        {
            let stubs = &mut module.code().changes().stubs;
            stubs.limit = Some(3 * stubs.in_use() / 2);
        }
        let refused = |all: &[ProbeSpec]| {
            let made = module.probes(all);
            assert!(made.iter().all(|made| matches!(made, Err(ProbeError::StubMemory { .. }))), "{made:?}");
        };
        refused(&specs[300..400]);
        let first = appended(&module);
        for number in 0..10 {
            refused(&specs[300 + 9 * number..400]);
        }
        refused(&specs[300..400]);
        assert_eq!(appended(&module), first);
        module.code().changes().stubs.limit = Some(1 << 20);
        let others = make(&module, &specs[300..400]);
        assert_eq!(on(&others), 100);
        assert!(appended(&module) > first, "the stubs");
        assert_eq!(call(&module), 1 + ADDITIONS as i32);
    }

    /// Recorders that were dropped with their probes give back their buffers and their numbers long
    /// before their stubs take much memory.
    #[test]
    fn recorders_that_were_dropped_are_freed() {
        let module = module();
        module.code().changes().stubs.limit = Some(1 << 20);
        let all = Arc::new(());
        for _ in 0..400 {
            let of_closure = all.clone();
            let recorder = Recorder::new(move |_, _: &[[u64; 1]]| _ = &of_closure).unwrap();
            let kind = Kind::Record { recorder, values: [Bound::Const(1)].into() };
            let probes = make(&module, &specs(&module, &kind)[..1]);
            assert_eq!(on(&probes), 1);
        }
        assert!(Arc::strong_count(&all) < 100, "{}", Arc::strong_count(&all));
    }

    /// A list that never got a stub is not idle any more when its number is that of another one;
    /// and a list that is named twice is freed once.
    #[test]
    fn a_list_is_idle_once() {
        let module = module();
        let functions = [(); 2].map(|()| Callback::new(|_| ()));
        let of_place = functions.map(|function| specs(&module, &callback(&function)).remove(0));
        let _probes = make(&module, &of_place);
        let image = module.code();
        let changes = &mut *image.changes();
        let numbers: Vec<usize> = changes.state(0).probes.iter().copied().collect();
        let position = changes.probe(numbers[0]).position;
        let apply = |changes: &mut Changes, on: Option<usize>| {
            changes.site(0, position).active = on.map_or(Active::None, Active::One);
            let function = image.probed().function(image, 0).unwrap();
            changes.apply(image, (0, position), function, Change::Activation)
        };
        changes.refused = Some(wordpatch::Error::SharedWithParent { address: 0 });
        apply(changes, Some(numbers[0])).unwrap_err();
        assert_eq!(changes.idle.len(), 1);
        changes.refused = None;
        changes.stubs.limit = Some(0);
        apply(changes, Some(numbers[0])).unwrap_err();
        assert_eq!(changes.idle.len(), 0);
        changes.stubs.limit = Some(64 << 10);
        apply(changes, Some(numbers[1])).unwrap();
        apply(changes, None).unwrap();
        let [at] = changes.idle[..] else { panic!("{:?}", changes.idle) };
        changes.idle.push(at);
        let other = ListAt { position: 0, ..at };
        assert_eq!(changes.unneeded_lists(Unneeded::Off, other), [at]);
        assert!(changes.idle.is_empty());
        changes.keep_idle(at);
        assert!(changes.reclaim(image, Unneeded::Off, other));
    }

    #[test]
    fn stubs_that_are_not_made_are_not_counted() {
        let module = module();
        let changes = &mut *module.code().changes();
        let check = |stubs: &StubMemory| stubs.check(40 << 10, module.code(), Change::Activation);
        (0..3).for_each(|_| check(&changes.stubs).unwrap());
        changes.stubs.add(40 << 10);
        check(&changes.stubs).unwrap_err();
    }
}
