//! Analyses by rewriting: the module does itself what a monitor does, in globals, or by calls to a
//! host function.

use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, EntityType, Function, GlobalSection, GlobalType, ImportSection,
    Instruction as I, TypeSection, ValType,
};
use wasm_jit::{FuncType, Module};
use wasmparser::Operator;

/// The module and the name of the imported function: `log (param i32 i32)`.
pub(crate) const IMPORT: (&str, &str) = ("monitor", "log");

/// The analysis that is added to a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Analysis {
    /// Adds 1 to a global in each basic block. The execution counts of its instructions follow from
    /// it, except in a block that a trap ends.
    Blocks,
    /// Adds 1 to globals for each `if`, `br_if` and `select`, and for those whose condition is not
    /// 0; for `br_table` to one of them only, whatever its index.
    Branches,
    /// Adds 1 to a global at each direct call.
    Calls,
    /// Calls the host with the address of each load and store.
    Memory,
    /// Calls the host at entries and exits of functions.
    Functions,
}

/// The module, rewritten.
pub(crate) fn rewrite(module: &Module, analysis: Analysis) -> Vec<u8> {
    // Once to learn how many globals there are.
    let counters = run(module, analysis, 0).0;
    run(module, analysis, counters).1
}

fn run(module: &Module, analysis: Analysis, counters: u32) -> (u32, Vec<u8>) {
    let imported = module.functions().take_while(|function| function.body().is_none()).count() as u32;
    let mut rewriter =
        Rewriter { module, analysis, imported, function: imported, types: 0, counters, globals: 0, used: 0 };
    let mut out = wasm_encoder::Module::new();
    let parser = wasmparser::Parser::new(0);
    rewriter.parse_core_module(&mut out, parser, module.bytes()).expect("the module is valid");
    (rewriter.used, out.finish())
}

struct Rewriter<'m> {
    module: &'m Module,
    analysis: Analysis,
    imported: u32,
    /// The function whose body comes next.
    function: u32,
    /// How many types the module has.
    types: u32,
    counters: u32,
    /// How many globals the module has.
    globals: u32,
    /// How many counters were used.
    used: u32,
}

type Done = Result<(), Error>;

impl Reencode for Rewriter<'_> {
    type Error = std::convert::Infallible;

    fn function_index(&mut self, index: u32) -> Result<u32, Error> {
        Ok(if index < self.imported { index } else { index + 1 })
    }

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: wasmparser::TypeSectionReader<'_>,
    ) -> Done {
        utils::parse_type_section(self, types, section)?;
        self.types = types.len();
        types.ty().function([ValType::I32, ValType::I32], []);
        Ok(())
    }

    fn parse_import_section(
        &mut self,
        imports: &mut ImportSection,
        section: wasmparser::ImportSectionReader<'_>,
    ) -> Done {
        utils::parse_import_section(self, imports, section)?;
        imports.import(IMPORT.0, IMPORT.1, EntityType::Function(self.types));
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: wasmparser::GlobalSectionReader<'_>,
    ) -> Done {
        utils::parse_global_section(self, globals, section)?;
        self.globals = globals.len();
        let ty = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
        for _ in 0..self.counters {
            globals.global(ty, &ConstExpr::i64_const(0));
        }
        Ok(())
    }

    fn parse_function_body(&mut self, code: &mut CodeSection, body: wasmparser::FunctionBody<'_>) -> Done {
        let function = self.module.function(self.function).expect("a body has a function");
        let declared = function.body().expect("it is not imported").locals().count();
        let ty = function.ty();
        let mut locals = Vec::new();
        for local in body.get_locals_reader()? {
            let (count, ty) = local?;
            locals.push((count, self.val_type(ty)?));
        }
        locals
            .extend([ValType::I32, ValType::I32, ValType::I64, ValType::F32, ValType::F64].map(|ty| (1, ty)));
        let mut out = Function::new(locals);
        let mut rewritten =
            Body { first_local: (ty.params().len() + declared) as u32, depth: 0, out: &mut out, of: self };
        rewritten.begin(&ty);
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            let operator = reader.read()?;
            let is_last = reader.eof();
            rewritten.add(operator, is_last)?;
        }
        code.function(&out);
        self.function += 1;
        Ok(())
    }
}

/// A body that is rewritten.
struct Body<'a, 'm> {
    /// The first of the five added locals.
    first_local: u32,
    depth: u32,
    out: &'a mut Function,
    of: &'a mut Rewriter<'m>,
}

/// The added locals.
const CONDITION: u32 = 0;
const ADDRESS: u32 = 0;
const VALUE: u32 = 1;

impl Body<'_, '_> {
    fn begin(&mut self, ty: &FuncType) {
        match self.of.analysis {
            Analysis::Blocks => self.count(),
            Analysis::Functions => {
                self.log(|body| body.emit(&[I::I32Const(0)]));
                // Around the body, so that all ways out of it end here.
                let results: Vec<_> = ty.results().collect();
                let block = match results[..] {
                    [] => BlockType::Empty,
                    [wasm_jit::ValType::I32] => BlockType::Result(ValType::I32),
                    [wasm_jit::ValType::I64] => BlockType::Result(ValType::I64),
                    [wasm_jit::ValType::F32] => BlockType::Result(ValType::F32),
                    [wasm_jit::ValType::F64] => BlockType::Result(ValType::F64),
                    _ => panic!("the kernels have no such function"),
                };
                self.emit(&[I::Block(block)]);
            }
            _ => {}
        }
    }

    fn add(&mut self, operator: Operator<'_>, is_last: bool) -> Done {
        match self.of.analysis {
            Analysis::Blocks => {
                self.copy(operator.clone())?;
                use Operator::{BrIf, Else, End, If, Loop};
                if matches!(operator, Loop { .. } | If { .. } | Else | End | BrIf { .. }) && !is_last {
                    self.count();
                }
            }
            Analysis::Branches => {
                if matches!(operator, Operator::BrIf { .. } | Operator::If { .. } | Operator::Select) {
                    let condition = self.first_local + CONDITION;
                    self.count();
                    let counter = self.counter();
                    self.emit(&[
                        I::LocalTee(condition),
                        I::I32Const(0),
                        I::I32Ne,
                        I::I64ExtendI32U,
                        I::GlobalGet(counter),
                        I::I64Add,
                        I::GlobalSet(counter),
                        I::LocalGet(condition),
                    ]);
                } else if matches!(operator, Operator::BrTable { .. }) {
                    self.count();
                }
                self.copy(operator)?;
            }
            Analysis::Calls => {
                if matches!(operator, Operator::Call { .. }) {
                    self.count();
                }
                self.copy(operator)?;
            }
            Analysis::Memory => {
                if let Some((offset, value)) = access(&operator) {
                    let (address, value) =
                        (self.first_local + ADDRESS, value.map(|ty| self.first_local + VALUE + ty));
                    if let Some(value) = value {
                        self.emit(&[I::LocalSet(value)]);
                    }
                    self.emit(&[I::LocalTee(address)]);
                    self.log(|body| {
                        body.emit(&[I::LocalGet(address), I::I32Const(offset as i32), I::I32Add])
                    });
                    if let Some(value) = value {
                        self.emit(&[I::LocalGet(value)]);
                    }
                }
                self.copy(operator)?;
            }
            Analysis::Functions => {
                use Operator::{Block, End, If, Loop, Return};
                match operator {
                    Block { .. } | Loop { .. } | If { .. } => self.depth += 1,
                    End if !is_last => self.depth -= 1,
                    _ => {}
                }
                if matches!(operator, Return) {
                    self.emit(&[I::Br(self.depth)]);
                } else {
                    self.copy(operator)?;
                }
                if is_last {
                    self.log(|body| body.emit(&[I::I32Const(1)]));
                    self.emit(&[I::End]);
                }
            }
        }
        Ok(())
    }

    fn copy(&mut self, operator: Operator<'_>) -> Done {
        let instruction = self.of.instruction(operator)?;
        self.out.instruction(&instruction);
        Ok(())
    }

    fn emit(&mut self, instructions: &[I<'_>]) {
        for instruction in instructions {
            self.out.instruction(instruction);
        }
    }

    /// A new counter.
    fn counter(&mut self) -> u32 {
        self.of.used += 1;
        self.of.globals + self.of.used - 1
    }

    /// Adds 1 to a new counter.
    fn count(&mut self) {
        let counter = self.counter();
        self.emit(&[I::GlobalGet(counter), I::I64Const(1), I::I64Add, I::GlobalSet(counter)]);
    }

    /// Calls the host with the function and a second value.
    fn log(&mut self, second: impl FnOnce(&mut Self)) {
        self.emit(&[I::I32Const(self.of.function as i32)]);
        second(self);
        self.emit(&[I::Call(self.of.imported)]);
    }
}

/// For a load or store of the first version of WebAssembly, the constant offset, and the number of
/// the type of a stored value.
fn access(operator: &Operator<'_>) -> Option<(u64, Option<u32>)> {
    use Operator::{
        F32Load, F32Store, F64Load, F64Store, I32Load, I32Load8S, I32Load8U, I32Load16S, I32Load16U,
        I32Store, I32Store8, I32Store16, I64Load, I64Load8S, I64Load8U, I64Load16S, I64Load16U, I64Load32S,
        I64Load32U, I64Store, I64Store8, I64Store16, I64Store32,
    };
    Some(match operator {
        I32Load { memarg }
        | I32Load8S { memarg }
        | I32Load8U { memarg }
        | I32Load16S { memarg }
        | I32Load16U { memarg }
        | I64Load { memarg }
        | I64Load8S { memarg }
        | I64Load8U { memarg }
        | I64Load16S { memarg }
        | I64Load16U { memarg }
        | I64Load32S { memarg }
        | I64Load32U { memarg }
        | F32Load { memarg }
        | F64Load { memarg } => (memarg.offset, None),
        I32Store { memarg } | I32Store8 { memarg } | I32Store16 { memarg } => (memarg.offset, Some(0)),
        I64Store { memarg } | I64Store8 { memarg } | I64Store16 { memarg } | I64Store32 { memarg } => {
            (memarg.offset, Some(1))
        }
        F32Store { memarg } => (memarg.offset, Some(2)),
        F64Store { memarg } => (memarg.offset, Some(3)),
        _ => return None,
    })
}
