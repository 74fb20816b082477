//! [`Tags`]: exceptions between a program and its host, as represented in a trace.
//!
//! The program can only look into exceptions of its own tags. Other exceptions pass through it: in
//! a trace, their tags have numbers that are not indices, and a replay makes tags for them.

use wasm_jit::probes::UnwoundFrame;
use wasm_jit::{ExnRef, FuncType, Instance, Tag, TagType};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};
use super::event::{Event, Exception, Reason};
use super::functions::{Functions, all_recorded};
use super::value::Value;

/// The event for a frame that is left by an exception or otherwise, in a recording that began with
/// this amount of fuel. `None` for an exception that cannot be recorded there: the module does not
/// have its tag, or it carries a reference that is not null. The trace must end before it.
pub(crate) fn unwound(left: UnwoundFrame<'_>, fuel: Option<u64>) -> Option<Event> {
    let Some(exception) = left.exception() else {
        return Some(Event::Fail { reason: left.trap().map(|trap| Reason::of_trap(trap, fuel)) });
    };
    let value = |field: Option<_>| Value::of(&field?, |_| None, |_| None);
    let values = exception.fields.into_iter().map(value).collect::<Option<_>>()?;
    Some(Event::Throw(Exception { tag: exception.tag?, values }))
}

/// The tags of an instance, and other tags, by their numbers in a trace.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    others: Vec<(u32, Tag)>,
}

impl Tags {
    /// Records an exception.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it carries a reference to something outside of the module.
    pub(crate) fn recorded(
        &mut self,
        store: &mut dyn AnyStore,
        instance: Instance,
        functions: &Functions,
        exception: &ExnRef,
    ) -> Result<Exception, Error> {
        let fields = store.fields(exception);
        let values = all_recorded(&fields, instance, functions, store)
            .map_err(|_| unsupported("an exception with a reference to what is not the module's"))?;
        let tag = self.number(store, instance, store.tag_of(exception));
        Ok(Exception { tag, values })
    }

    /// The number of a tag; a new tag that is not the instance's gets the next number.
    fn number(&mut self, store: &dyn AnyStore, instance: Instance, tag: Tag) -> u32 {
        let known = || self.others.iter().find(|(_, other)| *other == tag).map(|(number, _)| *number);
        store.tag_index(instance, tag).or_else(known).unwrap_or_else(|| {
            let number = number_of_tags(store, instance) + self.others.len() as u32;
            self.others.push((number, tag));
            number
        })
    }

    /// The tag of a recorded exception. If the instance does not have it, a tag is made for
    /// exceptions with such values.
    ///
    /// # Errors
    /// As [`Tag::new`].
    pub(crate) fn tag(
        &mut self,
        store: &mut dyn AnyStore,
        instance: Instance,
        Exception { tag, values }: &Exception,
    ) -> Result<Tag, wasm_jit::Error> {
        let known = || self.others.iter().find(|(number, _)| number == tag).map(|(_, other)| *other);
        if let Some(known) = store.tag(instance, *tag).or_else(known) {
            return Ok(known);
        }
        let ty = TagType::new(FuncType::new(values.iter().map(|value| value.ty().engine()), []));
        let made = store.make_tag(&ty)?;
        self.others.push((*tag, made));
        Ok(made)
    }
}

/// The number of tags of an instance, including imported ones.
fn number_of_tags(store: &dyn AnyStore, instance: Instance) -> u32 {
    (0..).take_while(|index| store.tag(instance, *index).is_some()).count() as u32
}
