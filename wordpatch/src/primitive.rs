//! Atomics, locks and threads of what is model-checked: std's, or loom's in a build with
//! `--cfg loom`.
//!
//! loom runs a test once for each order in which its threads can make their steps, and for each
//! older value that the memory model lets a load find. The tests are in `interleavings`.

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

    /// An atomic each access to which changes another one first, the same for all, without any
    /// ordering.
    ///
    /// loom leaves out orders that make no difference, and goes too far: it misses that a store and
    /// another thread's load can change places where the storing thread has loaded the value before
    /// (loom's issues 166 and 392), as in every load and compare-exchange. This way every order
    /// makes a difference.
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
