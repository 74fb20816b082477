//! Host functions that switch to a stack of their own, as coroutines and segmented stacks do.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

use wasm_jit::{
    Caller, Engine, Error, ExnRef, Extern, ExternRef, Func, FuncType, Instance, Linker, Module, Store, Tag,
    TagType, Trap, Val, ValType,
};

const GUARD: usize = 1 << 20;

/// A stack with inaccessible pages on both sides.
struct Stack {
    base: *mut u8,
    size: usize,
}

impl Stack {
    fn new(size: usize) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, whose middle part is made accessible.
        let base = unsafe {
            let base = libc::mmap(null_mut(), size + 2 * GUARD, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(GUARD), size, access), 0);
            base.cast()
        };
        Self { base, size }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing runs on it.
        unsafe { libc::munmap(self.base.cast(), self.size + 2 * GUARD) };
    }
}

thread_local! {
    /// The closure that `on_stack` is about to run.
    static NEXT: Cell<Option<*mut (dyn FnMut() + 'static)>> = const { Cell::new(None) };
}

extern "C" fn run_next() {
    let next = NEXT.take().expect("set by `on_stack`");
    // SAFETY: `on_stack` waits until this function returns.
    unsafe { (*next)() };
}

/// Runs a closure on another stack.
fn on_stack<R>(size: usize, run: impl FnOnce() -> R) -> R {
    let stack = Stack::new(size);
    let mut run = Some(run);
    let mut outcome: Option<Result<R, Box<dyn Any + Send>>> = None;
    let mut act = || {
        let run = run.take().expect("runs once");
        outcome = Some(catch_unwind(AssertUnwindSafe(run)));
    };
    let act: &mut dyn FnMut() = &mut act;
    // SAFETY: only the lifetime changes. The closure is called before this function returns.
    NEXT.set(Some(unsafe { std::mem::transmute::<&mut dyn FnMut(), *mut (dyn FnMut() + 'static)>(act) }));
    // SAFETY: the contexts are on this stack, which is resumed by the other one; its memory is
    // mapped until then.
    unsafe {
        let (mut here, mut there): (libc::ucontext_t, libc::ucontext_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(libc::getcontext(&mut there), 0);
        there.uc_stack.ss_sp = stack.base.add(GUARD).cast();
        there.uc_stack.ss_size = stack.size;
        there.uc_link = &mut here;
        libc::makecontext(&mut there, run_next, 0);
        assert_eq!(libc::swapcontext(&mut here, &there), 0);
    }
    match outcome.expect("it has run") {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

const LARGE: usize = 8 << 20;

/// Creates enough references and exceptions for several collections.
fn litter(caller: &mut Caller<'_, ()>, table: wasm_jit::Table, tag: &Tag) -> Result<(), Error> {
    for number in 0..5000 {
        table.set(&mut *caller, 0, ExternRef::new(number).into())?;
        ExnRef::new(&mut *caller, tag, &[Val::I32(number)])?;
    }
    Ok(())
}

#[test]
fn a_collection_on_another_stack_keeps_references_in_the_programs_frames() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "tag" (tag $tag (param i32)))
            (import "host" "make" (func $make (param i32) (result externref)))
            (import "host" "litter" (func $litter (param i32)))
            (import "host" "check" (func $check (param externref i32)))
            (table (export "table") 1 externref)
            (func $number (param exnref) (result i32)
                (block $caught (result i32)
                    (try_table (catch $tag $caught) (throw_ref (local.get 0)))
                    unreachable))
            ;; Holds references in locals, in registers that calls keep, and on the value stack.
            (func $hold (export "hold") (param $depth i32)
                (local $a externref) (local $b externref) (local $e exnref) (local $n i32)
                (local.set $a (call $make (i32.const 10)))
                (local.set $b (call $make (i32.const 11)))
                (local.set $e (call $throw (i32.const 12)))
                (call $make (i32.const 13))
                (loop $again
                    (call $litter (local.get $depth))
                    (call $check (local.get $a) (i32.const 10))
                    (call $check (local.get $b) (i32.const 11))
                    (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 2))))
                (call $check (i32.const 13))
                (if (i32.ne (call $number (local.get $e)) (i32.const 12)) (then unreachable)))
            ;; Holds one in a register that calls keep, and nowhere else.
            (func $same (param externref) (result i32) (ref.is_null (local.get 0)))
            (func (export "keep") (param $depth i32)
                (local $register externref) (local $n i32)
                (loop $again
                    (local.set $register (call $make (i32.const 77)))
                    (loop $inner
                        (call $litter (local.get $depth))
                        (call $check (local.get $register) (i32.const 77))
                        (drop (call $same (local.get $register)))
                        (drop (call $same (local.get $register)))
                        (br_if $inner (ref.is_null (local.get $register))))
                    (br_if $again (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 3)))))
            (func $throw (param i32) (result exnref)
                (block $caught (result exnref)
                    (try_table (catch_all_ref $caught) (throw $tag (local.get 0)))
                    unreachable)))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let tag = Tag::new(&mut store, &TagType::new(FuncType::new([ValType::I32], []))).unwrap();
    let mut linker = Linker::new(&engine);
    linker.define(&store, "host", "tag", tag).unwrap();
    linker.func_wrap("host", "make", |number: i32| Some(ExternRef::new(number))).unwrap();
    linker
        .func_wrap("host", "check", |value: Option<ExternRef>, expected: i32| {
            assert_eq!(value.expect("not null").data().downcast_ref(), Some(&expected));
        })
        .unwrap();
    linker
        .func_wrap("host", "litter", move |mut caller: Caller<'_, ()>, depth: i32| -> Result<(), Error> {
            let Some(Extern::Table(table)) = caller.get_export("table") else { panic!("exported") };
            // Before, on, and after the other stack; and in calls from it.
            litter(&mut caller, table, &tag)?;
            on_stack(LARGE, || {
                litter(&mut caller, table, &tag)?;
                if depth > 0 {
                    let hold = caller.get_export("hold").and_then(Extern::into_func).expect("exported");
                    hold.typed::<i32, ()>(&caller)?.call(&mut caller, depth - 1)?;
                }
                litter(&mut caller, table, &tag)
            })?;
            litter(&mut caller, table, &tag)
        })
        .unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let hold = instance.get_typed_func::<i32, ()>(&mut store, "hold").unwrap();
    hold.call(&mut store, 2).unwrap();
    let keep = instance.get_typed_func::<i32, ()>(&mut store, "keep").unwrap();
    keep.call(&mut store, 0).unwrap();
    // The complete program may also run on another stack.
    on_stack(LARGE, || hold.call(&mut store, 1)).unwrap();
}

const RECURSION: &str = r#"(module
    (import "host" "elsewhere" (func $elsewhere (param i32) (result i32)))
    (func $deep (export "deep") (param $n i32) (result i32)
        (if (result i32) (local.get $n)
            (then (i32.add (call $deep (i32.sub (local.get $n) (i32.const 1))) (i32.const 1)))
            (else (i32.const 0))))
    (func (export "run") (param $there i32) (param $here i32) (result i32)
        (i32.add (call $elsewhere (local.get $there)) (call $deep (local.get $here)))))"#;

/// An instance whose `elsewhere` calls `deep` on another stack, and returns -1 if that overflows
/// the stack.
fn recursion() -> (Store<()>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, RECURSION).unwrap();
    let mut store = Store::new(&engine, ());
    let elsewhere = Func::wrap(&mut store, |mut caller: Caller<'_, ()>, n: i32| -> Result<i32, Error> {
        let deep = caller.get_export("deep").and_then(Extern::into_func).expect("exported");
        let deep = deep.typed::<i32, i32>(&caller)?;
        match on_stack(LARGE, || deep.call(&mut caller, n)) {
            Err(error) if error.trap() == Some(Trap::StackOverflow) => Ok(-1),
            outcome => outcome,
        }
    })
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[elsewhere.into()]).unwrap();
    (store, instance)
}

#[test]
fn each_stack_has_its_own_limit() {
    const DEEP: i32 = 10_000;
    const ENDLESS: i32 = -1;
    let (mut store, instance) = recursion();
    let run = instance.get_typed_func::<(i32, i32), i32>(&mut store, "run").unwrap();
    let mut check = || {
        assert_eq!(run.call(&mut store, (DEEP, DEEP)).unwrap(), 2 * DEEP);
        assert_eq!(run.call(&mut store, (ENDLESS, DEEP)).unwrap(), DEEP - 1, "the limit there, then here");
        let overflow = run.call(&mut store, (DEEP, ENDLESS)).unwrap_err();
        assert_eq!(overflow.trap(), Some(Trap::StackOverflow));
        assert_eq!(run.call(&mut store, (0, DEEP)).unwrap(), DEEP);
    };
    check();
    on_stack(LARGE, check);
}
