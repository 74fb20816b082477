//! Variables of the source: their scopes and locations.

use gimli::{AttributeValue, EvaluationResult, Operation, Reader as _};

use super::entries::{Entry, Key, Unit};
use super::index::{Around, Static};
use super::objects::{At, Object, optimized_out};
use super::types::Type;
use super::{Dwarf, Reader};
use crate::Error;
use crate::frames::Scope;
use wasm_jit::Val;

/// Maximum number of operations of a location.
const MAX_OPERATIONS: u32 = 10_000;
/// Maximum size of a value in several pieces, in bytes.
const MAX_PIECES: usize = 1 << 16;

/// A variable that is in scope somewhere.
#[derive(Debug)]
pub(crate) struct Variable {
    pub name: String,
    ty: Type,
    location: Option<AttributeValue<Reader>>,
    constant: Option<AttributeValue<Reader>>,
    frame_base: Option<AttributeValue<Reader>>,
    unit: usize,
    is_parameter: bool,
}

/// A scope that contains an address.
struct OpenScope {
    depth: isize,
    /// Whether it is that of a function.
    is_function: bool,
    /// The number of functions around it.
    level: usize,
    frame_base: Option<AttributeValue<Reader>>,
}

/// The scopes that contain an address.
#[derive(Default)]
struct Scopes {
    /// The functions, the innermost last: those that are inlined, too.
    functions: Vec<Function>,
    /// The variables, each with the number of functions around its own, in the order of their
    /// declarations.
    found: Vec<(usize, Found)>,
}

#[derive(Clone, Copy)]
struct Function {
    key: Key,
    /// The entry that describes all copies of the function, if it was inlined somewhere.
    origin: Option<Key>,
}

struct Found {
    key: Key,
    variable: Variable,
}

fn unreadable(error: gimli::Error) -> Error {
    Error::Value(format!("DWARF: {error}"))
}

impl Dwarf {
    /// The variables in scope at an instruction, in the order of their declarations, those of outer
    /// blocks first. Those that are hidden are not among them. Here and below, `inner` is the
    /// number of calls that are inlined further in than the function of the frame: only variables
    /// of the latter are in scope.
    pub(crate) fn variables(&self, offset: u64, inner: usize) -> Vec<Variable> {
        self.visible(self.scopes(offset, inner).0)
    }

    fn visible(&self, mut found: Vec<Variable>) -> Vec<Variable> {
        // Of variables with the same name, the one in the innermost block.
        found.reverse();
        let mut seen = std::collections::HashSet::new();
        found.retain(|variable: &Variable| seen.insert(variable.name.clone()));
        found.reverse();
        found
    }

    /// The parameters of the function that contains an instruction, in order.
    pub(crate) fn parameters(&self, offset: u64, inner: usize) -> Vec<Variable> {
        let (mut found, _) = self.scopes(offset, inner);
        found.retain(|variable| variable.is_parameter);
        found
    }

    /// The variables in scope at an instruction, in the order of their declarations, and what is
    /// around it.
    fn scopes(&self, offset: u64, inner: usize) -> (Vec<Variable>, Around) {
        let Some((unit, address)) = self.unit_at(offset) else { return Default::default() };
        let mut scopes = Scopes::default();
        // What precedes a malformed entry is used.
        let _ = self.locals(unit, address, &mut scopes);
        let Scopes { functions, found } = scopes;
        let Some(level) = functions.len().checked_sub(inner + 1) else {
            return (Vec::new(), Around { unit: Some(unit), function: None });
        };
        let Function { key, origin } = functions[level];
        let found = found.into_iter().filter(|(of, _)| *of == level).map(|(_, found)| found);
        let found = self.with_removed(origin, found.collect()).into_iter().map(|found| found.variable);
        (found.collect(), Around { unit: Some(unit), function: Some(key) })
    }

    /// The variables of a function's outermost block that an origin has, and those that were found
    /// in a copy of the function: compilers leave out of the copies what has no location there.
    fn with_removed(&self, origin: Option<Key>, mut found: Vec<Found>) -> Vec<Found> {
        let mut all = Vec::new();
        // What precedes a malformed entry is used.
        let _ = origin.map(|(unit, offset)| -> gimli::Result<()> {
            let mut tree = self.parsed.0[unit].entries_tree(Some(offset))?;
            let mut children = tree.root()?.children();
            while let Some(child) = children.next()? {
                let entry = child.entry();
                let is_parameter = entry.tag() == gimli::DW_TAG_formal_parameter;
                if !is_parameter && entry.tag() != gimli::DW_TAG_variable {
                    continue;
                }
                let key = self.key(unit, entry);
                match found.iter().position(|found| found.key == key) {
                    Some(at) => all.push(found.remove(at)),
                    None => all.extend(
                        self.of_entry(unit, entry, None)
                            .map(|variable| Found { key, variable: Variable { is_parameter, ..variable } }),
                    ),
                }
            }
            Ok(())
        });
        all.extend(found);
        all
    }

    /// The unit and the function of an instruction.
    pub(crate) fn around(&self, offset: u64, inner: usize) -> Around {
        self.scopes(offset, inner).1
    }

    /// The variable that a name denotes at an instruction, or a static one that is known by this
    /// name everywhere.
    pub(crate) fn variable(&self, offset: u64, inner: usize, name: &str) -> Option<Variable> {
        let (found, around) = self.scopes(offset, inner);
        let local = self.visible(found).into_iter().find(|variable| variable.name == name);
        local.or_else(|| self.of_static(self.index().static_variable(name, &around)?))
    }

    /// The static variable that a name denotes outside of all functions.
    pub(crate) fn static_variable(&self, name: &str) -> Option<Variable> {
        self.of_static(self.index().static_variable(name, &Around::default())?)
    }

    fn of_static(&self, of: &Static) -> Option<Variable> {
        self.of_entry(of.unit, &self.parsed.0[of.unit].entry(of.entry).ok()?, None)
    }

    /// Whether the program has a variable or parameter with this name anywhere.
    pub(crate) fn has_variable(&self, name: &str) -> bool {
        let variables = [gimli::DW_TAG_variable, gimli::DW_TAG_formal_parameter];
        self.find(&variables, name, |_, _| Some(())).is_some()
    }

    /// The first result that `read` returns for an entry with one of these tags and this name.
    fn find<R>(
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
    pub(crate) fn is_static(&self, variable: &Variable) -> bool {
        let Some(AttributeValue::Exprloc(expression)) = &variable.location else { return false };
        let mut operations = expression.clone().operations(self.parsed.0[variable.unit].encoding());
        matches!(operations.next(), Ok(Some(Operation::Address { .. } | Operation::AddressIndex { .. })))
    }

    pub(super) fn unit_at(&self, offset: u64) -> Option<(usize, u64)> {
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

    pub(super) fn contains(&self, unit: usize, entry: &Entry, address: u64) -> bool {
        let Ok(mut ranges) = self.units.die_ranges(&self.parsed.0[unit], entry) else { return false };
        while let Ok(Some(range)) = ranges.next() {
            if (range.begin..range.end).contains(&address) {
                return true;
            }
        }
        false
    }

    fn locals(&self, unit: usize, address: u64, scopes: &mut Scopes) -> gimli::Result<()> {
        let mut entries = self.parsed.0[unit].entries();
        let mut open: Vec<OpenScope> = Vec::new();
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            while open.pop_if(|scope| scope.depth >= depth).is_some() {}
            match entry.tag() {
                gimli::DW_TAG_subprogram | gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine => {
                    if !self.contains(unit, entry, address) {
                        continue;
                    }
                    let own = entry.attr_value(gimli::DW_AT_frame_base);
                    let frame_base = own.or_else(|| open.last().and_then(|scope| scope.frame_base.clone()));
                    if entry.tag() == gimli::DW_TAG_subprogram {
                        open.clear();
                    }
                    let is_function = entry.tag() != gimli::DW_TAG_lexical_block;
                    let mut level = open.last().map_or(0, |scope| scope.level);
                    if is_function {
                        level = open.last().map_or(0, |scope| scope.level + 1);
                        scopes.functions.truncate(level);
                        let origin = entry.attr_value(gimli::DW_AT_abstract_origin);
                        let origin = origin.and_then(|origin| self.reference(unit, &origin));
                        scopes.functions.push(Function { key: self.key(unit, entry), origin });
                    }
                    open.push(OpenScope { depth, is_function, level, frame_base });
                }
                gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                    if let Some(scope) = open.last()
                        && scope.depth + 1 == depth
                        && let Some(mut variable) = self.of_entry(unit, entry, scope.frame_base.clone())
                    {
                        let is_parameter = entry.tag() == gimli::DW_TAG_formal_parameter;
                        variable.is_parameter = scope.is_function && is_parameter;
                        scopes.found.push((scope.level, Found { key: self.key(unit, entry), variable }));
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
                At::bits(value.ok_or_else(optimized_out)?)
            }
            (Some(location), _) => {
                let expression = dwarf.expression(self.unit, location, scope)?;
                dwarf.locate(self.unit, expression, self.frame_base.as_ref(), scope)?
            }
            (None, None) => return Err(optimized_out()),
        };
        if matches!(at, At::Memory(address) if address >= dwarf.removed(self.unit)) {
            return Err(Error::Value("removed by the linker".to_owned()));
        }
        Object::of(self.ty, at, scope)
    }
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
        if matches!(rest[..], [Operation::StackValue]) {
            match first {
                Some(Operation::WasmLocal { index }) => return Ok(At::Local(index, 0)),
                Some(Operation::WasmGlobal { index }) => return Ok(At::Global(index, 0)),
                _ => {}
            }
        }
        let pieces = self.evaluate(unit, expression, frame_base, scope, 0)?;
        if let [piece] = &pieces[..]
            && piece.size_in_bits.is_none()
        {
            return match piece.location {
                gimli::Location::Address { address } => Ok(At::Memory(address)),
                gimli::Location::Value { value } => Ok(At::bits(value.to_u64(u64::MAX).map_err(unreadable)?)),
                _ => Err(optimized_out()),
            };
        }
        let mut bytes = Vec::new();
        for piece in pieces {
            let size = piece.size_in_bits.filter(|bits| bits % 8 == 0 && piece.bit_offset.is_none());
            let size = size.and_then(|bits| usize::try_from(bits / 8).ok());
            let size = size.filter(|size| *size <= MAX_PIECES - bytes.len());
            let size = size.ok_or_else(|| Error::Value("a value in pieces of bits".to_owned()))?;
            let known = match piece.location {
                gimli::Location::Address { address } => {
                    let mut read = vec![0; size];
                    scope.read_memory(0, address, &mut read)?;
                    read
                }
                gimli::Location::Value { value } => {
                    value.to_u64(u64::MAX).map_err(unreadable)?.to_le_bytes().to_vec()
                }
                gimli::Location::Bytes { value } => value.to_slice().map_err(unreadable)?.into_owned(),
                _ => Vec::new(),
            };
            bytes.extend((0..size).map(|at| known.get(at).copied()));
        }
        Ok(At::Bytes(bytes))
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
