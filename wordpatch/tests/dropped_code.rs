//! Generated code is unmapped when it is dropped.
//!
//! The only test of its process, because any other thread, such as that of another test, may map
//! something at the address of the code.

mod common;

use common::generated::{PAGE, generate, mappings};
use common::{A, B, mov_eax, with_window};
use wordpatch::{Error, FetchWindow, TextRef, patch};

#[test]
fn dropped_code_is_unmapped_and_forgotten() {
    let _model = with_window(FetchWindow::Bytes8);
    let memory = generate(0);
    let (site, pages) = (memory.address(), memory.pages());
    // SAFETY: the site is one instruction.
    unsafe { patch(site, &mov_eax(A), &mov_eax(B)) }.unwrap();
    // SAFETY: as above.
    let view = unsafe { TextRef::resolve(site, 5) }.unwrap().writable_view().unwrap() as usize;
    drop(memory);
    assert_eq!(mappings(&pages), [""; 0]);
    assert_eq!(mappings(&(view..view + PAGE)), [""; 0]);
    // SAFETY: nothing is mapped there.
    let error = unsafe { patch(site, &mov_eax(B), &mov_eax(A)) }.unwrap_err();
    assert!(matches!(error, Error::NotMapped { .. }), "{error}");
}
