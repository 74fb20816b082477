//! [`Stopped`]: a stopped thread, and [`Scope`]: one of its frames.

use wasm_jit::Val;
use wasm_jit::probes::{Frame, FrameAccessor, InstanceId, Location};

use crate::Error;
use crate::code::Code;
use crate::dwarf::entries::Key;
use crate::inlined::Level;
use crate::value::Value;

/// A stopped thread, to which [`Debugger::inspect`](crate::Debugger::inspect) gives access.
pub struct Stopped<'a, 'f> {
    pub(crate) frame: &'a mut Frame<'f>,
    pub(crate) code: &'a Code,
    pub(crate) locations: &'a [Option<Location>],
    pub(crate) changes: Changes,
}

/// Whether the values of a stopped program can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    Allowed,
    /// Not in a recorded run.
    Recorded,
    /// Not after a trap.
    Ending,
}

impl std::fmt::Debug for Stopped<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopped").field("locations", &self.locations).finish_non_exhaustive()
    }
}

impl<'f> Stopped<'_, 'f> {
    /// The code and the names of the module.
    pub fn code(&self) -> &Code {
        self.code
    }

    /// The locations of the frames, the innermost first; `None` for frames of other modules.
    /// Waiting frames are at their call.
    pub fn locations(&self) -> &[Option<Location>] {
        self.locations
    }

    /// The frames of the source, the innermost first. A frame of another module has one.
    pub fn levels(&self) -> Vec<Level> {
        let inner = |location: &Option<Location>| {
            location.map_or(0, |location| self.code.calls_inlined_at(location).len())
        };
        let frames = self.locations.iter().map(inner).enumerate();
        frames.flat_map(|(frame, count)| (0..=count).map(move |inner| Level { frame, inner })).collect()
    }

    /// The frame of the probe that stopped the thread. Changes made through it are not refused,
    /// although a recorded run that is changed no longer replays.
    pub fn probe_frame(&mut self) -> &mut Frame<'f> {
        self.frame
    }

    /// A frame of the thread: by its number, counted from the innermost one, which is 0, or [of the
    /// source](Stopped::levels).
    ///
    /// # Errors
    /// [`Error::NoFrame`], [`Error::OtherModule`], [`Error::Access`].
    pub fn frame(&mut self, level: impl Into<Level>) -> Result<Scope<'_, 'f>, Error> {
        let Level { frame: level, inner } = level.into();
        let location = *self.locations.get(level).ok_or(Error::NoFrame { level })?;
        let location = location.ok_or(Error::OtherModule { level })?;
        let accessor = match level {
            0 => None,
            _ => Some(self.frame.outer(level)?.ok_or(Error::NoFrame { level })?),
        };
        if inner > 0 && inner > self.code.calls_inlined_at(location).len() {
            return Err(Error::NoFrame { level });
        }
        let changes = self.changes;
        Ok(Scope { frame: &mut *self.frame, code: self.code, accessor, location, inner, changes })
    }
}

/// A frame in which expressions can be evaluated.
pub struct Scope<'a, 'f> {
    frame: &'a mut Frame<'f>,
    code: &'a Code,
    /// `None` for the innermost frame.
    accessor: Option<FrameAccessor>,
    location: Location,
    /// The number of calls that are inlined at the location, but have frames further in.
    inner: usize,
    changes: Changes,
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").field("location", &self.location).finish_non_exhaustive()
    }
}

impl<'a, 'f> Scope<'a, 'f> {
    /// The innermost frame.
    pub(crate) fn innermost(frame: &'a mut Frame<'f>, code: &'a Code) -> Self {
        let location = frame.location();
        Self { frame, code, accessor: None, location, inner: 0, changes: Changes::Allowed }
    }

    /// A frame of the thread, or that of a call to this function which is inlined there.
    pub(crate) fn of(
        frame: &'a mut Frame<'f>,
        code: &'a Code,
        accessor: FrameAccessor,
        function: Option<Key>,
    ) -> Result<Self, Error> {
        let is_innermost = accessor.number(frame)? == frame.number();
        let location = if is_innermost { frame.location() } else { accessor.location(frame)? };
        let accessor = (!is_innermost).then_some(accessor);
        let inner = code.inner_of(location, function);
        let inner = inner.ok_or_else(|| Error::Value("the inlined call is not active".to_owned()))?;
        Ok(Self { frame, code, accessor, location, inner, changes: Changes::Allowed })
    }

    /// An accessor of the frame.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub(crate) fn accessor(&mut self) -> Result<FrameAccessor, Error> {
        match self.accessor {
            Some(accessor) => Ok(accessor),
            None => Ok(self.frame.accessor()?),
        }
    }

    /// The code and the names of the module.
    pub fn code(&self) -> &'a Code {
        self.code
    }

    /// The location of the frame; a waiting frame is at its call.
    pub fn location(&self) -> Location {
        self.location
    }

    /// The number of calls that are inlined at the location, but have frames further in.
    pub(crate) fn inner(&self) -> usize {
        self.inner
    }

    /// The instance that executes the function of the frame.
    pub(crate) fn instance_id(&self) -> Result<InstanceId, Error> {
        Ok(match self.accessor {
            None => self.frame.instance_id(),
            Some(accessor) => accessor.instance_id(self.frame)?,
        })
    }

    /// The number of frames outside of this one, counted on each call.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn depth(&self) -> Result<usize, Error> {
        Ok(match self.accessor {
            None => self.frame.depth(),
            Some(accessor) => accessor.depth(self.frame)?,
        })
    }

    /// The number of operands on the frame's stack.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn operands(&self) -> Result<usize, Error> {
        Ok(match self.accessor {
            None => self.frame.operands(),
            Some(accessor) => accessor.operands(self.frame)?,
        })
    }

    /// The value of a parameter or local.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn local(&mut self, index: u32) -> Result<Val, Error> {
        Ok(match self.accessor {
            None => self.frame.local(index)?,
            Some(accessor) => accessor.local(self.frame, index)?,
        })
    }

    /// The value of an operand; `depth` is counted from the top of the stack.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn operand(&mut self, depth: u32) -> Result<Val, Error> {
        Ok(match self.accessor {
            None => self.frame.operand(depth)?,
            Some(accessor) => accessor.operand(self.frame, depth)?,
        })
    }

    /// Changes a parameter or local.
    ///
    /// # Errors
    /// [`Error::Access`], [`Error::Recorded`], [`Error::Ending`].
    pub fn set_local(&mut self, index: u32, value: &Val) -> Result<(), Error> {
        self.check_change()?;
        let done = match self.accessor {
            None => self.frame.set_local(index, value),
            Some(accessor) => accessor.set_local(self.frame, index, value),
        };
        done.map_err(Error::from)
    }

    /// Changes an operand; `depth` is counted from the top of the stack.
    ///
    /// # Errors
    /// [`Error::Access`], [`Error::Recorded`], [`Error::Ending`].
    pub fn set_operand(&mut self, depth: u32, value: &Val) -> Result<(), Error> {
        self.check_change()?;
        let done = match self.accessor {
            None => self.frame.set_operand(depth, value),
            Some(accessor) => accessor.set_operand(self.frame, depth, value),
        };
        done.map_err(Error::from)
    }

    /// The value of a global of the running instance.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn global(&mut self, index: u32) -> Result<Val, Error> {
        self.frame.global(index).ok_or_else(|| no_global(index))
    }

    /// Changes a global of the running instance.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Engine`], [`Error::Recorded`], [`Error::Ending`].
    pub fn set_global(&mut self, index: u32, value: &Val) -> Result<(), Error> {
        self.check_change()?;
        Ok(self.frame.set_global(index, value).ok_or_else(|| no_global(index))??)
    }

    /// The size of a memory of the running instance, in bytes.
    pub fn memory_size(&self, memory: u32) -> Option<u64> {
        self.frame.memory_size(memory)
    }

    /// Copies bytes from a memory of the running instance.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn read_memory(&self, memory: u32, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        Ok(self.frame.read_memory(memory, address, buffer)?)
    }

    /// Copies bytes into a memory of the running instance.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Recorded`], [`Error::Ending`].
    pub fn write_memory(&mut self, memory: u32, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_change()?;
        Ok(self.frame.write_memory(memory, address, bytes)?)
    }

    fn check_change(&self) -> Result<(), Error> {
        match self.changes {
            Changes::Allowed => Ok(()),
            Changes::Recorded => Err(Error::Recorded),
            Changes::Ending => Err(Error::Ending),
        }
    }

    pub(crate) fn assign_local(&mut self, index: u32, value: &Value) -> Result<(), Error> {
        let new = converted(value, &self.local(index)?, "the local")?;
        self.set_local(index, &new)
    }

    pub(crate) fn assign_global(&mut self, index: u32, value: &Value) -> Result<(), Error> {
        let new = converted(value, &self.global(index)?, "the global")?;
        self.set_global(index, &new)
    }
}

/// The value as one of the type of `old`, the value of the named place.
pub(crate) fn converted(value: &Value, old: &Val, place: &str) -> Result<Val, Error> {
    value.like(old).ok_or_else(|| {
        let form = match old {
            Val::V128(_) => ": a vector is written as 0x and its 32 digits",
            _ => "",
        };
        Error::Value(format!("{value} is no value for {place}{form}"))
    })
}

fn no_global(index: u32) -> Error {
    Error::Unknown { what: "global", name: index.to_string() }
}
