//! DWARF that is read with a budget.
//!
//! Lists in DWARF may be shared: a thousand units may refer to the same line program, each function
//! to the same list of ranges. A small section can thus make its reader read, and keep, gigabytes.
//! Here every read is charged to the budget. When the budget is spent, reads fail as they do at a
//! section's end, and the reader gives up.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use addr2line::gimli::{EndianSlice, Error, LittleEndian, Reader, ReaderOffsetId, Result};

/// The number of bytes that may still be read, in all sections.
pub(super) type Budget = Rc<Cell<usize>>;

/// A part of a section.
#[derive(Clone, Debug)]
pub(super) struct Metered<'a> {
    rest: EndianSlice<'a, LittleEndian>,
    budget: Budget,
}

impl<'a> Metered<'a> {
    pub(super) fn new(data: &'a [u8], budget: &Budget) -> Self {
        Self { rest: EndianSlice::new(data, LittleEndian), budget: budget.clone() }
    }

    /// Charges this many bytes to the budget, or one byte for an empty read.
    fn pay(&self, bytes: usize) -> Result<()> {
        let left = self.budget.get().checked_sub(bytes.max(1));
        self.budget.set(left.unwrap_or(0));
        left.map(drop).ok_or(Error::UnexpectedEof(self.rest.offset_id()))
    }
}

impl Reader for Metered<'_> {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.rest.len()
    }

    fn empty(&mut self) {
        self.rest.empty();
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.rest.truncate(len)
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.rest.offset_from(base.rest)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.rest.offset_id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.rest.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = Reader::find(&self.rest, byte);
        self.pay(*found.as_ref().unwrap_or(&self.rest.len()))?;
        found
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.pay(1)?;
        self.rest.skip(len)
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        self.pay(1)?;
        Ok(Self { rest: self.rest.split(len)?, budget: self.budget.clone() })
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.pay(self.rest.len())?;
        self.rest.to_slice()
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        self.pay(self.rest.len())?;
        Reader::to_string(&self.rest)
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        self.pay(self.rest.len())?;
        Reader::to_string_lossy(&self.rest)
    }

    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        self.pay(buf.len())?;
        Reader::read_slice(&mut self.rest, buf)
    }
}
