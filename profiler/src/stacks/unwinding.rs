//! Finds the frames of a sampled stack, with the unwind tables of the loaded objects.

use std::cell::Cell;
use std::ops::Range;

use fastinst::internal;
use fastinst::internal::loaded::{self, Counters, LoadedObject};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};

use framehop::{FrameAddress, Module, ModuleSectionInfo, Unwinder as _};

use super::contents::{Contents, Sections};
use super::events::RawSample;

/// Maximum number of frames of a stack: a deeper recursion has the same functions in all of them.
const MAX_FRAMES: usize = 512;

/// How the unwinding of a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It reached the thread's first function.
    Outermost,
    /// It reached a part of the stack that is not in the sample.
    NotCopied,
    /// It ended before that for another reason: the unwind table does not describe the frame.
    Unknown,
    /// It reached the profiler's own code or that of probes, which the program would not have
    /// executed.
    Profiler,
}

/// The unwind tables of an object, with their addresses in memory.
struct UnwindTables {
    bias: u64,
    index: (Range<u64>, Option<Contents>),
    table: (Range<u64>, Option<Contents>),
}

impl UnwindTables {
    fn section(&mut self, name: &[u8]) -> Option<&mut (Range<u64>, Option<Contents>)> {
        match name {
            b".eh_frame_hdr" => Some(&mut self.index),
            b".eh_frame" => Some(&mut self.table),
            _ => None,
        }
    }
}

impl ModuleSectionInfo<Contents> for UnwindTables {
    fn base_svma(&self) -> u64 {
        0
    }

    fn section_svma_range(&mut self, name: &[u8]) -> Option<Range<u64>> {
        let bias = self.bias;
        let (memory, _) = self.section(name)?;
        Some(memory.start.wrapping_sub(bias)..memory.end.wrapping_sub(bias))
    }

    fn section_data(&mut self, name: &[u8]) -> Option<Contents> {
        self.section(name)?.1.take()
    }
}

/// A loaded object, and what is known of it.
struct Known {
    object: LoadedObject,
    contents: State,
}

/// The state of an object's contents.
enum State {
    /// No sampled frame has been in the object.
    Unread,
    /// The segments, by their addresses in memory; the unwinder has its table.
    Read(Vec<(Range<u64>, Contents)>),
    /// The contents cannot be read, or have no unwind table.
    Unusable,
}

/// Unwinds stacks through the objects that it knows.
pub(super) struct Unwinder {
    unwinder: UnwinderX86_64<Contents>,
    cache: CacheX86_64,
    counters: Option<Counters>,
    objects: Vec<Known>,
    /// An address inside the profiler's object.
    own: usize,
}

impl Unwinder {
    pub(super) fn new() -> Self {
        Self {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            counters: None,
            objects: Vec::new(),
            own: Self::new as *const () as usize,
        }
    }

    /// Updates the list of objects. Returns whether it has changed.
    pub(super) fn refresh(&mut self) -> bool {
        let new = loaded::counters().filter(|counters| self.counters != Some(*counters));
        let Some((counters, mut loaded)) = new.zip(loaded::objects()) else { return false };
        self.counters = Some(counters);
        let before = self.objects.len();
        let unwinder = &mut self.unwinder;
        self.objects.retain(|known| {
            if let Some(at) = loaded.iter().position(|object| *object == known.object) {
                loaded.swap_remove(at);
                return true;
            }
            if matches!(known.contents, State::Read(_)) {
                unwinder.remove_module(addresses(&known.object).start);
            }
            false
        });
        let some_are_gone = self.objects.len() < before;
        if some_are_gone {
            self.cache = CacheX86_64::new();
        }
        let some_are_new = !loaded.is_empty();
        self.objects.extend(loaded.into_iter().map(|object| Known { object, contents: State::Unread }));
        some_are_gone || some_are_new
    }

    /// Whether an object is loaded at this address.
    pub(super) fn is_mapped(&self, address: u64) -> bool {
        self.object_at(address).is_some()
    }

    /// The object that contains this address.
    fn object_at(&self, address: u64) -> Option<usize> {
        let address = usize::try_from(address).ok()?;
        self.objects.iter().position(|known| known.object.range.contains(&address))
    }

    /// Reads the contents of an object unless they have been read. Returns whether it has an unwind
    /// table.
    fn read(&mut self, at: usize) -> bool {
        let known = &mut self.objects[at];
        if matches!(known.contents, State::Unread) {
            known.contents = match Sections::of(&known.object) {
                Some(sections) => {
                    let bias = known.object.bias as u64;
                    let (index, table) = (sections.unwind_index, sections.unwind_table);
                    let (index, table) = ((index.0, Some(index.1)), (table.0, Some(table.1)));
                    let tables = UnwindTables { bias, index, table };
                    let module = Module::new(String::new(), addresses(&known.object), bias, tables);
                    self.unwinder.add_module(module);
                    State::Read(sections.segments)
                }
                None => State::Unusable,
            };
        }
        matches!(known.contents, State::Read(_))
    }

    /// The code at these addresses, as in the file of the object.
    pub(super) fn code(&mut self, range: &Range<u64>) -> Option<&[u8]> {
        let at = self.object_at(range.start)?;
        self.read(at);
        let State::Read(segments) = &self.objects[at].contents else { return None };
        let (memory, bytes) =
            segments.iter().find(|(memory, _)| memory.start <= range.start && range.end <= memory.end)?;
        bytes.get((range.start - memory.start) as usize..(range.end - memory.start) as usize)
    }

    /// Replaces `frames` by those of the sample, innermost first: each is an address inside the
    /// instruction that the frame executes.
    pub(super) fn frames(&mut self, sample: &RawSample<'_>, frames: &mut Vec<u64>) -> End {
        frames.clear();
        let own = self.objects.iter().position(|known| known.object.range.contains(&self.own));
        let is_beyond = Cell::new(false);
        let mut read_stack = |address: u64| {
            let offset = usize::try_from(address.wrapping_sub(sample.sp)).map_err(drop)?;
            let word = offset.checked_add(8).and_then(|end| sample.stack.get(offset..end));
            is_beyond.set(word.is_none());
            let word = word.ok_or(())?;
            word.try_into().map(u64::from_le_bytes).map_err(drop)
        };
        let mut registers = UnwindRegsX86_64::new(sample.ip, sample.sp, sample.bp);
        let mut address = FrameAddress::from_instruction_pointer(sample.ip);
        loop {
            let executed = address.address_for_lookup();
            let object = self.object_at(executed);
            let is_own = match object {
                Some(_) => object == own,
                None => internal::has_generated(executed as usize),
            };
            if is_own {
                return End::Profiler;
            }
            frames.push(executed);
            // Beyond code without an unwind table, frames are guesses.
            if !object.is_some_and(|object| self.read(object)) || frames.len() == MAX_FRAMES {
                return End::Unknown;
            }
            let caller =
                self.unwinder.unwind_frame(address, &mut registers, &mut self.cache, &mut read_stack);
            address = match caller {
                Ok(None) => return End::Outermost,
                Ok(Some(caller)) => match FrameAddress::from_return_address(caller) {
                    Some(caller) => caller,
                    None => return End::Unknown,
                },
                Err(_) if is_beyond.get() => return End::NotCopied,
                Err(_) => return End::Unknown,
            };
        }
    }
}

/// The address range of an object.
fn addresses(object: &LoadedObject) -> Range<u64> {
    object.range.start as u64..object.range.end as u64
}
