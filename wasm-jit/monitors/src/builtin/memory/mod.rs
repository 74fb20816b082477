//! `memory`: loads and stores, where they are, and what they access.
//!
//! See [`accesses`](super::accesses) for the probes.

mod heat;
mod picture;

use std::cmp::Reverse;
use std::io::Write;

use wasm_jit_hooks::AccessKind;

use super::accesses::{Access, Accesses, Consumer, Site};
use super::listing::Listing;
use super::trace_stream::{Files, Lines};
use crate::names::Names;
use crate::output::Stream;
use crate::{Cell, Description, Error, Monitor, OptionInfo, Program, Report, Setup, Table};
use heat::Heat;

pub(super) const DESCRIPTION: Description = Description {
    name: "memory",
    summary: "Loads and stores by instruction, their addresses, and a heat map of pages and lines",
    details: "An access counts when it is about to be made, also if it then traps. An access of a bulk instruction \
              has the number of bytes of its operand, and if that is 0, there is no access; memory.copy is a load and a store. \
              memory.atomic.notify accesses nothing. The file heat.svg has a row for each \
              page of 4 KiB that was accessed (or, of many, for several), and a column for each line of 64 bytes in \
              it. All instances share it. Its counts take an eighth of the memory that is accessed; of addresses \
              beyond 64 GiB, and of bulk instructions with more than 64 MiB, it shows nothing. The trace has a line for each access: load, store or \
              modify, the address (after the index of the memory and a colon, if it is not 0), the number of bytes, and the instruction's offset in the module. With the option \
              values, the value follows, or `-` for vectors and copies; an access that loads counts when it has \
              been made, so those that trap are left out, and the table has the least and the greatest \
              value as unsigned numbers. Values are those of stores, and results of other instructions.",
    options: &[
        OptionInfo::flag("trace", "writes each access to the file memory.trace, or to standard error"),
        OptionInfo::flag("values", "observes what is loaded and stored, too"),
        OptionInfo::flag("json", "writes the trace as lines of JSON, to the file memory.trace.jsonl"),
        OptionInfo::flag("csv", "writes the trace as CSV, to the file memory.trace.csv"),
    ],
    example: "memory app.wasm",
    start,
};

const FILES: Files = Files { text: "memory.trace", json: "memory.trace.jsonl", csv: "memory.trace.csv" };

struct Memory {
    accesses: Accesses<Seen>,
    has_values: bool,
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Monitor>, Error> {
    let (has_values, lines) = (setup.options.flag("values"), Lines::of(setup)?);
    let columns =
        format!("kind,address,bytes,memory,offset,function{}", if has_values { ",value" } else { "" });
    let trace = lines.trace(setup, FILES, &columns)?.map(|stream| (stream, Names::of(setup.module)));
    let seen = |sites: &[Site]| {
        let trace = trace.map(|(stream, names)| {
            let line_end = |site: &Site| {
                let function = setup.module.function(site.function)?;
                let offset = function.body()?.range().start as u64 + u64::from(site.offset);
                let name = names.get(&function);
                let (memory, name) = (site.memory, lines.quoted(&name));
                Some(match lines {
                    Lines::Json => {
                        format!(",\"memory\":{memory},\"offset\":{offset},\"function\":{name}")
                    }
                    Lines::Csv => format!(",{memory},{offset:#x},{name}"),
                    Lines::Text => format!(" {offset:#x}"),
                })
            };
            let line_end = |site| line_end(site).expect("an access is in a function with a body");
            let ends = sites.iter().map(line_end).collect();
            Trace { stream, text: Vec::new(), ends, lines, has_values, problem: None }
        });
        Ok(Seen { counts: vec![Counts::default(); sites.len()], heat: Heat::default(), trace })
    };
    Ok(Box::new(Memory { accesses: Accesses::of(setup, has_values, seen)?, has_values }))
}

/// The observed accesses.
struct Seen {
    /// Indexed by site.
    counts: Vec<Counts>,
    heat: Heat,
    trace: Option<Trace>,
}

/// The accesses of a site.
#[derive(Clone, Copy)]
struct Counts {
    /// Without those of `run`.
    accesses: u64,
    /// Of accesses whose number of bytes differs.
    bytes: u64,
    /// The lowest address, and the highest address of a last byte.
    least: u64,
    greatest: u64,
    /// The lowest and the highest value.
    values: Option<(u64, u64)>,
    /// The line of the last accesses, and their number, which is not added to the heat map yet:
    /// most sites access a line several times in succession.
    line: u64,
    run: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self { accesses: 0, bytes: 0, least: u64::MAX, greatest: 0, values: None, line: 0, run: 0 }
    }
}

impl Counts {
    /// Adds the last accesses to the heat map.
    #[inline]
    fn end_run(&mut self, site: &Site, heat: &mut Heat) {
        let accesses = std::mem::take(&mut self.run);
        if accesses > 0 {
            self.accesses += accesses;
            heat.add(site.memory, self.line, accesses);
        }
    }

    /// The number of accessed bytes.
    fn bytes(&self, site: &Site) -> u64 {
        site.size.map_or(self.bytes, |size| self.accesses * u64::from(size))
    }
}

struct Trace {
    stream: Stream,
    /// Text that is not written yet.
    text: Vec<u8>,
    /// By site: the end of the line, without the value.
    ends: Vec<String>,
    lines: Lines,
    has_values: bool,
    /// The first reason why something could not be written.
    problem: Option<String>,
}

/// The word for an access in the trace.
fn name_of(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Load | AccessKind::Wait => "load",
        AccessKind::Store => "store",
        _ => "modify",
    }
}

impl Trace {
    /// Not a part of the loop over records, which is short without a trace.
    #[inline(never)]
    fn add(&mut self, at: &Site, access: Access) {
        match self.lines {
            Lines::Text => {}
            Lines::Json => return self.add_json(at.kind, access),
            Lines::Csv => return self.add_row(at.kind, access),
        }
        let Access { site, address, size, value } = access;
        self.text.extend(name_of(at.kind).bytes());
        self.text.push(b' ');
        if at.memory != 0 {
            self.text.extend(format!("{}:", at.memory).bytes());
        }
        self.text.extend(b"0x");
        let digits = (16 - address.leading_zeros() / 4).max(1);
        let digit = |number: u32| b"0123456789abcdef"[(address >> (4 * number) & 0xf) as usize];
        self.text.extend((0..digits).rev().map(digit));
        self.text.push(b' ');
        match u8::try_from(size) {
            Ok(size @ 0..=9) => self.text.push(b'0' + size),
            _ => self.text.extend(size.to_string().bytes()),
        }
        self.text.extend(self.ends[site].bytes());
        if self.has_values {
            let value = value.map_or("-".to_owned(), |value| format!("{value:#x}"));
            self.text.push(b' ');
            self.text.extend(value.bytes());
        }
        self.text.push(b'\n');
    }

    fn add_json(&mut self, kind: AccessKind, Access { site, address, size, value }: Access) {
        let kind = name_of(kind);
        let end = &self.ends[site];
        let value = match (self.has_values, value) {
            (false, _) => String::new(),
            (true, None) => ",\"value\":null".to_owned(),
            (true, Some(value)) => format!(",\"value\":{value}"),
        };
        let line = format!("{{\"kind\":\"{kind}\",\"address\":{address},\"bytes\":{size}{end}{value}}}\n");
        self.text.extend(line.bytes());
    }

    fn add_row(&mut self, kind: AccessKind, Access { site, address, size, value }: Access) {
        let value = match (self.has_values, value) {
            (false, _) => String::new(),
            (true, None) => ",".to_owned(),
            (true, Some(value)) => format!(",{value}"),
        };
        let line = format!("{},{address:#x},{size}{}{value}\n", name_of(kind), self.ends[site]);
        self.text.extend(line.bytes());
    }

    fn write(&mut self, flush: bool) {
        let mut written = self.stream.write_all(&self.text);
        if flush {
            written = written.and_then(|()| self.stream.flush());
        }
        self.text.clear();
        if let Err(error) = written {
            self.problem.get_or_insert_with(|| error.to_string());
        }
    }
}

impl Consumer for Seen {
    // A call, with the access in memory, took as long as the rest.
    #[inline(always)]
    fn consume(&mut self, site: &Site, access: Access) {
        let Access { address, size, value, .. } = access;
        // A bulk instruction of no bytes.
        if size == 0 {
            return;
        }
        let counts = &mut self.counts[access.site];
        let last = address.saturating_add(size - 1);
        // Most accesses are between two others: a branch is cheaper than a store.
        if address < counts.least {
            counts.least = address;
        }
        if last > counts.greatest {
            counts.greatest = last;
        }
        if site.size.is_none() {
            counts.bytes += size;
        }
        if let Some(value) = value {
            let (least, greatest) = counts.values.unwrap_or((value, value));
            counts.values = Some((least.min(value), greatest.max(value)));
        }
        let line = address / heat::LINE;
        if line == last / heat::LINE {
            if line != counts.line {
                counts.end_run(site, &mut self.heat);
                counts.line = line;
            }
            counts.run += 1;
        } else {
            counts.accesses += 1;
            self.heat.add_wide(site.memory, address, last);
        }
        if let Some(trace) = &mut self.trace {
            trace.add(site, access);
        }
    }

    fn pause(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.write(false);
        }
    }
}

impl Monitor for Memory {
    fn activate(&self) -> Result<(), Error> {
        self.accesses.switch(true)
    }

    fn deactivate(&self) -> Result<(), Error> {
        self.accesses.switch(false)
    }

    fn report(&self, program: &Program<'_>, report: &mut Report) {
        let (mut rows, pages, rest, problem) = self.accesses.with(|sites, seen| {
            if let Some(trace) = &mut seen.trace {
                trace.write(true);
            }
            for (site, counts) in sites.iter().zip(&mut seen.counts) {
                counts.end_run(site, &mut seen.heat);
            }
            let used = sites.iter().copied().zip(seen.counts.iter().copied());
            let used = used.filter(|(_, counts)| counts.accesses > 0).collect::<Vec<_>>();
            let problem = seen.trace.as_ref().and_then(|trace| trace.problem.clone());
            (used, seen.heat.pages(), seen.heat.beyond(), problem)
        });
        let is_load = |kind| matches!(kind, AccessKind::Load | AccessKind::Wait);
        let sum = |is_wanted: &dyn Fn(AccessKind) -> bool, of: fn(&Site, &Counts) -> u64| {
            rows.iter()
                .filter(|(site, _)| is_wanted(site.kind))
                .map(|(site, counts)| of(site, counts))
                .sum::<u64>()
        };
        let is_store = |kind| kind == AccessKind::Store;
        let others = |kind| !is_load(kind) && !is_store(kind);
        let kinds: [(&str, &dyn Fn(AccessKind) -> bool); 3] =
            [("loads", &is_load), ("stores", &is_store), ("modifications", &others)];
        for (name, is_wanted) in kinds {
            report.value(name, sum(is_wanted, |_, counts| counts.accesses));
            report.value(&format!("bytes_of_{name}"), sum(is_wanted, |site, counts| counts.bytes(site)));
        }
        report.value("pages", pages.len());
        if rest > 0 {
            report.value("accesses_beyond_the_heat_map", rest);
        }
        if let Some(problem) = problem {
            report.text(format!("  The trace is not complete: {problem}\n"));
        }
        let total: u64 = rows.iter().map(|(_, counts)| counts.accesses).sum();
        rows.sort_by_key(|(site, counts)| (Reverse(counts.accesses), site.function, site.offset));
        let columns = [
            "accesses",
            "share",
            "bytes",
            "access",
            "memory",
            "from",
            "to",
            "offset",
            "function",
            "instruction",
            "source",
        ];
        let of_values: &[&str] = if self.has_values { &["least value", "greatest value"] } else { &[] };
        let mut table = Table::new("by_instruction", columns.iter().chain(of_values).copied());
        let listing = Listing::of(program.module, rows.iter().map(|(site, _)| (site.function, site.offset)));
        for (site, counts) in rows {
            let Site { function, offset, kind, memory, .. } = site;
            let of_values =
                |of: fn((u64, u64)) -> u64| counts.values.map_or(Cell::None, |both| Cell::Hex(of(both)));
            let cells = [
                counts.accesses.into(),
                Cell::share(counts.accesses, total),
                counts.bytes(&site).into(),
                name_of(kind).into(),
                memory.into(),
                Cell::Hex(counts.least),
                Cell::Hex(counts.greatest),
                program.offset(function, offset),
                program.name(function),
                listing.cell(program, function, offset),
                program.line(function, offset),
            ];
            let values = [of_values(|(least, _)| least), of_values(|(_, greatest)| greatest)];
            table.row(cells.into_iter().chain(values.into_iter().filter(|_| self.has_values)));
        }
        report.table(table);
        report.file("heat.svg", |out| out.write_all(picture::draw(&pages).as_bytes()));
        let mut table =
            Table::new("by_page", ["accesses", "share", "memory", "address", "lines", "hottest line"]);
        let mut by_heat: Vec<_> = pages.iter().map(|page| (page.accesses(), page)).collect();
        by_heat.sort_by_key(|(accesses, page)| (Reverse(*accesses), page.memory, page.number));
        let total = by_heat.iter().map(|(accesses, _)| accesses).sum();
        for (accesses, page) in by_heat {
            let hottest = page.lines.iter().enumerate().max_by_key(|(line, count)| (**count, Reverse(*line)));
            let address = page.number * heat::PAGE;
            table.row([
                accesses.into(),
                Cell::share(accesses, total),
                page.memory.into(),
                Cell::Hex(address),
                page.lines.iter().filter(|count| **count > 0).count().into(),
                hottest.map_or(Cell::None, |(line, _)| Cell::Hex(address + line as u64 * heat::LINE)),
            ]);
        }
        report.table(table);
        self.accesses.report_refused(report);
    }
}
