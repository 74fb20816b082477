//! Versions of functions, for listings, debuggers and profilers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use wasm_jit_codegen::{Position, SITE_LENGTH, site_jump};

use super::blocks::{Block, Blocks};
use super::version::SitePlace;
use super::{PLAIN, Version};
use crate::code::symbols::VersionCode;
use crate::code::{CodeImage, ObserveError};

/// A version with sites. Offsets are from its start.
#[derive(Debug)]
pub(crate) struct Listed {
    /// The address at which it is executed.
    pub base: usize,
    /// The code of the function, and of the stubs after it, with the sites in their present form.
    pub code: Vec<u8>,
    pub entry: u32,
    /// The end of the function, where stubs begin.
    pub end: u32,
    /// The origins of the code, in code order. A site belongs to its instruction.
    pub positions: Vec<Position>,
    /// In code order.
    pub sites: Vec<ListedSite>,
}

/// A site and its stub.
#[derive(Clone, Debug)]
pub(crate) struct ListedSite {
    pub code: u32,
    /// The offset of the instruction in the module; for the entry and the exit, the start and the
    /// end of the body.
    pub wasm: u32,
    pub stub: Range<u32>,
    /// The stub of its active probes, if it jumps to one: its offset, modulo 2^64, and its code.
    pub list: Option<(u64, Vec<u8>)>,
}

impl CodeImage {
    /// The most recent version of a function that is not plain; none if the function was never
    /// probed.
    ///
    /// # Errors
    /// As [`CodeImage::observe`].
    pub(crate) fn last_version(&self, function: u32) -> Result<Option<Listed>, ObserveError> {
        let probed = self.probed.get().and_then(|probed| probed.function(self, function));
        let versions = probed.into_iter().flat_map(|probed| &probed.versions[1..PLAIN]);
        let Some(version) = versions.filter_map(|version| version.get()).last() else { return Ok(None) };
        let positions = self.positions_at(version.at(version.entry), function)?;
        let blocks = &self.probed().blocks;
        Ok(Some(version.listed(positions, self.body_range(function), blocks)))
    }

    /// The addresses at which the versions of a function begin.
    pub(crate) fn version_entries(&self, function: u32) -> impl Iterator<Item = usize> {
        let probed = self.probed.get().and_then(|probed| probed.function(self, function));
        let versions = probed.into_iter().flat_map(|probed| &probed.versions[1..]);
        versions.filter_map(|version| version.get()).map(|version| version.at(version.entry))
    }

    /// The code of all functions as it was compiled: without jumps to versions, and without traps
    /// at transfer points.
    pub(crate) fn code_without_versions(&self) -> Vec<u8> {
        let mut code = self.code();
        let Some(probed) = self.probed.get() else { return code };
        let base = self.memory().address();
        let changes = self.state();
        for index in self.indices() {
            if let Some(entry) = changes.functions.get(index).and_then(|state| state.entry) {
                let first = entry.first.as_slice();
                code[entry.address - base..][..first.len()].copy_from_slice(first);
            }
            let function = probed.function(self, index);
            let Some(original) = function.and_then(|function| function.versions[0].get()) else { continue };
            for (point, byte) in original.points.iter().zip(&original.first_bytes) {
                code[original.at(*point) - base] = *byte;
            }
        }
        code
    }

    /// The functions that were compiled when they were first called; all versions with sites, but
    /// only the stubs of originals; all stubs of lists; the stubs of entries.
    pub(in crate::code) fn versions(&self) -> impl Iterator<Item = VersionCode> {
        let versions = self.indices().flat_map(|function| {
            let probed = self.probed.get().and_then(|probed| probed.function(self, function));
            let versions = probed.into_iter().flat_map(|probed| &probed.versions);
            let sited = versions
                .filter_map(OnceLock::get)
                .filter(|version| version.number != 0 || !version.places.is_empty());
            sited.map(move |version| version.place_of_code(function))
        });
        let blocks = self.probed.get().into_iter().flat_map(|probed| probed.blocks.all());
        self.lazily_compiled()
            .chain(versions)
            .chain(blocks.filter(|block| block.stub.is_some()).map(|block| block.place_of_stub()))
            .chain(self.probed.get().and_then(|probed| probed.entered.place_of_stubs()))
    }
}

impl Block {
    /// The stub of a list.
    pub(super) fn place_of_stub(&self) -> VersionCode {
        VersionCode::of_stubs(Some(self.function), self.start..self.end, self.start)
    }
}

impl Version {
    pub(super) fn place_of_code(&self, function: u32) -> VersionCode {
        let code = self.at(self.entry)..self.at(self.end);
        let stubs = self.stub_address(self.places.first().map_or(self.end, |place| place.stub));
        VersionCode {
            function: Some(function),
            is_original: false,
            code: (self.number != 0).then_some(code),
            body: self.at(self.body),
            stubs: stubs..self.stub_address(self.stubs_end),
            stubs_frame: stubs,
        }
    }

    fn listed(&self, mut positions: Vec<Position>, body: Range<u32>, blocks: &Blocks) -> Listed {
        let byte = |at: usize| {
            let byte: *const u8 = std::ptr::with_exposed_provenance(at);
            // SAFETY: inside the version or a stub of it, which stay mapped with their image.
            // They may be patched at the same time.
            unsafe { byte.read_volatile() }
        };
        let code: Vec<u8> = (self.base..self.at(self.stubs_end)).map(byte).collect();
        let list = |place: &SitePlace| {
            let at = self.at(place.code);
            let site = &code[place.code as usize..][..SITE_LENGTH as usize];
            let distance = site.last_chunk().map(|distance| i32::from_le_bytes(*distance))?;
            let target = (at + site.len()).wrapping_add_signed(distance as isize);
            if site_jump(at, target) != site {
                return None;
            }
            let block = blocks.find(target).filter(|block| block.start == target && block.stub.is_some())?;
            Some((target.wrapping_sub(self.base) as u64, (block.start..block.end).map(byte).collect()))
        };
        for position in &mut positions {
            position.code += self.entry;
        }
        let ends = self.places.iter().skip(1).map(|place| place.stub).chain([self.stubs_end]);
        let sites = self.places.iter().zip(ends).map(|(place, end)| ListedSite {
            code: place.code,
            wasm: place.position,
            stub: place.stub..end,
            list: list(place),
        });
        let sites: Vec<ListedSite> = sites.collect();
        // The site of the exit is in the epilogue, which has its position.
        let of_instructions = sites.iter().filter(|site| site.wasm != body.start && site.wasm != body.end);
        let positions = with_sites(positions, of_instructions.map(|site| (site.code, site.wasm)));
        Listed { base: self.base, code, entry: self.entry, end: self.end, positions, sites }
    }
}

/// Positions, in code order, and those of sites among them, which are given in code order.
fn with_sites(positions: Vec<Position>, sites: impl Iterator<Item = (u32, u32)>) -> Vec<Position> {
    // The last of them that is entered is the first of its instruction.
    let first: HashMap<u32, usize> =
        positions.iter().enumerate().rev().map(|(at, position)| (position.wasm, at)).collect();
    // Each with the number of the position before which it comes.
    let mut placed: Vec<(usize, Position)> = sites
        .map(|(code, wasm)| {
            // Before the instruction, or in the code of a loop.
            let at = match first.get(&wasm).filter(|first| positions[**first].code >= code) {
                Some(first) => *first,
                None => positions.partition_point(|other| other.code <= code),
            };
            (at, Position { code, wasm })
        })
        .collect();
    placed.sort_by_key(|(at, _)| *at);
    let mut placed = placed.into_iter().peekable();
    let mut all = Vec::with_capacity(positions.len() + placed.len());
    for (number, position) in positions.into_iter().enumerate() {
        all.extend(std::iter::from_fn(|| placed.next_if(|(at, _)| *at <= number)).map(|(_, site)| site));
        all.push(position);
    }
    all.extend(placed.map(|(_, site)| site));
    all
}
