//! Giving sites ids and stubs.
//!
//! The stubs of an object lie in one block near its text, code in front and cells behind: for each site the cell of its probe
//! function, and for sites that call through a pointer one more that holds the stub's address.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use callpatch::stub::{STUB_SIZE, stub};
use callpatch::{CallSite, Clobbers, Shape};
use wordpatch::near::NearBlock;

use super::loaded::LoadedObject;
use super::scan::Site;
use super::{cell, leak, no_name, resolve};
use crate::error::Error;
use crate::probe::ProbeId;
use crate::registry::{PROBES, Probe};

/// What [`make`] has made.
pub(super) struct Made {
    pub(super) probes: BTreeMap<usize, ProbeId>,
    /// Why sites, if any, were left as they are.
    pub(super) refused: Vec<Error>,
}

/// Two words for each site.
const CELLS: usize = 2 * size_of::<usize>();

/// What the operand of a site must lead to.
fn operand(shape: Shape, stub: usize, stub_cell: usize) -> usize {
    match shape {
        Shape::Call | Shape::Jump => stub,
        Shape::IndirectCall | Shape::IndirectJump => stub_cell,
    }
}

fn decode(sites: &[Site], stays: bool) -> Vec<Result<CallSite, Error>> {
    // SAFETY: the scan found an instruction there, in text that the loader keeps mapped under discovery's right. A compiler
    // placed the call, of a function without result, so that the program is right without it and with the caller-saved
    // registers changed.
    let decode = |site: &Site| unsafe { CallSite::decode(site.address, Clobbers::CallerSaved) };
    // SAFETY: the loader never unloads this object.
    let stay = |site: CallSite| if stays { unsafe { site.staying_mapped() } } else { site };
    sites.iter().map(|site| Ok(stay(decode(site)?))).collect()
}

/// Leads each decoded site to its stub, switched off.
fn lead(
    decoded: Vec<Result<CallSite, Error>>,
    operands: impl Fn(usize) -> usize,
) -> Vec<Result<CallSite, Error>> {
    let mut refused: Vec<Option<Error>> = Vec::new();
    let mut batch = Vec::new();
    for (index, site) in decoded.into_iter().enumerate() {
        match site {
            Ok(site) => {
                batch.push((site, operands(index)));
                refused.push(None);
            }
            Err(error) => refused.push(Some(error)),
        }
    }
    // SAFETY: a stub takes the site's arguments and returns to it; stubs and their cells live as long as the process.
    let mut retargeted = unsafe { callpatch::retarget(&batch) }.into_iter();
    let next = |refused: Option<Error>| match refused {
        Some(error) => Err(error),
        None => Ok(retargeted.next().expect("one result for each site")?),
    };
    refused.into_iter().map(next).collect()
}

/// Makes a probe of each site of an object, switched off; those whose function is not known are left on, to find it out.
pub(super) fn make(loaded: &LoadedObject, sites: &[Site]) -> Result<Made, Error> {
    let first = PROBES.len();
    if first + sites.len() > crate::Segments::<Probe>::LIMIT {
        return Err(Error::TooManyProbes { limit: crate::Segments::<Probe>::LIMIT });
    }
    let mut block = NearBlock::allocate(&loaded.range, sites.len() * STUB_SIZE, sites.len() * CELLS)?;
    let (code, data) = (block.code_address(), block.data_address());
    let stub_of = |index: usize| code + index * STUB_SIZE;
    let cell_of = |index: usize| data + index * CELLS;
    for (index, place) in block.code_mut().chunks_exact_mut(STUB_SIZE).take(sites.len()).enumerate() {
        place.copy_from_slice(&stub(stub_of(index), (first + index) as u32, cell_of(index))?);
    }
    block.seal()?;
    let stub_cell_of = |index: usize| cell_of(index) + size_of::<usize>();
    for index in 0..sites.len() {
        cell(cell_of(index)).store(resolve::resolve as *const () as usize, Ordering::Relaxed);
        cell(stub_cell_of(index)).store(stub_of(index), Ordering::Relaxed);
    }

    let operands = |index: usize| operand(sites[index].shape, stub_of(index), stub_cell_of(index));
    let led = lead(decode(sites, loaded.stays), operands);
    let object_path = leak(&loaded.path);
    let mut made = Made { probes: BTreeMap::new(), refused: Vec::new() };
    for (index, (site, led)) in sites.iter().zip(led).enumerate() {
        // A site that was refused keeps its number, so that stubs and ids stay in step; it answers `Unloaded`.
        let (call_site, refusal) = match led {
            Ok(led) => (Box::into_raw(Box::new(led)), None),
            Err(error) => (std::ptr::null_mut(), Some(error)),
        };
        let probe = |number: usize| Probe {
            id: ProbeId(number as u32),
            kind: site.kind,
            site: AtomicPtr::new(call_site),
            site_address: site.address,
            function_cell: cell(cell_of(index)),
            function_address: AtomicUsize::new(site.function.unwrap_or(0)),
            name: no_name(),
            object_path,
            object_base: loaded.range.start,
            wanted: AtomicBool::new(false),
            next_resolved: AtomicU32::new(0),
        };
        let number = PROBES.push_with(probe).expect("room was checked under discovery's right");
        match refusal {
            None => _ = made.probes.insert(site.address, ProbeId(number as u32)),
            Some(error) => made.refused.push(error),
        }
        if site.function.is_none()
            && let Some(Ok(site)) = PROBES.get(number).map(Probe::site)
        {
            site.activate()?;
        }
    }
    Ok(made)
}

/// The sites of an object that was loaded again: those that it had, if they are the same in all, so that each coming back costs no
/// memory; else these new ones.
///
/// A thread may have been about to toggle one of the old sites since before the object was unloaded. Until all sites lead to their
/// stubs, it reaches memory that nobody executes; after that, its toggle is as good as any other.
fn revived(
    led: Vec<Result<CallSite, Error>>,
    previous: Vec<Option<&'static CallSite>>,
) -> Result<Vec<&'static CallSite>, Error> {
    let led = led.into_iter().collect::<Result<Vec<_>, _>>()?;
    let pairs = led.iter().zip(&previous);
    let are_again = pairs.clone().all(|(now, old)| old.is_some_and(|old| old.is_again(now)));
    // SAFETY: the new sites are known to this function only, and dropped. The old ones are the same calls, in text that is mapped.
    if are_again && previous.first().is_some_and(|old| old.is_some_and(|old| unsafe { old.revive() })) {
        return Ok(previous.into_iter().flatten().collect());
    }
    Ok(led.into_iter().map(|site| &*Box::leak(Box::new(site))).collect())
}

/// Leads the sites of an object that was loaded again at the same address to the stubs that they had, switched as they were.
pub(super) fn attach(sites: &[Site], probes: &BTreeMap<usize, ProbeId>) -> Result<(), Error> {
    let probe = |site: &Site| PROBES.get(probes[&site.address].0 as usize).expect("ids are never taken back");
    let operands = |index: usize| {
        let function_cell = probe(&sites[index]).function_cell.as_ptr() as usize;
        let stub_cell = function_cell + size_of::<usize>();
        operand(sites[index].shape, cell(stub_cell).load(Ordering::Relaxed), stub_cell)
    };
    let led = lead(decode(sites, false), operands);
    let previous = sites.iter().map(|site| probe(site).previous_site()).collect();
    for (site, led) in sites.iter().zip(revived(led, previous)?) {
        let probe = probe(site);
        probe.site.store(std::ptr::from_ref(led).cast_mut(), Ordering::Release);
        let is_open = probe.function_address.load(Ordering::Relaxed) == 0;
        if is_open || probe.wanted.load(Ordering::Acquire) {
            led.activate()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_calls_lead_to_the_stub_and_calls_through_pointers_to_its_cell() {
        let check = |shape, expected| assert_eq!(operand(shape, 1, 2), expected, "{shape:?}");
        check(Shape::Call, 1);
        check(Shape::Jump, 1);
        check(Shape::IndirectCall, 2);
        check(Shape::IndirectJump, 2);
    }
}
