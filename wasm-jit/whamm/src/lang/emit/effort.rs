//! Determines which functions of a script may run for long, recurse without end, or fail.
//!
//! Rules count steps to ensure that they end: iterations of loops, and calls to functions. Only
//! functions that need it are counted, so that a rule without loops and recursion has no additional
//! cost:
//!
//! - those with a loop, in which iterations are counted,
//! - those that call themselves, directly or indirectly, and those that call these,
//! - those whose calls add up to more than [`MAX_UNCOUNTED`]: each of a chain of functions may call
//!   the next one twice.
//!
//! The remaining ones are found from the leaves of the call graph: functions that are left over are
//! part of a recursion, or lead to one.

use super::super::ast::BinaryOp;
use super::super::ir::{Function, Kind, Statement, Typed, visit};
use super::super::split;

/// The maximum number of calls that a function may cause without a step.
const MAX_UNCOUNTED: u64 = 1 << 12;

/// How much a function of a script may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effort {
    /// Whether each call to it is a step.
    pub(super) is_counted: bool,
    /// Whether it may be called again before it has returned.
    pub(super) is_recursive: bool,
    /// Whether it, or a function that it calls, takes steps.
    pub(super) takes_steps: bool,
    /// Whether it, or a function that it calls, may fail.
    pub(super) may_fail: bool,
}

/// The effort of a function without its callees.
#[derive(Default)]
struct Own {
    /// The function's callees, each as often as it is called.
    callees: Vec<usize>,
    has_loop: bool,
    may_fail: bool,
}

/// The efforts of a script's functions.
pub(super) fn of(functions: &[Function]) -> Vec<Effort> {
    let mut own: Vec<Own> = functions.iter().map(|_| Own::default()).collect();
    let mut callers: Vec<Vec<usize>> = vec![Vec::new(); functions.len()];
    for (number, function) in functions.iter().enumerate() {
        of_statements(&function.body.statements, &mut own[number]);
        own[number].callees.iter().for_each(|callee| callers[*callee].push(number));
    }
    let endless = Effort { is_counted: true, is_recursive: true, takes_steps: true, may_fail: true };
    let mut efforts = vec![endless; functions.len()];
    // The number of calls, including itself, that a call causes and that are not steps.
    let mut uncounted = vec![1_u64; functions.len()];
    let mut left: Vec<usize> = own.iter().map(|own| own.callees.len()).collect();
    let mut ready: Vec<usize> = (0..functions.len()).filter(|number| left[*number] == 0).collect();
    while let Some(number) = ready.pop() {
        let Own { callees, has_loop, may_fail } = &own[number];
        let calls = callees.iter().fold(1, |sum: u64, callee| sum.saturating_add(uncounted[*callee]));
        let is_counted = calls > MAX_UNCOUNTED;
        uncounted[number] = if is_counted { 1 } else { calls };
        let any = |is_such: fn(&Effort) -> bool| callees.iter().any(|callee| is_such(&efforts[*callee]));
        let takes_steps = is_counted || *has_loop || any(|callee| callee.takes_steps);
        let may_fail = *may_fail || takes_steps || any(|callee| callee.may_fail);
        efforts[number] = Effort { is_counted, is_recursive: false, takes_steps, may_fail };
        for caller in &callers[number] {
            left[*caller] -= 1;
            if left[*caller] == 0 {
                ready.push(*caller);
            }
        }
    }
    efforts
}

fn of_statements(statements: &[Statement], own: &mut Own) {
    visit(statements, &mut |statement| {
        own.has_loop |= matches!(statement, Statement::While { .. });
        statement.values().into_iter().for_each(|value| of_value(value, own));
    });
}

fn of_value(value: &Typed, own: &mut Own) {
    match &value.kind {
        Kind::Call(function, _) => own.callees.push(*function),
        Kind::Transfer(..) => own.may_fail = true,
        Kind::Binary(op @ (BinaryOp::Div | BinaryOp::Rem), left, right) => {
            own.may_fail |= split::may_trap(*op, left, right);
        }
        _ => {}
    }
    value.children().into_iter().for_each(|child| of_value(child, own));
}

#[cfg(test)]
mod tests {
    use super::super::super::ir::Body;
    use super::super::super::types::Type;
    use super::*;

    fn function(callees: &[usize]) -> Function {
        let call = |callee: &usize| Statement::Call(Typed::new(Type::UNIT, Kind::Call(*callee, Vec::new())));
        let body = Body { statements: callees.iter().map(call).collect(), ..Body::default() };
        Function { parameters: Vec::new(), result: Type::UNIT, body }
    }

    #[test]
    fn only_what_may_run_for_long_is_counted() {
        let mut functions = vec![function(&[]), function(&[0, 0]), function(&[2]), function(&[2, 0])];
        // A loop, and a function that calls it.
        let condition = Typed::bool(true);
        functions.push(function(&[]));
        functions[4].body.statements.push(Statement::While { condition, body: Vec::new() });
        functions.push(function(&[4]));
        let plain = Effort { is_counted: false, is_recursive: false, takes_steps: false, may_fail: false };
        let endless = Effort { is_counted: true, is_recursive: true, takes_steps: true, may_fail: true };
        let long = Effort { takes_steps: true, may_fail: true, ..plain };
        assert_eq!(of(&functions), [plain, plain, endless, endless, long, long]);
        // Each function calls the previous one twice: every twelfth one is counted.
        let chain: Vec<Function> = (0..100_usize)
            .map(|number| number.checked_sub(1).map_or(function(&[]), |callee| function(&[callee, callee])))
            .collect();
        let counted: Vec<usize> =
            of(&chain).iter().enumerate().filter(|(_, one)| one.is_counted).map(|(at, _)| at).collect();
        assert_eq!(counted[..2], [12, 24]);
        assert_eq!(counted.len(), 8);
    }
}
