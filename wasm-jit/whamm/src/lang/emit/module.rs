//! Emits the sections of the module, once all functions are known.

use std::collections::{BTreeMap, HashMap};

use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, FunctionSection,
    GlobalSection, GlobalType, ImportSection, Instruction as I, MemorySection, MemoryType, Module, NameMap,
    NameSection, StartSection, TagKind, TagSection, TagType, TypeSection, ValType,
};

use super::super::diagnostics::Problem;
use super::super::ir::{Failing, OUTSIDE, Place};
use super::super::libraries::LIBRARY_MEMORY;
use super::super::report::{Layout as ReportLayout, Once, Sites};
use super::code::Code;
use super::memories::import_first;
use super::runtime::END;
use super::{Emitter, Name, calling};
use crate::{conditions, sums};

/// The size of the engine's buffer for strings, if there are any: longer strings are truncated.
const BUFFER: u32 = 1 << 14;

/// The size if the targets of a `br_table` are among them: room for 2^18.
const BUFFER_FOR_TARGETS: u32 = 1 << 20;

/// The names of the script and of functions.
fn names(script: &str, functions: &BTreeMap<u32, Name>) -> NameSection {
    let mut of_functions = NameMap::new();
    for (number, Name { first, others, .. }) in functions {
        match others {
            0 => of_functions.append(*number, first),
            1 => of_functions.append(*number, &format!("{first} and another rule")),
            others => of_functions.append(*number, &format!("{first} and {others} other rules")),
        }
    }
    let mut names = NameSection::new();
    names.module(script);
    names.functions(&of_functions);
    names
}

/// The maximum number of memory pages of a script that runs in another program: 1 GiB.
const MAX_PAGES: u64 = 1 << 14;

impl Emitter<'_> {
    /// The locations of the reported variables; none if the script prints its own report. Native
    /// scripts cannot print.
    fn report(&self) -> ReportLayout {
        let program = self.program;
        if !program.report.is_empty() && program.failing != Failing::Calls {
            return ReportLayout::default();
        }
        let once = program.reported.iter().filter_map(|(report, rule)| {
            let Place::Absolute(address) = report.place else { return None };
            let (name, ty) = (report.name.clone(), report.ty.clone());
            let counted = program.counted.iter().find(|counted| counted.map == address);
            let counters = counted.map(|counted| self.layout.variables + counted.counters);
            Some(Once { name, rule: rule.clone(), ty, address: self.layout.variables + address, counters })
        });
        let rules = program.reported_sites.iter().map(|sites| {
            let variables = sites.reports.iter().filter_map(|report| match report.place {
                Place::Site(offset) => Some((report.name.clone(), report.ty.clone(), offset)),
                _ => None,
            });
            // There is no list if nothing of the rule is left, because its predicate never holds.
            let list = self.lists.get(&sites.rule).copied().unwrap_or(0);
            Sites { rule: sites.text.clone(), list, variables: variables.collect() }
        });
        let threads = self.threads.filter(|_| !program.reported_threads.is_empty()).map(|list| {
            let variables = program.reported_threads.iter().filter_map(|report| match report.place {
                Place::Thread(offset) => Some((report.name.clone(), report.ty.clone(), offset)),
                _ => None,
            });
            Sites { rule: String::new(), list, variables: variables.collect() }
        });
        ReportLayout { once: once.collect(), rules: rules.collect(), threads }
    }

    pub(super) fn module(mut self, variables: u32) -> Result<(Vec<u8>, ReportLayout), Vec<Problem>> {
        let runtime = self.layout.runtime;
        let report = self.report();
        let lists = 8 * (self.lists.len() as u32 + u32::from(self.threads.is_some()));
        let buffer = variables + self.program.static_size + lists;
        let buffer_size = if self.has_targets { BUFFER_FOR_TARGETS } else { BUFFER };
        let heap = buffer + if self.intern.is_some() { buffer_size } else { 0 };
        let begin: Vec<_> = self.program.begin.iter().filter(|body| !body.is_empty()).collect();
        let mut calls = Vec::new();
        for body in begin {
            let rule = self.name_of(body.rule, OUTSIDE);
            let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
            code.begin_steps();
            code.body(body);
            calls.push(self.functions.add_named(code.finish_rule(&rule), &rule));
        }
        if self.intern.is_some() || self.strings.are_read {
            // Called first, but emitted last, with the strings of all other functions.
            calls.insert(0, self.keep_strings());
        }
        let start = (!calls.is_empty()).then(|| self.functions.add(calling(&calls, &[])));
        if END + self.strings.bytes.len() as u32 > variables {
            // Initial values use strings that nothing else uses: emits once more, with room for
            // them.
            let variables = (END + self.strings.bytes.len() as u32).next_multiple_of(8);
            let again = Emitter::new(self.program, runtime, self.layout.efforts, variables, self.prints);
            return again.run()?.module(variables);
        }
        let exports = std::mem::take(&mut self.exports);
        let mut export_section = ExportSection::new();
        export_section.export("memory", ExportKind::Memory, 0);
        if self.intern.is_some() {
            export_section.export("whamm_buffer", ExportKind::Memory, 0);
            export_section.export("whamm_buffer:start", ExportKind::Global, runtime.globals);
            export_section.export("whamm_buffer:max", ExportKind::Global, runtime.globals + 1);
        }
        if self.has_stacks() {
            for (name, global) in &runtime.of_thread {
                export_section.export(name, ExportKind::Global, *global);
            }
        }
        for (name, functions) in &exports {
            let number = match functions.as_slice() {
                [one] => *one,
                all => {
                    let parameters = self.functions.all[(all[0] - runtime.count()) as usize].0.clone();
                    self.functions.add(calling(all, &parameters))
                }
            };
            export_section.export(name, ExportKind::Func, number);
        }
        let mut types = TypeSection::new();
        let mut known: HashMap<(Vec<ValType>, Vec<ValType>), u32> = HashMap::new();
        // The runtime's types keep their numbers.
        for ty in &runtime.types {
            known.entry(ty.clone()).or_insert(types.len());
            types.ty().function(ty.0.iter().copied(), ty.1.iter().copied());
        }
        let mut function_section = FunctionSection::new();
        let mut code = CodeSection::new();
        for (ty, body) in runtime.functions.iter().zip(&runtime.code) {
            function_section.function(*ty);
            code.raw(body);
        }
        let names = names(&self.program.script, &self.functions.names);
        for (parameters, results, body) in self.functions.all {
            let number = *known.entry((parameters, results)).or_insert_with_key(|(parameters, results)| {
                types.ty().function(parameters.iter().copied(), results.iter().copied());
                types.len() - 1
            });
            function_section.function(number);
            code.raw(&body);
        }
        let mut imports = ImportSection::new();
        for (module, name, ty) in &runtime.imports {
            imports.import(module, name, EntityType::Function(*ty));
        }
        for library in &self.program.memories {
            let limits = MemoryType {
                minimum: 0,
                maximum: None,
                memory64: false,
                shared: false,
                page_size_log2: None,
            };
            imports.import(library, LIBRARY_MEMORY, EntityType::Memory(limits));
        }
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: u64::from(heap.div_ceil(1 << 16)),
            maximum: (self.program.failing == Failing::Calls).then_some(MAX_PAGES),
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut tags = TagSection::new();
        if self.program.failing == Failing::Throws {
            // The runtime has this type.
            let func_type_idx = known[&(vec![ValType::I32], Vec::new())];
            tags.tag(TagType { kind: TagKind::Exception, func_type_idx });
        }
        let mut globals = GlobalSection::new();
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        for number in 0..runtime.globals {
            let value = if number == runtime.heap { heap } else { 0 };
            globals.global(ty, &ConstExpr::i32_const(value.cast_signed()));
        }
        if self.intern.is_some() {
            let ty = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
            globals.global(ty, &ConstExpr::i32_const(buffer.cast_signed()));
            globals.global(ty, &ConstExpr::i32_const(buffer_size.cast_signed()));
        }
        let mut data = DataSection::new();
        data.active(0, &ConstExpr::i32_const(END.cast_signed()), self.strings.bytes.iter().copied());
        let mut module = Module::new();
        module.section(&types).section(&imports).section(&function_section).section(&memories);
        if !tags.is_empty() {
            module.section(&tags);
        }
        module.section(&globals);
        module.section(&export_section);
        if let Some(function_index) = start {
            module.section(&StartSection { function_index });
        }
        module.section(&code).section(&data).section(&names);
        if !self.predicates.is_empty() {
            let intern = self.intern.map_or(String::new(), |number| format!("${number}"));
            module.section(&conditions::section(&intern, &self.predicates));
        }
        let sums: Vec<_> = self.sums.iter().filter(|(_, only_adds)| **only_adds).collect();
        if !sums.is_empty() {
            module.section(&sums::section(sums.into_iter().map(|(name, _)| name.as_str())));
        }
        Ok((import_first(module.finish(), self.program.memories.len()), report))
    }

    /// Whether there are stacks of frames, or of instructions that have begun.
    fn has_stacks(&self) -> bool {
        let probes = &self.program.probes;
        self.program.frame_size > 0 && !self.program.has_frame_blocks
            || probes.iter().any(|probe| !probe.mode.has_operands())
    }

    /// The function that registers the script's own strings, so that equal strings have equal
    /// addresses.
    fn keep_strings(&mut self) -> u32 {
        let mut known: Vec<_> =
            self.strings.addresses.iter().map(|(text, address)| (*address, text.len() as u32)).collect();
        known.sort_unstable();
        let mut code = Code::new(self.layout, &mut self.strings, Vec::new(), Vec::new());
        for (address, length) in known {
            code.int(address);
            code.int(length);
            code.call("keep_string");
            code.raw([I::Drop]);
        }
        self.functions.append(code.finish())
    }
}
