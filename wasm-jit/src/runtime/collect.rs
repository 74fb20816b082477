//! The collector: frees objects, exceptions and references to host values that WebAssembly can no
//! longer reach.
//!
//! It runs when there are twice as many exceptions and references as the last collection retained
//! (unless they are few compared to the size of the heap), or when as much memory has been
//! allocated in the heap, by host values and by exceptions as was reachable then
//! ([`StoreOpaque::is_collection_due`]). It marks, then sweeps:
//! 1. The roots are the frames of all activations, callee-saved registers, results in transit,
//!    globals, tables and element segments that hold such references, and the objects and
//!    exceptions for which the host has handles.
//! 2. Frames are scanned conservatively: every word that looks like a reference is treated as one.
//!    Compiled code therefore needs no maps of its frames. Nothing moves, so a word that only looks
//!    like a reference merely keeps something alive. The frames of an activation are between its
//!    entry trampoline and the host trampoline through which it was left, which also saves the
//!    registers. The host's part of the stack is not scanned: a host function may run on a separate
//!    stack. References that an ended call left on the stack are cleared when it ends, if there was
//!    a collection during that time ([`stack::clear_below`](super::stack::clear_below)).
//! 3. The values of a marked exception are roots too. Objects are traced by their types, which
//!    record where they have references.
//!
//! It may only run when every live reference is in one of these places: in libcalls that create
//! objects or exceptions, and in host calls before arguments or results are lowered.

use std::arch::asm;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::heap::Heap;
use super::references::ExternRef;
use super::store::StoreOpaque;
use crate::object_type::is_collected;
use crate::trap::Activation;

/// Minimum number of exceptions and references before a collection.
const MINIMUM: usize = 1024;

/// A collection because of the number of exceptions and references waits until there is one for
/// this many bytes of the heap: it marks the complete heap, which takes time.
const HEAP_BYTES: u64 = 64;

/// The thresholds of the next collection.
#[derive(Debug)]
pub(crate) struct Threshold(usize);

impl Default for Threshold {
    fn default() -> Self {
        Self(MINIMUM)
    }
}

/// The callee of the innermost activation, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The host, through a trampoline: the frames end there.
    Host,
    /// The runtime, on the same stack.
    Libcall,
    /// The runtime, on the same stack. Frames and registers of compiled code begin at this address.
    Above(usize),
}

/// Collects if a threshold is exceeded, or if the engine always does.
pub(crate) fn if_due(store: &mut StoreOpaque, from: From, extra: &[u64]) {
    let count = store.extern_refs.len() + store.exceptions.len();
    if count >= store.collect_at.0 || store.is_collection_due() {
        collect(store, from, extra);
    }
}

/// The objects known to be alive.
struct Marks<'a> {
    store: &'a StoreOpaque,
    heap: &'a mut Heap,
    exceptions: Vec<bool>,
    extern_refs: Vec<bool>,
    /// Exceptions that are marked, but whose values are not marked yet.
    pending: Vec<usize>,
}

impl Marks<'_> {
    /// Marks all that marked objects and exceptions refer to.
    fn follow(&mut self) {
        let mut others = Vec::new();
        loop {
            while let Some(place) = self.pending.pop() {
                let store = self.store;
                store.exceptions.words(place).iter().for_each(|word| self.word(*word));
            }
            self.heap.trace(&mut |word| others.push(word));
            others.drain(..).for_each(|word| self.word(word));
            if self.pending.is_empty() {
                return;
            }
        }
    }

    /// Marks the object to which the word refers, if it looks like a reference.
    fn word(&mut self, word: u64) {
        if let Some(place) = self.store.extern_refs.place(word) {
            self.extern_refs[place] = true;
        } else if !self.heap.mark_ambiguous(word)
            && let Some(place) = self.store.exceptions.place(word)
            && !std::mem::replace(&mut self.exceptions[place], true)
        {
            self.pending.push(place);
        }
    }
}

/// Collects. `extra` are references that are stored nowhere else yet.
///
/// # Panics
/// If dropping a host value panics; everything has been freed by then.
pub(crate) fn collect(store: &mut StoreOpaque, from: From, extra: &[u64]) {
    store.collections += 1;
    let mut handles = store.exceptions.prepare();
    handles.extend(store.object_roots.addresses());
    // Taken out, because marking changes it.
    let mut heap = std::mem::replace(&mut store.heap, Heap::new());
    heap.begin(retire_span(store));
    let mut marks = Marks {
        exceptions: vec![false; store.exceptions.places()],
        extern_refs: vec![false; store.extern_refs.places()],
        pending: Vec::new(),
        heap: &mut heap,
        store,
    };
    extra.iter().chain(&handles).for_each(|word| marks.word(*word));
    mark_store(&mut marks);
    mark_stacks(&mut marks, from);
    marks.follow();
    let Marks { exceptions, extern_refs, .. } = marks;
    let unreachable = store.extern_refs.sweep(&extern_refs);
    heap.set_external(store.extern_refs.bytes());
    heap.sweep();
    store.heap = heap;
    store.exceptions.sweep(&exceptions);
    let count = store.extern_refs.len() + store.exceptions.len();
    let worthwhile = (store.heap.bytes() / HEAP_BYTES) as usize;
    store.collect_at = Threshold(MINIMUM.max(2 * count).max(worthwhile));
    drop_all(unreachable);
}

/// Ends the span in which compiled code allocates. Returns where its objects end.
fn retire_span(store: &mut StoreOpaque) -> usize {
    let vm = store.vm();
    // SAFETY: the context lives as long as the store, and no compiled code runs.
    unsafe {
        (*vm).heap_end = 0;
        std::mem::replace(&mut (*vm).heap_next, 0)
    }
}

/// Drops all values, then resumes the first panic of their destructors.
fn drop_all(values: Vec<ExternRef>) {
    let mut first = None;
    for value in values {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            match &first {
                None => first = Some(panic),
                // Dropping the payload of another panic might panic again.
                Some(_) => std::mem::forget(panic),
            }
        }
    }
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}

fn mark_store(marks: &mut Marks<'_>) {
    let store = marks.store;
    for global in store.globals.iter().filter(|global| global.may_hold(is_collected)) {
        marks.word(global.raw() as u64);
    }
    for table in store.tables.iter().filter(|table| is_collected(table.ty.element())) {
        table.elements().iter().for_each(|word| marks.word(*word));
    }
    for instance in &store.instances {
        // SAFETY: instances live as long as their store, and nothing else borrows them here.
        let instance = unsafe { instance.as_ref() };
        instance.collected_elements(is_collected).for_each(|word| marks.word(word));
    }
    // SAFETY: the context lives as long as the store, and is not written here.
    let vm = unsafe { &*store.vm() };
    vm.results.iter().chain(&vm.element).for_each(|word| marks.word(*word));
    marks.word(vm.thrown as u64);
}

/// Scans the frames of all activations.
#[inline(never)]
fn mark_stacks(marks: &mut Marks<'_>, from: From) {
    // SAFETY: the state lives as long as the store, and is not written here.
    let execution = unsafe { &*marks.store.execution() };
    let vm = &execution.vm;
    match from {
        From::Above(stack_pointer) => mark_frames(marks, stack_pointer, vm.activation_fp),
        From::Host => mark_frames(marks, vm.exit_sp, vm.activation_fp),
        From::Libcall => {
            // A callee-saved register still has its value, or it is saved in a frame between
            // compiled code and here.
            let mut kept = [0_u64; 5];
            let stack_pointer: usize;
            // SAFETY: writes five words to `kept`, and only reads registers.
            unsafe {
                asm!(
                    "mov [{kept}], rbx",
                    "mov [{kept} + 8], r12",
                    "mov [{kept} + 16], r13",
                    "mov [{kept} + 24], r14",
                    "mov [{kept} + 32], r15",
                    "mov {stack_pointer}, rsp",
                    kept = in(reg) kept.as_mut_ptr(),
                    stack_pointer = out(reg) stack_pointer,
                    options(nostack, preserves_flags),
                );
            }
            kept.iter().for_each(|word| marks.word(*word));
            mark_frames(marks, stack_pointer, vm.activation_fp);
        }
    }
    // SAFETY: an activation is on the stack of the `enter` that waits for the nested one.
    let outer = |activation: *const Activation| unsafe { activation.as_ref() };
    for activation in std::iter::successors(outer(execution.outer), |inner| outer(inner.outer())) {
        let (exit_sp, activation_fp) = activation.frames();
        mark_frames(marks, exit_sp, activation_fp);
    }
}

/// Scans the words of a stack from one address up to another; none if there is no activation.
fn mark_frames(marks: &mut Marks<'_>, from: usize, activation_fp: usize) {
    let words = (activation_fp & !7).saturating_sub(from) / 8;
    for index in 0..words {
        // SAFETY: between the frame through which an activation was left and its first one, its
        // stack is mapped. The words of the runtime's own frames may change with every call, so
        // they are read one by one.
        marks.word(unsafe { std::ptr::with_exposed_provenance::<u64>(from).add(index).read_volatile() });
    }
}

#[cfg(test)]
mod tests {
    use crate::exn_ref::ExnRef;
    use crate::runtime::{
        ArrayRef, AsContextMut, ExternRef, Func, Global, Instance, Store, Table, Tag, TypedFunc, Val,
    };
    use crate::types::{
        FieldType, FuncType, GlobalType, Mutability, RefType, StorageType, TableType, TagType, ValType,
    };
    use crate::{Engine, Error, Module};

    /// The numbers of exceptions (and of their handles) and references.
    fn counts(store: &mut Store<()>) -> (usize, usize) {
        let mut context = store.as_context_mut();
        (context.opaque().exceptions.len(), context.opaque().extern_refs.len())
    }

    #[test]
    fn exceptions_are_freed_when_no_handle_and_no_exception_refers_to_them() -> Result<(), Error> {
        let mut store = Store::new(&Engine::default(), ());
        let ty = TagType::new(FuncType::new([ValType::EXNREF, ValType::EXTERNREF], []));
        let tag = Tag::new(&mut store, &ty)?;
        let mut chain = None;
        for _ in 0..3 {
            let fields = [Val::ExnRef(chain.take()), ExternRef::new(()).into()];
            chain = Some(ExnRef::new(&mut store, &tag, &fields)?);
        }
        for _ in 0..50_000 {
            ExnRef::new(&mut store, &tag, &[Val::ExnRef(None), Val::ExternRef(None)])?;
        }
        assert!(counts(&mut store).0 <= super::MINIMUM + 2);
        store.gc();
        assert_eq!(counts(&mut store), (3 + 1, 3), "three in a chain, one with a handle");
        drop(chain);
        store.gc();
        assert_eq!(counts(&mut store), (0, 0));
        Ok(())
    }

    #[test]
    fn a_host_function_that_returns_its_argument_makes_no_reference() -> Result<(), Error> {
        let engine = Engine::default();
        let module = Module::new(
            &engine,
            r#"(module (import "host" "f" (func $f (param externref) (result externref)))
                (func (export "run") (param $value externref) (param $n i32) (result externref)
                    (loop $again
                        (local.set $value (call $f (local.get $value)))
                        (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
                    (local.get $value)))"#,
        )?;
        let mut store = Store::new(&engine, ());
        let same = Func::wrap(&mut store, |value: Option<ExternRef>| value)?;
        let another = Func::wrap(&mut store, |_: Option<ExternRef>| Some(ExternRef::new(())))?;
        for (func, expected) in [(same, 1), (another, 1 + 500)] {
            let instance = Instance::new(&mut store, &module, &[func.into()])?;
            let run: TypedFunc<(Option<ExternRef>, i32), Option<ExternRef>> =
                instance.get_typed_func(&mut store, "run")?;
            let value = ExternRef::new(());
            store.gc();
            let result = run.call(&mut store, (Some(value.clone()), 500))?.expect("not null");
            assert_eq!(result.same(&value), expected == 1);
            assert_eq!(counts(&mut store).1, expected);
        }
        Ok(())
    }

    #[test]
    fn a_large_heap_is_not_marked_for_few_references() -> Result<(), Error> {
        let mut store = Store::new(&Engine::default(), ());
        let array = store.engine().new_array_type(FieldType::new(StorageType::I8, Mutability::Const))?;
        let large = ArrayRef::new(&mut store, &array, &Val::I32(0), 16 << 20)?;
        let ty = GlobalType::new(ValType::EXTERNREF, Mutability::Var);
        let global = Global::new(&mut store, ty, Val::ExternRef(None))?;
        store.gc();
        let before = store.as_context_mut().opaque().collections;
        for _ in 0..100_000 {
            global.set(&mut store, ExternRef::new(()).into())?;
        }
        assert_eq!(store.as_context_mut().opaque().collections, before);
        drop(large);
        store.gc();
        for _ in 0..100_000 {
            global.set(&mut store, ExternRef::new(()).into())?;
        }
        let collections = store.as_context_mut().opaque().collections - before;
        assert!((90..110).contains(&collections), "{collections}: one for each thousand");
        Ok(())
    }

    #[test]
    fn the_memory_of_exceptions_makes_a_collection_due() -> Result<(), Error> {
        let mut store = Store::new(&Engine::default(), ());
        let array = store.engine().new_array_type(FieldType::new(StorageType::I8, Mutability::Const))?;
        let _large = ArrayRef::new(&mut store, &array, &Val::I32(0), 16 << 20)?;
        let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::I64; 1000], [])))?;
        let fields = [const { Val::I64(0) }; 1000];
        store.gc();
        // Fewer than one for each `HEAP_BYTES` of the heap.
        let mut most = 0;
        for _ in 0..6000 {
            ExnRef::new(&mut store, &tag, &fields)?;
            most = most.max(store.as_context_mut().opaque().exceptions.bytes());
        }
        assert!(most < 17 << 20, "{most} bytes of unreachable exceptions");

        let kept: Vec<ExnRef> =
            (0..4000).map(|_| ExnRef::new(&mut store, &tag, &fields)).collect::<Result<_, _>>()?;
        store.gc();
        let before = store.as_context_mut().opaque().collections;
        for _ in 0..9000 {
            ExnRef::new(&mut store, &tag, &fields)?;
        }
        let collections = store.as_context_mut().opaque().collections - before;
        assert_eq!(collections, 1, "72 MB, while {} exceptions (32 MB) and 17 MB are alive", kept.len());
        Ok(())
    }

    #[test]
    fn dropped_handles_are_forgotten() -> Result<(), Error> {
        let mut store = Store::new(&Engine::default(), ());
        let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::EXNREF], [])))?;
        let inner = ExnRef::new(&mut store, &tag, &[Val::ExnRef(None)])?;
        let outer = ExnRef::new(&mut store, &tag, &[inner.clone().into()])?;
        let ty = GlobalType::new(ValType::EXNREF, Mutability::Const);
        let global = Global::new(&mut store, ty, inner.clone().into())?;
        let table = Table::new(&mut store, TableType::new(RefType::EXNREF, 1, None), inner.into())?;
        for _ in 0..10_000 {
            assert!(global.get(&mut store).unwrap_exn_ref().is_some());
            assert!(table.get(&mut store, 0).is_some_and(|value| value.unwrap_exn_ref().is_some()));
            assert!(outer.fields(&mut store)[0].unwrap_exn_ref().is_some());
        }
        let (count, _) = counts(&mut store);
        assert!(count <= super::MINIMUM + 3, "{count} for two exceptions");
        Ok(())
    }
}
