//! The text of a module, by instruction.

use std::collections::HashMap;
use std::fmt::Write;

use wasm_jit::Module;

/// The lines of a module's text, some with their offset in the binary module.
pub(super) struct Listing {
    lines: Vec<(Option<u64>, String)>,
    /// The line of each offset.
    by_offset: HashMap<u64, usize>,
}

impl Listing {
    pub(super) fn of(module: &Module) -> Self {
        let mut text = String::new();
        let config = wasmprinter::Config::new();
        let lines = config.offsets_and_lines(module.bytes(), &mut text);
        // A module that was compiled can be printed.
        let lines: Vec<(Option<u64>, String)> =
            lines.into_iter().flatten().map(|(offset, line)| (offset, line.trim_end().to_owned())).collect();
        let offsets = lines.iter().enumerate().filter_map(|(at, (offset, _))| Some(((*offset)?, at)));
        let by_offset = offsets.collect();
        Self { lines, by_offset }
    }

    /// An instruction, by its offset from the start of the function's body.
    pub(super) fn text(&self, module: &Module, function: u32, offset: u32) -> Option<&str> {
        let body = module.function(function)?.body()?;
        let line = self.by_offset.get(&(body.range().start as u64 + u64::from(offset)))?;
        Some(self.lines[*line].1.trim())
    }

    /// The line of an instruction, from 1, by its offset in the module.
    pub(super) fn line(&self, offset: u64) -> Option<u32> {
        self.by_offset.get(&offset).map(|line| *line as u32 + 1)
    }

    /// The text with a figure in front of each instruction that has one.
    pub(super) fn annotated(&self, module: &Module, figure: impl Fn(u32, u32) -> Option<u64>) -> String {
        let mut figures: HashMap<u64, u64> = HashMap::new();
        for function in module.functions() {
            let Some(body) = function.body() else { continue };
            let start = body.range().start;
            figures.extend(body.instructions().filter_map(|instruction| {
                let offset = instruction.offset();
                Some((offset as u64, figure(function.index(), (offset - start) as u32)?))
            }));
        }
        let mut out = String::new();
        for (offset, line) in &self.lines {
            match offset.and_then(|offset| figures.get(&offset)) {
                Some(figure) => _ = writeln!(out, "{figure:>15} {line}"),
                None => _ = writeln!(out, "{:15} {line}", ""),
            }
        }
        out
    }
}
