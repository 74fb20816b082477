//! Programs that do not terminate.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use iced_x86::code_asm::*;

use super::kit::{Function, Instance, NUMBER, image};
use super::{functions, trap_of};
use crate::code::probed::counters::InstanceId;
use crate::trap::{DEFAULT_SIGNAL, ExecutionState, InterruptHandle, Interruption, Trap, is_interrupted};
use crate::vmctx::VmContext;

fn endless(f: &mut Function) {
    let mut again = f.label();
    f.asm.jmp(again).unwrap();
    let _ = &mut again;
}

fn interruptible(signal: i32) -> (Instance, InterruptHandle) {
    let instance = Instance::new();
    let interruption = Interruption::new(signal);
    let handle = InterruptHandle::new(&interruption);
    // SAFETY: the instance's store, in which nothing runs.
    unsafe { (*instance.store).interruption = Some(interruption) };
    (instance, handle)
}

#[test]
fn an_endless_loop_is_interrupted_again_and_again() {
    let image = image(&[&super::call_next, &endless, &|f| f.asm.mov(eax, 1).unwrap()]);
    for signal in [DEFAULT_SIGNAL, libc::SIGUSR2] {
        let (mut instance, handle) = interruptible(signal);
        for _ in 0..50 {
            let (trap, backtrace) = std::thread::scope(|scope| {
                scope.spawn(|| handle.interrupt());
                trap_of(instance.run(&image, 0))
            });
            assert_eq!(trap, Trap::Interrupt);
            // Empty if the request arrived before the loop began.
            assert!([&[1, 0][..], &[1], &[0], &[]].contains(&&functions(&backtrace)[..]), "{backtrace:?}");
            assert_eq!(instance.run(&image, 2).unwrap(), 1, "one request, one interrupt");
        }
    }
}

/// The maximum number of interrupts of one program.
const MAX_ROUNDS: usize = 20_000;

#[test]
fn an_interrupt_at_any_instruction_leaves_cleanly() {
    // With calls and returns only, signals arrive in prologues and at RET, but perhaps always at
    // the same instruction: that is up to the processor. With some work, they arrive in both
    // functions.
    for work in [0, 4] {
        let multiply = |f: &mut Function| (0..work).for_each(|_| f.asm.imul_2(eax, eax).unwrap());
        let image = image(&[
            &|f| {
                let again = f.label();
                multiply(f);
                f.call(1);
                f.asm.jmp(again).unwrap();
            },
            &multiply,
        ]);
        let (mut instance, handle) = interruptible(DEFAULT_SIGNAL);
        let mut seen = [0; 2];
        for round in 0..MAX_ROUNDS {
            if round >= 300 && (work == 0 || !seen.contains(&0)) {
                break;
            }
            let timeout = handle.interrupt_after(Duration::from_micros(200)).unwrap();
            let (trap, backtrace) = trap_of(instance.run(&image, 0));
            assert_eq!(trap, Trap::Interrupt);
            match &functions(&backtrace)[..] {
                [0] => seen[0] += 1,
                [1, 0] => seen[1] += 1,
                [] => {}
                other => panic!("{other:?}"),
            }
            assert!(timeout.has_fired());
        }
        assert!(work == 0 || !seen.contains(&0), "{seen:?}");
    }
}

extern "sysv64" fn do_nothing(_: *mut VmContext, _: *mut VmContext, _: *mut u64) -> u64 {
    0
}

#[test]
fn an_interrupt_around_a_call_of_the_host_finds_the_instance() {
    let (mut instance, handle) = interruptible(DEFAULT_SIGNAL);
    let host = instance.host(do_nothing);
    let image = image(&[&|f| {
        let again = f.label();
        // Most of the time, R14 is not the function's context.
        for _ in 0..100 {
            f.asm.mov(r14, &raw const *host as u64).unwrap();
            f.asm.nop().unwrap();
            f.asm.mov(r14, qword_ptr(rbp - 8)).unwrap();
        }
        f.asm.jmp(again).unwrap();
    }]);
    for _ in 0..100 {
        let timeout = handle.interrupt_after(Duration::from_micros(200)).unwrap();
        let (trap, backtrace) = trap_of(instance.run(&image, 0));
        assert_eq!(trap, Trap::Interrupt);
        // There is none if the request was made before the call.
        let instances: Vec<_> = backtrace.instances().collect();
        assert!(instances.iter().all(|found| *found == InstanceId::of_value(NUMBER)), "{instances:?}");
        drop(timeout);
    }
}

static IN_HOST: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Does not return before the request was made.
extern "sysv64" fn wait_for_request(_: *mut VmContext, caller: *mut VmContext, _: *mut u64) -> u64 {
    IN_HOST.store(true, Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: called with the context of the test's instance.
    while !unsafe { is_interrupted(ExecutionState::of(caller)) } {
        std::hint::spin_loop();
    }
    1
}

#[test]
fn a_host_function_is_not_left_in_the_middle() {
    let (mut instance, handle) = interruptible(DEFAULT_SIGNAL);
    let host = instance.host(wait_for_request);
    let image = image(&[&|f| f.call_host(&host)]);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !IN_HOST.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            handle.interrupt();
        });
        instance.run(&image, 0)
    });
    assert!(matches!(result, Err(super::Raised::Noted { .. })), "{result:?}");
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);
}

/// Returns after the first signal was ignored.
extern "sysv64" fn ignore_requests(_: *mut VmContext, _: *mut VmContext, _: *mut u64) -> u64 {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    0
}

#[test]
fn a_signal_at_the_wrong_moment_is_repeated() {
    let (mut instance, handle) = interruptible(DEFAULT_SIGNAL);
    let host = instance.host(ignore_requests);
    let image = image(&[&|f| {
        f.call_host(&host);
        endless(f);
    }]);
    let timeout = handle.interrupt_after(Duration::from_millis(2)).unwrap();
    assert_eq!(trap_of(instance.run(&image, 0)).0, Trap::Interrupt);
    drop(timeout);
}

#[test]
fn a_request_waits_for_the_next_call_unless_it_is_withdrawn() {
    let (mut instance, handle) = interruptible(DEFAULT_SIGNAL);
    let image = image(&[&|f| f.asm.mov(eax, 9).unwrap()]);
    handle.interrupt();
    assert_eq!(trap_of(instance.run(&image, 0)).0, Trap::Interrupt);
    assert_eq!(instance.run(&image, 0).unwrap(), 9);
    handle.interrupt();
    handle.withdraw();
    assert_eq!(instance.run(&image, 0).unwrap(), 9);
    let timeout = handle.interrupt_after(Duration::ZERO).unwrap();
    while !timeout.has_fired() {
        std::thread::yield_now();
    }
    drop(timeout);
    assert_eq!(instance.run(&image, 0).unwrap(), 9, "dropping the timeout withdraws it");
    drop(handle.interrupt_after(Duration::from_secs(3600)).unwrap());
    drop(handle.interrupt_after(Duration::MAX).unwrap());
}
