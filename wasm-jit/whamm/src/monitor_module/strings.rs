//! Strings for functions of monitors: bytes in a memory that they export.

use wasm_jit::{Instance, Memory, Store};

use super::error::MonitorError;

/// The buffer in the monitor's memory that strings are written to.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Memory,
    start: u32,
    max: usize,
}

impl Buffer {
    pub(crate) fn of<T: 'static>(store: &mut Store<T>, monitor: &Instance) -> Result<Self, MonitorError> {
        let memory = monitor.get_memory(&*store, "whamm_buffer").ok_or(MonitorError::Buffer)?;
        let mut number = |name| {
            let global = monitor.get_global(&*store, name)?;
            global.get(&mut *store).i32().map(|value| value as u32)
        };
        let start = number("whamm_buffer:start").ok_or(MonitorError::Buffer)?;
        let max = number("whamm_buffer:max").ok_or(MonitorError::Buffer)? as usize;
        Ok(Self { memory, start, max })
    }

    /// Writes a string, or its beginning; returns address and length.
    pub(crate) fn write<T: 'static>(
        &self,
        store: &mut Store<T>,
        text: &str,
    ) -> Result<[u32; 2], MonitorError> {
        let text = self.cut(text);
        let written = self.memory.write(&mut *store, self.start as usize, text.as_bytes());
        written.map_err(|_| MonitorError::Buffer)?;
        Ok([self.start, text.len() as u32])
    }

    /// The part of a string that is written.
    pub(crate) fn cut<'a>(&self, text: &'a str) -> &'a str {
        &text[..text.floor_char_boundary(self.max)]
    }
}
