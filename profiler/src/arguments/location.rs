//! Evaluates locations of the debugging information at the call to a probe.

use std::ops::Range;

use gimli::{AttributeValue, Operation};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::copies::{self, Copies, Place};
use super::functions::Unit;
use super::object::{Object, Section};
use super::{Register, ScalarType, Source, Unavailable};

/// Maximum number of operations of a location; longer ones are not supported.
const MAX_OPERATIONS: usize = 8;

/// Maximum number of bytes after the start of a function that are followed.
const MAX_PROLOGUE: u64 = 4096;

/// A point in the code at which parameters are located.
pub(super) struct Located<'a> {
    pub(super) object: &'a Object,
    pub(super) unit: &'a Unit,
    pub(super) frame_base: Option<AttributeValue<Section>>,
    /// The entry of the function that the code is of.
    pub(super) entry: u64,
    /// The locations of its parameters.
    pub(super) passed: Vec<AttributeValue<Section>>,
    /// The one of these that is located; `None` for a parameter of an inlined function.
    pub(super) own: Option<usize>,
    /// The code that contains the point, if it begins with the entry of the function.
    pub(super) code: Option<Range<u64>>,
    /// The address of the call to the instrumentation function.
    pub(super) site: u64,
    /// The address after the call.
    pub(super) returns: u64,
}

/// The address at which a call returns.
pub(super) fn return_address(object: &Object, site: u64) -> Option<u64> {
    let code = object.code(site, site.checked_add(16)?)?;
    let instruction = Decoder::with_ip(64, code, site, DecoderOptions::NONE).decode();
    let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    is_call.then(|| instruction.next_ip())
}

/// The value of `DW_AT_const_value`.
pub(super) fn constant(value: &AttributeValue<Section>) -> Option<Source> {
    use gimli::Reader as _;
    if let AttributeValue::Block(bytes) = value {
        let bytes = bytes.to_slice().ok()?;
        return bits(&bytes).map(Source::Constant);
    }
    let value = value.sdata_value().map(i64::cast_unsigned).or_else(|| value.udata_value());
    value.map(Source::Constant)
}

/// Up to eight bytes, the lowest first.
fn bits(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

impl Located<'_> {
    /// The source from which a probe gets the value of a parameter with this location.
    pub(super) fn source(
        &self,
        location: &AttributeValue<Section>,
        ty: ScalarType,
    ) -> Result<Source, Unavailable> {
        let source = self.described(location, ty)?;
        // A parameter of an inlined function may be a copy of one that was removed.
        let is_removed = || match self.own {
            Some(own) => self.is_removed(own),
            None => (0..self.passed.len()).any(|parameter| self.is_removed(parameter)),
        };
        let is_wrong = !matches!(source, Source::Constant(_)) && is_removed();
        if is_wrong { Err(Unavailable::NotKept) } else { Ok(source) }
    }

    /// The same, if the location is right.
    fn described(&self, location: &AttributeValue<Section>, ty: ScalarType) -> Result<Source, Unavailable> {
        if let AttributeValue::Exprloc(expression) = location {
            // A location for the entire scope, which includes the code before the parameter is
            // stored.
            return self.of_expression(expression.clone(), ty, true);
        }
        // The location during the call. At the address to which the call returns, the location may
        // be that of an assignment after it.
        let during = self.located_at(location, self.returns - 1);
        let source = match during {
            Some(expression) => self.of_expression(expression, ty, false),
            None => Err(Unavailable::NotKept),
        };
        source.or_else(|reason| {
            let at_entry = self.code.as_ref().and_then(|code| self.located_at(location, code.start));
            at_entry.and_then(|expression| self.copy_of_entry(expression, ty)).ok_or(reason)
        })
    }

    /// The expression in a location list that is valid at an address.
    fn located_at(
        &self,
        location: &AttributeValue<Section>,
        address: u64,
    ) -> Option<gimli::Expression<Section>> {
        let mut list = self.object.dwarf.attr_locations(self.unit, location.clone()).ok()??;
        while let Ok(Some(entry)) = list.next() {
            if (entry.range.begin..entry.range.end).contains(&address) {
                return Some(entry.data);
            }
        }
        None
    }

    /// A location that still has the value that another location has at the entry of the function.
    fn copy_of_entry(&self, expression: gimli::Expression<Section>, ty: ScalarType) -> Option<Source> {
        let copies = self.copies()?;
        match &self.operations(expression)?[..] {
            [Operation::Register { register }] => {
                self.copy_of(&copies, copies::of_entry(Register(register.0))?, ty).ok()
            }
            [Operation::FrameOffset { offset: offset @ 0.. }] if copies.has_incoming() => {
                let (base, at, is_frame_address) = self.frame_base()?;
                let offset = i32::try_from(at.checked_add(*offset)?).ok()?;
                is_frame_address.then_some(Source::Memory(base, offset))
            }
            _ => None,
        }
    }

    fn operations(&self, expression: gimli::Expression<Section>) -> Option<Vec<Operation<Section>>> {
        let mut operations = expression.operations(self.unit.encoding());
        let mut all = Vec::new();
        while let Some(operation) = operations.next().ok()? {
            if all.len() == MAX_OPERATIONS {
                return None;
            }
            all.push(operation);
        }
        Some(all)
    }

    fn of_expression(
        &self,
        expression: gimli::Expression<Section>,
        ty: ScalarType,
        is_of_scope: bool,
    ) -> Result<Source, Unavailable> {
        let operations = self.operations(expression).ok_or(Unavailable::Unsupported)?;
        match &operations[..] {
            [] => Err(Unavailable::NotKept),
            [Operation::Register { register }] => self.of_register(Register(register.0), ty),
            [Operation::RegisterOffset { register, offset, .. }] => {
                self.of_memory(Register(register.0), *offset, ty, is_of_scope)
            }
            [Operation::FrameOffset { offset }] => {
                let (base, at, is_frame_address) = self.frame_base().ok_or(Unavailable::Unsupported)?;
                // Memory above the frame was stored by the caller.
                let is_of_scope = is_of_scope && !(is_frame_address && *offset >= 0);
                let offset = at.checked_add(*offset).ok_or(Unavailable::Unsupported)?;
                self.of_memory(base, offset, ty, is_of_scope)
            }
            [Operation::UnsignedConstant { value }, Operation::StackValue] => Ok(Source::Constant(*value)),
            [Operation::SignedConstant { value }, Operation::StackValue] => {
                Ok(Source::Constant(value.cast_unsigned()))
            }
            [Operation::ImplicitValue { data }] => {
                use gimli::Reader as _;
                let data = data.to_slice().map_err(|_| Unavailable::Unsupported)?;
                bits(&data).map(Source::Constant).ok_or(Unavailable::Unsupported)
            }
            [Operation::RegisterOffset { register, offset, .. }, Operation::StackValue] => {
                match self.of_register(Register(register.0), WHOLE)? {
                    Source::Register(register, 0) => Ok(Source::Register(register, *offset)),
                    source if *offset == 0 => Ok(source),
                    _ => Err(Unavailable::Unsupported),
                }
            }
            [
                Operation::RegisterOffset { register, offset: 0, .. },
                Operation::UnsignedConstant { value: mask },
                Operation::And,
                conversions @ ..,
                Operation::StackValue,
            ] if is_lower_part(*mask, conversions, ty) => self.of_register(Register(register.0), ty),
            [Operation::EntryValue { expression }, Operation::StackValue] => {
                let of_entry = self.operations(gimli::Expression(expression.clone()));
                match of_entry.as_deref() {
                    Some([Operation::Register { register }]) => {
                        let copies = self.copies().ok_or(Unavailable::NotKept)?;
                        let value = copies::of_entry(Register(register.0)).ok_or(Unavailable::Unsupported)?;
                        self.copy_of(&copies, value, ty)
                    }
                    _ => Err(Unavailable::Unsupported),
                }
            }
            _ => Err(Unavailable::Unsupported),
        }
    }

    /// Whether gcc has removed this parameter from its copy of a function (`constprop`, `isra`).
    /// The debugging information of the copy describes it by the register that it had in the
    /// original function: as the value at the entry, or, if another parameter has that register
    /// now, like that one. Callers of the copy pass no value for it.
    ///
    /// Parameters that are passed come first.
    fn is_removed(&self, parameter: usize) -> bool {
        match &self.at_entry(parameter)[..] {
            [Operation::EntryValue { .. }, ..] => true,
            [Operation::Register { register }, ..] => {
                // Structures have several registers.
                let has = |operation: &Operation<Section>| matches!(operation, Operation::Register { register: at } if at == register);
                (0..parameter).any(|earlier| self.at_entry(earlier).iter().any(has))
            }
            _ => false,
        }
    }

    /// The location of a parameter of the function at its entry; no operations if it has none.
    fn at_entry(&self, parameter: usize) -> Vec<Operation<Section>> {
        let expression = match &self.passed[parameter] {
            AttributeValue::Exprloc(expression) => Some(expression.clone()),
            list => self.located_at(list, self.entry),
        };
        expression.and_then(|expression| self.operations(expression)).unwrap_or_default()
    }

    fn of_register(&self, register: Register, ty: ScalarType) -> Result<Source, Unavailable> {
        if register.is_seen() {
            return Ok(Source::Register(register, 0));
        }
        let copies = self.copies().ok_or(Unavailable::NotKept)?;
        let value = copies.of_register(register, ty.bytes()).ok_or(Unavailable::NotKept)?;
        self.copy_of(&copies, value, ty)
    }

    /// Memory at a distance from a register. If the location `is_of_scope`, the code may not have
    /// stored the value there yet.
    fn of_memory(
        &self,
        register: Register,
        offset: i64,
        ty: ScalarType,
        is_of_scope: bool,
    ) -> Result<Source, Unavailable> {
        let offset = i32::try_from(offset).map_err(|_| Unavailable::Unsupported)?;
        if ![Register::RSP, Register::RBP].contains(&register) {
            return Err(Unavailable::Unsupported);
        }
        let source = Source::Memory(register, offset);
        if !is_of_scope {
            return Ok(source);
        }
        let copies = self.copies().ok_or(Unavailable::NotKept)?;
        let slot = copies.slot(register, offset).ok_or(Unavailable::NotKept)?;
        if copies.is_stored(slot, ty.bytes()) {
            return Ok(source);
        }
        // The present location of the value that the code is going to store there.
        let (code, start) = self.prologue().ok_or(Unavailable::NotKept)?;
        let value = copies.clone().next_store(code, start, self.returns, slot, ty);
        let value = value.ok_or(Unavailable::NotKept)?;
        self.copy_of(&copies, value, ty)
    }

    /// The frame base of the function, as a register and an offset, and whether it is the canonical
    /// frame address.
    fn frame_base(&self) -> Option<(Register, i64, bool)> {
        let AttributeValue::Exprloc(expression) = self.frame_base.clone()? else { return None };
        match &self.operations(expression)?[..] {
            [Operation::Register { register }] => Some((Register(register.0), 0, false)),
            [Operation::RegisterOffset { register, offset, .. }] => {
                Some((Register(register.0), *offset, false))
            }
            [Operation::CallFrameCFA] => {
                let (register, offset) = self.object.frame_address(self.site)?;
                Some((register, offset, true))
            }
            _ => None,
        }
    }

    /// A location that the probe can read and that contains a value.
    fn copy_of(&self, copies: &Copies, value: copies::Value, ty: ScalarType) -> Result<Source, Unavailable> {
        match copies.place_of(value, ty.bytes()).ok_or(Unavailable::NotKept)? {
            Place::Register(register) => Ok(Source::Register(register, 0)),
            Place::Stack(offset) => Ok(Source::Memory(Register::RSP, offset)),
        }
    }

    /// The code from the start of the function, with its address.
    fn prologue(&self) -> Option<(&[u8], u64)> {
        let code = self.code.clone()?;
        Some((self.object.code(code.start, code.end)?, code.start))
    }

    /// The values of registers and stack slots at the call.
    fn copies(&self) -> Option<Copies> {
        let (code, start) = self.prologue()?;
        let is_near = (start..start.saturating_add(MAX_PROLOGUE)).contains(&self.site);
        is_near.then(|| Copies::at(code, start, self.site))?
    }
}

/// Whether a mask and conversions leave a value of a type unchanged. clang describes a boolean as
/// the lower half of a register, converted to one bit and then to a byte.
fn is_lower_part(mask: u64, conversions: &[Operation<Section>], ty: ScalarType) -> bool {
    let of_type = u64::MAX >> (64 - 8 * u32::from(ty.bytes()));
    let is_conversion = |operation: &Operation<Section>| matches!(operation, Operation::Convert { .. });
    mask & of_type == of_type
        && (conversions.is_empty() || ty == ScalarType::Bool && conversions.iter().all(is_conversion))
}

/// An entire register.
const WHOLE: ScalarType = ScalarType::Integer { bytes: 8, is_signed: false };
