//! The trace: events, and their binary format.
//!
//! A frame is the length of its payload (`u32`), the CRC-32 of the payload, and the payload, which
//! starts with the number of the event's kind. Numbers are little-endian. The first frame is
//! [`Event::Start`].

use std::io::{self, Read, Write};

use wasm_jit::Val;

use super::error::Error;

/// Version of the format.
const VERSION: u32 = 1;

/// Maximum length of a payload, so that a damaged length allocates little memory.
const MAX_PAYLOAD: u32 = 1 << 20;

/// Maximum number of bytes in one [`Event::Write`].
pub(crate) const MAX_WRITE: usize = 1 << 16;

/// A number, as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer of 32 bits.
    I32(i32),
    /// An integer of 64 bits.
    I64(i64),
    /// The bits of a float of 32 bits.
    F32(u32),
    /// The bits of a float of 64 bits.
    F64(u64),
}

impl Value {
    /// The recorded value; `None` for a reference.
    pub(crate) fn of(value: &Val) -> Option<Self> {
        Some(match value {
            Val::I32(value) => Self::I32(*value),
            Val::I64(value) => Self::I64(*value),
            Val::F32(bits) => Self::F32(*bits),
            Val::F64(bits) => Self::F64(*bits),
            _ => return None,
        })
    }
}

/// An event of a run. The effects of a host function come between its call and its return; those
/// of the host itself before the export that it calls next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first event.
    Start {
        /// CRC-32 of the binary module.
        module: u32,
        /// Its length.
        length: u64,
    },
    /// The host calls an export.
    Enter {
        /// Its name.
        export: String,
        /// The arguments.
        arguments: Vec<Value>,
    },
    /// The program calls an imported function.
    Call {
        /// Its index.
        import: u32,
        /// The arguments.
        arguments: Vec<Value>,
    },
    /// The host has grown a memory.
    Grow {
        /// Its index in the module.
        memory: u32,
        /// Number of pages that were added.
        pages: u64,
    },
    /// The host has changed bytes of a memory.
    Write {
        /// Its index in the module.
        memory: u32,
        /// The first byte.
        address: u64,
        /// The new values.
        bytes: Vec<u8>,
    },
    /// The host has changed a global.
    SetGlobal {
        /// Its index in the module.
        global: u32,
        /// The new value.
        value: Value,
    },
    /// The imported function returns.
    Return {
        /// The results.
        results: Vec<Value>,
    },
    /// The export returns.
    Leave {
        /// The results.
        results: Vec<Value>,
    },
    /// The imported function, or if none runs the export, ended with an error.
    Fail,
}

impl Event {
    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Start { module, length } => {
                out.push(0);
                out.extend(VERSION.to_le_bytes());
                out.extend(module.to_le_bytes());
                out.extend(length.to_le_bytes());
            }
            Self::Enter { export, arguments } => {
                out.push(1);
                out.extend((export.len() as u32).to_le_bytes());
                out.extend(export.as_bytes());
                put_values(&mut out, arguments);
            }
            Self::Call { import, arguments } => {
                out.push(2);
                out.extend(import.to_le_bytes());
                put_values(&mut out, arguments);
            }
            Self::Grow { memory, pages } => {
                out.push(3);
                out.extend(memory.to_le_bytes());
                out.extend(pages.to_le_bytes());
            }
            Self::Write { memory, address, bytes } => {
                out.push(4);
                out.extend(memory.to_le_bytes());
                out.extend(address.to_le_bytes());
                out.extend(bytes);
            }
            Self::SetGlobal { global, value } => {
                out.push(5);
                out.extend(global.to_le_bytes());
                put_values(&mut out, &[*value]);
            }
            Self::Return { results } => {
                out.push(6);
                put_values(&mut out, results);
            }
            Self::Leave { results } => {
                out.push(7);
                put_values(&mut out, results);
            }
            Self::Fail => out.push(8),
        }
        out
    }

    fn parse(payload: &[u8]) -> Result<Self, &'static str> {
        let mut rest = Payload(payload);
        let event = match rest.array::<1>()?[0] {
            0 => {
                if rest.u32()? != VERSION {
                    return Err("another version of the format");
                }
                Self::Start { module: rest.u32()?, length: rest.u64()? }
            }
            1 => {
                let length = rest.u32()? as usize;
                let name = rest.take(length)?.to_vec();
                let export = String::from_utf8(name).map_err(|_| "a name that is not UTF-8")?;
                Self::Enter { export, arguments: rest.values()? }
            }
            2 => Self::Call { import: rest.u32()?, arguments: rest.values()? },
            3 => Self::Grow { memory: rest.u32()?, pages: rest.u64()? },
            4 => {
                let (memory, address) = (rest.u32()?, rest.u64()?);
                Self::Write { memory, address, bytes: std::mem::take(&mut rest.0).to_vec() }
            }
            5 => {
                let global = rest.u32()?;
                match rest.values()?[..] {
                    [value] => Self::SetGlobal { global, value },
                    _ => return Err("not one value of a global"),
                }
            }
            6 => Self::Return { results: rest.values()? },
            7 => Self::Leave { results: rest.values()? },
            8 => Self::Fail,
            _ => return Err("an unknown kind of event"),
        };
        if rest.0.is_empty() { Ok(event) } else { Err("bytes after the event") }
    }

    /// Writes it as a frame.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let payload = self.payload();
        let Some(length) = u32::try_from(payload.len()).ok().filter(|length| *length <= MAX_PAYLOAD) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an event is larger than 1 MiB"));
        };
        out.write_all(&length.to_le_bytes())?;
        out.write_all(&crc32fast::hash(&payload).to_le_bytes())?;
        out.write_all(&payload)
    }
}

fn put_values(out: &mut Vec<u8>, values: &[Value]) {
    out.extend((values.len() as u32).to_le_bytes());
    for value in values {
        let (kind, bits) = match *value {
            Value::I32(value) => (0, u64::from(value as u32)),
            Value::I64(value) => (1, value as u64),
            Value::F32(bits) => (2, u64::from(bits)),
            Value::F64(bits) => (3, bits),
        };
        out.push(kind);
        out.extend(bits.to_le_bytes());
    }
}

struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("an event that ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N).map(|bytes| bytes.try_into().expect("N bytes were taken"))
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn values(&mut self) -> Result<Vec<Value>, &'static str> {
        // The number is not trusted: each value consumes bytes before the next is stored.
        let number = self.u32()?;
        let mut values = Vec::new();
        for _ in 0..number {
            let (kind, bits) = (self.array::<1>()?[0], self.u64()?);
            values.push(match kind {
                0 => Value::I32(bits as i32),
                1 => Value::I64(bits as i64),
                2 => Value::F32(bits as u32),
                3 => Value::F64(bits),
                _ => return Err("an unknown type of value"),
            });
        }
        Ok(values)
    }
}

/// Reads the events of a trace. Buffers nothing but one event. After an error it ends.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    offset: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// A reader from the beginning of a trace.
    pub fn new(from: R) -> Self {
        Self { from, offset: 0, ended: false }
    }

    fn event(&mut self) -> Result<Option<Event>, Error> {
        let offset = self.offset;
        let damaged = |what| Error::Damaged { offset, what };
        let mut head = Vec::new();
        (&mut self.from).take(8).read_to_end(&mut head)?;
        if head.is_empty() && offset > 0 {
            return Ok(None);
        }
        let Ok(head) = <[u8; 8]>::try_from(head) else { return Err(damaged("it ends in a frame")) };
        let [length, checksum] =
            [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte])));
        if length > MAX_PAYLOAD {
            return Err(damaged("a frame that is too long"));
        }
        let mut payload = Vec::new();
        (&mut self.from).take(length.into()).read_to_end(&mut payload)?;
        if payload.len() < length as usize {
            return Err(damaged("it ends in a frame"));
        }
        if crc32fast::hash(&payload) != checksum {
            return Err(damaged("the checksum differs"));
        }
        let event = Event::parse(&payload).map_err(damaged)?;
        if (offset == 0) != matches!(event, Event::Start { .. }) {
            return Err(damaged("not exactly one start, at the beginning"));
        }
        self.offset += 8 + u64::from(length);
        Ok(Some(event))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.event();
        self.ended = !matches!(event, Ok(Some(_)));
        event.transpose()
    }
}
