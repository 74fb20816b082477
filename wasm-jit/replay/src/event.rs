//! [`Event`]: an element of a trace, and its encoding.
//!
//! An event is encoded as the number of its kind, followed by its fields. Integers are LEB128
//! (signed ones zigzag-encoded); floats and vectors are their bits in little-endian order.

use std::fmt;

use serde::{Serialize, Serializer};
use wasm_jit::Exit;

use super::value::{Type, Value};

/// Maximum number of bytes in one [`Event::Write`].
pub(crate) const MAX_WRITE: usize = 1 << 16;

/// An event of a run. Changes by the host come before its next call or return.
///
/// Serialized as a map of its fields, with its kind as `event`:
/// `{"event": "grow", "memory": 0, "pages": 1}`; bytes are hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The first event, which identifies the module.
    Start {
        /// CRC-32 of the binary module.
        module: u32,
        /// The length of the binary module in bytes.
        length: u64,
    },
    /// The program imports a memory. These events follow the first one, in import order; the
    /// contents of the memories and tables then follow as [`Event::Write`] and
    /// [`Event::SetElement`].
    ImportMemory {
        /// The memory's index in the module.
        memory: u32,
        /// The number of pages.
        pages: u64,
        /// The maximum number of pages.
        maximum: Option<u64>,
    },
    /// The program imports a table; see [`Event::ImportMemory`].
    ImportTable {
        /// The table's index in the module.
        table: u32,
        /// The number of elements.
        elements: u64,
        /// The maximum number of elements.
        maximum: Option<u64>,
    },
    /// The program imports a global; see [`Event::ImportMemory`].
    ImportGlobal {
        /// The global's index in the module.
        global: u32,
        /// The global's value.
        value: Value,
    },
    /// Declares a function that the module neither defines nor imports, such as a function of
    /// another module. Later events may use its number in values, and in [`Event::Call`].
    Function {
        /// The number of the function; numbers start after the indices of the module's functions.
        function: u32,
        /// The types of the function's parameters.
        parameters: Vec<Type>,
        /// The types of the function's results.
        results: Vec<Type>,
    },
    /// The instance ran before the recording began. This event follows the start and the imports.
    /// It makes all memories zero and all tables null, whatever the module's segments say, and the
    /// start function is not called; the state at the beginning of the recording follows as changes
    /// by the host.
    Snapshot,
    /// A data segment has become empty, or was used, outside of what was recorded.
    DropData {
        /// The segment's index in the module.
        segment: u32,
    },
    /// An element segment has become empty; see [`Event::DropData`].
    DropElements {
        /// The segment's index in the module.
        segment: u32,
    },
    /// The host calls a function of the module.
    Enter {
        /// The function's index in the module.
        function: u32,
        /// The arguments.
        arguments: Vec<Value>,
    },
    /// The program calls a function that it imports, or one of another module
    /// ([`Event::Function`]).
    Call {
        /// The number of the function: its index in the module, or that of an [`Event::Function`].
        import: u32,
        /// The arguments.
        arguments: Vec<Value>,
    },
    /// The host has grown a memory.
    Grow {
        /// The memory's index in the module.
        memory: u32,
        /// The number of pages that were added.
        pages: u64,
    },
    /// The host has written to a memory.
    Write {
        /// The memory's index in the module.
        memory: u32,
        /// The address of the first byte.
        address: u64,
        /// The new values.
        #[serde(serialize_with = "hexadecimal")]
        bytes: Vec<u8>,
    },
    /// The host has changed a global.
    SetGlobal {
        /// The global's index in the module.
        global: u32,
        /// The new value.
        value: Value,
    },
    /// The host has grown a table; the new elements are null.
    GrowTable {
        /// The table's index in the module.
        table: u32,
        /// The number of elements that were added.
        elements: u64,
    },
    /// The host has set an element of a table.
    SetElement {
        /// The table's index in the module.
        table: u32,
        /// The element's index.
        element: u64,
        /// The new value.
        value: Value,
    },
    /// The imported function that was called last returns.
    Return {
        /// The results.
        results: Vec<Value>,
    },
    /// The function that the host called last returns.
    Leave {
        /// The results.
        results: Vec<Value>,
    },
    /// The innermost call, of either kind, ended with an exception: the function of the host threw
    /// it, or the host got it from the function that it called.
    Throw(Exception),
    /// The innermost call, of either kind, ended with another error.
    Fail {
        /// The error; `None` if it is not known, and in traces up to version 4 of the format.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The program trapped, with this message.
    Trap(String),
    /// The program had consumed all fuel; it had this amount when the recording began. A replay
    /// ends at the same instruction only if it has the same amount.
    Fuel(u64),
    /// The program was interrupted, for example by a timeout; the trace does not say at which
    /// instruction.
    Interrupted,
    /// An error of the host: the first line of its message.
    Host(String),
    /// The host has ended the program, with this exit code ([`Exit`](wasm_jit::Exit)). In traces up
    /// to version 5 of the format, this is a [`Reason::Host`].
    Exit(i32),
}

/// Maximum length of a message, in bytes.
const MAX_TEXT: usize = 1000;

impl Reason {
    /// The reason for a call that ended with this error, in a recording that began with this amount
    /// of fuel.
    pub(crate) fn of(error: &wasm_jit::Error, fuel: Option<u64>) -> Self {
        if let Some(Exit(code)) = error.downcast_ref() {
            return Self::Exit(*code);
        }
        let first_line = || {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line[..line.floor_char_boundary(MAX_TEXT)].to_owned()
        };
        match error.trap() {
            // The error has the name of the function.
            Some(wasm_jit::Trap::UnknownFunction) => Self::Trap(first_line()),
            Some(trap) => Self::of_trap(trap, fuel),
            None => Self::Host(first_line()),
        }
    }

    /// The reason for a call that ended with this trap, in a recording that began with this amount
    /// of fuel.
    pub(crate) fn of_trap(trap: wasm_jit::Trap, fuel: Option<u64>) -> Self {
        match trap {
            wasm_jit::Trap::OutOfFuel => Self::Fuel(fuel.unwrap_or(0)),
            wasm_jit::Trap::Interrupt => Self::Interrupted,
            trap => Self::Trap(trap.to_string()),
        }
    }

    /// Whether the run was stopped from outside and could have continued.
    pub(crate) fn is_stop(&self) -> bool {
        matches!(self, Self::Fuel(_) | Self::Interrupted)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trap(text) => f.write_str(text),
            Self::Fuel(amount) => write!(f, "all fuel consumed, {amount} units"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Host(text) => write!(f, "host: {text}"),
            Self::Exit(code) => write!(f, "exit {code}"),
        }
    }
}

/// An exception that a host function throws, or that the host got from the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Exception {
    /// The index of the exception's tag in the module; the first index if there are several. Larger
    /// numbers stand for tags that the module does not have.
    pub tag: u32,
    /// The values that the exception carries.
    pub values: Vec<Value>,
}

impl Event {
    /// The values in this event.
    pub(crate) fn values(&self) -> &[Value] {
        match self {
            Self::Enter { arguments: values, .. }
            | Self::Call { arguments: values, .. }
            | Self::Return { results: values }
            | Self::Leave { results: values }
            | Self::Throw(Exception { values, .. }) => values,
            Self::ImportGlobal { value, .. }
            | Self::SetGlobal { value, .. }
            | Self::SetElement { value, .. } => std::slice::from_ref(value),
            _ => &[],
        }
    }

    /// Whether the event has the state of an import.
    pub(crate) fn is_import(&self) -> bool {
        matches!(self, Self::ImportMemory { .. } | Self::ImportTable { .. } | Self::ImportGlobal { .. })
    }

    /// Whether the event changes a table.
    pub(crate) fn is_of_table(&self) -> bool {
        matches!(self, Self::GrowTable { .. } | Self::SetElement { .. })
    }

    /// Whether the event declares a function that the module does not have.
    pub(crate) fn is_function(&self) -> bool {
        matches!(self, Self::Function { .. })
    }

    /// Appends the event's encoding.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Start { module, length } => {
                out.push(0);
                put(out, (*module).into());
                put(out, *length);
            }
            Self::Enter { function, arguments } => {
                out.push(1);
                put(out, (*function).into());
                put_values(out, arguments);
            }
            Self::Call { import, arguments } => {
                out.push(2);
                put(out, (*import).into());
                put_values(out, arguments);
            }
            Self::Grow { memory, pages } => {
                out.push(3);
                put(out, (*memory).into());
                put(out, *pages);
            }
            Self::Write { memory, address, bytes } => {
                out.push(4);
                put(out, (*memory).into());
                put(out, *address);
                put(out, bytes.len() as u64);
                out.extend(bytes);
            }
            Self::SetGlobal { global, value } => {
                out.push(5);
                put(out, (*global).into());
                put_value(out, value);
            }
            Self::Return { results } => {
                out.push(6);
                put_values(out, results);
            }
            Self::Leave { results } => {
                out.push(7);
                put_values(out, results);
            }
            Self::Fail { reason: None } => out.push(8),
            Self::Fail { reason: Some(reason) } => {
                out.push(19);
                put_reason(out, reason);
            }
            Self::GrowTable { table, elements } => {
                out.push(9);
                put(out, (*table).into());
                put(out, *elements);
            }
            Self::SetElement { table, element, value } => {
                out.push(10);
                put(out, (*table).into());
                put(out, *element);
                put_value(out, value);
            }
            Self::ImportMemory { memory, pages, maximum } => {
                out.push(11);
                put(out, (*memory).into());
                put(out, *pages);
                put_maximum(out, *maximum);
            }
            Self::ImportTable { table, elements, maximum } => {
                out.push(13);
                put(out, (*table).into());
                put(out, *elements);
                put_maximum(out, *maximum);
            }
            Self::ImportGlobal { global, value } => {
                out.push(12);
                put(out, (*global).into());
                put_value(out, value);
            }
            Self::Snapshot => out.push(14),
            Self::DropData { segment } => {
                out.push(15);
                put(out, (*segment).into());
            }
            Self::DropElements { segment } => {
                out.push(16);
                put(out, (*segment).into());
            }
            Self::Throw(Exception { tag, values }) => {
                out.push(17);
                put(out, (*tag).into());
                put_values(out, values);
            }
            Self::Function { function, parameters, results } => {
                out.push(18);
                put(out, (*function).into());
                put_types(out, parameters);
                put_types(out, results);
            }
        }
    }

    /// Decodes an event from the beginning of `rest`, which must not be empty.
    pub(crate) fn decode(rest: &mut &[u8]) -> Result<Self, &'static str> {
        let mut rest = Encoded(rest);
        Ok(match rest.byte()? {
            0 => Self::Start { module: rest.u32()?, length: rest.u64()? },
            1 => Self::Enter { function: rest.u32()?, arguments: rest.values()? },
            2 => Self::Call { import: rest.u32()?, arguments: rest.values()? },
            3 => Self::Grow { memory: rest.u32()?, pages: rest.u64()? },
            4 => {
                let (memory, address, length) = (rest.u32()?, rest.u64()?, rest.u64()?);
                if length > MAX_WRITE as u64 {
                    return Err("a write that is too long");
                }
                Self::Write { memory, address, bytes: rest.take(length as usize)?.to_vec() }
            }
            5 => Self::SetGlobal { global: rest.u32()?, value: rest.value()? },
            6 => Self::Return { results: rest.values()? },
            7 => Self::Leave { results: rest.values()? },
            8 => Self::Fail { reason: None },
            19 => Self::Fail { reason: Some(rest.reason()?) },
            9 => Self::GrowTable { table: rest.u32()?, elements: rest.u64()? },
            10 => Self::SetElement { table: rest.u32()?, element: rest.u64()?, value: rest.value()? },
            11 => Self::ImportMemory { memory: rest.u32()?, pages: rest.u64()?, maximum: rest.maximum()? },
            13 => Self::ImportTable { table: rest.u32()?, elements: rest.u64()?, maximum: rest.maximum()? },
            12 => Self::ImportGlobal { global: rest.u32()?, value: rest.value()? },
            14 => Self::Snapshot,
            15 => Self::DropData { segment: rest.u32()? },
            16 => Self::DropElements { segment: rest.u32()? },
            17 => Self::Throw(Exception { tag: rest.u32()?, values: rest.values()? }),
            18 => Self::Function { function: rest.u32()?, parameters: rest.types()?, results: rest.types()? },
            _ => return Err("an unknown kind of event"),
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { module, length } => write!(f, "start module={module:08x} length={length}"),
            Self::ImportMemory { memory, pages, maximum } => {
                write!(f, "import memory={memory} pages={pages}")?;
                maximum.map_or(Ok(()), |maximum| write!(f, " maximum={maximum}"))
            }
            Self::ImportTable { table, elements, maximum } => {
                write!(f, "import table={table} elements={elements}")?;
                maximum.map_or(Ok(()), |maximum| write!(f, " maximum={maximum}"))
            }
            Self::ImportGlobal { global, value } => write!(f, "import global={global} {value}"),
            Self::Function { function, parameters, results } => {
                write!(
                    f,
                    "function func={function} parameters={} results={}",
                    Types(parameters),
                    Types(results)
                )
            }
            Self::Snapshot => f.write_str("snapshot"),
            Self::DropData { segment } => write!(f, "drop data={segment}"),
            Self::DropElements { segment } => write!(f, "drop elements={segment}"),
            Self::Enter { function, arguments } => write!(f, "enter func={function}{}", List(arguments)),
            Self::Call { import, arguments } => write!(f, "call import={import}{}", List(arguments)),
            Self::Grow { memory, pages } => write!(f, "grow memory={memory} pages={pages}"),
            Self::Write { memory, address, bytes } => {
                write!(f, "write memory={memory} address={address:#x} length={} bytes=", bytes.len())?;
                Hexadecimal(bytes).fmt(f)
            }
            Self::SetGlobal { global, value } => write!(f, "set global={global} {value}"),
            Self::GrowTable { table, elements } => write!(f, "grow table={table} elements={elements}"),
            Self::SetElement { table, element, value } => {
                write!(f, "set table={table} element={element} {value}")
            }
            Self::Return { results } => write!(f, "return{}", List(results)),
            Self::Leave { results } => write!(f, "leave{}", List(results)),
            Self::Throw(Exception { tag, values }) => write!(f, "throw tag={tag}{}", List(values)),
            Self::Fail { reason: None } => f.write_str("fail"),
            Self::Fail { reason: Some(reason) } => write!(f, "fail {}", reason.to_string().escape_debug()),
        }
    }
}

struct Hexadecimal<'a>(&'a [u8]);

impl fmt::Display for Hexadecimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn hexadecimal<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Hexadecimal(bytes))
}

/// Types, separated by commas.
struct Types<'a>(&'a [Type]);

impl fmt::Display for Types<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<String> = self.0.iter().map(Type::to_string).collect();
        f.write_str(&types.join(","))
    }
}

/// Values, each after a space.
struct List<'a>(&'a [Value]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|value| write!(f, " {value}"))
    }
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn put_maximum(out: &mut Vec<u8>, maximum: Option<u64>) {
    out.push(maximum.is_some().into());
    maximum.iter().for_each(|maximum| put(out, *maximum));
}

fn put_values(out: &mut Vec<u8>, values: &[Value]) {
    put(out, values.len() as u64);
    values.iter().for_each(|value| put_value(out, value));
}

/// Appends one byte per type: its index in [`Type::ALL`], as before values.
fn put_types(out: &mut Vec<u8>, types: &[Type]) {
    put(out, types.len() as u64);
    out.extend(types.iter().map(|ty| *ty as u8));
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match *value {
        Value::I32(value) => {
            out.push(0);
            put(out, zigzag(value.into()));
        }
        Value::I64(value) => {
            out.push(1);
            put(out, zigzag(value));
        }
        Value::F32(bits) => {
            out.push(2);
            out.extend(bits.to_le_bytes());
        }
        Value::F64(bits) => {
            out.push(3);
            out.extend(bits.to_le_bytes());
        }
        Value::V128(bits) => {
            out.push(4);
            out.extend(bits.to_le_bytes());
        }
        Value::Func(index) => {
            out.push(5);
            put(out, index.map_or(0, |index| u64::from(index) + 1));
        }
        Value::Extern(None) => out.push(6),
        Value::Extern(Some(number)) => {
            out.push(7);
            put(out, number.into());
        }
        Value::Any(None) => out.push(8),
        Value::Any(Some(value)) => {
            out.push(9);
            put(out, zigzag(value.into()));
        }
        Value::Exn => out.push(10),
    }
}

/// Appends the number of the kind, and the text or amount.
fn put_reason(out: &mut Vec<u8>, reason: &Reason) {
    match reason {
        Reason::Trap(text) => put_text(out, 0, text),
        Reason::Fuel(amount) => {
            out.push(1);
            put(out, *amount);
        }
        Reason::Interrupted => out.push(2),
        Reason::Host(text) => put_text(out, 3, text),
        Reason::Exit(code) => {
            out.push(4);
            put(out, zigzag((*code).into()));
        }
    }
}

fn put_text(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    put(out, text.len() as u64);
    out.extend(text.as_bytes());
}

struct Encoded<'a, 'b>(&'b mut &'a [u8]);

impl<'a> Encoded<'a, '_> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("an event that ends too early")?;
        *self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N).map(|bytes| bytes.try_into().expect("N bytes were taken"))
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number that is too large")
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        u32::try_from(self.u64()?).map_err(|_| "a number that is too large")
    }

    fn maximum(&mut self) -> Result<Option<u64>, &'static str> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.u64().map(Some),
            _ => Err("neither a maximum nor none"),
        }
    }

    fn i64(&mut self) -> Result<i64, &'static str> {
        self.u64().map(|value| (value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn i32(&mut self) -> Result<i32, &'static str> {
        i32::try_from(self.i64()?).map_err(|_| "a number that is too large")
    }

    fn i31(&mut self) -> Result<i32, &'static str> {
        let value = self.i32()?;
        let fits = (value << 1) >> 1 == value;
        fits.then_some(value).ok_or("a number that is too large")
    }

    fn value(&mut self) -> Result<Value, &'static str> {
        Ok(match self.byte()? {
            0 => Value::I32(self.i32()?),
            1 => Value::I64(self.i64()?),
            2 => Value::F32(u32::from_le_bytes(self.array()?)),
            3 => Value::F64(u64::from_le_bytes(self.array()?)),
            4 => Value::V128(u128::from_le_bytes(self.array()?)),
            5 => Value::Func(self.u32()?.checked_sub(1)),
            6 => Value::Extern(None),
            7 => Value::Extern(Some(self.u32()?)),
            8 => Value::Any(None),
            9 => Value::Any(Some(self.i31()?)),
            10 => Value::Exn,
            _ => return Err("an unknown type of value"),
        })
    }

    fn reason(&mut self) -> Result<Reason, &'static str> {
        Ok(match self.byte()? {
            0 => Reason::Trap(self.text()?),
            1 => Reason::Fuel(self.u64()?),
            2 => Reason::Interrupted,
            3 => Reason::Host(self.text()?),
            4 => Reason::Exit(self.i32()?),
            _ => return Err("an unknown reason of a failure"),
        })
    }

    fn text(&mut self) -> Result<String, &'static str> {
        let length = usize::try_from(self.u64()?).ok().filter(|length| *length <= MAX_TEXT);
        let bytes = self.take(length.ok_or("a text that is too long")?)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| "a text that is not UTF-8")
    }

    fn types(&mut self) -> Result<Vec<Type>, &'static str> {
        let number = self.u64()?;
        let bytes = usize::try_from(number).map_err(|_| "a number that is too large")?;
        let ty = |byte: &u8| Type::ALL.get(usize::from(*byte)).copied().ok_or("an unknown type of value");
        self.take(bytes)?.iter().map(ty).collect()
    }

    fn values(&mut self) -> Result<Vec<Value>, &'static str> {
        // The number is not trusted: each value consumes bytes before the next one is stored. Few
        // values take no more memory than they need.
        let number = self.u64()?;
        let mut values = Vec::with_capacity(number.min(16) as usize);
        for _ in 0..number {
            values.push(self.value()?);
        }
        Ok(values)
    }
}
