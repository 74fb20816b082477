//! The frames of a sampled stack, by the unwind tables of the loaded objects.

use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Module, ModuleSectionInfo, Unwinder as _};

use super::events::RawSample;
use super::objects::{self, Changes, Contents, Object};

/// Frames of a stack that are looked at, at most: a deeper recursion has the same functions in all
/// of them.
const MAX_FRAMES: usize = 512;

/// Where the frames of a sample end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At the thread's first function.
    Outermost,
    /// Before it: the sample has too little of the stack, or the unwind table does not describe it.
    Unknown,
    /// In the profiler's own code, which the program would not have executed.
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

/// The code of an object, by its addresses in memory.
type Text = Vec<(Range<u64>, Contents)>;

/// The unwinder, with the objects that it knows.
pub(super) struct Unwinder {
    unwinder: UnwinderX86_64<Contents>,
    cache: CacheX86_64,
    changes: Option<Changes>,
    objects: Vec<(Object, Text)>,
    /// An address in the profiler's object.
    own: u64,
}

impl Unwinder {
    pub(super) fn new() -> Self {
        Self {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            changes: None,
            objects: Vec::new(),
            own: Self::new as *const () as u64,
        }
    }

    /// Brings the objects up to date. Returns the ranges of those that were unloaded.
    pub(super) fn refresh(&mut self) -> Vec<Range<u64>> {
        let changes = objects::changes();
        if self.changes.replace(changes) == Some(changes) {
            return Vec::new();
        }
        let loaded = objects::loaded();
        let mut gone = Vec::new();
        self.objects.retain(|(object, _)| {
            let stays = loaded.contains(object);
            if !stays {
                gone.push(object.range.clone());
            }
            stays
        });
        for range in &gone {
            self.unwinder.remove_module(range.start);
        }
        if !gone.is_empty() {
            self.cache = CacheX86_64::new();
        }
        for object in loaded {
            if !self.objects.iter().any(|(known, _)| *known == object) {
                self.add(object);
            }
        }
        gone
    }

    fn add(&mut self, object: Object) {
        let Some(sections) = object.sections() else { return };
        let tables = UnwindTables {
            bias: object.bias,
            index: (sections.unwind_index.0, Some(sections.unwind_index.1)),
            table: (sections.unwind_table.0, Some(sections.unwind_table.1)),
        };
        let module = Module::new(String::new(), object.range.clone(), object.bias, tables);
        self.unwinder.add_module(module);
        self.objects.push((object, sections.text));
    }

    fn object_at(&self, address: u64) -> Option<&Object> {
        self.objects.iter().map(|(object, _)| object).find(|object| object.range.contains(&address))
    }

    /// The code at these addresses, as in the file of the object.
    pub(super) fn code(&self, range: &Range<u64>) -> Option<&[u8]> {
        let texts = self.objects.iter().flat_map(|(_, text)| text);
        let (text, bytes) =
            texts.into_iter().find(|(text, _)| text.start <= range.start && range.end <= text.end)?;
        bytes.get((range.start - text.start) as usize..(range.end - text.start) as usize)
    }

    /// Replaces `frames` by those of the sample, innermost first: addresses in the instruction that
    /// each of them executes.
    pub(super) fn frames(&mut self, sample: &RawSample<'_>, frames: &mut Vec<u64>) -> End {
        frames.clear();
        let own = self.object_at(self.own).map_or(0..0, |object| object.range.clone());
        let mut read_stack = |address: u64| {
            let offset = usize::try_from(address.wrapping_sub(sample.sp)).map_err(drop)?;
            let word = offset.checked_add(8).and_then(|end| sample.stack.get(offset..end)).ok_or(())?;
            word.try_into().map(u64::from_le_bytes).map_err(drop)
        };
        let registers = UnwindRegsX86_64::new(sample.ip, sample.sp, sample.bp);
        let objects = &self.objects;
        let mut walk = self.unwinder.iter_frames(sample.ip, registers, &mut self.cache, &mut read_stack);
        loop {
            let address = match walk.next() {
                Ok(Some(frame)) => frame.address_for_lookup(),
                Ok(None) => return End::Outermost,
                Err(_) => return End::Unknown,
            };
            if own.contains(&address) {
                return End::Profiler;
            }
            frames.push(address);
            // Beyond code without a table, frames are guesses.
            let is_known = objects.iter().any(|(object, _)| object.range.contains(&address));
            if !is_known || frames.len() == MAX_FRAMES {
                return End::Unknown;
            }
        }
    }
}
