//! Values that a stub passes to probe functions, and where a settled site has them.

use crate::asm::{Reg, Width};

/// A value of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wanted {
    /// A parameter or local that the function declares.
    Local(u32),
    /// An operand, counted from the top of the stack.
    Operand(u32),
    /// At the exit, a result of the function.
    Result(u32),
}

/// A 64-bit lane of a vector, as in `i64x2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Lane 0, the low 64 bits.
    Low = 0,
    /// Lane 1, the high 64 bits.
    High = 1,
}

/// Why a frame has no such value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoValue {
    /// There are fewer operands or results.
    NotThere,
}

/// A value that a probe function gets: 64 bits, or a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    pub(crate) source: Source,
    /// What is added to the value.
    pub(crate) plus: u64,
    /// Which value of the frame this is, if it is one.
    pub(crate) wanted: Option<Wanted>,
    /// The lane, if this is only a lane of that value.
    pub(crate) lane: Option<Lane>,
}

/// Where a value comes from, and its width if the value is only a part of the location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    Const(u64),
    Register(Reg, Width),
    /// The high lane of a vector in a register.
    HighLane(Reg),
    /// In the frame, by the offset from `rbp`.
    Slot(i32, Width),
    /// Where a settled site keeps it.
    Settled(Width),
    /// A register's value, shifted left.
    Shifted(Reg, u8, Width),
    /// The condition in the flags, as 0 or 1.
    Flag,
    Context,
    /// The address of the site.
    Site,
    /// The frame pointer.
    Frame,
    /// The return address of the frame.
    ReturnAddress,
    /// The number of the running instance.
    Instance,
    /// The word of a result in the store's buffer, by its index.
    Result(u32, Width),
    Vector(Vector),
}

/// Where a vector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vector {
    Const(u128),
    Register(Reg),
    /// In the frame, by the offset from `rbp`.
    Slot(i32),
    /// A result in the store's buffer, by the index of its first word.
    Result(u32),
}

impl From<Source> for Value {
    fn from(source: Source) -> Self {
        Self::new(source)
    }
}

impl Value {
    const fn new(source: Source) -> Self {
        Self { source, plus: 0, wanted: None, lane: None }
    }

    /// The address of the running instance's context.
    pub const CONTEXT: Self = Self::new(Source::Context);
    /// The address of the site.
    pub const SITE: Self = Self::new(Source::Site);

    /// The frame pointer.
    pub const FRAME: Self = Self::new(Source::Frame);

    /// The address at which the frame's caller continues.
    pub const RETURN_ADDRESS: Self = Self::new(Source::ReturnAddress);

    /// The number of the running instance ([`INSTANCE_NUMBER`](crate::vmctx::INSTANCE_NUMBER)).
    pub const INSTANCE: Self = Self::new(Source::Instance);

    /// The constant with these bits.
    #[must_use]
    pub const fn constant(value: u64) -> Self {
        Self::new(Source::Const(value))
    }

    /// A 64-bit lane of a vector; for any other value, lane 0 is the value, and lane 1 is 0.
    #[must_use]
    pub fn lane(self, lane: Lane) -> Self {
        let is_high = lane == Lane::High;
        let source = match self.source {
            Source::Vector(Vector::Const(bits)) => Source::Const((bits >> (64 * lane as u32)) as u64),
            Source::Vector(Vector::Register(reg)) if is_high => Source::HighLane(reg),
            Source::Vector(Vector::Register(reg)) => Source::Register(reg, Width::W64),
            Source::Vector(Vector::Slot(offset)) => Source::Slot(offset + 8 * lane as i32, Width::W64),
            Source::Vector(Vector::Result(word)) => Source::Result(word + lane as u32, Width::W64),
            _ if is_high => return Self::constant(0),
            _ => return self,
        };
        Self { source, lane: Some(lane), ..self }
    }

    /// The sum of this value and `plus`.
    #[must_use]
    pub const fn plus(self, plus: u64) -> Self {
        Self { plus: self.plus.wrapping_add(plus), ..self }
    }
}
