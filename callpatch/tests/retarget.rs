//! Retargeting of sites: the result, its waits, and the state after a failure.

mod common;

use callpatch::{CallSite, Clobbers, Error, Shape, State, Strategy, retarget, retarget_as};
use common::{Function, SHAPES, function, functions, with_model, with_window};
use wordpatch::{FetchWindow, TMax, WaitPolicy, tsc};

fn decode(function: &Function, clobbers: Clobbers) -> CallSite {
    // SAFETY: text that belongs to the test, correct with and without its calls.
    unsafe { CallSite::decode(function.site, clobbers) }.unwrap()
}

fn retarget_all(sites: &[(CallSite, usize)]) -> Vec<Result<CallSite, Error>> {
    // SAFETY: the targets are functions without arguments or pointers to them, or out of reach.
    unsafe { retarget(sites) }
}

/// The other callee for each of these functions, which call callee 0.
fn to_the_other(functions: &[Function], clobbers: Clobbers) -> Vec<(CallSite, usize)> {
    functions.iter().map(|function| (decode(function, clobbers), function.targets[1])).collect()
}

#[test]
fn every_site_comes_out_inactive_and_calls_its_new_target_once_activated() {
    let _model = with_window(FetchWindow::Bytes8);
    for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
        let places: Vec<_> = SHAPES.iter().flat_map(|shape| (0..16).map(|offset| (*shape, offset))).collect();
        let functions = functions(&places);
        for starts_active in [true, false] {
            let sites = to_the_other(&functions, clobbers);
            if !starts_active {
                sites.iter().for_each(|(site, _)| _ = site.deactivate().unwrap());
            }
            for (site, function) in retarget_all(&sites).into_iter().zip(&functions) {
                let site = site.unwrap();
                assert_eq!(site.target(), function.targets[1], "{site:?}");
                assert_eq!((site.state().unwrap(), function.run()), (State::Inactive, [0, 0]), "{site:?}");
                site.activate().unwrap();
                assert_eq!((site.state().unwrap(), function.run()), (State::Active, [0, 1]), "{site:?}");
                // Back, one by one.
                let back = retarget_all(&[(site, function.targets[0])]).pop().unwrap().unwrap();
                back.activate().unwrap();
                assert_eq!(function.run(), [1, 0], "{back:?}");
            }
        }
    }
}

/// The fetch model changes after a site was decoded: the site keeps its window.
#[test]
fn a_site_of_another_window_can_be_toggled_after_it_was_retargeted() {
    let _model = with_window(FetchWindow::Bytes8);
    for windows in [[FetchWindow::Bytes8, FetchWindow::Bytes64], [FetchWindow::Bytes64, FetchWindow::Bytes8]]
    {
        for offset in 0..16 {
            let function = function(Shape::Call, offset);
            common::force(windows[0], None, WaitPolicy::Membarrier);
            let sites = to_the_other(&[function], Clobbers::CallerSaved);
            common::force(windows[1], None, WaitPolicy::Membarrier);
            let site = retarget_all(&sites).pop().unwrap().unwrap();
            for (activates, calls) in [(true, [0, 1]), (false, [0, 0]), (true, [0, 1])] {
                if activates { site.activate() } else { site.deactivate() }.unwrap();
                assert_eq!(function.run(), calls, "{windows:?} {offset}");
            }
        }
    }
}

/// Sites whose operand stays in the inactive form and may cross a window: old code with a new
/// operand, and new code with an old one, each require a wait.
#[test]
fn a_site_with_a_dead_operand_is_given_both_waits() {
    /// Milliseconds: a missing wait cannot be compensated by chance three times in a row.
    const T_MAX: TMax = TMax(30_000_000);
    let _model = with_model(FetchWindow::Bytes8, Some(T_MAX), WaitPolicy::TMax);
    for (shape, clobbers, strategy) in [
        (Shape::Call, Clobbers::Nothing, Strategy::Skip),
        (Shape::Call, Clobbers::CallerSaved, Strategy::Load),
        (Shape::IndirectCall, Clobbers::CallerSaved, Strategy::Load),
        (Shape::Jump, Clobbers::Nothing, Strategy::Ret),
    ] {
        for _ in 0..3 {
            let function = function(shape, 5);
            let sites = to_the_other(&[function], clobbers);
            assert_eq!(sites[0].0.strategy(), strategy);
            let start = tsc::now();
            retarget_all(&sites).pop().unwrap().unwrap();
            let waited = tsc::now() - start;
            assert!(waited >= 2 * u64::from(T_MAX.0), "{strategy:?}: {waited} ticks are less than two waits");
        }
    }
}

#[test]
fn a_site_that_is_out_of_reach_is_unchanged_and_the_others_are_retargeted() {
    let _model = with_window(FetchWindow::Bytes8);
    let functions = functions(&[(Shape::Call, 5), (Shape::Call, 13), (Shape::Call, 16)]);
    let mut sites = to_the_other(&functions, Clobbers::CallerSaved);
    sites[1].1 = functions[1].site + (1 << 40);
    let before = functions[1].bytes();
    let results = retarget_all(&sites);
    assert!(matches!(results[1], Err(Error::OutOfReach { address, .. }) if address == functions[1].site));
    assert_eq!((functions[1].bytes(), functions[1].run()), (before, [1, 0]));
    for number in [0, 2] {
        results[number].as_ref().unwrap().activate().unwrap();
        assert_eq!(functions[number].run(), [0, 1]);
    }
}

/// A foreign byte at the end of the operand: the bytes that were stored before it are restored.
#[test]
fn an_operand_that_cannot_be_stored_completely_is_restored() {
    let _model = with_window(FetchWindow::Bytes8);
    let function = function(Shape::Call, 5);
    let site = decode(&function, Clobbers::CallerSaved);
    assert_eq!(site.strategy(), Strategy::Load);
    // Differs from the old target in every byte of the displacement.
    let target = site.target() ^ 0x0111_1110;
    let old = function.write(4, 0x77);
    let operand = function.bytes()[1..].to_vec();
    let refused = retarget_all(&[(site, target)]).pop().unwrap();
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert_eq!(function.bytes()[1..], operand);
    assert_eq!(site.deactivate().unwrap(), callpatch::Toggle::Unchanged, "it is inactive");
    function.write(4, old);
    site.activate().unwrap();
    assert_eq!(function.run(), [1, 0], "it has kept its target");
}

#[test]
fn foreign_bytes_in_an_active_site_are_reported_and_not_changed() {
    let _model = with_window(FetchWindow::Bytes8);
    let function = function(Shape::Call, 8);
    let site = decode(&function, Clobbers::Nothing);
    function.write(0, 0xb8);
    let before = function.bytes();
    let refused = retarget_all(&[(site, function.targets[1])]).pop().unwrap();
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert_eq!(function.bytes(), before);
}

/// The callees of the other tests are eight bytes apart, so their displacements differ in one byte
/// or two.
#[test]
fn an_operand_that_differs_in_every_byte_is_stored_completely() {
    let _model = with_window(FetchWindow::Bytes8);
    for shape in SHAPES {
        for offset in 0..8 {
            for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
                let function = function(shape, offset);
                let site = decode(&function, clobbers);
                let displacement = site.displacement() ^ 0x1111_1111;
                let target = (function.site + shape.len()).wrapping_add_signed(displacement as isize);
                let led = retarget_all(&[(site, target)]).pop().unwrap().unwrap();
                assert_eq!((led.target(), led.state().unwrap()), (target, State::Inactive));
                led.activate().unwrap();
                let bytes = function.bytes();
                assert_eq!(bytes[shape.len() - 4..], displacement.to_le_bytes(), "{led:?}");
            }
        }
    }
}

fn retarget_active(site: CallSite, target: usize) -> Result<CallSite, Error> {
    // SAFETY: no thread executes the site during the call.
    unsafe { retarget_as(&[(site, target, State::Active)]) }.pop().unwrap()
}

#[test]
fn a_site_that_stays_active_calls_its_new_target_and_can_be_toggled() {
    let _model = with_window(FetchWindow::Bytes8);
    for clobbers in [Clobbers::Nothing, Clobbers::CallerSaved] {
        let places: Vec<_> = SHAPES.iter().flat_map(|shape| (0..16).map(|offset| (*shape, offset))).collect();
        for function in functions(&places) {
            let site = decode(&function, clobbers);
            let site = retarget_active(site, function.targets[1]).unwrap();
            assert_eq!(site.target(), function.targets[1], "{site:?}");
            assert_eq!((site.state().unwrap(), function.run()), (State::Active, [0, 1]), "{site:?}");
            site.deactivate().unwrap();
            assert_eq!(function.run(), [0, 0], "{site:?}");
            site.activate().unwrap();
            assert_eq!(function.run(), [0, 1], "{site:?}");
            retarget_active(site, function.targets[0]).unwrap();
            assert_eq!(function.run(), [1, 0], "{site:?}");
        }
    }
}

/// The intermediate target is called only if the operand crosses a window and differs on both
/// sides of the boundary.
#[test]
fn an_active_operand_that_differs_in_every_byte_is_stored_completely() {
    let _model = with_window(FetchWindow::Bytes8);
    for shape in SHAPES {
        for offset in 0..8 {
            let function = function(shape, offset);
            let site = decode(&function, Clobbers::CallerSaved);
            let displacement = site.displacement() ^ 0x1111_1111;
            let next = function.site + shape.len();
            let target = next.wrapping_add_signed(displacement as isize);
            let front = (8 - offset).min(shape.len());
            let opcode = shape.len() - 4;
            let mixed = (opcode < front && front < shape.len()).then(|| {
                let mut operand = displacement.to_le_bytes();
                let old = site.displacement().to_le_bytes();
                operand[..front - opcode].copy_from_slice(&old[..front - opcode]);
                next.wrapping_add_signed(i32::from_le_bytes(operand) as isize)
            });
            assert_eq!(site.intermediate_target(target), mixed, "{shape:?} at {offset}");
            let led = retarget_active(site, target).unwrap();
            assert_eq!((led.target(), led.state().unwrap()), (target, State::Active));
            let mut bytes = shape.opcode().to_vec();
            bytes.extend(displacement.to_le_bytes());
            assert_eq!(function.bytes(), bytes, "{shape:?} at {offset}");
        }
    }
}

/// The front part has a foreign byte, which is found after the back part was stored.
#[test]
fn an_active_site_that_cannot_be_retargeted_completely_keeps_its_target() {
    let _model = with_window(FetchWindow::Bytes8);
    let function = function(Shape::Call, 5);
    let site = decode(&function, Clobbers::CallerSaved);
    let target = site.target() ^ 0x0111_1110;
    assert!(site.intermediate_target(target).is_some());
    let old = function.write(2, 0x77);
    let before = function.bytes();
    let refused = retarget_active(site, target);
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
    assert_eq!(function.bytes(), before);
    function.write(2, old);
    assert_eq!(function.run(), [1, 0], "it has kept its target");
}

#[test]
fn an_inactive_site_cannot_stay_active() {
    let _model = with_window(FetchWindow::Bytes8);
    for offset in 0..8 {
        let function = function(Shape::Call, offset);
        let site = decode(&function, Clobbers::CallerSaved);
        site.deactivate().unwrap();
        let before = function.bytes();
        let refused = retarget_active(site, function.targets[1]);
        assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
        assert_eq!((function.bytes(), function.run()), (before, [0, 0]));
    }
}
