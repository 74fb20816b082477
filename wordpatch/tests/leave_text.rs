//! A parent leaves its text to the children that it has forked, while its threads store into it.

mod common;

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::children::{check, fork};
use common::{A, B, STRADDLING, call, functions, mov_eax, with_window};
use wordpatch::text::{Form, TogglePair, leave_text_to_children, unshare};
use wordpatch::{Bytes, Error, FetchWindow, State, TextRef, start_patch};

/// Ends the other thread, even if an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Another thread toggles a site of its own at full speed: a store that changes nothing shows that
/// an earlier one was lost.
#[test]
fn no_store_is_lost_when_a_parent_leaves_its_text_to_children() {
    const CHILDREN: u32 = 40;
    /// So many that most of the time of a move passes after the toggled site, the first, was
    /// copied.
    const FUNCTIONS: usize = 50_000;
    let sites = functions(FUNCTIONS, 0);
    let [old, new] = [A, B].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: text of the test, which stays mapped.
    let place = |site: usize| unsafe { TextRef::resolve(site, 5).unwrap().staying_mapped() };
    let (toggled, changed) = (place(sites[0]), [sites[1], sites[2]]);
    let places = changed.map(place);
    let range = sites[0]..sites[0] + 1;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stop = Stop(&stop);
            let pair = TogglePair::new(&toggled, FetchWindow::Bytes8, 0, [&old, &new]);
            while !stop.load(Ordering::Relaxed) {
                for form in [Form::Second, Form::First] {
                    // SAFETY: one instruction, inside an aligned quadword.
                    let stored = unsafe { pair.exchange(form) };
                    assert!(matches!(stored, Ok(true)), "{form:?}: {stored:?}");
                }
            }
        });
        let _stop = Stop(&stop);
        for child in 0..CHILDREN {
            let (mut go_on, mut is_changed) = std::io::pipe().unwrap();
            let [kept, from, to] = [child + 7, child + 7, child + 8];
            if child == 0 {
                change(&places[0], A, kept);
                change(&places[1], A, kept);
            }
            let of_child = || {
                check(go_on.read_exact(&mut [0]).is_ok(), "the parent has made its change");
                check(call(changed[0]) == kept, "the code as it was");
                // SAFETY: the child has one thread.
                check(unsafe { unshare() }.is_ok() && call(changed[0]) == kept, "its own pages");
                change(&places[0], kept, 1);
                check(call(changed[0]) == 1 && call(changed[1]) == kept, "the child's change");
            };
            fork(of_child, || {
                // SAFETY: the text of the test stays mapped.
                unsafe { leave_text_to_children(&range) }.unwrap();
                change(&places[0], from, to);
                change(&places[1], from, to);
                is_changed.write_all(&[0]).unwrap();
            });
            assert_eq!([call(changed[0]), call(changed[1])], [to; 2]);
            assert!(!stop.load(Ordering::Relaxed), "a store was lost");
        }
    });
}

/// A child would keep the INT3 forever.
#[test]
fn text_is_not_left_to_children_during_a_patch() {
    let _model = with_window(FetchWindow::Bytes8);
    let site = functions(1, STRADDLING)[0];
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    let outstanding = unsafe { start_patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    fork(
        || (),
        || {
            // SAFETY: the text of the test stays mapped.
            let left = unsafe { leave_text_to_children(&(site..site + 1)) };
            assert!(matches!(left, Err(Error::Contended { .. })), "{left:?}");
        },
    );
    assert_eq!(outstanding.wait(Instant::now() + Duration::from_secs(60)).unwrap(), State::Finished);
    // SAFETY: as above.
    unsafe { leave_text_to_children(&(site..site + 1)) }.unwrap();
    assert_eq!(call(site), B);
}

/// Replaces the constant that a function returns.
#[track_caller]
fn change(place: &TextRef, old: u32, new: u32) {
    let [old, new] = [old, new].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: one instruction, inside an aligned quadword.
    unsafe { place.compare_exchange(FetchWindow::Bytes8, 0, &old, &new) }.unwrap();
}
