//! Memory access events.

use std::collections::BTreeMap;

use wasm_jit::probes::{Bound, InstanceId, Lane, Place, ProbeError};
use wasm_jit::wasmparser::{MemArg, MemArgTarget, Operator};

use crate::attach::{Instances, Probes, Site, callback, each_site};
use crate::flow::Flow;
use crate::hook::Hook;
use crate::pending::Records;

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AccessKind {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads and writes, as one atomic operation (`atomic.rmw`).
    ReadModifyWrite,
    /// Waits at an address (`memory.atomic.wait`).
    Wait,
    /// Wakes threads that wait at an address (`memory.atomic.notify`).
    Notify,
}

/// An access to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The function's index, imports included.
    pub function: u32,
    /// The offset of the instruction from the start of the function's body.
    pub offset: u32,
    /// The kind of access.
    pub kind: AccessKind,
    /// The index of the memory in the module, imports included.
    pub memory: u32,
    /// The address of the first byte: the operand plus the constant offset, modulo 2^64. (In a
    /// 64-bit memory, an access whose sum is larger traps.)
    pub address: u64,
    /// The number of bytes that are accessed.
    pub size: u64,
    /// For a store, the stored bytes, zero-extended; for `memory.fill`, the byte. For other
    /// instructions, the result: for a load, the loaded value, extended as the instruction does and
    /// then zero-extended from its type; for a [`ReadModifyWrite`](AccessKind::ReadModifyWrite),
    /// the previous value. `None` for the other bulk operations, which copy bytes, and for
    /// instructions that load or store vectors or lanes of them.
    pub value: Option<u64>,
    /// For an instruction that loads or stores a vector or a lane of one, this vector: the result
    /// of a load, the operand of a store. Lane 0 is in the lowest bits.
    pub vector: Option<u128>,
    /// The instance that makes the access, to which the memory's index refers.
    pub instance: InstanceId,
}

/// The locations of an access's address, size and value.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// At [`Bound::Address`]. The value or vector is the result.
    Result { is_vector: bool },
    /// At [`Bound::Address`]. The value or vector is the top operand.
    Stored { is_vector: bool },
    /// The address is this operand, and the size the top one; the value may be an operand.
    Bulk { address: u32, value: Option<u32> },
}

#[derive(Clone, Copy, Debug)]
struct Known {
    kind: AccessKind,
    form: Form,
    memory: u32,
    /// The size in bytes; not used for bulk operations.
    size: u64,
}

/// Calls a closure for each access of the chosen instructions.
///
/// Stores and bulk operations are reported before they are executed, even if they trap. The others
/// are reported with their result when they have completed, before the next instruction.
///
/// # Errors
/// As [`Module::probes`](wasm_jit::Module::probes) and
/// [`Probe::activate`](wasm_jit::probes::Probe::activate).
pub fn memory<'a>(
    of: impl Into<Instances<'a>>,
    filter: impl Fn(&Site<'_>) -> bool,
    hook: impl Fn(&Access) + Send + Sync + 'static,
) -> Result<Hook, ProbeError> {
    let of = of.into();
    let mut found = Found::default();
    each_site(of.module, filter, |site, flow, index| found.add(site, flow, index));
    let (records, watch) = Records::new(of.module);
    let period = records.period();
    Hook::with_period(probes(found, records, hook).make(of)?, period, Some(watch))
}

/// Accesses to observe.
#[derive(Debug, Default)]
struct Found {
    sites: Vec<(u32, u32, Known)>,
    /// The places after instructions with results, and the numbers of these instructions.
    followers: BTreeMap<(u32, Place), usize>,
}

impl Found {
    fn add(&mut self, site: &Site<'_>, flow: &Flow<'_>, index: usize) {
        for known in known_accesses(site.operator) {
            if matches!(known.form, Form::Result { .. }) {
                // Such an instruction has one successor, which no other load precedes.
                let place = flow.place(flow.successors[index][0]);
                self.followers.insert((site.function, place), self.sites.len());
            }
            self.sites.push((site.function, site.offset, known));
        }
    }
}

/// The probes of accesses.
fn probes(found: Found, records: Records, hook: impl Fn(&Access) + Send + Sync + 'static) -> Probes {
    let Found { sites: found, followers } = found;
    let sites = found.clone();
    let event = move |number: usize, instance: InstanceId, address: u64, size: u64, value: &[u64]| {
        let (function, offset, Known { kind, memory, .. }) = found[number];
        let (value, vector) = match *value {
            [low, high] => (None, Some(u128::from(low) | u128::from(high) << 64)),
            _ => (value.first().copied(), None),
        };
        hook(&Access { function, offset, kind, memory, address, size, value, vector, instance });
    };
    let event = std::sync::Arc::new(event);
    let known = sites.clone();
    let (began, completed) = (records.clone(), event.clone());
    let completes = callback(move |number, instance, values| {
        if let Some((_, address)) = records.complete(values[0], &[number]) {
            completed(number, instance, address, known[number].2.size, &values[1..]);
        }
    });
    let begins = callback(move |number, _, values| began.begin(values[0], number, values[1]));
    let known = sites.clone();
    let stores = callback(move |number, instance, values| match known[number].2 {
        Known { form: Form::Bulk { value, .. }, .. } => {
            let byte = value.map(|_| values[2] & 0xff);
            event(number, instance, values[0], values[1], byte.as_slice());
        }
        Known { size, form: Form::Stored { is_vector: false }, .. } => {
            event(number, instance, values[0], size, &[values[1] & (u64::MAX >> (64 - 8 * size))])
        }
        Known { size, .. } => event(number, instance, values[0], size, &values[1..]),
    });
    let mut probes = Probes::default();
    // An instruction completes before the next one begins.
    for (place, number) in followers {
        let is_vector = matches!(sites[number].2.form, Form::Result { is_vector: true });
        probes.add(place, &completes, number, &with_top(Bound::Frame, is_vector));
    }
    for (number, (function, offset, known)) in sites.into_iter().enumerate() {
        let place = (function, Place::Instruction { offset });
        match known.form {
            Form::Result { .. } => probes.add(place, &begins, number, &[Bound::Frame, Bound::Address]),
            Form::Stored { is_vector } => {
                probes.add(place, &stores, number, &with_top(Bound::Address, is_vector));
            }
            Form::Bulk { address, value } => {
                let mut values = vec![Bound::Operand(address), Bound::Operand(0)];
                values.extend(value.map(Bound::Operand));
                probes.add(place, &stores, number, &values);
            }
        }
    }
    probes
}

/// A value, and the top operand, which may be a vector.
fn with_top(first: Bound, is_vector: bool) -> Vec<Bound> {
    let lane = |lane| Bound::OperandLane(0, lane);
    if is_vector { vec![first, lane(Lane::Low), lane(Lane::High)] } else { vec![first, Bound::Operand(0)] }
}

/// A memory access of an instruction, and the values by which probes at the instruction observe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessInfo {
    /// The kind of access.
    pub kind: AccessKind,
    /// The index of the memory in the module, imports included.
    pub memory: u32,
    /// The address of the first byte.
    pub address: Bound,
    /// The number of bytes that are accessed: a [`Bound::Const`], or for a bulk operation another
    /// value.
    pub size: Bound,
    /// Whether the [value](Access::value) is the result of the instruction, which probes at the
    /// next instruction find.
    pub has_result: bool,
    /// The value, if the access has one; for a store, its low bytes, as many as are accessed; for
    /// `memory.fill`, its lowest byte.
    pub value: Option<Bound>,
}

/// The memory accesses of an instruction, in order: `memory.copy` has two, most instructions have
/// one or none.
pub fn accesses(operator: &Operator<'_>) -> Vec<AccessInfo> {
    let info = |Known { kind, form, memory, size }| {
        let (address, size) = match form {
            Form::Bulk { address, .. } => (Bound::Operand(address), Bound::Operand(0)),
            _ => (Bound::Address, Bound::Const(size)),
        };
        let value = match form {
            Form::Bulk { value, .. } => value.map(Bound::Operand),
            Form::Result { is_vector } | Form::Stored { is_vector } => {
                (!is_vector).then_some(Bound::Operand(0))
            }
        };
        let has_result = matches!(form, Form::Result { .. });
        AccessInfo { kind, memory, address, size, has_result, value }
    };
    known_accesses(operator).into_iter().map(info).collect()
}

/// The accesses of an instruction, in their order.
fn known_accesses(operator: &Operator<'_>) -> Vec<Known> {
    use Operator as O;
    let bulk = |kind, memory, address, value| {
        let form = Form::Bulk { address, value };
        Known { kind, form, memory, size: 0 }
    };
    match operator {
        O::MemoryFill { mem } => return vec![bulk(AccessKind::Store, *mem, 2, Some(1))],
        O::MemoryCopy { dst_mem, src_mem } => {
            return vec![
                bulk(AccessKind::Load, *src_mem, 1, None),
                bulk(AccessKind::Store, *dst_mem, 2, None),
            ];
        }
        O::MemoryInit { mem, .. } => return vec![bulk(AccessKind::Store, *mem, 2, None)],
        _ => {}
    }
    let (kind, size, memarg): (AccessKind, u64, &MemArg) = match operator {
        O::I32Load8S { memarg }
        | O::I32Load8U { memarg }
        | O::I64Load8S { memarg }
        | O::I64Load8U { memarg }
        | O::I32AtomicLoad8U { memarg }
        | O::I64AtomicLoad8U { memarg } => (AccessKind::Load, 1, memarg),
        O::I32Load16S { memarg }
        | O::I32Load16U { memarg }
        | O::I64Load16S { memarg }
        | O::I64Load16U { memarg }
        | O::I32AtomicLoad16U { memarg }
        | O::I64AtomicLoad16U { memarg } => (AccessKind::Load, 2, memarg),
        O::I32Load { memarg }
        | O::F32Load { memarg }
        | O::I64Load32S { memarg }
        | O::I64Load32U { memarg }
        | O::I32AtomicLoad { memarg }
        | O::I64AtomicLoad32U { memarg } => (AccessKind::Load, 4, memarg),
        O::I64Load { memarg } | O::F64Load { memarg } | O::I64AtomicLoad { memarg } => {
            (AccessKind::Load, 8, memarg)
        }
        O::I32Store8 { memarg }
        | O::I64Store8 { memarg }
        | O::I32AtomicStore8 { memarg }
        | O::I64AtomicStore8 { memarg } => (AccessKind::Store, 1, memarg),
        O::I32Store16 { memarg }
        | O::I64Store16 { memarg }
        | O::I32AtomicStore16 { memarg }
        | O::I64AtomicStore16 { memarg } => (AccessKind::Store, 2, memarg),
        O::I32Store { memarg }
        | O::F32Store { memarg }
        | O::I64Store32 { memarg }
        | O::I32AtomicStore { memarg }
        | O::I64AtomicStore32 { memarg } => (AccessKind::Store, 4, memarg),
        O::I64Store { memarg } | O::F64Store { memarg } | O::I64AtomicStore { memarg } => {
            (AccessKind::Store, 8, memarg)
        }
        O::MemoryAtomicWait32 { memarg } => (AccessKind::Wait, 4, memarg),
        O::MemoryAtomicWait64 { memarg } => (AccessKind::Wait, 8, memarg),
        O::MemoryAtomicNotify { memarg } => (AccessKind::Notify, 4, memarg),
        _ => {
            if let Some(known) = vector_access(operator) {
                return vec![known];
            }
            let Some((size, memarg)) = read_modify_write(operator) else { return Vec::new() };
            (AccessKind::ReadModifyWrite, size, memarg)
        }
    };
    let MemArgTarget::Memory(memory) = memarg.target else { return Vec::new() };
    let is_vector = false;
    let form =
        if kind == AccessKind::Store { Form::Stored { is_vector } } else { Form::Result { is_vector } };
    vec![Known { kind, form, memory, size }]
}

/// The access of an instruction that loads or stores a vector or a lane of one.
fn vector_access(operator: &Operator<'_>) -> Option<Known> {
    use Operator as O;
    let load = AccessKind::Load;
    let (kind, size, memarg): (AccessKind, u64, &MemArg) = match operator {
        O::V128Load { memarg } => (load, 16, memarg),
        O::V128Load8x8S { memarg }
        | O::V128Load8x8U { memarg }
        | O::V128Load16x4S { memarg }
        | O::V128Load16x4U { memarg }
        | O::V128Load32x2S { memarg }
        | O::V128Load32x2U { memarg }
        | O::V128Load64Splat { memarg }
        | O::V128Load64Zero { memarg }
        | O::V128Load64Lane { memarg, .. } => (load, 8, memarg),
        O::V128Load32Splat { memarg } | O::V128Load32Zero { memarg } | O::V128Load32Lane { memarg, .. } => {
            (load, 4, memarg)
        }
        O::V128Load16Splat { memarg } | O::V128Load16Lane { memarg, .. } => (load, 2, memarg),
        O::V128Load8Splat { memarg } | O::V128Load8Lane { memarg, .. } => (load, 1, memarg),
        O::V128Store { memarg } => (AccessKind::Store, 16, memarg),
        O::V128Store64Lane { memarg, .. } => (AccessKind::Store, 8, memarg),
        O::V128Store32Lane { memarg, .. } => (AccessKind::Store, 4, memarg),
        O::V128Store16Lane { memarg, .. } => (AccessKind::Store, 2, memarg),
        O::V128Store8Lane { memarg, .. } => (AccessKind::Store, 1, memarg),
        _ => return None,
    };
    let MemArgTarget::Memory(memory) = memarg.target else { return None };
    let is_vector = true;
    let form =
        if kind == AccessKind::Store { Form::Stored { is_vector } } else { Form::Result { is_vector } };
    Some(Known { kind, form, memory, size })
}

/// The size of an atomic operation that reads and writes.
fn read_modify_write<'a>(operator: &'a Operator<'_>) -> Option<(u64, &'a MemArg)> {
    use Operator as O;
    Some(match operator {
        O::I32AtomicRmw8AddU { memarg }
        | O::I32AtomicRmw8SubU { memarg }
        | O::I32AtomicRmw8AndU { memarg }
        | O::I32AtomicRmw8OrU { memarg }
        | O::I32AtomicRmw8XorU { memarg }
        | O::I32AtomicRmw8XchgU { memarg }
        | O::I32AtomicRmw8CmpxchgU { memarg }
        | O::I64AtomicRmw8AddU { memarg }
        | O::I64AtomicRmw8SubU { memarg }
        | O::I64AtomicRmw8AndU { memarg }
        | O::I64AtomicRmw8OrU { memarg }
        | O::I64AtomicRmw8XorU { memarg }
        | O::I64AtomicRmw8XchgU { memarg }
        | O::I64AtomicRmw8CmpxchgU { memarg } => (1, memarg),
        O::I32AtomicRmw16AddU { memarg }
        | O::I32AtomicRmw16SubU { memarg }
        | O::I32AtomicRmw16AndU { memarg }
        | O::I32AtomicRmw16OrU { memarg }
        | O::I32AtomicRmw16XorU { memarg }
        | O::I32AtomicRmw16XchgU { memarg }
        | O::I32AtomicRmw16CmpxchgU { memarg }
        | O::I64AtomicRmw16AddU { memarg }
        | O::I64AtomicRmw16SubU { memarg }
        | O::I64AtomicRmw16AndU { memarg }
        | O::I64AtomicRmw16OrU { memarg }
        | O::I64AtomicRmw16XorU { memarg }
        | O::I64AtomicRmw16XchgU { memarg }
        | O::I64AtomicRmw16CmpxchgU { memarg } => (2, memarg),
        O::I32AtomicRmwAdd { memarg }
        | O::I32AtomicRmwSub { memarg }
        | O::I32AtomicRmwAnd { memarg }
        | O::I32AtomicRmwOr { memarg }
        | O::I32AtomicRmwXor { memarg }
        | O::I32AtomicRmwXchg { memarg }
        | O::I32AtomicRmwCmpxchg { memarg }
        | O::I64AtomicRmw32AddU { memarg }
        | O::I64AtomicRmw32SubU { memarg }
        | O::I64AtomicRmw32AndU { memarg }
        | O::I64AtomicRmw32OrU { memarg }
        | O::I64AtomicRmw32XorU { memarg }
        | O::I64AtomicRmw32XchgU { memarg }
        | O::I64AtomicRmw32CmpxchgU { memarg } => (4, memarg),
        O::I64AtomicRmwAdd { memarg }
        | O::I64AtomicRmwSub { memarg }
        | O::I64AtomicRmwAnd { memarg }
        | O::I64AtomicRmwOr { memarg }
        | O::I64AtomicRmwXor { memarg }
        | O::I64AtomicRmwXchg { memarg }
        | O::I64AtomicRmwCmpxchg { memarg } => (8, memarg),
        _ => return None,
    })
}
