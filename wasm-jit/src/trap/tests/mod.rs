//! Hand-assembled functions that are left by every kind of non-local exit.

mod interrupts;
mod kit;
mod lines;

use iced_x86::code_asm::*;

use self::kit::{FRAME, Function, Instance, exception, image};
use super::{Raised, Trap, WasmBacktrace};
use crate::code::CodeImage;
use crate::code::probed::counters::InstanceId;
use crate::trap::ExecutionState;
use crate::vmctx::{FUNC_REF_CONTEXT, FUNC_REF_TYPE, Libcall, TrapCode, VmContext};

fn functions(backtrace: &WasmBacktrace) -> Vec<u32> {
    backtrace.functions().collect()
}

fn trap_of(result: Result<u64, Raised>) -> (Trap, WasmBacktrace) {
    match result {
        Err(Raised::Trap { trap, backtrace }) => (trap, backtrace),
        other => panic!("{other:?}"),
    }
}

/// The function calls the next one.
fn call_next(function: &mut Function) {
    function.call(1);
}

fn ud2(function: &mut Function, code: u8) {
    function.asm.ud2().unwrap();
    function.asm.db(&[code]).unwrap();
}

#[test]
fn a_function_returns_through_its_trampoline() {
    let image = image(&[&call_next, &|f| f.asm.mov(eax, 42).unwrap()]);
    let mut instance = Instance::new();
    for _ in 0..3 {
        assert_eq!(instance.run(&image, 0).unwrap(), 42);
    }
}

#[test]
fn ud2_traps_by_its_code_through_two_frames() {
    let mut instance = Instance::new();
    for code in TrapCode::ALL {
        let image = image(&[&call_next, &|f| ud2(f, code as u8)]);
        let (trap, backtrace) = trap_of(instance.run(&image, 0));
        assert_eq!(trap, Trap::from(code));
        assert_eq!(functions(&backtrace), [1, 0]);
    }
}

#[test]
fn an_activation_can_be_left_and_reentered() {
    let image = image(&[&|f| ud2(f, 0), &|f| f.asm.mov(eax, 7).unwrap()]);
    let mut instance = Instance::new();
    for _ in 0..1000 {
        assert_eq!(trap_of(instance.run(&image, 0)).0, Trap::UnreachableCodeReached);
        assert_eq!(instance.run(&image, 1).unwrap(), 7);
    }
}

#[test]
fn an_access_beyond_the_memory_traps_wherever_the_index_may_point() {
    let mut instance = Instance::new();
    for address in [0_u64, 1 << 16, u32::MAX.into(), 2 * u64::from(u32::MAX)] {
        let image = image(&[&|f| {
            f.asm.mov(rcx, address).unwrap();
            f.asm.mov(eax, dword_ptr(r15 + rcx)).unwrap();
        }]);
        assert_eq!(trap_of(instance.run(&image, 0)).0, Trap::MemoryOutOfBounds, "{address:#x}");
    }
}

/// The field that is read first says what the code was about to do.
#[test]
fn a_null_function_traps() {
    for (field, expected) in
        [(FUNC_REF_TYPE, Trap::IndirectCallToNull), (FUNC_REF_CONTEXT, Trap::NullReference)]
    {
        let image = image(&[&|f| {
            f.asm.xor(eax, eax).unwrap();
            f.asm.call(qword_ptr(rax + field)).unwrap();
        }]);
        assert_eq!(trap_of(Instance::new().run(&image, 0)).0, expected);
    }
}

#[test]
fn divisions_trap_by_their_divisor() {
    const MIN64: i64 = i64::MIN;
    const MIN32: i64 = i32::MIN as i64;
    #[track_caller]
    fn check(divide: &dyn Fn(&mut CodeAssembler), dividend: i64, divisor: i64, expected: Trap) {
        let image = image(&[&|f| {
            f.asm.mov(rcx, divisor).unwrap();
            f.asm.mov(r9, divisor).unwrap();
            f.asm.mov(qword_ptr(rbp - 40), rcx).unwrap();
            f.asm.mov(rax, dividend).unwrap();
            divide(&mut f.asm);
        }]);
        assert_eq!(trap_of(Instance::new().run(&image, 0)).0, expected, "{dividend} / {divisor}");
    }
    let unsigned32: &dyn Fn(&mut CodeAssembler) = &|asm| {
        asm.xor(edx, edx).unwrap();
        asm.div(ecx).unwrap();
    };
    let signed32: &dyn Fn(&mut CodeAssembler) = &|asm| {
        asm.cdq().unwrap();
        asm.idiv(r9d).unwrap();
    };
    let signed64: &dyn Fn(&mut CodeAssembler) = &|asm| {
        asm.cqo().unwrap();
        asm.idiv(r9).unwrap();
    };
    let signed32_in_frame: &dyn Fn(&mut CodeAssembler) = &|asm| {
        asm.cdq().unwrap();
        asm.idiv(dword_ptr(rbp - 40)).unwrap();
    };
    let signed64_in_frame: &dyn Fn(&mut CodeAssembler) = &|asm| {
        asm.cqo().unwrap();
        asm.idiv(qword_ptr(rsp + (FRAME - 40))).unwrap();
    };
    let zero = Trap::IntegerDivisionByZero;
    check(unsigned32, 1, 0, zero);
    check(signed32, MIN32, 0, zero);
    check(signed64, MIN64, 0, zero);
    check(signed32_in_frame, MIN32, 0, zero);
    check(signed64_in_frame, MIN64, 0, zero);
    // Only the lower half is significant.
    check(signed32, MIN32, 0x7_0000_0000, zero);
    check(signed32_in_frame, MIN32, 0x7_0000_0000, zero);
    let overflow = Trap::IntegerOverflow;
    check(signed32, MIN32, -1, overflow);
    check(signed64, MIN64, -1, overflow);
    check(signed32_in_frame, MIN32, -1, overflow);
    check(signed64_in_frame, MIN64, -1, overflow);
}

#[test]
fn a_trap_before_the_frame_is_set_up_includes_the_caller() {
    let mut instance = Instance::new();
    let code = TrapCode::StackOverflow as u8;
    for pushed in [false, true] {
        let prologue = &|f: &mut Function| {
            if pushed {
                f.asm.push(rbp).unwrap();
            }
            ud2(f, code);
        };
        let image = kit::image_of(&[(true, &call_next), (true, &|f| f.call(2)), (false, prologue)]);
        let (trap, backtrace) = trap_of(instance.run(&image, 0));
        assert_eq!(trap, Trap::StackOverflow);
        assert_eq!(functions(&backtrace), [2, 1, 0]);
    }
}

/// Throws the exception; the code after it is not reached.
fn throw(function: &mut Function, exception: *const crate::vmctx::VmException) {
    function.asm.mov(rdi, exception as u64).unwrap();
    function.libcall(Libcall::Throw);
    ud2(function, 0);
}

#[test]
fn an_exception_finds_its_handler_two_frames_up() {
    let thrown = exception(1);
    let address = &raw const *thrown;
    let image = image(&[
        &|f| {
            f.asm.mov(dword_ptr(rbp - 48), 5).unwrap();
            f.try_region(None, &[(Some(0), 0), (Some(1), 1)], |f| f.call(1));
            f.handler();
            f.asm.xor(eax, eax).unwrap();
            f.asm.leave().unwrap();
            f.asm.ret().unwrap();
            f.handler();
            // The exception, if the frame, the stack and the context are unchanged.
            f.asm.mov(rcx, qword_ptr(r14 + crate::vmctx::MEMORY0)).unwrap();
            f.asm.sub(rcx, r15).unwrap();
            f.asm.add(rax, rcx).unwrap();
            f.asm.lea(rcx, qword_ptr(rbp - FRAME as i32)).unwrap();
            f.asm.sub(rcx, rsp).unwrap();
            f.asm.add(rax, rcx).unwrap();
            f.asm.mov(ecx, dword_ptr(rbp - 48)).unwrap();
            f.asm.add(rax, rcx).unwrap();
        },
        &|f| f.call(2),
        &|f| throw(f, address),
    ]);
    assert_eq!(Instance::new().run(&image, 0).unwrap(), address as u64 + 5);
}

/// A function whose regions lead to handlers that return their numbers + 1.
fn with_handlers(f: &mut Function, handlers: usize, body: impl FnOnce(&mut Function)) {
    body(f);
    f.asm.xor(eax, eax).unwrap();
    f.asm.leave().unwrap();
    f.asm.ret().unwrap();
    for number in 1..=handlers {
        f.handler();
        f.asm.mov(eax, number as i32).unwrap();
        f.asm.leave().unwrap();
        f.asm.ret().unwrap();
    }
    f.asm.zero_bytes().unwrap();
}

#[test]
fn catches_are_tried_from_the_inside_and_in_order() {
    let thrown = [exception(0), exception(1)];
    #[track_caller]
    fn check(
        thrown: &crate::vmctx::VmException,
        inner: &[Option<u32>],
        outer: &[Option<u32>],
        parent: Option<u32>,
        expected: Option<u64>,
    ) {
        let image = image(&[
            &|f| {
                with_handlers(f, inner.len() + outer.len(), |f| {
                    let outer: Vec<_> = outer.iter().copied().zip(inner.len()..).collect();
                    let inner: Vec<_> = inner.iter().copied().zip(0..).collect();
                    f.try_region(None, &outer, |f| {
                        f.asm.nop().unwrap();
                        f.try_region(parent, &inner, |f| f.call(1));
                    });
                });
            },
            &|f| throw(f, thrown),
        ]);
        match (Instance::new().run(&image, 0), expected) {
            (Ok(value), Some(expected)) => assert_eq!(value, expected),
            (Err(Raised::Exception { exception, .. }), None) => {
                assert_eq!(exception, std::ptr::from_ref(thrown) as usize);
            }
            (other, expected) => panic!("{other:?}, not {expected:?}"),
        }
    }
    check(&thrown[0], &[Some(0)], &[Some(0)], Some(0), Some(1));
    check(&thrown[0], &[Some(1)], &[Some(1), Some(0)], Some(0), Some(3));
    check(&thrown[0], &[Some(1), None, Some(0)], &[], Some(0), Some(2));
    check(&thrown[1], &[Some(0)], &[None], Some(0), Some(2));
    check(&thrown[1], &[Some(0)], &[Some(0)], Some(0), None);
    // Delegated to a region outside the enclosing one.
    check(&thrown[1], &[Some(0)], &[None], None, None);
    check(&thrown[1], &[], &[None], None, None);
}

#[test]
fn a_place_outside_the_region_is_not_caught() {
    let thrown = exception(0);
    let image = image(&[
        &|f| {
            with_handlers(f, 1, |f| {
                f.try_region(None, &[(None, 0)], |f| f.call(2));
                f.call(1);
            });
        },
        &|f| throw(f, &*thrown),
        &|f| f.asm.nop().unwrap(),
    ]);
    let result = Instance::new().run(&image, 0);
    assert!(matches!(result, Err(Raised::Exception { .. })), "{result:?}");
}

#[test]
fn throwing_null_traps() {
    let image = image(&[&|f| throw(f, std::ptr::null())]);
    let (trap, backtrace) = trap_of(Instance::new().run(&image, 0));
    assert_eq!(trap, Trap::NullReference);
    assert_eq!(functions(&backtrace), [0]);
}

#[test]
fn a_failed_libcall_leaves_for_the_reason_it_noted() {
    let image = image(&[&call_next, &|f| f.libcall(Libcall::Raise)]);
    match Instance::new().run(&image, 0) {
        Err(Raised::Noted { backtrace }) => assert_eq!(functions(&backtrace), [1, 0]),
        other => panic!("{other:?}"),
    }
}

extern "sysv64" fn fail(_: *mut VmContext, _: *mut VmContext, _: *mut u64) -> u64 {
    1
}

extern "sysv64" fn succeed(_: *mut VmContext, _: *mut VmContext, _: *mut u64) -> u64 {
    0
}

#[test]
fn a_host_function_returns_or_fails() {
    let mut instance = Instance::new();
    let (succeed, fail) = (instance.host(succeed), instance.host(fail));
    let image = image(&[
        &|f| {
            f.call_host(&succeed);
            f.asm.mov(eax, 3).unwrap();
        },
        &|f| f.call_host(&fail),
    ]);
    assert_eq!(instance.run(&image, 0).unwrap(), 3);
    match instance.run(&image, 1) {
        Err(Raised::Noted { backtrace }) => assert_eq!(functions(&backtrace), [1]),
        other => panic!("{other:?}"),
    }
}

/// Throws the instance's `owner`.
extern "sysv64" fn throw_owner(_: *mut VmContext, caller: *mut VmContext, _: *mut u64) -> u64 {
    // SAFETY: called with the context of the test's instance.
    unsafe { (*(*caller).store).thrown = (*caller).owner as usize };
    1
}

#[test]
fn an_exception_of_a_host_function_is_caught_or_comes_out() {
    let mut instance = Instance::new();
    let thrown = exception(0);
    let address = &raw const *thrown;
    // SAFETY: the instance's context.
    unsafe { (*instance.context()).owner = address.cast_mut().cast() };
    let host = instance.host(throw_owner);
    let image = image(&[
        &|f| {
            with_handlers(f, 1, |f| {
                f.try_region(None, &[(Some(0), 0)], |f| f.call_host(&host));
            });
        },
        &|f| f.call_host(&host),
    ]);
    assert_eq!(instance.run(&image, 0).unwrap(), 1);
    match instance.run(&image, 1) {
        Err(Raised::Exception { exception, .. }) => assert_eq!(exception, address as usize),
        other => panic!("{other:?}"),
    }
    // SAFETY: the instance's store.
    assert_eq!(unsafe { (*instance.store).vm.thrown }, 0, "the exception was taken");
}

/// A host function that calls function 2 of the image in the instance's `owner`.
extern "sysv64" fn call_back(_: *mut VmContext, caller: *mut VmContext, _: *mut u64) -> u64 {
    // SAFETY: called with the context of the test's instance, in whose store nothing else runs now.
    let (result, store) = unsafe {
        let image = &*(*caller).owner.cast::<CodeImage>();
        (kit::run(caller, image.entry(2)), ExecutionState::of(caller))
    };
    let (trap, backtrace) = trap_of(result);
    assert_eq!(trap, Trap::UnreachableCodeReached);
    assert_eq!(functions(&backtrace), [2, 1, 0]);
    // SAFETY: as above.
    assert_ne!(unsafe { (*store).vm.activation_fp }, 0, "the outer activation is the innermost again");
    1
}

#[test]
fn a_trap_inside_two_activations_has_the_frames_of_both() {
    let mut instance = Instance::new();
    let host = instance.host(call_back);
    let image = image(&[&call_next, &|f| f.call_host(&host), &|f| ud2(f, 0)]);
    // SAFETY: the instance's context.
    unsafe { (*instance.context()).owner = std::sync::Arc::as_ptr(&image).cast_mut().cast() };
    match instance.run(&image, 0) {
        Err(Raised::Noted { backtrace }) => assert_eq!(functions(&backtrace), [1, 0]),
        other => panic!("{other:?}"),
    }
    // SAFETY: the instance's store.
    let ExecutionState { vm, outer, .. } = unsafe { &*instance.store };
    assert_eq!((vm.activation_fp, *outer), (0, std::ptr::null()));
}

#[test]
fn a_deep_recursion_keeps_the_inner_frames() {
    let image = image(&[&|f| {
        let mut deeper = f.asm.create_label();
        f.asm.dec(qword_ptr(r15)).unwrap();
        f.asm.jne(deeper).unwrap();
        ud2(f, 0);
        f.asm.set_label(&mut deeper).unwrap();
        f.call(0);
    }]);
    let mut instance = Instance::new();
    let mut count = 1000_u64;
    // SAFETY: the instance's context; the counter stands where memory 0 would.
    unsafe { (*instance.context()).memory0 = (&raw mut count).cast() };
    let (_, backtrace) = trap_of(instance.run(&image, 0));
    assert_eq!(backtrace.len() + backtrace.omitted(), 1000);
    assert!(backtrace.omitted() > 0);
}

/// What happens to a child process that does so.
fn end_of_child(act: impl FnOnce()) -> i32 {
    // SAFETY: the child does only what may be done in a signal handler.
    unsafe {
        match libc::fork() {
            0 => {
                act();
                libc::_exit(0)
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                status
            }
        }
    }
}

#[test]
fn faults_that_are_not_ours_end_the_process_as_ever() {
    let mut instance = Instance::new();
    let wild = image(&[&|f| {
        f.asm.mov(rcx, 0x5000_u64).unwrap();
        f.asm.mov(eax, dword_ptr(rcx)).unwrap();
    }]);
    let no_code = image(&[&|f| ud2(f, 200)]);
    let harmless = image(&[&|_| {}]);
    instance.run(&harmless, 0).unwrap();
    let status = end_of_child(|| _ = instance.run(&wild, 0));
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    let status = end_of_child(|| _ = instance.run(&no_code, 0));
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGILL, "{status:#x}");
    // SAFETY: ends the child.
    let status = end_of_child(|| unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn a_backtrace_says_why_an_instruction_is_unknown() {
    let image = crate::code::tests::image_of_other_code(&[0x00, 0x0b]);
    let pc = image.entry(0) as usize + 8;
    let mut backtrace = WasmBacktrace::default();
    let function = image.function_at(pc).expect("in a function");
    backtrace.push(image, function, pc, InstanceId::of_value(0));
    assert_eq!(backtrace.frames()[0].module_offset(), None);
    let text = backtrace.to_string();
    assert!(text.contains("(instruction unknown: function 0: compiling it again"), "{text}");
}

/// The instruction that is decoded at an entry is the one before or after a patch, never a mixture
/// of both.
#[test]
fn entries_are_read_while_they_are_patched() {
    use std::sync::atomic::{AtomicBool, Ordering};

    use iced_x86::Mnemonic;

    use super::capture::instruction_at;
    use crate::probes::{Kind, Location, Place, ProbeSpec};
    use crate::{Engine, Module};

    let module = Module::new(&Engine::default(), "(module (func))").unwrap();
    let location = Location { function: 0, place: Place::Entry };
    let probe = module.probe(ProbeSpec { location, kind: Kind::Count }).unwrap();
    let entry = module.code().entry(0).addr();
    probe.activate().unwrap();
    // SAFETY: the code stays mapped with its module.
    let read = || unsafe { instruction_at(entry) };
    let target = read().near_branch_target();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                probe.deactivate().unwrap();
                probe.activate().unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            let found = read();
            let is_patched = found.mnemonic() == Mnemonic::Jmp && found.near_branch_target() == target;
            assert!(is_patched || found.mnemonic() == Mnemonic::Push, "{found}");
        }
    });
}
