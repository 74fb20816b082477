//! Atomics, locks and threads of the code that is model-checked: those of std, or those of loom in
//! a build with `--cfg loom`.
//!
//! loom runs a test once for each order of the threads' steps, and for each older value that a load
//! may return in the memory model. The tests are in `interleavings`.

#[cfg(loom)]
pub(crate) use self::in_loom::*;
#[cfg(not(loom))]
pub(crate) use self::in_std::*;

#[cfg(not(loom))]
mod in_std {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;

    /// Statics.
    #[cfg(not(model))]
    macro_rules! global {
        ($($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            $($(#[$doc])* static $name: $type = $value;)*
        };
    }
    /// Statics that are new in each replay of an exploration.
    #[cfg(model)]
    macro_rules! global {
        ($($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;)*) => {$(
            $(#[$doc])*
            static $name: wordpatch_model::environment::PerReplay<$type> =
                wordpatch_model::environment::PerReplay::new(|| $value);
        )*};
    }
    pub(crate) use global;
}

#[cfg(loom)]
mod in_loom {
    use std::ops::Deref;

    use loom::sync::atomic;
    pub(crate) use loom::sync::atomic::{Ordering, fence};
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(crate) use loom::thread;

    /// Statics that are new in each execution.
    macro_rules! global {
        ($($(#[$doc:meta])* static $name:ident: $type:ty = $value:expr;)*) => {
            loom::lazy_static! {
                $($(#[$doc])* static ref $name: $type = $value;)*
            }
        };
    }
    pub(crate) use global;

    global! {
        static EVERY_ACCESS: atomic::AtomicUsize = atomic::AtomicUsize::new(0);
    }

    /// An atomic whose accesses first change another atomic, common to all, with relaxed ordering.
    ///
    /// loom skips orders that it considers equivalent, but skips too many: it does not try both
    /// orders of a store and another thread's load if the storing thread has loaded the value
    /// before (loom's issues 166 and 392), which is the case in every load followed by a
    /// compare-exchange. With the common atomic, no two orders are equivalent.
    #[derive(Debug)]
    pub(crate) struct Ordered<A>(A);

    impl<A> Deref for Ordered<A> {
        type Target = A;

        fn deref(&self) -> &A {
            EVERY_ACCESS.fetch_add(1, Ordering::Relaxed);
            &self.0
        }
    }

    macro_rules! ordered {
        ($($name:ident: $value:ty),*) => {$(
            pub(crate) type $name = Ordered<atomic::$name>;

            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }
            }
        )*};
    }
    ordered!(AtomicBool: bool, AtomicU8: u8, AtomicU64: u64, AtomicUsize: usize);

    pub(crate) type AtomicPtr<T> = Ordered<atomic::AtomicPtr<T>>;

    impl<T> AtomicPtr<T> {
        pub(crate) fn new(value: *mut T) -> Self {
            Self(atomic::AtomicPtr::new(value))
        }
    }
}
