//! Functions that are compiled when they are first called.
//!
//! # The algorithm
//! 1. An image begins with an *entry* for each function (`wasm_jit_codegen::lazy_entries`), where
//!    calls and references lead at first. An entry calls the runtime with the function's index.
//! 2. The thread that executes the entry compiles the function ([`CodeImage::ensure_compiled`]) and
//!    *places* it: appends its code to an arena after the image. A call in this code leads to the
//!    code of its callee, if that is *linked*, and otherwise to the callee's entry. Other threads
//!    that call the function wait; those that call others do not.
//! 3. Watchers that wait for the function's first call make their probes (`probed/enter.rs`).
//! 4. The function is linked ([`CodeImage::link`]): its entry becomes a JMP to its code, and the
//!    calls that were placed before lead there, too. Their operands are inside aligned quadwords
//!    (`CodeSettings::patches_calls`), so each of these changes is one store.
//!
//! Code never moves, and a function that is never called is never compiled. The code of a function
//! is the same as if all had been compiled together, except for the operands of calls and the
//! prefixes that align them.
//!
//! # Locks
//! A thread that compiles a function holds one of [`TURNS`] locks, and while it places or links
//! code, the lock of [`Linking`], during which it does not fork. It takes no other lock during that
//! time. Signal handlers look addresses up in tables that only grow: `order` has the functions in
//! the order of their code.
//!
//! # Forked children
//! Children do not compile: they would need code near the image's, whose pages they share with
//! their parent. The parent moves the image to other pages before it links a function
//! ([`super::forks`]).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use wasm_jit_codegen::{Catch, Chunk, Compiler, Continue, LAZY_ENTRY_SIZE, SITE_OFF, site_jump};
use wordpatch::code_memory::CodeArena;
use wordpatch::{Bytes, FetchWindow, TextRef, internal};

use super::CodeImage;
use super::error::CompileError;
use super::forks::{self, Locked};
use super::functions::{ALIGNMENT, Function, Functions, TryRegion, add_regions};
use super::symbols::VersionCode;

/// The number of locks for functions that are being compiled: this many can be compiled at the same
/// time.
const TURNS: usize = 16;

/// The operand of a call is exchanged inside an aligned quadword, on any processor.
const WINDOW: FetchWindow = FetchWindow::Bytes8;

/// The functions of a module, by their numbers.
#[derive(Debug)]
pub(super) struct LazyFunctions {
    slots: Box<[Slot]>,
    /// Numbers of the functions that have been compiled, in ascending order of their code.
    order: Box<[AtomicU32]>,
    /// The number of functions in `order`.
    placed: AtomicUsize,
    /// The size of the code of these functions, in bytes.
    code_length: AtomicUsize,
    /// The pages reserved for code.
    pages: Range<usize>,
    /// The process that made the image.
    process: u32,
    turns: [Mutex<()>; TURNS],
    linking: Mutex<Linking>,
}

#[derive(Debug)]
struct Slot {
    /// The range of the function's body in the binary module.
    body: Range<u32>,
    compiled: OnceLock<Box<Compiled>>,
    is_linked: AtomicBool,
}

/// A function that has been compiled.
#[derive(Debug)]
struct Compiled {
    function: Function,
    regions: Box<[TryRegion]>,
    catches: Box<[Catch]>,
}

#[derive(Debug)]
pub(super) struct Linking {
    arena: CodeArena,
    /// The entries, as a text that can be patched.
    entries: Option<TextRef>,
    /// The operands of calls that lead to the entry of a function, by the function's number.
    calls: HashMap<u32, Vec<usize>>,
}

impl LazyFunctions {
    /// Functions with these bodies, none of which has been compiled. Their code will be in the
    /// arena, which must be within 4 GiB after the entries.
    pub(super) fn new(bodies: impl Iterator<Item = Range<u32>>, arena: CodeArena) -> Self {
        let slot = |body| Slot { body, compiled: OnceLock::new(), is_linked: AtomicBool::new(false) };
        let slots: Box<[Slot]> = bodies.map(slot).collect();
        Self {
            order: slots.iter().map(|_| AtomicU32::new(0)).collect(),
            slots,
            placed: AtomicUsize::new(0),
            code_length: AtomicUsize::new(0),
            pages: arena.pages(),
            process: std::process::id(),
            turns: [const { Mutex::new(()) }; TURNS],
            linking: Mutex::new(Linking { arena, entries: None, calls: HashMap::new() }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn body(&self, number: usize) -> Range<u32> {
        self.slots[number].body.clone()
    }

    /// A function, if it has been compiled. Atomics only.
    pub(super) fn get(&self, number: usize) -> Option<&Function> {
        Some(&self.slots.get(number)?.compiled.get()?.function)
    }

    /// The try regions of a function that has been compiled, and their catches.
    pub(super) fn tables(&self, number: usize) -> (&[TryRegion], &[Catch]) {
        let compiled = self.slots[number].compiled.get().expect("the function has been compiled");
        (&compiled.regions, &compiled.catches)
    }

    /// Numbers of the functions that have been compiled, in ascending order of their code.
    fn placed(&self) -> &[AtomicU32] {
        // Acquire: these functions are complete.
        &self.order[..self.placed.load(Ordering::Acquire)]
    }

    /// The number of the function that an offset in the image is in. Atomics only.
    pub(super) fn find(&self, offset: u32) -> Option<usize> {
        let number = |place: &AtomicU32| place.load(Ordering::Relaxed) as usize;
        let begins_before =
            |place: &AtomicU32| self.get(number(place)).is_some_and(|function| function.entry <= offset);
        let placed = self.placed();
        let found = number(&placed[placed.partition_point(begins_before).checked_sub(1)?]);
        self.get(found).is_some_and(|function| offset < function.end).then_some(found)
    }

    /// Offset of the address at which a function is called.
    pub(super) fn entry(&self, number: usize) -> u32 {
        match self.linked(number) {
            Some(function) => function.entry,
            None => entry_of(number),
        }
    }

    /// The size of the entries, with which the image begins, in bytes.
    pub(super) fn entries_size(&self) -> usize {
        self.len() * LAZY_ENTRY_SIZE
    }

    fn linked(&self, number: usize) -> Option<&Function> {
        // Acquire: the code is complete, and no watcher waits for the function's first call.
        let is_linked = self.slots[number].is_linked.load(Ordering::Acquire);
        self.get(number).filter(|_| is_linked)
    }

    pub(super) fn code_length(&self) -> usize {
        self.code_length.load(Ordering::Relaxed)
    }

    /// The addresses of the pages for code.
    pub(super) fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// The code of the functions that have been compiled.
    pub(super) fn code(&self) -> Vec<u8> {
        self.linking().arena.code()
    }

    pub(super) fn linking(&self) -> Locked<'_, Linking> {
        forks::lock(&self.linking)
    }

    /// Whether a function has been compiled. If not, the thread that compiles it later sees what
    /// this thread has written before.
    pub(super) fn is_compiled(&self, number: usize) -> bool {
        let _linking = self.linking();
        self.get(number).is_some()
    }
}

/// Offset of the entry of a function.
pub(super) fn entry_of(number: usize) -> u32 {
    (number * LAZY_ENTRY_SIZE) as u32
}

impl CodeImage {
    /// The functions, if they are compiled when they are first called.
    pub(super) fn lazy(&self) -> Option<&LazyFunctions> {
        match &self.functions {
            Functions::Eager(_) => None,
            Functions::Lazy(all) => Some(all),
        }
    }

    /// Compiles a function, unless that has been done. Waits while another thread does it.
    ///
    /// # Errors
    /// The function exceeds a limit, there is no room, or this is a forked child.
    pub(crate) fn ensure_compiled(&self, index: u32) -> Result<(), CompileError> {
        let Some(all) = self.lazy() else { return Ok(()) };
        let number = self.number(index);
        if all.get(number).is_some() {
            return Ok(());
        }
        // First: a child may have inherited locks that are never released.
        if std::process::id() != all.process {
            return Err(CompileError::Forked { function: index });
        }
        // For placing the code. Before the turn: a thread that waits for it may prevent forks, and
        // then this thread must not wait for a fork.
        let _no_forks = internal::no_forks();
        let _turn = all.turns[number % TURNS].lock().unwrap_or_else(|e| e.into_inner());
        if all.get(number).is_some() {
            return Ok(());
        }
        let mut chunk = Chunk::default();
        Compiler::new(&self.module).compile(index, &self.body(index), &mut chunk)?;
        let function = self.place(all, number, chunk)?;
        self.shown.version_made(&VersionCode::of_lazy(self, index, function));
        Ok(())
    }

    /// Appends the code of a function, for a thread that prevents forks.
    fn place<'a>(
        &self,
        all: &'a LazyFunctions,
        number: usize,
        chunk: Chunk,
    ) -> Result<&'a Function, CompileError> {
        let Chunk { mut code, calls, functions } = chunk;
        let [function] = &functions[..] else { unreachable!("one function was compiled") };
        code.truncate(function.end as usize);
        let mut linking = all.linking();
        let start = linking.arena.next_address(ALIGNMENT);
        if code.len() > (all.pages.end).saturating_sub(start) {
            return Err(CompileError::NoAddresses);
        }
        let base = (start - self.memory.address()) as u32;
        let mut to_entries = Vec::new();
        for call in &calls {
            let callee = self.number(call.function);
            let target = match all.linked(callee) {
                _ if callee == number => base + function.entry,
                Some(callee) => callee.entry,
                None => {
                    to_entries.push((callee as u32, start + call.at as usize));
                    entry_of(callee)
                }
            };
            let distance = target.wrapping_sub(base + call.at + 4);
            code[call.at as usize..][..4].copy_from_slice(&distance.to_le_bytes());
        }
        linking.arena.append(&code, ALIGNMENT)?;
        for (callee, operand) in to_entries {
            linking.calls.entry(callee).or_default().push(operand);
        }
        let (mut regions, mut catches) = (Vec::new(), Vec::new());
        add_regions(base, function, &mut regions, &mut catches);
        let body = all.body(number);
        let compiled = Compiled {
            function: Function {
                entry: base + function.entry,
                body: base + function.body,
                end: base + function.end,
                frame_size: function.frame_size,
                first_region: 0,
                wasm_start: body.start,
                wasm_end: body.end,
            },
            regions: regions.into(),
            catches: catches.into(),
        };
        all.code_length.fetch_add(code.len(), Ordering::Relaxed);
        let compiled = all.slots[number].compiled.get_or_init(|| Box::new(compiled));
        let placed = all.placed.load(Ordering::Relaxed);
        all.order[placed].store(number as u32, Ordering::Relaxed);
        all.placed.store(placed + 1, Ordering::Release);
        Ok(&compiled.function)
    }

    /// Performs the work of the first call to a function: compiles it, makes the probes that wait
    /// for it, and links it. Returns where the call continues.
    ///
    /// # Errors
    /// As [`CodeImage::ensure_compiled`].
    pub(crate) fn first_call(self: &Arc<Self>, index: u32) -> Result<Continue, CompileError> {
        self.ensure_compiled(index)?;
        let (at, may_others_enter) = self.admit(index);
        if may_others_enter {
            self.link(index);
        }
        Ok(at)
    }

    /// Makes calls to a function lead to its code. Calls whose patch is refused continue to lead to
    /// the entry, and come here again.
    fn link(&self, index: u32) {
        let Some(all) = self.lazy().filter(|all| std::process::id() == all.process) else { return };
        let number = self.number(index);
        let _no_forks = internal::no_forks();
        // If there are probes, all code is copied with the lock of those who write it.
        if self.forks.have_children() && self.probed.get().is_some() && !self.is_own_code() {
            return;
        }
        let mut linking = all.linking();
        // SAFETY: this is the lock of all writers of the code: as long as it is shared with
        // children, nobody writes it with the other lock, without having taken this one.
        if unsafe { self.forks.leave_code(&[self.pages()]) }.is_err() {
            return;
        }
        if all.linked(number).is_some() {
            return;
        }
        let Linking { arena, entries, calls } = &mut *linking;
        let address = self.at(entry_of(number)) as usize;
        let target = self.at(self.function(index).entry) as usize;
        let bytes = |bytes: &[u8]| Bytes::new(bytes).expect("at most eight bytes");
        let entries = match entries {
            Some(entries) => entries,
            // SAFETY: the image's code, which wordpatch has mapped, and which outlives this.
            None => match unsafe { TextRef::resolve(self.memory.address(), 1) } {
                Ok(place) => entries.insert(place),
                Err(_) => return,
            },
        };
        let (old, new) = (bytes(&SITE_OFF), bytes(&site_jump(address, target)));
        // SAFETY: in the image; a thread executes the NOP and then the rest of the entry, or the
        // jump to code that is complete.
        if unsafe { entries.compare_exchange(WINDOW, address - self.memory.address(), &old, &new) }.is_err() {
            return;
        }
        all.slots[number].is_linked.store(true, Ordering::Release);
        for operand in calls.remove(&(number as u32)).unwrap_or_default() {
            let distance = |target: usize| bytes(&(target.wrapping_sub(operand + 4) as u32).to_le_bytes());
            let offset = operand - arena.place().address();
            // SAFETY: the operand of a call in the arena, inside a quadword; the call goes to the
            // entry or to the code. If this is refused, the entry leads there.
            let _ = unsafe {
                arena.place().compare_exchange(WINDOW, offset, &distance(address), &distance(target))
            };
        }
    }

    /// The functions that have been compiled so far, if functions are compiled when they are first
    /// called.
    pub(super) fn lazily_compiled(&self) -> impl Iterator<Item = VersionCode> {
        let placed = self.lazy().into_iter().flat_map(LazyFunctions::placed);
        placed.filter_map(|number| {
            let index = self.indices().start + number.load(Ordering::Relaxed);
            Some(VersionCode::of_lazy(self, index, self.compiled(index)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::perf;
    use super::super::registry::image_at;
    use super::super::tests::lazy_image as image;
    use super::*;

    /// The targets of the calls in a function, as offsets in the image.
    fn call_targets(image: &CodeImage, index: u32) -> Vec<u32> {
        let function = image.function(index);
        let code = &image.code()[function.entry as usize..function.end as usize];
        let ip = function.entry.into();
        let decoder = iced_x86::Decoder::with_ip(64, code, ip, iced_x86::DecoderOptions::NONE);
        let calls = decoder.into_iter().filter(|instruction| instruction.is_call_near());
        calls.map(|instruction| instruction.near_branch_target() as u32).collect()
    }

    #[test]
    fn a_function_is_found_by_every_address_of_its_code() {
        let fillings = [10, 500, 0, 70, 9000].map(|count| "(drop (i32.popcnt (local.get 0)))".repeat(count));
        let functions: String =
            fillings.iter().map(|filling| format!("(func (param i32) {filling})")).collect();
        let image = image(&format!("(module (import \"a\" \"b\" (func)) {functions})"));
        assert_eq!(image.function_at(image.at(0) as usize), None, "an entry");
        for index in [3, 1, 5, 2, 3, 4, 1] {
            image.ensure_compiled(index).unwrap();
        }
        let mut after = image.at(image.functions_end) as usize;
        for index in [3, 1, 5, 2, 4] {
            let Function { entry, body, end, .. } = *image.function(index);
            let [entry, body, end] = [entry, body, end].map(|offset| image.at(offset) as usize);
            assert!(after <= entry && entry < body && body < end, "in the order in which they were compiled");
            for pc in [entry, body, end - 1] {
                assert_eq!(image.function_at(pc), Some(index));
                assert!(image.has_function_at(pc));
                // SAFETY: the image is alive.
                assert!(std::ptr::eq(unsafe { image_at(pc) }.unwrap(), &*image));
            }
            assert!(after == entry || image.function_at(entry - 1) != Some(index));
            after = end;
        }
        assert_eq!(image.function_at(after), None);
        assert_eq!(image.code_length(), image.code().len() - image.memory().pages().len() - padding(&image));
    }

    /// Bytes between the functions.
    fn padding(image: &CodeImage) -> usize {
        let mut end = image.memory().pages().len();
        let mut padding = 0;
        let all = image.lazy().unwrap();
        for number in all.placed() {
            let function = all.get(number.load(Ordering::Relaxed) as usize).unwrap();
            let start = function.entry as usize / ALIGNMENT * ALIGNMENT;
            padding += start.max(end) - end;
            end = function.end as usize;
        }
        padding
    }

    #[test]
    fn calls_lead_to_code_when_the_callee_is_linked() {
        // At every distance from the boundary of a quadword.
        let calls: String =
            (0..16).map(|at| format!("(call 1) {}", "(drop (f64.const 0))".repeat(at))).collect();
        let image = image(&format!("(module (func {calls} (call 0)) (func (call 2)) (func (call 0)))"));
        image.ensure_compiled(0).unwrap();
        let own = image.function(0).entry;
        let expected = |of_1: u32| [vec![of_1; 16], vec![own]].concat();
        assert_eq!(call_targets(&image, 0), expected(entry_of(1)));
        image.ensure_compiled(1).unwrap();
        assert_eq!(call_targets(&image, 0), expected(entry_of(1)), "it has not been called");
        image.first_call(1).unwrap();
        let callee = image.function(1).entry;
        assert_eq!(call_targets(&image, 0), expected(callee));
        // Functions that are compiled later call the code directly, and the entry leads there.
        image.first_call(0).unwrap();
        image.first_call(2).unwrap();
        assert_eq!(call_targets(&image, 2), [own]);
        assert_eq!(
            [0, 1, 2].map(|index| image.entry(index)),
            [0, 1, 2].map(|index| image.at(image.function(index).entry))
        );
        let entry = image.at(entry_of(1)) as usize;
        let bytes = image.code()[entry_of(1) as usize..][..5].to_vec();
        assert_eq!(bytes, site_jump(entry, image.at(callee) as usize));
    }

    #[test]
    fn names_are_known_of_what_has_been_compiled() {
        let image = image("(module $m (func $a) (func $b) (func $c))");
        let names = || {
            let mut map = Vec::new();
            perf::write_map(&image, &mut map).unwrap();
            let map = String::from_utf8(map).unwrap();
            map.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["m!entries", "m!trampolines"]);
        image.ensure_compiled(2).unwrap();
        image.ensure_compiled(0).unwrap();
        assert_eq!(names(), ["m!entries", "m!trampolines", "m!c", "m!a"]);
    }
}
