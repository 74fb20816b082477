//! Emits the report: rows of values, separated by commas, under the columns of [`HEADER`].
//!
//! A variable of sites has a row for each site, a map has a row for each of its entries. `event` is
//! the event of the site, or the rule of a variable that the rule's sites share; it is empty for
//! variables of the script.

use wasm_encoder::{BlockType, Instruction as I, ValType};

use super::super::ir::{Place, Report};
use super::super::types::Type;
use super::code::{Code, Layout, memarg};

/// The header with the names of the columns.
const HEADER: &str = "name,type,event,fid,pc,key,value\n";

/// A text as a field, in quotes if necessary.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

pub(super) struct Reporter<'a, 'b> {
    pub(super) code: &'a mut Code<'b>,
    pub(super) layout: Layout<'b>,
}

impl Reporter<'_, '_> {
    pub(super) fn header(&mut self) {
        self.text(HEADER);
    }

    fn text(&mut self, text: &str) {
        self.code.string(text);
        self.code.call("text");
    }

    /// Emits the row of a variable that exists once.
    pub(super) fn once(&mut self, report: &Report, event: Option<&str>) {
        let Place::Absolute(address) = report.place else { return };
        let prefix = format!(
            "{},{},{},,,",
            field(&report.name),
            field(&report.ty.to_string()),
            field(event.unwrap_or(""))
        );
        let base = self.code.local(ValType::I32);
        self.code.int(self.layout.variables + address);
        self.code.raw([I::LocalSet(base)]);
        self.rows(&report.ty, base, &mut |reporter| reporter.text(&prefix));
    }

    /// Emits the rows of the variables of a rule's sites, whose list is at an address.
    pub(super) fn sites(&mut self, reports: &[Report], list: u32) {
        let block = self.code.local(ValType::I32);
        let base = self.code.local(ValType::I32);
        self.code.int(list);
        self.code.load(ValType::I32, 0);
        self.code.raw([
            I::LocalSet(block),
            I::Block(BlockType::Empty),
            I::Loop(BlockType::Empty),
            I::LocalGet(block),
            I::I32Eqz,
            I::BrIf(1),
        ]);
        for report in reports {
            let Place::Site(offset) = report.place else { continue };
            self.code.raw([
                I::LocalGet(block),
                I::I32Const(offset.cast_signed()),
                I::I32Add,
                I::LocalSet(base),
            ]);
            let prefix = format!("{},{},", field(&report.name), field(&report.ty.to_string()));
            self.rows(&report.ty, base, &mut |reporter| {
                reporter.text(&prefix);
                reporter.code.raw([I::LocalGet(block)]);
                reporter.code.load(ValType::I32, 12);
                reporter.code.raw([I::LocalGet(block)]);
                reporter.code.load(ValType::I32, 16);
                reporter.code.call("text");
                for offset in [4, 8] {
                    reporter.text(",");
                    reporter.code.raw([I::LocalGet(block)]);
                    reporter.code.load(ValType::I32, offset);
                    reporter.code.raw([I::I64ExtendI32U]);
                    reporter.code.call("unsigned");
                }
                reporter.text(",");
            });
        }
        self.code.raw([I::LocalGet(block)]);
        self.code.load(ValType::I32, 0);
        self.code.raw([I::LocalSet(block), I::Br(0), I::End, I::End]);
    }

    /// Emits the row of the value at an address, or the rows of a map; each after a prefix.
    fn rows(&mut self, ty: &Type, base: u32, prefix: &mut dyn FnMut(&mut Self)) {
        let Type::Map(key, value) = ty else {
            prefix(self);
            self.text(",");
            self.value(ty, base, 0);
            self.text("\n");
            return;
        };
        let entry = self.code.local(ValType::I32);
        let left = self.code.local(ValType::I32);
        let load = |offset| I::I32Load(memarg(offset));
        self.code.raw([
            I::LocalGet(base),
            load(0),
            I::LocalSet(entry),
            I::LocalGet(base),
            load(12),
            I::LocalSet(left),
            I::Block(BlockType::Empty),
            I::Loop(BlockType::Empty),
            I::LocalGet(left),
            I::I32Eqz,
            I::BrIf(1),
        ]);
        prefix(self);
        self.value(key, entry, 0);
        self.text(",");
        self.value(value, entry, key.size());
        self.text("\n");
        self.code.raw([
            I::LocalGet(entry),
            I::I32Const((key.size() + value.size()).cast_signed()),
            I::I32Add,
            I::LocalSet(entry),
            I::LocalGet(left),
            I::I32Const(1),
            I::I32Sub,
            I::LocalSet(left),
            I::Br(0),
            I::End,
            I::End,
        ]);
    }

    /// Emits a field with the value at an offset from an address.
    fn value(&mut self, ty: &Type, base: u32, offset: u32) {
        let quoted = matches!(ty, Type::Tuple(_) | Type::Str);
        if quoted {
            self.text("\"");
        }
        self.part(ty, base, offset);
        if quoted {
            self.text("\"");
        }
    }

    fn part(&mut self, ty: &Type, base: u32, mut offset: u32) {
        if let Type::Tuple(fields) = ty {
            self.text("(");
            for (index, field) in fields.iter().enumerate() {
                if index > 0 {
                    self.text(", ");
                }
                self.part(field, base, offset);
                offset += field.size();
            }
            self.text(")");
            return;
        }
        let scalar = ty.scalar().unwrap_or(ValType::I32);
        self.code.raw([I::LocalGet(base)]);
        self.code.load(scalar, offset);
        match (ty, scalar) {
            (Type::Str, _) => {
                self.code.raw([I::LocalGet(base)]);
                self.code.load(ValType::I32, offset + 8);
                self.code.call("quoted");
            }
            (Type::Bool, _) => self.code.call("bool"),
            (_, ValType::F32) => {
                self.code.raw([I::F64PromoteF32]);
                self.code.call("float");
            }
            (_, ValType::F64) => self.code.call("float"),
            (_, scalar) => {
                if scalar == ValType::I32 {
                    self.code.raw([if ty.is_signed() { I::I64ExtendI32S } else { I::I64ExtendI32U }]);
                }
                self.code.call(if ty.is_signed() { "signed" } else { "unsigned" });
            }
        }
    }
}
