//! [`Stopped`], a thread that is stopped, and [`Scope`], one of its frames.

use wasm_jit::Val;
use wasm_jit::probes::{Frame, FrameAccessor, Location};

use crate::Error;
use crate::code::Code;
use crate::value::Value;

/// A thread that is stopped: what [`Debugger::inspect`](crate::Debugger::inspect) gives access to.
pub struct Stopped<'a, 'f> {
    pub(crate) frame: &'a mut Frame<'f>,
    pub(crate) code: &'a Code,
    pub(crate) locations: &'a [Option<Location>],
    pub(crate) is_recorded: bool,
}

impl std::fmt::Debug for Stopped<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopped").field("locations", &self.locations).finish_non_exhaustive()
    }
}

impl<'f> Stopped<'_, 'f> {
    /// The module.
    pub fn code(&self) -> &Code {
        self.code
    }

    /// The locations of the frames, the innermost first; `None` for those of other modules. Frames
    /// that wait are at their call.
    pub fn locations(&self) -> &[Option<Location>] {
        self.locations
    }

    /// The frame of the probe that has stopped the thread. Nothing refuses changes by it: a
    /// recorded run that is changed does not repeat.
    pub fn probe_frame(&mut self) -> &mut Frame<'f> {
        self.frame
    }

    /// A frame, counted from the innermost one.
    ///
    /// # Errors
    /// [`Error::NoFrame`], [`Error::OtherModule`], [`Error::Access`].
    pub fn frame(&mut self, level: usize) -> Result<Scope<'_, 'f>, Error> {
        let location = *self.locations.get(level).ok_or(Error::NoFrame { level })?;
        let location = location.ok_or(Error::OtherModule { level })?;
        let accessor = match level {
            0 => None,
            _ => Some(self.frame.outer(level)?.ok_or(Error::NoFrame { level })?),
        };
        let is_recorded = self.is_recorded;
        Ok(Scope { frame: &mut *self.frame, code: self.code, accessor, location, is_recorded })
    }
}

/// A frame in which expressions have values.
pub struct Scope<'a, 'f> {
    frame: &'a mut Frame<'f>,
    code: &'a Code,
    /// `None` for the innermost frame.
    accessor: Option<FrameAccessor>,
    location: Location,
    /// Whether nothing can be changed.
    is_recorded: bool,
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
        Self { frame, code, accessor: None, location, is_recorded: false }
    }

    /// A frame of the thread.
    pub(crate) fn of(
        frame: &'a mut Frame<'f>,
        code: &'a Code,
        accessor: FrameAccessor,
    ) -> Result<Self, Error> {
        let is_innermost = accessor.number(frame)? == frame.number();
        let location = if is_innermost { frame.location() } else { accessor.location(frame)? };
        let accessor = (!is_innermost).then_some(accessor);
        Ok(Self { frame, code, accessor, location, is_recorded: false })
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

    /// The module.
    pub fn code(&self) -> &'a Code {
        self.code
    }

    /// The location of the frame.
    pub fn location(&self) -> Location {
        self.location
    }

    /// Number of frames outside of this one. They are counted each time.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn depth(&self) -> Result<usize, Error> {
        Ok(match self.accessor {
            None => self.frame.depth(),
            Some(accessor) => accessor.depth(self.frame)?,
        })
    }

    /// Number of operands on its stack.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn operands(&self) -> Result<usize, Error> {
        Ok(match self.accessor {
            None => self.frame.operands(),
            Some(accessor) => accessor.operands(self.frame)?,
        })
    }

    /// A parameter or local.
    ///
    /// # Errors
    /// [`Error::Access`].
    pub fn local(&mut self, index: u32) -> Result<Val, Error> {
        Ok(match self.accessor {
            None => self.frame.local(index)?,
            Some(accessor) => accessor.local(self.frame, index)?,
        })
    }

    /// An operand, counted from the top of the stack.
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
    /// [`Error::Access`], [`Error::Recorded`].
    pub fn set_local(&mut self, index: u32, value: &Val) -> Result<(), Error> {
        self.check_change()?;
        let done = match self.accessor {
            None => self.frame.set_local(index, value),
            Some(accessor) => accessor.set_local(self.frame, index, value),
        };
        done.map_err(Error::from)
    }

    /// Changes an operand, counted from the top of the stack.
    ///
    /// # Errors
    /// [`Error::Access`], [`Error::Recorded`].
    pub fn set_operand(&mut self, depth: u32, value: &Val) -> Result<(), Error> {
        self.check_change()?;
        let done = match self.accessor {
            None => self.frame.set_operand(depth, value),
            Some(accessor) => accessor.set_operand(self.frame, depth, value),
        };
        done.map_err(Error::from)
    }

    /// A global of the instance that runs.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn global(&mut self, index: u32) -> Result<Val, Error> {
        self.frame.global(index).ok_or_else(|| no_global(index))
    }

    /// Changes a global of the instance that runs.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Engine`], [`Error::Recorded`].
    pub fn set_global(&mut self, index: u32, value: &Val) -> Result<(), Error> {
        self.check_change()?;
        Ok(self.frame.set_global(index, value).ok_or_else(|| no_global(index))??)
    }

    /// The size of a memory of the instance that runs, in bytes.
    pub fn memory_size(&self, memory: u32) -> Option<u64> {
        self.frame.memory_size(memory)
    }

    /// Copies bytes from a memory of the instance that runs.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn read_memory(&self, memory: u32, address: u64, buffer: &mut [u8]) -> Result<(), Error> {
        Ok(self.frame.read_memory(memory, address, buffer)?)
    }

    /// Copies bytes into a memory of the instance that runs.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Recorded`].
    pub fn write_memory(&mut self, memory: u32, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_change()?;
        Ok(self.frame.write_memory(memory, address, bytes)?)
    }

    fn check_change(&self) -> Result<(), Error> {
        if self.is_recorded { Err(Error::Recorded) } else { Ok(()) }
    }

    pub(crate) fn assign_local(&mut self, index: u32, value: &Value) -> Result<(), Error> {
        let new = value.like(&self.local(index)?);
        self.set_local(index, &new.ok_or_else(|| Error::Value(format!("{value} is no value for the local")))?)
    }

    pub(crate) fn assign_global(&mut self, index: u32, value: &Value) -> Result<(), Error> {
        let new = value.like(&self.global(index)?);
        self.set_global(
            index,
            &new.ok_or_else(|| Error::Value(format!("{value} is no value for the global")))?,
        )
    }
}

fn no_global(index: u32) -> Error {
    Error::Unknown { what: "global", name: index.to_string() }
}
