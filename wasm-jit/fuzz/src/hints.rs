//! Branch hints: which way a conditional branch most likely goes. They change the machine code, and
//! must not change what a program does.

use wasm_encoder::{BranchHint, BranchHints, Section as _};
use wasmparser::{FunctionBody, Operator, Parser, Payload, TypeRef};

use crate::random::Random;

/// The module with hints for some of its conditional branches. They need not be true.
pub(crate) fn with_hints(wasm: &[u8], random: &mut Random) -> Vec<u8> {
    let mut section = BranchHints::new();
    let mut function = 0;
    // Where the last section has ended, and where the code section begins.
    let (mut end, mut code) = (0, 0);
    for payload in Parser::new(0).parse_all(wasm).map_while(Result::ok) {
        match &payload {
            Payload::Version { range, .. } => end = range.end as usize,
            Payload::CodeSectionStart { .. } => code = end,
            Payload::ImportSection(imports) => {
                let imports = imports.clone().into_imports().map_while(Result::ok);
                function += imports.filter(|import| matches!(import.ty, TypeRef::Func(_))).count() as u32;
            }
            Payload::CodeSectionEntry(body) => {
                let hints = hints_of(body, random);
                if !hints.is_empty() {
                    section.function_hints(function, hints);
                }
                function += 1;
            }
            _ => {}
        }
        if let Some((_, range)) = payload.as_section() {
            end = range.end as usize;
        }
    }
    let mut hinted = wasm[..code].to_vec();
    if !section.is_empty() {
        section.append_to(&mut hinted);
    }
    hinted.extend(&wasm[code..]);
    hinted
}

fn hints_of(body: &FunctionBody<'_>, random: &mut Random) -> Vec<BranchHint> {
    let start = body.range().start;
    let operators =
        body.get_operators_reader().into_iter().flat_map(|reader| reader.into_iter_with_offsets());
    let mut hints = Vec::new();
    for (operator, offset) in operators.map_while(Result::ok) {
        use Operator as O;
        let is_branch = matches!(
            operator,
            O::If { .. }
                | O::BrIf { .. }
                | O::BrOnNull { .. }
                | O::BrOnNonNull { .. }
                | O::BrOnCast { .. }
                | O::BrOnCastFail { .. }
        );
        if is_branch && !random.one_in(3) {
            let branch_hint_value = u32::from(random.one_in(2));
            hints.push(BranchHint { branch_func_offset: (offset - start) as u32, branch_hint_value });
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_in_the_module_and_at_branches() {
        let text = r#"(module (import "host" "f" (func)) (memory 1) (data (i32.const 0) "a")
            (func (if (i32.const 1) (then nop)))
            (func nop)
            (func (param i32) (result i32)
                (block (br_if 0 (local.get 0)) (br_if 0 (i32.eqz (local.get 0)))) (i32.const 1)))"#;
        let wasm = wat::parse_str(text).unwrap();
        let (mut likely, mut unlikely) = (0, 0);
        for seed in 0..20 {
            let hinted = with_hints(&wasm, &mut Random::new(seed));
            let printed = wasmprinter::print_bytes(&hinted).unwrap();
            likely += printed.matches("(@metadata.code.branch_hint \"\\01\")").count();
            unlikely += printed.matches("(@metadata.code.branch_hint \"\\00\")").count();
            let plain: String =
                printed.split_inclusive('\n').filter(|line| !line.contains("branch_hint")).collect();
            assert_eq!(plain, wasmprinter::print_bytes(&wasm).unwrap());
        }
        assert!(likely > 10 && unlikely > 10, "{likely} and {unlikely} of 60 branches");
    }
}
