//! [`Tags`]: exceptions between a program and its host, as they are in a trace.
//!
//! The program can only look into exceptions of tags that it has. Exceptions of others pass through
//! it: in a trace, their tags have numbers that are no indices, and a replay makes tags for them.

use wasm_jit::probes::UnwoundFrame;
use wasm_jit::{ExnRef, FuncType, Instance, Tag, TagType};

use super::any_store::AnyStore;
use super::error::{Error, unsupported};
use super::event::{Event, Exception, Reason};
use super::functions::{Functions, all_recorded};
use super::value::Value;

/// The event for a frame that is left by an exception or something else, in a recording that began
/// with so much fuel. `None` if it is an exception that is not known there: the module does not
/// have its tag, or it carries a reference that is not null. The trace must end then.
pub(crate) fn unwound(left: UnwoundFrame<'_>, fuel: Option<u64>) -> Option<Event> {
    let Some(exception) = left.exception() else {
        return Some(Event::Fail { reason: left.trap().map(|trap| Reason::of_trap(trap, fuel)) });
    };
    let value = |field: Option<_>| Value::of(&field?, |_| None);
    let values = exception.fields.into_iter().map(value).collect::<Option<_>>()?;
    Some(Event::Throw(Exception { tag: exception.tag?, values }))
}

/// The tags of an instance, and others, by their numbers in a trace.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    others: Vec<(u32, Tag)>,
}

impl Tags {
    /// An exception as it is recorded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it carries a reference to what is not the module's.
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

    /// The number of a tag; one that is neither the instance's nor known gets the next one.
    fn number(&mut self, store: &dyn AnyStore, instance: Instance, tag: Tag) -> u32 {
        let known = || self.others.iter().find(|(_, other)| *other == tag).map(|(number, _)| *number);
        store.tag_index(instance, tag).or_else(known).unwrap_or_else(|| {
            let number = number_of_tags(store, instance) + self.others.len() as u32;
            self.others.push((number, tag));
            number
        })
    }

    /// The tag of a recorded exception. One that the instance does not have is made, for exceptions
    /// with such values.
    ///
    /// # Errors
    /// Those of [`Tag::new`].
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

/// Imported ones included.
fn number_of_tags(store: &dyn AnyStore, instance: Instance) -> u32 {
    (0..).take_while(|index| store.tag(instance, *index).is_some()).count() as u32
}
