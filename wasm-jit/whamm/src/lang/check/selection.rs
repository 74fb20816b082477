//! Rules that act on some of their events, `@once` and `@sample(..)`, and rules whose predicates
//! switch their probes, `@toggle` ([`toggled`](super::super::toggled)).
//!
//! The selection is code of the rule's function, after the predicate:
//!
//! ```text
//! if (!done) {               @once
//!     if (draw()) {          @sample
//!         done = true;       @once
//!         off(probe);        @once, where there is an engine that can do this
//!         body
//!     }
//! }
//! ```
//!
//! Nothing is drawn at a place that is done: where the probe is off, nothing could be drawn.
//!
//! A rule that is sampled by time has, in place of `draw`:
//!
//! ```text
//! if (now() >= due) {
//!     due = the beginning of the next period;
//!     pause(group, due);     where there is somebody who can do this
//!     body
//! }
//! ```
//!
//! `due` is a variable of the rule, and `pause` switches the probes of all its places off until
//! then. Here, `now` and `pause` are functions that the engine provides to monitors; in native
//! programs, the time is that of the event, and `pause` tells the observer that it needs no events
//! of the rule until then.
//!
//! `done` is a variable of the place, and alone decides whether the statements are executed;
//! switching the probe off only saves its cost. The same holds for `due`. `off` is a function that
//! this engine provides to monitors: `wasm_jit:probe`. In native programs, its argument is the
//! number of the place.
//!
//! # Drawing
//! Each event is drawn independently of the others, with the probability that the rule states, as
//! far as the generator is random: xorshift64*, of which the upper 32 bits are compared. All rules
//! share its state, which is the same at the beginning of each run. The draws therefore depend only
//! on the order of events.

use wasm_encoder::ValType;

use super::super::Target;
use super::super::ast::{BinaryOp, Expr, ExprKind, Ident, Sample, Selection};
use super::super::bound::PROBE_ID;
use super::super::diagnostics::ProblemKind;
use super::super::events::{Event, Mode};
use super::super::ir::{Body, Import, Kind, Place, Probe, SITE_HEADER, Statement, Typed};
use super::super::toggled;
use super::super::types::Type;
use super::{Checker, Context};
use crate::monitor_module::{NOW, OFF, PAUSE};

/// The function of the upstream compiler's library that removes a probe.
const REMOVE_PROBE: (&str, &str) = ("dyninstr", "remove_probe");

/// The state of the generator at the beginning: any number but 0.
const SEED: i128 = 0x9e37_79b9_7f4a_7c15;

/// The multiplier of xorshift64*.
const MULTIPLIER: i128 = 0x2545_f491_4f6c_dd1d;

impl Checker<'_> {
    /// Whether a rule for this event can have the annotations; reports a problem if not.
    pub(super) fn can_select(&mut self, selection: &Selection, event: Event) -> bool {
        if let Some((Sample::Period(_), span)) = &selection.sample
            && self.target.prints()
        {
            let message = "sampling by time needs an engine that tells monitors the time";
            let help = "use a percentage; or run the script here: `wasm-jit run --monitors=SCRIPT.mm`";
            self.help(ProblemKind::Unsupported, span, message, help);
            return false;
        }
        let sample = selection.sample.as_ref().map(|(_, span)| span.clone());
        let spans = [&selection.once, &sample, &selection.toggle];
        let Some(span) = spans.into_iter().flatten().next().cloned() else { return true };
        let message = match (event.has_site(), event.mode()) {
            (true, Mode::Before) => return true,
            (true, mode) => format!("this annotation is not supported with the mode `{}`", mode.text()),
            (false, _) => {
                "this annotation belongs to rules that match places of the program's code".to_owned()
            }
        };
        self.problem(ProblemKind::Unsupported, &span, message);
        false
    }

    /// Refuses `@toggle` at a rule whose probes cannot be switched by its predicate.
    pub(super) fn check_toggle(&mut self, selection: &Selection, probe: &Probe) {
        let Some(span) = &selection.toggle else { return };
        if !toggled::can_toggle(probe) {
            let message = "`@toggle` needs a predicate with a condition on variables of the script";
            let help = "such as /enabled/ or /count < 10 && arg0 == 0/";
            self.help(ProblemKind::Rule, span, message, help);
        }
    }

    /// The statements of a rule, restricted to the events that it selects.
    pub(super) fn selected(
        &mut self,
        rule: usize,
        selection: &Selection,
        mut statements: Vec<Statement>,
    ) -> Vec<Statement> {
        let done = selection.once.is_some().then(|| {
            let done = Place::Site(SITE_HEADER + self.site_size);
            self.site_size += Type::U32.size();
            let set = Statement::Set { place: done, component: 0, value: Typed::int(Type::U32, 1) };
            statements.splice(0..0, [set].into_iter().chain(self.off()));
            done
        });
        if let Some((Sample::Period(period), _)) = selection.sample {
            statements = self.in_each_period(rule, period, statements);
        }
        if let Some((Sample::Probability(probability), _)) = &selection.sample {
            let state = self.generator();
            let mut drawn = Vec::new();
            for (op, bits) in [(BinaryOp::Shr, 12), (BinaryOp::Shl, 25), (BinaryOp::Shr, 27)] {
                let shifted = Typed::binary(op, variable(Type::U64, state), Typed::int(Type::U64, bits));
                let value = Typed::binary(BinaryOp::BitXor, variable(Type::U64, state), shifted);
                drawn.push(Statement::Set { place: state, component: 0, value });
            }
            let product =
                Typed::binary(BinaryOp::Mul, variable(Type::U64, state), Typed::int(Type::U64, MULTIPLIER));
            let upper = Typed::binary(BinaryOp::Shr, product, Typed::int(Type::U64, 32));
            let condition =
                Typed::binary(BinaryOp::Lt, upper, Typed::int(Type::U64, i128::from(*probability)));
            drawn.push(Statement::If { condition, yes: statements, no: Vec::new() });
            statements = drawn;
        }
        if let Some(done) = done {
            let condition = Typed::binary(BinaryOp::Eq, variable(Type::U32, done), Typed::int(Type::U32, 0));
            statements = vec![Statement::If { condition, yes: statements, no: Vec::new() }];
        }
        statements
    }

    /// Statements that are executed for the first event in each period only.
    fn in_each_period(&mut self, rule: usize, period: u64, mut statements: Vec<Statement>) -> Vec<Statement> {
        let due = self.due(rule);
        let now = self.local(&Type::U64);
        let time = || variable(Type::U64, now);
        let period = Typed::int(Type::U64, i128::from(period));
        let elapsed = Typed::binary(BinaryOp::Rem, time(), period.clone());
        let next = Typed::binary(BinaryOp::Add, Typed::binary(BinaryOp::Sub, time(), elapsed), period);
        let mut acts = vec![Statement::Set { place: due, component: 0, value: next }];
        let value = match self.target {
            Target::Native => Typed::request(Type::U64, "ns"),
            _ => {
                let now = self.program.import(Import::of_probes(NOW, &[], &[ValType::I64]));
                Typed::new(Type::U64, Kind::Library(now, Vec::new()))
            }
        };
        let pause = Import::of_probes(PAUSE, &[ValType::I32, ValType::I64], &[]);
        let pause = self.program.import(pause);
        let group = self.paused(rule).map_or(0, i128::from);
        let arguments = vec![Typed::int(Type::U32, group), variable(Type::U64, due)];
        acts.push(Statement::Call(Typed::new(Type::UNIT, Kind::Library(pause, arguments))));
        acts.append(&mut statements);
        let condition = Typed::binary(BinaryOp::Ge, time(), variable(Type::U64, due));
        let read = Statement::Set { place: now, component: 0, value };
        vec![read, Statement::If { condition, yes: acts, no: Vec::new() }]
    }

    /// The location of the time at which a rule that is sampled by time acts again.
    fn due(&mut self, rule: usize) -> Place {
        if let Some((_, due)) = self.sampled.iter().find(|(sampled, _)| *sampled == rule) {
            return *due;
        }
        let due = Place::Absolute(self.program.static_size);
        self.program.static_size += Type::U64.size();
        self.sampled.push((rule, due));
        if let Some(group) = self.paused(rule).filter(|_| self.target == Target::Here) {
            // The probes of groups are off at first.
            let switch = self.program.import(Import::switch());
            let arguments = vec![Typed::int(Type::U32, i128::from(group)), Typed::int(Type::U32, 1)];
            let on = Statement::Call(Typed::new(Type::UNIT, Kind::Library(switch, arguments)));
            self.program.begin.push(Body { statements: vec![on], ..Body::default() });
        }
        due
    }

    /// The group of probes that a rule pauses because it is sampled by time. Groups of conditions
    /// have smaller numbers.
    pub(super) fn paused(&self, rule: usize) -> Option<u32> {
        let number = self.sampled.iter().position(|(sampled, _)| *sampled == rule)?;
        matches!(self.target, Target::Here | Target::Native).then_some((toggled::MAX_GROUPS + number) as u32)
    }

    /// The state of the generator.
    fn generator(&mut self) -> Place {
        if let Some(state) = self.generator {
            return state;
        }
        let state = Place::Absolute(self.program.static_size);
        self.program.static_size += Type::U64.size();
        let seed = Statement::Set { place: state, component: 0, value: Typed::int(Type::U64, SEED) };
        self.program.begin.insert(0, Body { statements: vec![seed], ..Body::default() });
        self.generator = Some(state);
        state
    }

    /// Switches the probe off.
    fn off(&mut self) -> Option<Statement> {
        match self.target {
            Target::Anywhere | Target::Program => None,
            Target::Here | Target::Native => Some(Statement::Call(self.call_off())),
        }
    }

    /// The call `dyninstr.remove_probe(probe_id)` of the upstream compiler's library, if it is one
    /// and removes a probe of this engine.
    pub(super) fn removal(&mut self, library: &Ident, name: &Ident, arguments: &[Expr]) -> Option<Typed> {
        let [Expr { kind: ExprKind::Name(argument), .. }] = arguments else { return None };
        let is_removal = (library.name.as_str(), name.name.as_str()) == REMOVE_PROBE
            && argument == PROBE_ID
            && self.find(PROBE_ID).is_none();
        let is_of_place = matches!(&self.context, Context::Rule { event, .. }
            if event.has_site() && event.mode() == Mode::Before);
        (is_removal && is_of_place && self.target == Target::Here).then(|| self.call_off())
    }

    /// A call that switches the probe off.
    fn call_off(&mut self) -> Typed {
        let probe = Typed::request(Type::U32, "probe");
        let off = self.program.import(Import::of_probes(OFF, &[ValType::I32], &[]));
        Typed::new(Type::UNIT, Kind::Library(off, vec![probe]))
    }
}

fn variable(ty: Type, place: Place) -> Typed {
    Typed::new(ty, Kind::Variable(place, 0))
}
