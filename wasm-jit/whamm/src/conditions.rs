//! What predicates require of the places where they hold, so that a monitor with many rules is
//! matched quickly.
//!
//! A compiled script describes the functions of its static predicates in a custom section. Such a
//! function has no effects and depends on nothing but its parameters. For each, the section lists
//! conditions without which it returns 0: that a parameter is one of a few constants, as in `fid ==
//! 3 && fname == "parse"`. An [`Index`] finds the rules whose condition a place fulfills, and the
//! functions of all others need not be called there. Modules without this section, or with one that
//! cannot be read, are matched by calling the functions at all places.
//!
//! ```text
//! section    = INTERN:name predicates        the function that returns the address of a string
//! predicates = count { NAME:name conditions }
//! conditions = count { parameter:u32 kind:byte count { text | u64 } }
//! ```
//!
//! The kind is 0 for strings, 1 for 32-bit integers, extended by zeros, and 2 for 64-bit ones.

use std::collections::{BTreeMap, HashMap};

use wasm_encoder::{CustomSection, Encode};
use wasm_jit::wasmparser::{BinaryReader, BinaryReaderError};

use crate::monitor_module::{Call, Parameter, Static};

/// The name of the section.
pub(crate) const SECTION: &str = "wasm-jit.predicates";

/// The constants that a parameter is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Constants {
    Text(Vec<String>),
    Integers32(Vec<u64>),
    Integers64(Vec<u64>),
}

/// A predicate holds only if this parameter is one of the constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The number of the parameter.
    pub(crate) parameter: u32,
    pub(crate) constants: Constants,
}

/// The section that describes predicates, by the names of their exports.
pub(crate) fn section(intern: &str, predicates: &BTreeMap<String, Vec<Condition>>) -> CustomSection<'static> {
    let mut data = Vec::new();
    intern.encode(&mut data);
    predicates.len().encode(&mut data);
    for (name, conditions) in predicates {
        name.as_str().encode(&mut data);
        conditions.len().encode(&mut data);
        for Condition { parameter, constants } in conditions {
            parameter.encode(&mut data);
            let (kind, numbers) = match constants {
                Constants::Text(texts) => {
                    data.push(0);
                    texts.len().encode(&mut data);
                    texts.iter().for_each(|text| text.as_str().encode(&mut data));
                    continue;
                }
                Constants::Integers32(numbers) => (1, numbers),
                Constants::Integers64(numbers) => (2, numbers),
            };
            data.push(kind);
            numbers.len().encode(&mut data);
            numbers.iter().for_each(|number| number.encode(&mut data));
        }
    }
    CustomSection { name: SECTION.into(), data: data.into() }
}

/// The value of a place that a rule requires to be one of these constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub(crate) value: Static,
    constants: Constants,
}

/// A value of a place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Actual<'a> {
    Text(&'a str),
    Integer(u64),
    /// The place has no such value, or one of another type.
    None,
}

impl Requirement {
    /// Whether a value fulfills the requirement.
    pub(crate) fn allows(&self, value: Actual<'_>) -> bool {
        match (&self.constants, value) {
            (Constants::Text(texts), Actual::Text(text)) => texts.iter().any(|known| known == text),
            (Constants::Integers32(numbers), Actual::Integer(value)) => {
                numbers.contains(&u64::from(value as u32))
            }
            (Constants::Integers64(numbers), Actual::Integer(value)) => numbers.contains(&value),
            _ => false,
        }
    }

    fn count(&self) -> usize {
        match &self.constants {
            Constants::Text(texts) => texts.len(),
            Constants::Integers32(numbers) | Constants::Integers64(numbers) => numbers.len(),
        }
    }
}

/// What is known about the predicate of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The predicate holds only where all of these are fulfilled.
    pub(crate) requirements: Vec<Requirement>,
    /// Whether its result is the same at all places of a function.
    pub(crate) is_of_function: bool,
}

/// The predicates that a module describes.
#[derive(Debug, Default)]
pub(crate) struct Predicates {
    intern: String,
    all: HashMap<String, Vec<Condition>>,
}

impl Predicates {
    /// Reads a section.
    pub(crate) fn read(mut reader: BinaryReader<'_>) -> Result<Self, BinaryReaderError> {
        let intern = reader.read_string()?.to_owned();
        let mut all = HashMap::new();
        for _ in 0..reader.read_var_u32()? {
            let name = reader.read_string()?.to_owned();
            let mut conditions = Vec::new();
            for _ in 0..reader.read_var_u32()? {
                conditions.push(Self::condition(&mut reader)?);
            }
            all.insert(name, conditions);
        }
        Ok(Self { intern, all })
    }

    fn condition(reader: &mut BinaryReader<'_>) -> Result<Condition, BinaryReaderError> {
        let (parameter, kind) = (reader.read_var_u32()?, reader.read_u8()?);
        let count = reader.read_var_u32()?;
        let constants = if kind == 0 {
            let text = |_| reader.read_string().map(str::to_owned);
            Constants::Text((0..count).map(text).collect::<Result<_, _>>()?)
        } else {
            let numbers = (0..count).map(|_| reader.read_var_u64()).collect::<Result<_, _>>()?;
            if kind == 1 { Constants::Integers32(numbers) } else { Constants::Integers64(numbers) }
        };
        Ok(Condition { parameter, constants })
    }

    /// The exports of the predicates.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + '_ {
        self.all.keys().map(String::as_str)
    }

    /// What is known about a predicate.
    pub(crate) fn known(&self, predicate: Option<&Call>) -> Known {
        let Some(call) = predicate else { return Known::default() };
        let Some(conditions) = self.all.get(&call.name) else { return Known::default() };
        let values: Option<Vec<Static>> =
            call.parameters.iter().map(|parameter| self.value(parameter)).collect();
        // Other calls have effects, so that the number of calls matters.
        let Some(values) = values else { return Known::default() };
        let requirement = |condition: &Condition| {
            let value = *values.get(condition.parameter as usize)?;
            let depends_on_matches =
                matches!(value, Static::Probe | Static::Group(_) | Static::Callee | Static::Guard(_));
            let constants = condition.constants.clone();
            (!depends_on_matches).then_some(Requirement { value, constants })
        };
        let is_of_function =
            |value: &Static| matches!(value, Static::Function | Static::FunctionName | Static::Object);
        Known {
            requirements: conditions.iter().filter_map(requirement).collect(),
            is_of_function: values.iter().all(is_of_function),
        }
    }

    /// The value that is passed, itself or as a string.
    fn value(&self, parameter: &Parameter) -> Option<Static> {
        match parameter {
            Parameter::Static(value) if !value.is_string() => Some(*value),
            Parameter::Call(call) => self.interned(call),
            _ => None,
        }
    }

    /// The string of which a call returns the address, if it is such a call: it always returns the
    /// same one.
    pub(crate) fn interned(&self, call: &Call) -> Option<Static> {
        match call.parameters[..] {
            [Parameter::Static(value)] if call.name == self.intern && value.is_string() => Some(value),
            _ => None,
        }
    }
}

/// Rules, by a value of the places that they match.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The rules that require nothing.
    rest: Vec<usize>,
    by_value: Vec<ByValue>,
}

#[derive(Debug)]
struct ByValue {
    value: Static,
    texts: HashMap<String, Vec<usize>>,
    integers32: HashMap<u64, Vec<usize>>,
    integers64: HashMap<u64, Vec<usize>>,
}

impl Index {
    /// Adds a rule, each in the order of their numbers.
    pub(crate) fn add(&mut self, rule: usize, known: &Known) {
        let Some(most) = known.requirements.iter().min_by_key(|requirement| requirement.count()) else {
            self.rest.push(rule);
            return;
        };
        let position = self.by_value.iter().position(|by| by.value == most.value);
        let position = position.unwrap_or_else(|| {
            self.by_value.push(ByValue {
                value: most.value,
                texts: HashMap::new(),
                integers32: HashMap::new(),
                integers64: HashMap::new(),
            });
            self.by_value.len() - 1
        });
        let by = &mut self.by_value[position];
        let add = |rules: &mut Vec<usize>| {
            // A constant may be listed twice.
            if rules.last() != Some(&rule) {
                rules.push(rule);
            }
        };
        match &most.constants {
            Constants::Text(texts) => {
                texts.iter().for_each(|text| add(by.texts.entry(text.clone()).or_default()));
            }
            Constants::Integers32(numbers) => {
                numbers.iter().for_each(|number| add(by.integers32.entry(*number).or_default()));
            }
            Constants::Integers64(numbers) => {
                numbers.iter().for_each(|number| add(by.integers64.entry(*number).or_default()));
            }
        }
    }

    /// The rules that require nothing.
    pub(crate) fn rest(&self) -> &[usize] {
        &self.rest
    }

    /// The values by which rules are found.
    pub(crate) fn values(&self) -> impl Iterator<Item = Static> + '_ {
        self.by_value.iter().map(|by| by.value)
    }

    /// Adds the rules that require what a value is.
    pub(crate) fn find(&self, value: Static, actual: Actual<'_>, found: &mut Vec<usize>) {
        for by in self.by_value.iter().filter(|by| by.value == value) {
            match actual {
                Actual::Text(text) => found.extend(by.texts.get(text).into_iter().flatten()),
                Actual::Integer(number) => {
                    found.extend(by.integers32.get(&u64::from(number as u32)).into_iter().flatten());
                    found.extend(by.integers64.get(&number).into_iter().flatten());
                }
                Actual::None => {}
            }
        }
    }
}
