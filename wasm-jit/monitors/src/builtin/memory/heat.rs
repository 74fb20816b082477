//! The number of accesses to each line of memory.

use std::ops::RangeInclusive;

/// Bytes of a line.
pub(super) const LINE: u64 = 64;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// Lines of a page.
pub(super) const LINES: usize = (PAGE / LINE) as usize;

/// Accesses from this address on are only counted as a total.
const END: u64 = 64 << 30;

/// Accesses of this number of bytes or more are only counted as a total: bulk instructions that
/// trap may name any number.
const MAX_ACCESS: u64 = 64 << 20;

/// Counts accesses by line. An access to several lines counts for each.
#[derive(Default)]
pub(super) struct Heat {
    /// Indexed by memory.
    memories: Vec<Lines>,
    beyond: u64,
}

/// The lines of a memory.
#[derive(Default)]
struct Lines {
    /// Indexed by page: the position of its counts, from 1; 0 if the page was not accessed.
    pages: Vec<u32>,
    counts: Vec<[u64; LINES]>,
}

/// A page that was accessed.
pub(super) struct Page {
    pub(super) memory: u32,
    pub(super) number: u64,
    pub(super) lines: [u64; LINES],
}

impl Page {
    /// The number of accesses to the lines of the page.
    pub(super) fn accesses(&self) -> u64 {
        self.lines.iter().sum()
    }
}

impl Heat {
    /// Adds accesses to a line, by its number.
    #[inline]
    pub(super) fn add(&mut self, memory: u32, line: u64, accesses: u64) {
        // Nearly all are to a line of a page that was accessed before.
        let index = line as usize;
        if let Some(Lines { pages, counts }) = self.memories.get_mut(memory as usize)
            && let Some(page) = pages.get(index / LINES)
            && let Some(counts) = counts.get_mut((*page as usize).wrapping_sub(1))
        {
            counts[index % LINES] += accesses;
            return;
        }
        self.add_lines(memory, line..=line, accesses);
    }

    /// Adds an access to several lines, given the addresses of its first and last byte.
    #[cold]
    pub(super) fn add_wide(&mut self, memory: u32, first: u64, last: u64) {
        if last - first >= MAX_ACCESS {
            self.beyond += 1;
            return;
        }
        self.add_lines(memory, first / LINE..=last / LINE, 1);
    }

    #[cold]
    fn add_lines(&mut self, memory: u32, lines: RangeInclusive<u64>, accesses: u64) {
        if *lines.end() >= END / LINE {
            // The accesses trap, or the program is very large.
            self.beyond += accesses;
            return;
        }
        let memory = memory as usize;
        if memory >= self.memories.len() {
            self.memories.resize_with(memory + 1, Lines::default);
        }
        let Lines { pages, counts } = &mut self.memories[memory];
        for line in lines {
            let (page, line) = ((line / LINES as u64) as usize, (line % LINES as u64) as usize);
            if page >= pages.len() {
                pages.resize(page + 1, 0);
            }
            if pages[page] == 0 {
                counts.push([0; LINES]);
                pages[page] = counts.len() as u32;
            }
            counts[pages[page] as usize - 1][line] += accesses;
        }
    }

    /// The pages that were accessed, ordered by memory and address.
    pub(super) fn pages(&self) -> Vec<Page> {
        let mut found = Vec::new();
        for (memory, Lines { pages, counts }) in (0..).zip(&self.memories) {
            let used = (0..).zip(pages).filter(|(_, at)| **at > 0);
            found.extend(used.map(|(number, at)| Page { memory, number, lines: counts[*at as usize - 1] }));
        }
        found
    }

    /// The number of accesses that were only counted as a total.
    pub(super) fn beyond(&self) -> u64 {
        self.beyond
    }
}
