//! Code in a file: executed where the file is mapped, and copied before it is patched.

mod common;

use std::fs::File;
use std::io::Write;
use std::ops::Range;

use common::generated::{PAGE, mappings};
use common::{A, B, RET, call, mov_eax, while_executing, with_window};
use tempfile::NamedTempFile;
use wordpatch::code_memory::{CodeMemory, CodeRoom};
use wordpatch::{Bytes, Error, FetchWindow, TextRef, patch};

/// The second page of a file has `mov eax, A; ret` at its start and at the end of the third page.
const SITES: [usize; 2] = [0, 2 * PAGE - 8];
const LENGTH: usize = 2 * PAGE - 2;

fn code() -> Vec<u8> {
    let mut code = vec![0x90; LENGTH];
    for site in SITES {
        code[site..site + 5].copy_from_slice(&mov_eax(A));
        code[site + 5] = RET;
    }
    code
}

fn file() -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(&[&[0xcc; PAGE], &code()[..], &[0; 2]].concat()).unwrap();
    file
}

fn map(file: &File, room: usize) -> Result<(CodeMemory, CodeRoom), Error> {
    // SAFETY: nobody changes the file.
    unsafe { CodeMemory::map(file, PAGE as u64, LENGTH, room) }
}

fn make_patchable(memory: &CodeMemory) -> Result<(), Error> {
    // SAFETY: these are the bytes of the file.
    unsafe { memory.make_patchable(|place| place.copy_from_slice(&code())) }
}

fn sites(memory: &CodeMemory) -> [usize; 2] {
    SITES.map(|site| memory.address() + site)
}

/// The lines of the mappings of this file.
fn of_file(file: &NamedTempFile) -> Vec<String> {
    let path = file.path().to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(path)).map(str::to_owned).collect()
}

/// Exchanges the instruction at a site by one store.
fn change(site: usize, old: u32, new: u32) -> Result<(), Error> {
    let [old, new] = [old, new].map(|value| Bytes::new(&mov_eax(value)).unwrap());
    // SAFETY: one instruction, inside an aligned quadword, of code that stays mapped.
    unsafe { TextRef::resolve(site, 5)?.compare_exchange(FetchWindow::Bytes8, 0, &old, &new) }
}

#[test]
fn code_is_executed_in_its_file_and_patched_in_a_copy() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = file();
    let (memory, _room) = map(file.as_file(), 0).unwrap();
    let [first, last] = sites(&memory);
    assert_eq!((memory.pages().len(), memory.code() == code()), (2 * PAGE, true));
    assert_eq!([call(first), call(last)], [A, A]);
    assert!(matches!(&*of_file(&file), [line] if line.contains(" r-xs ")), "{:?}", of_file(&file));

    make_patchable(&memory).unwrap();
    assert_eq!([call(first), call(last)], [A, A]);
    assert_eq!(memory.code(), code());
    // SAFETY: mapped readable.
    let padding = [1, 2].map(|at| unsafe { *((memory.pages().end - at) as *const u8) });
    assert_eq!(padding, [0xcc; 2]);
    assert!(of_file(&file).is_empty(), "{:?}", of_file(&file));
    let before = mappings(&memory.pages());
    // SAFETY: the site is one instruction, and SIGTRAP is not blocked here.
    unsafe { patch(first, &mov_eax(A), &mov_eax(B)) }.unwrap();
    change(last, A, 7).unwrap();
    assert_eq!([call(first), call(last)], [B, 7]);
    // Nothing happens when it is patchable.
    make_patchable(&memory).unwrap();
    assert_eq!([call(first), call(last)], [B, 7]);
    assert_eq!(mappings(&memory.pages()), before, "the mapping was replaced");
    assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains(" rwx"));
    assert_eq!(std::fs::read(file.path()).unwrap()[PAGE..PAGE + LENGTH], code());
}

#[test]
fn code_is_made_patchable_while_it_is_executed() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = file();
    for _ in 0..100 {
        let (memory, _room) = map(file.as_file(), 0).unwrap();
        while_executing(&sites(&memory), |executor| {
            executor.wait_for_calls(10);
            std::thread::scope(|scope| {
                let others = [(); 2].map(|()| scope.spawn(|| make_patchable(&memory)));
                make_patchable(&memory).unwrap();
                others.into_iter().for_each(|other| other.join().unwrap().unwrap());
            });
            executor.wait_for_calls(10);
            change(memory.address(), A, B).unwrap();
            executor.wait_for_calls(10);
        });
        assert_eq!(sites(&memory).map(call), [B, A]);
    }
}

#[test]
fn arenas_follow_code_in_a_file() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = file();
    let (memory, mut room) = map(file.as_file(), 3 * PAGE).unwrap();
    assert_eq!(room.len(), 3 * PAGE);
    let mut arena = room.arena(PAGE).unwrap().unwrap();
    assert_eq!(arena.pages(), memory.pages().end..memory.pages().end + PAGE);
    let added = arena.append(&[&mov_eax(B)[..], &[RET]].concat(), 8).unwrap();
    assert_eq!([call(added), call(memory.address())], [B, A]);
    make_patchable(&memory).unwrap();
    change(memory.address(), A, 7).unwrap();
    change(added, B, 8).unwrap();
    assert_eq!([call(added), call(memory.address())], [8, 7]);
}

#[test]
fn nothing_is_left_of_dropped_code() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = file();
    for patchable in [false, true] {
        let (memory, room) = map(file.as_file(), PAGE).unwrap();
        let pages: Range<usize> = memory.pages().start..memory.pages().end + PAGE;
        let mut views = 0..0;
        if patchable {
            make_patchable(&memory).unwrap();
            // SAFETY: code of the test, which is mapped.
            let view = unsafe { TextRef::resolve(pages.start, 5) }.unwrap().writable_view().unwrap() as usize;
            views = view..view + 1;
            assert_eq!(mappings(&views).len(), 1);
        }
        drop((memory, room));
        assert!(of_file(&file).is_empty());
        assert!(mappings(&pages).is_empty() && mappings(&views).is_empty());
    }
}

#[test]
fn a_file_that_cannot_be_mapped_is_an_error() {
    let file = file();
    let only_written = File::options().write(true).open(file.path()).unwrap();
    let error = map(&only_written, PAGE).unwrap_err();
    let Error::CodeMemory { source } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
}

/// Ends the child with what it has found.
fn child(act: impl FnOnce() -> bool) -> ! {
    // SAFETY: ends this process, at the latest when the alarm does.
    unsafe {
        libc::alarm(20);
        libc::_exit(i32::from(!act()))
    }
}

#[track_caller]
fn wait_for(child: libc::pid_t) {
    let mut status = -1;
    // SAFETY: waits for the child, and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// A child copies the code into pages of its own, whether its parent has copied it or not, and
/// executes what it was when it was forked.
#[test]
fn parent_and_child_patch_their_own_copies() {
    let _model = with_window(FetchWindow::Bytes8);
    let file = file();
    for parent_first in [false, true] {
        let (memory, _room) = map(file.as_file(), 0).unwrap();
        let site = memory.address();
        let (mut go_on, mut changed) = std::io::pipe().unwrap();
        // SAFETY: the child uses nothing that another thread may hold.
        let forked = unsafe { libc::fork() };
        if forked == 0 {
            child(|| {
                if parent_first && std::io::Read::read_exact(&mut go_on, &mut [0]).is_err() {
                    return false;
                }
                let is_refused = matches!(make_patchable(&memory), Err(Error::SharedWithParent { .. }));
                // SAFETY: the child has one thread.
                let is_unshared = unsafe { wordpatch::text::unshare() }.is_ok();
                is_refused
                    && is_unshared
                    && call(site) == A
                    && make_patchable(&memory).is_ok()
                    && call(site) == A
                    && change(site, A, 7).is_ok()
                    && call(site) == 7
            });
        }
        if !parent_first {
            wait_for(forked);
            assert_eq!(call(site), A);
        }
        make_patchable(&memory).unwrap();
        change(site, A, B).unwrap();
        assert_eq!(call(site), B);
        if parent_first {
            changed.write_all(&[1]).unwrap();
            wait_for(forked);
        }
        assert_eq!(call(site), B);
    }
}
