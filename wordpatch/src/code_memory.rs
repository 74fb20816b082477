//! Memory for generated code: two mappings of the same pages, as for text that has been patched.
//!
//! # The algorithm
//! 1. A [`CodeBuffer`] is shared memory, mapped read-write, with the maximum size of the code;
//!    pages are allocated when they are written.
//! 2. [`CodeBuffer::seal`] unmaps the unused part, maps the rest a second time, read-execute, and
//!    registers the two mappings as a text and its writable alias. [`patch`](crate::patch) and
//!    [`TextRef`] then store through that alias, and copy nothing.
//! 3. When a [`CodeMemory`] is dropped, its text is forgotten and both mappings are unmapped.
//!
//! No page is ever writable at an address where it is executed.
//!
//! Code in a file can be executed where the file is mapped ([`CodeMemory::map`]): nothing is
//! copied, and processes share the pages. Before it is patched for the first time, it is copied
//! into memory as above, which replaces the mapping of the file while threads may be executing the
//! code ([`CodeMemory::make_patchable`]).
//!
//! A [`CodeArena`] is for code that is added while other code runs: both mappings are created at
//! once, near the code that it belongs to, and code is appended through the writable one. Appended
//! code never moves. Addresses for arenas may be reserved after code, in its own mappings
//! ([`CodeBuffer::seal_with_room`]): later mappings may leave no space near the code, a process may
//! have only about 65,000 mappings, and the search for space takes longer the more there are.
//!
//! # Example
//! ```
//! use wordpatch::code_memory::CodeBuffer;
//!
//! // mov eax, 41; ret
//! let mut buffer = CodeBuffer::new(4096)?;
//! let offset = buffer.append(&[0xb8, 41, 0, 0, 0, 0xc3], 16).expect("there is room");
//! let memory = buffer.seal()?;
//! let address = memory.address() + offset;
//! // SAFETY: a function of this type was written there.
//! let answer = unsafe { std::mem::transmute::<usize, extern "C" fn() -> u32>(address) };
//! assert_eq!(answer(), 41);
//! // SAFETY: 1. an instruction starts there, in our own code; 2. every caller can use 42; 3. and 4. it is in one fetch
//! // window, since its address is a multiple of 16 and it has 5 bytes.
//! unsafe { wordpatch::patch(address, &[0xb8, 41, 0, 0, 0], &[0xb8, 42, 0, 0, 0])? };
//! assert_eq!(answer(), 42);
//! // No thread executes the code any more, and no patch of it is outstanding.
//! drop(memory);
//! # Ok::<(), wordpatch::Error>(())
//! ```

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nix::errno::Errno;
use nix::sys::mman::munmap;

use crate::protocol::INT3;
use crate::text::fork::Generation;
use crate::text::{self, alias};
use crate::{Error, TextRef, near, site_table};

const PAGE: usize = 4096;

/// A mapping of ours, unmapped when dropped.
#[derive(Debug)]
struct View {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is accessed through its owner only.
unsafe impl Send for View {}
// SAFETY: as above; nothing is written through a shared reference.
unsafe impl Sync for View {}

impl View {
    fn range(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.length
    }

    /// Removes the pages from this mapping, which is needed only where code is patched. They are
    /// kept, and are mapped again when they are accessed.
    fn release_pages(&self) {
        // SAFETY: a shared mapping of ours.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, libc::MADV_DONTNEED) };
    }

    /// The first `length` bytes, and the rest, which may be empty.
    fn split(self, length: usize) -> (Self, Self) {
        let Self { start, length: all } = self;
        assert!(length <= all);
        std::mem::forget(self);
        // SAFETY: inside the mapping, or at its end.
        let rest = Self { start: unsafe { start.add(length) }, length: all - length };
        (Self { start, length }, rest)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.length != 0 {
            // SAFETY: the mapping is ours, and its owner is being dropped.
            let _ = unsafe { munmap(self.start.cast(), self.length) };
        }
    }
}

/// Code that is being written, before it is executable.
#[derive(Debug)]
pub struct CodeBuffer {
    view: View,
    written: usize,
}

impl CodeBuffer {
    /// Reserves address space for `limit` bytes. Memory is allocated when it is written.
    ///
    /// # Errors
    /// [`Error::CodeMemory`].
    pub fn new(limit: usize) -> Result<Self, Error> {
        let length = limit.max(1).next_multiple_of(PAGE);
        let start = alias::reserve_shared(length).map_err(refused)?;
        Ok(Self { view: View { start, length }, written: 0 })
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.written
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.written == 0
    }

    /// Appends code at the next multiple of `alignment` (a power of two, at most a page), and
    /// returns its offset. Skipped bytes are filled with INT3. Returns `None` if there is no room.
    pub fn append(&mut self, code: &[u8], alignment: usize) -> Option<usize> {
        self.append_by(code.len(), alignment, |place| place.copy_from_slice(code))
    }

    /// As [`CodeBuffer::append`], for code of this length that `write` writes.
    pub fn append_by(
        &mut self,
        length: usize,
        alignment: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let start = self.written.next_multiple_of(alignment);
        let end = start.checked_add(length).filter(|end| *end <= self.view.length)?;
        let before = self.written;
        self.written = end;
        let bytes = self.bytes_mut();
        bytes[before..start].fill(INT3);
        write(&mut bytes[start..]);
        Some(start)
    }

    /// The bytes written so far.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped read-write, and exclusively ours until it is sealed.
        unsafe { std::slice::from_raw_parts_mut(self.view.start.as_ptr(), self.written) }
    }

    /// Unmaps everything after the first `length` bytes, which are whole pages.
    fn shrink(&mut self, length: usize) -> Result<(), Error> {
        let rest = self.view.range().start + length..self.view.range().end;
        if let Some(start) = NonNull::new(std::ptr::with_exposed_provenance_mut(rest.start))
            && !rest.is_empty()
        {
            // SAFETY: the unused part of our own mapping.
            unsafe { munmap(start, rest.len()) }.map_err(refused)?;
        }
        self.view.length = length;
        Ok(())
    }

    /// Makes the code executable. The rest of its last page is filled with INT3.
    ///
    /// # Errors
    /// [`Error::CodeMemory`], [`Error::MemoryMap`].
    pub fn seal(self) -> Result<CodeMemory, Error> {
        Ok(self.seal_with_room(0)?.0)
    }

    /// As [`CodeBuffer::seal`], but also keeps `room` bytes of addresses after the code for arenas:
    /// fewer if the limit of the buffer is reached, none if the system refuses them. They belong to
    /// the mappings of the code, and take memory only when they are written.
    ///
    /// # Errors
    /// As [`CodeBuffer::seal`].
    pub fn seal_with_room(mut self, room: usize) -> Result<(CodeMemory, CodeRoom), Error> {
        let length = self.written.max(1).next_multiple_of(PAGE);
        let room = room.next_multiple_of(PAGE).min(self.view.length - length);
        let code = self.written;
        self.written = length;
        self.bytes_mut()[code..].fill(INT3);
        self.shrink(length + room)?;
        // Needed before any text is registered: forked children share it.
        site_table::reserve()?;
        // SAFETY: the view is mapped shared, and this long.
        let mut start = unsafe { alias::map_executable(self.view.start, length + room) };
        if start.is_err() && room > 0 {
            self.shrink(length)?;
            // SAFETY: as above.
            start = unsafe { alias::map_executable(self.view.start, length) };
        }
        let text = View { start: start.map_err(refused)?, length: self.view.length };
        let ((text, text_of_room), (view, view_of_room)) = (text.split(length), self.view.split(length));
        view.release_pages();
        text::register(text.range(), view.start, Arc::new(AtomicUsize::new(length)));
        let code = Arc::new(AtomicUsize::new(code));
        let room = CodeRoom { views: Some((text_of_room, view_of_room)), generation: Generation::now() };
        Ok((CodeMemory { text, view: OnceLock::from(view), copying: Mutex::new(()), code }, room))
    }
}

/// Code that may be executed and patched.
///
/// When it is dropped, no thread may be executing it or execute it later, and all patches inside it
/// must be finished. No [`TextRef`] or [`TogglePair`](crate::text::TogglePair) inside it may be
/// used afterwards. Calling the code, patching it and using those types is unsafe, and this is one
/// of the obligations of their callers.
#[derive(Debug)]
pub struct CodeMemory {
    text: View,
    /// Kept mapped for the text table, which contains its address. Code that is executed in a file
    /// has none until it is copied.
    view: OnceLock<View>,
    /// Held while code is copied from a file.
    copying: Mutex<()>,
    /// Number of bytes of code.
    code: Arc<AtomicUsize>,
}

impl CodeMemory {
    /// Maps code that is in a file, `length` bytes from `offset` on, a multiple of the page size.
    /// Also reserves `room` bytes of addresses after it, as [`CodeBuffer::seal_with_room`] does.
    /// The pages are shared with all processes that map the file, and are read when they are first
    /// executed. The code cannot be patched before [`CodeMemory::make_patchable`].
    ///
    /// # Errors
    /// [`Error::CodeMemory`]: among other reasons, because the file system is mounted `noexec`.
    ///
    /// # Safety
    /// The file must have these bytes, and they must not change as long as the memory exists:
    /// neither by writing into the file nor by truncating it.
    pub unsafe fn map(
        file: impl AsFd,
        offset: u64,
        length: usize,
        room: usize,
    ) -> Result<(Self, CodeRoom), Error> {
        // Also detects forked children from now on, which must not write into the room.
        site_table::reserve()?;
        let pages = length.max(1).next_multiple_of(PAGE);
        let room = room.next_multiple_of(PAGE);
        let reserve = |room: usize| {
            let view = View { start: alias::reserve_shared(pages + room)?, length: pages + room };
            // SAFETY: the view is mapped shared, and this long.
            let text = unsafe { alias::map_executable(view.start, view.length)? };
            Ok((View { start: text, length: view.length }, view))
        };
        // One mapping for code and room, so that they are adjacent. Below, the file replaces the
        // part of the code, whose alias is not needed.
        let reserved = reserve(room).or_else(|errno| if room > 0 { reserve(0) } else { Err(errno) });
        let (text, view) = reserved.map_err(refused)?;
        let ((text, text_of_room), (_, view_of_room)) = (text.split(pages), view.split(pages));
        // SAFETY: the addresses are ours, and not in use yet.
        unsafe { alias::map_file_at(file, offset, pages, text.start) }.map_err(refused)?;
        let room = CodeRoom { views: Some((text_of_room, view_of_room)), generation: Generation::now() };
        let code = Arc::new(AtomicUsize::new(length));
        Ok((Self { text, view: OnceLock::new(), copying: Mutex::new(()), code }, room))
    }

    /// Makes code that is executed in a file patchable: `write` writes the same code into new
    /// pages, which replace those of the file. Other threads may be executing it. Does nothing if
    /// the code is patchable.
    ///
    /// # Errors
    /// [`Error::CodeMemory`]; [`Error::SharedWithParent`] in a forked child before
    /// [`unshare`](text::unshare).
    ///
    /// # Safety
    /// `write` must write the bytes that the file has.
    pub unsafe fn make_patchable(&self, write: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        if self.view.get().is_some() {
            return Ok(());
        }
        // A child inherits neither the lock nor half of the replacement.
        let _no_forks = text::atfork::no_forks();
        let _copying = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        if self.view.get().is_some() {
            return Ok(());
        }
        if text::is_shared_with_parent() {
            return Err(Error::SharedWithParent { address: self.address() });
        }
        let mut copy = CodeBuffer::new(self.text.length)?;
        let written = self.written();
        copy.append_by(written, 1, write);
        copy.append_by(self.text.length - written, 1, |padding| padding.fill(INT3));
        let view = copy.view;
        // SAFETY: the text is ours, and the copy has its bytes, by the caller's obligation.
        unsafe { alias::map_executable_over(view.start, view.length, self.text.start) }.map_err(refused)?;
        view.release_pages();
        text::register(self.text.range(), view.start, Arc::new(AtomicUsize::new(view.length)));
        self.view.set(view).expect("set with the lock only");
        Ok(())
    }

    /// Where the code is written.
    fn writable(&self) -> NonNull<u8> {
        self.view.get().expect("memory that is written has a view for that").start
    }

    /// The address at which the code is executed.
    pub fn address(&self) -> usize {
        self.text.range().start
    }

    /// The addresses of the pages of the code.
    pub fn pages(&self) -> Range<usize> {
        self.text.range()
    }

    /// The number of bytes of code.
    fn written(&self) -> usize {
        self.code.load(Ordering::Acquire)
    }

    /// A copy of the current code. It is not an atomic snapshot with respect to concurrent patches.
    pub fn code(&self) -> Vec<u8> {
        let start = self.text.start.as_ptr();
        // SAFETY: mapped readable as long as `self` exists. Patches may store concurrently: each
        // byte is read once, with a volatile load.
        (0..self.written()).map(|at| unsafe { start.add(at).read_volatile() }).collect()
    }
}

/// Address space after code, for arenas.
#[derive(Debug)]
pub struct CodeRoom {
    /// The mappings at which code will be executed, and written.
    views: Option<(View, View)>,
    generation: Generation,
}

impl CodeRoom {
    /// The number of bytes left.
    pub fn len(&self) -> usize {
        self.views.as_ref().map_or(0, |(text, _)| text.length)
    }

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next `length` bytes as an arena; `None` if fewer are left.
    ///
    /// A forked child shares the pages with its parent. Therefore it returns the addresses to the
    /// system instead, and gets `None`: [`CodeArena::near`] then finds them free.
    ///
    /// # Errors
    /// [`Error::MemoryMap`].
    pub fn arena(&mut self, length: usize) -> Result<Option<CodeArena>, Error> {
        if !self.generation.is_current() {
            self.views = None;
        }
        let length = length.max(1).next_multiple_of(PAGE);
        let Some((text, view)) = self.views.take_if(|(text, _)| length <= text.length) else {
            return Ok(None);
        };
        let ((text, text_left), (view, view_left)) = (text.split(length), view.split(length));
        self.views = Some((text_left, view_left));
        CodeArena::of(text, view).map(Some)
    }
}

/// Memory for code that is added while the code next to it is running.
///
/// The requirements of [`CodeMemory`] for dropping apply here, too.
#[derive(Debug)]
pub struct CodeArena {
    memory: CodeMemory,
    place: TextRef,
}

impl CodeArena {
    /// Reserves `length` bytes for code, all within reach of any rel32 operand in `text`, and vice
    /// versa. Memory is allocated when it is written.
    ///
    /// # Errors
    /// [`Error::OutOfReach`], [`Error::CodeMemory`], [`Error::MemoryMap`].
    pub fn near(text: &Range<usize>, length: usize) -> Result<Self, Error> {
        let length = length.max(1).next_multiple_of(PAGE);
        let start = alias::reserve_shared(length).map_err(refused)?;
        let view = View { start, length };
        let text = View { start: near::map_near(text, length)?, length };
        site_table::reserve()?;
        // SAFETY: both mappings are ours, have this length, and are not in use yet.
        unsafe { alias::map_executable_at(view.start, length, text.start) }.map_err(refused)?;
        Self::of(text, view)
    }

    /// An empty arena in a text and its writable alias.
    fn of(text: View, view: View) -> Result<Self, Error> {
        let code = Arc::new(AtomicUsize::new(0));
        text::register(text.range(), view.start, code.clone());
        let memory = CodeMemory { text, view: OnceLock::from(view), copying: Mutex::new(()), code };
        // SAFETY: the mapping has just been registered, and is not changed before `self` is
        // dropped.
        let place = unsafe { TextRef::resolve(memory.address(), memory.pages().len())? };
        Ok(Self { memory, place })
    }

    /// The address that code appended next would have, with this alignment (a power of two, at most
    /// a page).
    pub fn next_address(&self, alignment: usize) -> usize {
        self.memory.address() + self.memory.written().next_multiple_of(alignment)
    }

    /// The number of bytes left.
    pub fn room(&self) -> usize {
        self.memory.pages().len() - self.memory.written()
    }

    /// Appends code at [`CodeArena::next_address`]. Threads may execute it after they have read its
    /// address from memory that was written after this call.
    ///
    /// # Errors
    /// [`Error::SharedWithParent`] in a forked child before [`unshare`](text::unshare),
    /// [`Error::OutOfReach`] if there is no room.
    pub fn append(&mut self, code: &[u8], alignment: usize) -> Result<usize, Error> {
        let address = self.next_address(alignment);
        if text::is_shared_with_parent() {
            return Err(Error::SharedWithParent { address });
        }
        let start = address - self.memory.address();
        let end = start + code.len();
        if end > self.memory.pages().len() {
            return Err(Error::OutOfReach { address, length: code.len() });
        }
        // SAFETY: inside the alias, in a part that is not in use yet.
        unsafe {
            let place = self.memory.writable().add(start);
            place.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
        }
        self.memory.code.store(end, Ordering::Release);
        Ok(address)
    }

    /// Overwrites appended code from an address inside it on. The new code may extend beyond the
    /// end of the code that was appended last: code that is appended later comes after it. Threads
    /// may execute it after they have read its address from memory that was written after this
    /// call.
    ///
    /// # Errors
    /// [`Error::SharedWithParent`] in a forked child before [`unshare`](text::unshare),
    /// [`Error::OutOfReach`] if nothing was appended there, or there is no room.
    ///
    /// # Safety
    /// No thread executes the code that was there, or will execute it: nothing leads to it any
    /// more, every core has executed a serializing instruction since
    /// ([`serialize_all_cores`](crate::serialize_all_cores)), and no thread will return to it,
    /// including threads of forked children that share these pages
    /// ([`leave_to_children`](crate::internal::leave_to_children)).
    pub unsafe fn overwrite(&mut self, address: usize, code: &[u8]) -> Result<(), Error> {
        if text::is_shared_with_parent() {
            return Err(Error::SharedWithParent { address });
        }
        let start = address.wrapping_sub(self.memory.address());
        let end = start.saturating_add(code.len());
        if start >= self.memory.written() || end > self.memory.pages().len() {
            return Err(Error::OutOfReach { address, length: code.len() });
        }
        // SAFETY: inside the alias, in a part that nobody uses, by the caller's obligation.
        unsafe {
            let place = self.memory.writable().add(start);
            place.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
        }
        self.memory.code.fetch_max(end, Ordering::Release);
        Ok(())
    }

    /// A copy of the code that was appended, as [`CodeMemory::code`].
    pub fn code(&self) -> Vec<u8> {
        self.memory.code()
    }

    /// The addresses of the arena's pages.
    pub fn pages(&self) -> Range<usize> {
        self.memory.pages()
    }

    /// The arena as text that can be patched.
    pub fn place(&self) -> &TextRef {
        &self.place
    }
}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        text::forget(&self.text.range());
    }
}

fn refused(errno: Errno) -> Error {
    Error::CodeMemory { source: errno.into() }
}
