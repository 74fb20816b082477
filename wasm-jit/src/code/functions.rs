//! The functions of an image: their positions, and their try regions.
//!
//! Numbers of functions are their indices without the imports.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use wasm_jit_codegen::{Catch, CompiledFunction};

use super::lazy::LazyFunctions;

/// Alignment of functions, whether compiled together or individually, and of trampolines: a cache
/// line.
pub(super) const ALIGNMENT: usize = 64;

/// The position of a function. Offsets are from the image's start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Function {
    pub entry: u32,
    /// Where the frame is complete: from here, `rbp` and `rsp` are those of the frame.
    pub body: u32,
    pub end: u32,
    pub frame_size: u32,
    /// The first of the function's try regions; they end at the first one of the next function.
    pub(super) first_region: u32,
    /// Offset of the function's body in the binary module.
    pub wasm_start: u32,
    pub wasm_end: u32,
}

/// A try region, in a table of the image or of a version of a function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TryRegion {
    pub start: u32,
    pub end: u32,
    /// The index of the enclosing region in the table.
    pub parent: Option<u32>,
    pub first_catch: u32,
    pub catches: u32,
}

/// Appends the try regions of a function whose code offsets are relative to `base`.
pub(super) fn add_regions(
    base: u32,
    function: &CompiledFunction,
    regions: &mut Vec<TryRegion>,
    catches: &mut Vec<Catch>,
) {
    let first = regions.len() as u32;
    for region in &function.try_regions {
        regions.push(TryRegion {
            start: base + region.start,
            end: base + region.end,
            parent: region.parent.map(|parent| first + parent),
            first_catch: catches.len() as u32,
            catches: region.catches.len() as u32,
        });
        let placed = |catch: &Catch| Catch { tag: catch.tag, handler: base + catch.handler };
        catches.extend(region.catches.iter().map(placed));
    }
}

/// The functions of an image.
#[derive(Debug)]
pub(super) enum Functions {
    /// The functions were compiled together.
    Eager(EagerFunctions),
    /// Each function is compiled when it is first called.
    Lazy(Box<LazyFunctions>),
}

/// Functions that were compiled together.
#[derive(Debug, Default)]
pub(super) struct EagerFunctions {
    /// The functions, in ascending order of code and of number.
    pub functions: Vec<Function>,
    pub regions: Vec<TryRegion>,
    pub catches: Vec<Catch>,
}

impl Functions {
    /// The number of functions.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Eager(all) => all.functions.len(),
            Self::Lazy(all) => all.len(),
        }
    }

    /// A function, if it has been compiled. Atomics only.
    pub(super) fn get(&self, number: usize) -> Option<&Function> {
        match self {
            Self::Eager(all) => all.functions.get(number),
            Self::Lazy(all) => all.get(number),
        }
    }

    /// The range of a function's body in the binary module.
    pub(super) fn body(&self, number: usize) -> Range<u32> {
        match self {
            Self::Eager(all) => all.functions[number].wasm_start..all.functions[number].wasm_end,
            Self::Lazy(all) => all.body(number),
        }
    }

    /// The number of the function that an offset in the code is in. Atomics only.
    pub(super) fn find(&self, offset: u32) -> Option<usize> {
        match self {
            Self::Eager(all) => {
                let after = all.functions.partition_point(|function| function.entry <= offset);
                let number = after.checked_sub(1)?;
                (offset < all.functions[number].end).then_some(number)
            }
            Self::Lazy(all) => all.find(offset),
        }
    }

    /// The try regions of a function that has been compiled.
    pub(super) fn tables(&self, base: usize, number: usize) -> Tables<'_> {
        match self {
            Self::Eager(all) => all.tables(base, number),
            Self::Lazy(all) => {
                let (regions, catches) = all.tables(number);
                Tables { base, regions, own: regions, catches, first_catch: 0 }
            }
        }
    }
}

impl EagerFunctions {
    fn tables(&self, base: usize, number: usize) -> Tables<'_> {
        let (regions, catches) = (&self.regions[..], &self.catches[..]);
        let first = self.functions[number].first_region as usize;
        let end = self.functions.get(number + 1).map_or(regions.len(), |next| next.first_region as usize);
        let own = &regions[first..end];
        let first_catch = own.first().map_or(0, |region| region.first_catch as usize);
        Tables { base, regions, own, catches, first_catch }
    }
}

/// The try regions of a function, in tables that may also contain those of others.
pub(super) struct Tables<'a> {
    /// The address that handlers are relative to.
    pub base: usize,
    /// The complete table of regions.
    pub regions: &'a [TryRegion],
    /// The function's part of `regions`.
    pub own: &'a [TryRegion],
    /// The complete table of catches.
    pub catches: &'a [Catch],
    /// The index of the function's first catch.
    pub first_catch: usize,
}
