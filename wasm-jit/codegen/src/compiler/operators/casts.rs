//! Tests of the types of references: `ref.test`, `ref.cast`, `br_on_cast`, `br_on_cast_fail`.
//!
//! A test is a sequence of comparisons, each of which decides, or leaves the decision to the next
//! one: whether the reference is null, whether it is an object at all, and what its type is.
//! Whether null passes depends on the wanted type. An object passes if its type has the wanted type
//! among its ancestors, at the depth of that type ([`VmType`](crate::vmctx::VmType)).

use wasmparser::{AbstractHeapType, HeapType, RefType};

use crate::asm::{Alu, Cond, Label, Mem, Reg, RegClass, Width};
use crate::compiler::abi::{CONTEXT, SCRATCH, Ty};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::state::{Flag, Val};
use crate::objects::{HOST_BIT, I31_BIT, NO_OBJECT};
use crate::vmctx::{
    FUNC_REF_TYPE, NEAR_ANCESTORS, TYPE_DEPTH, TYPE_FAR_ANCESTORS, TYPE_KIND, TrapCode, VmKind,
};

/// The question about a reference that is not null.
#[derive(Clone, Copy, Debug)]
enum Question {
    /// None: all references of this kind are of the type.
    All,
    /// None: no reference of this kind is of the type.
    None,
    /// Whether it is an `i31`.
    I31,
    /// Whether it is not a host value.
    NotHost,
    /// Whether it is an object of this kind.
    Kind(VmKind),
    /// Whether it is an object of this type.
    Object(u32),
    /// Whether it is a function of this type.
    Func(u32),
}

/// What happens if a reference is of the type, or if it is not.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// Continue after the test.
    Continue,
    /// Jump to this label.
    Label(Label),
    /// Trap.
    Trap,
    /// Branch to the label of this depth.
    Branch(u32),
}

impl FunctionCompiler<'_> {
    pub(crate) fn ref_test(&mut self, nullable: bool, heap_type: HeapType) {
        let reference = self.pop();
        let reg = self.to_reg(&reference);
        let dst = self.alloc(RegClass::General);
        let done = self.asm.new_label();
        self.asm.zero(dst);
        self.test(reg, nullable, heap_type, Outcome::Continue, Outcome::Label(done));
        self.asm.mov_imm(dst, 1);
        self.asm.bind(done);
        self.push(Ty::I32, Val::Reg(dst));
    }

    pub(crate) fn ref_cast(&mut self, nullable: bool, heap_type: HeapType) {
        let (reference, reg) = self.reference();
        self.test(reg, nullable, heap_type, Outcome::Continue, Outcome::Trap);
        self.push_reference(&reference, reg);
    }

    /// Branches with the reference if it is of the type.
    pub(crate) fn br_on_cast(&mut self, depth: u32, to: RefType) {
        self.br_on_type(to, Outcome::Branch(depth), Outcome::Continue);
    }

    /// Branches with the reference if it is not of the type.
    pub(crate) fn br_on_cast_fail(&mut self, depth: u32, to: RefType) {
        self.br_on_type(to, Outcome::Continue, Outcome::Branch(depth));
    }

    fn br_on_type(&mut self, to: RefType, yes: Outcome, no: Outcome) {
        // The locals are needed on both paths.
        self.locals_for_branch();
        let (reference, reg) = self.reference();
        // The reference is the last value of the label.
        self.push_reference(&reference, reg);
        self.test(reg, to.is_nullable(), to.heap_type(), yes, no);
    }

    /// Tests a reference. Changes only the scratch register.
    fn test(&mut self, reg: Reg, nullable: bool, heap_type: HeapType, yes: Outcome, no: Outcome) {
        let question = self.question(heap_type);
        let after = self.asm.new_label();
        // If the condition holds, this decides whether the reference is of the type.
        let decide =
            |compiler: &mut Self, cond: Cond, is_of_type: bool| match if is_of_type { yes } else { no } {
                Outcome::Continue => compiler.asm.jcc(cond, after),
                Outcome::Label(label) => compiler.asm.jcc(cond, label),
                Outcome::Trap => compiler.trap_if(cond, TrapCode::CastFailure),
                Outcome::Branch(depth) => compiler.branch_if(Flag::Int(cond), depth),
            };
        self.asm.test(Width::W64, reg, reg);
        decide(self, Cond::Equal, nullable);
        match question {
            // The flags still show that it is not null.
            Question::All | Question::None => {}
            Question::I31 => self.asm.test_imm(Width::W32, reg, I31_BIT as i32),
            Question::NotHost => {
                // An `i31` may have that bit set.
                self.asm.test_imm(Width::W32, reg, I31_BIT as i32);
                decide(self, Cond::NotEqual, true);
                self.asm.test_imm(Width::W32, reg, HOST_BIT as i32);
            }
            Question::Kind(_) | Question::Object(_) => {
                self.asm.test_imm(Width::W32, reg, NO_OBJECT as i32);
                decide(self, Cond::NotEqual, false);
                self.asm.mov(Width::W64, SCRATCH, Mem::base(reg, 0));
            }
            Question::Func(_) => self.asm.mov(Width::W64, SCRATCH, Mem::base(reg, FUNC_REF_TYPE)),
        }
        let holds = match question {
            Question::All | Question::I31 => Cond::NotEqual,
            Question::Kind(kind) => {
                self.asm.alu_imm(Alu::Cmp, Width::W32, Mem::base(SCRATCH, TYPE_KIND), kind as i32);
                Cond::Equal
            }
            Question::Object(ty) | Question::Func(ty) => {
                self.compare_type(ty, |compiler, is_above| decide(compiler, is_above, false));
                Cond::Equal
            }
            Question::None | Question::NotHost => Cond::Equal,
        };
        // One of the two outcomes continues here.
        if matches!(yes, Outcome::Continue) {
            decide(self, holds.opposite(), false);
        } else {
            decide(self, holds, true);
        }
        self.asm.bind(after);
    }

    /// Compares the type in the scratch register with a type of the module: equal if it is that
    /// type or a subtype. `refuse` must leave if the condition that it gets holds: then the type
    /// has no ancestor at that depth.
    pub(crate) fn compare_type(&mut self, ty: u32, refuse: impl FnOnce(&mut Self, Cond)) {
        let module = self.module;
        let known = &module.types[ty as usize];
        if !known.is_final {
            let mut index = known.depth as usize;
            if index >= NEAR_ANCESTORS {
                self.asm.alu_imm(Alu::Cmp, Width::W32, Mem::base(SCRATCH, TYPE_DEPTH), known.depth as i32);
                refuse(self, Cond::Below);
                self.asm.mov(Width::W64, SCRATCH, Mem::base(SCRATCH, TYPE_FAR_ANCESTORS));
                index -= NEAR_ANCESTORS;
            }
            self.asm.mov(Width::W64, SCRATCH, Mem::base(SCRATCH, 8 * index as i32));
        }
        self.asm.alu(Alu::Cmp, Width::W64, SCRATCH, Mem::base(CONTEXT, self.layout.ty(ty)));
    }

    fn question(&self, heap_type: HeapType) -> Question {
        use AbstractHeapType as Abstract;
        match heap_type {
            HeapType::Abstract { ty, .. } => match ty {
                Abstract::Func | Abstract::Extern | Abstract::Any | Abstract::Exn | Abstract::Cont => {
                    Question::All
                }
                Abstract::None
                | Abstract::NoExtern
                | Abstract::NoFunc
                | Abstract::NoExn
                | Abstract::NoCont => Question::None,
                Abstract::Eq => Question::NotHost,
                Abstract::I31 => Question::I31,
                Abstract::Struct => Question::Kind(VmKind::Struct),
                Abstract::Array => Question::Kind(VmKind::Array),
            },
            HeapType::Concrete(index) | HeapType::Exact(index) => {
                let index = index.as_module_index().expect("validated: types have module indices");
                match self.module.types[index as usize].func() {
                    Some(_) => Question::Func(index),
                    None => Question::Object(index),
                }
            }
        }
    }
}
