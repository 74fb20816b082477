//! Accessors: each is of one frame, and ends with it, or after the last probe of its module.

use std::sync::{Arc, Mutex};

use wasm_jit::probes::{AccessError, Bound, FrameAccessor, Kind, Probe, WasmFn};
use wasm_jit::wasmparser::Operator;
use wasm_jit::{Extern, Func, Instance, Module, Store, Trap};

use super::engine;
use super::frames::{at, call, entry, generic, offset_of, program};

/// A frame has one accessor until it returns, and no other frame has the same: with recursion, and
/// with calls that follow each other at the same stack pointer.
#[test]
fn accessors_are_equal_for_one_frame_only() {
    let (module, mut store, instance) = program(
        "(module (func $run (export \"run\") (param i32) (result i32)
            (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
            (drop (call $run (i32.sub (local.get 0) (i32.const 1))))
            (i32.add (call $run (i32.sub (local.get 0) (i32.const 1))) (i32.const 1))))",
    );
    // By depth: the accessors of the frames that have been entered and not left, and all others.
    let all: Arc<Mutex<(Vec<FrameAccessor>, Vec<FrameAccessor>)>> = Arc::default();
    let (entered, left) = (all.clone(), all.clone());
    let enter = generic(move |frame| {
        let accessor = frame.accessor()?;
        let (open, gone) = &mut *entered.lock().unwrap();
        gone.extend(open.drain(frame.depth()..));
        assert!(gone.iter().all(|old| !old.is_alive(frame) && *old != accessor));
        assert!(gone.iter().all(|old| matches!(old.local(frame, 0), Err(AccessError::FrameGone))));
        assert!(open.iter().all(|old| old.is_alive(frame) && *old != accessor));
        open.push(accessor);
        let mut outer = frame.caller()?;
        for expected in open.iter().rev().skip(1) {
            assert_eq!(outer, Some(*expected));
            outer = expected.caller(frame)?;
        }
        assert_eq!(outer, None);
        Ok(())
    });
    let add = offset_of(&module, 0, |operator| matches!(operator, Operator::I32Add));
    let again = generic(move |frame| {
        let accessor = frame.accessor()?;
        assert_eq!(left.lock().unwrap().0[frame.depth()], accessor);
        Ok(())
    });
    let probes = module.probes(&[entry(0, enter), at(0, add, again)]);
    let probes: Vec<Probe> = probes.into_iter().map(Result::unwrap).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    for _ in 0..3 {
        assert_eq!(call(&mut store, &instance, 5).unwrap(), 5);
    }
    let gone = all.lock().unwrap().1.len();
    assert_eq!(gone + all.lock().unwrap().0.len(), 3 * 63);
    // Frames of other stores are others.
    let mut other = Store::new(module.engine(), ());
    let instance = Instance::new(&mut other, &module, &[]).unwrap();
    drop(probes);
    let mine = all.lock().unwrap().0[0];
    let kind = generic(move |frame| {
        assert!(matches!(mine.depth(frame), Err(AccessError::OtherStore)));
        Ok(())
    });
    let probe = module.probe(entry(0, kind)).unwrap();
    probe.activate().unwrap();
    call(&mut other, &instance, 2).unwrap();
}

/// Frames that are left by a tail call, a trap, an exception, or while they call the host, have
/// gone; so have those whose probes were removed meanwhile.
#[test]
fn accessors_end_with_their_frames_however_they_end() {
    let engine = wasm_jit::Engine::default();
    let text = "(module (import \"\" \"host\" (func $host)) (tag $tag)
        (func $leave (param i32)
            (if (i32.eq (local.get 0) (i32.const 1)) (then (return_call $next)))
            (if (i32.eq (local.get 0) (i32.const 2)) (then (unreachable)))
            (if (i32.eq (local.get 0) (i32.const 3)) (then (throw $tag)))
            (if (i32.eq (local.get 0) (i32.const 4)) (then (call $host))))
        (func $next (call $host))
        (func $run (export \"run\") (param i32) (result i32)
            (block (try_table (catch_all 0) (call $leave (local.get 0))))
            (call $host) (i32.const 7)))";
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let host = Func::wrap(&mut store, || {}).unwrap();
    let instance = Instance::new(&mut store, &module, &[Extern::Func(host)]).unwrap();
    let last: Arc<Mutex<Vec<FrameAccessor>>> = Arc::default();
    let (of_leave, of_others) = (last.clone(), last.clone());
    let remember = generic(move |frame| {
        of_leave.lock().unwrap().push(frame.accessor()?);
        of_leave.lock().unwrap().extend(frame.caller()?);
        Ok(())
    });
    // `$run` itself, when it calls the host at its end.
    let is_call = |operator: &Operator<'_>| matches!(operator, Operator::Call { function_index: 0 });
    let [in_next, in_run] = [2, 3].map(|function| offset_of(&module, function, is_call));
    let checks = move |is_run: bool| {
        let last = of_others.clone();
        generic(move |frame| {
            let [leave, run] = last.lock().unwrap()[..] else { panic!("two") };
            assert!(!leave.is_alive(frame), "the frame has gone");
            let own = if is_run { frame.accessor()? } else { frame.caller()?.expect("it was called") };
            assert_eq!((own, run.is_alive(frame)), (run, true));
            Ok(())
        })
    };
    let specs = [entry(1, remember), at(2, in_next, checks(false)), at(3, in_run, checks(true))];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    probes.iter().for_each(|probe| probe.activate().unwrap());
    for _ in 0..2 {
        for how in 0..5 {
            last.lock().unwrap().clear();
            let result = call(&mut store, &instance, how);
            if how == 2 {
                assert_eq!(result.unwrap_err().trap(), Some(Trap::UnreachableCodeReached));
                let last = last.lock().unwrap().clone();
                let gone = generic(move |frame| {
                    assert!(last.iter().all(|accessor| !accessor.is_alive(frame)));
                    Ok(())
                });
                let probe = module.probe(entry(2, gone)).unwrap();
                probe.activate().unwrap();
                // The probe of `$leave` remembers others.
                probes[0].deactivate().unwrap();
                probes[1].deactivate().unwrap();
                probes[2].deactivate().unwrap();
                call(&mut store, &instance, 1).unwrap();
                probes.iter().for_each(|probe| probe.activate().unwrap());
            } else {
                assert_eq!(result.unwrap(), 7);
            }
        }
    }
}

/// A frame that waits for the WebAssembly function of a probe has no accessor, but the frames
/// around it do. Once the function has returned, it has one, too.
#[test]
fn a_frame_in_a_stub_has_no_accessor_yet() {
    let text = "(module
        (func $run (export \"run\") (param i32) (result i32) (call $probed (local.get 0)))
        (func $probed (param i32) (result i32) (i32.add (local.get 0) (i32.const 1))))";
    let (module, mut store, instance) = program(text);
    let monitor = Module::new(module.engine(), "(module (func (export \"observe\") (param i32)))").unwrap();
    let of_monitor = Instance::new(&mut store, &monitor, &[]).unwrap();
    let observe = of_monitor.get_func(&mut store, "observe").unwrap();
    let answers: Arc<Mutex<Vec<i32>>> = Arc::default();
    let seen = answers.clone();
    let inner = generic(move |frame| {
        assert!(matches!(frame.caller(), Err(AccessError::InStub)));
        let outer = frame.outer(2)?.expect("the caller of the probed function");
        assert_eq!(outer.location(frame)?.function, 0);
        seen.lock().unwrap().push(outer.local(frame, 0)?.unwrap_i32());
        assert_eq!(frame.depth(), 2);
        Ok(())
    });
    let inner = monitor.probe(entry(0, inner)).unwrap();
    inner.activate().unwrap();
    let seen = answers.clone();
    let after = generic(move |frame| {
        let own = frame.accessor()?;
        seen.lock().unwrap().push(own.local(frame, 0)?.unwrap_i32());
        Ok(())
    });
    let function = WasmFn::new(&store, observe).unwrap();
    let calls = Kind::Wasm { function, values: [Bound::Local(0)].into() };
    let add = offset_of(&module, 1, |operator| matches!(operator, Operator::I32Add));
    let specs = [at(1, add, calls), at(1, add, after)];
    let probes: Vec<Probe> = module.probes(&specs).into_iter().map(Result::unwrap).collect();
    // Alone, the stub's frame is not one of the runtime's.
    probes[0].activate().unwrap();
    assert_eq!(call(&mut store, &instance, 5).unwrap(), 6);
    probes[1].activate().unwrap();
    assert_eq!(call(&mut store, &instance, 7).unwrap(), 8);
    assert_eq!(*answers.lock().unwrap(), [5, 7, 7]);
}

/// After the last probe of a module was removed, its frames return to the original code, wherever
/// they wait, and their accessors end; otherwise they would be those of later frames at the same
/// place on the stack.
#[test]
fn accessors_end_after_the_last_probe_of_their_module() {
    let text = "(module (import \"\" \"host\" (func $host (param i32))) (tag $tag)
        (func $leave (param i32 i32)
            (call $host (local.get 1))
            (if (i32.eq (local.get 0) (i32.const 1)) (then (throw $tag))))
        (func $run (export \"run\") (param i32) (result i32) (local $step i32)
            (loop $steps
                (block $left (try_table (catch_all $left) (call $leave (local.get 0) (local.get $step))))
                (local.set $step (i32.add (local.get $step) (i32.const 1)))
                (br_if $steps (i32.lt_u (local.get $step) (i32.const 7))))
            (local.get $step)))";
    for throws in [0, 1] {
        let module = Module::new(&engine(), text).unwrap();
        let mut store = Store::new(module.engine(), ());
        let probes: Arc<Mutex<Vec<Probe>>> = Arc::default();
        // The accessors of each time that `$leave` was entered with a probe: its own, its caller's.
        let seen: Arc<Mutex<Vec<[FrameAccessor; 2]>>> = Arc::default();
        let kind = {
            let seen = seen.clone();
            generic(move |frame| {
                let own = frame.accessor()?;
                let caller = frame.caller()?.expect("it was called");
                let step = frame.local(1)?.unwrap_i32();
                assert_eq!(caller.local(frame, 1)?.unwrap_i32(), step);
                assert_eq!((own.is_alive(frame), caller.is_alive(frame)), (true, true));
                let mut seen = seen.lock().unwrap();
                for [own, _] in &*seen {
                    assert!(!own.is_alive(frame), "the frame has gone");
                }
                let alive = seen.iter().filter(|[_, of_run]| of_run.is_alive(frame)).count();
                let same = seen.iter().filter(|[_, of_run]| *of_run == caller).count();
                assert_eq!(alive, same, "an accessor of a frame in the original code is still alive");
                seen.push([own, caller]);
                Ok(())
            })
        };
        let host = {
            let (module, probes) = (module.clone(), probes.clone());
            Func::wrap(&mut store, move |step: i32| {
                let mut probes = probes.lock().unwrap();
                match step {
                    // Steps 1, 3 and 4, and 6 see a probe. The first one is removed while `$run`
                    // waits in the original code.
                    0 | 2 | 5 => {
                        let probe = module.probe(entry(1, kind.clone())).unwrap();
                        probe.activate().unwrap();
                        probes.push(probe);
                    }
                    1 | 4 => probes.clear(),
                    _ => {}
                }
            })
        };
        let instance = Instance::new(&mut store, &module, &[Extern::Func(host.unwrap())]).unwrap();
        for turn in 1..=3 {
            assert_eq!(call(&mut store, &instance, throws).unwrap(), 7, "{throws}");
            let all = seen.lock().unwrap();
            let runs: Vec<_> = all[4 * (turn - 1)..].iter().map(|[_, of_run]| *of_run).collect();
            let [of_1, of_3, of_4, of_6] = runs[..] else { panic!("{}", runs.len()) };
            assert_eq!(of_3, of_4, "{throws}: within the life of a probe");
            assert!(of_1 != of_3 && of_4 != of_6, "{throws}");
            drop(all);
            // The next call's frames are at the same places.
            probes.lock().unwrap().clear();
        }
    }
}

/// As above, for a frame that does not wait for a call.
#[test]
fn accessors_end_when_loops_return_to_the_original_code() {
    let text = "(module (import \"\" \"host\" (func $host))
        (func $loop (param i32)
            (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
        (func $run (export \"run\") (param i32) (result i32)
            (call $host) (call $loop (i32.const 4))
            (call $host) (call $loop (i32.const 4))
            (local.get 0)))";
    let module = Module::new(&engine(), text).unwrap();
    let mut store = Store::new(module.engine(), ());
    let probes: Arc<Mutex<Vec<Probe>>> = Arc::default();
    let seen: Arc<Mutex<Vec<FrameAccessor>>> = Arc::default();
    let sub = offset_of(&module, 1, |operator| matches!(operator, Operator::I32Sub));
    let host = {
        let (module, probes, seen) = (module.clone(), probes.clone(), seen.clone());
        Func::wrap(&mut store, move || {
            let (of_probe, seen) = (probes.clone(), seen.clone());
            let kind = generic(move |frame| {
                let (own, mut seen) = (frame.accessor()?, seen.lock().unwrap());
                let of_others = seen.iter().filter(|last| **last != own);
                assert_eq!(of_others.filter(|last| last.is_alive(frame)).count(), 0);
                seen.push(own);
                if frame.local(0)?.unwrap_i32() == 3 {
                    of_probe.lock().unwrap().clear();
                }
                Ok(())
            });
            let probe = module.probe(at(1, sub, kind)).unwrap();
            probe.activate().unwrap();
            probes.lock().unwrap().push(probe);
        })
    };
    let instance = Instance::new(&mut store, &module, &[Extern::Func(host.unwrap())]).unwrap();
    assert_eq!(call(&mut store, &instance, 9).unwrap(), 9);
    let [a, b, c, d] = seen.lock().unwrap()[..] else { panic!("two iterations of each call") };
    assert!(a == b && b != c && c == d);
}

/// The functions of a module without probes keep versions for accessors, too.
#[test]
fn accessors_of_callers_in_other_modules_stay() {
    let engine = engine();
    let callee = Module::new(&engine, "(module (func (export \"leaf\")))").unwrap();
    let text = "(module (import \"\" \"leaf\" (func $leaf))
        (func $run (export \"run\") (param i32) (result i32)
            (call $twice) (call $twice) (local.get 0))
        (func $twice (call $leaf) (call $leaf)))";
    let caller = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let of_callee = Instance::new(&mut store, &callee, &[]).unwrap();
    let leaf = of_callee.get_func(&mut store, "leaf").unwrap();
    let instance = Instance::new(&mut store, &caller, &[Extern::Func(leaf)]).unwrap();
    let seen: Arc<Mutex<Vec<[FrameAccessor; 2]>>> = Arc::default();
    let of_probe = seen.clone();
    let kind = generic(move |frame| {
        let twice = frame.caller()?.expect("`$twice`");
        of_probe.lock().unwrap().push([twice, twice.caller(frame)?.expect("`$run`")]);
        Ok(())
    });
    let probe = callee.probe(entry(0, kind)).unwrap();
    probe.activate().unwrap();
    assert_eq!(call(&mut store, &instance, 9).unwrap(), 9);
    let [a, b, c, d] = seen.lock().unwrap()[..] else { panic!("four calls") };
    assert!(a == b && c == d && a[0] != c[0] && a[1] == c[1]);
}

pub(crate) fn test_all() {
    accessors_are_equal_for_one_frame_only();
    accessors_end_with_their_frames_however_they_end();
    a_frame_in_a_stub_has_no_accessor_yet();
    accessors_end_after_the_last_probe_of_their_module();
    accessors_end_when_loops_return_to_the_original_code();
    accessors_of_callers_in_other_modules_stay();
}
