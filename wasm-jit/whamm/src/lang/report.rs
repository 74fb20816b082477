//! Reads the values of a script's variables from the memory of a running monitor.
//!
//! The compiler knows where each reported variable is stored. [`Script::report`] reads the values
//! there, with their types, so that nothing is lost by formatting. A program can do this at any
//! time between calls.

use std::collections::HashMap;

use wasm_encoder::ValType;
use wasm_jit::{AsContext, Instance};

use super::Script;
use super::ir::{SITE_HEADER, wrap};
use super::types::Type;
use crate::monitor_module::MonitorError;

/// The positions of a script's reported variables.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) once: Vec<Once>,
    pub(super) rules: Vec<Sites>,
    /// The blocks of threads, if any of their variables are reported.
    pub(super) threads: Option<Sites>,
}

/// A variable that exists once.
#[derive(Clone, Debug)]
pub(super) struct Once {
    pub(super) name: String,
    pub(super) rule: Option<String>,
    pub(super) ty: Type,
    pub(super) address: u32,
    /// The address of the map of [counters](super::counters), if there are any.
    pub(super) counters: Option<u32>,
}

/// The variables of a rule that exist for each place.
#[derive(Clone, Debug)]
pub(super) struct Sites {
    pub(super) rule: String,
    /// The address of the list of blocks.
    pub(super) list: u32,
    /// The names, types and offsets in a block.
    pub(super) variables: Vec<(String, Type, u32)>,
}

/// The values of all reported variables.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScriptReport {
    /// The variables that exist once, in the order of the script.
    pub variables: Vec<VariableReport>,
    /// The variables of places, by rule, in the order of the script.
    pub rules: Vec<RuleReport>,
    /// The variables of threads, in scripts for native programs.
    pub threads: ThreadsReport,
}

/// The variables of threads.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ThreadsReport {
    /// The names of the variables.
    pub variables: Vec<String>,
    /// The threads for which a rule has used a variable of threads.
    pub threads: Vec<ThreadReport>,
}

/// The variables of one thread.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ThreadReport {
    /// The kernel's id of the thread. Several threads may have had it, one after the other.
    pub thread: u32,
    /// The values, in the order of [`ThreadsReport::variables`].
    pub values: Vec<ReportedValue>,
}

/// A variable that exists once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct VariableReport {
    /// The name of the variable.
    pub name: String,
    /// The rule in which the variable is declared, if it is declared in a rule.
    pub rule: Option<String>,
    /// The value of the variable.
    pub value: ReportedValue,
}

/// The variables of a rule that exist for each place that it matches.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuleReport {
    /// The rule as in the script: `wasm:opcode:br_if|if:before`.
    pub rule: String,
    /// The names of the variables.
    pub variables: Vec<String>,
    /// The places, in the order of the program.
    pub sites: Vec<SiteReport>,
}

/// The variables of one place.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SiteReport {
    /// The event: `wasm:opcode:if:before`.
    pub event: String,
    /// The index of the function in its module, imports first; for native programs, its number.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body, in bytes; 0 for the
    /// entry, and the length of the body for the exit.
    pub offset: u32,
    /// The values, in the order of [`RuleReport::variables`].
    pub values: Vec<ReportedValue>,
}

/// The value of a reported variable.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportedValue {
    /// The value of a variable that is not a map.
    Value(Value),
    /// The keys of a map with their values, in the order in which they were added. Keys that are
    /// known when a rule is matched may come last, in the order of the places.
    Map(Vec<(Value, Value)>),
}

/// A value of the language.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// An integer of any type.
    Int(i128),
    /// A float of either type. For an f32, it is the number that its shortest decimal form denotes,
    /// so that 0.1 is not 0.10000000149011612; `as f32` returns the exact value.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// A bucket of a histogram: its lower bound, and the lower bound of the next bucket.
    Bucket(u64, i128),
    /// A call stack of a native program, by the number that its observer has assigned to it
    /// ([`NativeCall::stack`](crate::native::NativeCall::stack)).
    Stack(u32),
    /// The fields of a tuple, in order.
    Tuple(Vec<Value>),
}

/// The number that the shortest decimal form of a float denotes.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(value.into())
}

/// The monitor's memory.
struct Reader<'a>(&'a [u8]);

impl Script {
    /// Whether variables are declared with `report`, and the script has no `wasm:report` rule that
    /// replaces the report.
    pub fn has_report(&self) -> bool {
        !self.layout.once.is_empty() || !self.layout.rules.is_empty() || self.layout.threads.is_some()
    }

    /// Whether a map with a stack in its key and integers as its values is declared with `report`.
    pub fn reports_stacks(&self) -> bool {
        let Layout { once, rules, threads } = &self.layout;
        let of_sites = rules.iter().chain(threads).flat_map(|sites| &sites.variables).map(|(_, ty, _)| ty);
        once.iter().map(|once| &once.ty).chain(of_sites).any(|ty| match ty {
            Type::Map(key, value) => key.has_stack() && value.begins_with_integer(),
            _ => false,
        })
    }

    /// The values of the variables that are declared with `report`. May be called at any time
    /// between calls of the program.
    ///
    /// ```
    /// use wasm_jit::{Engine, Instance, Linker, Module, Store};
    /// use wasm_jit_whamm::lang::{ReportedValue, Script, Value};
    /// use wasm_jit_whamm::monitor_module::MonitorModule;
    ///
    /// let script = Script::new("calls.mm", b"report var n: u64; wasm:func:entry { n++; }", &[])?;
    /// let engine = Engine::default();
    /// let monitor = MonitorModule::new(Module::from_binary(&engine, script.module())?, Vec::new())?;
    /// let program = Module::new(&engine, "(module (func $f) (func (export \"run\") (call $f)))")?;
    /// let mut store = Store::new(&engine, ());
    /// let attached = monitor.attach(&mut store, &mut Linker::new(&engine), &program)?;
    /// let instance = Instance::new(&mut store, &program, &[])?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// let monitor = attached.instance(&mut store);
    /// let report = script.report(&store, monitor)?;
    /// assert_eq!(report.variables[0].value, ReportedValue::Value(Value::Int(2)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MonitorError::Report`]: the instance does not belong to this script's module.
    ///
    /// # Panics
    /// If the instance belongs to another store.
    pub fn report(&self, store: impl AsContext, instance: &Instance) -> Result<ScriptReport, MonitorError> {
        let store = store.as_context();
        let memory = instance.get_memory(store, "memory").ok_or(MonitorError::Report { address: 0 })?;
        let reader = Reader(memory.data(store));
        let variables = self.layout.once.iter().map(|variable| {
            let Once { name, rule, ty, address, counters } = variable;
            let value = match (ty, counters) {
                (Type::Map(key, value), Some(counters)) => {
                    ReportedValue::Map(reader.counted_map(key, value, *address, *counters)?)
                }
                _ => reader.reported(ty, *address)?,
            };
            Ok(VariableReport { name: name.clone(), rule: rule.clone(), value })
        });
        let variables = variables.collect::<Result<_, _>>()?;
        let rules = self.layout.rules.iter().map(|rule| reader.rule(rule)).collect::<Result<_, _>>()?;
        let threads = match &self.layout.threads {
            Some(threads) => {
                let RuleReport { variables, sites, .. } = reader.rule(threads)?;
                let thread = |site: SiteReport| ThreadReport { thread: site.function, values: site.values };
                ThreadsReport { variables, threads: sites.into_iter().map(thread).collect() }
            }
            None => ThreadsReport::default(),
        };
        Ok(ScriptReport { variables, rules, threads })
    }
}

impl Reader<'_> {
    fn bytes(&self, address: u32, length: usize) -> Result<&[u8], MonitorError> {
        let start = address as usize;
        self.0.get(start..start.saturating_add(length)).ok_or(MonitorError::Report { address })
    }

    fn word(&self, address: u32) -> Result<u64, MonitorError> {
        let bytes = self.bytes(address, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("there are eight bytes")))
    }

    fn half(&self, address: u32) -> Result<u32, MonitorError> {
        let bytes = self.bytes(address, 4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("there are four bytes")))
    }

    fn text(&self, address: u32, length: u32) -> Result<String, MonitorError> {
        let bytes = self.bytes(address, length as usize)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn rule(&self, rule: &Sites) -> Result<RuleReport, MonitorError> {
        let mut sites = Vec::new();
        let mut block = self.half(rule.list)?;
        while block != 0 {
            // More sites than fit into the memory: the list does not belong to this script.
            if sites.len() > self.0.len() / SITE_HEADER as usize {
                return Err(MonitorError::Report { address: rule.list });
            }
            let [function, offset, event, length] =
                [4, 8, 12, 16].map(|at| self.half(block.wrapping_add(at)));
            let values = rule.variables.iter().map(|(_, ty, at)| self.reported(ty, block.wrapping_add(*at)));
            sites.push(SiteReport {
                event: self.text(event?, length?)?,
                function: function?,
                offset: offset?,
                values: values.collect::<Result<_, _>>()?,
            });
            block = self.half(block)?;
        }
        let variables = rule.variables.iter().map(|(name, ..)| name.clone()).collect();
        Ok(RuleReport { rule: rule.rule.clone(), variables, sites })
    }

    fn reported(&self, ty: &Type, address: u32) -> Result<ReportedValue, MonitorError> {
        let Type::Map(key, value) = ty else {
            return self.value(ty, address).map(ReportedValue::Value);
        };
        let of =
            |entry: u32| Ok((self.value(key, entry)?, self.value(value, entry.wrapping_add(key.size()))?));
        let entries = self.entries(address, key.size() + value.size())?;
        entries.map(of).collect::<Result<_, _>>().map(ReportedValue::Map)
    }

    /// The addresses of a map's entries, which have this size.
    fn entries(&self, map: u32, size: u32) -> Result<impl Iterator<Item = u32>, MonitorError> {
        let (entries, count) = (self.half(map)?, self.half(map.wrapping_add(12))?);
        Ok((0..count).map(move |number| entries.wrapping_add(number.wrapping_mul(size))))
    }

    /// A map with integers as values, and what its [counters](super::counters) have counted.
    fn counted_map(
        &self,
        key: &Type,
        value: &Type,
        map: u32,
        counters: u32,
    ) -> Result<Vec<(Value, Value)>, MonitorError> {
        let (mut all, mut positions) = (Vec::new(), HashMap::new());
        let words = |entry: u32| self.bytes(entry, key.size() as usize);
        for entry in self.entries(map, key.size() + value.size())? {
            positions.insert(words(entry)?, all.len());
            let Value::Int(sum) = self.value(value, entry.wrapping_add(key.size()))? else {
                return Err(MonitorError::Report { address: entry });
            };
            all.push((self.value(key, entry)?, sum));
        }
        for entry in self.entries(counters, key.size() + 16)? {
            let [amount, counter] = [0, 8].map(|at| entry.wrapping_add(key.size()).wrapping_add(at));
            let count = self.word(self.half(counter)?)?;
            if count == 0 {
                continue;
            }
            let position = *positions.entry(words(entry)?).or_insert(all.len());
            if position == all.len() {
                all.push((self.value(key, entry)?, 0));
            }
            let more = count.wrapping_mul(self.word(amount)?);
            let sum = &mut all[position].1;
            *sum = wrap(value, *sum + i128::from(more));
        }
        Ok(all.into_iter().map(|(key, sum)| (key, Value::Int(sum))).collect())
    }

    fn value(&self, ty: &Type, mut address: u32) -> Result<Value, MonitorError> {
        if let Type::Tuple(fields) = ty {
            let mut values = Vec::with_capacity(fields.len());
            for field in fields {
                values.push(self.value(field, address)?);
                address = address.wrapping_add(field.size());
            }
            return Ok(Value::Tuple(values));
        }
        let word = self.word(address)?;
        Ok(match (ty, ty.scalar()) {
            (Type::Str, _) => Value::Text(self.text(word as u32, self.half(address.wrapping_add(8))?)?),
            (Type::Bucket(buckets), _) => Value::Bucket(word, buckets.end(word)),
            (Type::Stack, _) => Value::Stack(word as u32),
            (Type::Bool, _) => Value::Bool(word as u32 != 0),
            (_, Some(ValType::F32)) => Value::Float(shortest(f32::from_bits(word as u32))),
            (_, Some(ValType::F64)) => Value::Float(f64::from_bits(word)),
            (ty, Some(ValType::I32)) if ty.is_signed() => Value::Int((word as u32 as i32).into()),
            (_, Some(ValType::I32)) => Value::Int((word as u32).into()),
            (ty, _) if ty.is_signed() => Value::Int((word as i64).into()),
            _ => Value::Int(word.into()),
        })
    }
}
