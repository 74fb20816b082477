//! Variables of the source: their locations and types.

use gimli::{AttributeValue, EvaluationResult, Operation, Reader as _, UnitOffset};

use super::{Dwarf, Reader, Units};
use crate::Error;
use crate::expression::Load;
use crate::frames::Scope;
use crate::value::Value;
use wasm_jit::Val;

type Unit = gimli::Unit<Reader>;
type Entry = gimli::DebuggingInformationEntry<Reader>;

/// Maximum number of references to other entries that are followed for one entry.
const MAX_LINKS: usize = 64;
/// Maximum number of operations of a location.
const MAX_OPERATIONS: u32 = 10_000;
/// Maximum number of elements of an array, or characters of a string, that are shown.
const MAX_SHOWN: u64 = 200;
/// Maximum depth of structures that are shown.
const MAX_NESTED: usize = 4;

/// A type: an entry of DWARF.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type {
    unit: usize,
    /// `None` for void.
    entry: Option<UnitOffset>,
}

/// A variable that is in scope somewhere.
#[derive(Debug)]
pub(crate) struct Variable {
    pub name: String,
    ty: Type,
    location: Option<AttributeValue<Reader>>,
    constant: Option<AttributeValue<Reader>>,
    frame_base: Option<AttributeValue<Reader>>,
    unit: usize,
    /// Whether it is a parameter of the function, not of one that is inlined there.
    is_parameter: bool,
}

/// The place of a value.
#[derive(Clone, Debug)]
enum At {
    Memory(u64),
    Local(u32),
    Global(u32),
    /// Computed.
    Bits(u64),
}

/// A value of the source with its type.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    ty: Type,
    at: At,
}

/// A type, as values are read.
#[derive(Debug)]
enum Shape {
    Base { encoding: gimli::DwAte, size: u64 },
    Pointer { to: Type, size: u64 },
    Struct,
    Array { of: Type, count: u64 },
    Enum { of: Option<Type>, size: u64, names: Vec<(i128, String)> },
    Other,
}

/// The parsed units of a module.
#[derive(Debug, Default)]
pub(crate) struct Parsed(pub Vec<Unit>);

impl Parsed {
    pub(crate) fn of(units: &Units) -> Self {
        let mut parsed = Vec::new();
        let mut headers = units.units();
        while let Ok(Some(header)) = headers.next() {
            parsed.extend(units.unit(header));
        }
        Self(parsed)
    }
}

fn unreadable(error: gimli::Error) -> Error {
    Error::Value(format!("DWARF: {error}"))
}

impl Dwarf {
    /// The variables in scope at an instruction, the innermost first. Those that are hidden are not
    /// among them.
    pub(crate) fn variables(&self, offset: u64) -> Vec<Variable> {
        let mut found = self.all_variables(offset);
        // Of variables with the same name, the one in the innermost block.
        found.reverse();
        let mut seen = std::collections::HashSet::new();
        found.retain(|variable: &Variable| seen.insert(variable.name.clone()));
        found
    }

    /// The parameters of the function that contains an instruction, in order.
    pub(crate) fn parameters(&self, offset: u64) -> Vec<Variable> {
        let mut found = self.all_variables(offset);
        found.retain(|variable| variable.is_parameter);
        found
    }

    /// The variables in scope at an instruction, in the order of their declarations.
    fn all_variables(&self, offset: u64) -> Vec<Variable> {
        let mut found = Vec::new();
        if let Some((unit, address)) = self.unit_at(offset) {
            let _ = self.locals(unit, address, &mut found);
        }
        found
    }

    /// The variable with this name in scope at an instruction, or a global one.
    pub(crate) fn variable(&self, offset: u64, name: &str) -> Option<Variable> {
        let local = self.variables(offset).into_iter().find(|variable| variable.name == name);
        local.or_else(|| self.static_variable(name))
    }

    /// A variable outside of all functions.
    pub(crate) fn static_variable(&self, name: &str) -> Option<Variable> {
        (0..self.parsed.0.len()).find_map(|unit| {
            let mut entries = self.parsed.0[unit].entries();
            while let Ok(Some(entry)) = entries.next_dfs() {
                if entry.tag() == gimli::DW_TAG_variable && self.name(unit, entry).as_deref() == Some(name) {
                    let variable = self.of_entry(unit, entry, None);
                    if variable.as_ref().is_some_and(|variable| self.is_static(variable)) {
                        return variable;
                    }
                }
            }
            None
        })
    }

    /// Whether the program has a variable or parameter with this name anywhere.
    pub(crate) fn has_variable(&self, name: &str) -> bool {
        let variables = [gimli::DW_TAG_variable, gimli::DW_TAG_formal_parameter];
        self.find(&variables, name, |_, _| Some(())).is_some()
    }

    /// The first result that `read` returns for an entry with one of these tags and this name.
    pub(super) fn find<R>(
        &self,
        tags: &[gimli::DwTag],
        name: &str,
        read: impl Fn(usize, &Entry) -> Option<R>,
    ) -> Option<R> {
        (0..self.parsed.0.len()).find_map(|unit| {
            let mut entries = self.parsed.0[unit].entries();
            while let Ok(Some(entry)) = entries.next_dfs() {
                if tags.contains(&entry.tag())
                    && self.name(unit, entry).as_deref() == Some(name)
                    && let Some(found) = read(unit, entry)
                {
                    return Some(found);
                }
            }
            None
        })
    }

    /// Whether the location of a variable is only an address.
    fn is_static(&self, variable: &Variable) -> bool {
        let Some(AttributeValue::Exprloc(expression)) = &variable.location else { return false };
        let mut operations = expression.clone().operations(self.parsed.0[variable.unit].encoding());
        matches!(operations.next(), Ok(Some(Operation::Address { .. } | Operation::AddressIndex { .. })))
    }

    fn unit_at(&self, offset: u64) -> Option<(usize, u64)> {
        let address = offset.checked_sub(self.code_start)?;
        let has = |unit: &Unit| {
            let Ok(mut ranges) = self.units.unit_ranges(unit) else { return false };
            while let Ok(Some(range)) = ranges.next() {
                if (range.begin..range.end).contains(&address) {
                    return true;
                }
            }
            false
        };
        Some((self.parsed.0.iter().position(has)?, address))
    }

    fn contains(&self, unit: usize, entry: &Entry, address: u64) -> bool {
        let Ok(mut ranges) = self.units.die_ranges(&self.parsed.0[unit], entry) else { return false };
        while let Ok(Some(range)) = ranges.next() {
            if (range.begin..range.end).contains(&address) {
                return true;
            }
        }
        false
    }

    fn locals(&self, unit: usize, address: u64, found: &mut Vec<Variable>) -> gimli::Result<()> {
        let mut entries = self.parsed.0[unit].entries();
        // The depths of the scopes that contain the address, whether they are functions, and the
        // function's frame base.
        let mut scopes: Vec<(isize, bool, Option<AttributeValue<Reader>>)> = Vec::new();
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            while scopes.last().is_some_and(|(scope, ..)| *scope >= depth) {
                scopes.pop();
            }
            match entry.tag() {
                gimli::DW_TAG_subprogram | gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine => {
                    let is_function = entry.tag() == gimli::DW_TAG_subprogram;
                    if self.contains(unit, entry, address) {
                        let own = entry.attr_value(gimli::DW_AT_frame_base);
                        let base = own.or_else(|| scopes.last().and_then(|(.., base)| base.clone()));
                        if is_function {
                            scopes.clear();
                        }
                        scopes.push((depth, is_function, base));
                    }
                }
                gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                    if let Some((scope, is_function, base)) = scopes.last()
                        && *scope + 1 == depth
                        && let Some(mut variable) = self.of_entry(unit, entry, base.clone())
                    {
                        let is_parameter = entry.tag() == gimli::DW_TAG_formal_parameter;
                        variable.is_parameter = *is_function && is_parameter;
                        found.push(variable);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn of_entry(&self, unit: usize, entry: &Entry, base: Option<AttributeValue<Reader>>) -> Option<Variable> {
        Some(Variable {
            name: self.name(unit, entry)?,
            ty: self.type_of(unit, entry),
            location: self.attribute(unit, entry, gimli::DW_AT_location).map(|(_, value)| value),
            constant: self.attribute(unit, entry, gimli::DW_AT_const_value).map(|(_, value)| value),
            frame_base: base,
            unit,
            is_parameter: false,
        })
    }

    /// An attribute of an entry, or of the entry that it refers to, with the unit of that entry.
    fn attribute(
        &self,
        unit: usize,
        entry: &Entry,
        name: gimli::DwAt,
    ) -> Option<(usize, AttributeValue<Reader>)> {
        let mut entry = entry.clone();
        let mut unit = unit;
        for _ in 0..MAX_LINKS {
            if let Some(value) = entry.attr_value(name) {
                return Some((unit, value));
            }
            let origin = entry
                .attr_value(gimli::DW_AT_abstract_origin)
                .or_else(|| entry.attr_value(gimli::DW_AT_specification))?;
            let to = self.reference(unit, &origin)?;
            entry = self.parsed.0[to.0].entry(to.1).ok()?;
            unit = to.0;
        }
        None
    }

    fn reference(&self, unit: usize, value: &AttributeValue<Reader>) -> Option<(usize, UnitOffset)> {
        match value {
            AttributeValue::UnitRef(offset) => Some((unit, *offset)),
            AttributeValue::DebugInfoRef(offset) => {
                let units = self.parsed.0.iter().enumerate();
                let offset =
                    |(number, unit): (usize, &Unit)| Some((number, offset.to_unit_offset(&unit.header)?));
                units.filter_map(offset).next()
            }
            _ => None,
        }
    }

    fn name(&self, unit: usize, entry: &Entry) -> Option<String> {
        let (unit, value) = self.attribute(unit, entry, gimli::DW_AT_name)?;
        let name = self.units.attr_string(&self.parsed.0[unit], value).ok()?;
        Some(name.to_string_lossy().ok()?.into_owned())
    }

    fn type_of(&self, unit: usize, entry: &Entry) -> Type {
        let of = self.attribute(unit, entry, gimli::DW_AT_type);
        match of.and_then(|(unit, value)| self.reference(unit, &value)) {
            Some((unit, entry)) => Type { unit, entry: Some(entry) },
            None => Type { unit, entry: None },
        }
    }

    /// The entry of a type, after removing qualifiers and aliases.
    fn resolve(&self, mut ty: Type) -> Option<(Type, Entry)> {
        for _ in 0..MAX_LINKS {
            let entry = self.parsed.0[ty.unit].entry(ty.entry?).ok()?;
            match entry.tag() {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type => ty = self.type_of(ty.unit, &entry),
                _ => return Some((ty, entry)),
            }
        }
        None
    }

    /// The size of the type that an entry defines.
    pub(super) fn size_of_entry(&self, unit: usize, entry: &Entry) -> u64 {
        self.size_of(Type { unit, entry: Some(entry.offset()) })
    }

    fn size_of(&self, ty: Type) -> u64 {
        let Some((ty, entry)) = self.resolve(ty) else { return 0 };
        match entry.tag() {
            gimli::DW_TAG_array_type => match self.shape(ty) {
                Shape::Array { of, count } => {
                    // An array of itself is malformed.
                    let inner = self.resolve(of).is_some_and(|(_, inner)| inner.offset() != entry.offset());
                    if inner { self.size_of_element(of).saturating_mul(count) } else { 0 }
                }
                _ => 0,
            },
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => self.size_of_pointer(ty.unit, &entry),
            _ => byte_size(&entry).unwrap_or(0),
        }
    }

    fn size_of_pointer(&self, unit: usize, entry: &Entry) -> u64 {
        byte_size(entry).unwrap_or_else(|| self.parsed.0[unit].encoding().address_size.into())
    }

    /// Not for arrays of arrays, whose nesting is bounded.
    fn size_of_element(&self, mut ty: Type) -> u64 {
        let mut count = 1_u64;
        for _ in 0..MAX_LINKS {
            let Some((inner, entry)) = self.resolve(ty) else { return 0 };
            if entry.tag() != gimli::DW_TAG_array_type {
                let size = match self.shape(inner) {
                    Shape::Pointer { size, .. } => size,
                    _ => byte_size(&entry).unwrap_or(0),
                };
                return size.saturating_mul(count);
            }
            let Shape::Array { of, count: inner } = self.shape(inner) else { return 0 };
            count = count.saturating_mul(inner);
            ty = of;
        }
        0
    }

    fn shape(&self, ty: Type) -> Shape {
        let Some((ty, entry)) = self.resolve(ty) else { return Shape::Other };
        let size = byte_size(&entry);
        match entry.tag() {
            gimli::DW_TAG_base_type => match entry.attr_value(gimli::DW_AT_encoding) {
                Some(AttributeValue::Encoding(encoding)) => Shape::Base { encoding, size: size.unwrap_or(0) },
                _ => Shape::Other,
            },
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => Shape::Pointer {
                to: self.type_of(ty.unit, &entry),
                size: self.size_of_pointer(ty.unit, &entry),
            },
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                Shape::Struct
            }
            gimli::DW_TAG_array_type => {
                let (mut count, mut is_known) = (1_u64, false);
                self.children(ty, |_, child| {
                    if child.tag() == gimli::DW_TAG_subrange_type {
                        let value = |name| child.attr_value(name).and_then(|value| value.udata_value());
                        let bound = || value(gimli::DW_AT_upper_bound)?.checked_add(1);
                        count = count.saturating_mul(value(gimli::DW_AT_count).or_else(bound).unwrap_or(0));
                        is_known = true;
                    }
                });
                Shape::Array { of: self.type_of(ty.unit, &entry), count: if is_known { count } else { 0 } }
            }
            gimli::DW_TAG_enumeration_type => {
                let mut names = Vec::new();
                self.children(ty, |unit, child| {
                    let value = child.attr_value(gimli::DW_AT_const_value);
                    let value = value.and_then(|value| {
                        value.sdata_value().map(i128::from).or(value.udata_value().map(i128::from))
                    });
                    names.extend(value.zip(self.name(unit, child)));
                });
                let of = Some(self.type_of(ty.unit, &entry)).filter(|of| of.entry.is_some());
                Shape::Enum { of, size: size.unwrap_or(4), names }
            }
            _ => Shape::Other,
        }
    }

    fn children(&self, ty: Type, mut visit: impl FnMut(usize, &Entry)) {
        let Some(offset) = ty.entry else { return };
        let Ok(mut entries) = self.parsed.0[ty.unit].entries_at_offset(offset) else { return };
        let Ok(Some(parent)) = entries.next_dfs() else { return };
        let depth = parent.depth();
        while let Ok(Some(entry)) = entries.next_dfs() {
            if entry.depth() <= depth {
                return;
            }
            if entry.depth() == depth + 1 {
                visit(ty.unit, entry);
            }
        }
    }

    /// The members of a structure: name, type, offset.
    fn members(&self, ty: Type) -> Vec<(Option<String>, Type, u64)> {
        let mut members = Vec::new();
        let Some((ty, _)) = self.resolve(ty) else { return members };
        self.children(ty, |unit, child| {
            if matches!(child.tag(), gimli::DW_TAG_member | gimli::DW_TAG_inheritance)
                && child.attr_value(gimli::DW_AT_declaration).is_none()
                && child.attr_value(gimli::DW_AT_external).is_none()
            {
                let offset = child.attr_value(gimli::DW_AT_data_member_location);
                let offset = offset.and_then(|offset| offset.udata_value()).unwrap_or(0);
                members.push((self.name(unit, child), self.type_of(unit, child), offset));
            }
        });
        members
    }
}

fn byte_size(entry: &Entry) -> Option<u64> {
    entry.attr_value(gimli::DW_AT_byte_size).and_then(|size| size.udata_value())
}

fn number_of(value: &Val) -> Option<u64> {
    Some(match value {
        Val::I32(value) => value.cast_unsigned().into(),
        Val::I64(value) => value.cast_unsigned(),
        Val::F32(bits) => (*bits).into(),
        Val::F64(bits) => *bits,
        _ => return None,
    })
}

impl Variable {
    /// The variable's object in a frame.
    pub(crate) fn object(&self, scope: &mut Scope<'_, '_>) -> Result<Object, Error> {
        let dwarf = scope.code().dwarf().ok_or_else(optimized_out)?;
        let at = match (&self.location, &self.constant) {
            (None, Some(constant)) => {
                let value = constant.sdata_value().map(i64::cast_unsigned).or(constant.udata_value());
                At::Bits(value.ok_or_else(optimized_out)?)
            }
            (Some(location), _) => {
                let expression = dwarf.expression(self.unit, location, scope)?;
                dwarf.locate(self.unit, expression, self.frame_base.as_ref(), scope)?
            }
            (None, None) => return Err(optimized_out()),
        };
        Ok(Object { ty: self.ty, at })
    }
}

fn optimized_out() -> Error {
    Error::Value("optimized out".to_owned())
}

impl Dwarf {
    /// The location expression that is valid where the frame is.
    fn expression(
        &self,
        unit: usize,
        location: &AttributeValue<Reader>,
        scope: &Scope<'_, '_>,
    ) -> Result<gimli::Expression<Reader>, Error> {
        if let AttributeValue::Exprloc(expression) = location {
            return Ok(expression.clone());
        }
        let address = scope.code().module_offset(scope.location()).saturating_sub(self.code_start);
        let list = self.units.attr_locations(&self.parsed.0[unit], location.clone()).map_err(unreadable)?;
        let mut list = list.ok_or_else(optimized_out)?;
        while let Some(entry) = list.next().map_err(unreadable)? {
            if (entry.range.begin..entry.range.end).contains(&address) {
                return Ok(entry.data);
            }
        }
        Err(optimized_out())
    }

    fn locate(
        &self,
        unit: usize,
        expression: gimli::Expression<Reader>,
        frame_base: Option<&AttributeValue<Reader>>,
        scope: &mut Scope<'_, '_>,
    ) -> Result<At, Error> {
        let encoding = self.parsed.0[unit].encoding();
        // A value in a single local or global can be changed there.
        let mut operations = expression.clone().operations(encoding);
        let first = operations.next().map_err(unreadable)?;
        let rest: Vec<_> = std::iter::from_fn(|| operations.next().ok().flatten()).take(2).collect();
        if matches!(rest[..], [] | [Operation::StackValue]) {
            match first {
                Some(Operation::WasmLocal { index }) => return Ok(At::Local(index)),
                Some(Operation::WasmGlobal { index }) => return Ok(At::Global(index)),
                _ => {}
            }
        }
        let pieces = self.evaluate(unit, expression, frame_base, scope, 0)?;
        match &pieces[..] {
            [piece] => match piece.location {
                gimli::Location::Address { address } => Ok(At::Memory(address)),
                gimli::Location::Value { value } => Ok(At::Bits(value.to_u64(u64::MAX).map_err(unreadable)?)),
                _ => Err(optimized_out()),
            },
            _ => Err(Error::Value("a value in several pieces".to_owned())),
        }
    }

    fn evaluate(
        &self,
        unit: usize,
        expression: gimli::Expression<Reader>,
        frame_base: Option<&AttributeValue<Reader>>,
        scope: &mut Scope<'_, '_>,
        nested: usize,
    ) -> Result<Vec<gimli::Piece<Reader>>, Error> {
        let encoding = self.parsed.0[unit].encoding();
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        let mut result = evaluation.evaluate().map_err(unreadable)?;
        loop {
            let generic = |value: Val| {
                Ok::<_, Error>(gimli::Value::Generic(number_of(&value).ok_or_else(optimized_out)?))
            };
            result = match result {
                EvaluationResult::Complete => return Ok(evaluation.result()),
                EvaluationResult::RequiresWasmLocal { index } => {
                    evaluation.resume_with_wasm_value(generic(scope.local(index)?)?)
                }
                EvaluationResult::RequiresWasmGlobal { index } => {
                    evaluation.resume_with_wasm_value(generic(scope.global(index)?)?)
                }
                EvaluationResult::RequiresWasmStack { index } => {
                    // Counted from the bottom.
                    let count = scope.operands()?;
                    let depth = (count as u64).checked_sub(u64::from(index) + 1).ok_or_else(optimized_out)?;
                    evaluation.resume_with_wasm_value(generic(scope.operand(depth as u32)?)?)
                }
                EvaluationResult::RequiresFrameBase => {
                    let base = frame_base.filter(|_| nested == 0).ok_or_else(optimized_out)?;
                    let base = self.expression(unit, base, scope)?;
                    let pieces = self.evaluate(unit, base, None, scope, nested + 1)?;
                    let base = match pieces.first().map(|piece| piece.location.clone()) {
                        Some(gimli::Location::Value { value }) => {
                            value.to_u64(u64::MAX).map_err(unreadable)?
                        }
                        Some(gimli::Location::Address { address }) => address,
                        _ => return Err(optimized_out()),
                    };
                    evaluation.resume_with_frame_base(base)
                }
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let mut bytes = [0; 8];
                    let size = usize::from(size).min(8);
                    scope.read_memory(0, address, &mut bytes[..size])?;
                    evaluation.resume_with_memory(gimli::Value::Generic(u64::from_le_bytes(bytes)))
                }
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address)
                }
                EvaluationResult::RequiresIndexedAddress { index, .. } => {
                    let address = self.units.address(&self.parsed.0[unit], index).map_err(unreadable)?;
                    evaluation.resume_with_indexed_address(address)
                }
                _ => return Err(optimized_out()),
            }
            .map_err(unreadable)?;
        }
    }
}

impl Object {
    /// The address of the object in memory.
    pub(crate) fn address(&self) -> Result<u64, Error> {
        match self.at {
            At::Memory(address) => Ok(address),
            _ => Err(Error::Value("it is not in memory".to_owned())),
        }
    }

    fn dwarf<'a>(scope: &Scope<'a, '_>) -> Result<&'a Dwarf, Error> {
        scope.code().dwarf().ok_or_else(optimized_out)
    }

    /// The bits of a scalar of this size.
    fn bits(&self, size: u64, scope: &mut Scope<'_, '_>) -> Result<u64, Error> {
        let size = size.min(8) as usize;
        let bits = match self.at {
            At::Memory(address) => {
                let mut bytes = [0; 8];
                scope.read_memory(0, address, &mut bytes[..size])?;
                u64::from_le_bytes(bytes)
            }
            At::Local(index) => number_of(&scope.local(index)?).ok_or_else(optimized_out)?,
            At::Global(index) => number_of(&scope.global(index)?).ok_or_else(optimized_out)?,
            At::Bits(bits) => bits,
        };
        Ok(if size == 8 { bits } else { bits & ((1 << (8 * size)) - 1) })
    }

    /// The size of the object in bytes.
    pub(crate) fn size(&self, scope: &Scope<'_, '_>) -> Result<u64, Error> {
        match Self::dwarf(scope)?.size_of(self.ty) {
            0 => Err(Error::Value("the size is not known".to_owned())),
            size => Ok(size),
        }
    }

    /// The value of the object.
    pub(crate) fn value(&self, scope: &mut Scope<'_, '_>) -> Result<Value, Error> {
        self.shown(scope, 0)
    }

    fn shown(&self, scope: &mut Scope<'_, '_>, nested: usize) -> Result<Value, Error> {
        let dwarf = Self::dwarf(scope)?;
        Ok(match dwarf.shape(self.ty) {
            Shape::Base { encoding, size } => scalar(encoding, size, self.bits(size, scope)?),
            Shape::Pointer { to, size } => {
                let address = self.bits(size, scope)?;
                match dwarf.shape(to) {
                    Shape::Base { encoding, size: 1 }
                        if is_character(encoding) && address != 0 && nested > 0 =>
                    {
                        Value::Text(format!("{address:#x} {}", string(address, scope)))
                    }
                    _ if nested > 0 => Value::Text(format!("{address:#x}")),
                    _ => Value::Unsigned(address),
                }
            }
            Shape::Enum { of, size, names } => {
                let bits = self.bits(size, scope)?;
                let value = match of.map(|of| dwarf.shape(of)) {
                    Some(Shape::Base { encoding, size }) => scalar(encoding, size, bits),
                    _ => Value::Unsigned(bits),
                };
                let named = names.into_iter().find(|(of, _)| Some(*of) == value.integer());
                named.map_or(value, |(value, name)| Value::Named { value, name })
            }
            Shape::Struct if nested >= MAX_NESTED => Value::Text("{...}".to_owned()),
            Shape::Struct => {
                let mut text = String::from("{");
                for (number, (name, ty, offset)) in dwarf.members(self.ty).into_iter().enumerate() {
                    let member = self.part(ty, offset)?;
                    let value = match member.shown(scope, nested + 1) {
                        Ok(value) => value.to_string(),
                        Err(error) => format!("<{error}>"),
                    };
                    text += if number == 0 { "" } else { ", " };
                    text += &name.map_or_else(String::new, |name| format!("{name} = "));
                    text += &value;
                }
                Value::Text(text + "}")
            }
            Shape::Array { of, .. } if nested >= MAX_NESTED => {
                let _ = of;
                Value::Text("{...}".to_owned())
            }
            Shape::Array { of, count } => {
                let size = dwarf.size_of(of);
                if let (Shape::Base { encoding, size: 1 }, At::Memory(address)) = (dwarf.shape(of), &self.at)
                    && is_character(encoding)
                {
                    return Ok(Value::Text(characters(*address, count, scope)));
                }
                let mut text = String::from("{");
                for index in 0..count.min(MAX_SHOWN) {
                    let element = self.part(of, size.saturating_mul(index))?;
                    text += if index == 0 { "" } else { ", " };
                    text += &element.shown(scope, nested + 1)?.to_string();
                }
                if count > MAX_SHOWN {
                    text += ", ...";
                }
                Value::Text(text + "}")
            }
            Shape::Other => Value::Text("<unknown type>".to_owned()),
        })
    }

    /// The part of the object at an offset.
    fn part(&self, ty: Type, offset: u64) -> Result<Self, Error> {
        let at = match self.at {
            At::Memory(address) => At::Memory(address.wrapping_add(offset)),
            _ if offset == 0 => self.at.clone(),
            At::Bits(bits) if offset < 8 => At::Bits(bits >> (8 * offset)),
            _ => return Err(optimized_out()),
        };
        Ok(Self { ty, at })
    }

    /// A member of a structure, or of the structure to which a pointer points.
    pub(crate) fn member(&self, scope: &mut Scope<'_, '_>, name: &str) -> Result<Self, Error> {
        let dwarf = Self::dwarf(scope)?;
        if let Shape::Pointer { .. } = dwarf.shape(self.ty) {
            return self.element(scope, 0)?.member(scope, name);
        }
        let members = dwarf.members(self.ty);
        let found = members.iter().find(|(of, ..)| of.as_deref() == Some(name));
        match found {
            Some((_, ty, offset)) => self.part(*ty, *offset),
            None => {
                let unnamed = members.iter().filter(|(of, ..)| of.is_none());
                for (_, ty, offset) in unnamed.take(MAX_LINKS) {
                    let part = self.part(*ty, *offset)?;
                    let is_there = dwarf.members(*ty).iter().any(|(of, ..)| of.as_deref() == Some(name));
                    if is_there {
                        return part.member(scope, name);
                    }
                }
                Err(Error::Unknown { what: "member", name: name.to_owned() })
            }
        }
    }

    /// An element of an array, or of the array to which a pointer points.
    pub(crate) fn element(&self, scope: &mut Scope<'_, '_>, index: i128) -> Result<Self, Error> {
        let dwarf = Self::dwarf(scope)?;
        let (of, start) = match dwarf.shape(self.ty) {
            Shape::Pointer { to, size } => (to, self.bits(size, scope)?),
            Shape::Array { of, .. } => (of, self.address()?),
            _ => return Err(Error::Value("neither a pointer nor an array".to_owned())),
        };
        let offset = index.checked_mul(dwarf.size_of(of).into());
        let address = offset.and_then(|offset| offset.checked_add(start.into()));
        let address = address.and_then(|address| u64::try_from(address).ok());
        let address = address.ok_or_else(|| Error::Value("the address is out of range".to_owned()))?;
        Ok(Self { ty: of, at: At::Memory(address) })
    }

    /// Assigns a value to a scalar.
    pub(crate) fn assign(&self, scope: &mut Scope<'_, '_>, value: &Value) -> Result<(), Error> {
        let wrong = || Error::Value(format!("{value} is no value for this type"));
        let dwarf = Self::dwarf(scope)?;
        let (size, is_float) = match dwarf.shape(self.ty) {
            Shape::Base { encoding, size } => (size, encoding == gimli::DW_ATE_float),
            Shape::Pointer { size, .. } => (size, false),
            Shape::Enum { size, .. } => (size, false),
            _ => return Err(Error::Value("only scalars can be changed".to_owned())),
        };
        let bits = match (is_float, size) {
            (true, 4) => u64::from((value.float().ok_or_else(wrong)? as f32).to_bits()),
            (true, _) => value.float().ok_or_else(wrong)?.to_bits(),
            (false, 1..=8) => {
                let integer = value.integer().filter(|value| crate::value::fits(*value, 8 * size as u32));
                integer.ok_or_else(wrong)? as u64
            }
            _ => return Err(wrong()),
        };
        let like = |old: &Val| match old {
            Val::I32(_) => Some(Val::I32(bits as i32)),
            Val::I64(_) => Some(Val::I64(bits as i64)),
            Val::F32(_) => Some(Val::F32(bits as u32)),
            Val::F64(_) => Some(Val::F64(bits)),
            _ => None,
        };
        match self.at {
            At::Memory(address) => scope.write_memory(0, address, &bits.to_le_bytes()[..size as usize]),
            At::Local(index) => {
                let new = like(&scope.local(index)?).ok_or_else(wrong)?;
                scope.set_local(index, &new)
            }
            At::Global(index) => {
                let new = like(&scope.global(index)?).ok_or_else(wrong)?;
                scope.set_global(index, &new)
            }
            At::Bits(_) => Err(Error::Value("the value is computed, so it cannot be changed".to_owned())),
        }
    }
}

fn is_character(encoding: gimli::DwAte) -> bool {
    matches!(encoding, gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_UTF)
}

fn scalar(encoding: gimli::DwAte, size: u64, bits: u64) -> Value {
    let size = size.clamp(1, 8);
    let signed = (bits << (64 - 8 * size)).cast_signed() >> (64 - 8 * size);
    match encoding {
        gimli::DW_ATE_float if size == 4 => Value::F32(bits as u32),
        gimli::DW_ATE_float => Value::F64(bits),
        gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => match size {
            8 => Value::I64(signed),
            _ => Load::I32.read(&(signed as i32).to_le_bytes()),
        },
        _ => Value::Unsigned(bits),
    }
}

/// The characters up to a zero, in quotes.
fn string(address: u64, scope: &Scope<'_, '_>) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while bytes.len() < MAX_SHOWN as usize
        && scope.read_memory(0, address.wrapping_add(bytes.len() as u64), &mut byte).is_ok()
        && byte[0] != 0
    {
        bytes.push(byte[0]);
    }
    format!("{:?}", String::from_utf8_lossy(&bytes))
}

fn characters(address: u64, count: u64, scope: &Scope<'_, '_>) -> String {
    let mut bytes = vec![0; count.min(MAX_SHOWN) as usize];
    match scope.read_memory(0, address, &mut bytes) {
        Ok(()) => {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            format!("{:?}", String::from_utf8_lossy(&bytes[..end]))
        }
        Err(error) => format!("<{error}>"),
    }
}
