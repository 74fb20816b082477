use super::*;
use crate::observe::competitors_in_tests::with_competitors;
use crate::observe::function::{Entered, Function, Window};

#[test]
fn threads_have_their_own_blocks_and_every_sample_is_drained() {
    const THREADS: u32 = 4;
    const SAMPLES: u64 = 20_000;
    let done = AtomicU32::new(0);
    let mut seen = [0_u64; THREADS as usize];
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let done = &done;
            scope.spawn(move || {
                let thread = Thread::current().unwrap();
                let mut sent = 0;
                while sent < SAMPLES {
                    let before = thread.lost.load(Ordering::Relaxed);
                    thread.record(Sample { function: number + 1000, ticks: sent, ..Sample::default() });
                    sent += u64::from(before == thread.lost.load(Ordering::Relaxed));
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
        let mut finished = false;
        while !finished {
            finished = done.load(Ordering::Acquire) == THREADS;
            drain(|sample| {
                if let Some(number) = sample.function.checked_sub(1000) {
                    assert_eq!(sample.ticks, seen[number as usize], "lost or out of order");
                    seen[number as usize] += 1;
                }
            });
        }
    });
    assert_eq!(seen, [SAMPLES; THREADS as usize]);
}

#[test]
fn a_thread_that_has_ended_lives_until_it_was_last_seen() {
    let is_right = std::thread::spawn(|| {
        let block = Thread::current().unwrap();
        // Other tests may find the thread alive in some of the rounds.
        (0..100).any(|_| {
            block.spend(1, tsc::now());
            let end = tsc::now();
            while tsc::now() <= end {}
            (block.seen.load(Ordering::Relaxed)..=end).contains(&block.ended())
        })
    });
    assert!(is_right.join().expect("it does not panic"));
}

/// The parent was preempted for longer than the child will live. Subtracted from the child's time,
/// this would leave nothing for which the child has waited.
#[test]
fn forked_children_have_not_been_preempted() {
    let block = Thread::current().unwrap();
    // SAFETY: the child neither allocates nor takes locks.
    match unsafe { nix::unistd::fork() }.expect("a process can be forked") {
        nix::unistd::ForkResult::Child => {
            block.preemption.set_in_tests(1 << 40);
            block.note(1, 1);
            after_fork_in_child();
            let is_forgotten = seen().preempted == 0 && block.notes.iter().all(|note| note.read().is_none());
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_forgotten)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None);
            assert_eq!(status, Ok(nix::sys::wait::WaitStatus::Exited(child, 0)));
        }
    }
}

#[test]
fn a_probe_waits_for_space_if_every_call_is_to_be_timed() {
    let waits = std::thread::spawn(|| {
        let block = Thread::current().unwrap();
        let waits = |_: &u32| {
            // Other tests may drain the ring, and change the setting.
            let lost = block.lost.load(Ordering::Relaxed);
            while block.lost.load(Ordering::Relaxed) == lost {
                governor::time_every_call(false);
                block.record(Sample::default());
            }
            governor::time_every_call(true);
            let begin = tsc::now();
            block.record(Sample::default());
            tsc::now() - begin >= MAX_PROBE_TIME / 2
        };
        let number = (0..40).filter(waits).count();
        governor::time_every_call(false);
        block.ring.drain(&mut |_| {});
        number
    });
    assert!(waits.join().expect("it does not panic") >= 20);
}

#[test]
fn missed_exits_have_limits_only_in_a_thread_with_one_stack() {
    let function = FUNCTIONS.push_with(|_| Function::default()).unwrap();
    let window = Window { delay: 0, length: None, limit: 1, weight: 1.0, spent: 0, is_patient: false };
    let observed = FUNCTIONS.get(function).unwrap();
    assert!(!observed.is_exit_seen(observed.exit_period()), "its exit probe is off");
    observed.open(1, &window, |_, _| {}).unwrap();
    let period = observed.exit_period();
    let entry = |period| Entry { function: function as u32, period, held: 1000, ..Entry::default() };
    let (missed, left) = (entry(period + 1), entry(period));
    std::thread::spawn(move || {
        let thread = Thread::current().unwrap();
        let known = |entry: &Entry| {
            let before = thread.ring.written();
            thread.discarded(entry);
            let sample = thread.unseen(entry, preemption::Time::default());
            assert_eq!(thread.ring.written() - before, usize::from(sample.is_some()));
            sample.map(|sample| (sample.least, sample.ticks == Sample::ANY_TIME, sample.was_left))
        };
        let local = 0_u8;
        thread.enter(std::ptr::from_ref(&local).addr(), |_| {});
        assert_eq!(known(&missed), None, "its stack is not known");
        assert_eq!(known(&left), Some((0, false, true)), "it was left without an exit");
        // Those of other tests' threads may be found first.
        for _ in 0..100 {
            find_a_stack();
        }
        assert!(thread.has_one_stack());
        assert_eq!(known(&missed), Some((1000, false, false)));
        assert_eq!(known(&left), Some((1000, false, true)));
        thread.enter(std::ptr::from_ref(&*Box::new(0_u8)).addr(), |_| {});
        assert!(!thread.has_one_stack());
        assert_eq!(known(&missed), Some((0, true, false)), "it has another stack");
        assert_eq!(known(&left), Some((0, true, true)));
    })
    .join()
    .unwrap();
}

/// A thread waits in a call, while the exits of others end the period.
#[test]
fn a_call_was_open_as_long_as_its_exit_would_have_been_seen() {
    let index = FUNCTIONS.push_with(|_| Function::default()).unwrap();
    let function = FUNCTIONS.get(index).unwrap();
    let window = Window { delay: 0, length: None, limit: 1, weight: 1.0, spent: 0, is_patient: false };
    function.open(1, &window, |_, _| {}).unwrap();
    let thread = Thread::current().unwrap();
    let entered = tsc::now();
    let Entered::Observed(observed) = function.enter(index as u32, entered, thread) else {
        panic!("the window is open");
    };
    let period = observed.period;
    let entry = Entry { function: index as u32, period, ticks: entered, ..Entry::default() };
    let never = preemption::Time::default();
    assert!(!thread.limits(&entry, never, tsc::now()).was_cut_off);
    let before = tsc::now();
    function.end();
    let after = tsc::now();
    let limits = thread.limits(&entry, never, after + 1000);
    assert!((before - entered..after - entered).contains(&limits.least), "{limits:?}");
    assert!(limits.was_cut_off && limits.most == after + 1000 - entered, "{limits:?}");
    // What the thread has lost may be a part of that.
    let preempted = preemption::Time { least: 40, value: 70, most: 100 };
    let known = thread.limits(&entry, preempted, after + 1000);
    assert_eq!((known.least, known.most), (limits.least - 100, limits.most - 40));
    // Also after later periods.
    function.open(2, &window, |_, _| {}).unwrap();
    function.end();
    assert_eq!(thread.limits(&entry, never, after).least, limits.least);
    let other = Entry { period: function.exit_period(), held: entered + 500, ..entry };
    assert_eq!(thread.limits(&other, preempted, after).least, 470, "until it was last seen open");
    let other = Entry { held: 0, ..other };
    assert_eq!(thread.limits(&other, never, after).least, 0);
}

/// Runs `act`, for 50 ms at least between two measurements of preemption, beside other threads
/// that take all processors.
fn while_preempted(act: impl FnOnce(&Thread)) {
    preemption::start(2.0);
    if !preemption::is_available() {
        println!("skipped: the C library has registered no rseq area");
        return;
    }
    governor::Governor::new(None, false, 2.0);
    with_competitors(|| act(Thread::current().unwrap()));
}

fn spin() {
    let begun = std::time::Instant::now();
    while begun.elapsed() < std::time::Duration::from_millis(50) {
        std::hint::spin_loop();
    }
}

/// Some milliseconds: a measurement that finds as much was not the first after a time slice by
/// chance.
const LONG: u64 = 10_000_000;

/// Preemption before a window was begun is not taken for one in it, though no probe has noticed
/// it before.
#[test]
fn preemption_before_a_window_does_not_belong_to_it() {
    while_preempted(|thread| {
        let mut lately = 0;
        while lately < LONG {
            let before = thread.preempted();
            spin();
            note_processor_times();
            let noted = thread.notes.iter().filter_map(Note::read).map(|note| note.at).max().unwrap();
            let since = thread.preempted_since(tsc::now());
            let passed = tsc::now() - noted;
            lately = thread.preempted() - before;
            assert!(since <= passed, "{since} of {passed} ticks, {lately} since the last probe");
        }
    });
}

/// Windows of several functions are begun together. The first probe afterwards measures the
/// preemption in between; those of the other functions find nothing new.
#[test]
fn preemption_after_windows_were_begun_belongs_to_all_of_them() {
    while_preempted(|thread| {
        let mut first = 0;
        while first < LONG {
            note_processor_times();
            let since = tsc::now();
            spin();
            first = thread.preempted_since(since);
            let second = thread.preempted_since(since);
            assert!(second >= first, "{first}, and then {second}");
            // Other windows have been begun since.
            note_processor_times();
            let third = thread.preempted_since(since);
            assert!(third >= first, "{first}, and later {third}");
        }
    });
}

#[test]
fn a_probe_waits_for_space_for_a_long_call() {
    let waits = std::thread::spawn(|| {
        let block = Thread::current().unwrap();
        // Other tests may drain the ring, so that there is space at once.
        let waits = (0..40).any(|_| {
            let lost = block.lost.load(Ordering::Relaxed);
            while block.lost.load(Ordering::Relaxed) == lost {
                block.record(Sample::default());
            }
            let begin = tsc::now();
            block.record(Sample { ticks: u64::MAX, ..Sample::default() });
            tsc::now() - begin >= LONGEST_WAIT_FOR_ROOM
        });
        block.ring.drain(&mut |_| {});
        waits
    });
    assert!(waits.join().expect("it does not panic"));
}
