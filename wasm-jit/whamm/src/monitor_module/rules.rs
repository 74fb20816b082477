//! The rules of a monitor, arranged so that those for a place are found quickly.

use std::collections::HashMap;

use super::load::MonitorModule;
use super::names::{Event, Rule};
use crate::conditions::{Index, Known};

/// The rules for an event, or for an instruction.
#[derive(Default)]
pub(super) struct OfEvent {
    pub(super) index: Index,
    /// The function for which `rest` is known.
    pub(super) function: Option<u32>,
    /// The rules that the index does not find, without those that never match in the function.
    pub(super) rest: Vec<usize>,
}

/// The events of a function that are no instructions, and have rules of their own.
const EVENTS: [Event; 4] = [Event::Entry, Event::Exit, Event::BlockStart, Event::BlockEnd];

pub(super) struct Rules {
    /// What is known about predicates, by rule.
    pub(super) known: Vec<Known>,
    /// By rule, a function, and whether the predicate, which depends on nothing else, holds there.
    pub(super) held: Vec<(Option<u32>, bool)>,
    /// The rules about functions that exist.
    pub(super) of_functions: Vec<usize>,
    /// Whether there are rules for blocks.
    pub(super) have_blocks: bool,
    /// Whether there are rules with modes other than `before`.
    pub(super) have_modes: bool,
    /// The rules for the [`EVENTS`], then for instructions.
    pub(super) all: Vec<OfEvent>,
    /// The positions of the rules for instructions whose names have been looked up.
    opcodes: HashMap<String, usize>,
}

impl Rules {
    pub(super) fn of(monitor: &MonitorModule) -> Self {
        let predicates = &monitor.described.predicates;
        let rules = || monitor.rules.iter().map(|(_, rule)| rule);
        let mut all = Self {
            known: rules().map(|rule| predicates.known(rule.predicate.as_ref())).collect(),
            held: vec![(None, false); monitor.rules.len()],
            of_functions: (0..)
                .zip(rules())
                .filter(|(_, rule)| rule.event == Event::Known)
                .map(|(n, _)| n)
                .collect(),
            have_blocks: rules().any(|rule| matches!(rule.event, Event::BlockStart | Event::BlockEnd)),
            have_modes: rules().any(|rule| !rule.mode.has_operands()),
            all: Vec::new(),
            opcodes: HashMap::new(),
        };
        for event in EVENTS {
            all.add(monitor, |rule| rule.event == event);
        }
        all
    }

    /// Adds the rules for which the condition holds; returns their position.
    fn add(&mut self, monitor: &MonitorModule, is_such: impl Fn(&Rule) -> bool) -> usize {
        let mut added = OfEvent::default();
        for (number, (_, rule)) in monitor.rules.iter().enumerate() {
            if is_such(rule) {
                added.index.add(number, &self.known[number]);
            }
        }
        self.all.push(added);
        self.all.len() - 1
    }

    /// The position of the rules for one of the [`EVENTS`].
    pub(super) fn for_event(&self, event: &Event) -> usize {
        EVENTS.iter().position(|known| known == event).expect("it is an event of functions")
    }

    /// The position of the rules for an instruction.
    pub(super) fn for_opcode(&mut self, monitor: &MonitorModule, name: &str) -> usize {
        if let Some(position) = self.opcodes.get(name) {
            return *position;
        }
        let position = self.add(monitor, |rule| {
            matches!(&rule.event, Event::Opcode(patterns) if patterns.iter().any(|pattern| pattern.matches(name)))
        });
        self.opcodes.insert(name.to_owned(), position);
        position
    }
}
