//! Functions in the debugging information: their parameters and results, types, and scopes.

use std::ops::Range;
use std::path::Path;

use gimli::{AttributeValue, UnitOffset};

use super::location::{self, Located};
use super::object::{Object, Section};
use super::{Fetch, Parameter, ScalarType, Site, Unavailable, results};

pub(super) type Unit = gimli::Unit<Section>;
type Die = gimli::DebuggingInformationEntry<Section>;

/// Maximum number of references to other entries that are followed for one entry.
const MAX_LINKS: usize = 64;

/// An entry: the index of its unit, and its offset there.
type At = (usize, UnitOffset);

/// The functions of an object.
pub(super) struct Functions {
    object: Object,
    units: Vec<Unit>,
    /// The code of each unit.
    of_code: Vec<Vec<Range<u64>>>,
    /// The contents of each unit, read when the first of its functions is looked up.
    of_units: Vec<Option<Contents>>,
}

/// The contents of a unit.
#[derive(Clone, Debug, Default)]
struct Contents {
    /// The code of the unit's functions.
    code: Vec<Code>,
    /// Whether there are types: without types, there are no parameters either.
    has_types: bool,
}

/// A range of a function's code.
#[derive(Clone, Debug)]
struct Code {
    range: Range<u64>,
    function: UnitOffset,
    /// Whether the function is entered at its start.
    is_first: bool,
}

/// Identifies a function of the source, to recognize its inlined copies: its linkage name or, if
/// there is none, its name.
type Key = Option<String>;

impl Functions {
    pub(super) fn read(path: &Path) -> Result<Self, Unavailable> {
        let object = Object::read(path)?;
        let mut units = Vec::new();
        let mut headers = object.dwarf.units();
        let failed = |error: gimli::Error| Unavailable::Unreadable(error.to_string());
        while let Some(header) = headers.next().map_err(failed)? {
            units.push(object.dwarf.unit(header).map_err(failed)?);
        }
        let code = |unit: &Unit| {
            let root = unit.entry(unit.header.root_offset()).ok()?;
            ranges(&object, unit, &root)
        };
        let of_code = units.iter().map(|unit| code(unit).unwrap_or_default()).collect();
        let of_units = units.iter().map(|_| None).collect();
        Ok(Self { object, units, of_code, of_units })
    }

    pub(super) fn parameters(&mut self, function: u64) -> Result<Vec<Parameter>, Unavailable> {
        let at =
            self.function(function.wrapping_add(self.object.lowest)).ok_or(Unavailable::UnknownFunction)?;
        if !self.contents(at.0).has_types {
            return Err(Unavailable::NoParameters);
        }
        let of_source = self.of_source(at).ok_or(Unavailable::UnknownFunction)?;
        let has_prototype = self.has_prototype(of_source);
        let parameter = |at: &At| {
            let die = self.die(*at)?;
            // Without a prototype, a `float` is passed as a `double`, and gcc describes neither.
            let ty = self.scalar(*at, &die).filter(|ty| has_prototype || *ty != ScalarType::Float);
            Some(Parameter { name: self.name(*at, &die, gimli::DW_AT_name), ty })
        };
        let all = self.formal_parameters(of_source);
        all.iter().map(parameter).collect::<Option<_>>().ok_or(Unavailable::UnknownFunction)
    }

    pub(super) fn result(&mut self, function: u64) -> Result<Option<ScalarType>, Unavailable> {
        let at =
            self.function(function.wrapping_add(self.object.lowest)).ok_or(Unavailable::UnknownFunction)?;
        if !self.contents(at.0).has_types {
            return Err(Unavailable::NoParameters);
        }
        let die = self.die(at).ok_or(Unavailable::UnknownFunction)?;
        Ok(self.scalar(at, &die))
    }

    pub(super) fn fetch_result(&mut self, exit: Site) -> Result<Fetch, Unavailable> {
        let [function, site] =
            [exit.function, exit.call].map(|address| address.wrapping_add(self.object.lowest));
        let at = self.function(function).ok_or(Unavailable::UnknownFunction)?;
        let of_source = self.of_source(at).ok_or(Unavailable::UnknownFunction)?;
        let die = self.die(at).ok_or(Unavailable::UnknownFunction)?;
        let ty = self.scalar(at, &die).ok_or(Unavailable::NoNumber)?;
        // A tail call by a jump: the function has nothing to do after it.
        let returns = location::return_address(&self.object, site).ok_or(Unavailable::NotInCode)?;
        let key = self.key(of_source);
        let (scope, code) = self.scope(returns - 1, &key).ok_or(Unavailable::UnknownPlace)?;
        if scope.1 != code.function {
            return Err(Unavailable::Inlined);
        }
        let body = self.die(scope).ok_or(Unavailable::UnknownPlace)?;
        // A copy whose result no caller uses.
        let convention = body.attr_value(gimli::DW_AT_calling_convention);
        if matches!(convention, Some(AttributeValue::CallingConvention(gimli::DW_CC_nocall))) {
            return Err(Unavailable::NotKept);
        }
        Ok(Fetch { source: results::source(&self.object, returns, ty)?, ty })
    }

    pub(super) fn fetch(&mut self, entry: Site, parameter: usize) -> Result<Fetch, Unavailable> {
        let [function, site] =
            [entry.function, entry.call].map(|address| address.wrapping_add(self.object.lowest));
        let at = self.function(function).ok_or(Unavailable::UnknownFunction)?;
        let of_source = self.of_source(at).ok_or(Unavailable::UnknownFunction)?;
        let in_source =
            *self.formal_parameters(of_source).get(parameter).ok_or(Unavailable::UnknownFunction)?;
        let die = self.die(in_source).ok_or(Unavailable::UnknownFunction)?;
        let ty = self.scalar(in_source, &die).ok_or(Unavailable::NoNumber)?;
        let returns = location::return_address(&self.object, site).ok_or(Unavailable::UnknownPlace)?;
        let key = self.key(of_source);
        let (scope, code) = self.scope(returns - 1, &key).ok_or(Unavailable::UnknownPlace)?;
        let body = self.die((scope.0, code.function)).ok_or(Unavailable::UnknownPlace)?;
        // The entry of a parameter here is a copy of the one in the source, or is that entry
        // itself. The order may differ.
        let here = self.of_source(scope).ok_or(Unavailable::UnknownFunction)?;
        let in_source = *self.formal_parameters(here).get(parameter).ok_or(Unavailable::UnknownFunction)?;
        let concrete = self.formal_parameters(scope);
        let is_it = |at: &&At| self.origin(**at).unwrap_or(**at) == in_source;
        let found = concrete.iter().find(is_it).ok_or(Unavailable::NotKept)?;
        let die = self.die(*found).ok_or(Unavailable::NotKept)?;
        let mut passed = Vec::new();
        let mut own = None;
        for at in self.formal_parameters((scope.0, code.function)) {
            let Some(location) = self.die(at).and_then(|die| die.attr_value(gimli::DW_AT_location)) else {
                continue;
            };
            if at == *found {
                own = Some(passed.len());
            }
            passed.push(location);
        }
        let entry = self.ranges(scope.0, &body).first().map(|range| range.start);
        let located = Located {
            object: &self.object,
            unit: &self.units[scope.0],
            frame_base: body.attr_value(gimli::DW_AT_frame_base),
            entry: entry.ok_or(Unavailable::UnknownPlace)?,
            passed,
            own,
            code: code.is_first.then_some(code.range),
            site,
            returns,
        };
        let source = match (die.attr_value(gimli::DW_AT_location), die.attr_value(gimli::DW_AT_const_value)) {
            (Some(location), _) => located.source(&location, ty)?,
            (None, Some(value)) => location::constant(&value).ok_or(Unavailable::Unsupported)?,
            (None, None) => return Err(Unavailable::NotKept),
        };
        Ok(Fetch { source, ty })
    }

    fn die(&self, (unit, offset): At) -> Option<Die> {
        self.units[unit].entry(offset).ok()
    }

    /// The function that starts at an address.
    fn function(&mut self, address: u64) -> Option<At> {
        let unit = self.unit_at(address)?;
        let is_it = |code: &&Code| code.is_first && code.range.start == address;
        Some((unit, self.contents(unit).code.iter().find(is_it)?.function))
    }

    fn contents(&mut self, unit: usize) -> &Contents {
        if self.of_units[unit].is_none() {
            let mut contents = Contents::default();
            let mut entries = self.units[unit].entries();
            while let Ok(Some(die)) = entries.next_dfs() {
                contents.has_types |= die.has_attr(gimli::DW_AT_type);
                if die.tag() == gimli::DW_TAG_subprogram {
                    // If there are several ranges, the first one contains the entry.
                    let ranges = self.ranges(unit, die).into_iter().enumerate();
                    contents.code.extend(ranges.map(|(number, range)| Code {
                        range,
                        function: die.offset(),
                        is_first: number == 0,
                    }));
                }
            }
            self.of_units[unit] = Some(contents);
        }
        self.of_units[unit].as_ref().expect("it has just been read")
    }

    /// The unit with the code at an address.
    fn unit_at(&self, address: u64) -> Option<usize> {
        self.of_code.iter().position(|ranges| ranges.iter().any(|range| range.contains(&address)))
    }

    fn ranges(&self, unit: usize, die: &Die) -> Vec<Range<u64>> {
        ranges(&self.object, &self.units[unit], die).unwrap_or_default()
    }

    /// The innermost scope of a function at an address, and the code that contains the address.
    fn scope(&mut self, address: u64, key: &Key) -> Option<(At, Code)> {
        let unit = self.unit_at(address)?;
        let code = self.contents(unit).code.iter().find(|code| code.range.contains(&address))?.clone();
        let mut entries = self.units[unit].entries_at_offset(code.function).ok()?;
        let mut found = None;
        let mut is_first = true;
        while let Ok(Some(die)) = entries.next_dfs() {
            // The next function.
            if die.depth() <= 0 && !is_first {
                break;
            }
            let is_scope = is_first || die.tag() == gimli::DW_TAG_inlined_subroutine;
            is_first = false;
            if !is_scope || !self.ranges(unit, die).iter().any(|range| range.contains(&address)) {
                continue;
            }
            let at = (unit, die.offset());
            // The scopes that contain an address are ordered from the outermost to the innermost.
            if self.of_source(at).map(|at| self.key(at)).as_ref() == Some(key) {
                found = Some(at);
            }
        }
        Some((found?, code))
    }

    /// The entry of which a concrete or inlined one is a copy, or the entry itself.
    fn of_source(&self, mut at: At) -> Option<At> {
        for _ in 0..MAX_LINKS {
            match self.origin(at) {
                Some(origin) => at = origin,
                None => return Some(at),
            }
        }
        None
    }

    fn origin(&self, at: At) -> Option<At> {
        let origin = self.die(at)?.attr_value(gimli::DW_AT_abstract_origin)?;
        self.reference(at.0, &origin)
    }

    fn key(&self, at: At) -> Key {
        let die = self.die(at)?;
        self.name(at, &die, gimli::DW_AT_linkage_name).or_else(|| self.name(at, &die, gimli::DW_AT_name))
    }

    fn reference(&self, unit: usize, value: &AttributeValue<Section>) -> Option<At> {
        match value {
            AttributeValue::UnitRef(offset) => Some((unit, *offset)),
            AttributeValue::DebugInfoRef(offset) => {
                let mut units = self.units.iter().enumerate();
                units.find_map(|(number, unit)| Some((number, offset.to_unit_offset(&unit.header)?)))
            }
            _ => None,
        }
    }

    /// An attribute of an entry, or of the entry that it completes, with the unit of the attribute.
    fn attribute(&self, at: At, die: &Die, name: gimli::DwAt) -> Option<(usize, AttributeValue<Section>)> {
        let (mut at, mut die) = (at, die.clone());
        for _ in 0..MAX_LINKS {
            if let Some(value) = die.attr_value(name) {
                return Some((at.0, value));
            }
            let link = die
                .attr_value(gimli::DW_AT_abstract_origin)
                .or_else(|| die.attr_value(gimli::DW_AT_specification))?;
            at = self.reference(at.0, &link)?;
            die = self.die(at)?;
        }
        None
    }

    fn name(&self, at: At, die: &Die, name: gimli::DwAt) -> Option<String> {
        use gimli::Reader as _;
        let (unit, value) = self.attribute(at, die, name)?;
        let name = self.object.dwarf.attr_string(&self.units[unit], value).ok()?;
        Some(name.to_string_lossy().ok()?.into_owned())
    }

    /// Whether a function has a prototype; only in C, it may have none.
    fn has_prototype(&self, at: At) -> bool {
        let unit = &self.units[at.0];
        let language = unit.entry(unit.header.root_offset()).ok();
        let language = language.and_then(|root| root.attr_value(gimli::DW_AT_language));
        let is_c = matches!(
            language,
            Some(AttributeValue::Language(
                gimli::DW_LANG_C89
                    | gimli::DW_LANG_C
                    | gimli::DW_LANG_C99
                    | gimli::DW_LANG_C11
                    | gimli::DW_LANG_C17
            ))
        );
        let prototyped =
            self.die(at).and_then(|die| Some(self.attribute(at, &die, gimli::DW_AT_prototyped)?.1));
        !is_c || matches!(prototyped, Some(AttributeValue::Flag(true)))
    }

    /// The parameters in a function's entry.
    fn formal_parameters(&self, (unit, offset): At) -> Vec<At> {
        let mut found = Vec::new();
        let Ok(mut tree) = self.units[unit].entries_tree(Some(offset)) else { return found };
        let Ok(root) = tree.root() else { return found };
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            if child.entry().tag() == gimli::DW_TAG_formal_parameter {
                found.push((unit, child.entry().offset()));
            }
        }
        found
    }

    /// The type of a parameter, or of a function's result, if it is a scalar.
    fn scalar(&self, at: At, die: &Die) -> Option<ScalarType> {
        let (unit, value) = self.attribute(at, die, gimli::DW_AT_type)?;
        let mut at = self.reference(unit, &value)?;
        for _ in 0..MAX_LINKS {
            let die = self.die(at)?;
            let bytes = || {
                let bytes = die.attr_value(gimli::DW_AT_byte_size)?.udata_value()?;
                u8::try_from(bytes).ok().filter(|bytes| [1, 2, 4, 8].contains(bytes))
            };
            match die.tag() {
                gimli::DW_TAG_pointer_type
                | gimli::DW_TAG_reference_type
                | gimli::DW_TAG_rvalue_reference_type
                | gimli::DW_TAG_array_type => {
                    return Some(ScalarType::Integer { bytes: 8, is_signed: false });
                }
                gimli::DW_TAG_base_type => {
                    let AttributeValue::Encoding(encoding) = die.attr_value(gimli::DW_AT_encoding)? else {
                        return None;
                    };
                    return match (encoding, bytes()?) {
                        (gimli::DW_ATE_boolean, 1) => Some(ScalarType::Bool),
                        (gimli::DW_ATE_float, 4) => Some(ScalarType::Float),
                        (gimli::DW_ATE_float, 8) => Some(ScalarType::Double),
                        (gimli::DW_ATE_signed | gimli::DW_ATE_signed_char, bytes) => {
                            Some(ScalarType::Integer { bytes, is_signed: true })
                        }
                        (
                            gimli::DW_ATE_unsigned
                            | gimli::DW_ATE_unsigned_char
                            | gimli::DW_ATE_UTF
                            | gimli::DW_ATE_ASCII
                            | gimli::DW_ATE_address,
                            bytes,
                        ) => Some(ScalarType::Integer { bytes, is_signed: false }),
                        _ => None,
                    };
                }
                gimli::DW_TAG_enumeration_type if !die.has_attr(gimli::DW_AT_type) => {
                    return Some(ScalarType::Integer { bytes: bytes()?, is_signed: false });
                }
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type
                | gimli::DW_TAG_enumeration_type => {
                    let (unit, value) = self.attribute(at, &die, gimli::DW_AT_type)?;
                    at = self.reference(unit, &value)?;
                }
                _ => return None,
            }
        }
        None
    }
}

/// The code of an entry. `gimli::Dwarf::die_ranges` adds the size to the address without a check.
fn ranges(object: &Object, unit: &Unit, die: &Die) -> Option<Vec<Range<u64>>> {
    let mut found = Vec::new();
    if let Some(list) = die.attr_value(gimli::DW_AT_ranges) {
        let mut list = object.dwarf.attr_ranges(unit, list).ok()??;
        while let Ok(Some(range)) = list.next() {
            found.push(range.begin..range.end);
        }
        return Some(found);
    }
    let start = object.dwarf.attr_address(unit, die.attr_value(gimli::DW_AT_low_pc)?).ok()??;
    let high = die.attr_value(gimli::DW_AT_high_pc)?;
    let end = match object.dwarf.attr_address(unit, high.clone()).ok()? {
        Some(end) => end,
        None => start.checked_add(high.udata_value()?)?,
    };
    found.push(start..end);
    Some(found)
}
