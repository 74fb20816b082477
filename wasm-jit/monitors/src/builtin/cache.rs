//! `cache`: a simulated data cache.
//!
//! See [`accesses`](super::accesses) for the probes.

use std::cmp::Reverse;

use super::accesses::{Access, Accesses, Consumer, Site};
use super::listing::Listing;
use crate::{Cell, Description, Error, Monitor, OptionInfo, Options, Program, Report, Setup, Table};

pub(super) const DESCRIPTION: Description = Description {
    name: "cache",
    summary: "Hits and misses in a simulated data cache, by instruction",
    details: "Each level keeps the lines of its sets that were used last (LRU). An access that misses in a level goes \
              to the next one, and brings the line into all of these levels, also if it stores. An access to more \
              than one line misses if one of them does. Addresses are those in the module's memories, from 0; all \
              threads and instances share the caches, in portions of some hundred accesses. Accesses by the host, \
              the stack of the machine and instructions are not simulated.",
    options: &[OptionInfo::repeated(
        "level",
        "SIZE:WAYS:LINE",
        "a level, from the first on; may be repeated [default: level=32k:8:64,level=1m:16:64]",
    )],
    example: "cache{level=48k:12:64,level=2m:16:64,level=32m:16:64} app.wasm",
    start,
};

struct Cache(Accesses<Simulation>);

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let levels = levels(setup.options)?;
    let consumer = |sites: &[Site]| {
        let counts = vec![Counts { accesses: 0, misses: vec![0; levels.len()] }; sites.len()];
        Ok(Simulation { levels, counts })
    };
    Ok(Box::new(Cache(Accesses::of(setup, false, consumer)?)))
}

/// Maximum number of lines in all levels together: the lines of 1 GiB if each has 64 bytes.
const MAX_LINES: u64 = 1 << 24;

/// The cache levels that the options request.
fn levels(options: &Options) -> Result<Vec<Level>, Error> {
    let mut levels: Vec<&str> = options.all("level").collect();
    if levels.is_empty() {
        levels = vec!["32k:8:64", "1m:16:64"];
    }
    let error = |text: &str| Error::Value {
        option: "level".to_owned(),
        value: text.to_owned(),
        expected: format!(
            "SIZE:WAYS:LINE, such as 32k:8:64: a multiple of WAYS lines, a number of ways up to 1024, and a \
             power of two of bytes up to 64k, not less than in the level before; all levels together have at \
             most {MAX_LINES} lines"
        ),
    };
    let mut lines_left = MAX_LINES;
    let mut known: Vec<Level> = Vec::new();
    for text in levels {
        let level = Level::parse(text, lines_left);
        let level = level.filter(|level| known.last().is_none_or(|last| last.line <= level.line));
        let level = level.ok_or_else(|| error(text))?;
        lines_left -= level.sets.len() as u64;
        known.push(level);
    }
    Ok(known)
}

/// A level of the cache.
struct Level {
    /// The level's name, as in the option.
    name: String,
    line: u64,
    ways: usize,
    /// The lines of each set, the most recently used first; each is the line number plus 1, or 0
    /// for none.
    sets: Vec<u64>,
}

impl Level {
    /// `None` if `text` does not describe a level, or one with more than `max_lines` lines.
    fn parse(text: &str, max_lines: u64) -> Option<Self> {
        let mut parts = text.split(':');
        let (size, ways, line) =
            (bytes(parts.next()?)?, parts.next()?.parse::<u64>().ok()?, bytes(parts.next()?)?);
        let is_valid = line.is_power_of_two()
            && line <= 1 << 16
            && (1..=1024).contains(&ways)
            && size >= line * ways
            && size % (line * ways) == 0
            && size / line <= max_lines
            && parts.next().is_none();
        // Only after the size is known to be valid: it may be any number.
        is_valid.then(|| Self {
            name: text.to_owned(),
            line,
            ways: ways as usize,
            sets: vec![0; (size / line) as usize],
        })
    }

    /// Whether the level has a line, given by its memory and the address of one of its bytes. The
    /// line is in the level afterwards.
    fn has(&mut self, memory: u32, address: u64) -> bool {
        let number = address / self.line;
        let set = (number % (self.sets.len() / self.ways) as u64) as usize * self.ways;
        // Addresses of memories with more than 2^47 bytes do not occur.
        let tag = (u64::from(memory) << 48 ^ number) + 1;
        let set = &mut self.sets[set..set + self.ways];
        let found = set.iter().position(|known| *known == tag);
        set[..=found.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = tag;
        found.is_some()
    }
}

/// Parses a number with an optional suffix k, m or g.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

struct Simulation {
    levels: Vec<Level>,
    /// Indexed by site.
    counts: Vec<Counts>,
}

#[derive(Clone)]
struct Counts {
    accesses: u64,
    /// Indexed by level.
    misses: Vec<u64>,
}

impl Consumer for Simulation {
    fn consume(&mut self, site: &Site, Access { site: number, address, size, .. }: Access) {
        // Such accesses do not touch the memory, or trap.
        if size == 0 {
            return;
        }
        let counts = &mut self.counts[number];
        counts.accesses += 1;
        let Some((first, next)) = self.levels.split_first_mut() else { return };
        // Bulk operations beyond the memory trap.
        let last = address.saturating_add(size.min(1 << 32) - 1);
        let mut missed = 0;
        let mut at = address - address % first.line;
        loop {
            if !first.has(site.memory, at) {
                // The levels that miss a byte of the line, up to the first one that has it.
                let further = next.len();
                let hit = next.iter_mut().position(|level| level.has(site.memory, at));
                missed = missed.max(1 + hit.unwrap_or(further));
            }
            match at.checked_add(first.line) {
                Some(next) if next <= last => at = next,
                _ => break,
            }
        }
        counts.misses.iter_mut().take(missed).for_each(|misses| *misses += 1);
    }
}

impl Monitor for Cache {
    fn activate(&self) -> Result<(), Error> {
        self.0.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.0.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let (names, mut rows) = self.0.with(|sites, simulation| {
            let names: Vec<String> = simulation.levels.iter().map(|level| level.name.clone()).collect();
            let counts = simulation.counts.iter().cloned();
            let used = sites.iter().copied().zip(counts).filter(|(_, counts)| counts.accesses > 0);
            (names, used.collect::<Vec<_>>())
        });
        let accesses: u64 = rows.iter().map(|(_, counts)| counts.accesses).sum();
        report.value("accesses", accesses);
        let mut levels =
            Table::new("levels", ["level", "geometry", "accesses", "hits", "misses", "miss rate"]);
        let mut reach = accesses;
        for (number, name) in names.iter().enumerate() {
            let misses: u64 = rows.iter().map(|(_, counts)| counts.misses[number]).sum();
            levels.row([
                (number + 1).into(),
                name.as_str().into(),
                reach.into(),
                (reach - misses).into(),
                misses.into(),
                Cell::share(misses, reach),
            ]);
            report.value(&format!("misses_{}", number + 1), misses);
            reach = misses;
        }
        report.table(levels);
        rows.sort_by_key(|(site, counts)| {
            let misses: Vec<_> = counts.misses.iter().rev().map(|misses| Reverse(*misses)).collect();
            (misses, Reverse(counts.accesses), site.function, site.offset)
        });
        let misses: Vec<String> = (1..=names.len()).map(|level| format!("misses {level}")).collect();
        let columns = ["accesses"].into_iter().chain(misses.iter().map(String::as_str));
        let columns = columns.chain(["miss rate", "offset", "function", "instruction", "source"]);
        let mut table = Table::new("by_instruction", columns);
        let listing = Listing::of(program.module, rows.iter().map(|(site, _)| (site.function, site.offset)));
        for (Site { function, offset, .. }, counts) in rows {
            let mut cells: Vec<Cell> = vec![counts.accesses.into()];
            cells.extend(counts.misses.iter().map(|misses| Cell::from(*misses)));
            cells.extend([
                Cell::share(counts.misses[0], counts.accesses),
                program.offset(function, offset),
                program.name(function),
                listing.cell(program, function, offset),
                program.line(function, offset),
            ]);
            table.row(cells);
        }
        report.table(table);
        self.0.report_refused(report);
    }
}
